"""Parquet, read by pyarrow: a file, or a folder of parts, in row groups that stream.

Columns of numbers become features (k, d) in their common dtype; one column may be the target and one the group. Page
checksums are verified where the file has them; without, the format cannot show every damage.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigkernel.data.readers.columns import Columns, block_of, choose, load_pyarrow
from bigkernel.data.readers.source import AGAIN, Block, Source, block_rows, folder_origin, is_gzip, natural
from bigkernel.errors import DataError

MAGIC = b"PAR1"
ENDINGS = (".parquet", ".parq", ".pq")
_BUFFER_BYTES = 2**16
_PANDAS_INDEX = re.compile(r"__index_level_[0-9]+__")


@dataclass(frozen=True)
class _Table:
    """Files of one schema, and what its columns are for."""

    parts: tuple[str, ...]
    columns: Columns
    dtype: np.dtype[Any]

    def blocks(self) -> Iterator[Block]:
        names = [self.columns.names[place] for place in self.columns.read]
        step = block_rows(len(self.columns.features) * self.dtype.itemsize)
        for part in self.parts:
            with _opened(part) as file:
                start, batches = 0, file.iter_batches(step, columns=names, use_threads=False)
                while True:
                    with _reading(part, f"from row {start}"):
                        batch = next(batches, None)
                    if batch is None:
                        break
                    yield block_of(part, start, batch.select(names), self.columns, self.dtype)
                    start += batch.num_rows
                if start != file.metadata.num_rows:
                    raise DataError(f"{part}: {start} rows, but its footer says {file.metadata.num_rows}; {AGAIN}")


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
    target, group : see `columns.choose`; a target holds numbers or text

    Raises
    ------
    DataError
        Names the file and the column: damaged or cut, a column that is not of numbers, a null (with its row), parts
        whose columns differ, whole numbers that the common dtype of the columns would round (with the row).
    """
    parts = _parts(path)
    n_rows, schema = 0, _schema_of(parts[0])
    for part in parts:
        with _opened(part) as file:
            if not file.schema_arrow.equals(schema):
                raise DataError(f"{part}: its columns are not those of {parts[0]}; write all parts alike")
            n_rows += file.metadata.num_rows
    names = [field.name for field in schema if not _PANDAS_INDEX.fullmatch(field.name)]
    columns = choose(path, names, target, group)
    dtypes = [_dtype(parts[0], schema.field(names[place])) for place in columns.features]
    if columns.target is not None:
        _require_label(parts[0], schema.field(names[columns.target]))
    table = _Table(parts, columns, np.result_type(*dtypes))
    return Source(
        format="parquet",
        path=path,
        n_features=len(columns.features),
        dtype=table.dtype,
        blocks=table.blocks,
        n_rows=n_rows,
        labelled=columns.target is not None,
        grouped=columns.group is not None,
        files=parts,
        origin=(lambda: folder_origin(path, map(os.path.basename, parts))) if os.path.isdir(path) else None,
    )


def _schema_of(part: str) -> Any:
    with _opened(part) as file:
        return file.schema_arrow


def _parts(path: str) -> tuple[str, ...]:
    if not os.path.isdir(path):
        if is_gzip(path):
            raise DataError(f"{path}: Parquet within gzip, which cannot be read in parts; decompress it (gunzip)")
        return (path,)
    names = sorted((name for name in os.listdir(path) if not name.startswith((".", "_"))), key=natural)
    for name in names:
        if not name.lower().endswith(ENDINGS) or not os.path.isfile(os.path.join(path, name)):  # a pipe would block
            raise DataError(f"{path}: {name!r} is no Parquet file ({', '.join(ENDINGS)}); move it elsewhere")
    if not names:
        raise DataError(f"{path}: the folder holds no Parquet file")
    return tuple(os.path.join(path, name) for name in names)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Any]:
    parquet = load_pyarrow("pyarrow.parquet")
    options: dict[str, Any] = {"buffer_size": _BUFFER_BYTES, "pre_buffer": False, "page_checksum_verification": True}
    with contextlib.ExitStack() as stack:
        with _reading(path, "at its footer"):
            file = stack.enter_context(parquet.ParquetFile(path, **options))
        yield file


@contextlib.contextmanager
def _reading(path: str, where: str) -> Iterator[None]:
    try:
        yield
    except (load_pyarrow("pyarrow").ArrowException, OSError, ValueError) as error:
        reason = str(error).split("\n")[0].strip().rstrip(".")
        raise DataError(f"{path}: cannot be read {where}: {reason}; {AGAIN}") from error


def _dtype(path: str, field: Any) -> np.dtype[Any]:
    types = load_pyarrow("pyarrow.types")
    if types.is_boolean(field.type):
        return np.dtype(np.uint8)
    if types.is_integer(field.type) or types.is_floating(field.type):
        found: np.dtype[Any] = np.dtype(field.type.to_pandas_dtype())
        return found
    raise DataError(
        f"{path}: column {field.name!r} holds {field.type}, expected numbers; name it as the target or the group, "
        "leave it out, or write it as numbers"
    )


def _require_label(path: str, field: Any) -> None:
    types = load_pyarrow("pyarrow.types")
    kind = field.type.value_type if types.is_dictionary(field.type) else field.type
    if not (types.is_string(kind) or types.is_large_string(kind)):
        _dtype(path, field)
