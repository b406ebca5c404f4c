"""Random Fourier and Nyström features as transformers and in estimators, against dense forms."""

import dask.array as da
import numpy as np
import pytest
import reference_fourier as oracle
from kinds import of_kind, plain
from numpy.testing import assert_allclose, assert_array_equal
from reference import ridge
from sklearn import kernel_approximation
from sklearn.base import clone

from bigkernel import SSSL, Gaussian, KernelRidge, Laplacian, Linear, Matern, Nystroem, RandomFourier, SweepSearchCV
from bigkernel.engine.rows import Rows
from bigkernel.errors import ConfigError, RankDeficiencyWarning
from bigkernel.kernels.random_fourier import spectrum_of

rng = np.random.default_rng(20131120)
N, D, P = 90, 4, 24
X, NEW = rng.normal(size=(N, D)) + 1, rng.normal(size=(11, D)) + 1
Y = np.column_stack([np.sin(X[:, 0]), X[:, 1] ** 2]) + 3
WEIGHT = rng.uniform(0.2, 2, N)
KERNEL = Gaussian(1.4)
either = pytest.mark.parametrize("choice", ["fourier", "orthogonal-fourier"])
TRANSFORMERS = {
    "fourier": RandomFourier(KERNEL, P, random_state=3),
    "orthogonal": RandomFourier(Matern(1.0, nu=1.5), 9, orthogonal=True, random_state=3),
    "nystroem": Nystroem(KERNEL, P, random_state=3),
    "nystroem, k-means": Nystroem(Laplacian(0.3), 7, landmarks="k-means", random_state=3),
}
every_transformer = pytest.mark.parametrize("transformer", TRANSFORMERS.values(), ids=TRANSFORMERS)

pytestmark = pytest.mark.usefixtures("small_steps")


@pytest.fixture
def build(tmp_path, make_corpus):
    """Return a function that gives the rows X as one of the kinds of input."""
    return lambda kind, **columns: of_kind(kind, X, make_corpus, tmp_path, **columns)


