"""The one place where zarr groups are created, published, opened and read.

Everything that bigkernel writes is zarr format 3 with crc32c as the last codec, chunks of whole rows, no shards, and
`write_empty_chunks=True`: a missing chunk was lost. A published group appears by one rename, after fsync.

crc32c guards the bytes of a chunk, not the metadata that say how to read them, nor which chunks belong together. The
manifest does: a group `manifest` inside (a plain file would make zarr warn), which has the attributes

    sha256     of the rest of the manifest
    metadata   SHA-256 of the group's zarr.json
    arrays     for every array the SHA-256 of its zarr.json, and number and SHA-256 of the names, sizes and last four
               bytes (their crc32c) of its chunks

It is not a signature, but detects damage and edits by hand. zarr parses the bytes that were compared with it. The
`ChunkDigests` of an array, compared with the manifest when a job begins, are compared with the files after every read,
on every thread and worker. `ChunkCorruptError` and `ChunkMissingError` name the array and the rows.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice, product
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.storage import LocalStore, StorePath

from bigkernel.config import settings
from bigkernel.data.atomic_write import replace_place, scratch_path, sync, writing
from bigkernel.data.visible import log_of
from bigkernel.errors import BigKernelError, ChunkCorruptError, ChunkMissingError, DataError

METADATA = "zarr.json"
ATTRIBUTE = "bigkernel"  # key of a group's attributes that holds all of ours
MANIFEST = "manifest"
OUTPUTS = ("prediction", "decision", "probability", "std")  # of rows
RESTORE = "restore it from a copy, or write the group again"
_METADATA_BYTES = 2**23  # most bytes of one metadata file
_ARRAY_METADATA_BYTES = 2**16
_METADATA_ITEMS = 2**17  # most commas and brackets in it, which bound the memory of parsing
_MANIFEST_BYTES = 2**19
_MOST_ARRAYS = 1000
_REWRITE = {"corpus": "ingest the source again", "predictions": "predict again"}
_SMALL_BYTES = 2**24  # allocated before a truncated chunk is noticed
_ZSTD_RATIO = 2**16  # zeros compress about 2¹⁵-fold
_RETRY_SECONDS = 0.05  # seconds before the second attempt to read; doubled before each further one
_LONGEST_PAUSE_SECONDS = 2.0
_logger = log_of(__name__)
T = TypeVar("T")


# ---------------------------------------------------------------- manifests


@dataclass(frozen=True)
class ManifestEntry:
    """SHA-256 of an array's zarr.json, number of its chunk files, SHA-256 of their names, sizes and ends."""

    metadata: str
    files: int
    chunks: str


@dataclass(frozen=True)
class Manifest:
    """SHA-256 of the group's zarr.json (empty: it has none), its arrays by name, and SHA-256 of the manifest itself.

    `texts` are the metadata files that were compared with it, by array name; "" for the group.
    """

    metadata: str
    arrays: dict[str, ManifestEntry]
    digest: str
    texts: dict[str, bytes] = field(default_factory=dict, compare=False, repr=False)


def write_manifest(root: Path) -> None:
    """Write the manifest of the group at `root`, removing files that interrupted writers left."""
    arrays = {}
    for name in array_names(root):
        for torn in root.joinpath(name).rglob("*.partial"):
            torn.unlink()
        digest, count = chunks_digest(root / name)
        arrays[name] = ManifestEntry(hashlib.sha256(read_metadata(root / name / METADATA)).hexdigest(), count, digest)
    there = (root / METADATA).is_file()
    metadata = hashlib.sha256(read_metadata(root / METADATA)).hexdigest() if there else ""
    root.joinpath(MANIFEST).mkdir(exist_ok=True)
    root.joinpath(MANIFEST, METADATA).write_bytes(_render(metadata, arrays))


def _render(metadata: str, arrays: dict[str, ManifestEntry]) -> bytes:
    """Serialize a manifest in the only form that is accepted."""
    stated = {"metadata": metadata, "arrays": {name: asdict(array) for name, array in arrays.items()}}
    digest = hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()
    node = {"attributes": {"sha256": digest, **stated}, "node_type": "group", "zarr_format": 3}
    return json.dumps(node, sort_keys=True, indent=1).encode() + b"\n"


