"""Kernel ridge by conjugate gradients gives the model of a direct solve within its tolerance."""

import warnings
from itertools import count

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from rounding import distance
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


@pytest.mark.parametrize(
    "landmarks, intercept, weight", [("uniform", True, WEIGHT), ("uniform", False, None), ("fourier", True, None)]
)
def test_the_model_matches_the_direct_solve(landmarks, intercept, weight):
    settings = {"fit_intercept": intercept, "landmarks": landmarks}
    actual = model(**settings).fit(X, Y, sample_weight=weight)
    expected = model(solver="direct", **settings).fit(X, Y, sample_weight=weight)
    assert distance(actual.predict(FRESH), expected.predict(FRESH)) < 1e-4
    assert_allclose(actual.intercept_, expected.intercept_, atol=1e-4)
    assert_allclose(actual.training_mse_, expected.training_mse_, rtol=1e-4)
    assert actual.n_iter_ == actual.diagnostics_["iterations"] > 2


def test_a_float32_classifier_matches_the_direct_solve():
    actual = model(KernelRidgeClassifier, dtype="float32", tol=1e-7).fit(X, LABELS)
    expected = model(KernelRidgeClassifier, "direct", dtype="float64").fit(X, LABELS)
    assert distance(actual.decision_function(FRESH), expected.decision_function(FRESH)) < 1e-3
    assert (actual.predict(FRESH) == expected.predict(FRESH)).mean() > 0.99


@pytest.mark.parametrize("landmarks", [80, 1000], ids=["sub-sample", "factors of the kernel matrix of landmarks"])
def test_the_preconditioner_and_all_sweeps_are_reported_and_the_tolerance_reached(landmarks):
    narrow = Gaussian(0.4)  # landmarks are far apart
    actual = model(tol=1e-3, n_landmarks=landmarks, kernel=narrow).fit(X, Y)
    expected = model(solver="direct", n_landmarks=landmarks, kernel=narrow).fit(X, Y)
    assert ("rows" if landmarks == 80 else "landmarks") in actual.sweep_["preconditioner"]
    assert actual.diagnostics_["excess"] <= 1e-3
    report = actual.fit_report()["sweep"]
    # the sub-sample, and the residual before and after
    assert landmarks != 80 or report["sweeps"] == actual.n_iter_ + 3
    assert len(report["excess_by_step"]) == actual.n_iter_
    assert report["excess_by_step"][-1] <= 1e-3

    def objective(fitted):
        K = narrow(fitted.landmarks_)
        return ((Y - fitted.predict(X)) ** 2).sum() + 0.1 * (fitted.dual_coef_ * (K @ fitted.dual_coef_)).sum()

    assert objective(expected) * (1 - 1e-9) <= objective(actual) <= objective(expected) * (1 + 3e-3)
    assert distance(actual.predict(X), expected.predict(X)) <= 3 * actual.diagnostics_["prediction_error"]


def test_progress_of_the_normal_matrix_is_reported(monkeypatch):
    monkeypatch.setattr("bigkernel.estimators.fit.cg_problem._REPORT_SECONDS", -1.0)
    events = []
    with observe(
        lambda event: events.append((event.what, event.done, event.total)) if isinstance(event, Step) else None
    ):
        actual = model(tol=1e-3).fit(X, Y)
    rows = events[0][2]
    assert f"{rows:,} rows" in actual.sweep_["preconditioner"]
    matrix, factors = "rows of the normal matrix", "factors of the normal matrix"
    reported = [done for what, done, total in events if (what, total) == (matrix, rows)]
    assert (reported[0], reported[-1]) == (0, rows)
    assert len(reported) > 1
    assert reported == sorted(set(reported))
    assert [step for step in events if step[0] == factors] == [(factors, 0, 1), (factors, 1, 1)]


def test_a_few_heavy_rows_cost_few_iterations():
    weight = np.ones(N)
    weight[::300] = 1e4
    plain, heavy = model(tol=1e-6).fit(X, Y), model(tol=1e-6).fit(X, Y, sample_weight=weight)
    assert heavy.n_iter_ <= plain.n_iter_ + 4
    expected = model(solver="direct").fit(X, Y, sample_weight=weight)
    assert distance(heavy.predict(X[::300]), expected.predict(X[::300])) < 1e-3


