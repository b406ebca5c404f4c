"""The seal of a stored group: what tells whether anything of the group was changed after it was published.

crc32c guards the bytes of a chunk. It does not guard what says how to read them (shape, dtype, codecs, attributes such
as `scale` and `classes`), nor which chunks belong together. The seal does: in the group `seal` inside, which holds
nothing but these attributes (a plain file beside zarr.json would make zarr warn whenever the group is listed),

    sha256     of the rest of the seal
    metadata   SHA-256 of the group's zarr.json
    arrays     of every array the SHA-256 of its zarr.json, and number and SHA-256 of the names, sizes and last four
               bytes (their crc32c) of its chunks

A seal is no signature: who can write the group can write its seal. It tells damage and edits by hand from what a
program of ours wrote, before zarr parses a byte of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Container, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from bigkernel.errors import DataError

METADATA = "zarr.json"
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
    """The content of a seal: SHA-256 of the group's zarr.json (empty: it has none), and its arrays by name."""

    metadata: str
    arrays: dict[str, SealedArray]

    @property
    def digest(self) -> str:
        """What tells this seal from any other."""
        return hashlib.sha256(self.render()).hexdigest()

    def render(self) -> bytes:
        """The whole file, in the one form that is accepted."""
        stated = asdict(self)
        digest = hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()
        node = {"attributes": {"sha256": digest, **stated}, "node_type": "group", "zarr_format": 3}
        return json.dumps(node, sort_keys=True, indent=1).encode() + b"\n"

    @classmethod
    def parse(cls, path: Path) -> Seal:
        """Read the file at `path`; whatever differs from its one form is a DataError."""
        content = metadata_bytes(path, _SEAL_BYTES)
        try:
            stated = json.loads(content)["attributes"]
            seal = cls(stated["metadata"], {name: SealedArray(**array) for name, array in stated["arrays"].items()})
            sound = seal.render() == content
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            sound = False
        if not sound:
            raise DataError(f"{path}: the seal of the group is damaged; {RESTORE}")
        for name in seal.arrays:
            if name in ("", ".", "..", SEAL) or "/" in name or "\0" in name:
                raise DataError(f"{path}: {name!r} is no name of an array; {RESTORE}")
        if len(seal.arrays) > _MOST_ARRAYS:
            raise DataError(f"{path}: names {len(seal.arrays):,} arrays, a group of ours has at most {_MOST_ARRAYS:,}")
        return seal


def write(root: Path) -> None:
    """Seal the group at `root` as it is; files that interrupted writers left half-written are removed."""
    arrays = {}
    for name in array_names(root):
        for torn in root.joinpath(name).rglob("*.partial"):
            torn.unlink()
        digest, count = chunks_digest(root / name)
        arrays[name] = SealedArray(_sha256(root / name / METADATA), count, digest)
    metadata = _sha256(root / METADATA) if (root / METADATA).is_file() else ""
    root.joinpath(SEAL).mkdir(exist_ok=True)
    root.joinpath(SEAL, METADATA).write_bytes(Seal(metadata, arrays).render())


def is_sealed(root: Path) -> bool:
    """True where a seal is there, whatever it says."""
    return os.path.lexists(root / SEAL / METADATA)


def verify(root: Path) -> Seal:
    """Compare all metadata of the group with its seal, which is returned.

    Raises
    ------
    DataError
        Names the file that was changed, is missing, or was added; or the seal, where that was changed.
    """
    seal = Seal.parse(root / SEAL / METADATA)
    stated = {METADATA: seal.metadata, **{f"{name}/{METADATA}": array.metadata for name, array in seal.arrays.items()}}
    for name, digest in stated.items():
        if _sha256(root / name) != digest:
            raise DataError(f"{root / name}: is not as it was when the group was sealed; {RESTORE}")
    added = sorted(set(array_names(root)) - set(seal.arrays))
    if added:
        raise DataError(f"{root / added[0]}: an array that the seal of the group does not name; move it elsewhere")
    return seal


def changed_arrays(root: Path, seal: Seal) -> Iterator[tuple[str, str]]:
    """Arrays whose chunks are not those that were sealed, with what differs: (name, text).

    A damaged chunk is seen by its checksum. This finds sound chunks in the wrong place: swapped, older, added, lost.
    """
    for name, array in seal.arrays.items():
        digest, count = chunks_digest(root / name)
        if count != array.files:
            yield name, f"{array.files} chunks were sealed, {count} files are there"
        elif digest != array.chunks:
            yield name, f"its {count} chunks are not those that were sealed: swapped, exchanged or damaged"


def array_names(root: Path) -> list[str]:
    """Names of the arrays of a group: directories of `root` with metadata of their own, sorted, the seal apart."""
    found = []
    with os.scandir(root) as entries:
        for count, entry in enumerate(entries):
            if count > 2 * _MOST_ARRAYS:
                raise DataError(f"{root}: more than {count:,} entries; a group of ours has at most {_MOST_ARRAYS:,}")
            if entry.is_dir() and entry.name != SEAL and os.path.lexists(os.path.join(entry.path, METADATA)):
                found.append(entry.name)
    return sorted(found)


def chunks_digest(base: Path, only: Container[str] | None = None) -> tuple[str, int]:
    """SHA-256 over the name, size and last four bytes of every file of the array at `base`, and their number.

    The chunks that we write end in their crc32c: the digest tells their contents apart without reading them. `only`:
    names of the files that count, where others may lie beside them.
    """
    total, count = hashlib.sha256(), 0
    for directory, below, files in os.walk(base):
        below.sort()
        for name in sorted(files):
            path = os.path.join(directory, name)
            key = os.path.relpath(path, base)
            if key == METADATA or (only is not None and key not in only):
                continue
            total.update(described(key, *mark_of(path)))
            count += 1
    return total.hexdigest(), count


def mark_of(path: str | os.PathLike[str]) -> tuple[int, bytes]:
    """Size and last four bytes of a chunk's file."""
    with open(path, "rb") as chunk:
        size = os.fstat(chunk.fileno()).st_size
        chunk.seek(max(0, size - 4))
        return size, chunk.read(4)


def described(key: str, size: int, end: bytes) -> bytes:
    """A chunk's line in the digest of its array."""
    return f"{key} {size} {end.hex()}\n".encode()


def metadata_bytes(path: Path, limit_bytes: int = _METADATA_BYTES) -> bytes:
    """Content of a small regular file, refused before it is parsed where it is a link or would cost much memory.

    Raises
    ------
    DataError
        Not there, no file, more than `limit_bytes`, or more items than the description of any group of ours has.
    """
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


def _sha256(path: Path) -> str:
    return hashlib.sha256(metadata_bytes(path)).hexdigest()
