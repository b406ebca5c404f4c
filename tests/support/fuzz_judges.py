"""What a case of the fuzz may end in: a result that an oracle confirms, or an error that says what to do.

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
from bigkernel.errors import AccuracyWarning, BigKernelError, CollapsedLabelsWarning, RankDeficiencyWarning

ENOUGH = 1e-3  # of the norm: what the models promise where they warn of nothing
INACCURATE = (AccuracyWarning, LinAlgWarning)
TOLD = (RankDeficiencyWarning, CollapsedLabelsWarning, *INACCURATE)
_SKLEARN = str(Path(sklearn.__file__).parent)
_PACKAGE = str(Path(bigkernel.__file__).parent)
# words of an array library that tell a user nothing
_RAW = (
    *("broadcast", "index out of", "out of bounds", "singular", "unsupported operand", "ufunc", "reshape", "infs or"),
    *("zero-size", "not iterable", "has no attribute", "unhashable", "unpack", "dimension", "linspace", "mmap"),
)


def require_named(error):
    """Assert that an error is one of ours, or of scikit-learn's own validation, and has words to act on."""
    text = str(error)
    said = f"{type(error).__name__}: {text}"
    assert len(text) >= 12, said
    assert " " in text, said
    if isinstance(error, BigKernelError):
        return
    assert isinstance(error, ValueError | TypeError), said
    inner = traceback.extract_tb(error.__traceback__)[-1].filename
    assert inner.startswith((_SKLEARN, _PACKAGE)), f"{said} from {inner}"
    assert inner.startswith(_SKLEARN) or not any(word in text for word in _RAW), said


def require_told(caught):
    """Assert that the warnings of a result are ours or scikit-learn's, not an array library's; their kinds."""
    foreign = [one for one in caught if not issubclass(one.category, (*TOLD, DataConversionWarning))]
    said = (_SKLEARN, _PACKAGE)
    foreign = [one for one in foreign if issubclass(one.category, RuntimeWarning) or not one.filename.startswith(said)]
    assert not foreign, [f"{one.filename}:{one.lineno}: {one.message}" for one in foreign]
    return {one.category for one in caught}


def distance(actual, expected):
    """‖found − wanted‖ / ‖wanted‖, for numbers of any size."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    unit = float(np.abs(expected).max(initial=0.0))
    if not unit:
        return float(np.abs(actual).max(initial=0.0))
    return float(np.linalg.norm(actual / unit - expected / unit) / np.linalg.norm(expected / unit))


def kernel_values(kernel, X, Z):
    """k(X, Z) of a fitted kernel in float64 from its formula, (n, m); None where its numbers leave the range."""
    if kernel.name in ("sum", "product"):
        parts = [kernel_values(part, X, Z) for part in kernel.terms]
        if any(part is None for part in parts):
            return None
        return parts[0] + parts[1] if kernel.name == "sum" else parts[0] * parts[1]
    if kernel.name == "scaled":
        inner = kernel_values(kernel.kernel, X, Z)
        return None if inner is None else kernel.factor * inner
    if kernel.name == "columns":
        return kernel_values(kernel.kernel, X[:, kernel.columns], Z[:, kernel.columns])
    unit = 1.0
    if kernel.name in ("gaussian", "matern", "laplacian"):
        width = 1 / kernel.gamma if kernel.name == "laplacian" else getattr(kernel, "sigma", None)
        width = kernel.length_scale if width is None else width
        unit = float(np.max(width))
    with np.errstate(all="ignore"):
        X, Z = X / unit, Z / unit
        values = {
            "gaussian": lambda: reference.gaussian(X, Z, np.asarray(kernel.sigma) / unit),
            "matern": lambda: reference.matern(X, Z, np.asarray(kernel.length_scale) / unit, kernel.nu),
            "laplacian": lambda: reference.laplacian(X, Z, 1.0),
            "linear": lambda: reference.linear(X, Z),
            "polynomial": lambda: reference.polynomial(X, Z, kernel.degree, kernel.gamma, kernel.coef0),
            "sigmoid": lambda: reference.sigmoid(X, Z, kernel.gamma, kernel.coef0),
        }[kernel.name]()
    return values if np.isfinite(values).all() else None


def least_squares(phi, Y, alpha, weight, *, intercept):
    """The fitted values (n, c) of min Σ w (φᵀv + b − y)² + α‖v‖², from the singular values of φ.

    None where columns are between dependent and independent, and no penalty to speak of decides.
    """
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
    flat = lengths < 1e-13 * np.linalg.norm(root * phi, axis=0)  # what is left of columns that do not vary is rounding
    centred[:, flat], lengths[flat] = 0, 0
    if alpha and lengths.max(initial=0) * 1e-13 > lengths[lengths > 0].min(initial=np.inf):
        return (_unlike_units(root * centred, root * (Y - mean), alpha) / root + mean) * unit
    scale = np.where(lengths > 0, lengths, 1) if not alpha else np.ones(len(lengths))  # no penalty knows no units
    U, values, Vt = np.linalg.svd(root * centred / scale, full_matrices=False)
    largest = values.max(initial=0)
    if alpha <= 1e-12 * largest**2 and ((values > 1e-14 * largest) & (values < 1e-3 * largest)).any():
        return None
    # v = V s/(s² + α) Uᵀy: accurate at any penalty, where stacked rows are not
    seen = values > 1e-14 * largest
    with np.errstate(over="ignore"):
        inverse = 1 / (values[seen] * (1 + (np.sqrt(alpha) / values[seen]) ** 2))
    coef = Vt[seen].T @ (inverse[:, None] * (U[:, seen].T @ (root * (Y - mean))))
    return (centred / scale @ coef + mean) * unit


def _unlike_units(X, Y, alpha):
    """Xv of min ‖Xv − Y‖² + α‖v‖² where a column is 1e13 times longer than another, by rows for the penalty below X.

    Every column is of one length there, or the singular values of the others would count as rounding of the long one.
    """
    tall = np.vstack([X, np.sqrt(alpha) * np.eye(X.shape[1])])
    lengths = np.linalg.norm(tall, axis=0)
    right = np.vstack([Y, np.zeros((X.shape[1], Y.shape[1]))])
    return X / lengths @ np.linalg.lstsq(tall / lengths, right, rcond=1e-14)[0]


def kernel_least_squares(model, X, Y, weight, new):
    """f(X) of kernel ridge on the landmarks of a fitted model, (n, c); None where float64 cannot tell."""
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