def dense_features(model, X, width, orthogonal=False):
    """Return φ of the frequencies of a fitted model, by the loops of the oracle."""
    spectrum = spectrum_of(model.kernel_, model.fourier_seed_, D, orthogonal=orthogonal)
    frequencies, phases = spectrum.frequencies(-(-width // 2))
    return oracle.features(X, frequencies, phases, width, model.fourier_origin_)


@pytest.mark.parametrize("kind", ["dask", "corpus"])
@every_transformer
def test_every_kind_of_input_gives_the_features_of_numpy(build, transformer, kind):
    expected, given = transformer.fit(X).transform(X), build(kind)
    features = transformer.fit(given).transform(given)
    assert_allclose(plain(features), expected, rtol=0, atol=1e-10)
    assert isinstance(features, da.Array if kind == "dask" else Rows)


@pytest.mark.parametrize("orthogonal", [False, True])
def test_features_match_the_formula_of_the_paper(orthogonal):
    model = RandomFourier(KERNEL, 15, orthogonal=orthogonal, random_state=1).fit(X)
    assert_allclose(model.transform(NEW), dense_features(model, NEW, 15, orthogonal), atol=1e-10)


def test_nystroem_features_match_the_products_of_scikit_learn():
    ours = Nystroem(Gaussian(1.4), P, random_state=0).fit(X)
    theirs = kernel_approximation.Nystroem(gamma=1 / (2 * 1.4**2), n_components=P).fit(ours.landmarks_)
    actual, expected = ours.transform(NEW), theirs.transform(NEW)
    assert_allclose(actual @ actual.T, expected @ expected.T, atol=1e-8)
    core = ours.transform(ours.landmarks_)
    assert_allclose(core @ core.T, Gaussian(1.4)(ours.landmarks_), atol=1e-8)


def test_repeated_landmarks_give_fewer_features():
    with pytest.warns(RankDeficiencyWarning, match="rank 5"):
        model = Nystroem(KERNEL, landmarks=np.repeat(X[:5], 2, axis=0)).fit(X)
    assert model.transform(NEW).shape == (11, 5)


def test_the_default_bandwidth_is_the_spread_of_the_rows():
    model = RandomFourier(random_state=0).fit(X)  # few enough rows to use all
    assert_allclose(model.kernel_.sigma, np.sqrt(D * X.var() / 2), rtol=1e-9)
    assert_allclose(model.fourier_origin_, X.mean(axis=0), rtol=1e-12)


@either
@pytest.mark.parametrize("fit_intercept, weight", [(False, None), (True, WEIGHT)])
def test_kernel_ridge_with_random_features_is_ridge_on_them(choice, weight, fit_intercept):
    model = KernelRidge(KERNEL, 0.1, n_landmarks=P, landmarks=choice, fit_intercept=fit_intercept, random_state=1)
    model.fit(X, Y, weight)
    phi, new = (dense_features(model, A, P, choice.startswith("orthogonal")) for A in (X, NEW))
    coef, b = ridge(phi, Y, 0.1, fit_intercept, weight)
    assert_allclose(model.predict(NEW), new @ coef + b, atol=1e-8)
    assert model.rank_ == P
    assert not hasattr(model, "landmarks_")


def test_sssl_with_random_features_is_ridge_on_the_eigenvectors_of_their_moments():
    y = np.where(np.arange(N) % 3 == 0, Y[:, 0], np.nan)
    model = SSSL(KERNEL, 6, 0.3, n_landmarks=P, landmarks="fourier", manifold=0, random_state=1).fit(X, y)
    phi, new = (dense_features(model, A, P) for A in (X, NEW))
    values, vectors = np.linalg.eigh(phi.T @ phi)
    W = vectors[:, ::-1][:, :6] * np.sqrt(values[::-1][:6])
    labelled = ~np.isnan(y)
    beta, b = ridge(phi[labelled] @ W, y[labelled], 0.3, fit_intercept=True)
    assert_allclose(model.predict(NEW), (new @ W @ beta + b)[:, 0], atol=1e-8)


def test_the_standard_deviation_matches_linear_regression_on_the_features():
    settings = {"n_landmarks": P, "landmarks": "fourier", "random_state": 1, "fit_intercept": False}
    model = KernelRidge(KERNEL, 0.2, noise_variance=0.2, **settings).fit(X, Y[:, 0])
    phi, new = (dense_features(model, A, P) for A in (X, NEW))
    inverse = np.linalg.inv(phi.T @ phi + 0.2 * np.eye(P))
    expected = np.sqrt(0.2 * np.einsum("ij,jk,ik->i", new, inverse, new) + 0.2)
    assert_allclose(model.predict(NEW, return_std=True)[1], expected, atol=1e-8)


def test_float32_sums_keep_the_digits_of_a_wide_kernel():
    wide = {"kernel": Gaussian(12.0), "alpha": 1e-3, "n_landmarks": P, "landmarks": "fourier", "random_state": 1}
    narrow = KernelRidge(**wide, dtype="float32").fit(X.astype(np.float32), Y[:, 0])
    exact = KernelRidge(**wide, dtype="float64").fit(X, Y[:, 0])
    assert narrow.dtype_ == "float32"
    assert_allclose(narrow.predict(NEW.astype(np.float32)), exact.predict(NEW), atol=2e-3)


@pytest.mark.parametrize(
    "model, reason",
    [
        (Nystroem(KERNEL, 8, landmarks="fourier"), "RandomFourier"),
        (RandomFourier(Laplacian(1.0), orthogonal=True), "laplacian.*orthogonal"),
        (RandomFourier(Linear()), "x − z"),
        (SSSL(KERNEL, 5, n_landmarks=P, landmarks="fourier"), "no landmarks for an anchor graph; set manifold=0"),
        (
            SSSL(KERNEL, 5, n_landmarks=P, landmarks="fourier", manifold=0, eigenfunctions="landmarks"),
            "no landmarks; set eigenfunctions='all'",
        ),
        (KernelRidge("linear", n_landmarks=P, landmarks="fourier"), "linear kernel.*x − z"),
        (KernelRidge("laplacian", n_landmarks=P, landmarks="orthogonal-fourier"), "laplacian.*orthogonal"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_settings_without_random_features_are_refused(model, reason):
    with pytest.raises(ConfigError, match=reason):
        model.fit(X, Y[:, 0])


def test_with_landmarks_refuses_random_features():
    model = KernelRidge(KERNEL, n_landmarks=P, landmarks="fourier", random_state=0).fit(X, Y)
    with pytest.raises(ConfigError, match=r"with_landmarks.*random features.*n_landmarks"):
        model.with_landmarks(4)


@either
def test_scores_of_a_search_match_its_fits(choice):
    model = KernelRidge(KERNEL, n_landmarks=P, landmarks=choice, random_state=3)
    grid = {"kernel": [KERNEL, Gaussian(3.0)], "alpha": [0.1, 1.0], "fit_intercept": [True, False]}
    folds = np.arange(N) % 3
    actual = SweepSearchCV(model, grid, cv=folds, scoring=["r2", "neg_max_error"], refit="r2").fit(X, Y[:, 0])
    assert len(actual.plan_.sweeps) == 4  # moments and values of each
    for i, params in enumerate(actual.cv_results_["params"]):
        seed = clone(model).set_params(**params).fit(X, Y[:, 0])
        for j in range(3):
            basis = seed._fitted.basis
            phi = basis.features().of(X)
            coef, b = ridge(phi[folds != j], Y[folds != j, 0], params["alpha"], params["fit_intercept"])
            left = Y[folds == j, 0] - phi[folds == j] @ coef[:, 0] - b
            spread = ((Y[folds == j, 0] - Y[folds == j, 0].mean()) ** 2).sum()
            expected = 1 - (left**2).sum() / spread, -np.abs(left).max()
            scores = [actual.cv_results_[f"split{j}_test_{name}"][i] for name in ("r2", "neg_max_error")]
            assert_allclose(scores, expected, rtol=0, atol=1e-8)
    alone = clone(model).set_params(**actual.best_params_).fit(X, Y[:, 0])
    assert_allclose(actual.predict(NEW), alone.predict(NEW), rtol=0, atol=1e-9)


def test_a_search_chooses_landmarks_for_each_kernel():
    model = KernelRidge(alpha=0.1, n_landmarks=6, landmarks="rpcholesky", random_state=0)
    best = SweepSearchCV(model, {"kernel": [Gaussian(0.2), Gaussian(20.0)]}, cv=3).fit(X, Y[:, 0]).best_estimator_
    alone = model.set_params(kernel=best.kernel).fit(X, Y[:, 0])
    assert_array_equal(best.landmarks_, alone.landmarks_)
