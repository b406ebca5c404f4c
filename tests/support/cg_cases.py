"""Cases that judge the estimated excess of `KernelRidge(solver="cg")`: tables, kernels, penalties, and the true excess.

An estimate that is below the truth must come with a warning. Nobody tuned on these tables: heavy tails, tight clusters,
wide kernels and small penalties are among them. Shapes: n rows X (n, d), m landmarks Z (m, d), c targets.
"""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, qr
from scipy.spatial.distance import cdist
from sklearn.datasets import load_diabetes, load_digits

from bigkernel import Gaussian, Laplacian, Matern, Polynomial
from bigkernel.kernels.algebra import Kernel

Array = NDArray[np.float64]
Case = tuple[str, str, float, Array, Array, Kernel]
ALPHAS = (1e-6, 1e-4, 1e-2, 1, 10)
WINE = Path(os.environ.get("BIGKERNEL_DATA") or Path(__file__).parents[3] / "shared" / "data") / "winequality-white.csv"


def standardise(X):
    """Return X with mean 0 and standard deviation 1 in every column; columns that do not vary become 0."""
    spread = X.std(axis=0)
    return np.asarray((X - X.mean(axis=0)) / np.where(spread > 0, spread, 1))


def tables(n):
    """Return X (n, d) and y (n,) by name.

    Columns are standardised, but for the digits, whose rows have norm 1. Data sets that are smaller give all their
    rows, in a drawn order; "wine" is left out where its file is missing.
    """
    found = {
        "lognormal": _made(n, lambda r: r.lognormal(sigma=1, size=(n, 8))),
        "lognormal-half": _made(n, lambda r: r.lognormal(sigma=0.5, size=(n, 8))),
        "student": _made(n, lambda r: r.standard_t(3, size=(n, 8))),
        "normal": _made(n, lambda r: r.normal(size=(n, 8))),
        "clusters": _made(n, lambda r: r.normal(size=(20, 8))[r.integers(0, 20, n)] + 0.01 * r.normal(size=(n, 8))),
        "uniform-low-dim": _made(n, lambda r: r.uniform(size=(n, 3))),
    }
    digits, numbers = load_digits(return_X_y=True)
    found["digits"] = _drawn(digits / np.linalg.norm(digits, axis=1, keepdims=True), numbers, n)
    X, y = _drawn(*load_diabetes(return_X_y=True), n)
    found["diabetes"] = standardise(X), y
    if WINE.exists():
        rows = np.loadtxt(WINE, delimiter=";", skiprows=1)
        X, y = _drawn(rows[:, :-1], rows[:, -1], n)
        found["wine"] = standardise(X), y
    return found


def kernels():
    """Return eight kernels by name, from narrow to so wide that their cores are singular to rounding."""
    return {
        **{f"gaussian {sigma:g}": Gaussian(sigma=sigma) for sigma in (0.5, 2.0, 4.0, 16.0)},
        "laplacian": Laplacian(gamma=0.2),
        "matern": Matern(length_scale=2.0, nu=1.5),
        "polynomial 2": Polynomial(2, gamma=0.125, coef0=1.0),
        "polynomial 3": Polynomial(3, gamma=0.125, coef0=1.0),
    }


def cases(n):
    """Yield every table with every kernel and penalty: both names, the penalty, X, y and the kernel."""
    for table, (X, y) in tables(n).items():
        for name, kernel in kernels().items():
            for alpha in ALPHAS:
                yield table, name, alpha, X, y, kernel


def dense(kernel):
    """Return k as a function of X and Z, in float64 and from differences of rows, without the package's blocks."""
    given = kernel.get_params()
    if isinstance(kernel, Gaussian):
        return lambda X, Z: np.exp(-cdist(X, Z, "sqeuclidean") / (2 * given["sigma"] ** 2))
    if isinstance(kernel, Laplacian):
        return lambda X, Z: np.exp(-given["gamma"] * cdist(X, Z, "cityblock"))
    if isinstance(kernel, Matern) and given["nu"] == 1.5:

        def matern(X, Z):
            r = 3**0.5 * cdist(X, Z) / given["length_scale"]
            return np.asarray((1 + r) * np.exp(-r))

        return matern
    if isinstance(kernel, Polynomial):
        return lambda X, Z: (given["gamma"] * X @ Z.T + given["coef0"]) ** given["degree"]
    raise ValueError(f"kernel: expected one of `kernels`, found {kernel.formula()}")


def true_excess(X, y, model, reference=None, sample_weight=None):
    """Return (J(f) − J*)/J* of a fitted `KernelRidge` f, J = Σ w (y − f)² + α aᵀKa, for each target where y is (n, c).

    With A = [√w B; √α T], K = TᵀT, and a* the least-squares solution, J(f) − J* is ‖A(a − a*)‖² = ‖Ra − Qᵀỹ‖²,
    A = QR: no square of a condition, and no difference of two objectives. With an intercept b, B and y are less their
    weighted means, and Σw (b − b(a))² is added, b(a) the best intercept for the coefficients a.
    """
    k = dense(model.kernel_) if reference is None else reference
    X, Z = np.asarray(X, np.float64), np.asarray(model.landmarks_, np.float64)
    flat, Y = np.ndim(y) == 1, np.asarray(y, np.float64).reshape(len(X), -1)
    coef, alpha = np.asarray(model.dual_coef_, np.float64).reshape(len(Z), -1), float(model.alpha_)
    weight = np.ones(len(X)) if sample_weight is None else np.asarray(sample_weight, np.float64)
    B, intercept = k(X, Z), np.broadcast_to(model.intercept_, Y.shape[1])
    away = np.zeros(Y.shape[1])
    if model.fit_intercept:
        of_block, of_targets = weight @ B / weight.sum(), weight @ Y / weight.sum()
        away = weight.sum() * (intercept - (of_targets - of_block @ coef)) ** 2
        B, Y = B - of_block, Y - of_targets
    values, vectors = eigh(k(Z, Z))
    T = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T
    A = np.vstack([np.sqrt(weight)[:, None] * B, alpha**0.5 * T])
    right = np.vstack([np.sqrt(weight)[:, None] * Y, np.zeros((len(Z), Y.shape[1]))])
    Q, R, order = qr(A, mode="economic", pivoting=True)
    # directions in which B and T are rounding alone lead nowhere
    size = np.abs(np.diag(R))
    rank = int((size > len(A) * np.finfo(np.float64).eps * size[0]).sum())
    reached = Q[:, :rank].T @ right
    excess = ((R[:rank] @ coef[order] - reached) ** 2).sum(axis=0) + away
    least = ((right - Q[:, :rank] @ reached) ** 2).sum(axis=0)
    share = excess / least
    return float(share[0]) if flat else np.asarray(share)


def _made(n, rows):
    """Return standardised rows and a function of three of their columns with noise, from one generator."""
    r = np.random.default_rng(0)
    X = standardise(rows(r))
    y = np.sin(X[:, 0]) + X[:, 1] * np.exp(-(X[:, 2] ** 2)) + 0.3 * r.normal(size=n)
    return X, y


def _drawn(X, y, n):
    """Return n rows in a drawn order, or all where they are fewer."""
    order = np.random.default_rng(0).permutation(len(X))[:n]
    return np.asarray(X[order], np.float64), np.asarray(y[order], np.float64)
