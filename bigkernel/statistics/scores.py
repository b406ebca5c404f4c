"""Sums that score a fitted model, from one sweep: class counts, sums of squares, and the worst rows.

For probabilities accumulators hold `log_loss`, Σ −w log p of the true class (nats); `brier`, Σ w Σ_k (t_k − p_k)²; and
`reliability` (3, BINS), for rows by the bin of their largest p among BINS equal bins of [0, 1]: Σ w, Σ w of correctly
classified rows, and Σ w p. Shapes: n rows, b of a block, c targets or classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import erf

import numpy as np

from bigkernel.arrays import Array
from bigkernel.statistics.blend import AnyPredictor, Deviations
from bigkernel.statistics.moments import Targets, weights_of
from bigkernel.statistics.predictor import log_softmax
from bigkernel.statistics.statistic import Shapes, Statistic, add
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.plan import Accumulator, Footprint

RESIDUAL_BINS = 40
_BINS = 15
_OF_PROBABILITIES = {"log_loss": (), "brier": (), "reliability": (3, _BINS)}  # shapes of their sums
OUTSIDE, HALF_BAND = 0.05, 1.959963984540054  # of bands of 95 %, in standard deviations
OF_NORMAL = ("crps", "interval_score", "coverage")
_HASH = 2_654_435_769  # Knuth's multiplier: neighbouring ids are spread over 32 bits
_OF_WORST = ("margin", "row", "truth", "guess")


@dataclass(frozen=True, eq=False)
class ScoreStatistic(Statistic):
    """Sums for the scores of a model; unlabelled rows are left out.

    For classes, accumulates `confusion` (c, c), true class by predicted class, and the sums of probability scores if
    the model has probabilities; for numbers, `n`, the sums `sse` of squared and `sae` of absolute errors, the sum `t`
    and the sum of squares `q` of targets less `shift`, and those of `normal_losses` of `Deviations`, (c,). With `keep`
    k > 0 also, for classes, the k worst rows: `margin` (k,), f of the true class less the largest other f, in rising
    order; `row`, `truth` and `guess` (k,), the row's id and the indices of its true and predicted class. Unused places
    have the margin +∞. Rows are ordered by margin, then by id, so that the result does not depend on chunks; rows of
    weight 0 are left out. For numbers, `residuals` (c, RESIDUAL_BINS): weights of the rows by (target − f)/spread in
    equal bins from −4 to 4, the first and the last open to infinity; and a sample of k rows, those with the least hash
    of their id: `margin` (k,), the hash, `row`, and `truth` and `guess` (k,), target and f, of the first target.
    """

    predictor: AnyPredictor | Deviations
    targets: Targets
    shift: Array | float = 0.0
    keep: int = 0  # k
    spread: Array | float = 1.0  # (c,) or a number above 0, the unit of residuals

    def shapes(self) -> Shapes:
        c, worst = self.targets.width, dict.fromkeys(_OF_WORST, (self.keep,)) if self.keep else {}
        if self.targets.classes is None:
            residuals = {"residuals": (c, RESIDUAL_BINS)} if self.keep else {}
            normal = OF_NORMAL if isinstance(self.predictor, Deviations) else ()
            return {**dict.fromkeys(("n", "sse", "sae", "t", "q", *normal), (c,)), **residuals, **worst}
        return {"confusion": (c, c), **(_OF_PROBABILITIES if self.predictor.logits else {}), **worst}

    def zero(self) -> Accumulator:
        empty = {name: np.full(self.keep, np.inf if name == "margin" else -1.0) for name in _OF_WORST}
        return super().zero() | (empty if self.keep else {})

    def merge(self, a: Accumulator, b: Accumulator, *, consume: bool = False) -> Accumulator:
        sums = add({name: values for name, values in a.items() if name not in _OF_WORST}, b, consume=consume)
        if not self.keep:
            return sums
        # the worst rows do not add up: those of both, of which the worst are kept
        return sums | self._first({name: np.concatenate([a[name], b[name]]) for name in _OF_WORST})

    def footprint(self, block_rows: int) -> Footprint:
        c, predictor = self.targets.width, self.predictor
        # per row: index, weight, values, truth and intermediate differences
        work = predictor.work_bytes(block_rows) + block_rows * 8 * (4 * c + 2 + predictor.logits * (3 * c + 5))
        # two copies of the worst rows, and per row the sorted columns, twice
        work += 64 * self.keep + 72 * block_rows if self.keep else 0
        return Footprint(predictor.flops_per_row, self.partial_bytes, work)

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        for block in self.predictor.blocks_of(chunk, np.flatnonzero(self.targets.labelled_in(chunk))):
            truth = self.targets.one_hot(chunk, block)
            values = np.empty((len(truth), self.predictor.width))
            self.predictor.fill(chunk, block, values)
            with chunk.work.stage("predict"):
                ids = np.arange(chunk.start, chunk.start + len(chunk), dtype=np.float64)[block]
                weight = weights_of(chunk, block)
                if self.targets.classes is None:
                    self._add_numbers(total, ids, weight, values, truth)
                else:
                    self._add_classes(total, ids, weight, values, truth)

    def _add_numbers(self, total: Accumulator, ids: Array, weight: Array, values: Array, truth: Array) -> None:
        values, std = values[:, : truth.shape[1]], values[:, truth.shape[1] :]
        for name, losses in normal_losses(truth - values, std).items() if std.size else ():
            total[name] += weight @ losses
        total["n"] += weight.sum()
        total["sse"] += weight @ (truth - values) ** 2
        total["sae"] += weight @ np.abs(truth - values)
        total["t"] += weight @ (truth - self.shift)
        total["q"] += weight @ (truth - self.shift) ** 2
        if self.keep:
            # residuals in units of their spread by bins of a fifth, the first and the last open
            places = np.nan_to_num((truth - values) / self.spread, nan=np.inf) * (RESIDUAL_BINS / 8) + RESIDUAL_BINS / 2
            bins = np.clip(places, 0, RESIDUAL_BINS - 1).astype(np.int64)
            for column, of_column in enumerate(bins.T):
                total["residuals"][column] += np.bincount(of_column, weight, RESIDUAL_BINS)
            order = ids.astype(np.uint64) * np.uint64(_HASH) % np.uint64(2**32)
            rows = {"margin": order.astype(float), "row": ids, "truth": truth[:, 0], "guess": values[:, 0]}
            self._keep(total, rows, weight > 0)

    def _add_classes(self, total: Accumulator, ids: Array, weight: Array, values: Array, truth: Array) -> None:
        rows, true, guess = np.arange(len(values)), truth.argmax(axis=1), values.argmax(axis=1)
        np.add.at(total["confusion"], (true, guess), weight)
        if self.predictor.logits:
            _add_probabilities(total, weight, self.predictor.logits_of(values), truth)
        if not self.keep:
            return
        of_truth = values[rows, true]
        values[rows, true] = -np.inf
        margin = of_truth - values.max(axis=1)
        margin = np.where(np.isnan(margin), -np.inf, margin)
        self._keep(total, {"margin": margin, "row": ids, "truth": true, "guess": guess}, weight > 0)

    def _keep(self, total: Accumulator, rows: Accumulator, usable: Array) -> None:
        # drop rows that cannot be among the first k before sorting
        near = np.flatnonzero(usable & (rows["margin"] <= total["margin"][-1]))
        total.update(self._first({name: np.concatenate([total[name], rows[name][near]]) for name in _OF_WORST}))

    def _first(self, rows: Accumulator) -> Accumulator:
        order = np.lexsort((rows["row"], rows["margin"]))[: self.keep]
        return {name: rows[name][order] for name in _OF_WORST}


def _add_probabilities(total: Accumulator, weight: Array, logits: Array, truth: Array) -> None:
    """Add rows with weights (b,), logits (b, c) and one-hot classes (b, c)."""
    logarithms = log_softmax(logits)
    p = np.exp(logarithms)
    best, rows = p.argmax(axis=1), np.arange(len(p))
    total["log_loss"] -= weight @ logarithms[rows, truth.argmax(axis=1)]
    total["brier"] += weight @ ((truth - p) ** 2).sum(axis=1)
    # by bins of the largest p: the rows, those classified rightly, and Σ p
    largest = p[rows, best]
    place = np.minimum((largest * _BINS).astype(np.int64), _BINS - 1)
    for number, values in enumerate((weight, weight * truth[rows, best], weight * largest)):
        total["reliability"][number] += np.bincount(place, values, _BINS)


def normal_losses(error: Array, std: Array) -> dict[str, Array]:
    """Return CRPS, interval score and coverage of bands of 95 % of N(f, std²) from errors y − f, all of one shape.

    Gneiting & Raftery, Strictly Proper Scoring Rules, Prediction, and Estimation, JASA 102 (2007), eqs. 21 and 43.
    """
    z = error / np.maximum(std, np.maximum(np.abs(error) / 40, 1e-300))  # beyond 40 nothing changes
    central = np.reshape([erf(one) for one in (z / np.sqrt(2)).ravel()], z.shape)  # P(|Z| < |z|), with the sign of z
    # E|Y − y| − E|Y − Y'|/2
    crps = error * central + std * (np.sqrt(2 / np.pi) * np.exp(-z * z / 2) - 1 / np.sqrt(np.pi))
    beyond = np.maximum(np.abs(error) - HALF_BAND * std, 0)
    interval_score = 2 * HALF_BAND * std + 2 / OUTSIDE * beyond
    return {"crps": crps, "interval_score": interval_score, "coverage": 1.0 * (beyond == 0)}


def normal_scores(model: object, X: object, y: Array, sample_weight: Array | None = None) -> dict[str, float]:
    """Score a regressor with standard deviations, as a scorer of `cross_validate` of scikit-learn: larger is better.

    Returns `neg_rmse`, `neg_mae`, `neg_crps` and `neg_interval_score` (of bands of 95 %) in units of y, (n,) or (n, c),
    and `coverage`, the share of y in those bands (larger than 0.95: too wide), of N(mean, std²) by
    `model.predict(X, return_std=True)`. `GridSearchCV(…, refit="neg_crps")` chooses by one of them.
    """
    mean, std = map(np.asarray, model.predict(X, return_std=True))  # type: ignore[attr-defined]
    error = np.reshape(y, mean.shape) - mean
    losses = {"rmse": error**2, "mae": np.abs(error), **normal_losses(error, std)}
    means = {name: np.average(values, axis=0, weights=sample_weight) for name, values in losses.items()}
    means["rmse"] = np.sqrt(means["rmse"])
    share = {"coverage": float(means.pop("coverage").mean())}
    return {f"neg_{name}": -float(value.mean()) for name, value in means.items()} | share


def probability_scores(total: Mapping[str, Array], weight: float) -> dict[str, float]:
    """Return `log_loss` and `brier`, means over rows of total weight `weight`, and `calibration_error`.

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
    """Return the accuracy of a confusion matrix, or R² averaged over targets (a constant one: 1 if exact, else 0)."""
    if "confusion" in total:
        confusion = total["confusion"]
        return float(np.trace(confusion) / max(confusion.sum(), 1e-300))
    # 1 − Σ(y − f)²/Σ(y − ȳ)²; the spread of a constant target is rounding
    spread = total["q"] - total["t"] ** 2 / np.maximum(total["n"], 1e-300)
    flat = spread <= 1e-12 * np.maximum(total["q"], 1e-300)
    r2 = np.where(flat, (total["sse"] <= 1e-12 * np.maximum(total["q"], 1e-300)) * 1.0, 0.0)
    r2[~flat] = 1 - total["sse"][~flat] / spread[~flat]
    return float(r2.mean())
