"""Predictors that are made of members: the leaves of a tree, blended at their borders, or stages, which are summed.

It imports NumPy alone, as `predictor` does, and predicts in its place.
Shapes: n rows, b of a block, d features, c targets or classes, L members.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import numpy as np

from bigkernel.arrays import Array, Index
from bigkernel.statistics.predictor import BlockPredictor, ExactSpread, Predictor, Spread, softmax
from bigkernel.streaming.chunk import Chunk, MapCost, RowMap, Workspace, map_costs
from bigkernel.streaming.row_maps import map_rows

_SPREAD_BYTES = 2**28  # most bytes of a block of rows with its products, for standard deviations
_BLOCK_BYTES, _MOST_ROWS = 2**25, 2**17  # of the rows of a block: every leaf takes some of them


@dataclass(frozen=True, eq=False)
class Tree:
    """Splits of the space along directions; the subtree of a node with c leaves is the c − 1 nodes from it on.

    A row x goes left below `lower`, right above `upper`, and between them to both sides, with weights that change
    smoothly from one to the other, and sum to 1.
    """

    directions: Array  # (L − 1, d)
    lower: Array  # (L − 1,) in units of x·direction
    upper: Array  # (L − 1,)
    # leaves to which a row goes, as is usual where a tenth of the rows of a split go to both sides
    members_per_row: ClassVar[float] = 1.3

    @property
    def n_features(self) -> int:
        """Number of features of a row, d."""
        return int(self.directions.shape[1])

    @property
    def n_leaves(self) -> int:
        """Number of leaves, L."""
        return len(self.lower) + 1

    def leaves(self, x: Array) -> Iterator[tuple[Array, Array]]:
        """Yield, for each leaf, the positions of its rows among x (n, d) and their weights."""
        yield from self._descend(x, np.arange(len(x)), np.ones(len(x)), 0, self.n_leaves)

    def _descend(self, x: Array, rows: Array, weight: Array, node: int, count: int) -> Iterator[tuple[Array, Array]]:
        if count == 1:
            yield rows, weight
            return
        share = self._right_share(project(x[rows], self.directions[node]), node)
        left = count // 2
        # rows between both sides go to both, with weights that add up to their own
        for own, first, inner in ((1 - share, node + 1, left), (share, node + left, count - left)):
            here = own > 0
            yield from self._descend(x, rows[here], (weight * own)[here], first, inner)

    def _right_share(self, places: Array, node: int) -> Array:
        low, high = self.lower[node], self.upper[node]
        if not high > low:
            return np.asarray(places > low, np.float64)
        # 3t² − 2t³ rises from 0 to 1 without a kink
        t = np.clip((places - low) / (high - low), 0, 1)
        return np.asarray(t * t * (3 - 2 * t))


def project(x: Array, direction: Array) -> Array:
    """Return x·direction (n,), whose bits do not depend on the other rows."""
    return np.asarray(np.einsum("ij,j->i", x, direction, dtype=np.float64))


@dataclass(frozen=True)
class Everywhere:
    """Every member takes every row, with weight 1."""

    n_features: int
    n_leaves: int

    @property
    def members_per_row(self) -> float:
        """Number of members to which a row goes."""
        return float(self.n_leaves)

    def leaves(self, x: Array) -> Iterator[tuple[Array, Array]]:
        """Yield the positions of all rows x (n, d) and weights of 1 for each member."""
        for _ in range(self.n_leaves):
            yield np.arange(len(x)), np.ones(len(x))


@dataclass(frozen=True, eq=False)
class Member:
    """The model of a leaf or a stage: row maps, then a predictor of all targets or classes."""

    row_maps: tuple[RowMap, ...]
    predictor: Predictor | Blend
    rows: int  # of its fit
    alpha: float | None = None  # penalty; of several the mean
    prediction_error: float | None = None  # as in the diagnostics of its fit

    def values(self, x: Array, work: Workspace) -> Array:
        """Compute f, or the probabilities of the classes if there are any, of rows x (n, d), (n, c)."""
        values = self.predictor.values(Chunk(self._mapped(x), work=work))
        return softmax(self.predictor.logits_of(values)) if self.predictor.logits else values

    def mean_and_std(self, x: Array, work: Workspace) -> tuple[Array, Array]:
        """Compute f of rows x (n, d) and the standard deviations of observations, both (n, c)."""
        both = Deviations(self.predictor.factored()).values(Chunk(self._mapped(x), work=work))
        return both[:, : self.predictor.width], both[:, self.predictor.width :]

    def _mapped(self, x: Array) -> Array:
        for row_map in self.row_maps:
            x = map_rows(x, row_map, x.dtype)
        return x


@dataclass(frozen=True, eq=False)
class Blend(BlockPredictor):
    """f(x) = Σ w_ℓ(x) f_ℓ(x) over members ℓ; of probabilities log Σ w_ℓ(x) p_ℓ(x).

    Standard deviations are those of a mixture: Var[y|x] = Σ w_ℓ(x) (s_ℓ(x)² + (f_ℓ(x) − f(x))²).
    It has the members of a `Predictor` that predictions and scores use.
    """

    shares: Tree | Everywhere
    members: tuple[Member, ...]
    classes: Array | None = None  # (c,) sorted labels, or None for numbers; class weights are those of the members

    @property
    def width(self) -> int:
        return self.members[0].predictor.width

    @property
    def n_features(self) -> int:
        """Number of features of a row, d."""
        return self.shares.n_features

    @property
    def n_landmarks(self) -> int:
        """Number of columns of the features of all members."""
        return sum(member.predictor.n_landmarks for member in self.members)

    @property
    def logits(self) -> bool:
        """Whether softmax of the values gives class probabilities."""
        return any(member.predictor.logits for member in self.members)

    keeps_factors: ClassVar[bool] = True

    def factored(self) -> Blend:
        """Return this blend: its members compute factors in their turn."""
        return self

    def sliced(self) -> Blend:
        """Return a blend whose members read many landmarks in slices."""
        return replace(self, members=tuple(replace(one, predictor=one.predictor.sliced()) for one in self.members))

    @property
    def flops_per_row(self) -> float:
        each = [
            member.predictor.flops_per_row + map_costs(member.row_maps, self.n_features, 8).flops_per_row
            for member in self.members
        ]
        return (
            self.shares.members_per_row * float(np.mean(each)) + 2.0 * self.n_features * len(self.members).bit_length()
        )

    @property
    def fixed_bytes(self) -> int:
        """Upper bound on the bytes of the model in a process."""
        return sum(member.predictor.fixed_bytes for member in self.members)

    def work_bytes(self, block_rows: int) -> int:
        """Return the bytes that a task needs to predict, without its chunk."""
        most = max(member.predictor.work_bytes(block_rows) - member.predictor.fixed_bytes for member in self.members)
        return self.fixed_bytes + most + 8 * self._block_rows(block_rows) * self._row_values

    def _block_rows(self, least: int) -> int:
        return max(least, min(_MOST_ROWS, _BLOCK_BYTES // (8 * self._row_values)))

    @property
    def _row_values(self) -> int:
        """Numbers of a row at once: of its features, before and after the row maps, and of its values."""
        widest = max(member.predictor.n_features for member in self.members)
        return 2 * self.n_features + 2 * widest + 3 * self.width + 4

    portable: ClassVar[bool] = False  # each member has some rows of a block

    def prepare(self) -> None:
        for member in self.members:
            member.predictor.prepare()

    def fill(self, chunk: Chunk, block: Index, out: Array) -> None:
        x = chunk.on_host().load(block, self.n_features, np.float64)
        inner = Workspace(seconds=chunk.work.seconds)
        out[...] = 0
        for member, (rows, weight) in zip(self.members, self.shares.leaves(x), strict=True):
            if len(rows):
                out[rows] += weight[:, None] * member.values(x[rows], inner)
        if self.logits:
            np.log(np.maximum(out, np.finfo(np.float64).tiny, out=out), out=out)

    @property
    def spread_cost(self) -> MapCost:
        """The cost of standard deviations."""
        each = [member.predictor.spread_cost for member in self.members]
        flops = self.shares.members_per_row * float(np.mean([one.flops_per_row for one in each]))
        kept, others = [0], [0]  # bytes of factors, of all members and of one at a time
        for member, one in zip(self.members, each, strict=True):
            (kept if member.predictor.keeps_factors else others).append(one.fixed_bytes)
        return MapCost(flops, max(one.row_bytes for one in each), sum(kept) + max(others))

    def fill_both(self, chunk: Chunk, block: Index, mean: Array, std: Array, *share: Array) -> None:
        """Write f of rows of the chunk, standard deviations of y around it, and shares of `Kriging`, (b, c) float64."""
        x = chunk.on_host().load(block, self.n_features, np.float64)
        inner, total = Workspace(seconds=chunk.work.seconds), np.zeros((len(x), 1))
        for out in (mean, std, *share):
            out[...] = 0
        for member, (rows, weight) in zip(self.members, self.shares.leaves(x), strict=True):
            if len(rows):
                part, (values, own) = weight[:, None], member.mean_and_std(x[rows], inner)
                total[rows] += part
                change = values - mean[rows]
                mean[rows] += part / total[rows] * change
                # the variance of a weighted sample, updated without a difference of squares (West 1979)
                std[rows] += part * (own**2 + change * (values - mean[rows]))
                for out in share:  # Var[f|y]/Var[f], as k(x, x) = 1, without noise
                    spread = cast(Spread | ExactSpread, cast(Predictor, member.predictor).spread)
                    out[rows] += part * np.clip((own / spread.scale) ** 2 - spread.level, 0, 1)
        for out in (std, *share):
            np.sqrt(out, out=out)

    def blocks_of(self, chunk: Chunk, index: Array | None = None) -> Iterator[Index]:
        """Return rows of the chunk in blocks of which every leaf has some rows."""
        return replace(chunk, block_rows=self._block_rows(chunk.block_rows)).blocks(index)


@dataclass(frozen=True, eq=False)
class Deviations(BlockPredictor):
    """The values of a model with a spread, and the standard deviations of observations, side by side, (n, 2c)."""

    model: Predictor | Blend
    shares: bool = False  # also those of a Blend, (n, 3c)
    logits: ClassVar[bool] = False

    @property
    def width(self) -> int:
        return (2 + self.shares) * self.model.width

    @property
    def flops_per_row(self) -> float:
        return self.model.flops_per_row + self.model.spread_cost.flops_per_row

    def work_bytes(self, block_rows: int) -> int:
        """Return the bytes that a task needs to predict, without its chunk."""
        cost = self.model.spread_cost
        rows = min(block_rows, self._most_rows)
        return self.model.work_bytes(rows) + cost.fixed_bytes + rows * cost.row_bytes

    @property
    def _most_rows(self) -> int:
        """Most rows of a block: it has all columns at once."""
        return max(1, _SPREAD_BYTES // self.model.spread_cost.row_bytes)

    @property
    def portable(self) -> bool:
        return self.model.portable

    def prepare(self) -> None:
        self.model.prepare()

    def fill(self, chunk: Chunk, block: Index, out: Array) -> None:
        """Write both of rows of the chunk into out (b, 2c) float64."""
        self.model.fill_both(chunk, block, *np.split(out, 2 + self.shares, axis=1))

    def blocks_of(self, chunk: Chunk, index: Array | None = None) -> Iterator[Index]:
        """Return rows of the chunk in blocks that the memory of a task allows."""
        chunk = replace(chunk, block_rows=min(chunk.block_rows, self._most_rows))
        return self.model.blocks_of(chunk, index) if isinstance(self.model, Blend) else chunk.blocks(index)


AnyPredictor = Predictor | Blend
