"""What a fitted step of a model file must hold: shapes and values that go together, so that no later call fails midway.

One function a family of estimators. Shapes: m landmarks (or the n rows of an exact fit), d features, c targets.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_classifier

from bigkernel.errors import ModelRejected
from bigkernel.estimators import DICA, KernelRidge, Nystroem, RandomFourier, Rescaler, Standardizer, UnitNormalizer
from bigkernel.estimators.domain_base import DomainedTransformer
from bigkernel.estimators.image_transforms import _ImageTransformer
from bigkernel.estimators.linear import _Linear
from bigkernel.estimators.moment_estimator import LandmarkEstimator
from bigkernel.estimators.pseudo_label_rounds import PseudoLabelRounds, SidedEstimator
from bigkernel.estimators.xnv import _XNV
from bigkernel.kernels.functions import Kernel

Array = NDArray[Any]
FREQUENCY_BYTES = 2**33  # of the random frequencies that a model may ask for


def require_sound(step: Any) -> None:
    """Raise `ModelRejected`, naming the class and the attribute, unless a step can be used as one that was fitted."""
    d = _whole(step, "n_features_in_")
    if isinstance(step, Rescaler | UnitNormalizer):
        return
    if isinstance(step, Standardizer):
        _require(step, mean_=(d,), scale_=(d,))
        if not (step.scale_ > 0).all():
            raise ModelRejected("Standardizer: scale_ must be above 0")
        return
    if isinstance(step, _ImageTransformer):
        height, width = _whole(step, "image_height_"), _whole(step, "image_width_")
        if not height * width or height * width != d:
            raise ModelRejected(f"{type(step).__name__}: images of {height}×{width} pixels are no rows of {d} features")
        step._row_map()
        return
    if isinstance(step, RandomFourier):
        _require_kernel(step)
        _require_frequencies(step, d, int(step.n_components))
        step._row_map()
        return
    if isinstance(step, _Linear):
        coef = np.atleast_2d(getattr(step, "coef_", np.zeros((0, 0)))).T
        _require_coefficients(step, coef, d)
        _require(step, shift_=(d,))
        columns = d
    else:
        columns, coef = _kernel_machine(step, d)
    if isinstance(step, Nystroem):
        return
    if isinstance(step, DomainedTransformer):
        _require(step, eigenvalues_=(coef.shape[1],))
    else:
        _require_labels(step, coef.shape[1])
    if isinstance(step, KernelRidge) and not isinstance(getattr(step, "_with_intercept", None), bool):
        raise ModelRejected("KernelRidge: _with_intercept must say whether it has one")
    _require_statistics(step, columns, coef.shape[1])


def _kernel_machine(step: Any, d: int) -> tuple[int, Array]:
    """Landmarks or frequencies, kernel and coefficients; how many columns the map has, and coefficients (·, c)."""
    coef = getattr(step, "dual_coef_", np.zeros((0, 0)))
    coef = coef[:, None] if coef.ndim == 1 else coef
    _whole(step, "rank_")
    if getattr(step, "dtype_", None) not in ("float32", "float64"):
        raise ModelRejected(f"{type(step).__name__}: dtype_ must be float32 or float64")
    kernel = _require_kernel(step)
    if step._fourier:
        size = int(step.n_landmarks)
        _require(step, fourier_mean_=(size,))
        _require_frequencies(step, d, size)
        step._features()
    else:
        size = len(getattr(step, "landmarks_", ()))
        _require(step, landmarks_=(size, d))
        kernel.resolve(step.landmarks_)
    if isinstance(step, _XNV):
        if size % 2:
            raise ModelRejected(f"{type(step).__name__}: landmarks_ must be those of two views of one size")
        _require(step, correlations_=(step.rank_,))
        if len(getattr(step, "view_ranks_", ())) != 2:
            raise ModelRejected(f"{type(step).__name__}: view_ranks_ must be two whole numbers")
    _require_coefficients(step, coef, size // 2 if isinstance(step, _XNV) else size)
    if isinstance(step, LandmarkEstimator):
        _require_penalty(step, size)
    return size, coef


def _require_kernel(step: Any) -> Kernel:
    kernel = getattr(step, "kernel_", None)
    if not isinstance(kernel, Kernel) or {"scale", "median"} & set(map(str, kernel.get_params().values())):
        raise ModelRejected(f"{type(step).__name__}: kernel_ must be a kernel with every parameter a number, as sigma")
    return kernel


def _require_frequencies(step: Any, d: int, count: int) -> None:
    """A seed and an origin, and frequencies that can be made."""
    _whole(step, "fourier_seed_")
    _require(step, fourier_origin_=(d,))
    if 8 * d * count > FREQUENCY_BYTES:
        raise ModelRejected(
            f"{type(step).__name__}: {count:,} random features of {d:,} would take {8e-9 * d * count:,.0f} GB, more "
            f"than {FREQUENCY_BYTES / 1e9:,.0f} GB"
        )


def _require_penalty(step: Any, size: int) -> None:
    alpha = getattr(step, "alpha_", None)
    if not isinstance(alpha, float) or not 0 <= alpha < math.inf:
        raise ModelRejected(f"{type(step).__name__}: alpha_ must be a number of at least 0, found {alpha!r}")
    weight = getattr(step, "sample_weight_", None)
    if weight is not None and (weight.shape != (size,) or not (weight >= 0).all() or not weight.any()):
        raise ModelRejected(f"{type(step).__name__}: sample_weight_ must be {size} numbers of at least 0")


def _require_coefficients(step: Any, coef: Array, size: int) -> None:
    """Coefficients (size, c) and an intercept (c,), c ≥ 1."""
    c = coef.shape[1]
    if coef.shape != (size, c) or not c or not size:
        raise ModelRejected(
            f"{type(step).__name__}: the shape of its coefficients (dual_coef_, coef_) is missing or wrong"
        )
    intercept = np.asarray(getattr(step, "intercept_", None))
    if intercept.dtype.kind != "f" or intercept.size != c or not np.isfinite(intercept).all():
        raise ModelRejected(f"{type(step).__name__}: intercept_ must be {c} finite numbers")


def _require_labels(step: Any, c: int) -> None:
    """Classes, or how numbers were targets."""
    if is_classifier(step):
        labels = getattr(step, "classes_", np.zeros(0))
        if len(labels) != c or len(np.unique(labels)) != c:
            raise ModelRejected(f"{type(step).__name__}: classes_ must be {c} different labels")
        return
    if not isinstance(getattr(step, "_flat", None), bool) or (step._flat and c != 1):
        raise ModelRejected(f"{type(step).__name__}: _flat must say whether targets are one column")
    _require(step, target_shift_=(c,))


def _require_statistics(step: Any, size: int, c: int) -> None:
    """The moments that `refit` and `partial_fit` go on from."""
    statistics = getattr(step, "statistics_", None)
    if statistics is None:
        if isinstance(step, _Linear) or not step._exact:
            raise ModelRejected(f"{type(step).__name__}: the statistics of its fit are missing")
        return
    g = 2 if getattr(step, "_unlabelled", "drop") == "keep" else 1
    classes = getattr(step, "classes_", ())
    if isinstance(step, DICA):  # targets are the cells of its domains and classes
        c = len(getattr(step, "domains_", ())) * (len(classes) + 1)
    elif isinstance(step, SidedEstimator):
        c = len(classes)
    wanted = {
        "rows": (g,),
        "n": (g,),
        "G": (g, size, size),
        "C": (g, size, c),
        "s": (g, size),
        "t": (g, c),
        "q": (g, c),
    }
    found = {name: values.shape for name, values in statistics.items()}
    if isinstance(step, SidedEstimator) and "anchors" in found:
        wanted |= {"anchors": (size, size), "degrees": (size,)}
    if found != wanted:
        raise ModelRejected(f"{type(step).__name__}: the shapes of its statistics do not fit its coefficients")
    labels = step.pseudo_labels_ if isinstance(step, PseudoLabelRounds) else None
    if labels is not None and (labels.sums.shape != (size, c) or labels.counts.shape != (c,)):
        raise ModelRejected(f"{type(step).__name__}: the shapes of its pseudo-labels do not fit its statistics")


def _whole(step: Any, name: str) -> int:
    value = getattr(step, name, None)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ModelRejected(f"{type(step).__name__}: {name} must be a whole number, found {value!r}")
    return value


def _require(step: Any, **shapes: tuple[int, ...]) -> None:
    for name, shape in shapes.items():
        if not hasattr(step, name):
            raise ModelRejected(f"{type(step).__name__}: {name} is missing")
        found = np.shape(getattr(step, name))
        if found != shape:
            raise ModelRejected(f"{type(step).__name__}: {name} must have the shape {shape}, found {found}")
