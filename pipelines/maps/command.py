"""`python -m pipelines maps`: maps from a part of their cells, and the speed of predictions of large grids.

relief and ocean: heights (etopo5.cdf) and temperatures of the sea (levitus_climatology.cdf), of the Debian package
ferret-datasets, with standard deviations, beside local interpolation and an exact Gaussian process. land: 933 million
cells of the package global-land-mask. scenes: generated images of 12 bands. heaton: temperatures under clouds, by
kriging (`clouds`). Shapes: d features, m landmarks.
"""

import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
import numpy as np
import zarr
from scipy.interpolate import RBFInterpolator
from scipy.io import netcdf_file
from scipy.spatial import cKDTree
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.pipeline import make_pipeline

import bigkernel as bk
from bigkernel.arrays import Array
from bigkernel.engine.process import peak_bytes
from bigkernel.errors import AccuracyWarning, DataError, RankDeficiencyWarning
from bigkernel.kernels.feature_maps import LandmarkMap
from bigkernel.statistics.predictor import Predictor
from bigkernel.statistics.scores import normal_losses
from bigkernel.streaming.chunk import Chunk
from pipelines.maps.clouds import measure_clouds
from pipelines.shared.charts import Curve, curves
from pipelines.shared.experiments import Report, data_option, json_option, out_option, seed_option, timed
from pipelines.shared.page import Column, Table
from pipelines.shared.pictures import LIGHT, Paper, drawing

FERRET = Path("/usr/share/ferret-vis/data")
EARTH_KM = 6371.0
BANDS = tuple(f"b{i:02d}" for i in range(12))  # of a scene
SIDE = 1000  # pixels of a side of a scene
NORMAL_90 = 1.645  # standard deviations on both sides of the mean that hold 90 %
UNITS = {"relief": "m", "ocean": "°C"}


def grid_of(name: str) -> Any:
    """Return the Dataset of a grid: the variable `target`, coordinates, and NaN where there is none."""
    xarray = import_module("xarray")
    if name == "land":
        place = find_spec("global_land_mask")
        if place is None or place.origin is None:
            raise DataError("land: expected the package global-land-mask: pip install global-land-mask")
        stored = np.load(Path(place.origin).with_name("globe_combined_mask_compressed.npz"))
        return xarray.Dataset(
            {"target": (("lat", "lon"), ~stored["mask"])}, {"lat": stored["lat"], "lon": stored["lon"]}
        )
    file = FERRET / {"relief": "etopo5.cdf", "ocean": "levitus_climatology.cdf"}[name]
    if not file.is_file():
        raise DataError(f"{file}: not found; it is of the Debian package ferret-datasets")
    with netcdf_file(file, mmap=False) as source:
        values = {key: one[:].astype(float) for key, one in source.variables.items()}
    if name == "relief":
        lon = values["ETOPO05_X"]
        once = (lon >= lon[0]) & (lon < lon[0] + 360)
        coords = {"lat": values["ETOPO05_Y"], "lon": lon[once]}
        return xarray.Dataset({"target": (("lat", "lon"), values["ROSE"][:, once])}, coords)
    depth = values["ZAXLEVITR"]
    coords = {"depth": depth, "lat": values["YAXLEVITR"], "lon": values["XAXLEVITR"]}
    target = np.where(values["TEMP"] < -1e9, np.nan, values["TEMP"])
    coords["level"] = ("depth", np.log1p(depth / 50) / 10)  # a tenth of a radius for each factor e of depth
    return xarray.Dataset({"target": (tuple(coords)[:3], target)}, coords)


def draw_cells(grid: Any, count: int, seed: int) -> Array:
    """Return positions of random cells that have a target, at most 30 % of all."""
    flat, rng = grid["target"].values.reshape(-1), np.random.default_rng(seed)
    if flat.dtype == bool:
        return rng.choice(flat.size, count, replace=False)
    known = np.flatnonzero(np.isfinite(flat))
    return rng.choice(known, min(count, int(0.3 * len(known))), replace=False)


def cells_at(grid: Any, names: Sequence[str], places: Array) -> Any:
    """Return features and target of cells as a Dataset of one dimension."""
    target = grid["target"]
    index = dict(zip(target.dims, np.unravel_index(places, target.shape), strict=True))
    columns = {name: ("cell", grid[name].values[index[grid[name].dims[0]]]) for name in names}
    flat = target.values.reshape(-1)
    return import_module("xarray").Dataset({**columns, "target": ("cell", flat[places])})


def vectors(cells: Any, names: Sequence[str]) -> Array:
    """Return cells as rows (n, d): unit vectors of places, and their other features."""
    return bk.OnSphere(0, 1).fit_transform(np.column_stack([cells[name].values for name in names]))


