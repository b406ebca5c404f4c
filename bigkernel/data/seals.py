"""What tells whether anything of a stored group was changed: its seal, and the marks of its chunk files.

crc32c guards the bytes of a chunk. It does not guard what says how to read them (shape, dtype, codecs, attributes such
as `scale` and `classes`), nor which chunks belong together, and zarr reads a chunk that is not there as zeros. The seal
guards them: in the group `seal` inside, which holds nothing but these attributes (a plain file beside zarr.json would
make zarr warn whenever the group is listed),

    sha256     of the rest of the seal
    metadata   SHA-256 of the group's zarr.json
    arrays     of every array the SHA-256 of its zarr.json, and number and SHA-256 of the names, sizes and last four
               bytes (their crc32c) of its chunks

A seal is no signature: who can write the group can write its seal. It tells damage and edits by hand from what a
program of ours wrote, before zarr parses a byte of it. The `Marks` of a sealed array are its chunks' sizes and ends,
taken and compared with the seal when it is opened; every read compares the files that it has read with them. So a store
that is removed, exchanged or edited under a reader is an error at the next read, on every thread and worker.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Container, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bigkernel.errors import ChunkCorrupt, ChunkMissing, DataError

if TYPE_CHECKING:
    import zarr

METADATA = "zarr.json"
ATTRIBUTE = "bigkernel"  # the key of a group's attributes under which all of ours stands
SEAL = "seal"
_METADATA_BYTES = 2**23  # most that is read of one metadata file
_METADATA_ITEMS = 2**17  # most commas and brackets in it: what parsing it may cost in memory
_SEAL_BYTES = 2**19
_MOST_ARRAYS = 1000
RESTORE = "restore it from a copy, or write the group again"


@dataclass(frozen=True)
class SealedArray:
    """SHA-256 of an array's zarr.json, number of its chunk files, SHA-256 of their names, sizes and ends."""

    metadata: str
    files: int
    chunks: str


@dataclass(frozen=True)
class Seal:
    """SHA-256 of the group's zarr.json (empty: it has none), its arrays by name, and SHA-256 of the seal itself."""

    metadata: str
    arrays: dict[str, SealedArray]
    digest: str


def _render(metadata: str, arrays: dict[str, SealedArray]) -> bytes:
    """Return the file of a seal, in the one form that is accepted."""
    stated = {"metadata": metadata, "arrays": {name: asdict(array) for name, array in arrays.items()}}
    digest = hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()
    node = {"attributes": {"sha256": digest, **stated}, "node_type": "group", "zarr_format": 3}
    return json.dumps(node, sort_keys=True, indent=1).encode() + b"\n"


def write(root: Path) -> None:
    """Seal the group at `root` as it is; files that interrupted writers left half-written are removed."""
    arrays = {}
    for name in array_names(root):
        for torn in root.joinpath(name).rglob("*.partial"):
            torn.unlink()
        digest, count = chunks_digest(root / name)
        said = metadata_bytes(root / name / METADATA)
        arrays[name] = SealedArray(hashlib.sha256(said).hexdigest(), count, digest)
    there = (root / METADATA).is_file()
    metadata = hashlib.sha256(metadata_bytes(root / METADATA)).hexdigest() if there else ""
    root.joinpath(SEAL).mkdir(exist_ok=True)
    root.joinpath(SEAL, METADATA).write_bytes(_render(metadata, arrays))


def is_sealed(root: Path) -> bool:
    """Return True where a seal is there, whatever it says."""
    return os.path.lexists(root / SEAL / METADATA)


def kind_of(root: str | os.PathLike[str]) -> str | None:
    """Return the kind that a zarr group says that it is: "corpus", "predictions", …; None where it is none of ours.

    Nothing is verified; `verify` does that. A sealed group with damaged metadata is still told by its text.
    """
    content = b""
    try:
        content = metadata_bytes(Path(root, METADATA))
        return str(json.loads(content)["attributes"][ATTRIBUTE]["kind"])
    except (DataError, ValueError, TypeError, KeyError, RecursionError):
        found = re.search(rb'"kind": ?"([a-z]+)"', content)
        return found[1].decode() if found and is_sealed(Path(root)) else None


def verify(root: Path) -> Seal:
    """Read the seal of a group, and compare all metadata with it; a DataError names the file that is not as it was."""
    path = root / SEAL / METADATA
    content = metadata_bytes(path, _SEAL_BYTES)
    try:
        stated = json.loads(content)["attributes"]
        arrays = {name: SealedArray(**array) for name, array in stated["arrays"].items()}
        seal = Seal(stated["metadata"], arrays, hashlib.sha256(content).hexdigest())
        sound = _render(seal.metadata, arrays) == content
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        sound = False
    if not sound:
        raise DataError(f"{path}: the seal of the group is damaged; {RESTORE}")
    for name in arrays:
        if name in ("", ".", "..", SEAL) or "/" in name or "\0" in name:
            raise DataError(f"{path}: {name!r} is no name of an array; {RESTORE}")
    if len(arrays) > _MOST_ARRAYS:
        raise DataError(f"{path}: names {len(arrays):,} arrays, a group of ours has at most {_MOST_ARRAYS:,}")
    digests = {METADATA: seal.metadata, **{f"{name}/{METADATA}": array.metadata for name, array in arrays.items()}}
    for name, digest in digests.items():
        if hashlib.sha256(metadata_bytes(root / name)).hexdigest() != digest:
            raise DataError(f"{root / name}: is not as it was when the group was sealed; {RESTORE}")
    added = sorted(set(array_names(root)) - set(arrays))
    if added:
        raise DataError(f"{root / added[0]}: an array that the seal of the group does not name; move it elsewhere")
    return seal


