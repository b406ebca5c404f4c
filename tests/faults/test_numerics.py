"""Numbers that are hard: F19 to F26, and float32 that is too coarse for the penalty.

What the unit tests of a module hold already is not repeated here; the README of this directory names those tests.
"""

import re
import warnings

import dask
import dask.array as da
import numpy as np
import pytest
import reference
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


def quietly(function, *arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankDeficiencyWarning)
        return function(*arguments, **options)


def diagnosed(model):
    """The fit report's diagnostics, after a look at all residuals."""
    report = model.fit_report()["diagnostics"]
    found = {name: report[name] for name in RATIOS if name in report}
    assert found
    assert max(found.values()) < LIMIT, found
    return report


def dense(kernel, landmarks, alpha, x=X, y=Y, new=NEW, fit_intercept=False):
    """What Nyström KRR predicts, from the dense reference."""
    coef, intercept = reference.nystrom_krr(
        kernel(x, landmarks), kernel(landmarks, landmarks), y, alpha, fit_intercept=fit_intercept
    )
    return kernel(new, landmarks) @ coef + intercept


# ---------------------------------------------------------------- F19: features that do not vary


@pytest.mark.parametrize("value", [0.0, -7.0, 1e6])
@pytest.mark.parametrize(
    "kernel", [Gaussian(1.3), Laplacian(0.4), Matern(1.5)], ids=["gaussian", "laplacian", "matern"]
)
def test_a_constant_feature_is_as_good_as_none(kernel, value):
    def with_it(x):
        return np.column_stack([x, np.full(len(x), value)])

    model = KernelRidge(kernel, alpha=0.1, landmarks=with_it(X[:M])).fit(with_it(X), Y)
    plain = KernelRidge(kernel, alpha=0.1, landmarks=X[:M]).fit(X, Y)
    assert_allclose(model.predict(with_it(NEW)), plain.predict(NEW), atol=1e-8)
    assert diagnosed(model)["constant_features"] == 1
    assert diagnosed(plain)["constant_features"] == 0


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_rows_that_are_all_one_have_rank_one_and_the_mean_shrunk_by_the_penalty(alpha, dtype):
    same = np.full((N, D), 3, dtype)
    with pytest.warns(RankDeficiencyWarning, match="numerical rank 1; dropping 19 landmarks"):
        model = KernelRidge(alpha=alpha, n_landmarks=M, random_state=0).fit(same, Y)
    assert model.rank_ == 1
    report = diagnosed(model)
    assert (report["duplicate_landmarks"], report["constant_features"]) == (M - 1, D)
    # K is all ones: (n + α)w = Σy
    assert_allclose(model.predict(same[:2]), np.tile(Y.sum(axis=0) / (N + alpha), (2, 1)), rtol=1e-6)


# ---------------------------------------------------------------- F20: landmarks that repeat


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_of_two_hundred_landmarks_a_hundred_repeat_and_predictions_are_those_of_the_pseudo_inverse(fit_intercept):
    points = np.tile(X[:100], (2, 1))
    model = KernelRidge(Gaussian(0.4), alpha=0.1, landmarks=points, fit_intercept=fit_intercept)
    with pytest.warns(RankDeficiencyWarning, match="200 landmarks has numerical rank 100"):
        model.fit(X, Y)
    assert model.rank_ == 100
    assert diagnosed(model)["duplicate_landmarks"] == 100
    wanted = dense(lambda a, b: reference.gaussian(a, b, 0.4), points, 0.1, fit_intercept=fit_intercept)
    assert_allclose(model.predict(NEW), wanted, atol=1e-8)


# ---------------------------------------------------------------- F21: shapes at their ends


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize(
    "n, m, d, q",
    [(1, 1, 1, 1), (2, 1, 1, 50), (5, 20, 3, 1), (1, 6, 2, 3), (40, 1, 3, 50), (40, 12, 1, 1), (3, 3, 1, 2)],
)
def test_shapes_at_their_ends_give_the_dense_answer(n, m, d, q, fit_intercept):
    x, y, points = X[:n, :d], np.tile(Y, (1, 17))[:n, :q], np.vstack([X, NEW])[:m, :d] + 0.1
    model = quietly(KernelRidge(Gaussian(0.2), alpha=0.3, landmarks=points, fit_intercept=fit_intercept).fit, x, y)
    diagnosed(model)
    wanted = dense(lambda a, b: reference.gaussian(a, b, 0.2), points, 0.3, x, y, NEW[:, :d], fit_intercept)
    assert_allclose(model.predict(NEW[:, :d]), wanted, atol=1e-7)


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


