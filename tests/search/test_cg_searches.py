"""A grid of penalties and folds by conjugate gradients: the scores of the direct search, in the sweeps of one fit."""

from __future__ import annotations

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

from bigkernel import (
    Gaussian,
    KernelRidge,
    KernelRidgeClassifier,
    Matern,
    SweepSearchCV,
    UnitNormalizer,
    executing,
)
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
    seen = []
    with observe(seen.append):
        found = call()
    return found, [event.what for event in seen if isinstance(event, SweepStarted)]


@pytest.mark.parametrize("cv, intercept, weight", [(3, True, WEIGHT), (SOME, False, WEIGHT), (0.25, True, None)])
def test_scores_are_those_of_the_direct_search(cv, intercept, weight):
    options = {"model": {"fit_intercept": intercept}, "cv": cv, "scoring": NUMBERS, "refit": "r2"}
    found, wanted = (searched(solver, fit={"sample_weight": weight}, **options) for solver in ("cg", "direct"))
    for label in NUMBERS:
        assert_allclose(split_scores(found, label), split_scores(wanted, label), rtol=1e-4)
        assert_array_equal(found.cv_results_[f"rank_test_{label}"], wanted.cv_results_[f"rank_test_{label}"])
    assert found.cv_results_["converged"].all()
    assert found.best_index_ == wanted.best_index_
    assert found.best_estimator_.n_iter_ != 1  # by conjugate gradients too
    assert_allclose(found.predict(X[:99]), wanted.predict(X[:99]), atol=1e-3)


def test_classes_are_judged_as_the_direct_search_judges_them():
    groups = np.arange(N) // 5
    options = {"kind": KernelRidgeClassifier, "y": LABELS, "fit": {"groups": groups}, "refit": "accuracy"}
    options["scoring"] = ["accuracy", "balanced_accuracy", "neg_log_loss", "r2"]
    found, wanted = (searched(solver, **options) for solver in ("cg", "direct"))
    for label in options["scoring"]:
        assert_allclose(split_scores(found, label), split_scores(wanted, label), rtol=1e-3)
    assert (found.predict(X) == wanted.predict(X)).mean() > 0.999


def test_the_error_that_is_told_bounds_what_the_tolerance_leaves():
    exact = searched("direct", scoring="neg_mean_squared_error")
    loose = searched(scoring="neg_mean_squared_error", model={"tol": 1e-3})
    told = loose.cv_results_["prediction_error"]
    assert ((told > 1e-6) & (told < 0.1)).all()
    # a change of predictions by ε moves a squared error by at most 2ε‖f‖/‖y − f‖ of it, beside ε²
    for found, wanted, error in zip(split_scores(loose), split_scores(exact), told, strict=True):
        size = np.sqrt((Y**2).mean() / -wanted)
        assert (np.abs(found / wanted - 1) <= 3 * (2 * error * size + (error * size) ** 2)).all()
    assert loose.best_index_ == exact.best_index_


def test_more_penalties_take_no_more_sweeps_and_those_that_have_ended_none():
    seen = []
    original = ProductStatistic.zero

    def noted(statistic):
        seen.append(statistic.vectors.shape[1])
        return original(statistic)

    counts, columns = [], []
    for alphas in ([0.01, 100.0], np.geomspace(0.01, 100, 9)):
        seen.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ProductStatistic, "zero", noted)
            _, sweeps = sweeps_of(partial(searched, grid={"alpha": alphas}, refit=False, model={"tol": 1e-6}))
        counts.append(len(sweeps))
        columns.append(set(seen))
        assert set(sweeps) == {f"tune-cg-{i}" for i in range(len(sweeps))}
    assert counts[0] == counts[1] < 15
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
    assert zero <= one + 1  # the sub-sample is no part of a fold that the same generator draws


