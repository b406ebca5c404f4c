"""Valid outcomes of a fuzz case: a result that an oracle confirms, or an error with advice.

The oracles are dense float64 least squares in whitened coordinates, plain sums, and the same fit of the same numbers in
another container. n rows, d features, m landmarks, c targets.
"""

import traceback
from pathlib import Path

import numpy as np
import reference
import sklearn
from scipy.linalg import LinAlgWarning
from sklearn.exceptions import DataConversionWarning

import bigkernel
from bigkernel import errors
from bigkernel.errors import AccuracyWarning, BigKernelError

ENOUGH = 1e-3  # relative accuracy that models promise unless they warn
INACCURATE = (AccuracyWarning, LinAlgWarning)
EXPECTED_WARNINGS = (
    *(errors.RankDeficiencyWarning, errors.CollapsedLabelsWarning, errors.ColumnScaleWarning),
    *(errors.MissingLabelWarning, errors.DifferentClassesWarning, *INACCURATE),
)
_SKLEARN = str(Path(sklearn.__file__).parent)
_PACKAGE = str(Path(bigkernel.__file__).parent)
# words in messages of array libraries that do not help a user
_RAW = (
    *("broadcast", "index out of", "out of bounds", "singular", "unsupported operand", "ufunc", "reshape", "infs or"),
    *("zero-size", "not iterable", "has no attribute", "unhashable", "unpack", "dimension", "linspace", "mmap"),
)


def require_named(error):
    """Assert that an error is one of ours or of the validation of scikit-learn, with a useful message."""
    text = str(error)
    message = f"{type(error).__name__}: {text}"
    assert len(text) >= 12, message
    assert " " in text, message
    if isinstance(error, BigKernelError):
        return
    assert isinstance(error, ValueError | TypeError), message
    inner = traceback.extract_tb(error.__traceback__)[-1].filename
    assert inner.startswith((_SKLEARN, _PACKAGE)), f"{message} from {inner}"
    assert inner.startswith(_SKLEARN) or not any(word in text for word in _RAW), message


def require_known(caught):
    """Assert that warnings are ours or those of scikit-learn; return their categories."""
    foreign = [one for one in caught if not issubclass(one.category, (*EXPECTED_WARNINGS, DataConversionWarning))]
    foreign = [
        one
        for one in foreign
        if issubclass(one.category, RuntimeWarning) or not one.filename.startswith((_SKLEARN, _PACKAGE))
    ]
    assert not foreign, [f"{one.filename}:{one.lineno}: {one.message}" for one in foreign]
    return {one.category for one in caught}


