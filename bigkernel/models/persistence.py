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
from sklearn.base import BaseEstimator, clone
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from bigkernel import estimators
from bigkernel.data import zarr_arrays
from bigkernel.data.atomic_write import require_free
from bigkernel.data.targets import claimed, require_target
from bigkernel.errors import ConfigError, DataError, ModelRejected
from bigkernel.estimators.file_content import Content
from bigkernel.estimators.fit_state import read_state, write_state
from bigkernel.estimators.plain_steps import STEPS, as_plain_step
from bigkernel.kernels.encoding import decode, encode

FORMAT = 2
LIMIT_BYTES = 2**36  # of all arrays of a model together
_LATER = (  # parameters that files of before are without
    *("class_weight", "probability", "manifold", "n_neighbors"),
    *("cells", "directions", "blur", "power"),
)
_CLASSES: dict[str, type[BaseEstimator]] = {name: getattr(estimators, name) for name in estimators.__all__} | STEPS


def save_model(model: Any, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a fitted estimator of bigkernel, or a Pipeline of them; it appears at `path` whole or not at all.

    Steps before them may be transformers of scikit-learn whose fit is plain numbers: StandardScaler, MinMaxScaler,
    MaxAbsScaler, RobustScaler, Normalizer, QuantileTransformer, PCA, TruncatedSVD and VarianceThreshold.

    Raises
    ------
    ConfigError
        Another step, or a parameter that cannot be stored.
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
    described = [{"name": label, **_describe(step, f"{i}.", stored)} for i, (label, step) in enumerate(named)]
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
        expected = {name for i, step in enumerate(attributes["steps"]) for name in _arrays(step, f"{i}.")}
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


def _describe(step: Any, prefix: str, stored: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """What a file says of a fitted step, whose arrays join `stored`; those of the transforms of a union after it."""
    name = _require_known(step)
    content = Content(name)
    if name in STEPS:
        check_is_fitted(step, "n_features_in_")
        write_state(as_plain_step(step), content)
    else:
        check_is_fitted(step)
        write_state(step, content)
    stored.update({f"{prefix}{key}": value for key, value in content.arrays.items()})
    arrays = {
        key: {"shape": list(value.shape), "dtype": value.dtype.str, "sha256": zarr_arrays.digest({"": value})}
        for key, value in content.arrays.items()
    }
    params = {key: encode(value, f"{name}.{key}") for key, value in _params(step).items()}
    parts = [
        {
            "name": label,
            "pipeline": isinstance(part, Pipeline),
            "steps": [
                {"name": inner, **_describe(one, f"{prefix}{i}.{j}.", stored)} for j, (inner, one) in enumerate(steps)
            ],
        }
        for i, (label, part, steps) in enumerate(_parts(step))
    ]
    described = {"class": name, "params": params, "fitted": content.values, "arrays": arrays}
    return {**described, "parts": parts} if parts else described


def _parts(step: Any) -> list[tuple[str, Any, list[tuple[str, Any]]]]:
    """Of a union the name, the fitted transform and its steps by name; of others nothing."""
    if not isinstance(step, estimators.RowUnion):
        return []
    named = [(name, part) for (name, _), part in zip(step.transformer_list, step.transformers_, strict=True)]
    return [(name, part, part.steps if isinstance(part, Pipeline) else [(name, part)]) for name, part in named]


def _arrays(described: Mapping[str, Any], prefix: str) -> list[str]:
    """Names of all arrays that belong to a step."""
    inner = [
        name
        for i, part in enumerate(described.get("parts", ()))
        for j, one in enumerate(part["steps"])
        for name in _arrays(one, f"{prefix}{i}.{j}.")
    ]
    return [*(f"{prefix}{name}" for name in described["arrays"]), *inner]


def _read_parts(parts: Any, prefix: str, stored: Mapping[str, NDArray[Any]]) -> list[tuple[str, Any]]:
    """The fitted transforms of a union by name."""
    found = []
    for i, part in enumerate(parts):
        steps = [
            (str(one["name"]), _read_step(one, f"{prefix}{i}.{j}.", stored)) for j, one in enumerate(part["steps"])
        ]
        if not steps or (len(steps) > 1 and not part["pipeline"]):
            raise ModelRejected("a transform of a union must be one, or a pipeline of some")
        found.append((str(part["name"]), Pipeline(steps) if part["pipeline"] else steps[0][1]))
    return found


def _require_known(step: Any) -> str:
    """The name of the class of a step in model files; `ConfigError` where it has none."""
    name = next((name for name, kind in _CLASSES.items() if kind is type(step)), None)
    if name is None:
        raise ConfigError(
            f"save_model: {type(step).__name__} is neither an estimator of bigkernel nor a step that it stores; those "
            f"are {', '.join(_CLASSES)}. joblib.dump or skops.io.dump store any Pipeline; load such a file only from "
            "whom you trust"
        )
    return name


def _params(step: BaseEstimator) -> dict[str, Any]:
    params: dict[str, Any] = step.get_params(deep=False)
    params.pop("transformer_list", None)  # its transforms are stored as parts
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
    parts = _read_parts(described.get("parts", ()), prefix, stored)
    if kind is estimators.RowUnion:
        params["transformer_list"] = [(name, clone(part)) for name, part in parts]
    defaults = kind().get_params(deep=False) if known - set(params) else {}
    later = known if described["class"] in STEPS else _LATER  # another scikit-learn may have had fewer
    params |= {name: defaults[name] for name in later if name in known - set(params)}
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
    if parts:
        step.transformers_ = [part for _, part in parts]
    content = Content(kind.__name__, values, dict(described["fitted"]))
    read_state(as_plain_step(step) if described["class"] in STEPS else step, content)
    return step
