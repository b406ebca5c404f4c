"""Models on disk: a zarr group and JSON, never pickle.

    attributes   kind "model", format, and for every step of the pipeline: class (from a closed table), parameters,
                 fitted scalars and labels, and the names, shapes, dtypes and SHA-256 of its arrays
    arrays       "0/landmarks_", … one group of arrays a step, crc32c last

A model keeps its statistics, so that another alpha, more rows (`partial_fit`) or another s cost no sweep of old rows.
Reading a file never runs code: names are looked up in closed tables, and no array is allocated before all fit the cap.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from bigkernel import estimators
from bigkernel.errors import ConfigError, DataError, ModelRejected
from bigkernel.estimators.persistence_checks import require_sound
from bigkernel.estimators.pseudo_label_rounds import PseudoLabelRounds
from bigkernel.kernels.functions import KERNELS, Kernel
from bigkernel.solvers.pseudo_labels import PseudoLabels
from bigkernel.storage import zarr_arrays

FORMAT = 2
LIMIT_BYTES = 2**36  # of all arrays of a model together
_SCALARS = (bool, int, float, str, type(None))
_CLASSES: dict[str, type[BaseEstimator]] = {name: getattr(estimators, name) for name in estimators.__all__}
# fitted attributes that are stored: the closed table of what a model may hold
_ARRAYS = (
    "landmarks_",
    "dual_coef_",
    "eigenvalues_",
    "coef_",
    "shift_",
    "mean_",
    "scale_",
    "training_mse_",
    "target_shift_",
    "sample_weight_",
    "correlations_",
    "fourier_origin_",
    "fourier_mean_",
)
_VALUES = (
    *("n_features_in_", "rank_", "dtype_", "alpha_", "_flat", "_with_intercept", "intercept_"),
    *("fourier_seed_", "image_height_", "image_width_"),
)
_INTEGERS = ("domains_", "source_domains_", "target_domains_", "view_ranks_")  # lists of whole numbers
_STATISTICS = ("rows", "n", "G", "C", "s", "t", "q", "anchors", "degrees")
_PSEUDO = ("sums", "counts")  # of pseudo_labels_, for another solve with them
_VARIANCE = ("features", "components", "features_share", "components_share")  # of distributional_variance_


def save_model(model: Any, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a fitted estimator of bigkernel, or a Pipeline of them; it appears at `path` whole or not at all.

    Raises
    ------
    ConfigError
        A step that is not of bigkernel, or a parameter that cannot be stored.
    sklearn.exceptions.NotFittedError
    DataError
        `path` exists and `overwrite` was not asked.
    """
    named = model.steps if isinstance(model, Pipeline) else [("model", model)]
    stored: dict[str, NDArray[Any]] = {}
    described = []
    for position, (label, step) in enumerate(named):
        name = type(step).__name__
        if _CLASSES.get(name) is not type(step):
            raise ConfigError(f"save_model: {name} is not an estimator of bigkernel; those are {', '.join(_CLASSES)}")
        check_is_fitted(step)
        fitted = _fitted_arrays(step)
        described.append(
            {
                "name": label,
                "class": name,
                "params": {key: _encode(value, f"{name}.{key}") for key, value in _params(step).items()},
                "fitted": _fitted_values(step),
                "arrays": {
                    key: {
                        "shape": list(value.shape),
                        "dtype": value.dtype.str,
                        "sha256": zarr_arrays.digest({"": value}),
                    }
                    for key, value in fitted.items()
                },
            }
        )
        stored.update({f"{position}.{key}": value for key, value in fitted.items()})
    zarr_arrays.publish(
        path,
        "model",
        stored,
        {"format": FORMAT, "pipeline": isinstance(model, Pipeline), "steps": described},
        overwrite=overwrite,
    )


