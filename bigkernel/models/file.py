"""Values in one file of the safetensors format: a length, a description in JSON, and contiguous arrays.

Reading needs only NumPy, and reads only the requested arrays. No code of the file is run, and no array is larger than
the file. Each array and the description have a CRC-32. Any program that reads safetensors finds the arrays by name.

Frozen dataclasses are stored by the names of their fields, recursively. A field of `metadata={"stored": False}` is left
out. Names of classes are looked up in a closed table; a value that is read has exactly the fields of its class, each of
its annotated type.
"""

from __future__ import annotations

import json
import math
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import Field, dataclass, field, fields, is_dataclass
from numbers import Integral, Real
from typing import Any, BinaryIO

import numpy as np

from bigkernel.arrays import Array
from bigkernel.errors import ConfigError, DataError, ModelRejectedError
from bigkernel.kernels.algebra import Kernel
from bigkernel.kernels.functions import STORED

Kinds = Callable[[str], type[Any] | None]  # the class of a name in a file
FORMAT = "bigkernel model 1"
LIMIT_BYTES = 2**36  # of all arrays that are read together
DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}
HEADER_BYTES = 2**24  # largest description
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_METADATA = "__metadata__"  # of safetensors: text by name
_LENGTH_BYTES = 8
_BEFORE_SUM = f'{{"{_METADATA}":{{"crc32":"'.encode()  # how a description begins
_NO_SUM = b"00000000"  # replaces the checksum while it is computed
_LABELS = "biuf"  # kinds of labels that are not text
_NAN = ["NaN"]  # among labels
_SCALARS = (bool, int, float, str, type(None))
_DEEPEST = 32  # kernels inside one another
_TYPES: dict[str, tuple[type[Any], ...]] = {
    **{"int": (Integral,), "float": (Real,), "bool": (bool, np.bool_), "str": (str,), "None": (type(None),)},
    **{"Array": (np.ndarray,), "np.dtype": (np.dtype,), "Kernel": (Kernel,), "tuple": (tuple,)},
    **{"Mapping": (dict,), "Accumulator": (dict,)},
}


@dataclass
class Contents:
    """An open model file: its description, and by name the dtype, shape, place and CRC-32 of arrays, and those read."""

    file: BinaryIO
    start: int
    values: dict[str, Any]
    entries: dict[str, Any]
    crc32: dict[str, int]
    limit_bytes: int
    read: dict[str, Array] = field(default_factory=dict)

    def array(self, name: str) -> Array:
        """Read an array, or return it if it was read before."""
        if name in self.read:
            return self.read[name]
        entry = self.entries[name]
        first, end = entry["data_offsets"]
        room = self.limit_bytes - sum(array.nbytes for array in self.read.values())
        require(end - first <= room, f"its arrays exceed the limit of {self.limit_bytes:,} bytes")
        array: Array = np.empty(tuple(entry["shape"]), DTYPES[entry["dtype"]])
        self.file.seek(self.start + first)
        self.file.readinto(_bytes_of(array))  # type: ignore[attr-defined]
        valid = zlib.crc32(_bytes_of(array)) == self.crc32[name]
        require(valid, f"{name}: CRC-32 differs from the one in the header")
        require(np.isfinite(array).all(), f"{name}: expected finite numbers")
        self.read[name] = array
        return array


def write(
    path: str | os.PathLike[str], values: Mapping[str, Any], arrays: Mapping[str, Array], *, overwrite: bool
) -> None:
    """Write a description and its arrays to a file that appears complete or not at all; raises as `save_model`."""
    from bigkernel.data import atomic_write  # not needed for reading
    from bigkernel.data.run_lock import claimed

    atomic_write.require_target(path, "the model", needed_bytes=sum(array.nbytes for array in arrays.values()))
    if os.path.exists(path) and not overwrite:
        raise DataError(f"{os.fspath(path)}: already exists; choose another path or set overwrite")
    if os.path.exists(path) and not is_model(path):
        raise DataError(f"{os.fspath(path)}: expected a model to replace, found something else; choose another path")
    with atomic_write.writing(path, passing=False):
        atomic_write.make_directories(os.path.dirname(os.path.abspath(path)))
    with claimed(path, "the model"):
        write_file(path, values, arrays)


