"""Dense oracles of domain-invariant components (Muandet, Balduzzi & Schölkopf, ICML 2013), n×n, from the paper.

They import nothing of the package. Shapes: n rows, G domains, k classes, q new rows.
"""

import numpy as np
import scipy.linalg


def centring(n):
    """H = I − 11ᵀ/n."""
    return np.eye(n) - np.ones((n, n)) / n


def coefficients(domain):
    """Q (n, n) of the distributional variance (the paper's equation 2): tr KQ is its estimate."""
    names, counts = np.unique(domain, return_counts=True)
    G = len(names)
    Q = np.empty((len(domain), len(domain)))
    for i, a in enumerate(domain):
        for j, b in enumerate(domain):
            n_a, n_b = counts[names == a][0], counts[names == b][0]
            Q[i, j] = ((G - 1) if a == b else -1) / (G**2 * n_a * n_b)
    return Q


def one_hot(labels):
    """(n, k), zeros for labels of −1."""
    return (labels[:, None] == np.unique(labels[labels != -1])) * 1.0


def pencil(K, domain, alpha, *, labels=None, epsilon=0.0, invariance=1.0):
    """Return both sides of (1/n) C B = (KQK + K + λI) B Γ, with C = K² (UDICA) or L(L + nεI)⁻¹K² (DICA); centred K, L.

    Rows labelled −1 have zeros in L, and n there is the number of labelled rows. Q is multiplied by `invariance`, which
    is 1 in the paper.
    """
    n = len(K)
    H = centring(n)
    Kc = H @ K @ H
    right = invariance * Kc @ coefficients(domain) @ Kc + Kc + alpha * np.eye(n)
    if labels is None:
        return Kc @ Kc / n, right, Kc
    known = labels != -1
    Y = one_hot(labels)
    Y[known] -= Y[known].mean(axis=0)
    L, n_l = Y @ Y.T, known.sum()
    inverse = np.linalg.inv(L + n_l * epsilon * np.eye(n)) if epsilon else np.linalg.pinv(L)
    return L @ inverse @ Kc @ Kc / n_l, right, Kc


def components(K, domain, alpha, count, *, labels=None, epsilon=0.0, invariance=1.0):
    """Return values of the leading components at the training rows (n, c), their eigenvalues (c,), and B (n, c).

    Scaled to a variance of the eigenvalue; the sign is arbitrary. Eigenvalues have to be real.
    """
    left, right, Kc = pencil(K, domain, alpha, labels=labels, epsilon=epsilon, invariance=invariance)
    values, vectors = scipy.linalg.eig(left, right)
    order = np.argsort(-values.real)[:count]
    values, B = values[order], vectors[:, order]
    assert np.abs(values.imag).max() < 1e-9 * values.real.max()
    Z, values = (Kc @ B).real, values.real
    scale = np.sqrt(values / Z.var(axis=0))
    return Z * scale, values, B.real * scale


def project(K, new, B):
    """Return components of new rows (q, c) from their kernel values (q, n), centred by the training mean."""
    n = len(K)
    centred = (new - K.mean(axis=0)) @ centring(n)
    return centred @ B


def distributional_variance(Z, domain):
    """(1/G) Σ ‖μ_g − μ̄‖² of rows Z (n, c)."""
    means = np.array([Z[domain == g].mean(axis=0) for g in np.unique(domain)])
    return ((means - means.mean(axis=0)) ** 2).sum() / len(means)


def up_to_sign(actual, expected):
    """Return `actual` with the sign of each column as in `expected`."""
    return actual * np.sign((actual * expected).sum(axis=0))
