"""Atomic writes: a file appears complete, by one rename, or not at all, with an error that says why.

Targets of a job are checked before hours of work. A target must not lie inside a store (whose manifest would no longer
hold) or inside another target of the same job, and its file system must be writable and have room.
`zarr_arrays.publishing` writes stores in a hidden directory beside their target.
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
import time
import uuid
from collections.abc import Iterator, Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

from bigkernel.errors import DataError, PlanTooLargeError

_REMOVALS = 50  # attempts to remove a directory
_STORES = ("zarr.json", ".zgroup", ".zarray")  # files that mark a store
# permanent errors of writing
LASTING = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG),
}


def require_outside_stores(path: str | os.PathLike[str], what: str) -> None:
    """Raise `DataError` if a path lies inside a store, ours or another's, also through links."""
    for above in reversed(Path(os.path.realpath(path)).parents):
        if any(os.path.isfile(above / name) for name in _STORES):
            raise DataError(f"{os.fspath(path)}: {what} lies inside the zarr store {above}; choose a path outside it")


def require_target(path: str | os.PathLike[str], what: str, *, needed_bytes: int = 0) -> None:
    """Raise an error unless `what`, of up to so many bytes, can be written; `PlanTooLargeError` for no room."""
    require_outside_stores(path, what)
    target, place = Path(os.path.abspath(path)), _nearest(os.path.dirname(os.path.abspath(path)))
    try:
        with tempfile.TemporaryFile(dir=place):
            longest = os.pathconf(place, "PC_NAME_MAX")
    except OSError as error:
        raise DataError(
            f"{os.fspath(path)}: {what} cannot be written: {place}: {reason_of(error, place)}; choose another path"
        ) from error
    for name in scratch_path(target).relative_to(place).parts:
        if len(os.fsencode(name)) > longest:
            raise DataError(
                f"{os.fspath(path)}: {what} cannot be written: temporary names need {len(os.fsencode(name))} bytes, "
                f"and the file system allows {longest}; choose a shorter name"
            )
    require_free(path, needed_bytes, what)


def require_apart(places: Mapping[str, str | os.PathLike[str] | None]) -> None:
    """Raise an error if one target or input of a job is, or lies inside, another."""
    resolved = [(what, os.fspath(path), Path(os.path.realpath(path))) for what, path in places.items() if path]
    for (what, path, place), (other, there, around) in permutations(resolved, 2):
        if place == around:
            raise DataError(f"{path}: is both the {what} and the {other}; choose two paths")
        if around in place.parents:
            raise DataError(f"{path}: the {what} lies inside the {other} {there}; choose a path outside it")


def require_free(path: object, needed_bytes: int, what: str) -> None:
    """Raise `PlanTooLargeError` if the file system of `path` cannot hold what is to be written.

    What a resumed writer already has at `path` counts as room; a place in a store, which is no path, is not asked.
    """
    if not isinstance(path, str | os.PathLike):
        return
    free = free_bytes(path)
    if needed_bytes > free:
        needed_bytes -= sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file())
    if needed_bytes > free:
        raise PlanTooLargeError(
            f"{os.fspath(path)}: {what} needs up to {needed_bytes / 1e6:,.1f} MB, and the file system has "
            f"{free / 1e6:,.1f} MB free; free some space or choose another path"
        )


def free_bytes(path: str | os.PathLike[str]) -> int:
    """Return the free bytes available to us on the file system of `path`, which need not exist."""
    return shutil.disk_usage(_nearest(path)).free


def _nearest(path: str | os.PathLike[str]) -> Path:
    """Return the nearest existing ancestor of a path."""
    place = Path(os.path.abspath(path))
    while not os.path.exists(place) and place != place.parent:
        place = place.parent
    return place


def reason_of(error: OSError, path: str | os.PathLike[str]) -> str:
    """Say why `path` could not be written, also when bytes are left but no inodes."""
    said = error.strerror or str(error)
    if error.errno == errno.ENOSPC:
        with contextlib.suppress(OSError):
            there = os.statvfs(_nearest(path))
            if there.f_files and not there.f_favail:  # both are 0 on file systems without a fixed number
                return f"{said}: the file system has no inodes left"
    return said


@contextlib.contextmanager
def writing(path: str | os.PathLike[str], *, passing: bool = True) -> Iterator[None]:
    """Turn permanent errors of writing to `path` (a full disk, …) into a DataError.

    Other OSErrors pass, so that the task is tried again, unless `passing` is False. Errors of other files, such as
    those read meanwhile, also pass.
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
    """Return True if an error names a file that is not `path`, its scratch directory, or an ancestor."""
    if not isinstance(error.filename, str):
        return False
    name, target = Path(os.path.abspath(error.filename)), Path(os.path.abspath(path))
    scratch = str(target.with_name(f".{target.name}."))
    return not (str(name).startswith(scratch) or target in (name, *name.parents) or name in target.parents)


def scratch_path(target: Path, token: str = "") -> Path:
    """Return the path where `target` is written before its rename; a token names a fixed one."""
    return target.with_name(f".{target.name}.{token or uuid.uuid4().hex}.partial")


def token_of(run: str | os.PathLike[str]) -> str:
    """Return the `keep` token of `publishing` for stores written under a run directory: its absolute path."""
    return hashlib.sha256(os.path.abspath(run).encode()).hexdigest()[:16]


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    with replacing(path) as scratch:
        scratch.write_text(json.dumps(value, indent=1), encoding="utf-8")


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary file that replaces `path` durably: fsync, rename, fsync."""
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
    """Remove what killed writers of a file or store have left beside it. No other process may be writing it."""
    for orphan in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        if "." not in orphan.name[len(path.name) + 2 : -len(".partial")]:  # else it belongs to path.more
            shutil.rmtree(orphan) if orphan.is_dir() else orphan.unlink(missing_ok=True)


def remove_at_once(place: Path) -> None:
    """Remove a file or directory by a rename first, so that no process reads it half removed."""
    doomed = place.with_name(f".{uuid.uuid4().hex}.partial")
    with contextlib.suppress(FileNotFoundError):
        os.replace(place, doomed)
    if not doomed.is_dir():
        doomed.unlink(missing_ok=True)
    for attempt in range(_REMOVALS):  # tasks that are interrupted may still write there
        shutil.rmtree(doomed, ignore_errors=True)
        if not doomed.exists():
            return
        time.sleep(0.1 * (attempt + 1 < _REMOVALS))


def make_directories(directory: str | os.PathLike[str]) -> None:
    """Make a directory and its parents durably, also across a loss of power."""
    place = Path(os.path.abspath(directory))
    missing = [made for made in (place, *place.parents) if not os.path.exists(made)]
    os.makedirs(place, exist_ok=True)
    for made in missing:
        _sync_one(made.parent)


def replace_place(scratch: Path, target: Path) -> None:
    """Put `scratch` in the place of `target`; restore the old target if that fails."""
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
    """Flush all files and directories in a directory to disk."""
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
