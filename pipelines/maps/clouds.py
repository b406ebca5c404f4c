"""Land temperatures under clouds: `python -m pipelines maps heaton`.

The data of M. J. Heaton et al., "A case study competition among methods for analyzing large spatial data", JABES 24
(2019): a satellite image and a simulated field, with the same cells under clouds. The error under the clouds of the
image is estimated beforehand, under clouds of the same shapes that are cut out of the given cells; with `--folds`, that
of the simulated field by blocks whose cells are as far from the others as those under its clouds, and by random cells.
"""

import resource
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from scipy.spatial import cKDTree
from sklearn.model_selection import KFold

import bigkernel as bk
from bigkernel.arrays import Array
from pipelines.shared.charts import Curve, curves
from pipelines.shared.experiments import Report, data_file, timed
from pipelines.shared.page import Column, Table
from pipelines.shared.pictures import LIGHT, Paper

T = TypeVar("T")

MAPS = ("mean", "std", "share")
SIDES = np.array([10.0, 15, 20, 25, 30, 40])  # of blocks, in cells
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


def measure_clouds(report: Report, data: Path, clouds: int, folds: int, seed: int) -> None:
    """Predict both maps, score the simulated one, and estimate errors by cut clouds and by folds."""
    image = np.load(data_file(data, "heaton/satellite_train.npz"))
    simulated = np.load(data_file(data, "heaton/simulated.npz"))
    lat, lon = image["lat"], image["lon"]
    values = image["temperature"].astype(np.float64)

    def measure(X: Array, y: Array, ask: Callable[[bk.Kriging], T]) -> tuple[bk.Kriging, T, dict[str, float]]:
        before, model = processor_seconds(), bk.Kriging(random_state=seed)
        _, fitted = timed(model.fit, X, y)
        answer, predicted = timed(ask, model)
        return model, answer, {"fit": fitted, "predict": predicted, "processor": processor_seconds() - before}

    def score(method: str, X: Array, y: Array, tested: Array, truth: Array) -> dict[str, Any]:
        _, scores, seconds = measure(X, y, lambda model: bk.normal_scores(model, tested, truth))
        found = {name.removeprefix("neg_"): abs(value) for name, value in scores.items()}
        return {"method": method, "cells": len(truth), **found, **seconds}

    known, everywhere = np.isfinite(values), places(np.full(values.shape, True), lat, lon)
    training = places(known, lat, lon), values[known]
    model, maps, seconds = measure(*training, lambda model: model.predict(everywhere, return_share=True))
    path = report.out / "satellite.npz"
    shaped = {name: one.reshape(values.shape) for name, one in zip(MAPS, maps, strict=True)}
    np.savez(path, **shaped)
    report.say(f"{path}: mean, std and share of all cells, from {known.sum():,}; {model.fit_report()}")
    report.figure("variogram", variogram_figure, model, caption="Pairs of cells in twenty neighbourhoods, and the fit.")
    records = [{"method": "satellite, all cells", "cells": int(known.size), **seconds}]
    for name, tested in list(cut_clouds(values).items())[:clouds]:
        used = known & ~tested
        cells = places(used, lat, lon), values[used], places(tested, lat, lon), values[tested]
        records.append(score(f"satellite, clouds {name}", *cells))
    given, truth = simulated["train"].astype(np.float64), simulated["truth"]
    hidden = ~np.isfinite(given)
    X, y, under = places(~hidden, lat, lon), given[~hidden], places(hidden, lat, lon)
    records.append(score("simulated", X, y, under, truth[hidden]))
    splitters = {"blocks": blocks_like(X, under, seed), "random cells": KFold(shuffle=True, random_state=seed)}
    for name, splitter in splitters.items() if folds else ():
        for train, test in islice(splitter.split(X), folds):
            records.append(score(f"simulated, {name}", X[train], y[train], X[test], y[test]))
    report.table("clouds", "Under clouds, from the other cells", Table(COLUMNS, records))


def blocks_like(X: Array, hidden: Array, seed: int) -> bk.SpatialKFold:
    """Return folds of blocks of places X (n, 2), on average as far from the others as the hidden ones (m, 2)."""
    cell = np.diff(np.unique(X[:, 0])).min()

    def splitter(side: float) -> bk.SpatialKFold:
        return bk.SpatialKFold(size=side * cell, random_state=seed)

    def distance(known: Array, unknown: Array) -> float:
        return float(cKDTree(known).query(unknown)[0].mean())

    first = [next(splitter(side).split(X)) for side in SIDES]
    distances = [distance(X[train], X[test]) for train, test in first]
    return splitter(float(np.interp(distance(X, hidden), distances, SIDES)))


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
