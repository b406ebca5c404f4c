"""Scores of probabilities: log-loss, Brier score and calibration error, from sums over rows.

Accumulators hold `log_loss`, Σ −w log p of the true class (nats); `brier`, Σ w Σ_k (t_k − p_k)²; and `reliability`
(3, BINS), of rows whose largest p is in one of BINS equal parts of [0, 1]: Σ w, Σ w of those whose class that is, and
Σ w p. Shapes: b rows of a block, c classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.statistics.calibration import log_softmax
from bigkernel.streaming.merge_tree import Accumulator

Array = NDArray[Any]
BINS = 15
OF_PROBABILITIES = ("log_loss", "brier", "reliability")


def none_yet() -> Accumulator:
    """The sums of no rows."""
    return {"log_loss": np.zeros(()), "brier": np.zeros(()), "reliability": np.zeros((3, BINS))}


def add_rows(total: Accumulator, weight: Array, logits: Array, truth: Array) -> None:
    """Add rows with weights (b,), logits (b, c) and one-hot classes (b, c)."""
    logarithms = log_softmax(logits)
    p = np.exp(logarithms)
    best, rows = p.argmax(axis=1), np.arange(len(p))
    total["log_loss"] -= weight @ logarithms[rows, truth.argmax(axis=1)]
    total["brier"] += weight @ ((truth - p) ** 2).sum(axis=1)
    largest = p[rows, best]
    place = np.minimum((largest * BINS).astype(np.int64), BINS - 1)
    for number, values in enumerate((weight, weight * truth[rows, best], weight * largest)):
        total["reliability"][number] += np.bincount(place, values, BINS)


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
