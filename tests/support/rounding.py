"""Tables whose normal equations lose digits, and least squares that does not square their condition."""

import decimal
import warnings

import numpy as np
from scipy import linalg

from bigkernel.solvers.whitening import whiten

N, M = 2000, 120


def table(features, seed):
    """Return standardised rows of mixed columns, and a smooth target with noise."""
    g = np.random.default_rng(seed)
    X = g.normal(size=(N, features)) @ g.normal(size=(features, features))
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    return X, np.sin(X[:, 0]) + 0.3 * X[:, 1] ** 2 + 0.1 * g.normal(size=N)


TABLES = {features: table(features, features) for features in (4, 10)}


def least_squares(kernel, landmarks, rows, y, alpha, *, intercept=False, weight=None, at=None):
    """Return predictions of ridge on whitened rows, at these rows or others, by QR of [Φ; √α I]."""
    T = whiten(kernel(landmarks), warn=False)

    def whitened(points):
        return linalg.solve_triangular(T.factor, kernel(points, landmarks)[:, T.pivots].T, lower=True).T

    phi, expected = whitened(rows), whitened(rows if at is None else at)
    penalty = np.sqrt(alpha) * np.eye(T.rank)
    if intercept:
        phi, expected = (np.hstack([values, np.ones((len(values), 1))]) for values in (phi, expected))
        penalty = np.hstack([penalty, np.zeros((T.rank, 1))])
    root = np.ones(len(y)) if weight is None else np.sqrt(weight)
    tall = np.vstack([root[:, None] * phi, penalty])
    return expected @ np.linalg.lstsq(tall, np.concatenate([root * y, np.zeros(len(penalty))]), rcond=None)[0]


def decimals(values):
    """Return an array of decimal numbers."""
    return np.array([decimal.Decimal(float(value)) for value in np.ravel(values)], object).reshape(np.shape(values))


def long_doubles(values):
    """Return an array of 80 bits."""
    return np.asarray(values, np.longdouble)


def precise_ridge(rows, targets, alpha=0.0, *, intercept=True, weight=None, number=decimals):
    """Return fitted values of ridge by Gram-Schmidt of [X; √α I], longest column first, in 45 digits or 80 bits."""
    with decimal.localcontext(prec=45):
        X, Y = number(rows), number(np.reshape(targets, (len(rows), -1)))
        w = number(np.ones(len(rows)) if weight is None else weight)[:, None]
        mean, level = ((w * values).sum(axis=0) / w.sum() * int(intercept) for values in (X, Y))
        root, d = np.sqrt(w), X.shape[1]
        tall = np.vstack([root * (X - mean), number(np.eye(d)) * np.sqrt(number(alpha))])
        right = np.vstack([root * (Y - level), number(np.zeros((d, Y.shape[1])))])
        residual, scale = right, np.maximum((tall**2).sum(axis=0), number(1e-200))
        for _ in range(d):
            lengths = (tall**2).sum(axis=0) / scale
            j = int(np.argmax(lengths))
            if lengths[j] < 1e-60:
                break
            q = tall[:, j] / np.sqrt((tall[:, j] ** 2).sum())
            residual, tall = residual - np.outer(q, q @ residual), tall - np.outer(q, q @ tall)
        fitted = (right - residual)[: len(rows)] / root + level
        return fitted.astype(float).reshape(np.shape(targets))


def catch_warnings_of(function, *arguments, **options):
    """Call a function; return its result and the categories of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function(*arguments, **options)
    return result, [one.category for one in caught]


def distance(actual, expected):
    """Return ‖actual − expected‖/‖expected‖."""
    return np.linalg.norm(actual - expected) / np.linalg.norm(expected)
