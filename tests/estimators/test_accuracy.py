"""Every fit knows whether it is right: predictions against least squares in float64, without normal equations."""

import warnings

import numpy as np
import pytest
from rounding import TABLES, M, N, distance, least_squares

from bigkernel import Gaussian, KernelRidge, KernelRidgeClassifier, Polynomial, load_model, save_model
from bigkernel.data.fingerprint import described
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import sweep
from bigkernel.errors import AccuracyWarning
from bigkernel.kernels.feature_maps import LandmarkMap, centre_of
from bigkernel.solvers.residuals import ENOUGH, PROMISE, VECTORS, probes
from bigkernel.solvers.whitening import whiten
from bigkernel.statistics.moments import MomentStatistic, RoundingProbe, Targets, probe_interval
from bigkernel.streaming.chunk import Chunk

rng = np.random.default_rng(2014)


def judged(model, X, y, **weights):
    """The fitted model, the error that it tells, and whether it warned."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y, **weights)
    return model.diagnostics_["prediction_error"], any(one.category is AccuracyWarning for one in caught)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("alpha", [1e-6, 1e-3, 1.0])
@pytest.mark.parametrize("sigma", [0.7, 2.0, 6.0])
@pytest.mark.parametrize("features", TABLES)
def test_predictions_are_those_of_least_squares_or_there_is_a_warning(features, sigma, alpha, dtype):
    X, y = TABLES[features]
    X = X.astype(dtype)
    model = KernelRidge(Gaussian(sigma), alpha=alpha, n_landmarks=M, random_state=0)
    told, warned = judged(model, X, y)
    error = distance(model.predict(X), least_squares(model.kernel_, model.landmarks_, X.astype(float), y, alpha))
    assert warned == (told > ENOUGH)
    assert error <= PROMISE or warned
    # within a factor of three as measured; chance and processors move it
    assert error <= 10 * told + 1e-12
    if model.diagnostics_["core_condition"] < 1e11:
        assert told <= 10 * error + 1e-5


@pytest.mark.parametrize("sigma, alpha", [(2.0, 0.1), (3.0, 0.01)])
def test_float32_rows_are_right_with_intercept_and_weights(sigma, alpha):
    X, y = TABLES[10]
    X, weight = X.astype(np.float32), rng.random(N) + 0.1
    model = KernelRidge(Gaussian(sigma), alpha=alpha, n_landmarks=M, fit_intercept=True, random_state=0)
    told, warned = judged(model, X, y + 5, sample_weight=weight)
    wanted = least_squares(
        model.kernel_, model.landmarks_, X.astype(float), y + 5, alpha, intercept=True, weight=weight
    )
    assert not warned
    assert told <= PROMISE
    assert distance(model.predict(X), wanted) <= PROMISE


@pytest.mark.parametrize("unit", [1e-100, 1e140, 1e150])
def test_the_unit_of_weights_changes_no_verdict(unit):
    X, y = TABLES[next(iter(TABLES))]
    told, predicted = [], []
    for scale in (1.0, unit):
        model = KernelRidge(Gaussian(2.0), alpha=0.1 * scale, n_landmarks=M, random_state=0)
        error, warned = judged(model, X, y, sample_weight=np.linspace(0.5, 1.5, len(X)) * scale)
        told.append((warned, error < ENOUGH))
        predicted.append(model.predict(X))
    assert told == [(False, True)] * 2
    assert np.linalg.norm(predicted[1] - predicted[0]) < PROMISE * np.linalg.norm(predicted[0])


def test_classes_partial_fits_refits_and_files_keep_the_witness(tmp_path):
    X, y = TABLES[10]
    labels = (y > y.mean()).astype(int)
    model = KernelRidgeClassifier(Gaussian(2.0), alpha=1e-3, n_landmarks=M, random_state=0)
    told, _ = judged(model, X[:1500], labels[:1500])
    assert 0 < told < PROMISE
    save_model(model, tmp_path / "a.model")
    for one in (model, load_model(tmp_path / "a.model")):
        one.partial_fit(X[1500:], labels[1500:])
        assert 0 < one.diagnostics_["prediction_error"] < PROMISE
        again = one.set_params(alpha=1.0).refit().diagnostics_["prediction_error"]
        assert again < one.set_params(alpha=1e-9).refit().diagnostics_["prediction_error"]
    fewer = model.with_landmarks(30)
    assert 0 < fewer.diagnostics_["prediction_error"] < 1


def test_a_run_is_not_known_by_the_last_bits_of_its_witness():
    settings = ((1, 2), (1 + 1e-15, 2), (1, 3))
    one, other, rarer = (RoundingProbe(np.full((1, 3, 8), value), every) for value, every in settings)
    assert described(one, "probe") == described(other, "probe") != described(rarer, "probe")


def rounded(dtype, sums, every):
    """Ev of a sweep of float32 blocks, and what it is: from the same blocks in float64."""
    X = TABLES[10][0].astype(np.float32)
    kernel, Z = Gaussian(3.0), X[:M].astype(float)
    features = LandmarkMap(kernel, Z, np.dtype(dtype), shift=centre_of(kernel, Z, dtype))
    V = whiten(kernel(Z), warn=False).expand(probes(M, VECTORS))
    statistic = MomentStatistic(features, Targets(1), sums=sums, probe=RoundingProbe(V[None], every))
    swept = sweep(as_rows(X, np.zeros(N)), statistic, client="serial").total
    B, a = (
        features.block(Chunk(X, block_rows=N), slice(None)).astype(np.longdouble),
        features.shift.astype(np.longdouble),
    )
    # G about 0 of what was summed about a, against that of the blocks
    s, GV = swept["s"][0], swept["G"][0] @ V.astype(np.longdouble)
    about_zero = GV + np.outer(s, a @ V) + np.outer(a, s @ V + N * (a @ V))
    return swept["E"][0], (about_zero - (B + a).T @ ((B + a) @ V)).astype(float), swept["probed_rows"]


def test_the_witness_sees_the_rounding_of_products_and_sums():
    told, true, seen = rounded("float32", None, 1)
    assert seen == [N]
    assert np.linalg.norm(told - true) < 0.15 * np.linalg.norm(true)  # blocks of other sizes are rounded otherwise
    wide = rounded("float32", np.dtype("float64"), 1)[0]
    assert np.linalg.norm(wide) < 1e-4 * np.linalg.norm(true)


def test_a_witness_of_some_windows_sees_the_first_and_no_more_than_its_share():
    some = [RoundingProbe(np.zeros((1, 3, 8)), 5).includes(start, 0) for start in range(0, 500_000, 997)]
    assert some[0]
    assert 0.15 < np.mean(some) < 0.25
    assert probe_interval(1e9, 8000, 10**6) == 1
    assert probe_interval(1e6, 8000, 10**6) == 80
    assert probe_interval(1e6, 8000, 10) == 5
    assert probe_interval(1e6, 8000, 0) == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_an_intercept_takes_a_large_constant_out_of_the_kernel(count, dtype):
    X = np.random.default_rng(3).normal(size=(500, 4))
    X[:, 1] = 7e5
    X = X.astype(dtype)
    y = X[:, 0] + X[:, 2].astype(float) ** 2
    model = KernelRidge(Polynomial(5, gamma=0.25, coef0=1.0), alpha=1.0, landmarks=X[:count], fit_intercept=True)
    _, warned = judged(model, X, y)
    # k/c⁵ − 1 of k = (c + u)⁵, c the constant: so near to linear that the penalty is nothing beside it
    c, u = 0.25 * 7e5**2 + 1, 0.25 * X[:, [0, 2, 3]].astype(float) @ X[:count, [0, 2, 3]].astype(float).T
    wanted = np.column_stack([np.ones(500), np.expm1(5 * np.log1p(u / c)) * c])
    wanted = wanted @ np.linalg.lstsq(wanted, y, rcond=None)[0]
    error = distance(model.predict(X) - y.mean(), wanted - y.mean())
    assert error <= PROMISE or warned
    assert error < 1e-2


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("sigma", [100.0, 1e4])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_float32_blocks_of_few_landmarks_are_looked_at_where_rows_are(count, sigma, flag):
    X = np.random.default_rng(3).normal(size=(500, 4)).astype(np.float32)
    y = X[:, 0] + 0.1 * X[:, 1]
    given = {"kernel": Gaussian(sigma), "alpha": 1e-2, "landmarks": X[:count], "fit_intercept": flag}
    exact = KernelRidge(**given, dtype="float64")
    judged(exact, X, y)
    for dtype in ("auto", "float32"):
        model = KernelRidge(**given, dtype=dtype)
        told, warned = judged(model, X, y)
        centre = float(flag) * y.mean()
        error = distance(model.predict(X) - centre, exact.predict(X) - centre)
        if model.rank_ == count:  # landmarks that float32 cannot tell apart have a warning of their own
            assert error <= PROMISE or warned
            assert error <= 10 * told
