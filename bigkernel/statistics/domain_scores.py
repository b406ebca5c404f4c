"""Sums over rows of a source and a target by which models are judged without labels of the target.

Every candidate predicts the rows of the target, and the rows of the source that its fold tests, with their importance
weights. `search.domain_scoring` computes the scores. Shapes: r rows, K kernels, F folds, k candidates per kernel,
c classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigkernel.arrays import Array
from bigkernel.kernels.feature_maps import FeatureMap
from bigkernel.statistics.held_out import FLOOR, FoldModels
from bigkernel.statistics.moments import Sums, Targets, block_footprint, weights_of
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.plan import Accumulator, Footprint


def target_rows(chunk: Chunk, targets: Targets, domains: Array | None) -> Array:
    """Return which rows belong to the target, (r,) bool: unlabelled ones, of these domains (all for None)."""
    unlabelled: Array = ~targets.labelled_in(chunk)
    return unlabelled if domains is None or chunk.domain is None else unlabelled & np.isin(chunk.domain, domains)


def probabilities(values: Array) -> Array:
    """Return values of f (…, c), clipped to [0.001, 1] and normalized."""
    p: Array = np.clip(values, FLOOR, 1)
    p /= p.sum(axis=-1, keepdims=True)
    return p


def entropies(p: Array) -> Array:
    """Compute −Σ p log p over the last axis, (…)."""
    return np.asarray(-(p * np.log(np.maximum(p, np.finfo(np.float64).tiny))).sum(axis=-1))


@dataclass(frozen=True, eq=False)
class ImportanceRatio:
    """w(x) = max(0, φ(x)ᵀθ): the ratio of the densities of target and source, θ (p, 1)."""

    features: FeatureMap
    coef: Array

    def of_rows(self, chunk: Chunk, ids: Array) -> Array:
        """Compute w of some rows, (r,)."""
        weights = [np.zeros(0)]
        for block in chunk.blocks(ids):
            (phi,) = self.features.blocks(chunk, block)
            weights.append(np.maximum(phi @ self.coef[:, 0], 0))
        return np.concatenate(weights)


@dataclass(frozen=True, eq=False)
class PredictedTargets(FoldModels, Sums):
    """Sums of the target with the classes that each candidate predicts, in one-hot coding, as its targets.

    Accumulates `C` (K, F, p, k·c), Σ φŷᵀ, and `t` (K, F, k·c), Σ ŷ. Rows are weighted.
    """

    domains: Array | None = None  # of the target

    def zero(self) -> Accumulator:
        return {"C": np.zeros(self.weights.shape), "t": np.zeros(self.intercepts.shape)}

    def footprint(self, block_rows: int) -> Footprint:
        count, folds, p, wide = self.weights.shape
        return block_footprint(
            self.features,
            block_rows,
            flops=4.0 * folds * count * p * wide,
            row_bytes=wide * (24 + self.features.dtype.itemsize),
            partial_bytes=8 * count * folds * (p + 1) * wide,
            work_bytes=3 * self.weights.nbytes,
        )

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        c, ids = self.targets.width, np.flatnonzero(target_rows(chunk, self.targets, self.domains))
        for block in chunk.blocks(ids):
            weight = weights_of(chunk, block)[:, None]
            for kernel, phi in enumerate(self.features.blocks(chunk, block)):
                for fold in range(self.weights.shape[1]):
                    values = phi @ self._narrow_weights[kernel, fold] + self.intercepts[kernel, fold]
                    largest = values.reshape(len(phi), -1, c).argmax(axis=2)
                    predicted = (np.eye(c)[largest].reshape(len(phi), -1) * weight).astype(phi.dtype)
                    total["C"][kernel, fold] += phi.T @ predicted
                    total["t"][kernel, fold] += predicted.sum(axis=0, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class DomainScores(FoldModels, Sums):
    """Entropies on the target, and weighted losses on held-out rows of the source, of every candidate.

    Accumulates over the target `entropy` (K, F, k), Σ −p log p, and its rows, `target`; with slopes β also `soft`
    (K, F, k, c), ΣQ for Q = softmax(βf), and `soft_entropy` (K, F, k), Σ −Q log Q. With a ratio, it sums over the test
    rows of each fold with ω = w(x): `right` Σ ω of right predictions, `loss` Σ ωℓ and `square` Σ ω²ℓ (K, F, k), where
    ℓ = −log p of the true class, `omega` and `omega2` Σ ω and Σ ω² (F,), and `rows` (F,). Rows are weighted.
    """

    domains: Array | None = None  # of the target
    ratio: ImportanceRatio | None = None
    slopes: Array | None = None  # (K, F, k)

    @property
    def candidates(self) -> int:
        return int(self.weights.shape[3]) // self.targets.width

    def zero(self) -> Accumulator:
        each, folds = (*self.weights.shape[:2], self.candidates), (self.weights.shape[1],)
        of_target = {"entropy": each, "soft": (*each, self.targets.width), "soft_entropy": each, "target": ()}
        of_source = {"right": each, "loss": each, "square": each, "omega": folds, "omega2": folds, "rows": folds}
        return {name: np.zeros(of) for name, of in (of_target | of_source).items()}

    def footprint(self, block_rows: int) -> Footprint:
        count, folds, p, wide = self.weights.shape
        own = block_footprint(
            self.features,
            block_rows,
            flops=2.0 * folds * count * p * wide,
            row_bytes=wide * (48 + self.features.dtype.itemsize),
            partial_bytes=8 * (count * folds * (5 * self.candidates + wide) + 3 * folds + 1),
            work_bytes=2 * self.weights.nbytes,
        )
        if self.ratio is None:
            return own
        cost = self.ratio.features.cost
        work = own.work_bytes + cost.fixed_bytes + block_rows * cost.row_bytes
        return Footprint(own.flops_per_row + cost.flops_per_row, own.partial_bytes, work)

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        k, c = self.candidates, self.targets.width
        target = np.flatnonzero(target_rows(chunk, self.targets, self.domains))
        total["target"] += weights_of(chunk, target).sum()
        for fold, ids in enumerate(self.test_rows(chunk)):
            for block, kernel, values in self.values_of(chunk, fold, target):
                values, weight = values.reshape(len(block), k, c), weights_of(chunk, block)
                total["entropy"][kernel, fold] += weight @ entropies(probabilities(values))
                if self.slopes is not None:
                    Q = np.exp(self.slopes[kernel, fold][:, None] * (values - values.max(axis=2, keepdims=True)))
                    Q /= Q.sum(axis=2, keepdims=True)
                    total["soft"][kernel, fold] += np.einsum("r,rkc->kc", weight, Q)
                    total["soft_entropy"][kernel, fold] += weight @ entropies(Q)
            if self.ratio is None:
                continue
            omega, weight = self.ratio.of_rows(chunk, ids), weights_of(chunk, ids)
            for name, sums in (("omega", omega), ("omega2", omega**2), ("rows", np.ones(len(ids)))):
                total[name][fold] += weight @ sums
            for block, kernel, values in self.values_of(chunk, fold, ids):
                place = np.searchsorted(ids, block)
                weighted, own = weight[place] * omega[place], omega[place]
                truth, values = self.targets.one_hot(chunk, block).argmax(axis=1), values.reshape(len(block), k, c)
                of_truth = np.take_along_axis(probabilities(values), truth[:, None, None], axis=2)[:, :, 0]
                total["right"][kernel, fold] += weighted @ (values.argmax(axis=2) == truth[:, None])
                total["loss"][kernel, fold] -= weighted @ np.log(of_truth)
                total["square"][kernel, fold] -= (weighted * own) @ np.log(of_truth)
