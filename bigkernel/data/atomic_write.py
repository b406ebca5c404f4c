"""Files are written atomically: whole, by one rename; or not at all, with an error that says why.

The targets of a job are refused before hours are spent: what will be written is looked at where it will lie. A target
lies in no store (whose manifest would not hold any more) and no other target of the same job, and its file system
takes writes and has room. `zarr_arrays.publishing` writes stores in a hidden directory beside their place.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

from bigkernel.errors import DataError, PlanTooLargeError

_STORES = ("zarr.json", ".zgroup", ".zarray")  # files that tell a store
# errors of writing that no second attempt mends; all others may pass
LASTING = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG),
}


def require_outside_stores(path: str | os.PathLike[str], what: str) -> None:
    """Refuse a place inside a store, ours or another's, through links too; `what` will be written there."""
    for above in reversed(Path(os.path.realpath(path)).parents):
        if any(os.path.isfile(above / name) for name in _STORES):
            raise DataError(f"{os.fspath(path)}: {what} lies inside the zarr store {above}; choose a path outside it")


def require_target(path: str | os.PathLike[str], what: str, *, needed_bytes: int = 0) -> None:
    """Refuse a place where `what`, of up to so many bytes, cannot be written: PlanTooLargeError if there is no room."""
    require_outside_stores(path, what)
    target, place = Path(os.path.abspath(path)), _nearest(os.path.dirname(os.path.abspath(path)))
    try:
        with tempfile.TemporaryFile(dir=place):
            longest = os.pathconf(place, "PC_NAME_MAX")
    except OSError as error:
        raise DataError(
            f"{os.fspath(path)}: {what} cannot be written: {place}: {reason_of(error, place)}; choose another path"
        ) from error
    for part in scratch_path(target).relative_to(place).parts:
        if len(os.fsencode(part)) > longest:
            raise DataError(
                f"{os.fspath(path)}: {what} cannot be written: temporary names need {len(os.fsencode(part))} bytes, "
                f"and the file system allows {longest}; choose a shorter name"
            )
    require_free(path, needed_bytes, what)


def require_apart(places: Mapping[str, str | os.PathLike[str] | None]) -> None:
    """Refuse targets and inputs of one job, by what they are, of which one is another or lies inside it."""
    found = [(what, os.fspath(path), Path(os.path.realpath(path))) for what, path in places.items() if path]
    for (what, path, place), (other, there, around) in permutations(found, 2):
        if place == around:
            raise DataError(f"{path}: is both the {what} and the {other}; choose two paths")
        if around in place.parents:
            raise DataError(f"{path}: the {what} lies inside the {other} {there}; choose a path outside it")


def require_free(path: str | os.PathLike[str], needed_bytes: int, what: str) -> None:
    """Raise `PlanTooLargeError` where the file system of `path` cannot hold what is to be written.

    What a resumed writer finds at `path` already is taken off what is needed.
    """
    free = free_bytes(path)
    if needed_bytes > free:
        needed_bytes -= sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file())
    if needed_bytes > free:
        raise PlanTooLargeError(
            f"{os.fspath(path)}: {what} needs up to {needed_bytes / 1e6:,.1f} MB, and the file system has "
            f"{free / 1e6:,.1f} MB free; free some space or choose another path"
        )


def free_bytes(path: str | os.PathLike[str]) -> int:
    """Bytes free for us on the file system that `path` is, or would be, on."""
    return shutil.disk_usage(_nearest(path)).free


def _nearest(path: str | os.PathLike[str]) -> Path:
    """Return what is there of a path, from its beginning."""
    place = Path(os.path.abspath(path))
    while not os.path.exists(place) and place != place.parent:
        place = place.parent
    return place


def reason_of(error: OSError, path: str | os.PathLike[str]) -> str:
    """Say why `path` could not be written: a file system may have bytes left, and no inode for one more file."""
    said = error.strerror or str(error)
    if error.errno == errno.ENOSPC:
        with contextlib.suppress(OSError):
            there = os.statvfs(_nearest(path))
            if there.f_files and not there.f_favail:  # of file systems without a fixed number both are 0
                return f"{said}: the file system has no inodes left"
    return said


