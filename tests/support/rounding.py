"""Tables whose normal equations lose digits, and least squares that does not square them."""

import numpy as np
from scipy import linalg

from bigkernel.solvers.whitening import whiten

N, M = 2000, 120


def table(features, seed):
    """Standardised rows whose columns are mixed, and a smooth target with noise."""
    g = np.random.default_rng(seed)
    X = g.normal(size=(N, features)) @ g.normal(size=(features, features))
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    return X, np.sin(X[:, 0]) + 0.3 * X[:, 1] ** 2 + 0.1 * g.normal(size=N)


TABLES = {features: table(features, features) for features in (4, 10)}


def least_squares(kernel, landmarks, rows, y, alpha, *, intercept=False, weight=None, at=None):
    """Values of ridge in whitened rows, at these or others, by QR of [Φ; √α I]: nothing is squared."""
    T = whiten(kernel(landmarks), warn=False)

    def whitened(points):
        return linalg.solve_triangular(T.factor, kernel(points, landmarks)[:, T.pivots].T, lower=True).T

    phi, wanted = whitened(rows), whitened(rows if at is None else at)
    penalty = np.sqrt(alpha) * np.eye(T.rank)
    if intercept:
        phi, wanted = (np.hstack([values, np.ones((len(values), 1))]) for values in (phi, wanted))
        penalty = np.hstack([penalty, np.zeros((T.rank, 1))])
    root = np.ones(len(y)) if weight is None else np.sqrt(weight)
    tall = np.vstack([root[:, None] * phi, penalty])
    return wanted @ np.linalg.lstsq(tall, np.concatenate([root * y, np.zeros(len(penalty))]), rcond=None)[0]


def distance(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
