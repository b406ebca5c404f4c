"""Models on disk: a zarr group and JSON, never pickle.

    attributes   kind "model", format, and for every step of the pipeline: class (from a closed table), parameters,
                 fitted scalars and labels, and the names, shapes, dtypes and SHA-256 of its arrays
    arrays       "0/landmarks_", … one group of arrays a step, crc32c last

A model keeps its statistics, so that another alpha, more rows (`partial_fit`) or another s cost no sweep of old rows.
Reading a file never runs code: names are looked up in closed tables, and no array is allocated before all fit the cap.
"""

from __future__ import annotations

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
from bigkernel.estimators.file_content import Content, decode, encode
from bigkernel.estimators.fit_state import read_state, write_state
from bigkernel.storage import zarr_arrays
from bigkernel.storage.atomic_write import require_free
from bigkernel.storage.targets import claimed, require_target

FORMAT = 2
LIMIT_BYTES = 2**36  # of all arrays of a model together
_LATER = ("class_weight", "probability")  # parameters that files of before are without
_CLASSES: dict[str, type[BaseEstimator]] = {name: getattr(estimators, name) for name in estimators.__all__}


def save_model(model: Any, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a fitted estimator of bigkernel, or a Pipeline of them; it appears at `path` whole or not at all.

    Raises
    ------
    ConfigError
        A step that is not of bigkernel, or a parameter that cannot be stored.
    sklearn.exceptions.NotFittedError
    DataError
        `path` exists and `overwrite` was not asked, or lies inside a store, or cannot be written.
    PlanTooLarge
        There is too little room for it.
    RunLocked
        Another driver is writing it, as for the whole of `bigkernel fit`.
    """
    require_target(path, "the model")
    named = model.steps if isinstance(model, Pipeline) else [("model", model)]
    stored: dict[str, NDArray[Any]] = {}
    described = []
    for position, (label, step) in enumerate(named):
        name = type(step).__name__
        if _CLASSES.get(name) is not type(step):
            raise ConfigError(f"save_model: {name} is not an estimator of bigkernel; those are {', '.join(_CLASSES)}")
        check_is_fitted(step)
        content = Content(name)
        write_state(step, content)
        described.append(
            {
                "name": label,
                "class": name,
                "params": {key: encode(value, f"{name}.{key}") for key, value in _params(step).items()},
                "fitted": content.values,
                "arrays": {
                    key: {
                        "shape": list(value.shape),
                        "dtype": value.dtype.str,
                        "sha256": zarr_arrays.digest({"": value}),
                    }
                    for key, value in content.arrays.items()
                },
            }
        )
        stored.update({f"{position}.{key}": value for key, value in content.arrays.items()})
    about = {"format": FORMAT, "pipeline": isinstance(model, Pipeline), "steps": described}
    require_free(path, sum(values.nbytes for values in stored.values()), "the model")
    with claimed(path, "the model"):
        zarr_arrays.publish(path, "model", stored, about, overwrite=overwrite)


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


def _read_step(described: Mapping[str, Any], prefix: str, stored: Mapping[str, NDArray[Any]]) -> Any:
    kind = _CLASSES.get(described["class"])
    if kind is None:
        raise ModelRejected(f"unknown class {described['class']!r}")
    known = set(kind._get_param_names())
    params = {str(key): decode(value) for key, value in described["params"].items()}
    defaults = kind().get_params(deep=False) if known - set(params) else {}
    params |= {name: defaults[name] for name in _LATER if name in known - set(params)}
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
    content = Content(kind.__name__, values, dict(described["fitted"]))
    read_state(step, content)
    return step
