"""A run: the directory that lets a job die and go on to the same last bit.

    manifest.json     what the job is: a fingerprint of every setting that changes a number, the plan, the versions
    arrays/DIGEST/    large arrays of the job (landmarks), found by their SHA-256
    partials/NODE/    published accumulators, each a zarr group with crc32c
    receipts/NODE.json

A node is a place in the fixed binary tree of merges: "0-3" is segment 3, "1-1" the merge of segments 2 and 3. A node is
finished when its receipt is there and its partial reads back to the receipt's digest; existence alone is not enough.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import uuid
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel import arrays
from bigkernel.errors import DataError, ResumeMismatch
from bigkernel.statistics import Accumulator

FORMAT = 1
_DETACH_BYTES = 2**16


@dataclasses.dataclass(frozen=True)
class Receipt:
    """What a finished task leaves: who, what, how long.

    Attributes
    ----------
    node : name of the node of the merge tree, "0-3" for segment 3
    start, stop : rows it covers
    digest : SHA-256 of the partial; empty where it was not published
    seconds : per stage (read is the time spent waiting for rows)
    elapsed : seconds in all
    worker : who did it
    peak_bytes : highest resident memory of that process so far
    skipped : rows left out because they were not finite
    resumed : found in the run, not computed again
    """

    node: str
    start: int
    stop: int
    digest: str = ""
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    elapsed: float = 0.0
    bytes_read: int = 0
    worker: str = ""
    peak_bytes: int = 0
    skipped: int = 0
    resumed: bool = False

    @property
    def rows(self) -> int:
        """Rows covered."""
        return self.stop - self.start

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class ArrayRef:
    """Stands for an array kept in the run's store."""

    digest: str


@dataclasses.dataclass(frozen=True)
class Run:
    """A run directory; plain picklable data, so that tasks open it themselves."""

    path: str

    @property
    def root(self) -> Path:
        """The directory."""
        return Path(self.path)

    def begin(self, job: dict[str, str], *, resume: bool) -> None:
        """Start a new run, or go on with this one.

        Raises
        ------
        ResumeMismatch
            `resume` of another job; names the first field that differs.
        DataError
            The directory holds a run and `resume` was not asked, or cannot be written.
        """
        manifest = self.root / "manifest.json"
        if manifest.exists():
            if not resume:
                raise DataError(f"{self.path}: holds a run already; resume it or choose another directory")
            try:
                found = json.loads(manifest.read_text())["job"]
            except (ValueError, KeyError, TypeError) as error:
                raise ResumeMismatch(f"{self.path}/manifest.json cannot be read ({error}); start a new run") from error
            if not isinstance(found, dict):
                raise ResumeMismatch(f"{self.path}/manifest.json describes no job; start a new run")
            for name in sorted({*job, *found}):
                if job.get(name) != found.get(name):
                    raise ResumeMismatch(
                        f"{self.path}: the run on disk is another job: {name} was {found.get(name, 'absent')}, "
                        f"now it is {job.get(name, 'absent')}; resume with the same settings or start a new run"
                    )
            for directory in ("partials", "arrays"):
                for orphan in self.root.joinpath(directory).glob(".*.partial"):
                    shutil.rmtree(orphan, ignore_errors=True)
            return
        try:
            for directory in ("partials", "receipts", "arrays"):
                (self.root / directory).mkdir(parents=True, exist_ok=True)
            write_json(manifest, {"format": FORMAT, "job": job})
        except OSError as error:
            raise DataError(f"{self.path}: the run directory cannot be written: {error.strerror}") from error

    def publish(self, receipt: Receipt, partial: Accumulator) -> Receipt:
        """Publish a partial and then its receipt, which says that it is whole."""
        receipt = dataclasses.replace(receipt, digest=arrays.digest(partial))
        arrays.publish(
            self.root / "partials" / receipt.node, "partial", partial, {"digest": receipt.digest}, overwrite=True
        )
        write_json(self._receipt(receipt.node), receipt.to_json())
        return receipt

    def partial(self, node: str, digest: str) -> Accumulator:
        """Read a partial back, through its checksums and its digest.

        Raises
        ------
        DataError
            It is not what was published (ChunkCorrupt, ChunkMissing where a chunk is).
        """
        values, _ = arrays.read_group(self.root / "partials" / node, "partial")
        found = arrays.digest(values)
        if found != digest:
            raise DataError(f"{self.path}/partials/{node}: digest {found[:12]}…, its receipt says {digest[:12]}…")
        return values

    def finished(self, node: str) -> Receipt | None:
        """The receipt of a node that was published and reads back whole; None otherwise."""
        receipt = self.receipt(node)
        if receipt is None:
            return None
        try:
            self.partial(node, receipt.digest)
        except (OSError, DataError):
            return None
        return receipt

    def receipt(self, node: str) -> Receipt | None:
        """The receipt of a node as published, its partial not looked at; None where there is none."""
        try:
            return Receipt(**{**json.loads(self._receipt(node).read_text()), "resumed": True})
        except (OSError, ValueError, TypeError):
            return None

    def usable(self, merges: list[tuple[str, str, str]], leaves: list[str]) -> dict[str, Receipt]:
        """Finished nodes that no finished node contains; receipts that promise more than there is are removed.

        `merges` lists (node, left, right), children first.
        """
        children = {node: (left, right) for node, left, right in merges}
        found: dict[str, Receipt] = {}
        look = [merges[-1][0]] if merges else list(leaves)
        while look:
            node = look.pop()
            receipt = self.finished(node)
            if receipt:
                found[node] = receipt
                continue
            self._receipt(node).unlink(missing_ok=True)
            self.discard(node)
            look.extend(children.get(node, ()))
        return found

    def _receipt(self, node: str) -> Path:
        return self.root / "receipts" / f"{node}.json"

    def discard(self, *nodes: str) -> None:
        """Remove partials that were merged; their receipts stay."""
        for node in nodes:
            doomed = self.root / "partials" / f".{node}.{uuid.uuid4().hex}.partial"
            with contextlib.suppress(FileNotFoundError):
                os.replace(self.root / "partials" / node, doomed)  # gone at once: nobody reads a half-removed one
            shutil.rmtree(doomed, ignore_errors=True)

    def keep(self, values: NDArray[Any]) -> ArrayRef:
        """Store an array under its digest."""
        reference = ArrayRef(arrays.digest({"values": values}))
        target = self.root / "arrays" / reference.digest
        if not target.exists():
            arrays.publish(target, "array", {"values": values}, {}, overwrite=False)
        return reference


