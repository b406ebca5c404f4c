"""One driver at a time in a run directory: a lock that says who holds it, and that a dead holder does not keep.

`lock.json` appears whole, and names host, process and the time that process started. A holder whose processes can be
seen from here is alive if that one is. One on another host, or in another PID namespace (a container), is if the file
was touched lately: every holder touches its file while it works. Ages are read from the file system's own clock, so
clocks that disagree or jump do no harm. A file that says nothing of the kind was damaged by others, for it appears
whole: it is refused by its name, and is nobody's once it was not touched for so long either.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from bigkernel.data.atomic_write import clear_orphans, write_json, writing
from bigkernel.errors import RunLockedError

NAME = "lock.json"
BEAT_SECONDS = 10.0  # between touches of a lock that is held
STALE_SECONDS = 90.0  # a lock of another host that was not touched for this long is nobody's
GUARD_SECONDS = 10.0  # most that whoever takes or gives back a lock waits for another who is at it


_held: set[str] = set()  # tokens of the locks that this process holds
_claimed: set[str] = set()  # targets that this process has claimed


class Lock:
    """The lock of a run directory, held from `acquire` to `release`."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory) / NAME
        self.left_by = ""  # who died with the lock that was taken
        self._token = uuid.uuid4().hex
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        """Take the lock, or one whose holder is dead; RunLockedError says who alive holds it."""
        # alone, for two that find the same stale lock must not both take it
        with writing(self.path.parent, passing=False), _alone(self.path.parent):
            require_free_lock(self.path.parent)
            found = read(self.path.parent)
            if found is not None:
                self.left_by = holder_name(found)
            self._write()
        self._thread = threading.Thread(target=self._beat, name="bigkernel-lock", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Give the lock back, if it is still ours."""
        self._stop.set()
        _held.discard(self._token)  # whatever becomes of the file, on a disk that cannot be written any more
        if self._thread is not None:
            self._thread.join()
        # a lock that was taken from us is not to be removed between a look at it and its end
        with suppress(OSError, RunLockedError), _alone(self.path.parent):
            if self._ours():
                self.path.unlink()

    def require(self) -> None:
        """Raise `RunLockedError` if another driver took the lock, as from a process that was frozen for long."""
        if not self._ours():
            raise RunLockedError(f"{self.path.parent}: another process took over the lock; stopping this one")

    def _ours(self) -> bool:
        try:
            return bool(json.loads(self.path.read_text()).get("token") == self._token)
        except (OSError, ValueError, AttributeError):
            return False

    def _write(self) -> None:
        content = {
            "token": self._token,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "birth": _birth(os.getpid()),
            "namespace": _namespace(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        clear_orphans(self.path)
        write_json(self.path, content)
        _held.add(self._token)

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            with suppress(OSError):
                os.utime(self.path)


@contextmanager
def locked(directory: str | os.PathLike[str]) -> Iterator[Lock]:
    """Hold the lock of a run directory for a block; see `Lock.acquire`."""
    lock = Lock(directory)
    lock.acquire()
    try:
        yield lock
    finally:
        lock.release()


@contextmanager
def claimed(path: str | os.PathLike[str], what: str) -> Iterator[bool]:
    """Be the only driver that writes a target, for a block; what this process has claimed already it has: False.

    The claim is a hidden directory beside the target. One whose process is dead is taken; RunLockedError says who is
    alive.
    """
    target = Path(os.path.realpath(path))
    if str(target) in _claimed:
        yield False
        return
    directory = target.with_name(f".{target.name}.claim")
    with writing(directory, passing=False):
        directory.mkdir(parents=True, exist_ok=True)
    lock = Lock(directory)
    try:
        lock.acquire()
    except RunLockedError as error:
        raise RunLockedError(f"{os.fspath(path)}: {what} is being written: {error}") from None
    _claimed.add(str(target))
    try:
        yield True
    finally:
        _claimed.discard(str(target))
        lock.release()
        shutil.rmtree(directory, ignore_errors=True)


def require_free_lock(directory: str | os.PathLike[str]) -> None:
    """Raise `RunLockedError` if somebody alive holds the lock of a directory; says who."""
    found = read(directory)
    if found is None or not found["alive"]:
        return
    path = Path(directory) / NAME
    if not found["pid"]:
        raise RunLockedError(
            f"{path}: damaged or empty, so that the owner is unknown; last modified {max(0.0, _age(path)):.0f} s "
            f"ago, and an active driver updates it every {BEAT_SECONDS:.0f} s; remove the file if no driver is "
            f"active (it is taken over after {STALE_SECONDS:.0f} s)"
        )
    raise RunLockedError(
        f"{os.fspath(directory)}: in use by {holder_name(found)} since {found['since']}; wait for it to end, or "
        "choose another directory"
    )


def holder_name(found: Mapping[str, Any]) -> str:
    """Name the holder that `read` found, for people."""
    return f"process {found['pid']} on {found['host']}" if found["pid"] else f"an unknown process ({NAME} is damaged)"


def read(directory: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Read who holds the lock of a directory: host, pid (0: the file is damaged), since and whether `alive`.

    None where there is no lock.
    """
    path = Path(directory) / NAME
    try:
        found = json.loads(path.read_text())
        holder: dict[str, Any] = {"host": str(found["host"]), "pid": int(found["pid"]), "since": str(found["since"])}
        token = str(found.get("token", ""))
        birth, namespace = str(found["birth"]), str(found.get("namespace", _namespace()))
        if holder["pid"] < 1:
            raise ValueError
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        # damaged: nobody can tell, so its age decides
        return {"host": "?", "pid": 0, "since": "?", "alive": _age(path) < STALE_SECONDS}
    if holder["host"] != socket.gethostname() or namespace != _namespace():
        return {**holder, "alive": _age(path) < STALE_SECONDS}
    given_back = holder["pid"] == os.getpid() and token not in _held
    return {**holder, "alive": _birth(holder["pid"]) == birth and not given_back}


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Take or give back the lock of a directory alone; raise `RunLockedError` where another is at it for long."""
    deadline = time.monotonic() + GUARD_SECONDS
    with open(directory / ".lock", "a") as guard:
        while True:
            try:
                fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RunLockedError(
                        f"{directory}: another process has been taking the lock for {GUARD_SECONDS:.0f} s and may be "
                        "frozen; end that process, or choose another directory"
                    ) from None
                time.sleep(0.02)
            except OSError:
                break  # some file systems of clusters know no flock: then `require` settles it
        yield


def _namespace() -> str:
    """A text that tells the PID namespace of this process: process numbers of others mean nothing here."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _birth(pid: int) -> str:
    """A text that tells a process from a later one of the same number; empty: there is none."""
    try:
        # ticks from boot to its start, which no change of the clock moves
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return f"{ticks} {Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
    except (OSError, IndexError):
        try:
            return str(psutil.Process(pid).create_time())
        except (psutil.Error, OverflowError):
            return ""


def _age(path: Path) -> float:
    """Seconds since a file was touched, by the clock of its file system."""
    probe = path.with_name(f".{uuid.uuid4().hex}.partial")
    try:
        probe.touch()
        return probe.stat().st_mtime - path.stat().st_mtime
    except OSError:
        return 0.0
    finally:
        probe.unlink(missing_ok=True)
