"""A run: the directory from which an interrupted job resumes with the same bits.

    manifest.json     the job: every setting that changes a number by name, the plan, the versions
    lock.json         the current driver (`run_lock`)
    arrays/DIGEST/    large arrays of the job (landmarks), named by their SHA-256
    partials/NODE/    published accumulators, each a zarr group with crc32c
    receipts/NODE.json
    starts/NODE       a line for every time a worker began the node

A node is a place in the fixed binary tree of merges: "0-3" is segment 3, "1-1" the merge of segments 2 and 3. A node is
finished if it has a receipt and its partial matches the receipt's digest; existence alone is not enough.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bigkernel.data import atomic_write, run_lock, zarr_arrays
from bigkernel.data.run_lock import Lock, locked
from bigkernel.errors import DataError, ResumeMismatchError
from bigkernel.html import columns, table
from bigkernel.streaming.plan import Accumulator, Merge, Receipt

_DIGEST = re.compile(r"(?<=\)) [0-9a-f]{32}$")  # of an array, after its dtype and shape
FORMAT = 2
_DETACH_BYTES = 2**16
_MOST_SEGMENTS = 2**20  # more segments than any plan has


@dataclasses.dataclass(frozen=True)
class ArrayRef:
    """A reference to an array in the run's store."""

    digest: str


