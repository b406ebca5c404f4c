"""The oracles of `reference` where the package is compared with nothing else: brute force, and the papers."""

import numpy as np
import pytest
import reference
import scipy.linalg
from numpy.testing import assert_allclose

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
def test_nystrom_solves_its_normal_equations(fit_intercept, B, K_mm, Y, weight):
    coef, intercept = reference.nystrom_krr(B, K_mm, Y, 0.3, fit_intercept, weight)
    residual = weight[:, np.newaxis] * (B @ coef + intercept - Y)
    assert_allclose(B.T @ residual + 0.3 * K_mm @ coef, 0, atol=1e-10)
    assert_allclose(residual.sum(axis=0) if fit_intercept else intercept, 0, atol=1e-10)


def test_the_negative_part_of_a_sigmoid_core_is_dropped(Z):
    core = reference.sigmoid(Z, Z, gamma=1.0, coef0=-1.0)
    values = np.linalg.eigvalsh(core)
    kept, vectors = reference.positive_eigenpairs(core)
    assert values[0] < -0.1
    assert_allclose(kept, values[values > 12 * np.finfo(float).eps * values[-1]][::-1], rtol=1e-10)
    assert_allclose(core @ vectors, vectors * kept, atol=1e-12)


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


def test_nystrom_variance_equals_its_landmark_form(X, Z, B, K_mm, rng):
    noise, B_new = 0.2, reference.gaussian(rng.standard_normal((9, N_FEATURES)), Z, SIGMA)
    # with b = k(Z, x): σ² bᵀ(BᵀB + σ²K_mm)⁻¹b + k(x, x) − bᵀK_mm⁻¹b + σ²
    explained = np.sum(B_new.T * np.linalg.solve(K_mm, B_new.T), axis=0)
    fitted = noise * np.sum(B_new.T * np.linalg.solve(B.T @ B + noise * K_mm, B_new.T), axis=0)
    ours = reference.gp_variance_nystrom(B, K_mm, B_new, np.ones(9), noise)
    assert_allclose(ours, fitted + 1 - explained + noise, rtol=1e-9)
    assert np.all(ours >= noise)
