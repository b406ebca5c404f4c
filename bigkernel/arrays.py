"""The one place where zarr arrays are created, opened, read and published.

Everything that bigkernel writes is zarr format 3 with crc32c as the last codec, whole chunks, no shards, and
`write_empty_chunks=True`: a chunk that is not there was lost, never "all zeros". Reads translate what goes wrong into
`ChunkCorrupt` and `ChunkMissing`, which name the array and the rows. A published group appears by one rename, after
fsync: nothing half-written ever looks complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from itertools import islice, product
from pathlib import Path
from typing import Any, cast

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec, ZstdCodec

from bigkernel.errors import ChunkCorrupt, ChunkMissing, DataError

ATTRIBUTE = "bigkernel"  # the key of a group's attributes under which all of ours stands
_NUMERIC = "biuf"
_METADATA_BYTES = 2**23  # most that is read of a group's description
# what zarr raises at damaged metadata
_UNREADABLE = (ValueError, TypeError, KeyError, OSError, AttributeError, RecursionError)


def create(
    group: zarr.Group, name: str, *, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: Any, compress: bool = True
) -> zarr.Array:
    """Create an empty array of ours in `group`: crc32c last, zstd before it when `compress`, no shards.

    `chunks` may exceed `shape` (the only chunk is then ragged). Each chunk must be written whole, by one task.
    """
    codecs: list[Any] = [ZstdCodec(level=1), Crc32cCodec()] if compress else [Crc32cCodec()]
    return group.create_array(
        name,
        shape=shape,
        chunks=tuple(max(1, size) for size in chunks),
        dtype=np.dtype(dtype),
        compressors=codecs,
        fill_value=0,
        config={"write_empty_chunks": True},
    )


def open_group(path: str | os.PathLike[str], kind: str) -> tuple[zarr.Group, dict[str, Any]]:
    """Open a group of ours read-only and return it with its `bigkernel` attributes.

    Raises
    ------
    DataError
        Nothing there, not a zarr v3 group, or not a `kind` of ours.
    """
    path = os.path.abspath(path)
    metadata = os.path.join(path, "zarr.json")
    if os.path.isfile(metadata) and os.path.getsize(metadata) > _METADATA_BYTES:
        raise DataError(f"{metadata}: has {os.path.getsize(metadata):,} bytes, at most {_METADATA_BYTES:,} are read")
    try:
        group = zarr.open_group(path, mode="r", zarr_format=3)
    except FileNotFoundError:
        hint = "the path does not exist" if not os.path.exists(path) else "it holds no zarr v3 group"
        raise DataError(f"{path}: expected a {kind}, but {hint}") from None
    except _UNREADABLE as error:
        raise DataError(f"{path}: expected a {kind}, but its zarr metadata cannot be read: {error}") from error
    attributes = group.attrs.asdict().get(ATTRIBUTE)
    if not isinstance(attributes, dict) or attributes.get("kind") != kind:
        found = attributes.get("kind") if isinstance(attributes, dict) else "a zarr group without our attributes"
        raise DataError(f"{path}: expected a {kind}, found {found}")
    return group, attributes


def open_array(group: zarr.Group, name: str) -> zarr.Array:
    """The numeric array `name` of `group`, with missing chunks an error where this zarr can say so."""
    try:
        array = group[name]
    except KeyError:
        raise DataError(f"{group.store_path}: the array {name!r} is missing") from None
    except _UNREADABLE as error:
        raise DataError(f"{group.store_path}: the metadata of {name!r} cannot be read: {error}") from error
    if not isinstance(array, zarr.Array) or np.dtype(array.dtype).kind not in _NUMERIC:
        raise DataError(f"{group.store_path}: {name!r} is not a numeric array")
    with contextlib.suppress(TypeError, AttributeError):  # zarr >= 3.2 only; older ones: `missing_chunks` beforehand
        array = array.with_config(cast(Any, {"read_missing_chunks": False}))
    return array


def array_names(group: zarr.Group) -> list[str]:
    """Names of the arrays of a group, sorted; damaged metadata among them is a DataError."""
    try:
        return sorted(group.array_keys())
    except _UNREADABLE as error:
        raise DataError(f"{group.store_path}: the metadata of an array cannot be read: {error}") from error


def missing_chunks(array: zarr.Array, most: int | None = None) -> list[str]:
    """Keys of the chunks that `array` should have stored and has not, in order, `most` of them (empty: all there)."""
    root = Path(array.store_path.store.root) / array.store_path.path  # type: ignore[attr-defined]
    grid = (range(-(-size // chunk)) for size, chunk in zip(array.shape, array.chunks, strict=True))
    keys = ("/".join(map(str, ("c", *index))) for index in product(*grid))
    return list(islice((key for key in keys if not (root / key).is_file()), most))


def require_chunks(array: zarr.Array) -> None:
    """Raise `ChunkMissing` naming the first lost chunk of an array of ours."""
    lost = missing_chunks(array, 100)
    if lost:
        count = len(lost) if len(lost) < 100 else "100 or more"
        raise ChunkMissing(
            f"{array.store_path}: {count} of {array.nchunks} chunks are missing, the first is {lost[0]}; "
            "restore the files or write the array again"
        )


def read(array: zarr.Array, start: int, stop: int) -> NDArray[Any]:
    """Rows start:stop of `array`, every checksum verified.

    Raises
    ------
    ChunkCorrupt, ChunkMissing
        Name the array and the rows.
    """
    try:
        return np.asarray(array[start:stop])
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise ChunkMissing(f"{array.store_path}: a chunk of rows {start}:{stop} is missing") from error
        raise
    except Exception as error:
        if type(error).__name__ == "ChunkNotFoundError":
            raise ChunkMissing(f"{array.store_path}: a chunk of rows {start}:{stop} is missing") from error
        raise ChunkCorrupt(
            f"{array.store_path}: rows {start}:{stop} cannot be decoded ({error}); restore the chunk from a copy"
        ) from error


def digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of `arrays`, in the order of their names."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        total.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        total.update(array.data.cast("B") if array.size else b"")
    return total.hexdigest()


def stored_fingerprint(array: zarr.Array) -> str:
    """What tells one stored array from another without reading it: metadata; name, size and end of every chunk."""
    total = hashlib.sha256(json.dumps(array.metadata.to_dict(), sort_keys=True, default=str).encode())
    root = getattr(array.store_path.store, "root", None)
    if root is not None:
        base = Path(root) / array.store_path.path
        for file in sorted(base.rglob("*")):
            if file.is_file() and file.name != "zarr.json":
                with open(file, "rb") as chunk:  # our chunks end in their crc32c
                    chunk.seek(max(0, file.stat().st_size - 4))
                    total.update(f"{file.relative_to(base)} {file.stat().st_size} {chunk.read().hex()}\n".encode())
    return total.hexdigest()


@contextlib.contextmanager
def publishing(path: str | os.PathLike[str], *, kind: str, overwrite: bool = False) -> Iterator[Path]:
    """A fresh directory beside `path` that becomes `path` by one rename when the block ends without an error.

    On an error the directory is removed and `path` is as it was. With `overwrite` an existing `path` is replaced,
    provided that it is a `kind` of ours: nothing else is ever removed.
    """
    target = Path(os.path.abspath(path))
    if target.exists() and overwrite:
        _require_kind(target, kind)
    if target.exists() and not overwrite:
        raise DataError(f"{target}: already exists; choose another path or ask to overwrite it")
    scratch = target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")
    try:
        scratch.mkdir(parents=True)
    except OSError as error:
        raise DataError(f"{target}: cannot be written: {error.strerror}") from error
    try:
        yield scratch
        _sync(scratch)
        if target.exists():
            doomed = scratch.with_suffix(".old")
            os.replace(target, doomed)
            try:
                os.replace(scratch, target)
            except BaseException:
                os.replace(doomed, target)
                raise
            shutil.rmtree(doomed, ignore_errors=True) if doomed.is_dir() else doomed.unlink()
        else:
            os.replace(scratch, target)
        _sync_directory(target.parent)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def publish(
    path: str | os.PathLike[str],
    kind: str,
    arrays: Mapping[str, NDArray[Any]],
    attributes: Mapping[str, Any],
    *,
    overwrite: bool = False,
) -> None:
    """Write `arrays` and `attributes` as a group of ours that appears at `path` whole or not at all."""
    with publishing(path, kind=kind, overwrite=overwrite) as scratch:
        group = zarr.create_group(scratch, zarr_format=3, attributes={ATTRIBUTE: {"kind": kind, **attributes}})
        for name, values in arrays.items():
            rows = max(1, min(len(values), 2**24 // max(1, values[:1].nbytes))) if values.ndim else 1
            array = create(
                group,
                name,
                shape=values.shape,
                chunks=(rows, *values.shape[1:]) if values.ndim else (),
                dtype=values.dtype,
                compress=values.dtype.kind in "iu",
            )
            array[...] = values


def read_group(
    path: str | os.PathLike[str], kind: str, *, limit_bytes: int = 2**36
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Arrays and attributes of a published group; no array is allocated before all shapes fit in `limit_bytes`."""
    group, attributes = open_group(path, kind)
    links = [str(entry) for entry in Path(path).rglob("*") if entry.is_symlink()]
    if links:
        raise DataError(f"{links[0]}: a link; a {kind} holds its own files")
    handles = {name: open_array(group, name) for name in array_names(group)}
    wanted = sum(int(np.prod(array.shape, dtype=object)) * array.dtype.itemsize for array in handles.values())
    if wanted > limit_bytes:
        raise DataError(f"{path}: its arrays claim {wanted:,} bytes, more than the limit of {limit_bytes:,}")
    for array in handles.values():
        require_chunks(array)
    return {
        name: read(array, 0, array.shape[0]) if array.ndim else np.asarray(array[...])
        for name, array in handles.items()
    }, attributes


def _require_kind(target: Path, kind: str) -> None:
    """Refuse to replace what does not say that it is a `kind`, damaged or not."""
    try:
        found = f'"kind": "{kind}"' in (target / "zarr.json").read_text(errors="replace")
    except OSError:
        found = False
    if not found:
        raise DataError(f"{target}: expected a {kind} of ours to replace, found something else; choose another path")


def _sync(root: Path) -> None:
    for directory, _, files in os.walk(root):
        for name in files:
            descriptor = os.open(os.path.join(directory, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        _sync_directory(Path(directory))


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
