"""Kernel ridge by conjugate gradients: the model of a direct solve, within its tolerance, after any end."""

import warnings
from itertools import count

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from bigkernel import Gaussian, KernelRidge, KernelRidgeClassifier, executing
from bigkernel.engine.rows import as_rows
from bigkernel.errors import AccuracyWarning, ConfigError, ResumeMismatchError
from bigkernel.estimators import ridge
from bigkernel.events.job import Step, observe
from bigkernel.statistics.products import ProductStatistic

rng = np.random.default_rng(1952)
N, M = 3000, 80
X = rng.normal(size=(N, 3))
Y = np.column_stack([np.sin(X[:, 0]) + 5, X[:, 1] * X[:, 2]]) + 0.1 * rng.normal(size=(N, 2))
LABELS = np.where(Y[:, 1] > 0.3, "up", np.where(Y[:, 1] < -0.3, "down", "flat"))
WEIGHT = rng.uniform(0, 2, N)
FRESH = rng.normal(size=(500, 3))
KERNEL = Gaussian(1.2)


def model(kind=KernelRidge, solver="cg", **settings):
    given = {"alpha": 0.1, "n_landmarks": M, "random_state": 0, "tol": 1e-8, "max_iter": 60, **settings}
    return kind(solver=solver, **{"kernel": KERNEL, **given})