def load_model(path: str | os.PathLike[str], *, limit_bytes: int = LIMIT_BYTES) -> Any:
    """Read a model back: the same estimator, or Pipeline.

    Raises
    ------
    ModelRejected
        Damaged, of another format, naming what is not in our tables, or claiming more than `limit_bytes`.
    DataError
        There is nothing at `path`.
    """
    if not os.path.exists(path):
        raise DataError(f"{path}: expected a model, but the path does not exist")
    try:
        stored, attributes = zarr_arrays.read_group(path, "model", limit_bytes=limit_bytes)
        if attributes.get("format") != FORMAT:
            raise ModelRejected(
                f"model of format {attributes.get('format')!r}, this version reads {FORMAT}; fit it again"
            )
        steps = [_read_step(step, f"{i}.", stored) for i, step in enumerate(attributes["steps"])]
        if not steps:
            raise ModelRejected("it has no step")
        expected = {f"{i}.{name}" for i, step in enumerate(attributes["steps"]) for name in step["arrays"]}
        names = [step["name"] for step in attributes["steps"]]
        if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
            raise ModelRejected(f"its steps must have different names, found {names}")
        if expected != set(stored):
            raise ModelRejected(f"arrays {sorted(expected ^ set(stored))[:3]} do not belong to it or are missing")
    except ModelRejected as error:
        raise ModelRejected(f"{path}: {error}") from None
    except (
        DataError,
        ConfigError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        RecursionError,
        MemoryError,
    ) as error:
        where = "" if str(error).startswith(os.path.abspath(path)) else f"{path}: "
        raise ModelRejected(f"{where}not a sound model: {error}") from error
    if attributes.get("pipeline"):
        return Pipeline(list(zip(names, steps, strict=True)))
    return steps[0]


def _params(step: BaseEstimator) -> dict[str, Any]:
    params: dict[str, Any] = step.get_params(deep=False)
    if not isinstance(params.get("landmarks", ""), str):
        params["landmarks"] = "given"  # they are stored as landmarks_
    seed = params.get("random_state")
    if "random_state" in params:
        params["random_state"] = int(seed) if isinstance(seed, Integral) else None  # the draw is over
    return params


def _encode(value: Any, where: str) -> Any:
    if isinstance(value, Kernel):
        params = {key: _encode(item, f"{where}.{key}") for key, item in value.get_params().items()}
        return {"kernel": value.name, "params": params}
    if isinstance(value, np.ndarray | list | tuple) and np.ndim(value) == 1:
        return [_encode(item, where) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, _SCALARS) and not (isinstance(value, float) and not math.isfinite(value)):
        return value
    raise ConfigError(f"save_model: {where} = {value!r} cannot be stored")


def _decode(value: Any) -> Any:
    if isinstance(value, dict):
        if value.get("kernel") not in KERNELS or not isinstance(value.get("params"), dict):
            raise ModelRejected(f"unknown kernel {value.get('kernel')!r}")
        params = {str(key): _decode(item) for key, item in value["params"].items()}
        lengths = {key: np.array([float(one) for one in item]) for key, item in params.items() if type(item) is tuple}
        return KERNELS[value["kernel"]](**params | lengths)
    if isinstance(value, list):
        if any(isinstance(item, list | dict) for item in value):
            raise ModelRejected("unexpected value: a list of more than numbers and words")
        return tuple(_decode(item) for item in value)
    if not isinstance(value, _SCALARS):
        raise ModelRejected(f"unexpected value of type {type(value).__name__}")
    return value


def _fitted_arrays(step: Any) -> dict[str, NDArray[Any]]:
    found = {name: np.asarray(getattr(step, name)) for name in _ARRAYS if hasattr(step, name)}
    if isinstance(getattr(step, "intercept_", None), np.ndarray):
        found["intercept_"] = step.intercept_
    if hasattr(step, "statistics_"):
        found.update({f"statistics.{name}": np.asarray(values) for name, values in step.statistics_.items()})
    labels = getattr(step, "pseudo_labels_", None)
    if labels is not None:
        found.update({f"pseudo.{name}": np.asarray(getattr(labels, name)) for name in _PSEUDO})
    return found


