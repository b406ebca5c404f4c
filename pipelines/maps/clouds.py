"""Land temperatures under clouds: `python -m pipelines maps heaton`.

The data of M. J. Heaton et al., "A case study competition among methods for analyzing large spatial data", JABES 24
(2019): a satellite image and a simulated field, with the same cells under clouds. The error under the clouds of the
image is estimated beforehand, under clouds of the same shapes that are cut out of the given cells.
"""

import resource
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr

import bigkernel as bk
from bigkernel.arrays import Array
from pipelines.shared.charts import Curve, curves
from pipelines.shared.experiments import Report, data_file, timed
from pipelines.shared.page import Column, Table
from pipelines.shared.pictures import LIGHT, Paper

OUTSIDE, HALF_BAND = 0.05, 1.959963984540054  # of bands of 95 %, in standard deviations
COLUMNS = [
    Column("method", "method", left=True),
    Column("cells", "cells", ",d"),
    Column("rmse", "RMSE, °C", ".3f"),
    Column("mae", "MAE, °C", ".3f"),
    Column("crps", "CRPS, °C", ".3f"),
    Column("interval_score", "interval score, °C", ".2f"),
    Column("coverage", "in band of 95 %", ".1%"),
    Column("fit", "fit s", ".1f"),
    Column("predict", "predict s", ".1f"),
    Column("processor", "processor s", ".1f"),
]


def cut_clouds(values: Array) -> dict[str, Array]:
    """Return given cells (h, w) under the clouds after these were mirrored or moved, by name."""
    missing = np.isnan(values)
    moved = {
        "turned around": missing[::-1, ::-1],
        "moved by half the map": np.roll(missing, [size // 2 for size in missing.shape], axis=(0, 1)),
    }
    return {name: clouds & ~missing for name, clouds in moved.items()}


def places(chosen: Array, lat: Array, lon: Array) -> Array:
    """Return the coordinates (n, 2) of chosen cells (h, w)."""
    rows, columns = np.nonzero(chosen)
    return np.column_stack([lon[columns], lat[rows]])


def measure_clouds(report: Report, data: Path, clouds: int, seed: int) -> None:
    """Predict both maps, score the simulated one, and estimate the error of the other by cut clouds."""
    image = np.load(data_file(data, "heaton/satellite_train.npz"))
    simulated = np.load(data_file(data, "heaton/simulated.npz"))
    lat, lon = image["lat"], image["lon"]
    values = image["temperature"].astype(np.float64)

    def predict(given: Array, used: Array, tested: Array) -> tuple[bk.Kriging, Array, Array, dict[str, float]]:
        before, model = processor_seconds(), bk.Kriging(random_state=seed)
        _, fitted = timed(model.fit, places(used, lat, lon), given[used])
        (mean, std), predicted = timed(model.predict, places(tested, lat, lon), return_std=True)
        return model, mean, std, {"fit": fitted, "predict": predicted, "processor": processor_seconds() - before}

    everywhere, known = np.full(values.shape, True), np.isfinite(values)
    model, mean, std, seconds = predict(values, known, everywhere)
    path = report.out / "satellite.npz"
    np.savez(path, mean=mean.reshape(values.shape), std=std.reshape(values.shape))
    report.say(f"{path}: mean and std of all cells, from {known.sum():,}; {model.fit_report()}")
    report.figure("variogram", variogram_figure, model, caption="Pairs of cells in twenty neighbourhoods, and the fit.")
    records: list[dict[str, Any]] = [{"method": "satellite, all cells", "cells": int(known.size), **seconds}]
    cut = list(cut_clouds(values).items())[:clouds]
    for name, tested in cut:
        _, mean, std, seconds = predict(values, known & ~tested, tested)
        scores = normal_scores(values[tested], mean, std)
        records.append({"method": f"satellite, clouds {name}", "cells": len(mean), **scores, **seconds})
    given, truth = simulated["train"].astype(np.float64), simulated["truth"]
    hidden = ~np.isfinite(given)
    _, mean, std, seconds = predict(given, ~hidden, hidden)
    scores = normal_scores(truth[hidden], mean, std)
    records.append({"method": "simulated", "cells": len(mean), **scores, **seconds})
    report.table("clouds", "Under clouds, from the other cells", Table(COLUMNS, records))


def normal_scores(y: Array, mean: Array, std: Array) -> dict[str, float]:
    """Score predictions N(mean, std²) of y (n,): errors, CRPS, and interval score and coverage of bands of 95 %.

    Gneiting & Raftery, Strictly Proper Scoring Rules, Prediction, and Estimation, JASA 102 (2007).
    """
    error = y - mean
    z = error / std
    density = np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    # E|Y − y| − E|Y − Y'|/2 (ibid., eq. 21)
    crps = std * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi))
    outside = np.maximum(np.abs(error) - HALF_BAND * std, 0)
    return {
        "rmse": float(np.mean(error**2)) ** 0.5,
        "mae": float(np.mean(np.abs(error))),
        "crps": float(crps.mean()),
        "interval_score": float(np.mean(2 * HALF_BAND * std + 2 / OUTSIDE * outside)),
        "coverage": float(np.mean(outside == 0)),
    }


def processor_seconds() -> float:
    """Return the processor seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def variogram_figure(model: bk.Kriging, *, paper: Paper = LIGHT) -> bytes:
    """Draw the empirical variogram and the fitted one over the distance in ranges."""
    found = model.variogram_
    shown = [
        Curve("pairs of cells", found.lags.tolist(), found.semivariances[:, 0].tolist(), dashed=True),
        Curve("variogram", found.lags.tolist(), found(found.lags)[:, 0].tolist()),
    ]
    return curves(shown, x_label="distance in ranges", y_label="semivariance, °C²", y_range=(0, None), paper=paper)
