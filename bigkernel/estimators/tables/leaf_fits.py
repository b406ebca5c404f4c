"""The sweep that fits leaves: every segment is a leaf, whose task fits a model to its rows and writes what predicts.

The file of a leaf appears complete or not at all. Shapes: n rows, d features, L leaves.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, clone

from bigkernel.arrays import Array, DType
from bigkernel.config import Settings, given_settings
from bigkernel.data.fingerprint import fingerprint
from bigkernel.engine.leaf_rows import COLUMNS, LeafRows
from bigkernel.engine.rows import NumpySource, Rows, Source, SparseSource
from bigkernel.engine.sweep import Execution, execution
from bigkernel.errors import ConfigError, DataError, ModelRejectedError
from bigkernel.estimators.base import last_step
from bigkernel.estimators.tables.blended import Parameter, member_of, plain_targets
from bigkernel.kernels.feature_maps import IdentityMap
from bigkernel.models.file import LIMIT_BYTES, Packing, opened, require, unpack, write_file
from bigkernel.models.predictor import kind_of
from bigkernel.statistics.blend import Member
from bigkernel.statistics.moments import Targets
from bigkernel.statistics.predictor import Predictor as Expansion
from bigkernel.statistics.statistic import Shapes, Statistic
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.plan import NOT_COMPARED, Accumulator, Footprint

_FEW_ROWS = 100  # with which a fit of a leaf may fail
_NEVER = -1e4  # a logit whose probability is 0


class AllRows:
    """Rows as given; those in memory stay in this process, and of others only what all rows share is sent to tasks.

    Classes become their positions among the sorted labels, so that all leaves have the same.
    """

    def __init__(self, rows: Rows, targets: Targets) -> None:
        columns = {name: source for name, source in rows.columns.items() if name in COLUMNS}
        classes = () if targets.classes is None else tuple(range(targets.width))
        self.rows = replace(rows, columns=columns, ids={}, feature_names=(), classes=classes, grid=None)
        self.targets = targets
        if not rows.in_memory:
            self.rows = replace(self.rows, x=NumpySource(np.empty((0, rows.x.shape[1]), rows.dtype)), columns={})

    def fingerprint(self) -> str:
        """Return a digest of what all rows share; the sweep that wrote them compares the rows."""
        return fingerprint((self.rows.row_maps, self.targets))

    def select(self, taken: Array) -> Rows:
        """Return rows by their numbers, or made of what was read."""
        if taken.dtype.names is None:
            sources = {"x": self.rows.x, **self.rows.columns}
            chosen = {name: _chosen(source, taken) for name, source in sources.items()}
        else:
            chosen = {name: NumpySource(np.ascontiguousarray(taken[name])) for name in taken.dtype.names}
        chosen["y"] = NumpySource(plain_targets(self.targets, chosen["y"].read(0, len(taken))))
        return replace(self.rows, x=chosen.pop("x"), columns=chosen)


def _chosen(source: Source, ids: Array) -> Source:
    if isinstance(source, SparseSource):
        return SparseSource(sparse.csr_array(source.array[ids]))
    return NumpySource(source.read(0, source.shape[0])[ids])


@dataclass(frozen=True, eq=False)
class LeafNumbers(Source):
    """The numbers of L leaves as rows, of which every segment of a sweep has one; for any executor."""

    count: int
    segment_rows: ClassVar[int] = 1

    @property
    def shape(self) -> tuple[int, ...]:
        return self.count, 1

    @property
    def dtype(self) -> DType:
        return np.dtype(np.float64)

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(range(self.count + 1))

    def read(self, start: int, stop: int) -> Array:
        return np.arange(start, stop, dtype=np.float64)[:, None]

    def restrict(self, start: int, stop: int) -> Source:
        return self

    def fingerprint(self) -> str:
        return f"{self.count} leaves"


@dataclass(frozen=True, eq=False)
class LeafFits(Statistic):
    """A statistic that fits leaves, given by number, and writes their models; accumulates the number of `leaves`."""

    source: LeafRows
    rows: AllRows
    models: tuple[BaseEstimator, ...] = field(metadata=NOT_COMPARED)  # one for each leaf, with its own seed
    parameters: dict[str, Parameter]  # of all of them
    config: Settings = field(metadata=NOT_COMPARED)
    fit_bytes: int  # most bytes of the rows, the sums and the solve of a leaf
    module_bytes: int  # of modules that workers load for the first leaf
    fit_flops: float  # of a leaf, on average
    spread: bool = False  # whether models keep what standard deviations need

    def shapes(self) -> Shapes:
        return {"leaves": (1,)}

    def footprint(self, block_rows: int) -> Footprint:
        shared = self.module_bytes
        return Footprint(self.fit_flops, self.partial_bytes, self.fit_bytes + shared, shared_bytes=shared)

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        for leaf in range(chunk.start, chunk.start + len(chunk)):
            total["leaves"] += 1
            if self._is_intact(leaf):  # of a run that has lost others
                continue
            with chunk.work.stage("read"):
                rows = self.rows.select(self.source.rows_of(leaf))
            with chunk.work.stage("fit leaves"), _WARNINGS.recording() as caught:
                # the sweeps inside are no steps of this job
                fitted = Context().run(self._fit, leaf, rows)
            packing = Packing(kind_of)
            said = {"of": [self.job, leaf], "leaf": packing.pack(fitted, "leaf"), "warnings": caught}
            with chunk.work.stage("write"):
                write_file(self._file(leaf), said, packing.arrays)

    def _fit(self, leaf: int, rows: Rows) -> Member:
        execution.set(Execution("serial"))
        given_settings.set(self.config)
        count = len(rows)
        try:
            constant = self._only_class(rows, hasattr(last_step(self.models[leaf]), "predict_proba"))
            if constant is not None:
                return Member((), constant, count)
            # a clone: the task of another leaf has the same models, which would keep all fits
            return member_of(clone(self.models[leaf]).fit(rows), count, spread=self.spread)
        except (ConfigError, DataError) as error:
            more = "; with fewer leaves each has more rows" if count < _FEW_ROWS else ""
            raise type(error)(f"leaf {leaf + 1} of {len(self.models)} with {count:,} rows: {error}{more}") from error

    def _only_class(self, rows: Rows, logits: bool) -> Expansion | None:
        """Return what predicts the only class of some rows, as logits or 1; None if they have several, or numbers."""
        codes, d, c = rows.column("y"), rows.shape[1], len(rows.classes)
        assert codes is not None
        if not c or len(there := np.unique(codes[codes >= 0])) != 1:
            return None
        level = np.full(c, _NEVER if logits else 0.0)
        level[there] = 0 if logits else 1
        return Expansion(IdentityMap(np.zeros(d)), np.zeros((d, c)), level, logits=logits)

    def _file(self, leaf: int) -> Path:
        return Path(self.source.path) / f"{leaf}.leaf"

    @cached_property
    def job(self) -> str:
        """What the files of these leaves say that they belong to."""
        return fingerprint(self)

    def _load(self, leaf: int) -> tuple[Member, list[list[str]]]:
        """Read a fitted leaf and its warnings; raise if the file is missing, damaged or that of another leaf."""
        with opened(self._file(leaf), limit_bytes=LIMIT_BYTES) as contents:
            require(contents.values["of"] == [self.job, leaf], f"expected leaf {leaf + 1} of this fit, found another")
            return unpack(contents.values["leaf"], kind_of, contents), contents.values["warnings"]

    def _is_intact(self, leaf: int) -> bool:
        try:
            self._load(leaf)
        except (DataError, ModelRejectedError):
            return False
        return True

    def is_complete(self) -> bool:
        """Return whether the file of every leaf is there and intact."""
        return all(map(self._is_intact, range(len(self.models))))

    def read(self, ignored: type[Warning] | None) -> tuple[Member, ...]:
        """Read the fitted leaves, and repeat their warnings, each kind once, but the ignored one."""
        leaves, warned = [], dict[type[Warning], list[str]]()
        for leaf in range(len(self.models)):
            member, caught = self._load(leaf)
            leaves.append(member)
            for module, name, text in caught:
                kind = getattr(sys.modules.get(module), name, None)
                known = kind if isinstance(kind, type) and issubclass(kind, Warning) else RuntimeWarning
                warned.setdefault(known, []).append(text)
        for kind, texts in warned.items():
            if kind is not ignored:
                others = f" ({len(texts)} such warnings from {len(leaves)} leaves)" if len(texts) > 1 else ""
                warnings.warn(f"{texts[0]}{others}", kind, stacklevel=5)
        return tuple(leaves)


class _Recorder:
    """Records the warnings that some threads would show; those of others are shown as before.

    What Python shows in `warnings.showwarning`, which is one for all threads, goes to the list of its thread.
    """

    def __init__(self) -> None:
        self._lock, self._lists = threading.Lock(), dict[int, list[tuple[str, str, str]]]()  # by thread
        self._shown = warnings.showwarning

    @contextmanager
    def recording(self) -> Iterator[list[tuple[str, str, str]]]:
        """Record the warnings of this thread in the block: module and name of the category, and text."""
        thread, own = threading.get_ident(), list[tuple[str, str, str]]()
        with self._lock:
            if warnings.showwarning != self._record:
                self._shown, warnings.showwarning = warnings.showwarning, self._record  # type: ignore[assignment]
            outer, self._lists[thread] = self._lists.get(thread), own
        try:
            yield own
        finally:
            with self._lock:
                del self._lists[thread]
                if outer is not None:  # of a leaf that has leaves
                    self._lists[thread] = outer
                if not self._lists and warnings.showwarning == self._record:
                    warnings.showwarning = self._shown

    def _record(self, message: Warning | str, category: type[Warning], *where: object) -> None:
        own = self._lists.get(threading.get_ident())
        if own is None:
            self._shown(message, category, *where)  # type: ignore[arg-type]
        else:
            own.append((category.__module__, category.__qualname__, str(message)))


_WARNINGS = _Recorder()
