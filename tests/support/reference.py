"""Dense oracles for the tests: every method written out from its equation, in float64, with no regard for speed.

Nothing here imports `bigkernel`: what a test compares must come from two sources. The equations are those of the
papers (Williams & Seeger 2000; Ji et al. 2012; Rasmussen & Williams 2006, ch. 2 and 8).

Shapes: n rows X (n, d), m landmarks Z (m, d), n_l labelled among N rows, p map columns, s components, q rows to
predict, c targets. Targets may be (n, c) or (n,), which is read as (n, 1); coefficients are always two-dimensional,
(·, c), and an intercept is always (c,). `alpha` is the penalty λ on ‖w‖² where the loss is a sum over rows. A kernel
block k(X, Z) has the rows of X as its rows; a prediction is `k(X_new, Z) @ coef + intercept`.
"""

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

Array = NDArray[np.float64]


# ---------------------------------------------------------------- kernels


def _rows(X):
    """X as a float64 matrix (n, d), converted before any subtraction (uint8 and float32 rows stay exact)."""
    X = np.asarray(X, dtype=np.float64)
    if X.ndim != 2:
        raise ValueError(f"rows must be two-dimensional, found shape {X.shape}")
    return X


def _differences(X, Z):
    """x_i − z_j for all pairs, (n, m, d)."""
    return _rows(X)[:, np.newaxis, :] - _rows(Z)[np.newaxis, :, :]


def _inner_products(X, Z):
    """Σ_k x_ik z_jk for all pairs, (n, m), summed without a matrix product."""
    return np.sum(_rows(X)[:, np.newaxis, :] * _rows(Z)[np.newaxis, :, :], axis=2)


def gaussian(X, Z, sigma):
    """k(x, z) = exp(−½ Σ_j ((x_j − z_j)/σ_j)²); X (n, d), Z (m, d), sigma scalar or (d,); returns (n, m)."""
    scaled = _differences(X, Z) / np.asarray(sigma, dtype=np.float64)
    return np.exp(-0.5 * np.sum(scaled**2, axis=2))


def laplacian(X, Z, sigma):
    """k(x, z) = exp(−Σ_j |x_j − z_j|/σ); X (n, d), Z (m, d); returns (n, m)."""
    return np.exp(-np.sum(np.abs(_differences(X, Z)), axis=2) / sigma)


def matern(X, Z, sigma, nu):
    """Matérn kernel of r = ‖(x − z)/σ‖₂; X (n, d), Z (m, d), sigma scalar or (d,); returns (n, m).

    ν = 1/2: exp(−r);  ν = 3/2: (1 + √3 r) exp(−√3 r);  ν = 5/2: (1 + √5 r + 5r²/3) exp(−√5 r)
    (Rasmussen & Williams 2006, eq. 4.17).
    """
    scaled = _differences(X, Z) / np.asarray(sigma, dtype=np.float64)
    r = np.sqrt(np.sum(scaled**2, axis=2))
    if nu == 0.5:
        return np.exp(-r)
    if nu == 1.5:
        return (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r)
    if nu == 2.5:
        return (1 + np.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-np.sqrt(5) * r)
    raise ValueError(f"nu must be 0.5, 1.5 or 2.5, found {nu}")


def linear(X, Z):
    """k(x, z) = Σ_j x_j z_j; X (n, d), Z (m, d); returns (n, m)."""
    return _inner_products(X, Z)


def polynomial(X, Z, degree, gamma, coef0):
    """k(x, z) = (γ⟨x, z⟩ + c₀)^degree; X (n, d), Z (m, d); returns (n, m)."""
    return (gamma * _inner_products(X, Z) + coef0) ** degree


def sigmoid(X, Z, gamma, coef0):
    """k(x, z) = tanh(γ⟨x, z⟩ + c₀), not positive semi-definite in general; X (n, d), Z (m, d); returns (n, m)."""
    return np.tanh(gamma * _inner_products(X, Z) + coef0)


