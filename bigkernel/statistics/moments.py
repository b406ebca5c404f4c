"""Moments of feature maps: the statistic of ridge, and of all methods that are ridge in some coordinates.

The moments of a map φ (width p) with targets (c) are
    n = Σw,  G = Σ w φφᵀ (p×p),  C = Σ w φyᵀ (p×c),  s = Σ w φ (p),  t = Σ w y (c),  q = Σ w y² (c),
summed separately by group of rows (labelled and unlabelled, folds of cross-validation) and for each kernel of a family.
They add over chunks, workers and days, and solves need nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from bigkernel.arrays import Array, DType, Index
from bigkernel.errors import DataError
from bigkernel.kernels.blas import add_upper, mirror, syrk
from bigkernel.kernels.feature_maps import FeatureMap
from bigkernel.statistics.statistic import BlockStatistic, Shapes
from bigkernel.streaming.chunk import Chunk, rounded_cells
from bigkernel.streaming.devices import HOST, Device, converted, namespace
from bigkernel.streaming.folds import Folds
from bigkernel.streaming.plan import NOT_COMPARED, Accumulator, Footprint

MANY_TARGETS = 256  # and more than the columns of the map: their products with each other are left out
GRAM_ROWS = 8192  # most rows whose Gram matrix is summed in the dtype of the blocks, then added to the float64 total
SUMS = ("rows", "n", "G", "C", "s", "t", "q")
ALIGN = 16  # columns: 64 bytes of float32
PROBED = ("E", "probed_rows")  # sums of the probe
PROBE_BYTES = 2**21  # its float64 copies of some rows and columns
_STRIP_NUMBERS = 2**17  # size of such a copy, which stays in cache
DEVICE_ROWS = 2048  # rows or columns that a device converts at once
_MIX = 0x9E3779B97F4A7C15  # 2⁶⁴/φ: spreads whole numbers over all bits
_SLOWNESS = 25  # cost of float64 products with a few vectors against float32 products of matrices
_SHARE = 0.01  # of the time of a sweep that the probe may take
_LEAST_WINDOWS = 2  # windows that are probed at least: each has k vectors for every column


def uncentre(total: Accumulator, shift: Array) -> Accumulator:
    """Return moments (and anchors) of φ from those of φ − shift, group by group, in float64."""
    a, n, s, t = shift.astype(np.float64), total["n"], total["s"], total["t"]
    cross = s[:, :, None] * a
    anchors = {"anchors": total["anchors"] + np.outer(total["degrees"], a)} if "anchors" in total else {}
    # Σ w (b + a)(b + a)ᵀ = G + saᵀ + asᵀ + n aaᵀ and Σ w (b + a)yᵀ = C + atᵀ
    return {
        **total,
        **anchors,
        "G": total["G"] + cross + cross.transpose(0, 2, 1) + n[:, None, None] * np.outer(a, a),
        "C": total["C"] + a[:, None] * t[:, None, :],
        "s": s + n[:, None] * a,
    }


def without(sums: Mapping[str, Array], *groups: int) -> Accumulator:
    """Return the sums of all but some groups, as a single group.

    They are added: in a difference from the total, rows of large weight would leave rounding alone.
    """
    return {
        name: np.asarray(sum(own for place, own in enumerate(values) if place not in groups))[None]
        for name, values in sums.items()
    }


def select_columns(total: Mapping[str, Array], columns: Array) -> Accumulator:
    """Return a copy of the moments of some columns (k,) of the map, group by group."""
    out = {name: values.copy() for name, values in total.items() if name not in (*PROBED, "G", "C", "s")}
    G, C, s = total["G"][:, columns[:, None], columns], total["C"][:, columns], total["s"][:, columns]
    return out | {"G": G, "C": C, "s": s}


def unshift_targets(total: Accumulator, shift: Array) -> Accumulator:
    """Return moments with targets y from those with y − shift, (c,), group by group."""
    n, s, t = total["n"], total["s"], total["t"]
    # Σ w φ(y + d)ᵀ = C + sdᵀ and Σ w (y + d)² = q + 2dt + nd²
    return {
        **total,
        "C": total["C"] + s[:, :, None] * shift,
        "t": t + n[:, None] * shift,
        "q": total["q"] + 2 * shift * t + n[:, None] * shift**2,
    }


@dataclass(frozen=True)
class Moments:
    """The moments of one group of rows, a view of an accumulator; shapes as in the module docstring."""

    rows: float  # number of rows of positive weight
    n: float
    G: Array
    C: Array
    s: Array
    t: Array
    q: Array
    shift: Array | None = None  # a (p,) if G, C and s are those of φ − a; None: of φ

    @classmethod
    def of(cls, total: Accumulator, group: int | None = None, *, shift: Array | None = None) -> Moments:
        """Return the moments of one group, or of all groups together."""
        one = 0 if group is None and len(total["n"]) == 1 else group
        sums = {name: total[name].sum(axis=0) if one is None else total[name][one] for name in SUMS}
        return cls(**sums, shift=shift)

    @classmethod
    def of_rows(cls, phi: Array, y: Array, weight: Array) -> Moments:
        """Return the moments of rows φ (n, p) with targets (n, c) and weights (n,), all in memory."""
        weighted, own = phi * weight[:, None], y * weight[:, None]
        rows, n = float(np.count_nonzero(weight)), float(weight.sum())
        G, C, s, t = weighted.T @ phi, weighted.T @ y, weighted.sum(axis=0), own.sum(axis=0)
        return cls(rows, n, G, C, s, t, q=(own * y).sum(axis=0))


@dataclass(frozen=True, eq=False)
class Targets:
    """How the column `y` is encoded as targets (b, c), and which rows are labelled."""

    width: int  # c
    # sorted labels, or None when y holds numbers. Classes become one-hot rows. NaN is unlabelled, as is −1 unless it is
    # a class
    classes: Array | None = None
    position: Array | None = None  # index of the target of each of `classes`; None: its own index
    missing: float | None = None  # a number that marks rows without a target, besides NaN
    # (c,) subtracted from numeric targets, a point near their mean, to keep sums of squares accurate
    shift: Array | None = None

    def labelled_in(self, chunk: Chunk) -> Array:
        """Return which rows of a chunk are labelled, (n,) bool; `DataError` for no `y` or an unknown label."""
        return self.labelled(require_labels(chunk), chunk.start)

    def labelled(self, y: Array, start: int) -> Array:
        """Return which rows of y are labelled, (n,) bool; `DataError` for an unknown label or a missing target."""
        if self.classes is None:
            table = y[:, None] if y.ndim == 1 else y
            present: Array = np.ones(len(y), bool) if self.missing is None else (table != self.missing).all(axis=1)
            if y.dtype.kind != "f":
                if (beyond := rounded_cells(y)) is not None:
                    row = start + int(np.argwhere(beyond)[0, 0])
                    raise DataError(f"y: row {row}: float64 rounds whole numbers beyond 2**53; subtract an offset")
                return present
            # a row of floats has all of its targets, or none of them: NaN
            infinite = np.isinf(table).any(axis=1)
            if infinite.any():
                raise DataError(f"y: row {start + int(np.argmax(infinite))} is infinite; NaN marks unlabelled rows")
            count: Array = (~np.isnan(table)).sum(axis=1)
            some = (count > 0) & (count < table.shape[1])
            if some.any():
                row = int(np.argmax(some))
                raise DataError(
                    f"y: row {start + row} has {count[row]} of {table.shape[1]} targets, expected all or none (NaN), "
                    "as all targets are fitted to the same rows; fit a model for each target"
                )
            return np.asarray(present & (count > 0))
        labelled: Array = np.isin(y, self.classes)
        # −1 and NaN mark rows without a label; another label is a mistake, unless it is a class
        strange = ~labelled if y.dtype.kind not in "if" else ~labelled & (y != -1) & (y == y)
        if strange.any():
            row = int(np.argmax(strange))
            raise DataError(f"y: row {start + row} has the label {y[row]}, which is not one of the classes")
        return labelled

    def one_hot(self, chunk: Chunk, block: Index) -> Array:
        """Return the targets of labelled rows of a block, (b, c) float64."""
        assert chunk.y is not None
        out = np.empty((len(chunk.y[block]), self.width))
        self.encode(chunk.y[block], out)
        return out

    def encode(self, y: Array, out: Array) -> None:
        """Write the targets of labelled rows y, (b,) or (b, c), into out (b, c)."""
        if self.classes is None:
            values = y if y.ndim == 2 else y[:, None]
            # subtracted in float64: float32 would lose small variations about a large mean
            out[...] = values if self.shift is None else values - self.shift
            if np.isinf(out).any():
                raise DataError(f"y: a target exceeds the range of {out.dtype}; scale the targets")
            return
        out[...] = 0
        column = np.searchsorted(self.classes, y)
        out[np.arange(len(y)), column if self.position is None else self.position[column]] = 1


def require_labels(chunk: Chunk) -> Array:
    """Return the column `y` of a chunk; raise `DataError` if there is none."""
    if chunk.y is None:
        raise DataError("y: expected labels, found none")
    return chunk.y


def weights_of(chunk: Chunk, block: Index) -> Array:
    """Return the weights of a block, (b,) float64, by default 1; raise `DataError` unless finite and non-negative."""
    rows = np.arange(len(chunk))[block]
    if chunk.weight is None:
        return np.ones(len(rows))
    return require_weights(np.asarray(chunk.weight[block], np.float64), chunk.start, rows)


def require_weights(w: Array, start: int, rows: Array | None = None) -> Array:
    """Raise `DataError` unless weights (b,) are finite and non-negative; `rows`: their positions after row `start`."""
    valid = np.isfinite(w) & (w >= 0)
    if not valid.all():
        first = int(np.argmin(valid))
        row = start + (first if rows is None else int(rows[first]))
        raise DataError(f"weight: expected a finite non-negative number, found {w[first]} in row {row}")
    return w


@dataclass(frozen=True, eq=False)
class RoundingProbe:
    """Vectors that probe the rounding of a Gram matrix during a sweep.

    G = Σ w bbᵀ, multiplied and summed over some thousand rows in the dtype of the blocks, has a rounding error E. For k
    vectors v the sweep also computes u = Σ w b (bᵀv) in float64, which keeps √κ more digits than Gv, because |bᵀv| is
    of order one if v = Tz whitens the block; hence Ev = Gv − u. `solvers.ridge` derives the error of a solution. A
    sample of the rows suffices: windows of rows are chosen by a hash of their start, the same in every process.
    Shapes: K blocks of the same rows.
    """

    # v, (K, p, k) float64; excluded from the identity of a run, because other processors round them differently
    vectors: Array = field(metadata=NOT_COMPARED)
    every: int = 1  # one window of rows in `every` is probed

    def includes(self, start: int, window: int) -> bool:
        """Return whether window number `window` of the rows from `start` is probed; the very first always is."""
        return start == window == 0 or ((start + window + 1) * _MIX % 2**64 >> 32) % self.every == 0


def probe_interval(flops_per_row: float, size: int, windows: int) -> int:
    """Return `every` of a probe such that it takes a small share of the time of a sweep; `size`: K·p·k."""
    affordable = -(-4 * size * _SLOWNESS // max(int(_SHARE * flops_per_row), 1))
    return int(max(1, min(affordable, windows // _LEAST_WINDOWS)))


class ProbedWindow:
    """Σ b (bᵀv) of vectors v (p, k) over a window of rows [Φ, Y, 1, 0], weighted by √w and about `shift` (p,) or None.

    `place` is the column of ones, by which moments about a shift are taken back to 0. Rows are on `device`.
    """

    def __init__(self, vectors: Array, shift: Array | None, place: int, device: Device = HOST) -> None:
        a = np.zeros(len(vectors)) if shift is None else shift.astype(np.float64)
        self._place, self._shift = place, device.array(a)
        # b + a = (b, 1)(I; aᵀ)
        self._vectors = device.array(np.vstack([vectors, a[None] @ vectors]))
        self._sums = device.zeros(self._vectors.shape)
        self._weight = device.zeros(())
        # rows of a strip
        self._step = max(8, _STRIP_NUMBERS // max(len(vectors), 1)) if device.host is None else DEVICE_ROWS

    def add(self, rows: Array) -> None:
        """Add Σ b (bᵀv) of a block (b, wide), in float64."""
        V, sums, p, b = self._vectors, self._sums, self._shift.shape[0], rows.shape[0]
        for start in range(0, b, self._step):
            some = slice(start, min(start + self._step, b))
            strip = converted(rows[some, :p], np.float64, copy=True)
            one = converted(rows[some, self._place], np.float64, copy=True)
            # Σ w (b, 1)(φᵀv) with φᵀv = bᵀv + aᵀv, of rows φ = b + a about 0
            values = strip @ V[:p, :]
            values += one[:, None] * V[p, :]
            sums[:p, :] += strip.T @ values
            sums[p, :] += one @ values
            self._weight += one @ one

    def rounding_of(self, gram: Array) -> Array:
        """Compute Ev (p, k) about 0 of the window whose Φᵀ[Φ, Y, 1] has this upper triangle."""
        V, p, last, xp = self._vectors, self._shift.shape[0], self._place, namespace(gram)
        product = xp.zeros_like(V[:p, :])  # Gv
        # Gv by strips of the upper triangle: each times v, and its transpose without the diagonal
        for i in range(0, p, self._step):
            j = min(i + self._step, p)
            strip = converted(xp.triu(gram[i:j, i:p]), np.float64, copy=True)  # below the diagonal is undefined
            product[i:j, :] += strip @ V[i:p, :]
            strip[:, : j - i] = xp.triu(strip[:, : j - i], k=1)
            product[i:, :] += strip.T @ V[i:j, :]
        sums = converted(gram[:p, last], np.float64)
        # by how much [b, 1]ᵀ[b, 1](v; aᵀv) is off, and Ev = (I, a) times that, as φ = (I, a)(b; 1)
        error = product + sums[:, None] * V[p, :] - self._sums[:p, :]
        of_ones: Array = sums @ V[:p, :] + self._weight * V[p, :] - self._sums[p, :]
        result: Array = error + self._shift[:, None] * of_ones
        return result


@dataclass(frozen=True, eq=False)
class GroupedBlocks(BlockStatistic):
    """Base of sums of [Φ, Y, 1] by group of rows: `rows`, `n`, `t` and `q`, and what needs products.

    With several blocks for the same rows, the groups of the first block come first.
    """

    features: FeatureMap
    targets: Targets | None = None  # None: no y is read, c = 0.
    # "drop": one group, the labelled rows; "keep": group 0 the unlabelled rows, group 1 the labelled ones
    unlabelled: str = "drop"
    # labelled rows form count + 1 groups, by the fold that tests them; the last: tested by none
    folds: Folds | None = None

    @property
    def groups(self) -> int:
        """The number of groups of rows."""
        return (self.unlabelled == "keep") + (self.folds.count + 1 if self.folds else 1)

    @property
    def n_targets(self) -> int:
        """The number of targets, c."""
        return self.targets.width if self.targets else 0

    @property
    def wide(self) -> int:
        """The number of columns of [Φ, Y, 1, 0], whose zeros keep rows aligned."""
        return -(-(self.features.width + self.n_targets + 1) // ALIGN) * ALIGN

    def shapes(self) -> Shapes:
        g, c = self.groups * self.features.count, self.n_targets
        return {"rows": (g,), "n": (g,), "t": (g, c), "q": (g, c)}

    def _split(self, chunk: Chunk) -> list[Array | None]:
        """Return the row positions of each group; None: all rows of the chunk."""
        if self.targets is None:
            return [None]
        labelled = self.targets.labelled_in(chunk)
        groups = [~labelled] if self.unlabelled == "keep" else []
        if self.folds is None:
            groups.append(labelled)
        else:
            fold = self.folds.of(chunk)
            groups += [labelled & (fold == number) for number in (*range(self.folds.count), -1)]
        return [None if group.all() else np.flatnonzero(group) for group in groups]

    def _is_labelled(self, group: int) -> bool:
        """Return whether the rows of a group have targets."""
        return self.unlabelled == "drop" or group > 0

    def _encode(self, chunk: Chunk, block: Index, group: int, values: Array) -> None:
        """Write the targets of a block into values (b, c)."""
        if self.targets and chunk.y is not None and self._is_labelled(group):
            self.targets.encode(chunk.y[block], values)
        else:
            values[...] = 0

    def _add_block(self, total: Accumulator, group: int, chunk: Chunk, block: Index, phi: Array) -> None:
        """Add what a subclass sums of the unweighted features (b, p) of a block of a group."""

    def _blocks(self, total: Accumulator, group: int, chunk: Chunk, block: Index) -> Iterator[Array]:
        """Yield [Φ, Y, 1, 0] of a block, (b, wide), weighted by √w, for every kernel; add sums that need no product."""
        p, c, work = self.features.width, self.n_targets, chunk.work
        for place, rows in enumerate(self.features.blocks(chunk, block, self.wide - p)):
            with work.stage("add"):
                values = chunk.on_host().work.buffer("targets", (rows.shape[0], c), np.float64)
                self._encode(chunk, block, group, values)
                self._add_block(total, group, chunk, block, rows[:, :p])
                # the targets and ones come into the spare columns of the block: one product gives G, C and s
                rows[:, p + c], rows[:, p + c + 1 :] = 1, 0
                rows[:, p : p + c] = (
                    values if work.on_host else converted(work.device.array(values), self.features.dtype)
                )
                weighted, weight, counted = values, float(len(values)), len(values)
                if chunk.weight is not None:
                    w = weights_of(chunk, block)
                    weighted, weight, counted = values * w[:, None], float(w.sum()), int(np.count_nonzero(w))
                    rows *= work.device.array(np.sqrt(w).astype(self.features.dtype))[:, None]
                # t = Σ w y and q = Σ w y² are of the targets in float64, which the block has rounded
                at = place * self.groups + group
                total["rows"][at] += counted
                total["n"][at] += weight
                total["t"][at] += weighted.sum(axis=0)
                total["q"][at] += (weighted * values).sum(axis=0)
            yield rows


@dataclass(frozen=True, eq=False)
class MomentStatistic(GroupedBlocks):
    """The moments of a feature map by group of rows: the statistic of ridge, KRR and SSSL."""

    # dtype of products and of their sums over `GRAM_ROWS` rows; None: that of the blocks
    sums: DType | None = field(default=None, kw_only=True)
    # sums also E = Σ (rounding of G) v (p, k), and the number of probed rows
    probe: RoundingProbe | None = field(default=None, kw_only=True)

    @property
    def _multiplied(self) -> int:
        """Number of columns of [Φ, Y, 1, 0] that are multiplied with all: those of Φ if there are many targets."""
        return self.features.width if self.n_targets > max(self.features.width, MANY_TARGETS) else self.wide

    def shapes(self) -> Shapes:
        g, p = self.groups * self.features.count, self.features.width
        shapes = {**super().shapes(), "G": (g, p, p), "C": (g, p, self.n_targets), "s": (g, p)}
        if self.probe:
            shapes |= {"E": (g, p, self.probe.vectors.shape[2]), "probed_rows": (g,)}
        return shapes

    def finish(self, total: Accumulator) -> Accumulator:
        """Mirror G, which is summed above its diagonal."""
        G = total["G"] if total["G"].flags.writeable else total["G"].copy()
        for gram in G:
            mirror(gram)
        return {**total, "G": G}

    def footprint(self, block_rows: int) -> Footprint:
        p, c, count, dtype = self.features.width, self.n_targets, self.features.count, self.features.dtype
        sums = self.sums or dtype
        # of a row: spare columns of the block, targets, and a copy in the dtype of the products
        row_bytes = (self.wide - p) * dtype.itemsize + 8 * c + (0 if sums == dtype else self.wide * sums.itemsize)
        # of a task: Φᵀ[Φ, Y, 1] of each kernel
        flops, work = 1.0 * count * (p * p + 2 * p * (c + 1)), count * self._multiplied * self.wide * sums.itemsize
        if self.probe:
            flops += 4.0 * self.probe.vectors.size / self.probe.every
            work += PROBE_BYTES + 40 * self.probe.vectors.shape[2] * (p + 1)
        cost = self.block_cost(block_rows, flops=flops, row_bytes=row_bytes, work_bytes=work)
        return replace(cost, width=p, dtype=dtype.name, shared_bytes=self.features.cost.fixed_bytes)

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        """Add a chunk to `total`, as Gram matrices of some thousand rows of a group at a time."""
        p, c, work = self.features.width, self.n_targets, chunk.work
        dtype = self.sums or self.features.dtype
        # Φᵀ[Φ, Y, 1] holds G, C and s; one for each block of the features
        grams = work.buffer("gram", (self.features.count, self._multiplied, self.wide), dtype)
        # on a device the large sums stay there for the segment
        sums = work.summed(total, "G", "C", "s", *PROBED[: self.probe is not None])
        for group, index in enumerate(self._split(chunk)):
            waiting, window = 0, 0  # rows whose Gram matrices are still in the dtype of the products
            probes: list[ProbedWindow] = []
            for block in chain(chunk.blocks(index), [None]):
                # sums of some thousand rows in the dtype of the products join the float64 total
                if waiting >= GRAM_ROWS or (waiting and block is None):
                    with work.stage("add"):
                        for place in range(self.features.count):
                            at, gram = place * self.groups + group, grams[place, ...]
                            add_upper(sums["G"][at, ...], gram[:p, :p])
                            sums["C"][at, ...] += gram[:p, p : p + c]
                            sums["s"][at, :] += gram[:p, p + c]
                            if probes:
                                sums["E"][at, ...] += probes[place].rounding_of(gram)
                                total["probed_rows"][at] += waiting
                    waiting, window = 0, window + 1
                if block is None:
                    break
                # a new window of rows: its products with vectors in float64 tell the rounding of its Gram matrix
                if not waiting:
                    first = chunk.start + group
                    vectors = self.probe.vectors if self.probe and self.probe.includes(first, window) else ()
                    shifts = map(self.features.shift_of, range(len(vectors)))
                    probes = [ProbedWindow(V, a, p + c, work.device) for V, a in zip(vectors, shifts, strict=True)]
                for place, rows in enumerate(self._blocks(total, group, chunk, block)):
                    with work.stage("gram"):
                        wider = rows
                        if self.features.dtype != dtype and work.on_host:
                            wider = work.buffer("widened", rows.shape, dtype)
                            np.copyto(wider, rows)
                        elif self.features.dtype != dtype:
                            wider = converted(rows, dtype)
                        syrk(wider, grams[place, ...], accumulate=waiting > 0)
                    if probes:
                        with work.stage("add"):
                            probes[place].add(rows)
                waiting += rows.shape[0]


@dataclass(frozen=True, eq=False)
class FeatureSums(BlockStatistic):
    """n = Σw, s = Σ w φ and q = Σ w φ² (p,) of the columns of a map, for means and standard deviations."""

    features: FeatureMap

    def shapes(self) -> Shapes:
        return {"n": (), "s": (self.features.width,), "q": (self.features.width,)}

    def footprint(self, block_rows: int) -> Footprint:
        p = self.features.width
        return self.block_cost(block_rows, flops=3 * p, row_bytes=8 * p)

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        for block in chunk.blocks():
            phi = chunk.work.device.to_host(*self.features.blocks(chunk, block))
            with chunk.work.stage("add"):
                w = weights_of(chunk, block)
                total["n"] += w.sum()
                total["s"] += w @ phi
                np.multiply(phi, phi, out=phi)
                total["q"] += w @ phi