class ArrayStore(Protocol):
    """A store for large arrays of a job; see `detach`."""

    def keep(self, values: NDArray[Any]) -> ArrayRef:
        """Store an array, and return a reference to it."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A run directory, as plain picklable data that tasks can open."""

    path: str

    def _repr_html_(self) -> str:
        lines = [[sweep.name, len(list(sweep.glob("receipts/0-*.json")))] for sweep in sweeps_below(self.root)]
        return table("run", {"path": self.path}) + columns(["sweep", "segments kept"], lines)

    @property
    def root(self) -> Path:
        """Path of the directory."""
        return Path(self.path)

    @contextlib.contextmanager
    def held(self, job: dict[str, str], *, resume: bool, plan: dict[str, int] | None = None) -> Iterator[Lock]:
        """Lock the directory for a block, and `begin`."""
        make_directory(self.root)
        with locked(self.root) as lock:
            self.begin(job, resume=resume, plan=plan)
            yield lock

    def begin(self, job: dict[str, str], *, resume: bool, plan: dict[str, int] | None = None) -> None:
        """Start a new run, or with `resume` continue an existing one if it is the same job.

        `job` holds every setting that changes the result by name, as texts; ResumeMismatchError names the first
        difference. `plan` holds figures for display (`segments`, `rows`) and is not compared.
        """
        manifest = self.root / "manifest.json"
        if manifest.exists():
            if not resume:
                raise DataError(
                    f"{self.path}: already holds a run; --resume (in Python resume=True) continues it; or choose "
                    "another directory"
                )
            recorded = self._job()
            for name in sorted({*job, *recorded}, key=lambda name: (name != "device", name)):  # others follow from it
                if job.get(name) != recorded.get(name):
                    # without the digests of arrays, and of the map that keeps blocks
                    was, now = (_DIGEST.sub("", one.get(name, "absent")) for one in (recorded, job))
                    changed = f"was {was}, now it is {now}" if was != now else f"has other values than before ({now})"
                    raise ResumeMismatchError(
                        f"{self.path}: the run on disk belongs to another job: "
                        f"{name.replace('features.features', 'features')} {changed}; resume with the same settings or "
                        "start a new run"
                    )
            self.remove_partials()
            return
        for directory in ("partials", "receipts", "arrays", "starts"):
            make_directory(self.root / directory)
        atomic_write.clear_orphans(manifest)
        with atomic_write.writing(self.path, passing=False):
            write_sealed(manifest, {"format": FORMAT, "job": job, "plan": plan or {}})

    def _job(self) -> dict[str, Any]:
        try:
            manifest = read_sealed(self.root / "manifest.json")
        except (OSError, ValueError) as error:
            raise ResumeMismatchError(f"{self.path}/manifest.json cannot be read ({error}); start a new run") from error
        if manifest.get("format") != FORMAT or not isinstance(manifest.get("job"), dict):
            raise ResumeMismatchError(
                f"{self.path}: expected run format {FORMAT}, found {manifest.get('format')!r}; start a new run"
            )
        job: dict[str, Any] = manifest["job"]
        return job

    def remove_partials(self) -> None:
        """Remove files of dead writers, as far as the disk allows. No other process may be writing."""
        for directory in ("partials", "arrays", "receipts", "."):
            place = self.root.joinpath(directory)
            for orphan in (*place.glob(".*.partial"), *place.glob(".*.old")):  # old: what was about to be replaced
                # a read-only disk has its own error, which this one must not hide
                with contextlib.suppress(OSError):
                    atomic_write.remove_at_once(orphan) if orphan.is_dir() else orphan.unlink(missing_ok=True)

    def start(self, node: str, worker: str) -> int:
        """Record that a worker begins a node; return how often that has happened, including this time."""
        path = self.root / "starts" / node
        with contextlib.suppress(OSError):  # informative only: a fault of the disk shows when the node is published
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{worker}\n")
            return len(self.starts(node))
        return 1

    def starts(self, node: str) -> list[str]:
        """Return the workers that began a node, in order."""
        try:
            return (self.root / "starts" / node).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return []

    def publish(self, receipt: Receipt, partial: Accumulator) -> Receipt:
        """Publish a partial, then its receipt with the time that this took."""
        start, digest = time.perf_counter(), zarr_arrays.digest(partial)
        zarr_arrays.publish(
            self.root / "partials" / receipt.node, "partial", partial, {"digest": digest}, overwrite=True
        )
        spent = time.perf_counter() - start
        receipt = dataclasses.replace(
            receipt,
            digest=digest,
            seconds={**receipt.seconds, "publish": spent},
            elapsed=receipt.elapsed + spent,
            ended=time.time(),
        )
        write_sealed(self._receipt(receipt.node), receipt.to_json())
        return receipt

    def partial(self, node: str, digest: str) -> Accumulator:
        """Read a partial; raise DataError if it is not what was published."""
        values, _ = zarr_arrays.read_group(self.root / "partials" / node, "partial")
        actual = zarr_arrays.digest(values)
        if actual != digest:
            raise DataError(
                f"{self.path}/partials/{node}: expected digest {digest[:12]}… as in the receipt, found {actual[:12]}…"
            )
        return values

    def finished(self, node: str) -> Receipt | None:
        """Return the receipt of a node whose published partial is intact; None otherwise."""
        return self._read_back(node)[0]

    def _read_back(self, node: str) -> tuple[Receipt | None, str]:
        """Return the receipt of an intact node, or what is wrong with its partial."""
        receipt, there = self.receipt(node), (self.root / "partials" / node).exists()
        if receipt is None:
            return None, "the receipt cannot be read" if self._receipt(node).exists() else ""
        try:
            self.partial(node, receipt.digest)
        except (OSError, DataError) as error:
            return None, str(error) if there else ""
        return receipt, ""

    def receipt(self, node: str) -> Receipt | None:
        """Return the receipt of a node without checking its partial; None if there is none."""
        try:
            receipt = Receipt.of_json(read_sealed(self._receipt(node)))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None
        return dataclasses.replace(receipt, resumed=True) if receipt.node == node else None

    def usable(self, merges: Sequence[Merge], leaves: Sequence[str]) -> tuple[dict[str, Receipt], dict[str, str]]:
        """Return finished nodes that no finished node contains, and the damaged ones with their faults.

        `merges` lists (node, left, right), children first. Receipts without a valid partial are removed.
        """
        children = {node: (left, right) for node, left, right in merges}
        receipts: dict[str, Receipt] = {}
        damaged: dict[str, str] = {}
        missing: list[str] = []
        look = [merges[-1][0]] if merges else list(leaves)
        while look:
            node = look.pop()
            receipt, wrong = self._read_back(node)
            if receipt:
                receipts[node] = receipt
                continue
            if wrong:
                damaged[node] = wrong
            if self._receipt(node).exists():
                atomic_write.remove_at_once(self._receipt(node))
                self.discard(node)
            else:  # a late worker of a dead driver may be writing it: its partial stays
                missing.append(node)
                self._discard_torn(node)
            look.extend(children.get(node, ()))
        if any(self._receipt(node).exists() for node in missing):  # it has, and has removed what it merged
            return self.usable(merges, leaves)
        return receipts, damaged

    def _receipt(self, node: str) -> Path:
        return self.root / "receipts" / f"{node}.json"

    def discard(self, *nodes: str) -> None:
        """Remove merged partials; their receipts stay."""
        for node in nodes:
            atomic_write.remove_at_once(self.root / "partials" / node)

    def _discard_torn(self, node: str) -> None:
        """Remove an invalid partial: a loss of power may have undone part of its publication."""
        place = self.root / "partials" / node
        try:
            if place.exists():
                zarr_arrays.read_manifest(place)
        except DataError:
            self.discard(node)

    def keep_root(self, root: str) -> None:
        """Remove every partial but the last: a dead writer may have left what it had merged."""
        for place in (self.root / "partials").iterdir():
            if place.name != root and not place.name.startswith("."):
                self.discard(place.name)

    def end_early(self, node: str, reason: str) -> None:
        """Keep the partial of a node alone, which ends the sweep for this reason whenever it is continued."""
        self.keep_root(node)
        write_sealed(self.root / "ended.json", {"node": node, "reason": reason})

    def early_end(self) -> str:
        """Return the node that ended the sweep, or "" if none did."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            return str(read_sealed(self.root / "ended.json")["node"])
        return ""

    def has(self, node: str) -> bool:
        """Return whether a node is published, without checking its partial."""
        return self.receipt(node) is not None and (self.root / "partials" / node).is_dir()

    def keep(self, values: NDArray[Any]) -> ArrayRef:
        """Store an array under its digest."""
        reference = ArrayRef(zarr_arrays.digest({"values": values}))
        target = self.root / "arrays" / reference.digest
        if not target.exists():
            zarr_arrays.publish(target, "array", {"values": values}, {}, overwrite=False)
        return reference


def sweeps_below(root: Path) -> list[Path]:
    """Return the run directories in and below a directory."""
    return sorted(path.parent for depth in range(3) for path in root.glob("*/" * depth + "manifest.json"))


def make_directory(directory: str | os.PathLike[str]) -> None:
    """Make the directory of a run; raise DataError if that fails or it would lie inside a store."""
    atomic_write.require_outside_stores(directory, "the run")
    with atomic_write.writing(directory, passing=False):
        atomic_write.make_directories(directory)


@dataclasses.dataclass(frozen=True)
class _Stored:
    """A cached array by content: sweeps of one job keep the same landmarks, each in its own directory."""

    digest: str
    path: str = dataclasses.field(compare=False)


@lru_cache(maxsize=8)
def _load(stored: _Stored) -> NDArray[Any]:
    values, _ = zarr_arrays.read_group(Path(stored.path) / "arrays" / stored.digest, "array")
    if zarr_arrays.digest(values) != stored.digest:
        raise DataError(f"{stored.path}/arrays/{stored.digest}: content does not match this digest")
    return values["values"]


def detach(value: Any, store: ArrayStore) -> Any:
    """Return a copy of plain data with every large array replaced by a reference into the store."""
    return _mapped(value, np.ndarray, lambda item: store.keep(item) if item.nbytes > _DETACH_BYTES else item)


def attach(value: Any, path: str) -> Any:
    """Undo `detach`, inside a task."""
    return _mapped(value, ArrayRef, lambda item: _load(_Stored(item.digest, path)))


def _mapped(value: Any, kind: type[Any], change: Callable[[Any], Any]) -> Any:
    if isinstance(value, kind):
        return change(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [one.name for one in dataclasses.fields(value) if one.init]
        return dataclasses.replace(value, **{name: _mapped(getattr(value, name), kind, change) for name in fields})
    if type(value) is tuple:
        return tuple(_mapped(item, kind, change) for item in value)
    return value


def write_sealed(path: Path, value: dict[str, Any]) -> None:
    """Write plain data as JSON with its SHA-256; see `write_json`."""
    atomic_write.write_json(path, {**value, "sha256": _seal(value)})


def read_sealed(path: Path) -> dict[str, Any]:
    """Read what `write_sealed` wrote; raise ValueError if it has been changed."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict) or value.pop("sha256", None) != _seal(value):
        raise ValueError("SHA-256 does not match the content")
    return value