# ---------------------------------------------------------------- F23: far away, very large, very small


@pytest.mark.parametrize("offset", [1e5, -1e7])
def test_rows_far_from_zero_are_fitted_as_near_it(offset):
    steps = np.round(X * 64) / 64  # exact in float64 at this offset
    model = KernelRidge(Gaussian(1.0), alpha=0.1, landmarks=steps[:M] + offset).fit(steps + offset, Y)
    near = KernelRidge(Gaussian(1.0), alpha=0.1, landmarks=steps[:M]).fit(steps, Y)
    assert_allclose(model.predict(NEW + offset), near.predict(NEW), atol=1e-6)
    diagnosed(model)


# ---------------------------------------------------------------- F24: penalties and bandwidths at their ends


@pytest.mark.parametrize("form", [{}, {"landmarks": X[:M]}], ids=["exact", "landmarks"])
@pytest.mark.parametrize("alpha", [0.0, 1e-300])
def test_hardly_a_penalty_leaves_small_residuals_and_fits_what_least_squares_fits(alpha, form):
    model = quietly(KernelRidge(Gaussian(0.5), alpha=alpha, **form).fit, X, Y)
    diagnosed(model)
    K = reference.gaussian(X, form.get("landmarks", X), 0.5)
    wanted = K @ np.linalg.lstsq(K, Y, rcond=None)[0]
    assert_allclose(model.predict(X), wanted, atol=1e-6)


# ---------------------------------------------------------------- F25: LAPACK's types of matrices


def matrix(name, m, dtype):
    """A positive matrix (m, m) with a spectrum that is hard in one way."""
    values = {
        "zero": np.zeros(m),
        "identity": np.ones(m),
        "clustered": np.where(np.arange(m) < m // 2, 1.0, 1e-3),
        "geometric": np.geomspace(1, 1e-16, m),
        "arithmetic": np.linspace(1, 1e-16, m),
        "one small": np.r_[np.ones(m - 1), 1e-16],
        "one large": np.r_[1e8, np.ones(m - 1)],
        "random": np.random.default_rng(4).uniform(0, 1, m),
        "near overflow": 1e30 * np.random.default_rng(4).uniform(0, 1, m),
        "near underflow": 1e-30 * np.random.default_rng(4).uniform(0, 1, m),
    }[name]
    Q = np.linalg.qr(np.random.default_rng(3).normal(size=(m, m)))[0]
    A = (Q * values) @ Q.T if name != "identity" else np.eye(m)
    return ((A + A.T) / 2).astype(dtype)


every_type = pytest.mark.parametrize(
    "name",
    [
        *("zero", "identity", "clustered", "geometric", "arithmetic", "one small", "one large", "random"),
        *("near overflow", "near underflow"),
    ],
)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@every_type
def test_leading_eigenpairs_have_small_residuals(name, dtype):
    for m, count in ((1, 1), (60, 60), (60, 7), *[(700, 12)] * (dtype is np.float64)):
        A = matrix(name, m, dtype)
        ratios = eigen(A, *top_eigen(A, count), exact=True)
        assert max(ratios) < LIMIT, (m, count, ratios)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [1, 60, 300])
@every_type
def test_whitening_has_small_residuals(name, m, dtype):
    A, diagnostics = matrix(name, m, dtype).astype(np.float64), SolveDiagnostics()
    whitening = whiten(A, eps=float(np.finfo(dtype).eps), diagnostics=diagnostics)
    assert max(diagnostics.ratios.values(), default=0.0) < LIMIT
    if whitening.factor is not None:
        assert factorization(A, whitening.factor, kept=whitening.pivots, exact=True) < LIMIT
    assert whitening.rank == 0 if name == "zero" else whitening.rank >= 1
    # a condition that is stated is that of what is kept
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


# ---------------------------------------------------------------- float32 that is too coarse for the penalty


def near_copies(spread=0.02):
    """Rows in float32 that come in clusters, so near that the core is all but singular; and their targets."""
    g = np.random.default_rng(11)
    centres = g.normal(size=(60, 6))
    rows = np.repeat(centres, 50, axis=0) + spread * g.normal(size=(3000, 6))
    order = g.permutation(3000)
    return rows[order].astype(np.float32), np.sin(2 * rows[order, 0]) + 0.1 * g.normal(size=3000)


