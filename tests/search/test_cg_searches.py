"""A grid of penalties and folds by conjugate gradients: the scores of the direct search, in the sweeps of one fit."""

from __future__ import annotations

import re
import warnings
from functools import partial

import dask
import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from peers import digest, split_scores
from sklearn.model_selection import GroupKFold, KFold, ShuffleSplit
from sklearn.pipeline import make_pipeline

from bigkernel import Gaussian, KernelRidge, KernelRidgeClassifier, Matern, SweepSearchCV, UnitNormalizer, executing
from bigkernel.engine.rows import as_rows
from bigkernel.errors import AccuracyWarning, BestAtEdgeWarning, ConfigError, DataError
from bigkernel.estimators import ridge
from bigkernel.events.job import SweepStarted, observe
from bigkernel.search import conjugate_gradients
from bigkernel.search.planning import Given
from bigkernel.statistics.products import ProductStatistic

pytestmark = pytest.mark.filterwarnings("ignore::bigkernel.errors.BestAtEdgeWarning")  # grids are small
rng = np.random.default_rng(1952)
N, M = 1500, 40
X = rng.normal(size=(N, 3))
Y = np.column_stack([np.sin(X[:, 0]) + 5, X[:, 1] * X[:, 2]]) + 0.1 * rng.normal(size=(N, 2))
LABELS = np.where(Y[:, 1] > 0.3, "up", np.where(Y[:, 1] < -0.3, "down", "flat"))
WEIGHT = rng.uniform(0, 2, N) * (rng.random(N) > 0.1)
ALPHAS = [0.01, 0.1, 1.0, 100.0]
NUMBERS = ["neg_mean_squared_error", "r2"]
SOME = ShuffleSplit(2, train_size=0.6, test_size=0.2, random_state=0)  # rows that a split does not use


def searched(solver="cg", kind=KernelRidge, *, grid=None, y=Y, fit=None, rows=X, model=None, **options):
    given = {"n_landmarks": M, "random_state": 0, "tol": 1e-10, "max_iter": 60, **(model or {})}
    estimator = kind(**{"kernel": Gaussian(1.2), "solver": solver, **given})
    return SweepSearchCV(estimator, grid or {"alpha": ALPHAS}, **{"cv": 3, **options}).fit(rows, y, **(fit or {}))


def sweeps_of(call):
    """What it returns, and the names of its sweeps."""
    events = []
    with observe(events.append):
        result = call()
    return result, [event.what for event in events if isinstance(event, SweepStarted)]


@pytest.mark.parametrize("cv, intercept, weight", [(3, True, WEIGHT), (SOME, False, WEIGHT), (0.25, True, None)])
def test_scores_are_those_of_the_direct_search(cv, intercept, weight):
    options = {"model": {"fit_intercept": intercept}, "cv": cv, "scoring": NUMBERS, "refit": "r2"}
    result, expected = (searched(solver, fit={"sample_weight": weight}, **options) for solver in ("cg", "direct"))
    for label in NUMBERS:
        assert_allclose(split_scores(result, label), split_scores(expected, label), rtol=1e-4)
        assert_array_equal(result.cv_results_[f"rank_test_{label}"], expected.cv_results_[f"rank_test_{label}"])
    assert result.cv_results_["converged"].all()
    assert result.best_index_ == expected.best_index_
    assert result.best_estimator_.n_iter_ != 1  # by conjugate gradients too
    assert_allclose(result.predict(X[:99]), expected.predict(X[:99]), atol=1e-3)


def test_scores_of_classes_are_those_of_the_direct_search():
    groups = np.arange(N) // 5
    options = {"kind": KernelRidgeClassifier, "y": LABELS, "fit": {"groups": groups}, "refit": "accuracy"}
    options["scoring"] = ["accuracy", "balanced_accuracy", "neg_log_loss", "r2"]
    result, expected = (searched(solver, **options) for solver in ("cg", "direct"))
    for label in options["scoring"]:
        assert_allclose(split_scores(result, label), split_scores(expected, label), rtol=1e-3)
    assert (result.predict(X) == expected.predict(X)).mean() > 0.999


def test_the_estimated_error_bounds_that_of_the_tolerance():
    exact = searched("direct", scoring="neg_mean_squared_error")
    loose = searched(scoring="neg_mean_squared_error", model={"tol": 1e-3})
    errors = loose.cv_results_["prediction_error"]
    assert ((errors > 1e-6) & (errors < 0.1)).all()
    # a change of predictions by ε changes a squared error by at most 2ε‖f‖/‖y − f‖ + ε²‖f‖²/‖y − f‖² of it
    for result, expected, error in zip(split_scores(loose), split_scores(exact), errors, strict=True):
        size = np.sqrt((Y**2).mean() / -expected)
        assert (np.abs(result / expected - 1) <= 3 * (2 * error * size + (error * size) ** 2)).all()
    assert loose.best_index_ == exact.best_index_


