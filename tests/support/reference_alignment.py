"""Transfer components and joint distribution adaptation as in their papers, by n×n matrices.

Pan et al. (2011) and Long et al. (2013): with K (n, n), H = I − 11ᵀ/n and the maximum mean discrepancy matrices
M_j = m_j m_jᵀ, the components of A = (a_1 … a_s) are the leading solutions of K H K a = γ (n K ΣM_j K + μK) a.
Sources first, then targets; every row has the weight 1.
"""

import numpy as np
from scipy import linalg


def discrepancy_vectors(labels, n_target, pseudo=None):
    """Return m_0 and the m_c, columns (n, j): ±1 over the number of rows of a side, for all rows and for each class."""
    n_source = len(labels)
    n = n_source + n_target
    first = np.zeros(n)
    first[:n_source], first[n_source:] = 1 / n_source, -1 / n_target
    vectors = [first]
    for c in [] if pseudo is None else np.unique(labels):
        mine, theirs = labels == c, pseudo == c
        if theirs.any():
            vector = np.zeros(n)
            vector[:n_source][mine] = 1 / mine.sum()
            vector[n_source:][theirs] = -1 / theirs.sum()
            vectors.append(vector)
    return np.array(vectors).T


def components(K, labels, s, mu, pseudo=None):
    """Return eigenvalues (s,) and the centred coordinates Z (n, s) of all rows, each up to its sign."""
    n = len(K)
    H = np.eye(n) - 1 / n
    m = discrepancy_vectors(labels, n - len(labels), pseudo)
    values, A = linalg.eigh(K @ H @ K, n * K @ m @ m.T @ K + mu * K)
    return values[::-1][:s], H @ K @ A[:, ::-1][:, :s]


def ridge_labels(Z, labels, alpha):
    """Return the classes of the other rows by ridge with an intercept on the labelled rows."""
    n, classes = len(labels), np.unique(labels)
    Y = (labels[:, None] == classes).astype(float)
    design = np.hstack([Z[:n], np.ones((n, 1))])
    penalty = alpha * np.eye(design.shape[1])
    penalty[-1, -1] = 0
    w = np.linalg.solve(design.T @ design + penalty, design.T @ Y)
    return classes[np.argmax(np.hstack([Z[n:], np.ones((len(Z) - n, 1))]) @ w, axis=1)]


def joint_adaptation(K, labels, s, mu, alpha, rounds):
    """Return eigenvalues, coordinates, and the labels that each round is solved with."""
    values, Z = components(K, labels, s, mu)
    history = []
    for _ in range(rounds):
        history.append(ridge_labels(Z, labels, alpha))
        values, Z = components(K, labels, s, mu, history[-1])
    return values, Z, history