NEAR, NEAR_Y = near_copies()


@pytest.fixture
def long_steps():
    """Steps as they are by default: the longer they are, the more is summed in float32."""
    with dask.config.set({"bigkernel.chunk-bytes": 2**23, "bigkernel.min-segments": 4, "bigkernel.block-rows": 2048}):
        yield


COARSE = {"kernel": Gaussian(1.0), "alpha": 1e-6, "n_landmarks": 100, "random_state": 0}


def fitted_values(model, alpha):
    """The predictions of least squares in float64 for the landmarks of a model, without normal equations."""
    K, B = model.kernel_(model.landmarks_), model.kernel_(NEAR.astype(float), model.landmarks_)
    values, vectors = np.linalg.eigh(K)
    phi = B @ (vectors / np.sqrt(values))
    penalised = np.vstack([phi, np.sqrt(alpha) * np.eye(len(K))])
    return phi @ np.linalg.lstsq(penalised, np.concatenate([NEAR_Y, np.zeros(len(K))]), rcond=None)[0]


def distance(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


def test_sums_too_coarse_for_the_penalty_are_made_again_in_float64(long_steps):
    model = quietly(KernelRidge(**COARSE).fit, NEAR, NEAR_Y)
    report = model.fit_report()
    assert (report["dtype"], report["sums"]) != ("float32", "float32")
    assert re.search(r"estimated float32 error .* exceeds 0.0003: \w+ in float64", report["sweep"]["swept_again"][0])
    assert diagnosed(model)["prediction_error"] < 1e-3
    assert distance(model.predict(NEAR), fitted_values(model, 1e-6)) < 1e-3


def test_statistics_without_rows_cannot_be_mended_and_are_warned_of(long_steps):
    model = KernelRidge(**{**COARSE, "alpha": 100.0}).fit(NEAR, NEAR_Y)
    assert model.fit_report()["sums"] == model.dtype_ == "float32"
    for again in (lambda: model.set_params(alpha=1e-6).refit(), lambda: model.partial_fit(NEAR, NEAR_Y)):
        with pytest.warns(AccuracyWarning, match=r"may differ from least squares in float64 by .* use a larger alpha"):
            again()
        assert diagnosed(model)["prediction_error"] > 1e-3
        assert model.dtype_ == "float32"


def test_the_second_sweep_has_a_directory_of_its_own_in_a_run(tmp_path, long_steps):
    with executing("serial", run=tmp_path / "run"):
        first = quietly(KernelRidge(**COARSE).fit, NEAR, NEAR_Y)
    assert {"moments", "moments-2"} <= {child.name for child in (tmp_path / "run").iterdir()}
    with executing("serial", run=tmp_path / "run", resume=True):
        second = quietly(KernelRidge(**COARSE).fit, NEAR, NEAR_Y)
    assert second.sweep_["resumed_segments"] == second.sweep_["segments"]
    assert_array_equal(first.dual_coef_, second.dual_coef_)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", ["rbf", "laplacian", "linear"])
@pytest.mark.parametrize("scale", [1e-300, 1e-45, 1e-40, 1e-20, 1e20, 1e30])
def test_rows_at_the_ends_of_the_range_are_fitted_or_refused_by_name(scale, kernel, dtype):
    rng = np.random.default_rng(6)
    near = rng.normal(size=(200, 3))
    rows, y = (near * scale).astype(dtype), near[:, 0]
    model = KernelRidge(kernel, n_landmarks=20, alpha=1e-3, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccuracyWarning)
        warnings.simplefilter("ignore", RankDeficiencyWarning)
        try:
            found = model.fit(rows, y).predict(rows)
        except DataError:  # of rows that have no distances in this range
            assert scale < 1e-40 or scale > 1e18
            return
    assert np.isfinite(found).all()
    if kernel != "linear" and 1e-38 < scale < 1e18:  # of widths that follow the rows: the same fit as of rows of size 1
        wanted = KernelRidge(kernel, n_landmarks=20, alpha=1e-3, random_state=0).fit(near, y).predict(near)
        np.testing.assert_allclose(found, wanted, atol=1e-2)
