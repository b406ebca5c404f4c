"""A dense oracle of correlated Nyström views (McWilliams, Balduzzi & Buhmann, NIPS 2013, arXiv 1306.5554).

Written from Algorithm 1 of the paper, with the features of every row in memory and no moments. It imports nothing of
the package. Shapes: N rows, of which some are labelled, m landmarks a view, c targets.
"""

import numpy as np
import scipy.linalg


def features(block, core):
    """Nyström features of rows, (N, m): k(x, Z) K_mm^{-1/2}, with the symmetric inverse root."""
    values, vectors = np.linalg.eigh(core)
    return block @ vectors @ np.diag(values**-0.5) @ vectors.T


def canonical(first, second, ridge=0.0):
    """Directions (m, m) of the first view and correlations (m,), falling, of two centred views (N, m).

    C12 C22⁻¹ C21 b = ρ² C11 b, scaled to bᵀ C11 b = 1; the ridge is added to the diagonals of C11 and C22.
    """
    N = len(first)
    C11, C22, C12 = first.T @ first / N, second.T @ second / N, first.T @ second / N
    C11, C22 = C11 + ridge * np.eye(len(C11)), C22 + ridge * np.eye(len(C22))
    squares, vectors = scipy.linalg.eigh(C12 @ np.linalg.solve(C22, C12.T), C11)
    return vectors[:, ::-1], np.sqrt(np.maximum(squares[::-1], 0))


def xnv(first, second, labelled, targets, gamma, *, intercept=True, weight=None, view_alpha=0.0):
    """A function of first-view features (q, m) to predictions (q, c), and the correlations.

    min (1/n) Σ_i (βᵀz_i + b − y_i)² + Σ_j (1 − ρ_j)/ρ_j β_j² + γ‖β‖² over the labelled rows, as a least-squares problem
    of stacked rows; rows of weight w count w times. `view_alpha`, over their weight, is the ridge of `canonical`.
    """
    w = np.ones(len(first)) if weight is None else weight
    means = w @ first / w.sum(), w @ second / w.sum()
    root = np.sqrt(w / w.mean())[:, None]
    basis, rho = canonical(root * (first - means[0]), root * (second - means[1]), view_alpha / w.sum())
    Z, Y = (first - means[0])[labelled] @ basis, targets.reshape(int(labelled.sum()), -1)
    share = np.sqrt(w[labelled] / w[labelled].sum())[:, None]
    rows = np.hstack([Z, np.ones((len(Z), 1)) * intercept]) * share
    charges = np.diag(np.sqrt(np.append((1 - rho) / rho + gamma, 0)))
    solution = np.linalg.lstsq(np.vstack([rows, charges]), np.vstack([share * Y, np.zeros((len(rho) + 1, Y.shape[1]))]))
    beta, b = solution[0][:-1], solution[0][-1]
    return lambda phi: (phi - means[0]) @ basis @ beta + intercept * b, rho