def of_kernel(kernel):
    """Return the function k(X, Z) of this module for a kernel object of the package."""
    return lambda X, Z: globals()[kernel.name](X, Z, **kernel.get_params())


# ---------------------------------------------------------------- shared pieces


def _targets(Y):
    """Y as a float64 matrix (n, c); a vector becomes one column."""
    Y = np.asarray(Y, dtype=np.float64)
    return Y[:, np.newaxis] if Y.ndim == 1 else Y


def _weights(sample_weight, n):
    """Sample weights (n,), ones where none are given."""
    if sample_weight is None:
        return np.ones(n)
    w = np.asarray(sample_weight, dtype=np.float64)
    if w.shape != (n,) or np.any(w < 0):
        raise ValueError(f"sample weights must be {n} non-negative numbers, found shape {w.shape}")
    return w


def positive_eigenpairs(K):
    """K = V diag(λ) Vᵀ restricted to λ_j > m·eps·λ_max, largest first; K (m, m); returns λ (r,), V (m, r).

    The cut drops what rounding made of zero, and the negative part of a kernel that is not positive semi-definite.
    """
    K = np.asarray(K, dtype=np.float64)
    values, vectors = scipy.linalg.eigh(K)
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = values > len(K) * np.finfo(np.float64).eps * values[0]
    return values[kept], vectors[:, kept]


def whitening(K_mm):
    """T = U D^{-1/2} of K_mm = U D Uᵀ, D_j > m·eps·D_max, so that T Tᵀ = K_mm⁺; K_mm (m, m); returns (m, r).

    The Nyström map is φ(x) = Tᵀ k(Z, x), that is Φ = B T for the landmark block B = k(X, Z).
    """
    values, vectors = positive_eigenpairs(K_mm)
    return vectors / np.sqrt(values)


def moments(Phi, Y, w=None):
    """The additive statistics; Phi (n, p), Y (n, c) or (n,), w (n,) or None for ones.

    n = Σ w_i ();  G = Σ w_i φ_i φ_iᵀ (p, p);  C = Σ w_i φ_i y_iᵀ (p, c);  s = Σ w_i φ_i (p,);  t = Σ w_i y_i (c,);
    q = Σ w_i y_i² (c,), a number for each target column.
    """
    Phi, Y = _rows(Phi), _targets(Y)
    w = _weights(w, len(Phi))
    return {
        "n": np.sum(w),
        "G": np.einsum("i,ij,ik->jk", w, Phi, Phi),
        "C": np.einsum("i,ij,ik->jk", w, Phi, Y),
        "s": np.einsum("i,ij->j", w, Phi),
        "t": np.einsum("i,ij->j", w, Y),
        "q": np.einsum("i,ij->j", w, Y**2),
    }


# ---------------------------------------------------------------- ridge and kernel ridge


def ridge(X, Y, alpha, fit_intercept=False, sample_weight=None):
    """min_{W,b} Σ_i w_i ‖Wᵀx_i + b − y_i‖² + α‖W‖²; X (n, d), Y (n, c); returns coef (d, c), intercept (c,).

    Least squares on the augmented rows [√w (X − x̄); √α I] W = [√w (Y − ȳ); 0], with b = ȳ − Wᵀx̄ (the means are
    weighted; b = 0 and no centring without an intercept). With alpha = 0 the W of least norm among the minimisers.
    """
    X, Y = _rows(X), _targets(Y)
    w = _weights(sample_weight, len(X))
    x_mean, y_mean = np.zeros(X.shape[1]), np.zeros(Y.shape[1])
    if fit_intercept:
        x_mean, y_mean = np.average(X, axis=0, weights=w), np.average(Y, axis=0, weights=w)
    root = np.sqrt(w)[:, np.newaxis]
    left = np.vstack([root * (X - x_mean), np.sqrt(alpha) * np.eye(X.shape[1])])
    right = np.vstack([root * (Y - y_mean), np.zeros((X.shape[1], Y.shape[1]))])
    coef = np.linalg.lstsq(left, right, rcond=None)[0]
    return coef, y_mean - x_mean @ coef


