"""Randomly pivoted Cholesky from dense matrices, as the paper defines it."""

from itertools import permutations

import numpy as np


def pivot_law(K, count):
    """The chance of every ordered draw of `count` rows (arXiv 2207.06503, algorithm 1)."""
    law = {}
    for order in permutations(range(len(K)), count):
        chance, left = 1.0, K.copy()
        for row in order:
            chance *= left[row, row] / np.trace(left)
            left = left - np.outer(left[:, row], left[row]) / left[row, row]
        law[order] = chance
    return law


def trace_error(K, rows):
    """tr(K − K_nm K_mm⁺ K_mn)/tr(K) through the eigenvectors of the core."""
    values, vectors = np.linalg.eigh(K[np.ix_(rows, rows)])
    keep = values > 1e-12 * values.max()
    features = K[:, rows] @ vectors[:, keep] / np.sqrt(values[keep])
    return 1 - (features**2).sum() / np.trace(K)
