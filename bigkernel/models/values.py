"""Frozen dataclasses as JSON and arrays: their fields by name, with all that is inside them.

A field of `metadata={"stored": False}` is left out. Names of classes are looked up in a closed table, and what is read
has exactly the fields of its class, each of the type that it is annotated with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.errors import ConfigError, ModelRejected
from bigkernel.kernels.algebra import Kernel
from bigkernel.kernels.encoding import decode, encode
from bigkernel.models.file import DTYPES, HEADER_BYTES, Contents

Array = NDArray[Any]
Kinds = Callable[[str], type[Any] | None]  # what a name in a file stands for
_LARGEST = float(np.finfo(np.float64).max)
_LABELS = "biuf"  # kinds of labels that are no text
_TYPES: dict[str, tuple[type[Any], ...]] = {
    "int": (Integral,),
    "float": (Real,),
    "bool": (bool, np.bool_),
    "str": (str,),
    "None": (type(None),),
    "Array": (np.ndarray,),
    "Kernel": (Kernel,),
    "np.dtype": (np.dtype,),
    "tuple": (tuple,),
    "Mapping": (dict,),
    "Accumulator": (dict,),
}


@dataclass
class Packing:
    """Values on their way to a file: what is an array is taken out, once, under the name of the first that has it."""

    kinds: Kinds
    arrays: dict[str, Array] = field(default_factory=dict)
    _names: dict[int, tuple[str, Array]] = field(default_factory=dict)

    def pack(self, value: Any, path: str) -> Any:
        """Return the value as JSON.

        Raises
        ------
        ConfigError
            It, or something in it, cannot be stored; names it.
        """
        if isinstance(value, np.ndarray):
            return self._array(value, path)
        if isinstance(value, np.generic):
            return {"number": encode(value, path), "dtype": value.dtype.str}
        if isinstance(value, np.dtype):
            return {"dtype": value.name}
        if isinstance(value, tuple | list):
            return [self.pack(item, f"{path}.{i}") for i, item in enumerate(value)]
        if isinstance(value, Mapping):
            return {"table": {str(key): self.pack(item, f"{path}.{key}") for key, item in value.items()}}
        if is_dataclass(value) and not isinstance(value, Kernel):
            name = type(value).__name__
            if self.kinds(name) is not type(value):
                raise ConfigError(f"save_model: {path} is a {name}, which no file holds")
            held = {one.name: getattr(value, one.name) for one in stored_fields(type(value))}
            return {"is": name, "fields": {key: self.pack(item, f"{path}.{key}") for key, item in held.items()}}
        return encode(value, path)

    def _array(self, value: Array, path: str) -> Any:
        if value.dtype not in DTYPES.values():
            return {"labels": value.tolist(), "dtype": value.dtype.str}
        columns = value.flags.f_contiguous and not value.flags.c_contiguous  # products of another order differ
        if id(value) not in self._names:
            lying = np.ascontiguousarray(value.T if columns else value)
            self.arrays[path] = lying.reshape(value.T.shape if columns else value.shape)
            self._names[id(value)] = path, value
        name = self._names[id(value)][0]
        return {"array": name, "order": "F"} if columns else {"array": name}


def unpack(said: Any, kinds: Kinds, contents: Contents) -> Any:
    """Return the value of `Packing.pack`; `ModelRejected` where it is none."""
    if isinstance(said, list):
        return tuple(unpack(item, kinds, contents) for item in said)
    if not isinstance(said, dict):
        return decode(said)
    names = set(said)
    if names == {"array"}:
        return contents.array(said["array"])
    if names == {"array", "order"} and said["order"] == "F":
        return contents.array(said["array"]).T
    if names == {"labels", "dtype"}:
        return _labels(said["labels"], np.dtype(said["dtype"]))
    if names == {"number", "dtype"}:
        return _labels([said["number"]], np.dtype(said["dtype"]))[0]
    if names == {"dtype"}:
        return np.dtype(said["dtype"])
    if names == {"table"}:
        return {key: unpack(item, kinds, contents) for key, item in said["table"].items()}
    if names == {"is", "fields"}:
        return _dataclass(said, kinds, contents)
    return decode(said)


def stored_fields(kind: type[Any]) -> list[Field[Any]]:
    """Return the fields of a dataclass that a file holds."""
    return [one for one in fields(kind) if one.init and one.metadata.get("stored", True)]


def _dataclass(said: Mapping[str, Any], kinds: Kinds, contents: Contents) -> Any:
    kind = kinds(said["is"])
    if kind is None:
        raise ModelRejected(f"unknown part {said['is']!r}")
    wanted = {one.name for one in stored_fields(kind)}
    if wrong := sorted(wanted ^ set(said["fields"])):
        raise ModelRejected(f"{kind.__name__}: the field {wrong[0]!r} is unknown or missing")
    held = {key: unpack(item, kinds, contents) for key, item in said["fields"].items()}
    for one in stored_fields(kind):
        if not _is_of(held[one.name], str(one.type), kinds):
            raise ModelRejected(f"{kind.__name__}.{one.name}: expected {one.type}, found {held[one.name]!r:.60}")
    return kind(**held)


def _is_of(value: Any, annotation: str, kinds: Kinds) -> bool:
    """Return whether a value is of the type that an annotation says, its numbers finite."""
    names = [name.strip() for name in re.sub(r"\[.*\]", "", annotation).split("|")]
    types = [kind for name in names for kind in _TYPES.get(name, (kinds(name),)) if kind is not None]
    if types and not isinstance(value, tuple(types)):
        return False
    if isinstance(value, bool | np.bool_) and types:
        return "bool" in names
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ()
    numbers = list(inside) if re.search(r"\[.*\b(int|float)\b", annotation) else []
    if not all(isinstance(number, Real) and not isinstance(number, bool) for number in numbers):
        return False
    if re.fullmatch(r"tuple\[int, int\]", annotation) and [type(number) for number in numbers] != [int, int]:
        return False
    return all(abs(number) <= _LARGEST for number in (value, *numbers) if isinstance(number, int | float))


def _labels(values: Any, dtype: np.dtype[Any]) -> Array:
    """Return labels or names, (c,); each text takes as much as the longest of them, whatever the file asks for."""
    if not isinstance(values, list):
        raise ModelRejected("labels that are no list")
    kinds, largest = {type(value) for value in values}, dtype.itemsize
    if dtype.kind == "U" and kinds <= {str}:
        dtype = np.dtype(f"U{max(map(len, values), default=1) or 1}")
    elif not (dtype.kind == "O" and kinds <= {str}) and not (dtype.kind in _LABELS and kinds <= {bool, int, float}):
        raise ModelRejected(f"labels of {dtype} that are {', '.join(sorted(kind.__name__ for kind in kinds))}")
    if max(largest, dtype.itemsize) * len(values) > HEADER_BYTES:
        raise ModelRejected(f"{len(values)} labels of {dtype}")
    return np.array(values, dtype)