def krr_exact(K, Y, alpha, sample_weight=None):
    """min_a Σ_i w_i ‖(Ka)_i − y_i‖² + α aᵀKa; K (n, n), Y (n, c); returns the dual coefficients a (n, c).

    With S = diag(√w): (SKS + αI) u = SY, a = Su; without weights (K + αI) a = Y.
    With alpha = 0 and a singular K the least-squares u of least norm.
    """
    K, Y = np.asarray(K, dtype=np.float64), _targets(Y)
    root = np.sqrt(_weights(sample_weight, len(K)))[:, np.newaxis]
    return root * np.linalg.lstsq(root * K * root.T + alpha * np.eye(len(K)), root * Y, rcond=None)[0]


def krr_exact_intercept(K, Y, alpha):
    """min_{a,b} ‖1b + Ka − Y‖² + α aᵀKa, alpha > 0; K (n, n), Y (n, c); returns a (n, c), b (c,).

    [[n, 1ᵀK], [1, K + αI]] (b; a) = (1ᵀY; Y). (It follows that 1ᵀa = 0.)
    """
    K, Y = np.asarray(K, dtype=np.float64), _targets(Y)
    n = len(K)
    ones = np.ones((n, 1))
    system = np.block([[np.array([[float(n)]]), ones.T @ K], [ones, K + alpha * np.eye(n)]])
    solution = np.linalg.solve(system, np.vstack([ones.T @ Y, Y]))
    return solution[1:], solution[0]


def nystrom_krr(B, K_mm, Y, alpha, fit_intercept=False, sample_weight=None):
    """min_{a,b} Σ_i w_i ‖(Ba)_i + b − y_i‖² + α aᵀK_mm a; B (n, m), K_mm (m, m), Y (n, c).

    Returns the coefficients over the landmarks a (m, c) and the intercept b (c,). With T = U D^{-1/2} (`whitening`):
    ridge on Φ = BT, then a = Tw; a lies in the kept range of K_mm. B = K_mm = K is exact kernel ridge regression.
    """
    T = whitening(K_mm)
    w, intercept = ridge(_rows(B) @ T, Y, alpha, fit_intercept, sample_weight)
    return T @ w, intercept


# ---------------------------------------------------------------- semi-supervised, SSSL


def sssl_exact(K, labelled_mask, Y_labelled, s, alpha):
    """SSSL_N (Ji et al. 2012, with a ridge); returns the dual coefficients over all N rows, (N, c).

    K (N, N) = VΛVᵀ, top s columns of V; P = VᵀK_{:,l} (s, n_l); β = (PPᵀ + αI)⁻¹ P y; f(x) = k(x, X) Vβ.
    labelled_mask (N,) bool; Y_labelled (n_l, c) are the targets of the labelled rows, in row order. Components
    beyond the numerical rank of K are left out. With alpha = 0 the β of least norm.
    """
    K, labelled = np.asarray(K, dtype=np.float64), np.asarray(labelled_mask, dtype=bool)
    return sssl_landmarks(K, K[:, labelled], Y_labelled, s, alpha)


def sssl_landmarks(K_mm, K_ml, Y, s, alpha):
    """SSSL_m with the eigenfunctions of the landmarks; returns landmark coefficients (m, c).

    K_mm (m, m) = VΛVᵀ, top s columns of V; P = VᵀK_ml (s, n_l); β = (PPᵀ + αI)⁻¹ P y; f(x) = k(x, Z) Vβ.
    K_ml (m, n_l) = k(Z, X_labelled); Y (n_l, c) are the targets of the labelled rows.
    """
    _, V = positive_eigenpairs(K_mm)
    V = V[:, :s]
    P = V.T @ np.asarray(K_ml, dtype=np.float64)
    beta, _ = ridge(P.T, Y, alpha)
    return V @ beta


