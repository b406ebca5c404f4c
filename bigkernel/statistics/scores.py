"""The sums that score a fitted model, from one sweep: counts of classes, sums of squares, and the worst rows.

Of probabilities accumulators hold `log_loss`, Σ −w log p of the true class (nats); `brier`, Σ w Σ_k (t_k − p_k)²; and
`reliability` (3, BINS), of rows whose largest p is in one of BINS equal parts of [0, 1]: Σ w, Σ w of those whose class
that is, and Σ w p. Shapes: n rows, b of a block, c targets or classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bigkernel.arrays import Array
from bigkernel.statistics.calibration import log_softmax
from bigkernel.statistics.moments import Sums, Targets, add
from bigkernel.statistics.predictor import Predictor
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.plan import Accumulator, Footprint

RESIDUAL_BINS = 40
_BINS = 15
_OF_PROBABILITIES = {"log_loss": (), "brier": (), "reliability": (3, _BINS)}  # shapes of their sums
_OF_WORST = ("margin", "row", "truth", "guess")


@dataclass(frozen=True, eq=False)
class ScoreStatistic(Sums):
    """The sums that scores of a model need: the confusion matrix, or sums of squares; unlabelled rows are left out.

    Accumulates `confusion` (c, c), true class by predicted class, for classes, and where the model has probabilities
    the sums of their scores; `n`, `sse`, and the sum `t` and the sum
    of squares `q` of targets less `shift`, (c,), for numbers.
    """

    predictor: Predictor
    targets: Targets
    shift: Array | float = 0.0

    def zero(self) -> Accumulator:
        c = self.targets.width
        if self.targets.classes is not None:
            shapes = {"confusion": (c, c), **(_OF_PROBABILITIES if self.predictor.logits else {})}
            return {name: np.zeros(shape) for name, shape in shapes.items()}
        return {name: np.zeros(c) for name in ("n", "sse", "t", "q")}

    def footprint(self, block_rows: int) -> Footprint:
        c, predictor = self.targets.width, self.predictor
        # of a row: its place, weight, values, truth and what their differences leave on the way
        values = block_rows * 8 * (4 * c + 2 + self.predictor.logits * (3 * c + 5))
        return Footprint(
            predictor.flops_per_row, 8 * (c * c + 4 * c + 3 * _BINS + 2), predictor.work_bytes(block_rows) + values
        )

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        for block in chunk.blocks(np.flatnonzero(self.targets.labelled_in(chunk))):
            truth = self.targets.one_hot(chunk, block)
            values = np.empty(truth.shape)
            self.predictor.fill(chunk, block, values)
            with chunk.work.stage("predict"):
                weight = np.ones(len(truth)) if chunk.weight is None else np.asarray(chunk.weight[block], np.float64)
                ids = np.arange(chunk.start, chunk.start + len(chunk), dtype=np.float64)[block]
                self._add(total, ids, weight, values, truth)

    def _add(self, total: Accumulator, ids: Array, weight: Array, values: Array, truth: Array) -> None:
        if self.targets.classes is not None:
            np.add.at(total["confusion"], (truth.argmax(axis=1), values.argmax(axis=1)), weight)
            if self.predictor.logits:
                _add_probabilities(total, weight, values, truth)
            return
        total["n"] += weight.sum()
        total["sse"] += weight @ (truth - values) ** 2
        total["t"] += weight @ (truth - self.shift)
        total["q"] += weight @ (truth - self.shift) ** 2


@dataclass(frozen=True, eq=False)
class JudgingStatistic(ScoreStatistic):
    """A score, with the rows that a classifier is most wrong about, or with how a regressor's residuals spread.

    Accumulates beside what `ScoreStatistic` does, for classes: `margin` (k,), f of the true class less the largest
    other f, in rising order; `row`, `truth` and `guess` (k,), the row's id and the positions of its true and predicted
    class. Places that no row takes have the margin +∞. Rows are ordered by margin, then by id, so that the same k are
    kept however the rows are cut; rows of weight 0 are left out. For numbers: `residuals` (c, RESIDUAL_BINS), weights
    of the rows by (target − f)/spread in equal bins from −4 to 4, the first and the last open to infinity.
    """

    keep: int = 40  # k
    spread: Array | float = 1.0  # (c,) or a number above 0, the unit of residuals

    def zero(self) -> Accumulator:
        if self.targets.classes is None:
            return {**super().zero(), "residuals": np.zeros((self.targets.width, RESIDUAL_BINS))}
        none = {name: np.full(self.keep, -1.0) for name in ("row", "truth", "guess")}
        return {**super().zero(), "margin": np.full(self.keep, np.inf), **none}

    def merge(self, a: Accumulator, b: Accumulator) -> Accumulator:
        if self.targets.classes is None:
            return add(a, b)
        both = {name: np.concatenate([a[name], b[name]]) for name in _OF_WORST}
        summed = {name: a[name] + b[name] for name in ("confusion", *_OF_PROBABILITIES) if name in a}
        return {**summed, **self._worst(both)}

    def footprint(self, block_rows: int) -> Footprint:
        plain = super().footprint(block_rows)
        more = 8 * (self.targets.width * RESIDUAL_BINS if self.targets.classes is None else 4 * self.keep)
        # of a row: what is ordered, twice
        return Footprint(plain.flops_per_row, plain.partial_bytes + more, plain.work_bytes + 2 * more + 72 * block_rows)

    def _add(self, total: Accumulator, ids: Array, weight: Array, values: Array, truth: Array) -> None:
        super()._add(total, ids, weight, values, truth)
        if self.targets.classes is None:
            places = np.nan_to_num((truth - values) / self.spread, nan=np.inf) * (RESIDUAL_BINS / 8) + RESIDUAL_BINS / 2
            bins = np.clip(places, 0, RESIDUAL_BINS - 1)
            for column in range(bins.shape[1]):
                total["residuals"][column] += np.bincount(bins[:, column].astype(np.int64), weight, RESIDUAL_BINS)
            return
        rows, true = np.arange(len(values)), truth.argmax(axis=1)
        new = {"row": ids, "truth": true, "guess": values.argmax(axis=1)}
        of_truth = values[rows, true]
        values[rows, true] = -np.inf
        margin = of_truth - values.max(axis=1)
        new["margin"] = np.where(np.isnan(margin), -np.inf, margin)
        # what cannot be among the k worst is left out before anything is ordered
        near = np.flatnonzero((weight > 0) & (new["margin"] <= total["margin"][-1])) if self.keep else rows[:0]
        total.update(self._worst({name: np.concatenate([total[name], new[name][near]]) for name in _OF_WORST}))

    def _worst(self, rows: Accumulator) -> Accumulator:
        order = np.lexsort((rows["row"], rows["margin"]))[: self.keep]
        return {name: rows[name][order] for name in _OF_WORST}


def _add_probabilities(total: Accumulator, weight: Array, logits: Array, truth: Array) -> None:
    """Add rows with weights (b,), logits (b, c) and one-hot classes (b, c)."""
    logarithms = log_softmax(logits)
    p = np.exp(logarithms)
    best, rows = p.argmax(axis=1), np.arange(len(p))
    total["log_loss"] -= weight @ logarithms[rows, truth.argmax(axis=1)]
    total["brier"] += weight @ ((truth - p) ** 2).sum(axis=1)
    largest = p[rows, best]
    place = np.minimum((largest * _BINS).astype(np.int64), _BINS - 1)
    for number, values in enumerate((weight, weight * truth[rows, best], weight * largest)):
        total["reliability"][number] += np.bincount(place, values, _BINS)


def probability_scores(total: Mapping[str, Array], weight: float) -> dict[str, float]:
    """`log_loss` and `brier`, means of rows of this weight together, and `calibration_error`.

    The latter is Σ_B (n_B/n) |accuracy − mean p| over the bins B, the expected calibration error of Naeini, Cooper &
    Hauskrecht (AAAI 2015).
    """
    _, right, expected = total["reliability"]
    return {
        "log_loss": float(total["log_loss"]) / weight,
        "brier": float(total["brier"]) / weight,
        "calibration_error": float(np.abs(right - expected).sum()) / weight,
    }


def score(total: Accumulator) -> float:
    """Accuracy from a confusion matrix, or R² averaged over targets (1 for a constant target met exactly, else 0)."""
    if "confusion" in total:
        confusion = total["confusion"]
        return float(np.trace(confusion) / max(confusion.sum(), 1e-300))
    spread = total["q"] - total["t"] ** 2 / np.maximum(total["n"], 1e-300)
    flat = spread <= 1e-12 * np.maximum(total["q"], 1e-300)
    r2 = np.where(flat, (total["sse"] <= 1e-12 * np.maximum(total["q"], 1e-300)) * 1.0, 0.0)
    r2[~flat] = 1 - total["sse"][~flat] / spread[~flat]
    return float(r2.mean())
