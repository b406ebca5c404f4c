"""Difficult numbers: F19 to F26, and penalties below the accuracy of float32."""

import re

import dask
import dask.array as da
import numpy as np
import pytest
import reference
from kernel_cases import quietly
from numpy.testing import assert_allclose, assert_array_equal

from bigkernel import Gaussian, KernelRidge, KernelRidgeClassifier, Laplacian, Matern, SSSLClassifier, executing
from bigkernel.errors import AccuracyWarning, DataError, RankDeficiencyWarning
from bigkernel.solvers.residuals import LIMIT, SolveDiagnostics, eigen, factorization
from bigkernel.solvers.ridge import ridge
from bigkernel.solvers.whitening import top_eigen, whiten

rng = np.random.default_rng(1925)
N, D, M = 120, 3, 20
X = rng.normal(size=(N, D))
Y = np.column_stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2], X[:, 0] + 1]) + 0.05 * rng.normal(size=(N, 3))
NEW = rng.normal(size=(30, D))
RATIOS = ("whitening", "solution", "eigen", "orthogonality", "eigenfunctions", "eigenfunctions_orthogonality")

pytestmark = pytest.mark.usefixtures("small_steps")


def diagnosed(model):
    """Return the diagnostics of the fit report, after a check of all residuals."""
    report = model.fit_report()["diagnostics"]
    ratios = {name: report[name] for name in RATIOS if name in report}
    assert ratios
    assert max(ratios.values()) < LIMIT, ratios
    return report


def dense(kernel, landmarks, alpha, x=X, y=Y, new=NEW, fit_intercept=False):
    """Return the predictions of Nyström KRR by the dense reference."""
    coef, intercept = reference.nystrom_krr(
        kernel(x, landmarks), kernel(landmarks, landmarks), y, alpha, fit_intercept=fit_intercept
    )
    return kernel(new, landmarks) @ coef + intercept


@pytest.mark.parametrize("value", [0.0, -7.0, 1e6])
@pytest.mark.parametrize("kernel", [Gaussian(1.3), Laplacian(gamma=0.4), Matern(1.5)], ids=lambda kernel: kernel.name)
def test_a_constant_feature_changes_no_prediction(kernel, value):
    wider = lambda x: np.column_stack([x, np.full(len(x), value)])  # noqa: E731
    model = KernelRidge(kernel, alpha=0.1, landmarks=wider(X[:M])).fit(wider(X), Y)
    plain = KernelRidge(kernel, alpha=0.1, landmarks=X[:M]).fit(X, Y)
    assert_allclose(model.predict(wider(NEW)), plain.predict(NEW), atol=1e-8)
    assert diagnosed(model)["constant_features"] == 1
    assert diagnosed(plain)["constant_features"] == 0


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_identical_rows_have_rank_one_and_predict_the_shrunk_mean(alpha, dtype):
    same = np.full((N, D), 3, dtype)
    with pytest.warns(RankDeficiencyWarning, match="rank 1; dropping 19 landmarks that depend .*: columns of unequal"):
        model = KernelRidge(alpha=alpha, fit_intercept=False, n_landmarks=M, random_state=0).fit(same, Y)
    report = diagnosed(model)
    assert (model.rank_, report["duplicate_landmarks"], report["constant_features"]) == (1, M - 1, D)
    # K is all ones: (n + α)w = Σy
    assert_allclose(model.predict(same[:2]), np.tile(Y.sum(axis=0) / (N + alpha), (2, 1)), rtol=1e-6)


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("alpha", [0.0, 1e-3, 1.0])
def test_repeated_landmarks_predict_as_the_pseudo_inverse(alpha, fit_intercept):
    points = np.tile(X[:100], (2, 1))
    model = KernelRidge(Gaussian(0.4), alpha=alpha, landmarks=points, fit_intercept=fit_intercept)
    with pytest.warns(RankDeficiencyWarning, match="200 landmarks has numerical rank 100; dropping 100 landmarks"):
        model.fit(X, Y)
    assert model.rank_ == 100
    assert diagnosed(model)["duplicate_landmarks"] == 100
    expected = dense(lambda a, b: reference.gaussian(a, b, 0.4), points, alpha, fit_intercept=fit_intercept)
    assert_allclose(model.predict(NEW), expected, atol=1e-8)


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize(
    "n, m, d, q",
    [
        (1, 1, 1, 1),
        (2, 1, 1, 50),
        (5, 20, 3, 1),
        (1, 6, 2, 3),
        (40, 1, 3, 50),
        (1, 1, 3, 50),
        (1, 15, 3, 50),
        (40, 12, 1, 1),
        (3, 3, 1, 2),
    ],
)
def test_extreme_shapes_give_the_dense_answer(n, m, d, q, fit_intercept):
    x, y, points = X[:n, :d], np.tile(Y, (1, 17))[:n, :q], np.vstack([X, NEW])[:m, :d] + 0.1
    model = quietly(KernelRidge(Gaussian(0.2), alpha=0.3, landmarks=points, fit_intercept=fit_intercept).fit, x, y)
    diagnosed(model)
    expected = dense(lambda a, b: reference.gaussian(a, b, 0.2), points, 0.3, x, y, NEW[:, :d], fit_intercept)
    assert_allclose(model.predict(NEW[:, :d]), expected, atol=1e-7)


