"""The one place where zarr arrays are created, opened, read and published.

Everything that bigkernel writes is zarr format 3 with crc32c as the last codec, whole chunks, no shards, and
`write_empty_chunks=True`: a chunk that is not there was lost, never "all zeros". Reads translate what goes wrong into
`ChunkCorrupt` and `ChunkMissing`, which name the array and the rows. A published group is sealed (`seals`) and appears
by one rename, after fsync: nothing half-written ever looks complete, and nothing that was changed looks whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice, product
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec, ZstdCodec

from bigkernel.config import settings
from bigkernel.data import seals
from bigkernel.data.atomic_write import publishing
from bigkernel.data.visible import log_of
from bigkernel.errors import ChunkCorrupt, ChunkMissing, DataError

ATTRIBUTE = seals.ATTRIBUTE
_NUMERIC = "biuf"
# what zarr raises at damaged metadata
_UNREADABLE = (ValueError, TypeError, KeyError, OSError, AttributeError, RecursionError)
_REWRITE = {"corpus": "ingest its source again", "predictions": "predict again"}
_OTHERS = "swapped, exchanged or older"
_SMALL_BYTES = 2**24  # what may be allocated before a chunk turns out to be cut short
_ZSTD_RATIO = 2**16  # zeros compress about 2¹⁵-fold
_RETRY_SECONDS = 0.05  # before the second attempt to read; twice as long before each further one
_LONGEST_PAUSE_SECONDS = 2.0
_logger = log_of(__name__)
T = TypeVar("T")


def retry(
    task: Callable[[], T],
    *,
    times: int,
    passing: Callable[[Exception], bool],
    failed: Callable[[Exception], None] = lambda error: None,
    pause_seconds: float = 0.1,
) -> T:
    """Return what `task` returns, tried again up to `times` times after errors that are `passing`.

    `failed` is told of each error that is tried again, after which there is a pause, twice as long as the one before.
    The error of the last attempt, and any other one, is raised.
    """
    for attempt in range(times):
        try:
            return task()
        except Exception as error:
            if not passing(error):
                raise
            failed(error)
        time.sleep(min(_LONGEST_PAUSE_SECONDS, pause_seconds * 2**attempt))
    return task()


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


def cast_values(values: NDArray[Any], dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return values in another dtype, and where that changes one; that a shorter float rounds is meant."""
    with np.errstate(invalid="ignore", over="ignore"):
        found: NDArray[Any] = values.astype(dtype)
    return found, np.isinf(found) & np.isfinite(values) if dtype.kind == "f" else found != values


def write(array: zarr.Array, start: int, values: NDArray[Any]) -> None:
    """Write rows `start` and up, one chunk after the other: when an error ends it, nothing is still being written."""
    if not array.ndim:
        array[...] = values
        return
    step = array.chunks[0]
    for first in range(0, len(values), step):
        array[start + first : start + first + step] = values[first : first + step]


def open_group(path: str | os.PathLike[str], kind: str) -> tuple[zarr.Group, dict[str, Any], seals.Seal]:
    """Open a group of ours read-only, with its `bigkernel` attributes and its seal; a DataError names what is wrong.

    All metadata is compared with the seal before any of it is parsed.
    """
    root = Path(os.path.abspath(path))
    seal = seals.verify(root) if seals.is_sealed(root) else None
    try:
        if seal is None and (root / seals.METADATA).is_file():
            seals.metadata_bytes(root / seals.METADATA)
        group = zarr.open_group(root, mode="r", zarr_format=3)
    except FileNotFoundError:
        hint = "the path does not exist" if not root.exists() else "it holds no zarr v3 group"
        raise DataError(f"{root}: expected a {kind}, but {hint}") from None
    except _UNREADABLE as error:
        raise DataError(f"{root}: expected a {kind}, but its zarr metadata cannot be read: {error}") from error
    attributes = group.attrs.asdict().get(ATTRIBUTE)
    if not isinstance(attributes, dict) or attributes.get("kind") != kind:
        found = attributes.get("kind") if isinstance(attributes, dict) else "a zarr group without our attributes"
        raise DataError(f"{root}: expected a {kind}, found {found}")
    if seal is None:
        raise DataError(
            f"{root}: a {kind} without a seal (format {attributes.get('format')!r}): an earlier version wrote it, its "
            f"writing was not completed, or its seal was lost; {_REWRITE.get(kind, 'start a new run')}"
        )
    return group, attributes, seal