@pytest.mark.parametrize("cv", ["one split", "folds"])
def test_the_labels_of_tested_rows_do_not_reach_the_models(cv):
    fold, sums = np.arange(N) % 4, []
    splits = fold if cv == "folds" else [(np.flatnonzero(fold > 0), np.flatnonzero(fold == 0))]
    for shift in (0.0, 1.0, -1.0):
        y = Y[:, 1] + shift * (fold == 0)
        early = {"tol": 1e-12, "max_iter": 1}  # where it ends is near where it begins
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AccuracyWarning)
            found = searched(y=y, cv=splits, scoring="neg_mean_squared_error", refit=False, model=early)
        sums.append(-split_scores(found)[:, 0])
    # Σ(y + δ − f)² + Σ(y − δ − f)² − 2Σ(y − f)² = 2nδ² of one and the same f
    assert_allclose(sums[1] + sums[2] - 2 * sums[0], 2.0, rtol=1e-9)


def test_kernels_go_one_after_the_other_and_candidates_of_both_solvers_in_one_grid():
    kernels, flags = [Gaussian(1.2), Matern(2.0)], [False, True]
    grid = {"kernel": kernels, "alpha": [0.1, 1.0], "fit_intercept": flags, "solver": ["cg", "direct"]}
    (found, sweeps) = sweeps_of(lambda: searched(grid=grid, refit=False, scoring="neg_mean_squared_error"))
    by_solver = {
        solver: split_scores(found)[[params["solver"] == solver for params in found.cv_results_["params"]]]
        for solver in ("cg", "direct")
    }
    assert_allclose(by_solver["cg"], by_solver["direct"], rtol=1e-3)
    assert sweeps.count("tune-cg-0") == 4  # kernels, with and without an intercept
    assert sweeps.count("tune") == 1
    assert found.cv_results_["converged"].all()


def test_candidates_whose_descent_has_not_ended_are_marked_and_no_choice():
    few = {"tol": 1e-4, "max_iter": 2}
    with pytest.warns(
        AccuracyWarning, match=r"of 3 candidates did not converge within 2 steps .*cannot be selected"
    ) as caught:
        found = searched(grid={"alpha": [1e-5, 1e-4, 1e4]}, y=Y[:, 1], model=few, cv=3)
    assert [one.category for one in caught] == [AccuracyWarning, BestAtEdgeWarning]
    assert found.cv_results_["converged"].tolist() == [False, False, True]
    assert found.cv_results_["mean_test_score"].argmax() < 2  # the best score is no choice
    assert found.best_index_ == 2
    assert found.cv_results_["rank_test_score"][2] == 1
    assert sorted(found.cv_results_["rank_test_score"]) == [1, 2, 3]
    with pytest.warns(AccuracyWarning):
        none = searched(grid={"alpha": [1e-5, 1e-4]}, y=Y[:, 1], model=few, refit=False, one_standard_error=True)
    assert not none.cv_results_["converged"].any()
    assert none.best_index_ in (0, 1)


@pytest.mark.slow
def test_folds_and_candidates_that_memory_does_not_hold_together_take_turns_and_score_the_same(monkeypatch):
    roomy = searched(refit=False)
    with monkeypatch.context() as patch, dask.config.set({"bigkernel.memory-limit-bytes": 100_000_000}):
        patch.setattr(conjugate_gradients, "_STATES", 40_000)
        plan = searched(refit=False).plan_
        tight, sweeps = sweeps_of(lambda: searched(refit=False))
    assert [", 1 folds" in line or ", 2 folds" in line for line in plan.sweeps] == [True] * len(plan.sweeps)
    assert len(plan.sweeps) == sweeps.count("tune-cg-0") > 1
    assert_allclose(split_scores(tight), split_scores(roomy), rtol=1e-5)
    monkeypatch.setattr(conjugate_gradients, "FACTOR_BYTES", 2 * 8 * M * M)  # of four penalties, three decades apart
    few = searched(refit=False)
    assert [line.split(", ")[1] for line in few.plan_.sweeps] == ["2 candidates"] * 2
    assert_allclose(split_scores(few), split_scores(roomy), rtol=1e-5)