def test_the_preconditioner_samples_labelled_rows():
    y = Y[:, 0].copy()
    y[rng.permutation(N)[: N * 9 // 10]] = np.nan
    rows, alone = model(tol=1e-6, n_landmarks=20, landmarks=X[:20]), model(tol=1e-6, n_landmarks=20, landmarks=X[:20])
    rows, alone = rows.fit(as_rows(X, y)), alone.fit(X[~np.isnan(y)], y[~np.isnan(y)])
    assert rows.n_iter_ <= alone.n_iter_ + 2
    assert distance(rows.predict(FRESH), alone.predict(FRESH)) < 1e-2


def test_too_few_iterations_warn_with_the_excess():
    with pytest.warns(AccuracyWarning, match=r"after 1 steps .* above tol=1e-08"):
        fitted = model(max_iter=1).fit(X, Y)
    assert fitted.n_iter_ == 1
    assert fitted.diagnostics_["excess"] > 1e-8


def test_a_fit_interrupted_in_an_iteration_resumes_to_the_same_bits_with_its_penalty_alone(
    small_steps, tmp_path, monkeypatch
):
    few = X[:600], Y[:600]
    undisturbed, update, chunks = model(tol=1e-3).fit(*few), ProductStatistic.update, count(1)

    def interrupted(statistic, total, chunk):
        if statistic.step.startswith("2 ") and next(chunks) == 9:
            raise KeyboardInterrupt
        update(statistic, total, chunk)

    monkeypatch.setattr(ProductStatistic, "update", interrupted)
    with pytest.raises(KeyboardInterrupt), executing("serial", run=tmp_path / "run"):
        model(tol=1e-3).fit(*few)
    assert 0 < len(list((tmp_path / "run" / "cg-2").rglob("receipts/0-*.json"))) < 9
    with executing("serial", run=tmp_path / "run", resume=True):
        resumed = model(tol=1e-3).fit(*few)
    assert resumed.sweep_["resumed_segments"] > 0
    assert_array_equal(resumed.dual_coef_, undisturbed.dual_coef_)
    with (
        pytest.raises(ResumeMismatchError, match=r"alpha=0\.1"),
        executing("serial", run=tmp_path / "run", resume=True),
    ):
        model(tol=1e-3, alpha=0.2).fit(*few)


def test_methods_that_need_statistics_are_refused():
    fitted = model(tol=1e-3).fit(X, Y)
    for call in (fitted.refit, lambda: fitted.with_landmarks(3), lambda: fitted.predict(FRESH, return_std=True)):
        with pytest.raises(ConfigError, match="conjugate gradients"):
            call()
    assert not hasattr(fitted, "partial_fit")
    with pytest.raises(ConfigError, match="conjugate gradients"):
        fitted.set_params(solver="direct").partial_fit(X, Y)
    assert clone(fitted).fit(X, Y).n_iter_ == 1


def test_auto_chooses_cg_if_it_is_cheaper_and_possible(monkeypatch):
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
    # partial fits need sums
    assert "G" in model(solver="auto").partial_fit(X, Y).partial_fit(X, Y).statistics_


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 0.0}, "alpha: expected a number above 0"),
        ({"n_landmarks": None}, "an exact fit is solved directly"),
        ({"kernel": "sigmoid"}, "not positive definite"),
        ({"alpha": "gcv"}, r"alpha='gcv' needs m×m sums; .* SweepSearchCV"),
    ],
)
def test_unsupported_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        model().set_params(**settings).fit(X, Y)


def test_the_plan_names_the_solver_and_its_cost():
    cg, direct = model().plan_solver(X, Y), model(solver="direct").plan_solver(X, Y)
    assert cg["solver"] == "cg"
    assert "rows" in cg["preconditioner"]
    assert cg["sweeps"] > 3
    assert cg["driver_bytes"] == 3 * 8 * M**2
    assert direct == {"solver": "direct", "sweeps": 1, "driver_bytes": 8 * 8 * M**2}
    assert model(solver="auto", n_landmarks=None).plan_solver(X, Y) == {"solver": "exact"}
    assert model().plan(X, Y).flops > cg["sweeps"] * 2 * N * M * 3
    assert model(solver="auto").plan_solver(X, Y)["because"].startswith("direct below 4,000 landmarks")


def test_the_plan_gives_the_reason_for_the_solver(monkeypatch):
    monkeypatch.setattr(ridge, "AUTO_LEAST", 10)
    for direct, solver in ((1e30, "cg"), (1.0, "direct")):
        monkeypatch.setattr(ridge, "direct_flops", lambda *shape, float64, cost=direct: cost)
        plan = model(solver="auto").plan_solver(X, Y)
        assert plan["solver"] == solver
        assert plan["because"].endswith(f"TFLOP for cg, {direct / 1e12:.3g} for direct")
    plan = model(solver="auto", alpha=np.ones(Y.shape[1])).plan_solver(X, Y)
    assert "all targets share one penalty" in plan["because"]
    assert model(alpha="gcv", solver="auto").plan_solver(X, Y)["solver"] == "direct"


def test_auto_falls_back_to_the_direct_solver(monkeypatch):
    monkeypatch.setattr(ridge, "AUTO_LEAST", 10)
    monkeypatch.setattr(ridge, "direct_flops", lambda *_, **__: 1e30)
    actual = model(solver="auto", max_iter=1).fit(X, Y)
    assert_allclose(actual.dual_coef_, model(solver="direct").fit(X, Y).dual_coef_)
    monkeypatch.setattr(ridge, "free_memory", lambda: 0)
    with pytest.warns(AccuracyWarning, match="after 1 steps"):
        assert model(solver="auto", max_iter=1).fit(X, Y).n_iter_ == 1