def test_more_penalties_take_no_more_sweeps_and_those_that_have_ended_none():
    widths, original = [], ProductStatistic.zero

    def noted(statistic):
        widths.append(statistic.vectors.shape[1])
        return original(statistic)

    counts, columns = [], []
    for alphas in ([0.01, 100.0], np.geomspace(0.01, 100, 9)):
        widths.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ProductStatistic, "zero", noted)
            _, sweeps = sweeps_of(partial(searched, grid={"alpha": alphas}, refit=False, model={"tol": 1e-6}))
        counts.append(len(sweeps))
        columns.append(set(widths))
        assert set(sweeps) == {f"tune-cg-{i}" for i in range(len(sweeps))}
    assert counts[0] - 1 <= counts[1] <= counts[0] + 1 < 15
    assert columns[0] >= {3 * 2 * 2, 3 * 2}  # both penalties, and then the smaller one alone
    assert columns[1] >= {3 * 9 * 2}


def test_folds_cost_few_steps_and_those_that_a_seed_draws_no_more():
    fit = searched("cg", grid={"alpha": [0.1]}, model={"tol": 1e-3}).estimator.set_params(alpha=0.1).fit(X, Y).n_iter_
    steps = []
    for cv in (0.2, KFold(2, shuffle=True, random_state=0), KFold(2, shuffle=True, random_state=1), 5):
        _, sweeps = sweeps_of(partial(searched, grid={"alpha": [0.1]}, refit=False, model={"tol": 1e-3}, cv=cv))
        steps.append(len(sweeps) - 2)  # the residual before and after
    held, zero, one, five = steps
    assert held <= fit + 1
    assert five <= fit + 3
    assert zero <= one + 1  # the sub-sample is no partition of a fold that the same generator draws


@pytest.mark.parametrize("cv", ["one split", "folds"])
def test_the_labels_of_tested_rows_do_not_reach_the_models(cv):
    fold, sums = np.arange(N) % 4, []
    splits = fold if cv == "folds" else [(np.flatnonzero(fold > 0), np.flatnonzero(fold == 0))]
    for shift in (0.0, 1.0, -1.0):
        y = Y[:, 1] + shift * (fold == 0)
        early = {"tol": 1e-12, "max_iter": 1}  # where it ends is near where it begins
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AccuracyWarning)
            result = searched(y=y, cv=splits, scoring="neg_mean_squared_error", refit=False, model=early)
        sums.append(-split_scores(result)[:, 0])
    # Σ(y + δ − f)² + Σ(y − δ − f)² − 2Σ(y − f)² = 2nδ² of one and the same f
    assert_allclose(sums[1] + sums[2] - 2 * sums[0], 2.0, rtol=1e-9)


def test_kernels_go_one_after_the_other_and_candidates_of_both_solvers_in_one_grid():
    kernels, flags = [Gaussian(1.2), Matern(2.0)], [False, True]
    grid = {"kernel": kernels, "alpha": [0.1, 1.0], "fit_intercept": flags, "solver": ["cg", "direct"]}
    (result, sweeps) = sweeps_of(lambda: searched(grid=grid, refit=False, scoring="neg_mean_squared_error"))
    by_solver = {
        solver: split_scores(result)[[params["solver"] == solver for params in result.cv_results_["params"]]]
        for solver in ("cg", "direct")
    }
    assert_allclose(by_solver["cg"], by_solver["direct"], rtol=1e-3)
    assert sweeps.count("tune-cg-0") == 4  # kernels, with and without an intercept
    assert sweeps.count("tune") == 1
    assert result.cv_results_["converged"].all()


