"""Probabilities of classes from values of f: p(x) = softmax(a ∘ f(x) + b), a scale and an offset a class.

With two classes the scales are one, and this is Platt's sigmoid of f₂ − f₁. Shapes: n rows, c classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigkernel.arrays import Array


@dataclass(frozen=True, eq=False)
class Calibration:
    """a and b of the softmax.

    Attributes
    ----------
    scale, offset : (c,) float64
    rows : held-out rows that they were fitted to; 0 where a file does not tell
    log_loss : on these rows, mean −log p of the true class in nats; NaN where a file does not tell

    Examples
    --------
    >>> Calibration(np.array([2.0, 2.0]), np.array([0.0, 1.0])).logits(np.array([[0.25, 0.5]]))
    array([[0.5, 2. ]])
    """

    scale: Array
    offset: Array
    rows: int = 0
    log_loss: float = float("nan")

    def logits(self, values: Array) -> Array:
        """The logits of values of f, (n, c)."""
        return np.asarray(values * self.scale + self.offset)


def log_softmax(logits: Array) -> Array:
    """Log p of logits, (n, c)."""
    found: Array = logits - logits.max(axis=1, keepdims=True)
    found -= np.log(np.exp(found).sum(axis=1, keepdims=True))
    return found


def softmax(logits: Array) -> Array:
    """P of logits, (n, c), rows of sum 1."""
    found: Array = np.exp(logits - logits.max(axis=1, keepdims=True))
    found /= found.sum(axis=1, keepdims=True)
    return found
