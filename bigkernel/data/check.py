"""`bigkernel check` walks every chunk of a corpus, prediction store or run directory.

Everything is read through its checksums and compared with its seal (stores) or its receipts (runs); the first damage
does not end the walk. Whoever wants that stops at the first `Looked` that carries one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from bigkernel.data import seals, zarr_arrays
from bigkernel.data.chunk_check import Looked, look_store
from bigkernel.data.corpus import open_corpus
from bigkernel.data.run_directory import Receipt, Run, read_sealed
from bigkernel.errors import BigKernelError, DataError

STORES = ("corpus", "predictions")
_DIGEST = re.compile("[0-9a-f]{64}")
_EXPECTED = "expected a corpus, model, prediction store or run directory"


def kind_at(path: str | os.PathLike[str]) -> str:
    """The store at `path`: "corpus", "predictions", "run", "partial" or "array".

    Raises
    ------
    DataError
        Nothing there, or none of these.
    """
    root = Path(path)
    if not os.path.exists(root):
        raise DataError(f"{path}: the path does not exist")
    if not os.path.isdir(root):
        raise DataError(f"{path}: {_EXPECTED}, found a file")
    kind = seals.kind_of(root)
    if kind in (*STORES, "partial", "array"):
        return kind
    if seals.is_sealed(root):
        seals.verify(root)
        raise DataError(f"{root}: says that it is a {kind!r}, which this version does not know")
    if _sweeps(root):
        return "run"
    raise DataError(f"{path}: {_EXPECTED}, found none of them")


def walk(path: str | os.PathLike[str], kind: str) -> Iterator[Looked]:
    """Look at every chunk of what is at `path`, of a `kind` of `kind_at`.

    Raises
    ------
    DataError
        The store cannot be opened: its metadata or seal is damaged or missing.
    """
    root = Path(os.path.abspath(path))
    if kind == "corpus":
        yield from open_corpus(root).look()
    elif kind == "run":
        for sweep in _sweeps(root):
            yield from _look_run(sweep, os.path.relpath(sweep, root))
    else:
        group, *_ = zarr_arrays.open_group(root, kind)
        arrays = {name: zarr_arrays.open_array(group, name) for name in zarr_arrays.array_names(group)}
        yield from look_store(root, arrays)


# -- runs ----------------------------------------------------------------------------------------------------------


def _sweeps(root: Path) -> list[Path]:
    """Run directories in and below `root`: those of the sweeps of a job, and of the jobs of a command."""
    found: list[Path] = []
    for depth in range(3):
        found.extend(path.parent for path in root.glob("*/" * depth + "manifest.json"))
    return sorted(found)


def _look_run(root: Path, name: str) -> Iterator[Looked]:
    """Every array, receipt and partial of one run; a merged partial is not there, but what contains it is."""
    try:
        read_sealed(root / "manifest.json")
        yield Looked(f"{name}/manifest.json", 1, 1)
    except (OSError, ValueError) as error:
        yield Looked(f"{name}/manifest.json", 1, 1, DataError(f"{root}/manifest.json: cannot be read: {error}"))
    run = Run(str(root))
    kept = [entry for entry in _entries(root / "arrays") if _DIGEST.fullmatch(entry.name)]
    for done, entry in enumerate(kept, 1):
        yield Looked(f"{name}/arrays", done, len(kept), _damage_of_array(entry))
    files = [file for file in _entries(root / "receipts") if file.suffix == ".json" and file.name[0] != "."]
    receipts: dict[str, Receipt] = {}
    for file in files:
        receipt = run.receipt(file.stem)
        if receipt is None or receipt.node != file.stem:
            yield Looked(f"{name}/receipts", 1, 1, DataError(f"{file}: is damaged; resuming computes its rows again"))
        else:
            receipts[file.stem] = receipt
    total = max((receipt.stop for receipt in receipts.values()), default=0)
    for node, receipt in sorted(receipts.items(), key=lambda item: item[1].start):
        damage = None
        if root.joinpath("partials", node).exists():
            try:
                run.partial(node, receipt.digest)
            except DataError as error:
                damage = error
        elif not any(_contains(other, receipt) for other in receipts.values()):
            damage = DataError(
                f"{root}/partials/{node}: the partial result of rows {receipt.start}:{receipt.stop} is missing; "
                "resuming computes it again"
            )
        yield Looked(f"{name}/partials", receipt.stop, total, damage)


def _damage_of_array(path: Path) -> DataError | None:
    try:
        values, _ = zarr_arrays.read_group(path, "array")
        found = zarr_arrays.digest(values)
    except BigKernelError as error:
        return DataError(str(error))
    return None if found == path.name else DataError(f"{path}: its content has the digest {found[:12]}…")


def _contains(other: Receipt, receipt: Receipt) -> bool:
    return (
        other.start <= receipt.start
        and receipt.stop <= other.stop
        and (other.start, other.stop) != (receipt.start, receipt.stop)
    )


def _entries(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.is_dir() else []