def distance(actual, expected):
    """Return ‖actual − expected‖ / ‖expected‖, for numbers of any size."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    unit = float(np.abs(expected).max(initial=0.0))
    if not unit:
        return float(np.abs(actual).max(initial=0.0))
    return float(np.linalg.norm(actual / unit - expected / unit) / np.linalg.norm(expected / unit))


def kernel_values(kernel, X, Z):
    """Return k(X, Z) of a fitted kernel in float64 from its formula, (n, m); None if it overflows."""
    if kernel.name in ("sum", "product"):
        blocks = [kernel_values(term, X, Z) for term in kernel.terms]
        if any(block is None for block in blocks):
            return None
        return blocks[0] + blocks[1] if kernel.name == "sum" else blocks[0] * blocks[1]
    if kernel.name == "scaled":
        inner = kernel_values(kernel.kernel, X, Z)
        return None if inner is None else kernel.factor * inner
    if kernel.name == "columns":
        return kernel_values(kernel.kernel, X[:, kernel.columns], Z[:, kernel.columns])
    unit = 1.0
    if kernel.name in ("gaussian", "matern", "laplacian"):
        unit = float(np.max(kernel.sigma))
    with np.errstate(all="ignore"):
        X, Z = X / unit, Z / unit
        values = {
            "gaussian": lambda: reference.gaussian(X, Z, np.asarray(kernel.sigma) / unit),
            "matern": lambda: reference.matern(X, Z, np.asarray(kernel.sigma) / unit, kernel.nu),
            "laplacian": lambda: reference.laplacian(X, Z, 1.0),
            "linear": lambda: reference.linear(X, Z),
            "polynomial": lambda: reference.polynomial(X, Z, kernel.degree, kernel.gamma, kernel.coef0),
            "sigmoid": lambda: reference.sigmoid(X, Z, kernel.gamma, kernel.coef0),
        }[kernel.name]()
    return values if np.isfinite(values).all() else None


def least_squares(phi, Y, alpha, weight, *, intercept):
    """Return fitted values (n, c) of min Σ w (φᵀv + b − y)² + α‖v‖²; None if φ is nearly singular without a penalty."""
    root = np.sqrt(weight)[:, None]
    Y = Y.reshape(len(Y), -1)
    unit = max(float(np.abs(Y).max(initial=0)), 1e-300)
    Y = Y / unit
    if intercept:
        centre, mean = np.average(phi, axis=0, weights=weight), np.average(Y, axis=0, weights=weight)
    else:
        centre, mean = np.zeros(phi.shape[1]), np.zeros(Y.shape[1])
    centred = phi - centre
    lengths = np.linalg.norm(root * centred, axis=0)
    flat = lengths < 1e-13 * np.linalg.norm(root * phi, axis=0)  # constant columns, apart from rounding
    centred[:, flat], lengths[flat] = 0, 0
    if alpha and lengths.max(initial=0) * 1e-13 > lengths[lengths > 0].min(initial=np.inf):
        return (_unlike_units(root * centred, root * (Y - mean), alpha) / root + mean) * unit
    scale = np.ones(len(lengths)) if alpha else np.where(lengths > 0, lengths, 1)  # units matter to a penalty only
    U, values, Vt = np.linalg.svd(root * centred / scale, full_matrices=False)
    largest = values.max(initial=0)
    if alpha <= 1e-12 * largest**2 and ((values > 1e-14 * largest) & (values < 1e-3 * largest)).any():
        return None
    # v = V s/(s² + α) Uᵀy is accurate for any penalty
    nonzero = values > 1e-14 * largest
    with np.errstate(over="ignore"):
        inverse = 1 / (values[nonzero] * (1 + (np.sqrt(alpha) / values[nonzero]) ** 2))
    coef = Vt[nonzero].T @ (inverse[:, None] * (U[:, nonzero].T @ (root * (Y - mean))))
    return (centred / scale @ coef + mean) * unit


def _unlike_units(X, Y, alpha):
    """Return Xv of min ‖Xv − Y‖² + α‖v‖² for columns of very different lengths, by stacked rows of scaled columns."""
    tall = np.vstack([X, np.sqrt(alpha) * np.eye(X.shape[1])])
    lengths = np.linalg.norm(tall, axis=0)
    right = np.vstack([Y, np.zeros((X.shape[1], Y.shape[1]))])
    return X / lengths @ np.linalg.lstsq(tall / lengths, right, rcond=1e-14)[0]


def kernel_least_squares(model, X, Y, weight, new):
    """Return f(X) of kernel ridge on the landmarks of a fitted model, (n, c); None beyond the accuracy of float64."""
    if model.kernel_.name == "pairwise":
        return None
    Z = np.asarray(model.landmarks_, np.float64)
    K, B = kernel_values(model.kernel_, Z, Z), kernel_values(model.kernel_, X, Z)
    if K is None or B is None or not model.kernel_.positive:
        return None
    values, vectors = np.linalg.eigh(K)
    kept = values > len(K) * np.finfo(float).eps * max(values[-1], 1e-300)
    phi = B @ (vectors[:, kept] / np.sqrt(values[kept]))
    return least_squares(phi, Y, float(model.alpha_), weight, intercept=model.fit_intercept)