@pytest.mark.parametrize(
    "sizes", [(0, 60, 60), (60, 0, 60), (60, 60, 0), (0, 1, 0, 118, 1), (50, 50, 20), (7,) * 17 + (1,)]
)
def test_empty_chunks_and_a_ragged_end_change_nothing(sizes):
    chunked = da.from_array(X, chunks=(sizes, D))
    model = KernelRidge(Gaussian(1.0), alpha=0.1, landmarks=X[:M]).fit(chunked, Y)
    plain = KernelRidge(Gaussian(1.0), alpha=0.1, landmarks=X[:M]).fit(X, Y)
    assert_allclose(model.dual_coef_, plain.dual_coef_, atol=1e-9)
    predicted = model.predict(chunked)
    assert predicted.chunks[0] == sizes
    assert_allclose(predicted.compute(), plain.predict(X), atol=1e-9)


@pytest.mark.parametrize("make", [KernelRidgeClassifier, SSSLClassifier])
@pytest.mark.parametrize("form", [{}, {"n_landmarks": 5}])
def test_one_class_is_refused_by_name(make, form):
    with pytest.raises(DataError, match="only one class, 4"):
        make(**form).fit(X, np.full(N, 4))


@pytest.mark.parametrize("offset", [1e5, -1e7])
def test_rows_far_from_zero_are_fitted_like_rows_near_it(offset):
    steps = np.round(X * 64) / 64  # exact in float64 at this offset
    model = KernelRidge(Gaussian(1.0), alpha=0.1, landmarks=steps[:M] + offset).fit(steps + offset, Y)
    near = KernelRidge(Gaussian(1.0), alpha=0.1, landmarks=steps[:M]).fit(steps, Y)
    assert_allclose(model.predict(NEW + offset), near.predict(NEW), atol=1e-6)
    diagnosed(model)


@pytest.mark.parametrize("form", [{}, {"landmarks": X[:M]}], ids=["exact", "landmarks"])
@pytest.mark.parametrize("alpha", [0.0, 1e-300])
def test_tiny_penalties_fit_least_squares_with_small_residuals(alpha, form):
    model = quietly(KernelRidge(Gaussian(0.5), alpha=alpha, fit_intercept=False, **form).fit, X, Y)
    diagnosed(model)
    K = reference.gaussian(X, form.get("landmarks", X), 0.5)
    assert_allclose(model.predict(X), K @ np.linalg.lstsq(K, Y, rcond=None)[0], atol=1e-6)


