"""Targets of jobs, refused before hours are spent: what will be written is looked at where it will lie.

A target lies in no store (its seal would not hold any more) and no other target of the same job, its file system takes
writes and has room, and one driver at a time writes it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path

from bigkernel.data import run_lock, seals
from bigkernel.data.atomic_write import reason_of, require_free, scratch_path
from bigkernel.errors import DataError, RunLocked

_METADATA = ("zarr.json", ".zgroup", ".zarray")
_claimed: set[str] = set()  # by this process


def require_outside_stores(path: str | os.PathLike[str], what: str) -> None:
    """Refuse a place inside a store, ours or another's, through links too; `what` will be written there."""
    for above in reversed(Path(os.path.realpath(path)).parents):
        if any(os.path.isfile(above / name) for name in _METADATA):
            kind = seals.kind_of(above)
            raise DataError(
                f"{os.fspath(path)}: {what} would lie inside {above}, which is a "
                f"{f'{kind} of ours' if kind else 'zarr store'}; choose a place outside it"
            )


def require_target(path: str | os.PathLike[str], what: str, *, needed_bytes: int = 0) -> None:
    """Refuse a place where `what`, of up to so many bytes, cannot be written: PlanTooLarge if there is no room."""
    require_outside_stores(path, what)
    target = Path(os.path.abspath(path))
    place = target.parent
    while not os.path.exists(place) and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            longest = os.pathconf(place, "PC_NAME_MAX")
    except OSError as error:
        raise DataError(
            f"{os.fspath(path)}: {what} cannot be written there: {place}: {reason_of(error, place)}; choose another "
            "place"
        ) from error
    for part in scratch_path(target).relative_to(place).parts:
        if len(os.fsencode(part)) > longest:
            raise DataError(
                f"{os.fspath(path)}: {what} cannot be written there: its name and those beside it while it is written "
                f"take {len(os.fsencode(part))} bytes, and {longest} are the most there; choose a shorter name"
            )
    require_free(path, needed_bytes, what)


def require_apart(places: Mapping[str, str | os.PathLike[str] | None]) -> None:
    """Refuse targets and inputs of one job, by what they are, of which one is another or lies inside it."""
    found = [(what, os.fspath(path), Path(os.path.realpath(path))) for what, path in places.items() if path]
    for (what, path, place), (other, there, around) in permutations(found, 2):
        if place == around:
            raise DataError(f"{path}: is the {what} and the {other}; give each a place of its own")
        if around in place.parents:
            raise DataError(f"{path}: the {what} would lie inside the {other} {there}; choose a place outside it")


@contextmanager
def claimed(path: str | os.PathLike[str], what: str) -> Iterator[None]:
    """Be the only driver that writes a target, for a block; what this process has claimed already it has.

    The claim is a hidden directory beside the target. One whose process is dead is taken; RunLocked says who is alive.
    """
    target = Path(os.path.realpath(path))
    if str(target) in _claimed:
        yield
        return
    directory = target.with_name(f".{target.name}.claim")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{os.fspath(path)}: {what} cannot be written there: {reason_of(error, directory)}") from error
    lock = run_lock.Lock(directory)
    try:
        lock.acquire()
    except RunLocked:
        found = run_lock.read(directory) or {"pid": "?", "host": "?", "since": "?"}
        if not found["pid"]:
            raise
        raise RunLocked(
            f"{os.fspath(path)}: {what} is being written by {run_lock.holder_name(found)} since {found['since']}; wait "
            "for it, or choose another place"
        ) from None
    _claimed.add(str(target))
    try:
        yield
    finally:
        _claimed.discard(str(target))
        lock.release()
        shutil.rmtree(directory, ignore_errors=True)
