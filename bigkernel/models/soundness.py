"""Whether the parts of a fit that a file holds belong together: shapes, labels, kernels, penalties."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from bigkernel.errors import DataError, ModelRejected
from bigkernel.estimators.kernel_basis import FourierBasis, LandmarkBasis, require_frequencies
from bigkernel.estimators.random_fourier import RandomFourier
from bigkernel.kernels.functions import SCALES
from bigkernel.solvers.accuracy import VECTORS

MOST_FEATURES = 2**27


def require_fit(step: Any, fit: Any) -> None:
    """Raise `ModelRejected` where the shapes of a fit differ from those that belong to it."""
    basis, solution, inputs, p, d = fit.basis, fit.solution, fit.inputs, fit.basis.width, fit.inputs.n_features
    c = solution.coef.shape[-1]
    columns = p // 2 if hasattr(solution, "view_ranks") else p
    wanted: dict[str, tuple[Any, tuple[int, ...]]] = {
        "coefficients": (solution.coef, (columns, c)),
        "intercept": (solution.intercept, (c,)),
        "training errors": (getattr(solution, "training_mse", None), (c,)),
        "landmarks": (vars(basis).get("landmarks"), (p, d)),
        "origin": (vars(basis).get("origin"), (d,)),
        "mean of the features": (vars(basis).get("mean"), (p,)),
        "point that rows are summed about": (vars(basis).get("shift"), (p,)),
        "centre": (getattr(fit, "centre", None), (p,)),
        "weights of rows": (getattr(fit, "weight", None), (p,)),
        "shift of the targets": (inputs.target_shift, (c,)),
        "names of the features": (inputs.feature_names, (d,)),
        **_statistics(fit, p),
    }
    for name, (array, shape) in wanted.items():
        if array is not None and array.shape != shape:
            raise ModelRejected(f"{type(step).__name__}: {name} must have the shape {shape}, found {array.shape}")
    triangle = getattr(fit, "triangle", None)
    if triangle is not None and (triangle.ndim != 2 or triangle.shape[0] != triangle.shape[1]):
        raise ModelRejected(f"{type(step).__name__}: the triangle of its rows is not square")
    _require_basis(step, basis, d)
    classes = inputs.classes
    if classes is not None and (classes.ndim != 1 or len(set(classes.tolist())) < len(classes)):
        raise ModelRejected(f"{type(step).__name__}: expected different labels")
    if is_classifier(step) and (classes is None or len(classes) != c):
        raise ModelRejected(f"{type(step).__name__}: expected {c} different labels")
    if hasattr(step, "predict") and getattr(fit, "statistics", None) and fit.statistics["C"].shape[-1] != c:
        raise ModelRejected(f"{type(step).__name__}: its statistics are of other targets")
    kind: Any = step._method().solution_type if hasattr(step, "_method") else object
    if (inputs.flat and c != 1) or not isinstance(solution, kind):
        raise ModelRejected(f"{type(step).__name__}: its solution is of another kind")
    alpha, weight = np.asarray(solution.alpha), getattr(fit, "weight", None)
    if alpha.dtype.kind not in "iuf" or alpha.shape not in ((), (c,)) or not (alpha >= 0).all():
        raise ModelRejected(f"{type(step).__name__}: its penalty must be a number of at least 0")
    if weight is not None and not ((weight >= 0).all() and weight.any()):
        raise ModelRejected(f"{type(step).__name__}: weights of rows must be at least 0")


def _statistics(fit: Any, p: int) -> dict[str, tuple[Any, tuple[int, ...]]]:
    """Return the sums of a fit, each with the shape that belongs to it."""
    sums = getattr(fit, "statistics", None)
    if sums is None:
        return {}
    groups, targets = len(sums["rows"]), sums["C"].shape[-1]
    shapes: dict[str, tuple[int, ...]] = {
        **{"rows": (groups,), "n": (groups,), "G": (groups, p, p), "C": (groups, p, targets), "s": (groups, p)},
        **{"t": (groups, targets), "q": (groups, targets), "anchors": (p, p), "degrees": (p,)},
        **{"E": (groups, p, VECTORS), "seen": (groups,)},
    }
    if not {"rows", "n", "G", "C", "s", "t", "q"} <= set(sums) <= set(shapes):
        raise ModelRejected(f"unknown or missing statistics among {sorted(sums)}")
    found = {f"statistics {name}": (values, shapes[name]) for name, values in sums.items()}
    labels = fit.pseudo_labels
    if labels is not None:
        k = len(fit.inputs.classes)
        found |= {"pseudo-labels": (labels.sums, (p, k)), "counts of pseudo-labels": (labels.counts, (k,))}
    return found


def _require_basis(step: Any, basis: Any, d: int) -> None:
    """Raise unless the kernel is made of numbers that serve rows of d features."""
    if not 1 <= d <= MOST_FEATURES:
        raise ModelRejected(f"{type(step).__name__}: rows of {d:,} features")
    kernel = getattr(basis, "kernel", None)
    if kernel is not None and {"median", *SCALES} & {str(value) for value in kernel.get_params().values()}:
        raise ModelRejected(f"{type(step).__name__}: expected a kernel with every parameter a number, as sigma")
    if isinstance(basis, LandmarkBasis):
        basis.kernel.resolve(basis.landmarks)  # refuses parameters of other rows
    if isinstance(basis, FourierBasis):
        require_frequencies(type(step).__name__, d, basis.width)
    if isinstance(basis, LandmarkBasis | FourierBasis):
        if basis.dtype not in ("float32", "float64") or basis.sums not in (None, "float32", "float64"):
            raise ModelRejected(f"{type(step).__name__}: expected float32 or float64, found {basis.dtype!r}")
        basis.features()  # refuses kernels without frequencies


def try_step(step: Any) -> None:
    """Raise where a step cannot be used on a row of zeros; a row that is out of its range tells nothing."""
    d = step.n_features_in_
    if not isinstance(d, int) or not 1 <= d <= MOST_FEATURES:
        raise ModelRejected(f"{type(step).__name__}: rows of {d!r} features")
    if isinstance(step, RandomFourier):
        require_frequencies(type(step).__name__, d, int(step.n_components))
    if hasattr(step, "_row_map"):
        step._row_map().width(d)
    elif not hasattr(step, "_fitted"):
        with suppress(DataError), np.errstate(all="ignore"):
            if not np.isfinite(step.transform(np.zeros((1, d)))).all():
                raise ModelRejected(f"{type(step).__name__}: it makes no numbers of a row of zeros")