def test_the_best_model_is_the_fit_of_its_own_begun_where_its_folds_have_ended():
    found = searched(model={"tol": 1e-6}, cv=5)
    own = KernelRidge(Gaussian(1.2), n_landmarks=M, random_state=0, solver="cg", tol=1e-6, **found.best_params_)
    own.fit(X, Y)
    best = found.best_estimator_
    assert best.n_iter_ < own.n_iter_
    assert best.diagnostics_["excess"] <= 1e-6
    assert_allclose(best.predict(X), own.predict(X), atol=0.01)


def test_auto_descends_where_that_costs_less(monkeypatch):
    assert searched("auto").plan_.driver_bytes == 0
    monkeypatch.setattr(ridge, "AUTO_LEAST", 10)
    monkeypatch.setattr(ridge, "direct_flops", lambda *_, **__: np.inf)
    grid = {"alpha": [0.0, 0.1, 1.0]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccuracyWarning)
        found, sweeps = sweeps_of(lambda: searched("auto", grid=grid, model={"n_landmarks": 10}))
    assert {"tune", "tune-cg-0"} <= set(sweeps)  # no penalty, no descent
    assert found.best_estimator_.solver == "auto"
    direct = searched("direct", grid={"alpha": [0.1, 1.0]}, model={"n_landmarks": 10})
    assert_allclose(split_scores(found)[1:], split_scores(direct), rtol=1e-3)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"grid": {"alpha": [0.1, "gcv"]}}, "alpha='gcv' needs m×m sums"),
        ({"scoring": "neg_gcv"}, "neg_gcv needs moments"),
        ({"grid": {"alpha": [0.1, 0.0]}}, "alpha: expected a number above 0"),
    ],
)
def test_what_it_cannot_do_is_refused(options, told):
    with pytest.raises(ConfigError, match=told):
        searched(**options)


def test_a_fold_without_a_class_to_train_on_is_refused_by_name():
    fold = np.where(LABELS == "up", 0, np.arange(N) % 2 + 1)
    with pytest.raises(DataError, match="cv: split 0 has no training row of class number 2"):
        searched(kind=KernelRidgeClassifier, y=LABELS, cv=fold)


def test_the_plan_says_what_all_columns_take():
    one, four = (searched(grid={"alpha": alphas}, refit=False).plan_ for alphas in ([0.1], ALPHAS))
    assert one.count == four.count > 3
    assert str(four).startswith(f"4 candidates, 3 splits: {four.count} sweeps")
    assert "1 kernel, 4 candidates, 3 folds: about" in four.sweeps[0]
    assert four.flops > 1.5 * one.flops
    # a factor for each of three decades and one in the making, the core, and the vectors of 24 columns
    assert four.driver_bytes == 8 * (4 + 1) * M**2 + 16 * 8 * M * 24
    # of few columns the sweep that draws rows takes most
    many = searched(grid={"alpha": np.geomspace(*ALPHAS[:: len(ALPHAS) - 1], 60)}, refit=False).plan_
    assert many.task_bytes > four.task_bytes >= one.task_bytes


def test_a_share_of_the_rows_is_held_out_once():
    rows, y = da.from_array(X, chunks=(200, 3)), da.from_array(Y, chunks=(200, 2))
    found, sweeps = sweeps_of(lambda: searched(rows=rows, y=y, cv=0.2, refit=False, model={"tol": 1e-6}))
    assert found.n_splits_ == 1
    assert len(sweeps) <= searched(model={"tol": 1e-6}).best_estimator_.n_iter_ + 6
    assert_allclose(split_scores(found), split_scores(searched("direct", rows=rows, y=y, cv=0.2)), rtol=1e-3)
    grouped = SweepSearchCV(KernelRidge(Gaussian(1.2), n_landmarks=M), {"alpha": [1.0]}, cv=0.2)
    part = grouped._prepare(Given(rows, y, np.arange(N) // 100))[0].work.partitions[0]
    chunk = part.attach(as_rows(X, group=np.arange(N) // 100)).read(0, N)
    tested = part.folds.of(chunk).reshape(15, 100)
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


def test_a_search_that_ends_inside_a_step_is_gone_on_with_to_the_same_bits(tmp_path, monkeypatch):
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
