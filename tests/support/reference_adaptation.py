"""Adaptation regularization and the anchor graph as in their papers, by n×n matrices.

Long et al. (2014), eq. 10: f = Kα with α = ((E + λM + γL)K + σI)⁻¹EY, E the labelled rows' weights. Liu et al. (2010):
similarities W = P diag(Pᵀ1)⁻¹ Pᵀ. Sources first, then targets.
"""

import numpy as np


def anchors(X, Z, kernel, k):
    """Return P (n, m): weights of every row on its k nearest landmarks in the space of the kernel."""
    P = np.zeros((len(X), len(Z)))
    for i, x in enumerate(X):
        squares = np.array([float(kernel(x, x) + kernel(z, z) - 2 * kernel(x, z)) for z in Z])
        near = sorted(range(len(Z)), key=lambda j: (squares[j], j))[:k]
        farthest = max(squares[near])
        raw = np.exp(-2 * squares[near] / farthest)
        P[i, near] = raw / raw.sum()
    return P


def laplacian(P, weight):
    """Return diag(w) − diag(w)P diag(Pᵀw)⁻¹Pᵀdiag(w), (n, n)."""
    degrees = P.T @ weight
    D = np.diag(weight)
    inverse = np.diag([1 / d if d > 0 else 0.0 for d in degrees])
    return D - D @ P @ inverse @ P.T @ D


def discrepancy(labels, weight, balance, Q=None):
    """Return M (n, n): (1 − μ) of the means of both sides, μ of those of each class, by soft labels Q (n_t, c)."""
    n_source, n = len(labels), len(weight)
    source, target = weight.copy(), weight.copy()
    source[n_source:], target[:n_source] = 0, 0
    v = source / source.sum() - target / target.sum()
    M = (1 - balance) * np.outer(v, v)
    for c, label in enumerate(np.unique(labels)) if Q is not None else ():
        mine, theirs = np.zeros(n), np.zeros(n)
        mine[:n_source] = weight[:n_source] * (labels == label)
        theirs[n_source:] = weight[n_source:] * Q[:, c]
        v = mine / mine.sum() - theirs / theirs.sum()
        M += balance * np.outer(v, v)
    return M


def congruence(rows, labels, Q, weight):
    """Return the congruence of the class means of sources and targets, each about the mean of its side."""
    n, classes, total = len(labels), np.unique(labels), np.zeros(3)
    a, b = rows[:n] - weight[:n] @ rows[:n] / weight[:n].sum(), rows[n:] - weight[n:] @ rows[n:] / weight[n:].sum()
    for c, label in enumerate(classes):
        mine, theirs = weight[:n] * (labels == label), weight[n:] * Q[:, c]
        mean, other = mine @ a / mine.sum(), theirs @ b / theirs.sum()
        total += mine.sum() * np.array([mean @ other, mean @ mean, other @ other])
    return total[0] / np.sqrt(total[1] * total[2])


def adapted(K, L, labels, weight, *, mmd, manifold, alpha, balance, sharpness, rounds):
    """Return values f (n, c) after `rounds` rounds, with the soft labels and their mean entropy of every round before.

    `sharpness` is one number, or one for each round.
    """
    n_source, n = len(labels), len(K)
    E = np.diag(np.where(np.arange(n) < n_source, weight, 0))
    classes = np.unique(labels)
    Y = np.zeros((n, len(classes)))
    Y[:n_source] = labels[:, None] == classes
    w, Q, history = weight[n_source:], None, []
    for turn in range(rounds + 1):
        M = discrepancy(labels, weight, balance, Q)
        a = np.linalg.solve((E + mmd * weight.sum() / 2 * M + manifold * L) @ K + alpha * np.eye(n), E @ Y)
        f = K @ a
        if turn < rounds:
            target = f[n_source:]
            mean = (w[:, None] * target).sum(axis=0) / w.sum()
            tau = np.sqrt((w[:, None] * (target - mean) ** 2).sum() / w.sum())
            beta = sharpness if np.ndim(sharpness) == 0 else sharpness[turn]
            raw = np.exp(beta * target / tau)
            Q = raw / raw.sum(axis=1, keepdims=True)
            history.append((Q, float((w * -(Q * np.log(Q)).sum(axis=1)).sum() / w.sum())))
    return f, history