def has_manifest(root: str | os.PathLike[str]) -> bool:
    """Return True if there is a manifest, valid or not."""
    return os.path.lexists(Path(root, MANIFEST, METADATA))


def read_manifest(root: Path) -> Manifest:
    """Read the manifest of a group and compare all metadata with it; a DataError names the file that was changed."""
    path = root / MANIFEST / METADATA
    content = read_metadata(path, _MANIFEST_BYTES)
    try:
        stated = json.loads(content)["attributes"]
        arrays = {name: ManifestEntry(**array) for name, array in stated["arrays"].items()}
        digests = {"": stated["metadata"], **{name: array.metadata for name, array in arrays.items()}}
        sound = _render(digests[""], arrays) == content and not {".", "..", MANIFEST} & set(arrays)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        sound = False
    if not sound or len(digests) != len(arrays) + 1 or any("/" in name or "\0" in name for name in arrays):
        raise DataError(f"{path}: manifest is damaged; {RESTORE}")
    if len(arrays) > _MOST_ARRAYS:
        raise DataError(f"{path}: expected at most {_MOST_ARRAYS:,} arrays, found {len(arrays):,}")
    # all are kept, so those of arrays, a few kB each, have a smaller limit
    limits = {name: _ARRAY_METADATA_BYTES if name else _METADATA_BYTES for name in digests}
    texts = {name: read_metadata(root / name / METADATA, limit) for name, limit in limits.items()}
    for name, text in texts.items():
        if hashlib.sha256(text).hexdigest() != digests[name]:
            raise DataError(f"{root / name / METADATA}: changed since the group was published; {RESTORE}")
    added = sorted(set(array_names(root)) - set(arrays))
    if added:
        raise DataError(f"{root / added[0]}: array is not listed in the manifest; move it elsewhere")
    return Manifest(digests[""], arrays, hashlib.sha256(content).hexdigest(), texts)


