"""Values in one file of the safetensors format: a length, a description in JSON, and arrays behind one another.

Reading takes NumPy and no more than the bytes that are there. No code of the file is run: what it may hold stands in a
closed table, and every array is as long as the file says before it is made. Arrays and description carry their CRC-32.
Labels and names stand in the description. Any program that reads safetensors finds the arrays by their paths.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from bigkernel.errors import ConfigError, DataError, ModelRejected
from bigkernel.kernels.algebra import Kernel
from bigkernel.kernels.encoding import decode, encode

Array = NDArray[Any]
Kinds = Callable[[str], type[Any] | None]  # what a name in a file stands for
FORMAT = "bigkernel predictor 1"
_ABOUT = "__metadata__"  # of safetensors: words by name
_ABOUT_BYTES = 2**26
_LENGTH_BYTES = 8
_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_LARGEST = float(np.finfo(np.float64).max)
_LABELS = "biuf"  # kinds of labels that are no text
_TYPES: dict[str, tuple[type[Any], ...]] = {  # of the fields of what a file holds, as these are annotated
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "Array": (np.ndarray,),
    "Array | None": (np.ndarray, type(None)),
    "tuple[float, ...]": (tuple,),
}


def write(path: str | os.PathLike[str], values: Mapping[str, Any], kinds: Kinds, *, overwrite: bool) -> None:
    """Write values by name, dataclasses of `kinds` inside one another, to a file that appears whole or not at all.

    Raises
    ------
    DataError
        `path` is there and is not to be replaced, or is no such file, or cannot be written.
    PlanTooLarge
        There is too little room for it.
    """
    from bigkernel.data.atomic_write import (  # who reads needs no store
        make_directories,
        replacing,
        require_free,
        writing,
    )
    from bigkernel.data.targets import require_target

    require_target(path, "the predictor")
    if os.path.exists(path) and not overwrite:
        raise DataError(f"{os.fspath(path)}: already exists; choose another path or ask to overwrite it")
    if os.path.exists(path) and not is_predictor(path):
        raise DataError(f"{os.fspath(path)}: expected a predictor of ours to replace; choose another path")
    arrays: dict[str, Array] = {}
    said = {name: _described(value, name, kinds, arrays) for name, value in values.items()}
    require_free(path, sum(array.nbytes for array in arrays.values()), "the predictor")
    header = _with_sum(_header(said, arrays))
    if len(header) > _ABOUT_BYTES:
        raise ConfigError(f"predictor: labels and parameters take {len(header):,} bytes, more than {_ABOUT_BYTES:,}")
    with writing(path, passing=False):
        make_directories(os.path.dirname(os.path.abspath(path)))
    with replacing(path) as scratch, open(scratch, "wb") as file:
        file.write(len(header).to_bytes(_LENGTH_BYTES, "little") + header)
        for array in arrays.values():
            file.write(array.data)


def read(path: str | os.PathLike[str], kinds: Kinds, *, limit_bytes: int) -> dict[str, Any]:
    """Read values back.

    Raises
    ------
    ModelRejected
        Damaged, of another format, naming what is not in `kinds`, or of more than `limit_bytes`.
    DataError
        There is no file at `path`.
    """
    if not os.path.isfile(path):
        hint = "a directory; models are read by load_model" if os.path.isdir(path) else "nothing"
        raise DataError(f"{os.fspath(path)}: expected the file of a predictor, found {hint}")
    with rejecting(path), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit_bytes:
            raise ModelRejected(f"it holds {size:,} bytes, more than the limit of {limit_bytes:,}")
        header, about = _read_header(file, size)
        arrays = {name: _read_array(file, name, said, about["crc32"][name]) for name, said in header.items()}
        if file.tell() != size:
            raise ModelRejected("it is longer than its description says")
        values = {str(name): _rebuilt(value, kinds, arrays) for name, value in about["values"].items()}
        if arrays:
            raise ModelRejected(f"unknown array {sorted(arrays)[0]!r}")
        return values


@contextmanager
def rejecting(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what damaged or foreign content raises into a `ModelRejected` that names the file."""
    where = os.fspath(path)
    try:
        yield
    except ModelRejected as error:
        raise error if str(error).startswith(where) else ModelRejected(f"{where}: {error}") from None
    except (
        *(DataError, ConfigError, KeyError, TypeError, ValueError, AttributeError, IndexError),
        *(ArithmeticError, RecursionError, MemoryError),
    ) as error:
        raise ModelRejected(f"{where}: not a sound predictor: {error}") from error


def _header(said: Mapping[str, Any], arrays: Mapping[str, Array]) -> dict[str, Any]:
    """What stands before the arrays."""
    about = {"values": said, "crc32": {name: zlib.crc32(array.data) for name, array in arrays.items()}}
    header: dict[str, Any] = {_ABOUT: {"format": FORMAT, "about": json.dumps(about, allow_nan=False)}}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        header[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [start, end]}
    return header


def _with_sum(header: dict[str, Any]) -> bytes:
    """The header as bytes, with its own CRC-32 among them, and as many blanks as align what follows."""
    header[_ABOUT]["crc32"] = str(zlib.crc32(json.dumps(header).encode()))
    content = json.dumps(header).encode()
    return content + b" " * (-len(content) % _LENGTH_BYTES)