def rms(values: Array) -> float:
    """Return the root mean square."""
    return float(np.mean(np.square(values))) ** 0.5


def measure_map(report: Report, name: str, rows: int, neighbours: int, seed: int) -> None:
    """Krige a grid from a part of its cells, with standard deviations, and compare at the others."""
    grid, unit, rng = grid_of(name), UNITS[name], np.random.default_rng(seed)
    names = ("lat", "lon", *(("level",) if name == "ocean" else ()))
    places, truth = draw_cells(grid, rows, seed), grid["target"].values.reshape(-1)
    training = cells_at(grid, names, places)
    X, y = vectors(training, names), training["target"].values
    kriging = bk.Kriging(n_neighbors=neighbours, random_state=seed)
    model = make_pipeline(bk.OnSphere("lat", "lon"), kriging)
    _, fitted = timed(model.fit, bk.cells(training, names), y)
    report.say(f"{len(X):,} cells; {kriging.fit_report()}")
    found, seconds = timed(model.predict, bk.cells(grid, names), return_std=True)
    values, std = (found[key].transpose(*grid["target"].dims).values for key in ("prediction", "prediction_std"))
    truth[places] = np.nan
    places = np.flatnonzero(np.isfinite(truth))
    wrong, spread = values.reshape(-1)[places] - truth[places], std.reshape(-1)[places]
    test = rng.choice(len(places), min(20_000, len(places)), replace=False)
    records = [
        {
            "method": f"kriging, {neighbours} neighbours",
            **figures(wrong, spread),
            "fit": fitted,
            "each": 1e6 * seconds / values.size,
        },
        {"method": "at the cells of the others", **figures(wrong[test], spread[test])},
    ]
    X_test = vectors(cells_at(grid, names, places[test]), names)
    records += peers(X, y, X_test, truth[places[test]], seed)
    columns = [
        Column("method", "method", left=True),
        Column("cells", "cells", ",d"),
        Column("error", f"RMSE, {unit}", ".4g"),
        Column("crps", f"CRPS, {unit}", ".4g"),
        Column("cover", "in band", ".1%"),
        Column("fit", "fit s", ".1f"),
        Column("each", "µs a cell", ".1f"),
    ]
    report.table("maps", "At cells without data; bands of 90 %", Table(columns, records))
    layer, known = (0,) * (values.ndim - 2), grid["target"].notnull().values
    shown = [np.where(known, one, np.nan)[layer] for one in (values, std)]
    report.figure("map", two_maps, *shown, unit, caption=f"Predicted from {len(X):,} cells.")
    some = rng.choice(len(places), min(200_000, len(places)), replace=False)
    far = cKDTree(X).query(vectors(cells_at(grid, names, places[some]), names))[0] * EARTH_KM
    caption = "Twenty groups of equal size." + " A factor e of depth counts as 637 km." * (name == "ocean")
    report.figure("distance", by_distance, far, wrong[some], spread[some], unit, caption=caption)


def figures(wrong: Array, std: Array | None = None) -> dict[str, Any]:
    """Return number and error of cells, and the share of them within the bands."""
    found = {"cells": len(wrong), "error": rms(wrong)}
    if std is None:
        return found
    crps = float(normal_losses(wrong, std)["crps"].mean())
    return {**found, "crps": crps, "cover": float(np.mean(np.abs(wrong) < NORMAL_90 * std))}


def peers(X: Array, y: Array, X_test: Array, truth: Array, seed: int) -> list[dict[str, Any]]:
    """Return the figures of local interpolation, of an exact process of some rows, and of GPBoost if it is there."""
    local, local_seconds = timed(lambda: RBFInterpolator(X, y, neighbors=50, kernel="linear", degree=0)(X_test))
    some = np.random.default_rng(seed).choice(len(X), min(3000, len(X)), replace=False)
    kernel = ConstantKernel() * Matern(0.1, nu=1.5) + WhiteKernel(0.01)
    process, fitted = timed(GaussianProcessRegressor(kernel, normalize_y=True).fit, X[some], y[some])
    (mean, std), seconds = timed(process.predict, X_test, return_std=True)
    each = 1e6 / len(truth)
    records = [
        {"method": "RBFInterpolator, 50 neighbours", **figures(local - truth), "each": local_seconds * each},
        {
            "method": f"exact process, {len(some):,} cells",
            **figures(mean - truth, std),
            "fit": fitted,
            "each": seconds * each,
        },
    ]
    if find_spec("gpboost") is not None:
        kind = {"cov_function": "exponential", "gp_approx": "vecchia", "seed": seed}
        vecchia, ones = import_module("gpboost").GPModel(gp_coords=X, **kind), np.ones((len(X), 1))
        _, fitted = timed(vecchia.fit, y, ones)
        shown = {"gp_coords_pred": X_test, "X_pred": ones[: len(X_test)], "predict_var": True}
        found, seconds = timed(vecchia.predict, **shown)
        scores = figures(found["mu"] - truth, np.sqrt(found["var"]))
        records += [{"method": "GPBoost, Vecchia", **scores, "fit": fitted, "each": seconds * each}]
    return records