def changed_arrays(root: Path, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield (name, text) for arrays whose chunks are not those that were published.

    Damaged chunks fail their checksum. This finds valid chunks in the wrong place: swapped, outdated, added or lost.
    """
    for name, array in manifest.arrays.items():
        digest, count = chunks_digest(root / name)
        if count != array.files:
            yield name, f"expected {array.files} chunks as published, found {count} files"
        elif digest != array.chunks:
            yield name, f"its {count} chunks differ from the published ones: swapped, replaced or damaged"


def kind_of(root: str | os.PathLike[str]) -> str | None:
    """Return the kind recorded in a group: "corpus", "predictions", …; None if it is not ours.

    Nothing is verified; `read_manifest` does that. Damaged metadata beside a manifest and rows count as a corpus.
    """
    try:
        return str(json.loads(read_metadata(Path(root, METADATA)))["attributes"][ATTRIBUTE]["kind"])
    except (DataError, ValueError, TypeError, KeyError, RecursionError):
        return "corpus" if has_manifest(root) and Path(root, "x").is_dir() else None


def array_names(root: Path) -> list[str]:
    """Return the sorted names of a group's arrays: directories with their own metadata, except the manifest."""
    names = []
    with os.scandir(root) as entries:
        for count, entry in enumerate(entries):
            if count > 2 * _MOST_ARRAYS:
                raise DataError(f"{root}: expected at most {_MOST_ARRAYS:,} arrays, found more than {count:,} entries")
            if entry.is_dir() and entry.name != MANIFEST and os.path.lexists(os.path.join(entry.path, METADATA)):
                names.append(entry.name)
    return sorted(names)


def read_metadata(path: Path, limit_bytes: int = _METADATA_BYTES) -> bytes:
    """Read a small regular file; refuse links and files whose parsing would cost much memory."""
    try:
        # a link could lead outside, a pipe would block
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise DataError(f"{path}: expected a file, found something else; {RESTORE}")
            content = file.read(limit_bytes + 1)
    except OSError as error:
        if os.path.islink(path):
            raise DataError(f"{path}: expected a file, found a link") from error
        raise DataError(f"{path}: cannot be read: {error.strerror}; {RESTORE}") from error
    if len(content) > limit_bytes:
        raise DataError(f"{path}: expected at most {limit_bytes:,} bytes, found {os.path.getsize(path):,}")
    items = sum(map(content.count, (b",", b"[", b"{")))
    if items > _METADATA_ITEMS:
        raise DataError(f"{path}: expected at most {_METADATA_ITEMS:,} items, found {items:,}")
    return content


# ---------------------------------------------------------------- digests of chunks


@dataclass(frozen=True, eq=False)
class ChunkDigests:
    """Sizes (k,) int64 and ends (k, 4) uint8, which are the crc32c, of the chunks `first` and up of an array."""

    first: int
    sizes: NDArray[np.int64]
    ends: NDArray[np.uint8]

    def restrict(self, start: int, stop: int) -> ChunkDigests:
        """Return the digests of the chunks start … stop that are among these."""
        low, high = max(0, start - self.first), max(0, stop - self.first)
        return ChunkDigests(self.first + low, self.sizes[low:high], self.ends[low:high])

    def require(self, array: zarr.Array, start: int, stop: int) -> None:
        """Raise an error that names chunk and rows unless the chunks of rows start … stop match."""
        base, step, stop = directory_of(array), array.chunks[0], min(stop, array.shape[0])
        for index, key in enumerate(chunk_keys(array, start, stop), start // step):
            rows, place = f"{array.store_path}: rows {index * step}:{min((index + 1) * step, stop)}", index - self.first
            try:
                size, end = _size_and_end(base / key)
            except FileNotFoundError as error:
                raise ChunkMissingError(
                    f"{rows} are missing: chunk {key} was removed after the store was opened; restore it from a copy"
                ) from error
            if size != self.sizes[place] or end != self.ends[place, : len(end)].tobytes():
                raise ChunkCorruptError(
                    f"{rows} have changed: chunk {key} was modified or replaced after the store was opened; do not "
                    "modify a store while it is read"
                )


def chunks_digest(base: Path) -> tuple[str, int]:
    """Return the SHA-256 of the names, sizes and ends of all chunk files of the array at `base`, and their number."""
    paths = sorted(os.path.relpath(os.path.join(at, name), base) for at, _, names in os.walk(base) for name in names)
    keys = [key for key in paths if key != METADATA]
    return _digest_of((key, *_size_and_end(base / key)) for key in keys), len(keys)


def _digest_of(chunks: Iterable[tuple[str, int, bytes]]) -> str:
    """Return the SHA-256 of (name, size, end) of chunk files in the order of their names."""
    return hashlib.sha256(b"".join(f"{key} {size} {end.hex()}\n".encode() for key, size, end in chunks)).hexdigest()


def _size_and_end(path: Path) -> tuple[int, bytes]:
    """Return the size and last four bytes, the crc32c, of a chunk's file."""
    with open(path, "rb") as chunk:
        size = os.fstat(chunk.fileno()).st_size
        chunk.seek(max(0, size - 4))
        return size, chunk.read(4)


# ---------------------------------------------------------------- opening


@dataclass(frozen=True, eq=False)
class Store:
    """A published group of ours, opened for reading: its attributes and its manifest."""

    root: Path
    attributes: dict[str, Any]
    manifest: Manifest

    @property
    def grid(self) -> bool:
        """Whether it holds the predictions of a grid, whose chunks are blocks and whose values may be NaN."""
        return "dims" in self.attributes

    def array(self, name: str) -> zarr.Array:
        """Open the array `name`, of numbers or text, with the metadata in the manifest."""
        if name not in self.manifest.arrays:
            raise DataError(f"{self.root}: array {name!r} is missing")
        place = StorePath(LocalStore(self.root, read_only=True), name)
        try:
            array = zarr.Array(zarr.AsyncArray(json.loads(self.manifest.texts[name]), place))
        except Exception as error:  # errors of zarr for metadata that it does not understand
            raise DataError(f"{self.root}: the metadata of {name!r} cannot be read: {error}") from error
        if np.dtype(array.dtype).kind not in "biufT":
            raise DataError(f"{self.root}: {name!r} is not an array of numbers or text")
        cut = not self.grid and any(map(int.__gt__, array.shape[1:], array.chunks[1:]))
        if 0 in array.chunks or cut:
            raise DataError(f"{self.root}: {name!r} has chunks of the shape {array.chunks}; expected whole rows")
        return array

    def digests(self, name: str, array: zarr.Array) -> ChunkDigests:
        """Read the digests of all chunks of an array; raise an error if they are not those of the manifest."""
        if array.nchunks != self.manifest.arrays[name].files:  # before listing as many keys as the array claims
            self._explain(array)
        base, keys = directory_of(array), list(chunk_keys(array))
        try:
            files = {key: _size_and_end(base / key) for key in keys}
        except FileNotFoundError:
            require_chunks(array)  # name a missing chunk
            raise
        if _digest_of((key, *files[key]) for key in sorted(keys)) != self.manifest.arrays[name].chunks:
            self._explain(array)
        sizes = np.array([files[key][0] for key in keys], np.int64)
        ends = np.frombuffer(b"".join(files[key][1].ljust(4, b"\0") for key in keys), np.uint8).reshape(-1, 4)
        return ChunkDigests(0, sizes, ends)

    def _explain(self, array: zarr.Array) -> NoReturn:
        """Raise the cause for chunks that are not those of the manifest."""
        if read_manifest(self.root) != self.manifest:
            raise DataError(f"{self.root}: the store was replaced after it was opened; open it again")
        for start in range(0, *array.shape[:1], *array.chunks[:1]) if array.ndim else ():
            read(array, start, min(start + array.chunks[0], array.shape[0]))  # name a damaged chunk
        raise DataError(
            f"{directory_of(array)}: chunks differ from the published ones: swapped, replaced or older; {RESTORE}"
        )


def open_store(path: str | os.PathLike[str], kind: str) -> Store:
    """Open a published group of the given kind; a DataError names what is wrong.

    All metadata is compared with the manifest before any of it is parsed.
    """
    root = Path(os.path.abspath(path))
    if os.path.lexists(root / MANIFEST / METADATA):
        manifest = read_manifest(root)
        try:
            attributes = json.loads(manifest.texts[""])["attributes"][ATTRIBUTE]
            actual = attributes["kind"]
        except (ValueError, TypeError, KeyError, RecursionError):
            actual = None
        if actual == kind:
            return Store(root, attributes, manifest)
    elif not (root / METADATA).is_file():
        hint = "the path does not exist" if not root.exists() else "found no zarr v3 group"
        if kind == "corpus" and root.is_file():
            hint = "found a file; make a corpus of it by bigkernel ingest FILE CORPUS"
        raise DataError(f"{root}: expected a {kind}, but {hint}")
    elif (actual := kind_of(root)) == kind:
        raise DataError(
            f"{root}: expected a {kind} with a manifest, found none: writing was interrupted, or the manifest was "
            f"lost; {_REWRITE.get(kind, 'start a new run')}"
        )
    raise DataError(f"{root}: expected a {kind}, found {actual or 'a zarr group without our attributes'}")


def open_arrays(
    path: str | os.PathLike[str], kind: str, names: Iterable[str], digest: str = ""
) -> dict[str, tuple[zarr.Array, ChunkDigests]]:
    """Open arrays of a published group with the digests of their chunks, as in its manifest.

    `digest` is that of the manifest when the group was first opened, if known. Raises ChunkMissingError,
    ChunkCorruptError or DataError if the chunks differ or the store was replaced.
    """
    store = open_store(path, kind)
    if digest not in ("", store.manifest.digest):
        raise DataError(f"{store.root}: the store was replaced after it was opened; open it again")
    arrays = {name: store.array(name) for name in names}
    return {name: (array, store.digests(name, array)) for name, array in arrays.items()}


def directory_of(array: zarr.Array) -> Path:
    """Return the directory of an array of a local store."""
    return Path(array.store_path.store.root) / array.store_path.path  # type: ignore[attr-defined]


def chunk_keys(array: zarr.Array, start: int = 0, stop: int | None = None) -> Iterator[str]:
    """Yield the keys of the chunks of an array of ours in order, or of those with its rows start:stop."""
    grid = [range(-(-size // chunk)) for size, chunk in zip(array.shape, array.chunks, strict=True)]
    if grid and (start or stop is not None):
        grid[0] = grid[0][start // array.chunks[0] : None if stop is None else -(-stop // array.chunks[0])]
    return ("/".join(map(str, ("c", *place))) for place in product(*grid))


def require_chunks(array: zarr.Array, keys: Iterable[str] | None = None) -> None:
    """Raise `ChunkMissingError` for the first missing chunk of an array of ours, or of those of `keys`."""
    root = directory_of(array)
    lost = list(islice((key for key in keys or chunk_keys(array) if not (root / key).is_file()), 100))
    if lost:
        count = len(lost) if len(lost) < 100 else "100 or more"
        raise ChunkMissingError(
            f"{array.store_path}: {count} of {array.nchunks} chunks are missing, the first is {lost[0]}; "
            "restore the files or write the array again"
        )


# ---------------------------------------------------------------- reading


def read(array: zarr.Array, start: int, stop: int, digests: ChunkDigests | None = None) -> NDArray[Any]:
    """Read rows start:stop of `array` and verify all checksums; after an error of the store, try again by chunk.

    `digests` are those of the chunks with these rows, compared with the files after reading. ChunkCorruptError and
    ChunkMissingError name the array, the chunk and its rows; OSError: the store failed `bigkernel.retries` more times.
    """
    try:
        values = np.asarray(array[start:stop] if array.ndim else array[...])
        if digests is not None and stop > start:
            digests.require(array, start, stop)
        return values
    except Exception as error:
        return _read_again(array, start, stop, digests, error)


def _read_again(
    array: zarr.Array, start: int, stop: int, digests: ChunkDigests | None, error: Exception
) -> NDArray[Any]:
    """Read chunk by chunk: many reads rarely all succeed, and errors can name the chunk."""
    if _is_transient(error):
        _logger.warning("%s: reading rows %s:%s failed (%s): retrying", array.store_path, start, stop, error)
    values = np.empty((stop - start, *array.shape[1:]), array.dtype)
    for key, piece in pieces_of(array, start, stop):
        rows = slice(piece[0].start - start, piece[0].stop - start)
        values[(rows, *piece[1:])] = read_piece(array, key, piece, digests)
    return values


def _is_transient(error: Exception) -> bool:
    """Return True if a retry may succeed; errors of codecs about damaged bytes have no errno."""
    return isinstance(error, OSError) and error.errno is not None and not isinstance(error, FileNotFoundError)


def pieces_of(array: zarr.Array, start: int, stop: int) -> Iterator[tuple[str, tuple[slice, ...]]]:
    """Yield the key of each chunk (shard) that rows start:stop touch, and their slices in it."""
    shape = ((start, stop), *((0, size) for size in array.shape[1:]))[: array.ndim]
    steps = array.shards or array.chunks
    for index in product(*(range(a // step, -(-b // step)) for (a, b), step in zip(shape, steps, strict=True))):
        bounds = zip(shape, index, steps, strict=True)
        piece = tuple(slice(max(low, i * step), min(high, (i + 1) * step)) for (low, high), i, step in bounds)
        yield array.metadata.encode_chunk_key(index), piece


def read_piece(
    array: zarr.Array, key: str, piece: tuple[slice, ...], digests: ChunkDigests | None = None
) -> NDArray[Any]:
    """Read what is in a chunk, one of `pieces_of`, as `read` does."""
    what = f"{array.store_path}: rows " + (f"{piece[0].start}:{piece[0].stop}" if piece else "0:1")

    def read_once() -> NDArray[Any]:
        values = np.asarray(array[piece])
        if digests is not None:
            digests.require(array, piece[0].start, piece[0].stop)
        return values

    try:
        return retry(
            read_once,
            times=settings().retries,
            passing=_is_transient,
            failed=lambda error: _logger.warning("%s could not be read (%s): retrying", what, error),
            pause_seconds=_RETRY_SECONDS,
        )
    except BigKernelError:
        raise
    except Exception as error:
        if isinstance(error, FileNotFoundError) or type(error).__name__ == "ChunkNotFoundError":
            raise ChunkMissingError(f"{what} are missing; restore chunk {key} from a copy") from error
        if not _is_transient(error):
            raise ChunkCorruptError(f"{what} cannot be decoded ({error}); restore chunk {key} from a copy") from error
        raise


def retry(
    task: Callable[[], T],
    *,
    times: int,
    passing: Callable[[Exception], bool],
    failed: Callable[[Exception], None] = lambda error: None,
    pause_seconds: float = 0.1,
) -> T:
    """Return the result of `task`, repeated up to `times` times after errors that are `passing`.

    `failed` is called with each error that is followed by another attempt. Pauses double each time. The error of the
    last attempt, and any other one, is raised.
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


def read_group(
    path: str | os.PathLike[str], kind: str, *, limit_bytes: int = 2**36
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read arrays and attributes of a published group, after checking that all shapes fit in `limit_bytes`."""
    store = open_store(path, kind)
    links = [str(entry) for entry in store.root.rglob("*") if entry.is_symlink()]
    if links:
        raise DataError(f"{links[0]}: expected a file of the {kind}, found a link")
    arrays = {name: store.array(name) for name in sorted(store.manifest.arrays)}
    total = sum(int(np.prod(array.shape, dtype=object)) * array.dtype.itemsize for array in arrays.values())
    if total > limit_bytes:
        raise DataError(f"{path}: expected arrays of at most {limit_bytes:,} bytes, found {total:,}")
    digests = {name: store.digests(name, array) for name, array in arrays.items()}
    for name, array in arrays.items():
        _require_content(array, int(digests[name].sizes.sum()))
    contents = {
        name: read(array, 0, array.shape[0], digests[name]) if array.ndim else np.asarray(array[...])
        for name, array in arrays.items()
    }
    return contents, store.attributes


def _require_content(array: zarr.Array, stored_bytes: int) -> None:
    """Raise an error if an array claims more than its files can hold, before allocating memory."""
    codecs = [codec["name"] for codec in cast(Any, array.metadata.to_dict()["codecs"])]
    if codecs not in (["bytes", "crc32c"], ["bytes", "zstd", "crc32c"]):
        raise DataError(f"{array.store_path}: expected codecs that end in crc32c, found {', '.join(codecs)}")
    claimed = int(np.prod(array.chunks, dtype=object)) * array.dtype.itemsize * array.nchunks
    if claimed > max(_SMALL_BYTES, stored_bytes * (_ZSTD_RATIO if "zstd" in codecs else 1)):
        raise DataError(f"{array.store_path}: claims {claimed:,} bytes, more than its files of {stored_bytes:,} hold")


def digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the SHA-256 over names, dtypes, shapes and bytes of `arrays`, in the order of their names."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        total.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        total.update(array.data.cast("B") if array.size else b"")
    return total.hexdigest()


def stored_fingerprint(array: zarr.Array) -> str:
    """Return a digest of a stored array's metadata and of name, size and end of every chunk, without reading it."""
    total = hashlib.sha256(json.dumps(array.metadata.to_dict(), sort_keys=True, default=str).encode())
    if getattr(array.store_path.store, "root", None) is not None:
        total.update(chunks_digest(directory_of(array))[0].encode())
    return total.hexdigest()


# ---------------------------------------------------------------- writing


def require_names(outputs: Sequence[str], beside: Iterable[str] = (), *, stored: bool = True) -> None:
    """Raise `DataError` unless outputs have names of their own, none of them `beside`, that zarr can store."""
    taken = list(beside)
    for name in outputs:
        if name in taken:
            raise DataError(
                f"{name!r} would be the name of two outputs, or of an output and a dimension or coordinate; rename the "
                "target, y.rename(…), or the column of ids"
            )
        taken.append(name)
    for name in taken if stored else ():
        odd = not name or name.startswith((".", "__")) or set(name) & {"/", "\0"} or len(os.fsencode(name)) > 255
        if odd or name in (MANIFEST, METADATA):
            raise DataError(f"{name!r} cannot be the name of an array of zarr; rename the target, or the coordinate")


def create(
    group: zarr.Group,
    name: str,
    *,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    dtype: Any,
    compress: bool = True,
    dims: Sequence[str] | None = None,
) -> zarr.Array:
    """Create an empty array of ours in `group`: crc32c last, zstd before it when `compress`, no shards.

    `dims` are the names of its dimensions.
    `chunks` may exceed `shape` (the only chunk is then ragged). Each chunk must be written whole, by one task.
    """
    codecs: list[Any] = [ZstdCodec(level=1), Crc32cCodec()] if compress else [Crc32cCodec()]
    return group.create_array(
        name,
        shape=shape,
        chunks=tuple(max(1, size) for size in chunks),
        dtype=np.dtype(dtype),
        compressors=codecs,
        fill_value=_missing(np.dtype(dtype)),
        config={"write_empty_chunks": True},
        dimension_names=dims,
    )


def _missing(dtype: np.dtype[Any]) -> object:
    """Return what other programs read where a chunk is lost: NaN, "", or among whole numbers no label."""
    return {"f": np.nan, "T": "", "i": -1}.get(dtype.kind, 0)


def cast_values(values: NDArray[Any], dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return values in another dtype, and where that changes one; rounding to a shorter float is not a change."""
    with np.errstate(invalid="ignore", over="ignore"):
        cast: NDArray[Any] = values.astype(dtype)
    return cast, np.isinf(cast) & np.isfinite(values) if dtype.kind == "f" else cast != values


def write(array: zarr.Array, start: int, values: NDArray[Any]) -> None:
    """Write rows from `start` chunk by chunk; after an error nothing is still being written."""
    if not array.ndim:
        array[...] = values
        return
    step = array.chunks[0]
    for first in range(0, len(values), step):
        array[start + first : start + first + step] = values[first : first + step]


def publish(
    path: str | os.PathLike[str],
    kind: str,
    arrays: Mapping[str, NDArray[Any]],
    attributes: Mapping[str, Any],
    *,
    overwrite: bool = False,
) -> None:
    """Write `arrays` and `attributes` atomically as a group of ours at `path`."""
    with publishing(path, kind=kind, overwrite=overwrite) as scratch:
        group = zarr.create_group(scratch, zarr_format=3, attributes={ATTRIBUTE: {"kind": kind, **attributes}})
        for name, values in arrays.items():
            rows = max(1, min(len(values), 2**24 // max(1, values[:1].nbytes))) if values.ndim else 1
            chunks = (rows, *values.shape[1:]) if values.ndim else ()
            compress = values.dtype.kind in "iu"
            array = create(group, name, shape=values.shape, chunks=chunks, dtype=values.dtype, compress=compress)
            write(array, 0, values)


@contextmanager
def publishing(
    path: str | os.PathLike[str], *, kind: str, overwrite: bool = False, keep: str = "", resume: bool = False
) -> Iterator[Path]:
    """Yield a directory that gets a manifest and becomes `path` by one rename if the block succeeds.

    After an error the directory is removed and `path` is unchanged. With `overwrite` an existing `path` is replaced if
    it is a `kind` of ours; nothing else is ever removed.

    `keep` is a token that names the directory, which then survives an error or interruption. With `resume` the chunks
    that an interrupted block of the same token left are reused; otherwise they are removed. On resuming, metadata must
    be written again and chunks read back: none of the files is certain to be complete.
    """
    target = Path(os.path.abspath(path))
    if os.path.exists(target) and not overwrite:
        raise DataError(f"{target}: already exists; choose another path or set overwrite")
    if os.path.exists(target) and kind_of(target) != kind:
        raise DataError(f"{target}: expected a {kind} to replace, found something else; choose another path")
    scratch = scratch_path(target, keep)
    with writing(target):
        if keep and resume:
            for stale in [file for pattern in ("*.partial", METADATA) for file in scratch.rglob(pattern)]:
                stale.unlink()
        elif keep:
            shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True, exist_ok=bool(keep))
        try:
            with writing(target):  # report the free space before the directory is removed
                yield scratch
                write_manifest(scratch)
                sync(scratch)
                replace_place(scratch, target)
        except BaseException:
            if not keep:
                _remove(scratch)
            raise


def _remove(scratch: Path) -> None:
    """Remove a directory in its place: an interrupted task, of a worker too, may still add a file to it."""
    for _ in range(10):
        shutil.rmtree(scratch, ignore_errors=True)
        time.sleep(0.01)
        if not scratch.exists():
            return