def test_candidates_that_did_not_converge_are_marked_and_not_chosen():
    few = {"tol": 1e-4, "max_iter": 2}
    with pytest.warns(
        AccuracyWarning, match=r"of 3 candidates did not converge within 2 steps .*cannot be selected"
    ) as caught:
        result = searched(grid={"alpha": [1e-5, 1e-4, 1e4]}, y=Y[:, 1], model=few, cv=3)
    assert {one.category for one in caught} == {AccuracyWarning, BestAtEdgeWarning}
    assert result.cv_results_["converged"].tolist() == [False, False, True]
    assert result.cv_results_["mean_test_score"].argmax() < 2  # the best score is no choice
    assert result.best_index_ == 2
    assert result.cv_results_["rank_test_score"][2] == 1
    assert sorted(result.cv_results_["rank_test_score"]) == [1, 2, 3]
    with pytest.warns(AccuracyWarning):
        none = searched(grid={"alpha": [1e-5, 1e-4]}, y=Y[:, 1], model=few, refit=False, one_standard_error=True)
    assert not none.cv_results_["converged"].any()
    assert none.best_index_ in (0, 1)


@pytest.mark.parametrize(
    ("name", "value", "sizes"),
    [
        ("_STATES", 1, ["4 candidates, 3 folds"]),
        ("_STATES", 18_000, ["4 candidates, 1 folds", "4 candidates, 2 folds"]),
        ("_STATES", 10**9, ["1 candidates, 1 folds"] * 12),  # a single column has no smaller piece
        ("FACTOR_BYTES", 4 * 8 * M * M, ["2 candidates, 3 folds"] * 2),  # penalties three decades apart
    ],
)
def test_a_plan_divides_folds_and_then_candidates_until_each_step_fits(monkeypatch, name, value, sizes):
    monkeypatch.setattr(conjugate_gradients, name, value)
    search = SweepSearchCV(KernelRidge(Gaussian(1.2), n_landmarks=M, solver="cg"), {"alpha": ALPHAS}, cv=3, refit=False)
    with dask.config.set({"bigkernel.memory-limit-bytes": 100_000_000, "bigkernel.worker-base-bytes": 0}):
        assert [
            ", ".join(re.findall(r"\d+ candidates?|\d+ folds?", line)) for line in search.plan(X, Y).sweeps
        ] == sizes


@pytest.mark.slow
def test_folds_and_candidates_that_memory_does_not_hold_together_have_the_same_scores(monkeypatch):
    roomy = searched(refit=False)
    with monkeypatch.context() as patch, dask.config.set({"bigkernel.memory-limit-bytes": 100_000_000}):
        patch.setattr(conjugate_gradients, "_STATES", 40_000)
        tight, sweeps = sweeps_of(lambda: searched(refit=False))
    assert len(tight.plan_.sweeps) == sweeps.count("tune-cg-0") > 1
    assert_allclose(split_scores(tight), split_scores(roomy), rtol=1e-5)
    monkeypatch.setattr(conjugate_gradients, "FACTOR_BYTES", 4 * 8 * M * M)  # of four penalties, three decades apart
    assert_allclose(split_scores(searched(refit=False)), split_scores(roomy), rtol=1e-5)


def test_the_best_model_is_a_fit_that_starts_from_the_solutions_of_its_folds():
    result = searched(model={"tol": 1e-4, "kernel": Gaussian(3.0)}, cv=15)
    own = KernelRidge(Gaussian(3.0), n_landmarks=M, random_state=0, solver="cg", tol=1e-4, **result.best_params_)
    own.fit(X, Y)
    best = result.best_estimator_
    assert best.n_iter_ < own.n_iter_
    assert best.diagnostics_["excess"] <= 1e-4
    assert_allclose(best.predict(X), own.predict(X), atol=0.01)


def test_auto_chooses_conjugate_gradients_where_they_cost_less(monkeypatch):
    assert searched("auto").plan_.driver_bytes == 0
    monkeypatch.setattr(ridge, "AUTO_LEAST", 10)
    monkeypatch.setattr(ridge, "direct_flops", lambda *_, **__: np.inf)
    grid = {"alpha": [0.0, 0.1, 1.0]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccuracyWarning)
        result, sweeps = sweeps_of(lambda: searched("auto", grid=grid, model={"n_landmarks": 10}))
    assert {"tune", "tune-cg-0"} <= set(sweeps)  # no penalty, no descent
    assert result.best_estimator_.solver == "auto"
    direct = searched("direct", grid={"alpha": [0.1, 1.0]}, model={"n_landmarks": 10})
    assert_allclose(split_scores(result)[1:], split_scores(direct), rtol=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grid": {"alpha": [0.1, "gcv"]}}, "alpha='gcv' needs m×m sums"),
        ({"scoring": "neg_gcv"}, "neg_gcv needs moments"),
        ({"grid": {"alpha": [0.1, 0.0]}}, "alpha: expected a number above 0"),
    ],
)
def test_unsupported_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        searched(**options)


