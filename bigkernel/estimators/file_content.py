"""Contents of a model file: arrays and, as JSON, numbers, words, lists of them, and kernels by their names."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.errors import ConfigError, ModelRejected
from bigkernel.kernels.algebra import Kernel
from bigkernel.kernels.functions import STORED

Array = NDArray[Any]
_SCALARS = (bool, int, float, str, type(None))
_DEEPEST = 32  # kernels inside one another


@dataclass
class Content:
    """The part of a file that is one estimator's; reading takes entries out, writing puts them in.

    Attributes
    ----------
    owner : name of the class, for messages
    arrays, values : by name
    sizes : of the axes that were met
    flat : numbers that are targets are one column
    """

    owner: str
    arrays: dict[str, Array] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    flat: bool | None = None

    def refuse(self, message: str) -> ModelRejected:
        """An error that names the class."""
        return ModelRejected(f"{self.owner}: {message}")

    def size(self, axis: str) -> int | None:
        """The size of an axis, None where it was not met; "m/2" is half of m."""
        whole, _, part = axis.partition("/")
        size = self.sizes.get(whole)
        if part and size is not None:
            if size % 2:
                raise self.refuse("landmarks_ must be those of two views of one size")
            return size // 2
        return size


def encode(value: Any, where: str) -> Any:
    """A parameter or a fitted value as JSON; `ConfigError` where it cannot be."""
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


def decode(value: Any, depth: int = 0) -> Any:
    """The value of `encode`; `ModelRejected` where it is none. `depth`: kernels that it is inside of."""
    if isinstance(value, dict) and set(value) == {"keys", "values"}:
        if not all(isinstance(part, list) for part in value.values()):
            raise ModelRejected("unexpected value: a table of something else than lists")
        keys, items = decode(value["keys"]), decode(value["values"])
        if not len(keys) == len(items) == len(set(keys)):
            raise ModelRejected("unexpected value: a table whose keys and values do not belong together")
        return dict(zip(keys, items, strict=True))
    if isinstance(value, dict):
        if depth > _DEEPEST:
            raise ModelRejected(f"a kernel of kernels more than {_DEEPEST} deep")
        if value.get("kernel") not in STORED or not isinstance(value.get("params"), dict):
            raise ModelRejected(f"unknown kernel {value.get('kernel')!r}")
        params = {str(key): decode(item, depth + 1) for key, item in value["params"].items()}
        lengths = {key: np.array([float(one) for one in item]) for key, item in params.items() if type(item) is tuple}
        return STORED[value["kernel"]](**params | lengths)
    if isinstance(value, list):
        if any(isinstance(item, list | dict) for item in value):
            raise ModelRejected("unexpected value: a list of more than numbers and words")
        return tuple(decode(item) for item in value)
    if not isinstance(value, _SCALARS):
        raise ModelRejected(f"unexpected value of type {type(value).__name__}")
    return value
