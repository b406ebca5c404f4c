"""Every cell of a search knows whether it is right: its scores against least squares that squares nothing."""

import re
import warnings
from collections import Counter

import numpy as np
import pytest
from peers import cells
from rounding import TABLES, N, distance, least_squares

from bigkernel import Gaussian, KernelRidge, KernelRidgeClassifier, Ridge, SweepSearchCV, executing
from bigkernel.errors import AccuracyWarning, BestAtEdgeWarning, PlanTooLargeError, RankDeficiencyWarning
from bigkernel.estimators.fit import basis, precision
from bigkernel.estimators.fit.precision import probed_sweep
from bigkernel.events.job import Note, observe
from bigkernel.search import sweeps
from bigkernel.solvers.residuals import ENOUGH, PROMISE
from bigkernel.statistics.moments import RoundingProbe

pytestmark = pytest.mark.filterwarnings("ignore::bigkernel.errors.BestAtEdgeWarning")  # grids are small
FOLDS = np.arange(N) % 3
GRID = {"kernel": [Gaussian(sigma) for sigma in (0.7, 2.0, 4.0, 8.0)], "alpha": [1e-6, 1e-4, 1e-2, 1.0]}
SCORING = "neg_mean_squared_error"


def searched(X, y, model=None, **settings):
    """The search, whether it warned of inaccurate candidates, and its notes."""
    notes = []
    model = model or KernelRidge(fit_intercept=False, landmarks=X[:120])
    search = SweepSearchCV(model, GRID, **{"cv": FOLDS, "scoring": SCORING, "refit": False, **settings})
    with (
        warnings.catch_warnings(record=True) as caught,
        observe(lambda event: notes.append(event.text) if isinstance(event, Note) else None),
    ):
        warnings.simplefilter("always")
        search.fit(X, y)
    assert {one.category for one in caught} <= {BestAtEdgeWarning, AccuracyWarning, RankDeficiencyWarning}
    warned = [str(one.message) for one in caught if one.category is AccuracyWarning]
    return search, warned, [note for note in notes if " in float64" in note]


@pytest.mark.parametrize("features, dtype", [(4, "float32"), (10, "float32"), (10, "float64")])
def test_scores_are_those_of_least_squares_or_marked(features, dtype):
    X, y = TABLES[features]
    X = X.astype(dtype)
    search, warned, again = searched(X, y)
    results, Z = search.cv_results_, X[:120].astype(float)
    marked = results["prediction_error"] > ENOUGH
    assert len(warned) <= bool(marked.any())  # candidates that cannot be the best are marked alone
    assert bool(again) == (dtype == "float32")
    splits = [(j != FOLDS, j == FOLDS) for j in range(3)]
    marks = dict(zip(map(str, results["params"]), marked, strict=True))
    for params, train, test, score in cells(search, splits):
        rows, new = X[train].astype(float), X[test].astype(float)
        expected = least_squares(params["kernel"], Z, rows, y[train], params["alpha"], at=new)
        true = np.mean((y[test] - expected) ** 2)
        off = abs(-score() / true - 1)
        # a change of predictions by ε moves a squared error by 2ε‖f‖/‖y − f‖ of it
        far = PROMISE * np.linalg.norm(expected) / np.sqrt(true * len(new))
        assert off <= 2 * far + far**2 or marks[str(params)]


def test_overlapping_splits_are_scored_in_the_same_precision():
    X, y = TABLES[10]
    X = X.astype("f4")
    fold = FOLDS
    splits = [(np.flatnonzero(fold != j), np.flatnonzero(fold == j)) for j in (0, 1, 0)]  # some rows are tested twice
    search, _, again = searched(X, y, cv=splits)
    once, _, _ = searched(X, y)
    for j, same in ((0, 0), (1, 1), (2, 0)):
        right = once.cv_results_["prediction_error"] <= ENOUGH
        scores = [one[f"split{k}_test_score"][right] for one, k in ((search.cv_results_, j), (once.cv_results_, same))]
        np.testing.assert_allclose(*scores, rtol=1e-4)
    assert len(again) == 1  # the second partition begins where the first one ended


def test_candidates_that_stay_inaccurate_are_counted_in_a_warning():
    X, y = TABLES[10]
    search, (message,), again = searched(X.astype("f4"), y, KernelRidge(landmarks=X[:120], dtype="float32"))
    assert again  # sums in float64, of the same blocks
    off = search.cv_results_["prediction_error"] > ENOUGH
    count = int(re.match(r"scores of (\d+) of 16 candidates(?: with the best one)? are unreliable", message)[1])
    assert 0 < count <= off.sum()  # not those that cannot be the best
    ends = {end.direction for end in search.edges_}
    assert ("larger alphas" in message) != (("alpha", "smallest") in ends)
    assert ("narrower kernels" in message) != (("sigma", "largest") in ends)