SPECTRA = {
    "zero": np.zeros,
    "identity": np.ones,
    "clustered": lambda m: np.where(np.arange(m) < m // 2, 1.0, 1e-3),
    "geometric": lambda m: np.geomspace(1, 1e-16, m),
    "arithmetic": lambda m: np.linspace(1, 1e-16, m),
    "one small": lambda m: np.r_[np.ones(m - 1), 1e-16],
    "one large": lambda m: np.r_[1e8, np.ones(m - 1)],
    "random": lambda m: np.random.default_rng(4).uniform(0, 1, m),
    "near overflow": lambda m: 1e30 * np.random.default_rng(4).uniform(0, 1, m),
    "near underflow": lambda m: 1e-30 * np.random.default_rng(4).uniform(0, 1, m),
}
every_type = pytest.mark.parametrize("name", SPECTRA)


def matrix(name, m, dtype):
    """Return a positive semidefinite matrix (m, m) with this spectrum."""
    Q = np.linalg.qr(np.random.default_rng(3).normal(size=(m, m)))[0]
    A = (Q * SPECTRA[name](m)) @ Q.T if name != "identity" else np.eye(m)
    return ((A + A.T) / 2).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@every_type
def test_leading_eigenpairs_have_small_residuals(name, dtype):
    for m, count in ((1, 1), (60, 60), (60, 7), *[(700, 12)] * (dtype is np.float64)):
        A = matrix(name, m, dtype)
        values, vectors = top_eigen(A, count)
        assert (np.diff(values) <= 0).all()
        largest = np.linalg.eigvalsh(A.astype(np.float64))[::-1][:count]
        assert_allclose(values, largest, atol=30 * m * np.finfo(dtype).eps * np.abs(A).max())
        assert [top_eigen(A, k)[1].shape[1] for k in (0, m + 5)] == [0, m]
        ratios = eigen(A, values, vectors)
        assert max(ratios) < LIMIT, (m, count, ratios)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [1, 60, 300])
