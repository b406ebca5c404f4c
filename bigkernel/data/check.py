"""Integrity checks: walk every chunk of a corpus, prediction store or run directory.

Everything is read through its checksums and compared with its manifest (stores) or receipts (runs): each chunk must
exist, decode, and hold permitted values. Damage does not end the walk; callers may stop at the first `CheckedChunk`
with an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from bigkernel.data import zarr_arrays
from bigkernel.data.corpus import open_corpus
from bigkernel.data.run_directory import Run, read_sealed, sweeps_below
from bigkernel.errors import BigKernelError, DataError

STORES = ("corpus", "predictions")
_DIGEST = re.compile("[0-9a-f]{64}")
_EXPECTED = "expected a corpus, model, prediction store or run directory"
_CHUNK_BYTES = 2**34  # most bytes decoded at once
_AHEAD_BYTES = 2**27  # most bytes of chunks decoded in parallel; a larger chunk is decoded alone
_MOST_READERS = 8

Judge = Callable[[int, NDArray[Any]], str]  # first row and values of a chunk: a description of the damage, or ""


@dataclass(frozen=True)
class CheckedChunk:
    """A chunk that was read."""

    array: str
    done: int  # rows of the array read so far
    total: int
    damage: DataError | None = None  # the error of reading the chunk; None: it is intact


def kind_at(path: str | os.PathLike[str]) -> str:
    """Return what is at `path`: "corpus", "predictions", "run", "partial" or "array"; a DataError for anything else."""
    root = Path(path)
    if not os.path.exists(root):
        raise DataError(f"{path}: path does not exist")
    if not os.path.isdir(root):
        raise DataError(f"{path}: {_EXPECTED}, found a file")
    kind = zarr_arrays.kind_of(root)
    if kind in (*STORES, "partial", "array"):
        return kind
    if zarr_arrays.has_manifest(root):
        zarr_arrays.read_manifest(root)
        raise DataError(f"{root}: kind {kind!r} is unknown to this version")
    if sweeps_below(root):
        return "run"
    raise DataError(f"{path}: {_EXPECTED}, found something else")


def walk(path: str | os.PathLike[str], kind: str) -> Iterator[CheckedChunk]:
    """Check every chunk at `path`, of the `kind` from `kind_at`; raise DataError if it cannot be opened.

    Yields damaged chunks, values that are not finite, labels that are not among the classes, and chunks that are not
    those that were published, each with its array.
    """
    root = Path(os.path.abspath(path))
    if kind == "run":
        for sweep in sweeps_below(root):
            yield from _check_run(sweep, os.path.relpath(sweep, root))
        return
    corpus = open_corpus(root) if kind == "corpus" else None
    store = zarr_arrays.open_store(root, kind)
    damaged = set()
    for name in ("x", *corpus.columns) if corpus else sorted(store.manifest.arrays):
        judge: Judge = _judge_of(corpus.info.classes) if corpus and name == "y" else _not_finite
        judge = (lambda *_: "") if store.grid else judge
        for checked in check_chunks(store.array(name), name, judge):
            if checked.damage:
                damaged.add(name)
            yield checked
    for name, text in zarr_arrays.changed_arrays(root, store.manifest):
        if name not in damaged:
            yield CheckedChunk(name, 1, 1, DataError(f"{root}/{name}: {text}"))


def _check_run(root: Path, name: str) -> Iterator[CheckedChunk]:
    """Check every array, receipt and partial of a run; merged partials have been removed."""
    try:
        read_sealed(root / "manifest.json")
        yield CheckedChunk(f"{name}/manifest.json", 1, 1)
    except (OSError, ValueError) as error:
        yield CheckedChunk(f"{name}/manifest.json", 1, 1, DataError(f"{root}/manifest.json: cannot be read: {error}"))
    run = Run(str(root))
    kept = [entry for entry in _entries(root / "arrays") if _DIGEST.fullmatch(entry.name)]
    for done, entry in enumerate(kept, 1):
        damage = None
        try:
            digest = zarr_arrays.digest(zarr_arrays.read_group(entry, "array")[0])
            if digest != entry.name:
                damage = DataError(f"{entry}: found content of digest {digest[:12]}…")
        except BigKernelError as error:
            damage = DataError(str(error))
        yield CheckedChunk(f"{name}/arrays", done, len(kept), damage)
    names = [file.stem for file in _entries(root / "receipts") if file.suffix == ".json" and file.name[0] != "."]
    receipts = {node: receipt for node in names if (receipt := run.receipt(node))}
    for node in sorted(set(names) - set(receipts)):
        damage = DataError(f"{root}/receipts/{node}.json: damaged; resuming will recompute its rows")
        yield CheckedChunk(f"{name}/receipts", 1, 1, damage)
    total = max((receipt.stop for receipt in receipts.values()), default=0)
    for node, receipt in sorted(receipts.items(), key=lambda item: item[1].start):
        damage, place = None, root / "partials" / node
        try:
            merged = any(
                other.start <= receipt.start and receipt.stop <= other.stop and other.rows > receipt.rows
                for other in receipts.values()
            )
            if place.exists() or not merged:
                run.partial(node, receipt.digest)
        except DataError as error:
            damage = error
        yield CheckedChunk(f"{name}/partials", receipt.stop, total, damage)


def _entries(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.is_dir() else []


def check_chunks(array: zarr.Array, name: str, judge: Judge) -> Iterator[CheckedChunk]:
    """Read every chunk of an array of ours through its codecs, on all processors, and yield them in order of rows.

    A chunk that is missing, does not decode, or holds values that `judge` objects to carries its error.
    """
    n_rows = array.shape[0] if array.ndim else 1
    chunk_bytes = int(np.prod(array.chunks, dtype=object)) * array.dtype.itemsize

    def check_one(chunk: tuple[str, tuple[slice, ...]]) -> CheckedChunk:
        key, piece = chunk
        start, stop = (piece[0].start, piece[0].stop) if piece else (0, 1)
        where, damage = f"{zarr_arrays.directory_of(array)}: rows {start}:{stop}", None
        try:
            zarr_arrays.require_chunks(array, [key])
            if chunk_bytes > _CHUNK_BYTES:
                raise DataError(f"{where} claim more than {_CHUNK_BYTES:,} bytes and were not read")
            if wrong := judge(start, zarr_arrays.read_piece(array, key, piece)):
                raise DataError(f"{where} have {wrong}")
        except DataError as error:  # let an OSError pass: the store failed, the chunk may be intact
            damage = error
        return CheckedChunk(name, stop, n_rows, damage)

    readers = max(1, min(os.cpu_count() or 1, _MOST_READERS, _AHEAD_BYTES // max(1, chunk_bytes)))
    pool = ThreadPoolExecutor(readers, thread_name_prefix="bigkernel-check")
    try:
        chunks = zarr_arrays.pieces_of(array, 0, n_rows)
        while some := list(islice(chunks, 64 * readers)):  # keep few chunks ahead of the consumer
            yield from pool.map(check_one, some)
    finally:
        pool.shutdown(cancel_futures=True)


def _not_finite(start: int, values: NDArray[Any]) -> str:
    """Describe values that must be finite and are not."""
    if values.dtype.kind not in "fc" or (finite := np.isfinite(values)).all():
        return ""
    rows = np.flatnonzero(~finite.reshape(len(finite), -1).all(axis=1)) if values.ndim else np.zeros(1, int)
    return f"{len(rows)} rows with values that are not finite, the first are {(start + rows[:5]).tolist()}"


def _judge_of(classes: Sequence[int | str]) -> Judge:
    """Return a check of stored labels: they must be among the classes, or −1; anything is valid without classes."""
    named = any(isinstance(label, str) for label in classes)
    known = np.append(np.arange(len(classes)) if named else np.asarray(classes, np.int64), -1)

    def judge(start: int, values: NDArray[Any]) -> str:
        bad = np.flatnonzero(~np.isin(values, known))
        text = f"{len(bad)} rows with labels outside the classes, the first are {(start + bad[:5]).tolist()}"
        return text if classes and bad.size else ""

    return judge