@pytest.mark.parametrize("solver", ["cg", "direct"])
def test_a_fold_without_a_class_to_train_on_is_refused_by_name(solver):
    fold, rows = np.where(LABELS == "up", 0, np.arange(N) % 2 + 1), (LABELS == "up").sum()
    with pytest.raises(DataError, match=f"split 0 has no training row of class 'up', which has {rows} labelled rows;"):
        searched(solver, kind=KernelRidgeClassifier, y=LABELS, cv=fold)


def test_the_plan_counts_all_columns():
    one, four = (searched(grid={"alpha": alphas}, refit=False).plan_ for alphas in ([0.1], ALPHAS))
    assert one.count == four.count > 3
    assert str(four).startswith(f"4 candidates, 3 splits: {four.count} sweeps")
    assert "1 kernel, 4 candidates, 3 folds: about" in four.sweeps[0]
    assert four.flops > 1.5 * one.flops
    # two matrices for each of three decades and one in the making, the core, and the vectors of 24 columns
    assert four.driver_bytes == 8 * (7 + 1) * M**2 + 16 * 8 * M * 24
    # of few columns the sweep that draws rows takes most
    many = searched(grid={"alpha": np.geomspace(*ALPHAS[:: len(ALPHAS) - 1], 60)}, refit=False).plan_
    assert many.task_bytes > four.task_bytes >= one.task_bytes


def test_a_share_of_the_rows_is_held_out_once():
    rows, y = da.from_array(X, chunks=(200, 3)), da.from_array(Y, chunks=(200, 2))
    result, sweeps = sweeps_of(lambda: searched(rows=rows, y=y, cv=0.2, refit=False, model={"tol": 1e-6}))
    assert result.n_splits_ == 1
    assert len(sweeps) <= searched(model={"tol": 1e-6}).best_estimator_.n_iter_ + 6
    assert_allclose(split_scores(result), split_scores(searched("direct", rows=rows, y=y, cv=0.2)), rtol=1e-3)
    grouped = SweepSearchCV(KernelRidge(Gaussian(1.2), n_landmarks=M), {"alpha": [1.0]}, cv=0.2)
    partition = grouped._prepare(Given(rows, y, np.arange(N) // 100))[0].work.partitions[0]
    chunk = partition.attach(as_rows(X, group=np.arange(N) // 100)).read(0, N)
    tested = partition.folds.of(chunk).reshape(15, 100)
    assert (tested == tested[:, :1]).all()  # whole groups
    assert 1 <= (tested[:, 0] == 0).sum() <= 7


def test_executors_and_transforms_give_the_same_bits(small_steps, make_corpus):
    codes = np.unique(LABELS, return_inverse=True)[1]
    corpus = make_corpus(X.astype("f4"), y=codes, classes=("down", "flat", "up"), chunk_rows=170)
    model = KernelRidgeClassifier(Gaussian(0.6), n_landmarks=M, random_state=0, solver="cg", tol=1e-4)
    search = SweepSearchCV(make_pipeline(UnitNormalizer(), model), {"kernelridgeclassifier__alpha": ALPHAS}, cv=3)
    fits = []
    for client in ("serial", "threads"):
        with executing(client):
            search.fit(corpus)
        fits.append((digest(search), search.best_estimator_[-1].dual_coef_.tobytes()))
    assert fits[0] == fits[1]


def test_a_search_that_ends_inside_a_step_is_resumed_with_the_same_bits(tmp_path, monkeypatch):
    def search():
        groups = {"groups": np.arange(N) // 3}
        with dask.config.set({"bigkernel.chunk-bytes": 4096, "bigkernel.min-segments": 4}):
            return searched(grid={"alpha": [0.1, 1.0]}, model={"tol": 1e-2}, cv=GroupKFold(3), fit=groups)

    undisturbed, update, chunks = search(), ProductStatistic.update, []

    def interrupted(statistic, total, chunk):
        if statistic.step.startswith("1 "):
            chunks.append(1)
            if len(chunks) == 7:
                raise KeyboardInterrupt
        update(statistic, total, chunk)

    monkeypatch.setattr(ProductStatistic, "update", interrupted)
    with pytest.raises(KeyboardInterrupt), executing("serial", run=tmp_path / "run"):
        search()
    assert 0 < len(list((tmp_path / "run" / "tune-cg-1").rglob("receipts/0-*.json"))) < 4
    with executing("serial", run=tmp_path / "run", resume=True):
        resumed = search()
    assert digest(resumed) == digest(undisturbed)
    assert_array_equal(resumed.best_estimator_.dual_coef_, undisturbed.best_estimator_.dual_coef_)
