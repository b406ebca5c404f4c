"""Values in one file of the safetensors format: a length, a description in JSON, and arrays behind one another.

Reading takes NumPy alone, and reads no array that nobody asks for. No code of the file is run, and no array is made
that is longer than the file. Each array and the description carry their CRC-32. Any program that reads safetensors
finds the arrays by their names.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from bigkernel.errors import ConfigError, DataError, ModelRejected

Array = NDArray[Any]
FORMAT = "bigkernel model 1"
LIMIT_BYTES = 2**36  # of all arrays that are read together
DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}
HEADER_BYTES = 2**24  # most of a description
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_ABOUT = "__metadata__"  # of safetensors: text by name
_LENGTH_BYTES = 8
_BEFORE_SUM = f'{{"{_ABOUT}":{{"crc32":"'.encode()  # how a description begins
_NO_SUM = b"00000000"  # in the place of the checksum while it is computed


@dataclass
class Contents:
    """An open model file.

    Attributes
    ----------
    values : the description, as it was written
    entries : dtype, shape and place of each array by name
    crc32 : of each array by name
    read : arrays that were read
    """

    file: BinaryIO
    start: int
    values: dict[str, Any]
    entries: dict[str, Any]
    crc32: dict[str, int]
    limit_bytes: int
    read: dict[str, Array] = field(default_factory=dict)

    def array(self, name: str) -> Array:
        """Read an array, once."""
        if name not in self.read:
            self.read[name] = self._read(name)
        return self.read[name]

    def _read(self, name: str) -> Array:
        entry = self.entries[name]
        first, end = entry["data_offsets"]
        if sum(array.nbytes for array in self.read.values()) + end - first > self.limit_bytes:
            raise ModelRejected(f"its arrays take more than the limit of {self.limit_bytes:,} bytes")
        array: Array = np.empty(tuple(entry["shape"]), DTYPES[entry["dtype"]])
        self.file.seek(self.start + first)
        self.file.readinto(_bytes_of(array))  # type: ignore[attr-defined]
        if zlib.crc32(_bytes_of(array)) != self.crc32[name]:
            raise ModelRejected(f"{name}: its CRC-32 differs from what its description says")
        if not np.isfinite(array).all():
            raise ModelRejected(f"{name}: expected finite numbers")
        return array


def write(
    path: str | os.PathLike[str], values: Mapping[str, Any], arrays: Mapping[str, Array], *, overwrite: bool
) -> None:
    """Write a description and its arrays to a file that appears whole or not at all.

    Raises
    ------
    DataError
        `path` is there and is not to be replaced, or is no model, or cannot be written.
    PlanTooLarge
        There is too little room for it.
    RunLocked
        Another driver is writing it.
    """
    from bigkernel.data import atomic_write  # who reads needs no store
    from bigkernel.data.targets import claimed, require_target

    require_target(path, "the model", needed_bytes=sum(array.nbytes for array in arrays.values()))
    if os.path.exists(path) and not overwrite:
        raise DataError(f"{os.fspath(path)}: already exists; choose another path or ask to overwrite it")
    if os.path.exists(path) and not is_model(path):
        raise DataError(f"{os.fspath(path)}: expected a model of ours to replace; choose another path")
    header = _header(values, arrays)
    with atomic_write.writing(path, passing=False):
        atomic_write.make_directories(os.path.dirname(os.path.abspath(path)))
    with claimed(path, "the model"), atomic_write.replacing(path) as scratch, open(scratch, "wb") as file:
        file.write(len(header).to_bytes(_LENGTH_BYTES, "little") + header)
        for array in arrays.values():
            file.write(_bytes_of(array))


@contextmanager
def opened(path: str | os.PathLike[str], *, limit_bytes: int) -> Iterator[Contents]:
    """Open a model file; what its content raises within the block becomes a `ModelRejected` that names the file.

    Raises
    ------
    ModelRejected
        Damaged, of another format, or of more than `limit_bytes`.
    DataError
        There is nothing at `path`.
    """
    where = os.fspath(path)
    if not os.path.exists(path):
        raise DataError(f"{where}: expected a model, but the path does not exist")
    if not os.path.isfile(path):
        raise ModelRejected(f"{where}: expected the file of a model, found a directory")
    try:
        with open(path, "rb") as file:
            yield _opened(file, os.fstat(file.fileno()).st_size, limit_bytes)
    except ModelRejected as error:
        raise ModelRejected(f"{where}: {error}") from None
    except (
        *(DataError, ConfigError, KeyError, TypeError, ValueError, AttributeError, IndexError),
        *(ArithmeticError, RecursionError, MemoryError),
    ) as error:
        raise ModelRejected(f"{where}: not a sound model: {error}") from error


def is_model(path: str | os.PathLike[str]) -> bool:
    """Return whether a file says that it is a model, damaged or not."""
    try:
        with open(path, "rb") as file:
            return FORMAT.rsplit(maxsplit=1)[0].encode() in file.read(4096)
    except OSError:
        return False


def _bytes_of(array: Array) -> memoryview:
    """Return the memory of an array that lies in C order."""
    return array.reshape(-1).view(np.uint8).data


def _header(values: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """Return what stands before the arrays, with its own checksum, and as many blanks as align what follows."""
    about = {
        "crc32": _NO_SUM.decode(),
        "format": FORMAT,
        "arrays": json.dumps({name: zlib.crc32(_bytes_of(array)) for name, array in arrays.items()}),
        "values": json.dumps(values, allow_nan=False),
    }
    header: dict[str, Any] = {_ABOUT: about}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        header[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [start, end]}
    content = json.dumps(header, separators=(",", ":")).encode()
    content += b" " * (-len(content) % _LENGTH_BYTES)
    if len(content) > HEADER_BYTES:
        raise ConfigError(f"save_model: labels and parameters take {len(content):,} bytes, more than {HEADER_BYTES:,}")
    return _with_sum(content, f"{zlib.crc32(content):08x}".encode())


def _with_sum(content: bytes, crc32: bytes) -> bytes:
    """Return a description with this checksum."""
    at = len(_BEFORE_SUM)
    return content[:at] + crc32 + content[at + len(crc32) :]


def _opened(file: BinaryIO, size: int, limit_bytes: int) -> Contents:
    """Read and check what the file says of itself."""
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if not len(_BEFORE_SUM) + len(_NO_SUM) <= length <= min(HEADER_BYTES, size - _LENGTH_BYTES):
        raise ModelRejected("it is no model, or was cut short")
    content = file.read(length)
    if not content.startswith(_BEFORE_SUM):
        raise ModelRejected("it is no model")
    sum_there = content[len(_BEFORE_SUM) :][: len(_NO_SUM)]
    if sum_there != f"{zlib.crc32(_with_sum(content, _NO_SUM)):08x}".encode():
        raise ModelRejected("its description was changed")
    entries = json.loads(content, object_pairs_hook=_once)
    about = entries.pop(_ABOUT)
    if about["format"] != FORMAT:
        raise ModelRejected(f"{about['format']!r}, this version reads {FORMAT!r}")
    _require_places(entries, size - _LENGTH_BYTES - length)
    values = json.loads(about["values"], object_pairs_hook=_once)
    crc32 = json.loads(about["arrays"], object_pairs_hook=_once)
    return Contents(file, _LENGTH_BYTES + length, values, entries, crc32, limit_bytes)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON whose names differ."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ModelRejected("a name stands twice in its description")
    return found


def _require_places(entries: Mapping[str, Any], size: int) -> None:
    """Raise unless the arrays lie behind one another, each as long as its shape, and end where the file ends."""
    end = 0
    for name, entry in entries.items():
        shape = entry["shape"]
        start, end = end, end + math.prod(shape) * DTYPES[entry["dtype"]].itemsize
        if [start, end] != entry["data_offsets"] or not all(type(n) is int and n >= 0 for n in shape):
            raise ModelRejected(f"{name}: its shape and its place do not fit")
    if end != size:
        raise ModelRejected("it is not as long as its description says")