def sssl_all(B, K_mm, labelled_mask, Y, s, alpha, graph=None):
    """SSSL_m with the eigenvectors of the Nyström kernel over all N rows; returns landmark coefficients (m, c).

    Φ = BT (N, r), T = U D^{-1/2}; ΦᵀΦ = WΛWᵀ, top s; features √λ_j φ(x)ᵀW_j = k(x, Z) T W_j √λ_j;
    β = ridge of the labelled features; coefficients T W Λ^{1/2} β. The same function as `sssl_exact` on the N×N
    matrix B K_mm⁺ Bᵀ. B (N, m) = k(X, Z), K_mm (m, m), labelled_mask (N,) bool, Y (n_l, c) targets of the
    labelled rows, in row order. With `graph` M (N, N): ΦᵀΦW = (I + ΦᵀMΦ)WΛ.
    """
    B, labelled = _rows(B), np.asarray(labelled_mask, dtype=bool)
    T = whitening(K_mm)
    Phi = B @ T
    if graph is None:
        values, W = positive_eigenpairs(Phi.T @ Phi)
    else:
        values, W = scipy.linalg.eigh(Phi.T @ Phi, np.eye(Phi.shape[1]) + Phi.T @ graph @ Phi)
        values, W = values[::-1], W[:, ::-1]
    to_features = T @ (W * np.sqrt(values))[:, :s]
    beta, _ = ridge((B @ to_features)[labelled], Y, alpha)
    return to_features @ beta


# ---------------------------------------------------------------- predictive variance


def gp_variance_exact(K_train, K_cross, k_diag, noise, weight=None, constant=False):
    """Var[y | x] = k(x, x) − k(x, X)(K + σ²W⁻¹)⁻¹ k(X, x) + σ² (Rasmussen & Williams 2006, eq. 2.26, plus noise).

    K_train (n, n); K_cross (q, n) = k(X_new, X); k_diag (q,); noise is the variance σ², that of row i is σ²/w_i, and
    rows of weight 0 are left out; returns (q,). With a constant of infinite prior variance, from the bordered system
    [[A, 1], [1ᵀ, 0]] with A = K + σ²W⁻¹ (universal kriging).
    """
    K_train, K_cross = np.asarray(K_train, dtype=np.float64), _rows(K_cross)
    weight = _weights(weight, len(K_train))
    used = weight > 0
    A, k = K_train[np.ix_(used, used)] + np.diag(noise / weight[used]), K_cross[:, used].T
    if constant:
        ones = np.ones((len(A), 1))
        A = np.block([[A, ones], [ones.T, np.zeros((1, 1))]])
        k = np.vstack([k, np.ones((1, k.shape[1]))])
    return np.asarray(k_diag, dtype=np.float64) - np.sum(k * np.linalg.solve(A, k), axis=0) + noise


def gp_variance_nystrom(B, K_mm, B_new, k_diag, noise, weight=None, constant=False):
    """DTC: k(x, x) − Q_{xX}(Q_XX + σ²I)⁻¹ Q_{Xx} + σ² with Q = B K_mm⁺ Bᵀ, in its dense n×n form.

    By Woodbury this is σ² φ(x)ᵀ(ΦᵀΦ + σ²I)⁻¹φ(x) + [k(x, x) − φ(x)ᵀφ(x)] + σ².
    B (n, m) = k(X, Z); K_mm (m, m); B_new (q, m) = k(X_new, Z); k_diag (q,); noise is the variance σ²;
    returns (q,).
    """
    T = whitening(K_mm)
    Phi, Phi_new = _rows(B) @ T, _rows(B_new) @ T
    return gp_variance_exact(Phi @ Phi.T, Phi_new @ Phi.T, k_diag, noise, weight, constant)