def write_file(path: str | os.PathLike[str], values: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Write a description and its arrays; the file appears complete or not at all, in place of any other."""
    from bigkernel.data.atomic_write import replacing

    header = _header(values, arrays)
    with replacing(path) as scratch, open(scratch, "wb") as file:
        file.write(len(header).to_bytes(_LENGTH_BYTES, "little") + header)
        for array in arrays.values():
            file.write(_bytes_of(array))


@contextmanager
def opened(path: str | os.PathLike[str], *, limit_bytes: int) -> Iterator[Contents]:
    """Open a model file; errors of its content within the block become a `ModelRejectedError` that names the file.

    So does reading arrays of more than `limit_bytes`. Raises `DataError` if there is nothing at `path`.
    """
    where = os.fspath(path)
    if not os.path.exists(path):
        raise DataError(f"{where}: expected a model, but the path does not exist")
    if not os.path.isfile(path):
        raise ModelRejectedError(f"{where}: expected a model file, found a directory")
    try:
        with open(path, "rb") as file:
            yield _opened(file, os.fstat(file.fileno()).st_size, limit_bytes)
    except ModelRejectedError as error:
        raise ModelRejectedError(f"{where}: {error}") from None
    except (
        *(DataError, ConfigError, KeyError, TypeError, ValueError, AttributeError, IndexError),
        *(ArithmeticError, RecursionError, MemoryError),
    ) as error:
        raise ModelRejectedError(f"{where}: invalid model: {error}") from error


def require(valid: object, fault: str) -> None:
    """Raise `ModelRejectedError` unless the content of a file is valid."""
    if not valid:
        raise ModelRejectedError(fault)


def is_model(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is marked as a model, damaged or not."""
    try:
        with open(path, "rb") as file:
            return FORMAT.rsplit(maxsplit=1)[0].encode() in file.read(4096)
    except OSError:
        return False


def _bytes_of(array: Array) -> memoryview:
    """Return the memory of an array in C order."""
    return array.reshape(-1).view(np.uint8).data


def _header(values: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """Return the description of the arrays with its own checksum, padded by blanks to align the arrays."""
    metadata = {
        "crc32": _NO_SUM.decode(),
        "format": FORMAT,
        "arrays": json.dumps({name: zlib.crc32(_bytes_of(array)) for name, array in arrays.items()}),
        "values": json.dumps(values, allow_nan=False),
    }
    header: dict[str, Any] = {_METADATA: metadata}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        header[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [start, end]}
    content = json.dumps(header, separators=(",", ":")).encode()
    content += b" " * (-len(content) % _LENGTH_BYTES)
    if len(content) > HEADER_BYTES:
        raise ConfigError(
            f"save_model: expected labels and parameters of at most {HEADER_BYTES:,} bytes, found {len(content):,}"
        )
    return _with_sum(content, f"{zlib.crc32(content):08x}".encode())


def _with_sum(content: bytes, crc32: bytes) -> bytes:
    """Return a description with this checksum."""
    at = len(_BEFORE_SUM)
    return content[:at] + crc32 + content[at + len(crc32) :]


def _opened(file: BinaryIO, size: int, limit_bytes: int) -> Contents:
    """Read and check the description of the file."""
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    whole = len(_BEFORE_SUM) + len(_NO_SUM) <= length <= min(HEADER_BYTES, size - _LENGTH_BYTES)
    require(whole, "not a model, or truncated")
    content = file.read(length)
    require(content.startswith(_BEFORE_SUM), "not a model")
    sum_there = content[len(_BEFORE_SUM) :][: len(_NO_SUM)]
    unchanged = sum_there == f"{zlib.crc32(_with_sum(content, _NO_SUM)):08x}".encode()
    require(unchanged, "the header was changed")
    entries = json.loads(content, object_pairs_hook=_once)
    metadata = entries.pop(_METADATA)
    require(metadata["format"] == FORMAT, f"format {metadata['format']!r}, expected {FORMAT!r}")
    _require_places(entries, size - _LENGTH_BYTES - length)
    values = json.loads(metadata["values"], object_pairs_hook=_once)
    crc32 = json.loads(metadata["arrays"], object_pairs_hook=_once)
    return Contents(file, _LENGTH_BYTES + length, values, entries, crc32, limit_bytes)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; raise if a name occurs twice."""
    named = dict(pairs)
    require(len(named) == len(pairs), "a name occurs twice in the header")
    return named


def _require_places(entries: Mapping[str, Any], size: int) -> None:
    """Raise unless the arrays are contiguous, each as long as its shape, and end at the end of the file."""
    end = 0
    for name, entry in entries.items():
        shape = entry["shape"]
        start, end = end, end + math.prod(shape) * DTYPES[entry["dtype"]].itemsize
        fits = [start, end] == entry["data_offsets"] and all(type(n) is int and n >= 0 for n in shape)
        require(fits, f"{name}: shape and offsets do not match")
    require(end == size, "file size differs from the one in the header")


@dataclass
class Packing:
    """Conversion of values for a file: arrays are collected, each once, under the path where it occurs first."""

    kinds: Kinds
    arrays: dict[str, Array] = field(default_factory=dict)
    _names: dict[int, tuple[str, Array]] = field(default_factory=dict)

    def pack(self, value: Any, path: str) -> Any:
        """Return the value as JSON; a `ConfigError` names the part that cannot be stored."""
        if isinstance(value, np.ndarray):
            return self._array(value, path)
        if isinstance(value, np.generic) or (isinstance(value, float) and math.isnan(value)):
            return {"number": _label(value, path), "dtype": np.asarray(value).dtype.str}
        if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.number | int | float)):
            return {"dtype": np.dtype(value).name}
        if isinstance(value, np.ufunc) and getattr(np, name := str(value.__name__), None) is value:
            return {"ufunc": name}
        if isinstance(value, tuple | list | range):
            return [self.pack(item, f"{path}.{i}") for i, item in enumerate(value)]
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return {"table": {key: self.pack(item, f"{path}.{key}") for key, item in value.items()}}
        if isinstance(value, Mapping):
            return {"keys": self.pack([*value], path), "values": self.pack([*value.values()], path)}
        if isinstance(value, Kernel):
            given = value.get_params(deep=False).items()
            plain = {key: one.tolist() if isinstance(one, np.ndarray | np.generic) else one for key, one in given}
            return {
                "kernel": value.name,
                "params": {key: self.pack(one, f"{path}.{key}") for key, one in plain.items()},
            }
        if is_dataclass(value):
            name = type(value).__name__
            if self.kinds(name) is not type(value):
                raise ConfigError(f"save_model: {path}: a {name} cannot be stored")
            held = {one.name: getattr(value, one.name) for one in stored_fields(type(value))}
            return {"is": name, "fields": {key: self.pack(item, f"{path}.{key}") for key, item in held.items()}}
        if callable(value):
            raise ConfigError(
                f"save_model: {path} = {value!r} cannot be stored; of functions only NumPy's can, such as np.log1p"
            )
        return _scalar(value, path)

    def _array(self, value: Array, path: str) -> Any:
        if value.dtype not in DTYPES.values() or (value.ndim == 1 and np.isnan(value).any()):
            if value.ndim != 1 or value.dtype.kind not in _LABELS + "OU":
                raise ConfigError(f"save_model: {path}: an array {value.shape} of {value.dtype} cannot be stored")
            return {"labels": [_label(label, path) for label in value.tolist()], "dtype": value.dtype.str}
        columns = value.flags.f_contiguous and not value.flags.c_contiguous  # products of another order differ
        if id(value) not in self._names:
            lying = np.ascontiguousarray(value.T if columns else value)
            self.arrays[path] = lying.reshape(value.T.shape if columns else value.shape)
            self._names[id(value)] = path, value
        name = self._names[id(value)][0]
        return {"array": name, "order": "F"} if columns else {"array": name}


def _label(value: Any, path: str) -> Any:
    """Return a label or number as JSON, which has no NaN."""
    value = value.item() if isinstance(value, np.generic) else value
    return _NAN if isinstance(value, float) and math.isnan(value) else _scalar(value, path)


def _scalar(value: Any, path: str) -> Any:
    if isinstance(value, _SCALARS) and not (isinstance(value, float) and not math.isfinite(value)):
        return value
    raise ConfigError(f"save_model: {path} = {value!r} cannot be stored")


def unpack(said: Any, kinds: Kinds, contents: Contents, depth: int = 0) -> Any:
    """Return the value from the JSON of `Packing.pack`, in so many kernels; `ModelRejectedError` if it is invalid."""
    if isinstance(said, list):
        return tuple(unpack(item, kinds, contents, depth) for item in said)
    if not isinstance(said, dict):
        return said  # JSON has no other values than scalars
    names = set(said)
    if names == {"array"} or (names == {"array", "order"} and said["order"] == "F"):
        array = contents.array(said["array"])
        return array.T if "order" in names else array
    if names == {"labels", "dtype"}:
        return _labels(said["labels"], np.dtype(said["dtype"]))
    if names == {"number", "dtype"}:
        return _labels([said["number"]], np.dtype(said["dtype"]))[0]
    if names == {"dtype"}:
        return np.dtype(said["dtype"])
    if names == {"ufunc"}:
        require(isinstance(function := vars(np).get(said["ufunc"]), np.ufunc), "expected a function of NumPy")
        return function
    if names == {"table"}:
        return {key: unpack(item, kinds, contents) for key, item in said["table"].items()}
    if names == {"keys", "values"}:
        keys, values = (unpack(said[name], kinds, contents) for name in ("keys", "values"))
        require(len({*keys}) == len(values) == len(keys), "expected a table with as many keys as values")
        return dict(zip(keys, values, strict=True))
    if names == {"kernel", "params"}:
        require(said["kernel"] in STORED and isinstance(said["params"], dict), f"unknown kernel {said['kernel']!r}")
        require(depth <= _DEEPEST, f"kernels nested more than {_DEEPEST} deep")
        params = {key: unpack(item, kinds, contents, depth + 1) for key, item in said["params"].items()}
        lengths = {key: np.array([float(one) for one in item]) for key, item in params.items() if type(item) is tuple}
        return STORED[said["kernel"]](**params | lengths)
    require(names == {"is", "fields"}, f"unknown value with {', '.join(sorted(names)):.60}")
    return _dataclass(said, kinds, contents)


def stored_fields(kind: type[Any]) -> list[Field[Any]]:
    """Return the fields of a dataclass that a file holds."""
    return [one for one in fields(kind) if one.init and one.metadata.get("stored", True)]


def _dataclass(said: Mapping[str, Any], kinds: Kinds, contents: Contents) -> Any:
    kind = kinds(said["is"])
    if kind is None:
        raise ModelRejectedError(f"unknown part {said['is']!r}")
    wrong = sorted({one.name for one in stored_fields(kind)} ^ set(said["fields"]))
    require(not wrong, f"{kind.__name__}: field {(wrong or [''])[0]!r} is unknown or missing")
    held = {key: unpack(item, kinds, contents) for key, item in said["fields"].items()}
    for one in stored_fields(kind):
        if not _is_of(held[one.name], str(one.type), kinds):  # `require` would print every array of a sound file
            raise ModelRejectedError(f"{kind.__name__}.{one.name}: expected {one.type}, found {held[one.name]!r:.60}")
    return kind(**held)


def _is_of(value: Any, annotation: str, kinds: Kinds) -> bool:
    """Return whether a value has the annotated type."""
    names = [name.strip() for name in re.sub(r"\[.*\]", "", annotation).split("|")]
    types = tuple(kind for name in names for kind in _TYPES.get(name, (kinds(name),)) if kind is not None)
    return not types or (isinstance(value, types) and ("bool" in names or not isinstance(value, bool | np.bool_)))


def _labels(values: Any, dtype: np.dtype[Any]) -> Array:
    """Return labels or names, (c,); text has the dtype of the longest, whatever dtype the file states."""
    require(isinstance(values, list), "expected a list of labels")
    values = [np.nan if value == _NAN else value for value in values]
    kinds, largest = {type(value) for value in values}, dtype.itemsize
    if dtype.kind == "U" and kinds <= {str}:
        dtype = np.dtype(f"U{max(map(len, values), default=1) or 1}")
    elif not kinds <= ({*_SCALARS} if dtype.kind == "O" else {bool, int, float} if dtype.kind in _LABELS else {None}):
        raise ModelRejectedError(f"labels of {dtype} that are {', '.join(sorted(kind.__name__ for kind in kinds))}")
    require(max(largest, dtype.itemsize) * len(values) <= HEADER_BYTES, f"{len(values)} labels of {dtype}")
    return np.array(values, dtype)
