"""Exact KRR against the printed formula of the reference, which inverts the n×n matrix K + λI twice.

`krr_predict` is the reference's MATLAB code (`Regressor.m`) in NumPy, line by line; `race` runs it and `KernelRidge` in
turn.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigkernel import KernelRidge
from bigkernel.arrays import Array
from bigkernel.monitor.terminal.bar import bar
from pipelines.shared.experiments import Report, timed
from pipelines.shared.page import Column, Table

REQUIRED_RATIO = 8.0


@dataclass(frozen=True)
class Pair:
    """Exact KRR and the printed formula, one after the other: seconds, and their predictions' largest difference."""

    seconds: float
    printed_seconds: float
    difference: float
    n_train: int
    n_test: int


def gauss_kernel(X: Array, Y: Array, sigma: float) -> Array:
    """Evaluate the reference's `gaussKernel`: X (d, n) and Y (d, q) hold a row in each column; (n, q)."""
    Xsq, Ysq = np.sum(X**2, axis=0, keepdims=True), np.sum(Y**2, axis=0, keepdims=True)
    n_x, n_y = X.shape[1], Y.shape[1]
    Dsq = (np.ones((n_y, 1)) @ Xsq).T + np.ones((n_x, 1)) @ Ysq - 2 * X.T @ Y
    K: Array = np.exp(-Dsq / (2 * sigma**2))
    return K


def krr_predict(Xs: Array, ys: Array, Xt: Array, penalty: float, sigma: float) -> tuple[Array, Array]:
    """Evaluate the reference's `krrPredict`, line by line, with its two inverses: predictions of rows Xs and Xt."""
    Xs, Xt = (np.hstack([np.ones((len(X), 1)), X]) for X in (Xs, Xt))
    Kss = gauss_kernel(Xs.T, Xs.T, sigma)
    Kst = gauss_kernel(Xs.T, Xt.T, sigma)
    In = np.eye(len(Xs))
    gtrain = ys @ np.linalg.inv(Kss + penalty * In) @ Kss
    gtest = ys @ np.linalg.inv(Kss + penalty * In) @ Kst
    return gtrain, gtest


def race(
    model: KernelRidge, X: Array, y: Array, X_test: Array, penalty: float, sigma: float, *, pairs: int, quiet: bool
) -> list[Pair]:
    """Fit to X, y and predict X and X_test by the model and by the printed formula, in turn, `pairs` times."""

    def ours() -> tuple[Array, Array]:
        model.fit(X, y)
        return model.predict(X), model.predict(X_test)

    done = []
    with bar("exact KRR and the printed formula", enabled=not quiet) as update:
        for number in range(pairs):
            predictions, seconds = timed(ours)
            update((2 * number + 1) * len(y), 2 * pairs * len(y))
            printed, printed_seconds = timed(krr_predict, X, y, X_test, penalty, sigma)
            update((2 * number + 2) * len(y), 2 * pairs * len(y))
            difference = max(float(np.abs(a - b).max()) for a, b in zip(predictions, printed, strict=True))
            done.append(Pair(seconds, printed_seconds, difference, len(y), len(X_test)))
    return done


def compare(report: Report, pairs: Sequence[Pair]) -> None:
    """Write the table of the pairs, and whether the required ratio is reached."""
    records: list[dict[str, Any]] = [
        {"pair": str(number), "seconds": pair.seconds, "printed_seconds": pair.printed_seconds}
        | {"ratio": pair.printed_seconds / pair.seconds, "difference": pair.difference}
        for number, pair in enumerate(pairs, 1)
    ]
    middle = {key: statistics.median(r[key] for r in records) for key in ("seconds", "printed_seconds", "ratio")}
    largest = max(pair.difference for pair in pairs)
    columns = [
        Column("pair", "pair", left=True),
        Column("seconds", "bigkernel s", ".2f"),
        Column("printed_seconds", "printed formula s", ".2f"),
        Column("ratio", "ratio", lambda r: f"{r['ratio']:.1f}×"),
        Column("difference", "largest difference", ".1e"),
    ]
    report.table(
        "formula",
        "Exact KRR against the printed formula",
        Table(columns, [*records, {"pair": "median", **middle, "difference": largest}]),
        caption=f"Fit to {pairs[0].n_train:,} rows and prediction of these and of {pairs[0].n_test:,} test rows, in "
        "turn in the same process. The printed formula is its MATLAB code in NumPy line by line: the matrix of squared "
        "distances, and yᵀ(K + λI)⁻¹K with an inverse for the training rows and another for the test rows; ours is one "
        "Cholesky factor. The last line has medians, and the largest difference of all predictions.",
    )
    reached = "which is reached" if middle["ratio"] >= REQUIRED_RATIO else "which is missed"
    report.tell(
        f"KernelRidge takes {middle['seconds']:.2f} s, the printed formula {middle['printed_seconds']:.2f} s: "
        f"{middle['ratio']:.1f} times as long (required: {REQUIRED_RATIO:g}, {reached}). No prediction differs by more "
        f"than {largest:.1e}."
    )