def distance(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


@pytest.mark.parametrize(
    "landmarks, intercept, weight", [("uniform", True, WEIGHT), ("uniform", False, None), ("fourier", True, None)]
)
def test_it_is_the_model_of_the_direct_solve(landmarks, intercept, weight):
    settings = {"fit_intercept": intercept, "landmarks": landmarks}
    found = model(**settings).fit(X, Y, sample_weight=weight)
    wanted = model(solver="direct", **settings).fit(X, Y, sample_weight=weight)
    assert distance(found.predict(FRESH), wanted.predict(FRESH)) < 1e-4
    assert_allclose(found.intercept_, wanted.intercept_, atol=1e-4)
    assert_allclose(found.training_mse_, wanted.training_mse_, rtol=1e-4)
    assert found.n_iter_ == found.diagnostics_["iterations"] > 2


def test_the_classifier_too_and_in_float32():
    found = model(KernelRidgeClassifier, dtype="float32", tol=1e-7).fit(X, LABELS)
    wanted = model(KernelRidgeClassifier, "direct", dtype="float64").fit(X, LABELS)
    assert distance(found.decision_function(FRESH), wanted.decision_function(FRESH)) < 1e-3
    assert (found.predict(FRESH) == wanted.predict(FRESH)).mean() > 0.99


@pytest.mark.parametrize("landmarks", [80, 1000], ids=["sub-sample", "factors of the kernel matrix of landmarks"])
def test_the_preconditioner_is_told_and_the_tolerance_is_kept(landmarks):
    narrow = Gaussian(0.4)  # at which no landmark repeats others
    found = model(tol=1e-3, n_landmarks=landmarks, kernel=narrow).fit(X, Y)
    wanted = model(solver="direct", n_landmarks=landmarks, kernel=narrow).fit(X, Y)
    assert ("rows" if landmarks == 80 else "landmarks") in found.sweep_["preconditioner"]
    assert found.diagnostics_["excess"] <= 1e-3

    def objective(fitted):
        K = narrow(fitted.landmarks_)
        return ((Y - fitted.predict(X)) ** 2).sum() + 0.1 * (fitted.dual_coef_ * (K @ fitted.dual_coef_)).sum()

    assert objective(wanted) * (1 - 1e-9) <= objective(found) <= objective(wanted) * (1 + 3e-3)
    # the bound of the error of predictions holds on the rows of the fit
    assert distance(found.predict(X), wanted.predict(X)) <= 3 * found.diagnostics_["prediction_error"]


def test_how_far_the_normal_matrix_is_is_told(monkeypatch):
    monkeypatch.setattr("bigkernel.estimators.cg_problem._REPORT_SECONDS", -1.0)
    seen = []
    with observe(lambda event: seen.append((event.what, event.done, event.total)) if isinstance(event, Step) else None):
        found = model(tol=1e-3).fit(X, Y)
    rows = seen[0][2]
    assert f"{rows:,} rows" in found.sweep_["preconditioner"]
    matrix, factors = "rows of the normal matrix", "factors of the normal matrix"
    told = [done for what, done, total in seen if (what, total) == (matrix, rows)]
    assert (told[0], told[-1]) == (0, rows)
    assert len(told) > 1
    assert told == sorted(set(told))
    assert [step for step in seen if step[0] == factors] == [(factors, 0, 1), (factors, 1, 1)]


def test_a_few_rows_of_great_weight_cost_no_steps():
    weight = np.ones(N)
    weight[::300] = 1e4
    plain, heavy = model(tol=1e-6).fit(X, Y), model(tol=1e-6).fit(X, Y, sample_weight=weight)
    assert heavy.n_iter_ <= plain.n_iter_ + 4
    wanted = model(solver="direct").fit(X, Y, sample_weight=weight)
    assert distance(heavy.predict(X[::300]), wanted.predict(X[::300])) < 1e-3


def test_a_sub_sample_is_of_labelled_rows():
    y = Y[:, 0].copy()
    y[rng.permutation(N)[: N * 9 // 10]] = np.nan
    rows, alone = model(tol=1e-6, n_landmarks=20, landmarks=X[:20]), model(tol=1e-6, n_landmarks=20, landmarks=X[:20])
    rows, alone = rows.fit(as_rows(X, y)), alone.fit(X[~np.isnan(y)], y[~np.isnan(y)])
    assert rows.n_iter_ <= alone.n_iter_ + 2
    assert distance(rows.predict(FRESH), alone.predict(FRESH)) < 1e-2


def test_a_step_too_few_is_a_warning_that_says_how_far():
    with pytest.warns(AccuracyWarning, match=r"after 1 steps .* above tol=1e-08"):
        fitted = model(max_iter=1).fit(X, Y)
    assert fitted.n_iter_ == 1
    assert fitted.diagnostics_["excess"] > 1e-8


def test_a_fit_that_ends_inside_a_step_is_gone_on_with_to_the_same_bits(small_steps, tmp_path, monkeypatch):
    undisturbed, update, chunks = model(tol=1e-3).fit(X, Y), ProductStatistic.update, count(1)

    def interrupted(statistic, total, chunk):
        if statistic.step.startswith("2 ") and next(chunks) == 30:
            raise KeyboardInterrupt
        update(statistic, total, chunk)

    monkeypatch.setattr(ProductStatistic, "update", interrupted)
    with pytest.raises(KeyboardInterrupt), executing("serial", run=tmp_path / "run"):
        model(tol=1e-3).fit(X, Y)
    assert 0 < len(list((tmp_path / "run" / "cg-2").rglob("receipts/0-*.json"))) < 30
    with executing("serial", run=tmp_path / "run", resume=True):
        resumed = model(tol=1e-3).fit(X, Y)
    assert resumed.sweep_["resumed_segments"] > 0
    assert_array_equal(resumed.dual_coef_, undisturbed.dual_coef_)


def test_a_run_of_another_penalty_is_not_gone_on_with(tmp_path):
    with executing("serial", run=tmp_path / "run"):
        model(tol=1e-3).fit(X, Y)
    with (
        pytest.raises(ResumeMismatchError, match=r"alpha=0\.1"),
        executing("serial", run=tmp_path / "run", resume=True),
    ):
        model(tol=1e-3, alpha=0.2).fit(X, Y)


def test_what_needs_statistics_says_so():
    fitted = model(tol=1e-3).fit(X, Y)
    for call in (fitted.refit, lambda: fitted.with_landmarks(3), lambda: fitted.predict(FRESH, return_std=True)):
        with pytest.raises(ConfigError, match="conjugate gradients"):
            call()
    assert not hasattr(fitted, "partial_fit")
    with pytest.raises(ConfigError, match="conjugate gradients"):
        fitted.set_params(solver="direct").partial_fit(X, Y)
    assert clone(fitted).fit(X, Y).n_iter_ == 1


def test_auto_takes_it_where_it_is_cheaper_and_can(monkeypatch):
    assert model(solver="auto", tol=1e-3).fit(X, Y).n_iter_ == 1  # few landmarks
    monkeypatch.setattr(ridge, "AUTO_LEAST", 10)
    assert model(solver="auto", tol=1e-3).fit(X, Y).n_iter_ == 1  # the sums are cheaper
    monkeypatch.setattr(ridge, "direct_flops", lambda *_, **__: np.inf)
    assert model(solver="auto", tol=1e-3).fit(X, Y).n_iter_ > 1
    assert model(solver="auto", tol=1e-3).plan_solver(X, Y)["solver"] == "cg"
    for settings in ({"solver": "direct"}, {"alpha": 0.0, "n_landmarks": 20}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AccuracyWarning)
            fitted = model(**{"solver": "auto", **settings}).fit(X, Y)
        assert "G" in fitted.statistics_
    # more rows go on from sums
    assert "G" in model(solver="auto").partial_fit(X, Y).partial_fit(X, Y).statistics_


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"alpha": 0.0}, "alpha: expected a number above 0"),
        ({"n_landmarks": None}, "an exact fit is solved directly"),
        ({"kernel": "sigmoid"}, "not positive definite"),
    ],
)
def test_what_it_cannot_do_is_refused_before_a_row_is_read(settings, told):
    with pytest.raises(ConfigError, match=told):
        model().set_params(**settings).fit(X, Y)