def _seal(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


# ---------------------------------------------------------------- the state of runs


@dataclasses.dataclass(frozen=True)
class RunState:
    """The state of one run; counts are 0 if it has no segments."""

    path: str
    state: str  # "finished", "ended early", "running", "interrupted", or "unreadable"
    segments: int = 0
    segments_done: int = 0
    rows: int = 0
    rows_done: int = 0
    holder: str = ""  # process and host working on it, or empty
    settings: dict[str, str] = dataclasses.field(default_factory=dict)  # by name, as the manifest has them


def survey(directory: str | os.PathLike[str]) -> list[RunState]:
    """Return the states of the runs in and below a directory, by path; raise DataError if there is none."""
    root = Path(directory)
    if not os.path.isdir(root):
        raise DataError(
            f"{directory}: expected a run directory, found {'a file' if os.path.exists(root) else 'nothing'}"
        )
    paths = sweeps_below(root)
    above = _holder(root)
    if not paths:
        raise DataError(f"{directory}: found no run{f' yet; {above} is at work' if above else ''}")
    return [_state(path, above) for path in paths]


def command_of(directory: str | os.PathLike[str]) -> list[str]:
    """Return the command that began the run, if recorded."""
    try:
        noted = json.loads((Path(directory) / "command.json").read_text())["command"]
        return [str(word) for word in noted]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def _state(path: Path, above: str) -> RunState:
    try:
        manifest = read_sealed(path / "manifest.json")
        plan = manifest.get("plan", {})
        segments, rows = int(plan.get("segments", 0)), int(plan.get("rows", 0))
        settings = {str(key): str(value) for key, value in manifest.get("job", {}).items()}
        if not 0 <= segments <= _MOST_SEGMENTS:
            raise ValueError
    except (OSError, ValueError, TypeError, AttributeError, OverflowError):
        return RunState(str(path), "unreadable")
    run = Run(str(path))
    done = [receipt for i in range(segments) if (receipt := run.receipt(f"0-{i}"))]
    holder = _holder(path) or above
    state = "running" if holder else "interrupted"
    if not segments or run.has(f"{max(0, segments - 1).bit_length()}-0"):  # the root of the tree over the segments
        state = "finished"
    elif run.has(run.early_end()):
        state = "ended early"
    return RunState(
        str(path), state, segments, len(done), rows, sum(receipt.rows for receipt in done), holder, settings
    )


def _holder(path: Path) -> str:
    holder = run_lock.read(path)
    return run_lock.holder_name(holder) if holder and holder["alive"] else ""
