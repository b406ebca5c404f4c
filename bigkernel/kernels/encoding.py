"""Values of model files as JSON: numbers, strings, lists and tables of them, and kernels by name."""

from __future__ import annotations

import math

import numpy as np

from bigkernel.errors import ConfigError, ModelRejectedError
from bigkernel.kernels.algebra import Kernel
from bigkernel.kernels.functions import STORED

_SCALARS = (bool, int, float, str, type(None))
_DEEPEST = 32  # kernels inside one another


def encode(value: object, where: str) -> object:
    """Encode a parameter or fitted value as JSON; raise `ConfigError` if that is impossible."""
    if isinstance(value, Kernel):
        params = {key: encode(item, f"{where}.{key}") for key, item in value.get_params(deep=False).items()}
        return {"kernel": value.name, "params": params}
    if isinstance(value, dict):
        return {
            "keys": [encode(key, where) for key in value],
            "values": [encode(item, where) for item in value.values()],
        }
    if isinstance(value, np.ndarray | list | tuple | range) and np.ndim(value) == 1:
        return [encode(item, where) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, _SCALARS) and not (isinstance(value, float) and not math.isfinite(value)):
        return value
    raise ConfigError(f"save_model: {where} = {value!r} cannot be stored")


def decode(value: object, depth: int = 0) -> object:
    """Decode a result of `encode`, at nesting `depth` of kernels; raise `ModelRejectedError` for anything else."""
    if isinstance(value, dict) and set(value) == {"keys", "values"}:
        if not all(isinstance(one, list) for one in value.values()):
            raise ModelRejectedError("expected a table of lists")
        keys, items = decode(value["keys"]), decode(value["values"])
        assert isinstance(keys, tuple)
        assert isinstance(items, tuple)
        if not len(keys) == len(items) == len(set(keys)):
            raise ModelRejectedError("expected a table with as many keys as values")
        return dict(zip(keys, items, strict=True))
    if isinstance(value, dict):
        if depth > _DEEPEST:
            raise ModelRejectedError(f"kernels nested more than {_DEEPEST} deep")
        if value.get("kernel") not in STORED or not isinstance(value.get("params"), dict):
            raise ModelRejectedError(f"unknown kernel {value.get('kernel')!r}")
        params = {str(key): decode(item, depth + 1) for key, item in value["params"].items()}
        lengths = {key: np.array([float(one) for one in item]) for key, item in params.items() if type(item) is tuple}
        return STORED[value["kernel"]](**params | lengths)
    if isinstance(value, list):
        if any(isinstance(item, list | dict) for item in value):
            raise ModelRejectedError("expected a list of numbers and strings")
        return tuple(decode(item) for item in value)
    if not isinstance(value, _SCALARS):
        raise ModelRejectedError(f"unexpected value of type {type(value).__name__}")
    return value