def test_the_plan_tells_how_it_would_be_solved():
    cg, direct = model().plan_solver(X, Y), model(solver="direct").plan_solver(X, Y)
    assert cg["solver"] == "cg"
    assert "rows" in cg["preconditioner"]
    assert cg["sweeps"] > 3
    assert cg["driver_bytes"] == 3 * 8 * M**2
    assert direct == {"solver": "direct", "sweeps": 1, "driver_bytes": 8 * 8 * M**2}
    assert model(solver="auto", n_landmarks=None).plan_solver(X, Y) == {"solver": "exact"}
    assert model().plan(X, Y).flops > cg["sweeps"] * 2 * N * M * 3
    assert model(solver="auto").plan_solver(X, Y)["because"].startswith("direct below 4,096 landmarks")


def test_the_plan_tells_why_it_would_be_solved_so(monkeypatch):
    monkeypatch.setattr(ridge, "AUTO_LEAST", 10)
    for direct, solver in ((1e30, "cg"), (1.0, "direct")):
        monkeypatch.setattr(ridge, "direct_flops", lambda *shape, float64, cost=direct: cost)
        told = model(solver="auto").plan_solver(X, Y)
        assert told["solver"] == solver
        assert told["because"].endswith(f"TFLOP for cg, {direct / 1e12:.3g} for direct")
    refused = model(solver="auto", alpha=np.ones(Y.shape[1])).plan_solver(X, Y)["because"]
    assert "all targets share one penalty" in refused


def test_the_report_tells_of_all_sweeps():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = model(tol=1e-3).fit(X, Y)
    report = fitted.fit_report()["sweep"]
    assert report["sweeps"] == fitted.n_iter_ + 3  # the draw of the sub-sample, and the residual before and after
    assert len(report["excess_by_step"]) == fitted.n_iter_
    assert report["excess_by_step"][-1] <= 1e-3


def test_auto_solves_directly_where_the_steps_do_not_end(monkeypatch):
    monkeypatch.setattr(ridge, "AUTO_LEAST", 10)
    monkeypatch.setattr(ridge, "direct_flops", lambda *_, **__: 1e30)
    found = model(solver="auto", max_iter=1).fit(X, Y)
    assert_allclose(found.dual_coef_, model(solver="direct").fit(X, Y).dual_coef_)
    monkeypatch.setattr(ridge, "free_bytes", lambda: 0)
    with pytest.warns(AccuracyWarning, match="after 1 steps"):
        assert model(solver="auto", max_iter=1).fit(X, Y).n_iter_ == 1


def test_a_penalty_by_gcv_is_refused_or_chosen_directly():
    with pytest.raises(ConfigError, match=r"alpha='gcv' needs m×m sums; .* SweepSearchCV"):
        model(alpha="gcv").fit(X, Y)
    assert model(alpha="gcv", solver="auto").plan_solver(X, Y)["solver"] == "direct"