@lru_cache(maxsize=8)
def _load(path: str, digest: str) -> NDArray[Any]:
    values, _ = arrays.read_group(Path(path) / "arrays" / digest, "array")
    if arrays.digest(values) != digest:
        raise DataError(f"{path}/arrays/{digest}: its content does not have this digest")
    return values["values"]


def detach(value: Any, run: Run) -> Any:
    """A copy of plain data with every large array replaced by a reference into the run."""
    if isinstance(value, np.ndarray):
        return run.keep(value) if value.nbytes > _DETACH_BYTES else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: detach(getattr(value, f.name), run) for f in dataclasses.fields(value) if f.init}
        return dataclasses.replace(value, **changed)
    return value


def attach(value: Any, path: str) -> Any:
    """The reverse of `detach`, in the task."""
    if isinstance(value, ArrayRef):
        return _load(path, value.digest)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: attach(getattr(value, f.name), path) for f in dataclasses.fields(value) if f.init}
        return dataclasses.replace(value, **changed)
    return value


def fingerprint(value: Any) -> str:
    """SHA-256 of plain data (dataclasses, arrays, numbers, names), by content."""
    total = hashlib.sha256()

    def feed(item: Any) -> None:
        if isinstance(item, np.ndarray):
            total.update(arrays.digest({"": item}).encode())
        elif hasattr(item, "fingerprint"):
            total.update(item.fingerprint().encode())
        elif dataclasses.is_dataclass(item) and not isinstance(item, type):
            total.update(type(item).__name__.encode())
            for part in dataclasses.fields(item):
                total.update(part.name.encode())
                feed(getattr(item, part.name))
        elif isinstance(item, dict):
            for key in sorted(item):
                total.update(str(key).encode())
                feed(item[key])
        elif isinstance(item, tuple | list):
            for part in item:
                feed(part)
        else:
            total.update(repr(item).encode())
        total.update(b";")

    feed(value)
    return total.hexdigest()


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file that is there whole or not at all: temporary file, fsync, rename."""
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        with open(scratch, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