@contextlib.contextmanager
def opened(path: str | os.PathLike[str], kind: str) -> Iterator[tuple[zarr.Group, dict[str, Any], seals.Seal]]:
    """Open a group of ours, see `open_group`, for a block; a DataError where another store lies there after it."""
    group, attributes, seal = open_group(path, kind)
    yield group, attributes, seal
    if seals.verify(Path(path)) != seal:
        raise DataError(f"{path}: was exchanged while it was read; read it again")


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
    if 0 in array.chunks:
        raise DataError(f"{group.store_path}: {name!r} has chunks of the shape {array.chunks}; none may be 0")
    with contextlib.suppress(TypeError, AttributeError):  # zarr >= 3.2 only; older ones: `require_chunks` beforehand
        array = array.with_config(cast(Any, {"read_missing_chunks": False}))
    return array


def array_names(group: zarr.Group) -> list[str]:
    """Return the names of the arrays of a group of ours, sorted."""
    return seals.array_names(Path(group.store_path.store.root))  # type: ignore[attr-defined]


def directory_of(array: zarr.Array) -> Path:
    """Return the directory of an array of a local store."""
    return Path(array.store_path.store.root) / array.store_path.path  # type: ignore[attr-defined]


def chunk_keys(array: zarr.Array, start: int = 0, stop: int | None = None) -> Iterator[str]:
    """Yield the keys of the chunks of an array of ours, in order; of all, or of its rows start:stop."""
    grid = [range(-(-size // chunk)) for size, chunk in zip(array.shape, array.chunks, strict=True)]
    if grid and (start or stop is not None):
        grid[0] = grid[0][start // array.chunks[0] : None if stop is None else -(-stop // array.chunks[0])]
    return ("/".join(map(str, ("c", *place))) for place in product(*grid))


def require_chunks(array: zarr.Array, start: int = 0, stop: int | None = None) -> None:
    """Raise `ChunkMissing` naming the first lost chunk of an array of ours, or of those of its rows start:stop."""
    root = directory_of(array)
    lost = list(islice((key for key in chunk_keys(array, start, stop) if not (root / key).is_file()), 100))
    if lost:
        count = len(lost) if len(lost) < 100 else "100 or more"
        raise ChunkMissing(
            f"{array.store_path}: {count} of {array.nchunks} chunks are missing, the first is {lost[0]}; "
            "restore the files or write the array again"
        )


def _require_content(array: zarr.Array) -> None:
    """Refuse an array of ours that claims more than its files can hold, before memory is allocated for it."""
    codecs = [codec["name"] for codec in cast(Any, array.metadata.to_dict()["codecs"])]
    if codecs not in (["bytes", "crc32c"], ["bytes", "zstd", "crc32c"]):
        raise DataError(f"{array.store_path}: its codecs are {', '.join(codecs)}; those of ours end in crc32c")
    root = directory_of(array)
    stored = sum((root / key).stat().st_size for key in chunk_keys(array))
    claimed = int(np.prod(array.chunks, dtype=object)) * array.dtype.itemsize * array.nchunks
    if claimed > max(_SMALL_BYTES, stored * (_ZSTD_RATIO if "zstd" in codecs else 1)):
        raise DataError(
            f"{array.store_path}: claims {claimed:,} bytes, more than its files of {stored:,} bytes can hold"
        )


def marks_of(path: str | os.PathLike[str], name: str, array: zarr.Array, seal: str = "") -> seals.Marks | None:
    """Return the marks of the chunks of an array of the sealed group at `path`; None where they hold no whole rows.

    `seal` is the digest of the seal that the group had when it was opened, if that is known. Chunks that are not there,
    do not read back, or are others than those that were sealed are an error.
    """
    there = seals.verify(Path(path))
    if seal and there.digest != seal:
        raise DataError(f"{path}: another store lies here than the one that was opened; open it again")
    if array.nchunks != -(-array.shape[0] // array.chunks[0]):
        require_chunks(array)
        return None
    try:
        marks, digest = seals.Marks.of(array, directory_of(array))
    except OSError:
        require_chunks(array)  # a missing chunk has a name
        raise
    if digest != there.arrays[name].chunks:
        for start in range(0, array.shape[0], array.chunks[0]):  # a damaged chunk has a name
            read(array, start, min(start + array.chunks[0], array.shape[0]))
        raise DataError(f"{path}/{name}: its chunks are not those that were sealed: {_OTHERS}; {seals.RESTORE}")
    return marks


def read(array: zarr.Array, start: int, stop: int, marks: seals.Marks | None = None) -> NDArray[Any]:
    """Read rows start:stop of `array`, every checksum verified; an error of the store is tried again by chunk.

    `marks` are of the chunks that these rows are in, which the files must have once they were read. ChunkCorrupt and
    ChunkMissing name the array, the chunk and its rows; OSError: the store failed `bigkernel.retries` times more.
    """
    try:
        values = np.asarray(array[start:stop])
    except Exception as error:
        if _passing(error):
            _logger.warning("%s: rows %s:%s could not be read (%s): trying again", array.store_path, start, stop, error)
        # chunk by chunk: many reads rarely all succeed, and the chunk that is damaged or missing has a name
        values = np.empty((stop - start, *array.shape[1:]), array.dtype)
        for key, piece in _pieces(array, start, stop):
            rows = slice(piece[0].start - start, piece[0].stop - start)
            values[(rows, *piece[1:])] = _read_piece(array, key, piece)
    if marks is not None and stop > start:
        step = array.chunks[0]
        retry(
            lambda: marks.require(array, directory_of(array), start // step, -(-stop // step)),
            times=settings().retries,
            passing=_passing,
            failed=lambda error: _logger.warning("%s: its chunks could not be looked at: %s", array.store_path, error),
            pause_seconds=_RETRY_SECONDS,
        )
    return values


def _passing(error: Exception) -> bool:
    """Return True if a store may succeed when asked again; what a codec says of damaged bytes has no errno."""
    return isinstance(error, OSError) and error.errno is not None and not isinstance(error, FileNotFoundError)


def _pieces(array: zarr.Array, start: int, stop: int) -> Iterator[tuple[str, tuple[slice, ...]]]:
    """Yield the chunks (shards) that rows start:stop touch: the key of each, and what of them it holds."""
    shape = ((start, stop), *((0, size) for size in array.shape[1:]))
    steps = array.shards or array.chunks
    for index in product(*(range(a // step, -(-b // step)) for (a, b), step in zip(shape, steps, strict=True))):
        bounds = zip(shape, index, steps, strict=True)
        piece = tuple(slice(max(low, i * step), min(high, (i + 1) * step)) for (low, high), i, step in bounds)
        yield array.metadata.encode_chunk_key(index), piece


def _read_piece(array: zarr.Array, key: str, piece: tuple[slice, ...]) -> NDArray[Any]:
    what = f"{array.store_path}: rows {piece[0].start}:{piece[0].stop}"
    try:
        return retry(
            lambda: np.asarray(array[piece]),
            times=settings().retries,
            passing=_passing,
            failed=lambda error: _logger.warning("%s could not be read (%s): trying again", what, error),
            pause_seconds=_RETRY_SECONDS,
        )
    except Exception as error:
        if isinstance(error, FileNotFoundError) or type(error).__name__ == "ChunkNotFoundError":
            raise ChunkMissing(f"{what} are missing; restore the chunk {key} from a copy") from error
        if not _passing(error):
            raise ChunkCorrupt(f"{what} cannot be decoded ({error}); restore the chunk {key} from a copy") from error
        raise


def digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the SHA-256 over names, dtypes, shapes and bytes of `arrays`, in the order of their names."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        total.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        total.update(array.data.cast("B") if array.size else b"")
    return total.hexdigest()


def stored_fingerprint(array: zarr.Array) -> str:
    """Return a digest of a stored array that is not read: of its metadata, and of name, size and end of every chunk."""
    total = hashlib.sha256(json.dumps(array.metadata.to_dict(), sort_keys=True, default=str).encode())
    if getattr(array.store_path.store, "root", None) is not None:
        total.update(seals.chunks_digest(directory_of(array))[0].encode())
    return total.hexdigest()


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
            write(array, 0, values)


def read_group(
    path: str | os.PathLike[str], kind: str, *, limit_bytes: int = 2**36
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read arrays and attributes of a published group; no array is allocated before all shapes fit in `limit_bytes`."""
    with opened(path, kind) as (group, attributes, seal):
        links = [str(entry) for entry in Path(path).rglob("*") if entry.is_symlink()]
        if links:
            raise DataError(f"{links[0]}: a link; a {kind} holds its own files")
        handles = {name: open_array(group, name) for name in array_names(group)}
        wanted = sum(int(np.prod(array.shape, dtype=object)) * array.dtype.itemsize for array in handles.values())
        if wanted > limit_bytes:
            raise DataError(f"{path}: its arrays claim {wanted:,} bytes, more than the limit of {limit_bytes:,}")
        for array in handles.values():
            require_chunks(array)
            _require_content(array)
        found = {
            name: read(array, 0, array.shape[0]) if array.ndim else np.asarray(array[...])
            for name, array in handles.items()
        }
    for name, array in handles.items():
        if seals.chunks_digest(directory_of(array), set(chunk_keys(array)))[0] != seal.arrays[name].chunks:
            raise DataError(f"{path}/{name}: its chunks are not those that were sealed: {_OTHERS}; {seals.RESTORE}")
    return found, attributes
