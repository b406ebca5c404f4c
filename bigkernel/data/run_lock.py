"""One driver at a time in a run directory: a lock that names its holder and expires with it.

`lock.json` appears atomically and holds host, process and the start time of the process. A holder on this host is alive
if that process is. A holder on another host, or in another PID namespace (a container), is alive if the file was
touched recently: every holder touches its file while it works. Ages use the file system's own clock, so that wrong
clocks do no harm. An invalid file was damaged by another program: it is reported by name, and expires when it has not
been touched for as long.
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
BEAT_SECONDS = 10.0  # seconds between touches of a held lock
STALE_SECONDS = 90.0  # a lock of another host expires after so many seconds without a touch
GUARD_SECONDS = 10.0  # most seconds to wait for another process that takes or releases the lock


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
        """Take the lock if it is free or its holder is dead; RunLockedError names a live holder."""
        # alone, for two that find the same stale lock must not both take it
        with writing(self.path.parent, passing=False), _alone(self.path.parent):
            require_free_lock(self.path.parent)
            holder = read(self.path.parent)
            if holder is not None:
                self.left_by = holder_name(holder)
            self._write()
        self._thread = threading.Thread(target=self._beat, name="bigkernel-lock", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Release the lock if it is still ours."""
        self._stop.set()
        _held.discard(self._token)  # whatever becomes of the file, on a disk that cannot be written any more
        if self._thread is not None:
            self._thread.join()
        # keeps a lock taken from us from being removed between check and removal
        with suppress(OSError, RunLockedError), _alone(self.path.parent):
            if self._ours():
                self.path.unlink()

    def require(self) -> None:
        """Raise `RunLockedError` if another driver took the lock, for example while this process was suspended."""
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
    """Claim a target for a block, as its only writer; yield False if this process already holds the claim.

    The claim is a hidden directory beside the target. The claim of a dead process is taken over; RunLockedError names
    one that is alive.
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
    """Raise `RunLockedError` if a live holder has the lock of a directory."""
    holder = read(directory)
    if holder is None or not holder["alive"]:
        return
    path = Path(directory) / NAME
    if not holder["pid"]:
        raise RunLockedError(
            f"{path}: damaged or empty, so that the owner is unknown; last modified {max(0.0, _age(path)):.0f} s "
            f"ago, and an active driver updates it every {BEAT_SECONDS:.0f} s; remove the file if no driver is "
            f"active (it is taken over after {STALE_SECONDS:.0f} s)"
        )
    raise RunLockedError(
        f"{os.fspath(directory)}: in use by {holder_name(holder)} since {holder['since']}; wait for it to end, or "
        "choose another directory; --resume (in Python resume=True) continues a run"
    )


def holder_name(holder: Mapping[str, Any]) -> str:
    """Name the holder returned by `read` for people."""
    pid = holder["pid"]
    return f"process {pid} on {holder['host']}" if pid else f"an unknown process ({NAME} is damaged)"


def read(directory: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Read the holder of a directory's lock: host, pid (0: the file is damaged), since and whether it is `alive`.

    Returns None if there is no lock.
    """
    path = Path(directory) / NAME
    try:
        content = json.loads(path.read_text())
        holder: dict[str, Any] = {"host": str(content["host"]), "pid": int(content["pid"])}
        holder["since"] = str(content["since"])
        token = str(content.get("token", ""))
        birth, namespace = str(content["birth"]), str(content.get("namespace", _namespace()))
        if holder["pid"] < 1:
            raise ValueError
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        # damaged, so its age decides
        return {"host": "?", "pid": 0, "since": "?", "alive": _age(path) < STALE_SECONDS}
    if holder["host"] != socket.gethostname() or namespace != _namespace():
        return {**holder, "alive": _age(path) < STALE_SECONDS}
    given_back = holder["pid"] == os.getpid() and token not in _held
    return {**holder, "alive": _birth(holder["pid"]) == birth and not given_back}


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Exclude other processes while taking or releasing a lock; raise `RunLockedError` if one takes too long."""
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
                break  # some cluster file systems lack flock: then `require` decides
        yield


def _namespace() -> str:
    """Return the PID namespace of this process: process numbers of others have no meaning here."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _birth(pid: int) -> str:
    """Return a text that distinguishes a process from a later one with its number; empty if there is none."""
    try:
        # ticks from boot to its start, independent of changes of the clock
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return f"{ticks} {Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
    except (OSError, IndexError):
        try:
            return str(psutil.Process(pid).create_time())
        except (psutil.Error, OverflowError):
            return ""


def _age(path: Path) -> float:
    """Return the seconds since a file was touched, by the clock of its file system."""
    probe = path.with_name(f".{uuid.uuid4().hex}.partial")
    try:
        probe.touch()
        return probe.stat().st_mtime - path.stat().st_mtime
    except OSError:
        return 0.0
    finally:
        probe.unlink(missing_ok=True)