def _read_header(file: BinaryIO, size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the file says of its arrays, one after the other, and of the values."""
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if not 2 <= length <= min(_ABOUT_BYTES, size - _LENGTH_BYTES):
        raise ModelRejected("it is no predictor, or was cut short")
    header = json.loads(file.read(length))
    if header[_ABOUT]["format"] != FORMAT:
        raise ModelRejected(f"{header[_ABOUT]['format']!r}, this version reads {FORMAT!r}")
    found = header[_ABOUT].pop("crc32")
    if found != str(zlib.crc32(json.dumps(header).encode())):
        raise ModelRejected("its description was changed")
    about, end = json.loads(header.pop(_ABOUT)["about"]), 0
    for name, said in header.items():
        start, end = end, end + math.prod(said["shape"]) * _DTYPES[said["dtype"]].itemsize
        if [start, end] != said["data_offsets"] or not all(type(n) is int and n >= 0 for n in said["shape"]):
            raise ModelRejected(f"{name}: its shape and its place do not fit")
    if end != size - _LENGTH_BYTES - length:
        raise ModelRejected("it is not as long as its description says")
    return header, about


def _read_array(file: BinaryIO, name: str, said: Mapping[str, Any], crc32: int) -> Array:
    """The next array of the file."""
    array: Array = np.empty(tuple(said["shape"]), _DTYPES[said["dtype"]])
    if array.size:
        file.readinto(array.data)  # type: ignore[attr-defined]
    if zlib.crc32(array.data) != crc32:
        raise ModelRejected(f"{name}: its CRC-32 differs from what its description says")
    if not np.isfinite(array).all():
        raise ModelRejected(f"{name}: expected finite numbers")
    return array


def is_predictor(path: str | os.PathLike[str]) -> bool:
    """True for a file that says that it is a predictor, damaged or not."""
    try:
        with open(path, "rb") as file:
            return FORMAT.rsplit(maxsplit=1)[0].encode() in file.read(4096)
    except OSError:
        return False


def _described(value: Any, path: str, kinds: Kinds, arrays: dict[str, Array]) -> Any:
    """The value as JSON, its arrays taken out by their paths."""
    if isinstance(value, np.ndarray) and value.dtype in _NAMES:
        arrays[path] = np.ascontiguousarray(value)
        return {"array": path}
    if isinstance(value, np.ndarray):
        return {"labels": value.tolist(), "dtype": value.dtype.str}
    if isinstance(value, np.dtype):
        return {"dtype": value.name}
    if isinstance(value, Kernel):
        return encode(value, path)
    if isinstance(value, tuple):
        return [_described(item, f"{path}.{i}", kinds, arrays) for i, item in enumerate(value)]
    if is_dataclass(value):
        if kinds(type(value).__name__) is not type(value):
            raise ConfigError(f"predictor: {path} is a {type(value).__name__}, which no file holds")
        parts = {part.name: getattr(value, part.name) for part in fields(value)}
        inner = {key: _described(item, f"{path}.{key}", kinds, arrays) for key, item in parts.items()}
        return {"is": type(value).__name__, "parts": inner}
    return encode(value, path)


def _rebuilt(said: Any, kinds: Kinds, arrays: dict[str, Array]) -> Any:
    """The value of `_described`; each array is taken once."""
    if isinstance(said, list):
        return tuple(_rebuilt(item, kinds, arrays) for item in said)
    if not isinstance(said, dict):
        return decode(said)
    if set(said) == {"array"}:
        return arrays.pop(said["array"])
    if set(said) == {"labels", "dtype"}:
        return _labels(said["labels"], np.dtype(said["dtype"]))
    if set(said) == {"dtype"}:
        return np.dtype(said["dtype"])
    if set(said) == {"is", "parts"}:
        kind = kinds(said["is"])
        if kind is None:
            raise ModelRejected(f"unknown part {said['is']!r}")
        parts = {key: _rebuilt(item, kinds, arrays) for key, item in said["parts"].items()}
        _require_types(kind, parts)
        return kind(**parts)
    return decode(said)


def _require_types(kind: type[Any], parts: Mapping[str, Any]) -> None:
    """Raise where a part is not of the type that it is annotated with, or a number of it is not finite."""
    for part in fields(kind):
        if part.name not in parts or part.type not in _TYPES:
            continue
        value = parts[part.name]
        sound = type(value) in _TYPES[str(part.type)]
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(value, tuple):
                sound = sound and type(number) in _TYPES["float"]
            sound = sound and (not isinstance(number, int | float) or abs(number) <= _LARGEST)
        if not sound:
            raise ModelRejected(f"{kind.__name__}.{part.name}: expected {part.type}, found {value!r:.60}")


def _labels(values: list[Any], dtype: np.dtype[Any]) -> Array:
    """Labels or names, (c,); each text takes as much as the longest of them, whatever the file asks for."""
    kinds, largest = {type(value) for value in values}, dtype.itemsize
    if dtype.kind == "U" and kinds <= {str}:
        dtype = np.dtype(f"U{max(map(len, values), default=1) or 1}")
    elif dtype.kind not in _LABELS or not kinds <= {bool, int, float}:
        raise ModelRejected(f"labels of {dtype} that are {', '.join(sorted(kind.__name__ for kind in kinds))}")
    if max(largest, dtype.itemsize) * len(values) > _ABOUT_BYTES:
        raise ModelRejected(f"{len(values)} labels of {dtype}")
    return np.array(values, dtype)