def two_maps(values: Array, std: Array, unit: str, *, paper: Paper = LIGHT) -> bytes:
    """Draw predictions (h, w) from south to north above their standard deviations."""
    with drawing(6.4, 6.6, paper) as (figure, png):
        for ax, shown, name, colours in zip(
            figure.subplots(2, 1),
            (values, std),
            ("prediction", "standard deviation"),
            ("viridis", "magma"),
            strict=True,
        ):
            low, high = np.nanpercentile(shown, [1, 99])
            image = ax.imshow(shown, origin="lower", cmap=colours, vmin=low, vmax=high, interpolation="nearest")
            ax.set_title(f"{name}, {unit}", loc="left")
            ax.set_xticks([])
            ax.set_yticks([])
            figure.colorbar(image, ax=ax, shrink=0.8)
    return png.getvalue()


def by_distance(far: Array, wrong: Array, std: Array, unit: str, *, paper: Paper = LIGHT) -> bytes:
    """Draw errors and standard deviations over the distance to the nearest training cell."""
    groups = np.array_split(np.argsort(far), 20)
    x = [float(np.mean(far[group])) for group in groups]
    shown = [
        Curve("root mean square error", x, [rms(wrong[group]) for group in groups]),
        Curve("standard deviation", x, [rms(std[group]) for group in groups], dashed=True),
    ]
    return curves(shown, x_label="km to the nearest training cell", y_label=unit, y_range=(0, None), paper=paper)