def test_only_kernels_that_may_be_the_best_are_swept_again():
    X, y = TABLES[10]
    found, exact = (searched(X.astype(dtype), y)[0].cv_results_ for dtype in ("f4", "f8"))
    left = found["prediction_error"] > ENOUGH
    assert exact["mean_test_score"][left].max() < exact["mean_test_score"].max()
    assert found["rank_test_score"].argmin() == exact["rank_test_score"].argmin()


@pytest.mark.parametrize("dtype, finer", [("float32", True), ("float64", False)])
def test_a_kernel_is_whitened_once_in_each_precision_and_not_again_for_the_best(monkeypatch, dtype, finer):
    X, y = TABLES[10]
    counts, whiten = Counter(), basis.whiten

    def count(core, *, eps, **options):
        counts[core.tobytes(), eps] += 1
        return whiten(core, eps=eps, **options)

    monkeypatch.setattr(basis, "whiten", count)
    _, _, again = searched(X.astype(dtype), y, refit=True)
    assert set(counts.values()) == {1}
    assert len({core for core, _ in counts}) == len(GRID["kernel"])
    assert bool(again) == finer  # sums in more digits need no other whitening


def test_the_best_model_is_accurate_after_a_search_in_float32():
    X, y = TABLES[10]
    X = X.astype("f4")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankDeficiencyWarning)
        search = SweepSearchCV(KernelRidge(fit_intercept=False, landmarks=X[:120]), GRID, cv=FOLDS).fit(X, y)
    best, params = search.best_estimator_, search.best_params_
    assert best.diagnostics_["prediction_error"] <= ENOUGH
    expected = least_squares(params["kernel"], X[:120].astype(float), X.astype(float), y, params["alpha"])
    assert distance(best.predict(X), expected) <= PROMISE


def test_classes_are_scored_by_the_more_precise_models_and_a_resumed_run_reads_both_sweeps(tmp_path):
    X, y = TABLES[10]
    X, labels = X.astype("f4"), (y > y.mean()).astype(int)
    model = KernelRidgeClassifier(landmarks=X[:120])
    tables = []
    for resume in (False, True):
        with executing("serial", run=tmp_path / "run", resume=resume):
            search, _, again = searched(X, labels, model, scoring="accuracy")
        assert again
        tables.append(search.cv_results_)
    for name in ("mean_test_score", "prediction_error"):
        np.testing.assert_array_equal(tables[0][name], tables[1][name])
    assert np.isfinite(tables[0]["prediction_error"]).all()
    wide = searched(X.astype("f8"), labels, model, scoring="accuracy")[0].cv_results_
    right = (tables[0]["prediction_error"] <= ENOUGH) & (wide["prediction_error"] <= ENOUGH)
    assert right.sum() >= 8
    assert np.abs(tables[0]["mean_test_score"] - wide["mean_test_score"])[right].max() <= 2 / N


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_linear_models_are_scored_as_they_are_fitted(fit_intercept):
    rng = np.random.default_rng(8)
    near = rng.normal(size=(400, 2))
    rows, y = (near + [30, 0]) * [1e-4, 1e4], near.sum(axis=1) + 30
    grid = {"fit_intercept": [fit_intercept], "alpha": [0.0, 1e-9]}
    search = SweepSearchCV(Ridge(), grid, cv=4, scoring="r2").fit(rows, y)
    assert search.best_score_ > 0.999999
    assert search.cv_results_["prediction_error"].max() < 1e-9
    assert search.best_estimator_.score(rows, y) > 0.999999


def test_a_probe_without_rows_leads_to_another_sweep(monkeypatch):
    X, y = TABLES[10]
    monkeypatch.setattr(RoundingProbe, "includes", lambda probe, start, window: probe.every == 1)
    monkeypatch.setattr(precision, "probe_interval", lambda *_: 5)
    model = KernelRidge(Gaussian(2.0), alpha=0.1, landmarks=X[:60]).fit(X, y)
    assert 0 < model.diagnostics_["prediction_error"] < 1e-9


def test_sums_in_float32_are_kept_where_those_in_float64_do_not_fit(monkeypatch):
    X, y = TABLES[10]
    X = X.astype("f4")

    def refuse_finer(rows, statistic, *others, **options):
        if statistic.sums is not None:
            raise PlanTooLargeError("a fuller worker")
        return probed_sweep(rows, statistic, *others, **options)

    monkeypatch.setattr(sweeps, "probed_sweep", refuse_finer)
    search, _, (of_search, of_best) = searched(X, y, KernelRidge(landmarks=X[:120], dtype="float32"), refit=True)
    assert "lost in rounding error; accumulating in float64" in of_search
    # the fit of the best begins with the sums of the search in the precision that they have
    assert of_best.startswith("KernelRidge: ")
    assert of_best.endswith("accumulating in float64")
    assert search.best_estimator_.diagnostics_["prediction_error"] > 0
