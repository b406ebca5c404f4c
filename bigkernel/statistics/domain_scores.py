"""Sums over rows of a source and a target by which models are judged without labels of the target.

Every candidate predicts the rows of the target, and the rows of the source that its fold tests, with their importance
weights. `search.domain_scoring` computes the scores. Shapes: r rows, K kernels, F folds, k candidates per kernel,
c classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bigkernel.arrays import Array
from bigkernel.statistics.held_out import FoldModels
from bigkernel.statistics.moments import weights_of
from bigkernel.statistics.predictor import Predictor, softmax
from bigkernel.statistics.statistic import Shapes
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


def target_sums(values: Array, weight: Array, slopes: Array) -> Accumulator:
    """Return the sums of `DomainScores` over rows of the target, from values (r, k, c)."""
    Q = softmax(values, slopes[:, None])
    return {"target": weight.sum(), "soft": np.einsum("r,rkc->kc", weight, Q), "entropy": weight @ entropies(Q)}


def source_sums(values: Array, truth: Array, weight: Array, omega: Array) -> Accumulator:
    """Return the sums of `DomainScores` of models over rows of the source, with their classes and w(x)."""
    weighted = weight * omega
    return {"right": weighted @ (values.argmax(axis=2) == truth[:, None]), "omega": weighted.sum()}


@dataclass(frozen=True, eq=False)
class DomainScores(FoldModels):
    """Entropies on the target, and weighted accuracies on held-out rows of the source, of every candidate.

    With slopes β, accumulates over the target its rows, `target` (K, F), ΣQ for Q = softmax(βf), `soft` (K, F, k, c),
    and Σ −Q log Q, `entropy` (K, F, k). With a ratio w, it sums ω = max(0, w(x)) over the test rows of each fold,
    `omega` (K, F), and over those that are predicted rightly, `right` (K, F, k). Rows are weighted.
    """

    domains: Array | None = None  # of the target
    ratio: Predictor | None = None  # of the densities
    slopes: Array | None = None  # (K, F, k)

    def shapes(self) -> Shapes:
        fold, k = self.weights.shape[:2], self.candidates
        soft = (*fold, k, self.targets.width)
        return {"target": fold, "omega": fold, "entropy": (*fold, k), "right": (*fold, k), "soft": soft}

    def footprint(self, block_rows: int) -> Footprint:
        count, folds, p, wide = self.weights.shape
        own = self.fold_cost(block_rows, wide * (48 + self.features.dtype.itemsize))
        # rows of the target are predicted without each of the folds
        flops, work = own.flops_per_row + 2.0 * (folds - 1) * count * p * wide, own.work_bytes
        if self.ratio is not None:
            flops, work = flops + self.ratio.flops_per_row, work + self.ratio.work_bytes(block_rows)
        return replace(own, flops_per_row=flops, work_bytes=work)

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        shape = self.candidates, self.targets.width
        target = np.flatnonzero(target_rows(self.targets.labelled_in(chunk), chunk.domain, self.domains))
        # a ratio of densities is not below 0, where its estimate may be
        omega = None if self.ratio is None else np.maximum(self.ratio.values(chunk)[:, 0], 0)
        for fold, ids in enumerate(self.test_rows(chunk)):
            if self.slopes is not None:
                for block, kernel, values in self.values_of(chunk, fold, target):
                    sums = target_sums(values.reshape(-1, *shape), weights_of(chunk, block), self.slopes[kernel, fold])
                    for name, one in sums.items():
                        total[name][kernel, fold] += one
            if omega is not None:
                for block, kernel, values in self.values_of(chunk, fold, ids):
                    truth = self.targets.one_hot(chunk, block).argmax(axis=1)
                    sums = source_sums(values.reshape(-1, *shape), truth, weights_of(chunk, block), omega[block])
                    for name, one in sums.items():
                        total[name][kernel, fold] += one
