"""Parquet: a file, or a folder of parts, in row groups that stream.

Columns of numbers become features (k, d) in their common dtype; one column may be the target and one the group.
pyarrow cuts its batches to a block, and leaves columns unread. Page checksums are verified where the file has them;
without, the format cannot show every damage.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.data.readers.source import (
    Block,
    Source,
    block_rows,
    folder_origin,
    group_ids,
    is_gzip,
    natural,
    require_features,
)
from bigkernel.data.readers.text import find_column
from bigkernel.errors import DataError

MAGIC = b"PAR1"
ENDINGS = (".parquet", ".parq", ".pq")
_BUFFER_BYTES = 2**16
_WHOLE_FLOATS = 2**53  # whole numbers up to here are float64s
_PANDAS_INDEX = re.compile(r"__index_level_[0-9]+__")


@dataclass(frozen=True)
class _Table:
    """Files of one schema, and what its columns are for."""

    path: str
    parts: tuple[str, ...]
    features: tuple[str, ...]
    target: str | None
    group: str | None
    dtype: np.dtype[Any]

    def blocks(self) -> Iterator[Block]:
        names = [*self.features, *([self.target] if self.target else [])]
        for part, start, batch in self._batches(names, block_rows(len(self.features) * self.dtype.itemsize)):
            x = np.empty((batch.num_rows, len(self.features)), self.dtype)
            for place, name in enumerate(self.features):
                column = _numbers(part, start, name, batch.column(place))
                _require_kept(part, start, name, column, x.dtype)
                x[:, place] = column
            yield x, _labels(part, start, self.target, batch.column(len(self.features))) if self.target else None

    def targets(self) -> Iterator[NDArray[Any]]:
        assert self.target
        for part, start, batch in self._batches([self.target], 2**14):
            yield _labels(part, start, self.target, batch.column(0))

    def groups(self) -> Iterator[NDArray[Any]]:
        assert self.group
        for part, start, batch in self._batches([self.group], 2**14):
            _require_whole(part, start, self.group, batch.column(0))
            yield group_ids(batch.column(0).to_pylist())

    def _batches(self, names: Sequence[str], rows: int) -> Iterator[tuple[str, int, Any]]:
        """(file, row of it that comes first, record batch)."""
        for part in self.parts:
            with _opened(part) as file:
                start, batches = 0, file.iter_batches(rows, columns=list(names), use_threads=False)
                while True:
                    with _reading(part, f"from row {start}"):
                        batch = next(batches, None)
                    if batch is None:
                        break
                    yield part, start, batch.select(list(names))
                    start += batch.num_rows
                if start != file.metadata.num_rows:
                    raise DataError(f"{part}: {start} rows, but its footer says {file.metadata.num_rows}")


def recognises(head: bytes) -> bool:
    """Return True for a file that begins as Parquet."""
    return head.startswith(MAGIC)


def recognises_folder(names: Sequence[str]) -> bool:
    """Return True where one of these files is Parquet by its name."""
    return any(name.lower().endswith(ENDINGS) for name in names)


def read(path: str, *, target: str | int | None = None, group: str | int | None = None) -> Source:
    """Open a Parquet file, or a folder of parts in natural order of their names (hidden ones and `_…` passed over).

    The columns in which pandas keeps an index (`__index_level_0__`) are left out.

    Parameters
    ----------
    path : str
    target : str, int or None
        Column of the labels by name or position (−1: the last): numbers or text; None: the last; "none": no labels.
    group : str, int or None
        Column of the groups; see `source.group_ids`.

    Raises
    ------
    DataError
        Names the file and the column: damaged or cut, a column that is not of numbers, a null (with its row), parts
        whose columns differ, whole numbers that the common dtype of the columns would round (with the row).
    """
    parts = _parts(path)
    schemas = [(part, *_described(part)) for part in parts]
    first, schema, _ = schemas[0]
    names = [field.name for field in schema if not _PANDAS_INDEX.fullmatch(field.name)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{first}: two columns are named {twice!r}; rename one")
    for part, other, _ in schemas[1:]:
        if [(field.name, field.type) for field in other] != [(field.name, field.type) for field in schema]:
            raise DataError(f"{part}: its columns are {_listed(other)}, but {first} has {_listed(schema)}")
    label = (
        None
        if target == "none"
        else names[find_column(path, -1 if target is None else target, names, len(names), "the target")]
    )
    grouped = None if group is None else names[find_column(path, group, names, len(names), "the groups")]
    if grouped is not None and grouped == label:
        raise DataError(f"{path}: column {label!r} is the target and the group; name the target, or say target='none'")
    features = tuple(name for name in names if name not in (label, grouped))
    require_features(path, len(features))
    dtypes = [_dtype(first, schema.field(name)) for name in features]
    if label is not None:
        _require_label(first, schema.field(label))
    table = _Table(path, parts, features, label, grouped, np.result_type(*dtypes))
    folder = os.path.isdir(path)
    return Source(
        format="parquet",
        path=path,
        n_rows=sum(rows for _, _, rows in schemas),
        n_features=len(features),
        dtype=table.dtype,
        image_shape=None,
        scale=1.0,
        blocks=table.blocks,
        targets=table.targets if label else None,
        files=parts,
        groups=table.groups if grouped else None,
        origin=(lambda: folder_origin(path, map(os.path.basename, parts))) if folder else None,
    )


def _parts(path: str) -> tuple[str, ...]:
    if not os.path.isdir(path):
        if is_gzip(path):
            raise DataError(f"{path}: Parquet within gzip, which cannot be read in parts; decompress it (gunzip)")
        return (path,)
    names = sorted((name for name in os.listdir(path) if not name.startswith((".", "_"))), key=natural)
    for name in names:
        if os.path.isdir(os.path.join(path, name)):
            raise DataError(
                f"{path}: the folder {name!r} within; parts of a table lie in one folder, without partitions"
            )
        if not name.lower().endswith(ENDINGS) or not os.path.isfile(os.path.join(path, name)):  # a pipe would block
            raise DataError(f"{path}: {name!r} is no Parquet file ({', '.join(ENDINGS)}); move it elsewhere")
    if not names:
        raise DataError(f"{path}: the folder holds no Parquet file")
    return tuple(os.path.join(path, name) for name in names)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Any]:
    import pyarrow.parquet  # type: ignore[import-untyped]  # late: --help needs none of it

    with contextlib.ExitStack() as stack:
        with _reading(path, "at its footer"):
            file = stack.enter_context(
                pyarrow.parquet.ParquetFile(
                    path, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
                )
            )
        yield file


@contextlib.contextmanager
def _reading(path: str, where: str) -> Iterator[None]:
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        reason = str(error).split("\n")[0].strip().rstrip(".")
        raise DataError(
            f"{path}: cannot be read {where} (of {os.path.getsize(path)} bytes): {reason}; copy or download it again"
        ) from error


def _described(path: str) -> tuple[Any, int]:
    with _opened(path) as file:
        return file.schema_arrow, file.metadata.num_rows


def _listed(schema: Any) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in list(schema)[:20]) + (
        ", …" if len(schema) > 20 else ""
    )


def _dtype(path: str, field: Any) -> np.dtype[Any]:
    from pyarrow import types

    if types.is_boolean(field.type):
        return np.dtype(np.uint8)
    if types.is_integer(field.type) or types.is_floating(field.type):
        dtype: np.dtype[Any] = np.dtype(field.type.to_pandas_dtype())
        return dtype
    raise DataError(
        f"{path}: column {field.name!r} holds {field.type}, expected numbers; name it as the target or the group, "
        "leave it out, or write it as numbers"
    )


def _require_label(path: str, field: Any) -> None:
    from pyarrow import types

    kind = field.type.value_type if types.is_dictionary(field.type) else field.type
    if not (types.is_string(kind) or types.is_large_string(kind)):
        try:
            _dtype(path, field)
        except DataError:
            raise DataError(f"{path}: the target {field.name!r} holds {field.type}, expected numbers or text") from None


def _require_whole(path: str, start: int, name: str, column: Any) -> None:
    if column.null_count:
        row = start + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise DataError(f"{path}: row {row}, column {name!r}: a null, expected a value; fill in or leave out the row")


def _numbers(path: str, start: int, name: str, column: Any) -> NDArray[Any]:
    _require_whole(path, start, name, column)
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _require_kept(path: str, start: int, name: str, column: NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Refuse whole numbers that the common dtype of the columns rounds: 64-bit ones beside floats, or of both signs."""
    if column.dtype.kind not in "iu" or column.dtype.itemsize < 8 or dtype.kind != "f":
        return
    beyond = np.flatnonzero((column > _WHOLE_FLOATS) | (column < -_WHOLE_FLOATS))
    row = next((row for row in beyond.tolist() if int(dtype.type(column[row])) != int(column[row])), None)
    if row is not None:
        raise DataError(
            f"{path}: row {start + row}, column {name!r}: {column[row]} is no {dtype}, which is the common dtype of "
            "the columns; leave the column out, or name it as the group or the target"
        )


def _labels(path: str, start: int, name: str, column: Any) -> NDArray[Any]:
    _require_whole(path, start, name, column)
    values = column.dictionary_decode() if hasattr(column, "dictionary_decode") else column
    found = values.to_numpy(zero_copy_only=False)
    return found.astype(np.str_) if found.dtype.kind == "O" else np.asarray(found)