def changed_arrays(root: Path, seal: Seal) -> Iterator[tuple[str, str]]:
    """Yield the arrays whose chunks are not those that were sealed, with what differs: (name, text).

    A damaged chunk is seen by its checksum. This finds sound chunks in the wrong place: swapped, older, added, lost.
    """
    for name, array in seal.arrays.items():
        digest, count = chunks_digest(root / name)
        if count != array.files:
            yield name, f"{array.files} chunks were sealed, {count} files are there"
        elif digest != array.chunks:
            yield name, f"its {count} chunks are not those that were sealed: swapped, exchanged or damaged"


def array_names(root: Path) -> list[str]:
    """Return the names of the arrays of a group, sorted: directories with metadata of their own, the seal apart."""
    found = []
    with os.scandir(root) as entries:
        for count, entry in enumerate(entries):
            if count > 2 * _MOST_ARRAYS:
                raise DataError(f"{root}: more than {count:,} entries; a group of ours has at most {_MOST_ARRAYS:,}")
            if entry.is_dir() and entry.name != SEAL and os.path.lexists(os.path.join(entry.path, METADATA)):
                found.append(entry.name)
    return sorted(found)


def chunks_digest(base: Path, only: Container[str] | None = None) -> tuple[str, int]:
    """Return the SHA-256 of the names, sizes and ends of all chunk files of the array at `base`, and their number.

    `only`: names of the files that count, where others may lie beside them.
    """
    found = sorted(os.path.relpath(os.path.join(at, name), base) for at, _, names in os.walk(base) for name in names)
    keys = [key for key in found if key != METADATA and (only is None or key in only)]
    return _digest((key, *_mark_of(base / key)) for key in keys), len(keys)


def _digest(marks: Iterable[tuple[str, int, bytes]]) -> str:
    """Return the SHA-256 of (name, size, end) of chunk files in the order of their names."""
    return hashlib.sha256(b"".join(f"{key} {size} {end.hex()}\n".encode() for key, size, end in marks)).hexdigest()


def _mark_of(path: Path) -> tuple[int, bytes]:
    """Return size and last four bytes, the crc32c, of a chunk's file."""
    with open(path, "rb") as chunk:
        size = os.fstat(chunk.fileno()).st_size
        chunk.seek(max(0, size - 4))
        return size, chunk.read(4)


@dataclass(frozen=True, eq=False)
class Marks:
    """Sizes (k,) int64 and ends (k, 4) uint8 of the chunks `first` and up of an array whose chunks hold whole rows."""

    first: int
    sizes: NDArray[np.int64]
    ends: NDArray[np.uint8]
    tail: str  # of a chunk's key: "c/3/0" is c/3 and /0

    @classmethod
    def of(cls, array: zarr.Array, base: Path) -> tuple[Marks, str]:
        """Return those of all chunks of an array in the directory `base`, and what its seal says of such chunks."""
        tail = "/0" * (array.ndim - 1)
        keys = [f"c/{index}{tail}" for index in range(array.nchunks)]
        found = {key: _mark_of(base / key) for key in keys}
        sizes = np.array([found[key][0] for key in keys], np.int64)
        ends = np.array([list(found[key][1].ljust(4, b"\0")) for key in keys], np.uint8).reshape(-1, 4)
        return cls(0, sizes, ends, tail), _digest((key, *found[key]) for key in sorted(keys))

    def part(self, start: int, stop: int) -> Marks:
        """Return those of the chunks start … stop, where they are among these."""
        low, high = max(0, start - self.first), max(0, stop - self.first)
        return Marks(self.first + low, self.sizes[low:high], self.ends[low:high], self.tail)

    def require(self, array: zarr.Array, base: Path, start: int, stop: int) -> None:
        """Raise ChunkMissing or ChunkCorrupt, by array, rows and chunk, unless the chunks start … stop are these."""
        for index in range(start, stop):
            key, place = f"c/{index}{self.tail}", index - self.first
            rows = f"{index * array.chunks[0]}:{min((index + 1) * array.chunks[0], array.shape[0])}"
            try:
                size, end = _mark_of(base / key)
            except FileNotFoundError as error:
                raise ChunkMissing(
                    f"{array.store_path}: rows {rows} are missing: the chunk {key} was removed after the store was "
                    "opened; restore it from a copy"
                ) from error
            if size != self.sizes[place] or end != self.ends[place, : len(end)].tobytes():
                raise ChunkCorrupt(
                    f"{array.store_path}: rows {rows} are not those that were opened: the chunk {key} was changed or "
                    "exchanged since; a store must stay as it is while it is read"
                )


def metadata_bytes(path: Path, limit_bytes: int = _METADATA_BYTES) -> bytes:
    """Read a small regular file; refuse it before it is parsed where it is a link or would cost much memory."""
    try:
        # a link could lead outside, a pipe would block
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise DataError(f"{path}: expected a file, found something else; {RESTORE}")
            content = file.read(limit_bytes + 1)
    except OSError as error:
        if os.path.islink(path):
            raise DataError(f"{path}: a link; a group holds its own files") from error
        raise DataError(f"{path}: cannot be read: {error.strerror}; {RESTORE}") from error
    if len(content) > limit_bytes:
        raise DataError(f"{path}: has {os.path.getsize(path):,} bytes, at most {limit_bytes:,} are read")
    items = sum(map(content.count, (b",", b"[", b"{")))
    if items > _METADATA_ITEMS:
        raise DataError(f"{path}: has {items:,} items, at most {_METADATA_ITEMS:,} are read")
    return content