@contextlib.contextmanager
def writing(path: str | os.PathLike[str], *, passing: bool = True) -> Iterator[None]:
    """Turn errors of writing to `path` that no second attempt mends (a full disk, …) into a DataError.

    Others pass as the OSError that they are, for the task to be tried again, unless `passing` is False. So do errors
    of files elsewhere, such as those that are read meanwhile.
    """
    try:
        yield
    except OSError as error:
        if (passing and error.errno not in LASTING) or _elsewhere(error, path):
            raise
        raise DataError(
            f"{os.fspath(path)}: cannot be written: {reason_of(error, path)} ({free_bytes(path) / 1e6:,.1f} MB "
            "free); remove some files or choose another path"
        ) from error


def _elsewhere(error: OSError, path: str | os.PathLike[str]) -> bool:
    """Return True where an error names a file that is neither at `path`, nor in its scratch directory, nor above it."""
    if not isinstance(error.filename, str):
        return False
    name, target = Path(os.path.abspath(error.filename)), Path(os.path.abspath(path))
    scratch = str(target.with_name(f".{target.name}."))
    return not (str(name).startswith(scratch) or target in (name, *name.parents) or name in target.parents)


def scratch_path(target: Path, token: str = "") -> Path:
    """Return where `target` is written before it is renamed: the place of a token, or one of its own."""
    return target.with_name(f".{target.name}.{token or uuid.uuid4().hex}.partial")


def token_of(run: str | os.PathLike[str]) -> str:
    """`keep` of `publishing` for the stores that are written under a run directory: by its absolute path."""
    return hashlib.sha256(os.path.abspath(run).encode()).hexdigest()[:16]


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file that is there whole or not at all."""
    with replacing(path) as scratch:
        scratch.write_text(json.dumps(value, indent=1), encoding="utf-8")


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A file to write that becomes `path`, whole or not at all, and for good: temporary file, fsync, rename, fsync."""
    target = Path(os.path.abspath(path))
    scratch = scratch_path(target)
    try:
        with writing(path):
            yield scratch
            _sync_one(scratch)
            os.replace(scratch, target)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    _sync_one(target.parent)


def clear_orphans(path: Path) -> None:
    """Remove what writers of a file or store that were killed have left beside it. Nobody else may be writing it."""
    for orphan in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        if "." not in orphan.name[len(path.name) + 2 : -len(".partial")]:  # else it is of another, path.more
            shutil.rmtree(orphan) if orphan.is_dir() else orphan.unlink(missing_ok=True)


def remove_at_once(place: Path) -> None:
    """Remove a directory or file, gone at once: nobody reads, or renames into place, a half-removed one."""
    doomed = place.with_name(f".{uuid.uuid4().hex}.partial")
    with contextlib.suppress(FileNotFoundError):
        os.replace(place, doomed)
    if doomed.is_dir():
        shutil.rmtree(doomed, ignore_errors=True)
    else:
        doomed.unlink(missing_ok=True)


def make_directories(directory: str | os.PathLike[str]) -> None:
    """Make a directory and those above it, so that a loss of power takes none of them away again."""
    place = Path(os.path.abspath(directory))
    missing = [made for made in (place, *place.parents) if not os.path.exists(made)]
    os.makedirs(place, exist_ok=True)
    for made in missing:
        _sync_one(made.parent)


def replace_place(scratch: Path, target: Path) -> None:
    """Put `scratch` in the place of `target`; what was there comes back if that fails."""
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
    _sync_one(target.parent)


def sync(root: Path) -> None:
    """Bring all files and directories in a directory to the disk."""
    for directory, _, files in os.walk(root):
        for name in files:
            _sync_one(Path(directory, name))
        _sync_one(Path(directory))


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
