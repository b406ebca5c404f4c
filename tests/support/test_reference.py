"""The oracles of `reference` against each other, against scikit-learn and against brute force."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import scipy.linalg
from numpy.testing import assert_allclose
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, Matern
from sklearn.kernel_approximation import Nystroem
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.metrics import pairwise

N_ROWS, N_FEATURES, N_LANDMARKS, N_TARGETS = 40, 3, 12, 2
SIGMA = 0.8


@pytest.fixture
def rng():
    return np.random.default_rng(20080719)


@pytest.fixture
def X(rng):
    return rng.standard_normal((N_ROWS, N_FEATURES))


@pytest.fixture
def Z(X):
    return X[:N_LANDMARKS] + 0.1


@pytest.fixture
def Y(X, rng):
    return np.column_stack([np.sin(X[:, 0]) + 3, X[:, 1] * X[:, 2] - 1]) + 0.1 * rng.standard_normal((N_ROWS, 2))


@pytest.fixture
def weight(rng):
    w = rng.uniform(0.2, 3.0, N_ROWS)
    w[:3] = 0.0  # a row of weight zero is a row that is not there
    return w


@pytest.fixture
def labelled(rng):
    mask = np.zeros(N_ROWS, dtype=bool)
    mask[rng.choice(N_ROWS, 15, replace=False)] = True
    return mask


@pytest.fixture
def K(X):
    return reference.gaussian(X, X, SIGMA)


@pytest.fixture
def B(X, Z):
    return reference.gaussian(X, Z, SIGMA)


@pytest.fixture
def K_mm(Z):
    return reference.gaussian(Z, Z, SIGMA)


# ---------------------------------------------------------------- kernels

KERNELS = {
    "gaussian": (
        lambda X, Z: reference.gaussian(X, Z, 1.3),
        lambda X, Z: pairwise.rbf_kernel(X, Z, gamma=1 / (2 * 1.3**2)),
    ),
    "gaussian, a length per feature": (
        lambda X, Z: reference.gaussian(X, Z, [0.5, 1.0, 2.0]),
        RBF([0.5, 1.0, 2.0]),
    ),
    "laplacian": (
        lambda X, Z: reference.laplacian(X, Z, 0.4),
        lambda X, Z: pairwise.laplacian_kernel(X, Z, gamma=0.4),
    ),
    "matern 1/2": (lambda X, Z: reference.matern(X, Z, 1.3, 0.5), Matern(1.3, nu=0.5)),
    "matern 3/2": (lambda X, Z: reference.matern(X, Z, 1.3, 1.5), Matern(1.3, nu=1.5)),
    "matern 5/2": (lambda X, Z: reference.matern(X, Z, 1.3, 2.5), Matern(1.3, nu=2.5)),
    "linear": (reference.linear, pairwise.linear_kernel),
    "polynomial": (
        lambda X, Z: reference.polynomial(X, Z, degree=3, gamma=0.7, coef0=1.5),
        lambda X, Z: pairwise.polynomial_kernel(X, Z, degree=3, gamma=0.7, coef0=1.5),
    ),
    "sigmoid": (
        lambda X, Z: reference.sigmoid(X, Z, gamma=0.7, coef0=-0.5),
        lambda X, Z: pairwise.sigmoid_kernel(X, Z, gamma=0.7, coef0=-0.5),
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernel_equals_scikit_learn(name, X, Z):
    ours, theirs = KERNELS[name]
    assert ours(X, Z).shape == (N_ROWS, N_LANDMARKS)
    assert_allclose(ours(X, Z), theirs(X, Z), rtol=1e-12, atol=1e-14)


def test_gaussian_of_uint8_rows_does_not_wrap_around():
    X, Z = np.array([[0, 255]], dtype=np.uint8), np.array([[255, 0]], dtype=np.uint8)
    assert_allclose(reference.gaussian(X, Z, 255.0), [[np.exp(-1.0)]], rtol=1e-15)


def test_matern_refuses_another_smoothness(X):
    with pytest.raises(ValueError, match="nu must be"):
        reference.matern(X, X, 1.0, 2.0)


# ---------------------------------------------------------------- ridge


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_ridge_equals_scikit_learn(fit_intercept, weighted, X, Y, weight):
    w = weight if weighted else None
    coef, intercept = reference.ridge(X, Y, 0.7, fit_intercept, w)
    theirs = Ridge(alpha=0.7, fit_intercept=fit_intercept).fit(X, Y, sample_weight=w)
    assert_allclose(coef, theirs.coef_.T, rtol=1e-10)
    assert_allclose(intercept, np.broadcast_to(theirs.intercept_, N_TARGETS), rtol=1e-10)


def test_ridge_equals_the_stacked_problem_with_a_column_of_ones(X, Y, weight):
    coef, intercept = reference.ridge(X, Y, 0.7, True, weight)
    root = np.sqrt(weight)[:, np.newaxis]
    penalty = np.sqrt(0.7) * np.eye(N_FEATURES + 1)[:-1]  # the last coordinate, the intercept, is free
    left = np.vstack([root * np.column_stack([X, np.ones(N_ROWS)]), penalty])
    right = np.vstack([root * Y, np.zeros((N_FEATURES, N_TARGETS))])
    assert_allclose(np.vstack([coef, intercept]), scipy.linalg.lstsq(left, right)[0], rtol=1e-10)


def test_ridge_without_penalty_has_least_norm(rng, Y):
    X = rng.standard_normal((N_ROWS, 2 * N_ROWS)) + 1.0
    coef, intercept = reference.ridge(X, Y, 0.0, True)
    theirs = LinearRegression().fit(X, Y)
    assert_allclose(coef, theirs.coef_.T, rtol=1e-8, atol=1e-10)
    assert_allclose(X @ coef + intercept, Y, rtol=1e-9)


def test_ridge_follows_from_the_moments(X, Y, weight):
    sums = reference.moments(X, Y, weight)
    assert sums["n"] == pytest.approx(weight.sum())
    G = sums["G"] - np.outer(sums["s"], sums["s"]) / sums["n"]
    C = sums["C"] - np.outer(sums["s"], sums["t"]) / sums["n"]
    coef, intercept = reference.ridge(X, Y, 0.7, True, weight)
    assert_allclose(coef, np.linalg.solve(G + 0.7 * np.eye(N_FEATURES), C), rtol=1e-10)
    assert_allclose(intercept, (sums["t"] - sums["s"] @ coef) / sums["n"], rtol=1e-10)


def test_moments_give_the_training_error(X, Y):
    coef, _ = reference.ridge(X, Y, 0.7)
    sums = reference.moments(X, Y)
    error = sums["q"] - 2 * np.sum(coef * sums["C"], axis=0) + np.sum(coef * (sums["G"] @ coef), axis=0)
    assert sums["n"] == N_ROWS
    assert_allclose(error, np.sum((X @ coef - Y) ** 2, axis=0), rtol=1e-10)


# ---------------------------------------------------------------- kernel ridge


@pytest.mark.parametrize("weighted", [False, True])
def test_exact_kernel_ridge_equals_scikit_learn(weighted, K, Y, weight):
    w = weight if weighted else None
    theirs = KernelRidge(alpha=0.3, kernel="precomputed").fit(K, Y, sample_weight=w)
    assert_allclose(reference.krr_exact(K, Y, 0.3, w), theirs.dual_coef_, rtol=1e-9, atol=1e-12)


def test_kernel_ridge_with_a_linear_kernel_is_ridge(X, Y, weight):
    dual = reference.krr_exact(reference.linear(X, X), Y, 0.7, weight)
    assert_allclose(X.T @ dual, reference.ridge(X, Y, 0.7, False, weight)[0], rtol=1e-9)


def test_intercept_system_finds_the_minimum_of_the_stacked_problem(K, Y):
    dual, intercept = reference.krr_exact_intercept(K, Y, 0.3)
    # ‖1b + Ka − Y‖² + α‖K^{1/2}a‖², unknowns (a; b)
    left = np.vstack(
        [
            np.column_stack([K, np.ones(N_ROWS)]),
            np.column_stack([np.sqrt(0.3) * scipy.linalg.sqrtm(K).real, np.zeros(N_ROWS)]),
        ]
    )
    brute = scipy.linalg.lstsq(left, np.vstack([Y, np.zeros_like(Y)]))[0]
    assert_allclose(dual, brute[:-1], rtol=1e-7, atol=1e-9)
    assert_allclose(intercept, brute[-1], rtol=1e-9)
    assert_allclose(dual.sum(axis=0), 0, atol=1e-11)


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_nystrom_on_all_rows_is_exact_kernel_ridge(fit_intercept, K, Y):
    coef, intercept = reference.nystrom_krr(K, K, Y, 0.3, fit_intercept)
    if fit_intercept:
        dual, b = reference.krr_exact_intercept(K, Y, 0.3)
    else:
        dual, b = reference.krr_exact(K, Y, 0.3), np.zeros(N_TARGETS)
    assert_allclose(coef, dual, rtol=1e-8, atol=1e-10)
    assert_allclose(intercept, b, rtol=1e-9, atol=1e-12)


def test_weighted_nystrom_on_all_rows_predicts_as_weighted_exact_kernel_ridge(K, Y, weight):
    coef, _ = reference.nystrom_krr(K, K, Y, 0.3, sample_weight=weight)
    assert_allclose(K @ coef, K @ reference.krr_exact(K, Y, 0.3, weight), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_nystrom_solves_its_normal_equations(fit_intercept, B, K_mm, Y, weight):
    coef, intercept = reference.nystrom_krr(B, K_mm, Y, 0.3, fit_intercept, weight)
    residual = weight[:, np.newaxis] * (B @ coef + intercept - Y)
    assert_allclose(B.T @ residual + 0.3 * K_mm @ coef, 0, atol=1e-10)
    assert_allclose(residual.sum(axis=0) if fit_intercept else intercept, 0, atol=1e-10)


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_nystrom_equals_the_scikit_learn_pipeline(fit_intercept, X, Y, weight):
    map_ = Nystroem(kernel="rbf", gamma=1 / (2 * SIGMA**2), n_components=N_LANDMARKS, random_state=0).fit(X)
    theirs = Ridge(alpha=0.3, fit_intercept=fit_intercept).fit(map_.transform(X), Y, sample_weight=weight)
    Z = map_.components_
    B, K_mm = reference.gaussian(X, Z, SIGMA), reference.gaussian(Z, Z, SIGMA)
    coef, intercept = reference.nystrom_krr(B, K_mm, Y, 0.3, fit_intercept, weight)
    assert_allclose(B @ coef + intercept, theirs.predict(map_.transform(X)), rtol=1e-8, atol=1e-10)


def test_nystrom_with_a_landmark_given_twice_predicts_the_same(X, Z, B, K_mm, Y):
    doubled = np.vstack([Z, Z[:4]])
    wide, core = reference.gaussian(X, doubled, SIGMA), reference.gaussian(doubled, doubled, SIGMA)
    assert reference.whitening(core).shape == (N_LANDMARKS + 4, N_LANDMARKS)
    once, twice = reference.nystrom_krr(B, K_mm, Y, 0.3)[0], reference.nystrom_krr(wide, core, Y, 0.3)[0]
    assert_allclose(wide @ twice, B @ once, rtol=1e-8, atol=1e-10)


def test_the_negative_part_of_a_sigmoid_core_is_dropped(Z):
    core = reference.sigmoid(Z, Z, gamma=1.0, coef0=-1.0)
    values = np.linalg.eigvalsh(core)
    kept, vectors = reference.positive_eigenpairs(core)
    assert values[0] < -0.1
    assert_allclose(kept, values[values > 12 * np.finfo(float).eps * values[-1]][::-1], rtol=1e-10)
    assert_allclose(core @ vectors, vectors * kept, atol=1e-12)


# ---------------------------------------------------------------- SSSL


@pytest.mark.parametrize("s", [1, 7, 20])
@pytest.mark.parametrize("alpha", [1e-3, 0.4])
def test_three_forms_of_sssl_agree_when_the_landmarks_are_the_rows(s, alpha, K, Y, labelled):
    exact = reference.sssl_exact(K, labelled, Y[labelled], s, alpha)
    landmarks = reference.sssl_landmarks(K, K[:, labelled], Y[labelled], s, alpha)
    all_rows = reference.sssl_all(K, K, labelled, Y[labelled], s, alpha)
    assert exact.shape == (N_ROWS, N_TARGETS)
    assert_allclose(landmarks, exact, rtol=1e-9, atol=1e-11)
    assert_allclose(all_rows, exact, rtol=1e-7, atol=1e-9)


def test_sssl_equals_the_published_expansion_in_eigenfunctions(K, Y, labelled):
    s, alpha = 7, 0.4
    sigma, V = np.linalg.eigh(K)
    sigma, V = sigma[::-1][:s], V[:, ::-1][:, :s]
    # seed 001 eq. 3: ψ_j = σ_j^{-1/2} Σ_i v_ij k(x_i, ·), an eigenfunction of L_N with eigenvalue σ_j/N
    psi = K @ V / np.sqrt(sigma)
    assert_allclose(K @ psi / N_ROWS, psi * sigma / N_ROWS, atol=1e-12)
    # seed 001 eq. 8: β = Λ^{1/2} (VᵀK_l K_lᵀV + λI)⁻¹ VᵀK_l y
    P = V.T @ K[:, labelled]
    beta = np.sqrt(sigma)[:, np.newaxis] * np.linalg.solve(P @ P.T + alpha * np.eye(s), P @ Y[labelled])
    assert_allclose(K @ reference.sssl_exact(K, labelled, Y[labelled], s, alpha), psi @ beta, rtol=1e-9, atol=1e-12)


def test_sssl_with_every_component_penalises_the_plain_norm_of_the_coefficients(K, Y, labelled):
    # V is then a rotation: min_a ‖K_lN a − y‖² + λ‖a‖²
    expected, _ = reference.ridge(K[labelled], Y[labelled], 0.4)
    assert_allclose(reference.sssl_exact(K, labelled, Y[labelled], N_ROWS, 0.4), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("s", [1, 5, N_LANDMARKS])
def test_sssl_over_all_rows_is_exact_sssl_on_the_nystrom_matrix(s, B, K_mm, Y, labelled):
    approximate = B @ np.linalg.solve(K_mm, B.T)
    dual = reference.sssl_exact((approximate + approximate.T) / 2, labelled, Y[labelled], s, 0.4)
    coef = reference.sssl_all(B, K_mm, labelled, Y[labelled], s, 0.4)
    assert coef.shape == (N_LANDMARKS, N_TARGETS)
    assert_allclose(B @ coef, approximate @ dual, rtol=1e-8, atol=1e-10)


def test_unlabelled_rows_shape_the_basis_of_the_form_over_all_rows(B, K_mm, Y, labelled):
    kept = np.delete(np.arange(N_ROWS), np.flatnonzero(~labelled)[:10])  # ten unlabelled rows are taken away
    whole = reference.sssl_all(B, K_mm, labelled, Y[labelled], 5, 0.4)
    part = reference.sssl_all(B[kept], K_mm, labelled[kept], Y[labelled], 5, 0.4)
    assert np.linalg.norm(whole - part) > 0.01 * np.linalg.norm(whole)


# ---------------------------------------------------------------- predictive variance


def test_exact_variance_equals_the_gaussian_process_of_scikit_learn(X, Y, K, rng):
    X_new = rng.standard_normal((9, N_FEATURES))
    process = GaussianProcessRegressor(RBF(SIGMA), alpha=0.2, optimizer=None).fit(X, Y[:, 0])
    _, std = process.predict(X_new, return_std=True)  # of the function: without the noise of an observation
    ours = reference.gp_variance_exact(K, reference.gaussian(X_new, X, SIGMA), np.ones(9), 0.2)
    assert_allclose(ours, std**2 + 0.2, rtol=1e-9)


def test_nystrom_variance_on_all_rows_is_the_exact_variance(X, K, rng):
    cross = reference.gaussian(rng.standard_normal((9, N_FEATURES)), X, SIGMA)
    exact = reference.gp_variance_exact(K, cross, np.ones(9), 0.2)
    assert_allclose(reference.gp_variance_nystrom(K, K, cross, np.ones(9), 0.2), exact, rtol=1e-8)


def test_nystrom_variance_equals_its_landmark_form(X, Z, B, K_mm, rng):
    noise, B_new = 0.2, reference.gaussian(rng.standard_normal((9, N_FEATURES)), Z, SIGMA)
    # with b = k(Z, x): σ² bᵀ(BᵀB + σ²K_mm)⁻¹b + k(x, x) − bᵀK_mm⁻¹b + σ²
    explained = np.sum(B_new.T * np.linalg.solve(K_mm, B_new.T), axis=0)
    fitted = noise * np.sum(B_new.T * np.linalg.solve(B.T @ B + noise * K_mm, B_new.T), axis=0)
    ours = reference.gp_variance_nystrom(B, K_mm, B_new, np.ones(9), noise)
    assert_allclose(ours, fitted + 1 - explained + noise, rtol=1e-9)
    assert np.all(ours >= noise)
