"""Sums over rows of a source and a target by which models are judged without labels of the target.

Every candidate predicts the rows of the target, and the rows of the source that its fold tests, with their importance
weights. `search.domain_scoring` computes the scores. Shapes: r rows, K kernels, F folds, k candidates per kernel,
c classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigkernel.arrays import Array
from bigkernel.statistics.held_out import FoldModels, log_losses, probabilities
from bigkernel.statistics.moments import Sums, block_footprint, weights_of
from bigkernel.statistics.predictor import Predictor, softmax
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.plan import Accumulator, Footprint


def target_domains(domain: Array, labelled: Array) -> Array:
    """Return the domains of the target: those below 0 or, if there are none, those without a labelled row."""
    signed = domain.dtype.kind in "if" and bool((domain < 0).any())
    return np.unique(domain[domain < 0]) if signed else np.setdiff1d(domain, domain[labelled])


def target_rows(labelled: Array, domain: Array | None, domains: Array | None) -> Array:
    """Return which rows belong to the target, (r,) bool: unlabelled ones, of these domains (all for None)."""
    return ~labelled if domains is None or domain is None else ~labelled & np.isin(domain, domains)


def entropies(p: Array) -> Array:
    """Compute −Σ p log p over the last axis, (…)."""
    return np.asarray(-(p * np.log(np.maximum(p, np.finfo(np.float64).tiny))).sum(axis=-1))


def target_sums(values: Array, weight: Array, slopes: Array | None) -> Accumulator:
    """Return the sums of `DomainScores` over rows of the target, from values (r, k, c)."""
    sums: Accumulator = {"entropy": weight @ entropies(probabilities(values)), "target": weight.sum()}
    if slopes is not None:
        Q = softmax(values, slopes[:, None])
        sums |= {"soft": np.einsum("r,rkc->kc", weight, Q), "soft_entropy": weight @ entropies(Q)}
    return sums


def source_sums(values: Array, truth: Array, weight: Array, omega: Array) -> Accumulator:
    """Return the sums of `DomainScores` of models over rows of the source, with their classes and w(x)."""
    weighted, loss = weight * omega, log_losses(values, truth)
    right = values.argmax(axis=2) == truth[:, None]
    sums = {"right": weighted @ right, "loss": weighted @ loss, "square": (weighted * omega) @ loss}
    return sums | {"omega": weighted.sum(), "omega2": weighted @ omega, "rows": weight.sum()}


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
        c, inside = self.targets.width, target_rows(self.targets.labelled_in(chunk), chunk.domain, self.domains)
        for block in chunk.blocks(np.flatnonzero(inside)):
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

    Accumulates over the target `entropy` (K, F, k), Σ −p log p, and its rows, `target` (K, F); with slopes β also
    `soft` (K, F, k, c), ΣQ for Q = softmax(βf), and `soft_entropy` (K, F, k), Σ −Q log Q. With a ratio w, it sums over
    the test rows of each fold with ω = max(0, w(x)): `right` Σ ω of right predictions, `loss` Σ ωℓ and `square` Σ ω²ℓ
    (K, F, k), where ℓ = −log p of the true class, and `omega` Σ ω, `omega2` Σ ω² and `rows` (K, F). Rows are weighted.
    """

    domains: Array | None = None  # of the target
    ratio: Predictor | None = None  # of the densities
    slopes: Array | None = None  # (K, F, k)

    @property
    def candidates(self) -> int:
        return int(self.weights.shape[3]) // self.targets.width

    def zero(self) -> Accumulator:
        fold, k = self.weights.shape[:2], self.candidates
        of_candidate = dict.fromkeys(("entropy", "soft_entropy", "right", "loss", "square"), (*fold, k))
        of_fold = dict.fromkeys(("target", "omega", "omega2", "rows"), fold)
        shapes = {**of_candidate, **of_fold, "soft": (*fold, k, self.targets.width)}
        return {name: np.zeros(shape) for name, shape in shapes.items()}

    def footprint(self, block_rows: int) -> Footprint:
        count, folds, p, wide = self.weights.shape
        own = block_footprint(
            self.features,
            block_rows,
            flops=2.0 * folds * count * p * wide,
            row_bytes=wide * (48 + self.features.dtype.itemsize),
            partial_bytes=8 * count * folds * (5 * self.candidates + wide + 4),
            work_bytes=2 * self.weights.nbytes,
        )
        if self.ratio is None:
            return own
        work = own.work_bytes + self.ratio.work_bytes(block_rows)
        return Footprint(own.flops_per_row + self.ratio.flops_per_row, own.partial_bytes, work)

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        shape = self.candidates, self.targets.width
        target = np.flatnonzero(target_rows(self.targets.labelled_in(chunk), chunk.domain, self.domains))
        omega = None if self.ratio is None else np.maximum(self.ratio.values(chunk)[:, 0], 0)
        for fold, ids in enumerate(self.test_rows(chunk)):
            for block, kernel, values in self.values_of(chunk, fold, target):
                slopes = None if self.slopes is None else self.slopes[kernel, fold]
                sums = target_sums(values.reshape(-1, *shape), weights_of(chunk, block), slopes)
                for name, one in sums.items():
                    total[name][kernel, fold] += one
            if omega is None:
                continue
            for block, kernel, values in self.values_of(chunk, fold, ids):
                truth = self.targets.one_hot(chunk, block).argmax(axis=1)
                sums = source_sums(values.reshape(-1, *shape), truth, weights_of(chunk, block), omega[block])
                for name, one in sums.items():
                    total[name][kernel, fold] += one