def measure_speed(report: Report, name: str, rows: int, leaves: int, m: int, scenes: int, seed: int) -> None:
    """Predict a grid to zarr on two workers, between two measurements of what its blocks alone cost."""
    store = report.out / "predicted.zarr"
    if name == "land":
        grid, names, d = grid_of(name), ("lat", "lon"), 3
        ridge = bk.KernelRidgeClassifier(bk.Matern(sigma=0.05, nu=1.5), n_landmarks=m, alpha="cv", random_state=seed)
        ridge.set_params(dtype="float32")
        split = bk.PartitionedClassifier(ridge, leaves, overlap=0.05, random_state=seed)
        model: Any = make_pipeline(bk.OnSphere("lat", "lon"), split)
        training = cells_at(grid, names, draw_cells(grid, rows, seed))
        y = training["target"].values
    else:
        grid, names, d = make_scenes(report.out / "scenes.zarr", scenes), BANDS, len(BANDS)
        model = bk.KernelRidge(bk.Gaussian(4.0), alpha=0.1, n_landmarks=m, dtype="float32", random_state=seed)
        training = grid.isel(scene=0).load().stack(cell=("y", "x")).isel(cell=slice(None, None, SIDE**2 // rows))
        training = training.reset_index("cell", drop=True)
        y = np.sin(training["b00"].values) + training["b01"].values * training["b02"].values
    _, fitted = timed(model.fit, bk.cells(training, names), y)
    before = block_nanoseconds(d, m)
    with bk.connect("local", workers=2, memory_limit="1GiB", dashboard=0) as client, bk.executing(client):
        _, seconds = timed(bk.predict_to, model, bk.cells(grid, names), store, overwrite=True)
        memory = max(client.run(peak_bytes).values())
    found = import_module("xarray").open_zarr(store)["prediction"]
    record: dict[str, Any] = {"cells": found.size, "fit": fitted, "seconds": seconds, "peak": memory / 1e6}
    columns = [Column("cells", "cells", ",d"), Column("fit", "fit s", ".1f"), Column("seconds", "predict s", ".1f")]
    columns += [Column("peak", "worker MB", ",.0f")]
    if name == "land":
        columns += [Column("error", "wrong", ".2%")]
        lines = np.linspace(0, found.sizes["lat"] - 1, 200).astype(int)
        record["error"] = float(np.mean([np.mean(found[i].values != grid["target"][i].values) for i in lines]))
    else:
        columns += [
            Column("each", "ns a value", ".2f"),
            Column("limit", "block alone", ".2f"),
            Column("ratio", "ratio"),
        ]
        each, limit = 2e9 * seconds / (found.size * m), (before + block_nanoseconds(d, m)) / 2
        record |= {"each": each, "limit": limit, "ratio": f"{limit / each:.2f}"}
    report.table("maps", "Predicted to zarr, two workers", Table(columns, [record]))


def make_scenes(path: Path, count: int) -> Any:
    """Write scenes of smooth bands with noise, unless they are there, and open them."""
    if not (path / "done.zarr").exists():
        group = zarr.create_group(path, zarr_format=3, overwrite=True)
        shape, dims = (count, SIDE, SIDE), ("scene", "y", "x")
        made = {"shape": shape, "chunks": (1, SIDE, SIDE), "dtype": "float32", "compressors": None}
        arrays = [group.create_array(name, dimension_names=dims, fill_value=np.nan, **made) for name in BANDS]
        for scene in range(count):
            rng = np.random.default_rng(scene)
            smooth = (
                rng.standard_normal((SIDE // 50, SIDE // 50, len(BANDS)), dtype=np.float32).repeat(50, 0).repeat(50, 1)
            )
            for i, array in enumerate(arrays):
                array[scene] = smooth[..., i] + 0.1 * rng.standard_normal((SIDE, SIDE), dtype=np.float32)
        zarr.create_group(path / "done.zarr")
    grid = import_module("xarray").open_zarr(path, consolidated=False)
    if grid.sizes["scene"] != count:
        raise DataError(f"{path}: expected {count} scenes, found {grid.sizes['scene']}; remove it")
    return grid


def block_nanoseconds(d: int, m: int) -> float:
    """Return the nanoseconds a kernel value costs a processor in the block and its product alone, two at once."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        return float(np.mean(list(processes.map(_block_nanoseconds, (d, d), (m, m)))))


def _block_nanoseconds(d: int, m: int) -> float:
    rng, n = np.random.default_rng(0), max(4096, 160_000_000 // m)
    chunk, Z = Chunk(rng.standard_normal((n, d)).astype(np.float32)), rng.standard_normal((m, d))
    predictor = Predictor(LandmarkMap(bk.Gaussian(4.0), Z, np.dtype(np.float32)), np.ones((m, 1)), np.zeros(1))
    return min(timed(predictor.values, chunk)[1] for _ in range(3)) * 1e9 / (n * m)


@click.command()
@click.argument("name", type=click.Choice(["relief", "ocean", "land", "scenes", "heaton"]))
@click.option("--rows", default=100_000, show_default=True, type=click.IntRange(100), help="Cells to learn from.")
@click.option("--landmarks", default=1000, show_default=True, type=click.IntRange(10), help="Of scenes or a leaf.")
@click.option("--leaves", default=64, show_default=True, type=click.IntRange(1), help="Of land.")
@click.option("--neighbours", default=100, show_default=True, type=click.IntRange(10), help="Of relief and ocean.")
@click.option("--scenes", default=4, show_default=True, type=click.IntRange(1), help="Scenes of a million pixels.")
@click.option("--clouds", default=2, show_default=True, type=click.IntRange(0, 2), help="Cut out of heaton.")
@click.option("--folds", default=0, show_default=True, type=click.IntRange(0, 5), help="Of blocks and cells of heaton.")
@data_option("Directory with the data files of heaton.")
@seed_option
@out_option("maps", "Directory for report.html, CSV, PNG and predictions.")
@json_option
def maps(
    name: str,
    rows: int,
    landmarks: int,
    leaves: int,
    neighbours: int,
    scenes: int,
    clouds: int,
    folds: int,
    data: Path,
    seed: int,
    out: Path,
    as_json: bool,
) -> None:
    """Predict a grid from some of its cells: errors, bands of 90 %, seconds and memory.

    \b
    python -m pipelines maps ocean
    python -m pipelines maps scenes --scenes 243 --landmarks 4000
    python -m pipelines maps land --leaves 512 --landmarks 128
    python -m pipelines maps heaton
    """
    report = Report(out, f"Maps: {name}", "predictions of the cells of a grid", quiet=as_json)
    with warnings.catch_warnings():
        for category in (AccuracyWarning, RankDeficiencyWarning):  # some leaves have smooth kernels
            warnings.simplefilter("ignore", category)
        if name == "heaton":
            measure_clouds(report, data, clouds, folds, seed)
        elif name in UNITS:
            measure_map(report, name, rows, neighbours, seed)
        else:
            measure_speed(report, name, rows, leaves, landmarks, scenes, seed)
    report.finish({"rows": rows, "landmarks": landmarks, "leaves": leaves, "neighbours": neighbours, "seed": seed})