def _fitted_values(step: Any) -> dict[str, Any]:
    values = {}
    for name in _VALUES:
        value = getattr(step, name, None)
        if value is not None and not isinstance(value, np.ndarray):
            values[name] = _encode(value, name)
    for name in _INTEGERS:
        if hasattr(step, name):
            values[name] = [int(item) for item in getattr(step, name)]
    if hasattr(step, "distributional_variance_"):
        values["distributional_variance_"] = {
            name: _encode(step.distributional_variance_[name], name) for name in _VARIANCE
        }
    if hasattr(step, "classes_"):
        values["classes_"] = step.classes_.tolist()
        values["classes_dtype"] = step.classes_.dtype.kind
    if hasattr(step, "kernel_"):
        values["kernel_"] = _encode(step.kernel_, "kernel_")
    if hasattr(step, "feature_names_in_"):
        values["feature_names_in_"] = [str(name) for name in step.feature_names_in_]
    return values


def _read_step(described: Mapping[str, Any], prefix: str, stored: Mapping[str, NDArray[Any]]) -> Any:
    kind = _CLASSES.get(described["class"])
    if kind is None:
        raise ModelRejected(f"unknown class {described['class']!r}")
    known = set(kind._get_param_names())
    params = {str(key): _decode(value) for key, value in described["params"].items()}
    if set(params) != known:
        raise ModelRejected(f"{kind.__name__}: parameters {sorted(set(params) ^ known)} are unknown or missing")
    values = {}
    for name, expected in described["arrays"].items():
        array = stored[prefix + name]
        if list(array.shape) != expected["shape"] or array.dtype.str != expected["dtype"]:
            raise ModelRejected(f"array {name}: shape or dtype differs from what its description says")
        if zarr_arrays.digest({"": array}) != expected["sha256"]:
            raise ModelRejected(f"array {name}: its SHA-256 differs from what its description says")
        if array.dtype.kind != "f" or not np.isfinite(array).all():
            raise ModelRejected(f"array {name}: expected finite numbers")
        values[name] = array
    if params.get("landmarks") == "given":
        params["landmarks"] = values.get("landmarks_")
    step = kind(**params)
    step._validate_params()
    statistics = {name: values.pop(f"statistics.{name}") for name in _STATISTICS if f"statistics.{name}" in values}
    pseudo = {name: values.pop(f"pseudo.{name}") for name in _PSEUDO if f"pseudo.{name}" in values}
    unknown = sorted(set(values) - {*_ARRAYS, "intercept_"})
    if unknown:
        raise ModelRejected(f"unknown array {unknown[0]!r}")
    for name, value in _read_values(described["fitted"]).items():
        setattr(step, name, value)
    for name, value in values.items():
        setattr(step, name, value)
    if statistics:
        step.statistics_ = statistics
    if isinstance(step, PseudoLabelRounds):
        step.pseudo_labels_ = PseudoLabels(pseudo["sums"], pseudo["counts"]) if pseudo else None
    elif pseudo:
        raise ModelRejected(f"{kind.__name__}: has no pseudo-labels")
    require_sound(step)
    return step


def _read_values(fitted: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in fitted.items():
        if name == "classes_":
            values[name] = np.asarray(value, dtype=None if fitted.get("classes_dtype") != "U" else str)
            if values[name].ndim != 1 or values[name].dtype.kind not in "biufU":
                raise ModelRejected("classes_: expected a list of labels")
        elif name == "kernel_":
            values[name] = _decode(value)
        elif name == "feature_names_in_":
            values[name] = np.asarray([str(item) for item in value], dtype=object)
        elif name in _INTEGERS:
            if not isinstance(value, list) or not all(type(item) is int and abs(item) < 2**63 for item in value):
                raise ModelRejected(f"{name}: expected a list of whole numbers")
            values[name] = tuple(value) if name == "view_ranks_" else np.array(value, np.int64)
        elif name == "distributional_variance_":
            if not isinstance(value, dict) or set(value) != set(_VARIANCE):
                raise ModelRejected(f"{name}: expected the numbers {', '.join(_VARIANCE)}")
            values[name] = {key: float(item) for key, item in value.items()}
        elif name in _VALUES:
            values[name] = _decode(value)
        elif name != "classes_dtype":
            raise ModelRejected(f"unknown fitted value {name!r}")
    return values