@every_type
def test_whitening_has_small_residuals(name, m, dtype):
    A, diagnostics = matrix(name, m, dtype).astype(np.float64), SolveDiagnostics()
    whitening = whiten(A, eps=float(np.finfo(dtype).eps), diagnostics=diagnostics)
    assert max(diagnostics.ratios.values(), default=0.0) < LIMIT
    if whitening.factor is not None:
        assert factorization(A, whitening.factor, kept=whitening.pivots) < LIMIT
    assert whitening.rank == 0 if name == "zero" else whitening.rank >= 1
    # the stated condition is that of the kept directions
    assert diagnostics.figures.get("core_condition", 1.0) <= 10 * m**2 / float(np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@every_type
def test_ridge_has_small_residuals(name, dtype):
    A, C = matrix(name, 60, dtype).astype(np.float64), np.random.default_rng(1).normal(size=(60, 5))
    for alpha in (0.0, 1e-300, 1e-12, 1e-3, 1e6):
        diagnostics = SolveDiagnostics()
        w = ridge(A, C, alpha, diagnostics=diagnostics)
        assert max(diagnostics.ratios.values()) < LIMIT, (alpha, diagnostics.ratios)
        assert np.isfinite(w).all()
        assert 0 <= diagnostics.figures["effective_dof"] <= 60 * (1 + 1e-9)


def near_copies(spread=0.02):
    """Return rows in narrow clusters, with an almost singular kernel matrix, and their targets."""
    g = np.random.default_rng(11)
    centres = g.normal(size=(60, 6))
    rows = np.repeat(centres, 50, axis=0) + spread * g.normal(size=(3000, 6))
    order = g.permutation(3000)
    return rows[order].astype(np.float32), np.sin(2 * rows[order, 0]) + 0.1 * g.normal(size=3000)


NEAR, NEAR_Y = near_copies()


@pytest.fixture
def long_steps():
    """Use the default steps: the longer they are, the more is summed in float32."""
    with dask.config.set({"bigkernel.chunk-bytes": 2**23, "bigkernel.min-segments": 4, "bigkernel.block-rows": 2048}):
        yield


COARSE = {"kernel": Gaussian(1.0), "alpha": 1e-6, "fit_intercept": False, "n_landmarks": 100, "random_state": 0}


def fitted_values(model, alpha):
    """Return the predictions of least squares in float64 with the landmarks of a model, by QR."""
    K, B = model.kernel_(model.landmarks_), model.kernel_(NEAR.astype(float), model.landmarks_)
    values, vectors = np.linalg.eigh(K)
    phi = B @ (vectors / np.sqrt(values))
    penalised = np.vstack([phi, np.sqrt(alpha) * np.eye(len(K))])
    return phi @ np.linalg.lstsq(penalised, np.concatenate([NEAR_Y, np.zeros(len(K))]), rcond=None)[0]


def test_sums_are_repeated_in_float64_for_a_small_penalty(long_steps):
    model = quietly(KernelRidge(**COARSE).fit, NEAR, NEAR_Y)
    report = model.fit_report()
    assert (report["dtype"], report["sums"]) != ("float32", "float32")
    assert re.search(r"estimated float32 error .* exceeds 0.0003: \w+ in float64", report["sweep"]["swept_again"][0])
    assert diagnosed(model)["prediction_error"] < 1e-3
    expected = fitted_values(model, 1e-6)
    assert np.linalg.norm(model.predict(NEAR) - expected) < 1e-3 * np.linalg.norm(expected)


def test_inaccurate_statistics_without_rows_are_warned_of(long_steps):
    model = KernelRidge(**{**COARSE, "alpha": 100.0}).fit(NEAR, NEAR_Y)
    assert model.fit_report()["sums"] == model.dtype_ == "float32"
    for again in (lambda: model.set_params(alpha=1e-6).refit(), lambda: model.partial_fit(NEAR, NEAR_Y)):
        with pytest.warns(AccuracyWarning, match=r"may differ from least squares in float64 by .* use a larger alpha"):
            again()
        assert diagnosed(model)["prediction_error"] > 1e-3
        assert model.dtype_ == "float32"


def test_the_second_sweep_of_a_run_has_its_own_directory(tmp_path, long_steps):
    with executing("serial", run=tmp_path / "run"):
        first = quietly(KernelRidge(**COARSE).fit, NEAR, NEAR_Y)
    assert {"moments", "moments-2"} <= {child.name for child in (tmp_path / "run").iterdir()}
    with executing("serial", run=tmp_path / "run", resume=True):
        second = quietly(KernelRidge(**COARSE).fit, NEAR, NEAR_Y)
    assert second.sweep_["resumed_segments"] == second.sweep_["segments"]
    assert_array_equal(first.dual_coef_, second.dual_coef_)


@pytest.mark.filterwarnings("ignore::bigkernel.errors.AccuracyWarning")
@pytest.mark.filterwarnings("ignore::bigkernel.errors.RankDeficiencyWarning")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", ["rbf", "laplacian", "linear"])
@pytest.mark.parametrize("scale", [1e-300, 1e-45, 1e-40, 1e-20, 1e20, 1e30])
def test_extreme_scales_are_fitted_or_refused(scale, kernel, dtype):
    rng = np.random.default_rng(6)
    near = rng.normal(size=(200, 3))
    rows, y = (near * scale).astype(dtype), near[:, 0]
    model = KernelRidge(kernel, n_landmarks=20, alpha=1e-3, random_state=0)
    try:
        result = model.fit(rows, y).predict(rows)
    except DataError:  # distances are out of range
        assert scale < 1e-40 or scale > 1e18
        return
    assert np.isfinite(result).all()
    if kernel != "linear" and 1e-38 < scale < 1e18:  # the width scales with the rows
        assert_allclose(result, model.fit(near, y).predict(near), atol=1e-2)
