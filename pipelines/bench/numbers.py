"""`bench numbers`: predictions against least squares that squares no condition, and what each fit said of its own.

The reference is ridge in whitened rows by a QR factorisation of [Φ; √α I], Φ = B L⁻ᵀ, and for SSSL, a fifth of whose
rows have a label, ridge on singular vectors of Φ, all in float64. Tables: those
that scikit-learn generates or ships, and wine where its file is at hand; standardised. Widths σ are
in units of a standard deviation.
"""

import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import linalg
from sklearn.datasets import load_diabetes, load_digits, make_friedman1

from bigkernel import SSSL, Gaussian, KernelRidge
from bigkernel.arrays import Array
from bigkernel.errors import AccuracyWarning
from bigkernel.solvers.residuals import PROMISE
from bigkernel.solvers.whitening import whiten

SIGMAS, ALPHAS = (1.0, 2.0, 4.0, 8.0, 16.0), (1e-6, 1e-4, 1e-2, 1.0)


@dataclass(frozen=True)
class Cell:
    """One fit: its error, its estimated error, whether it warned, and its arithmetic."""

    method: str
    table: str
    dtype: str
    sigma: float
    alpha: float
    condition: float
    error: float
    estimated: float
    warned: bool
    blocks: str
    sums: str
    sweeps: int
    seconds: float

    @property
    def silent(self) -> bool:
        """Whether the error exceeds the bound without a warning."""
        return self.error > PROMISE and not self.warned

    @property
    def false_alarm(self) -> bool:
        """Whether there was a warning although the error is within the bound."""
        return self.warned and self.error <= PROMISE


def tables(rows: int, data: Path, seed: int = 0) -> dict[str, tuple[Array, Array]]:
    """Return rows (n, d) and targets (n,) by name."""
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(rows, 8)) @ rng.normal(size=(8, 8))
    digits, labels = load_digits(return_X_y=True)
    values_of = {
        "friedman": make_friedman1(rows, 10, noise=1, random_state=seed),
        "mixed": (mixed, np.sin(mixed[:, 0]) + 0.1 * rng.normal(size=rows)),
        "diabetes": load_diabetes(return_X_y=True),
        "digits": (digits[:, digits.std(axis=0) > 0], labels.astype(float)),
    }
    wine = data / "winequality-white.csv"
    if wine.exists():
        values = np.loadtxt(wine, delimiter=";", skiprows=1)
        values_of["wine"] = (values[:, :-1], values[:, -1])
    return {name: _standardised(*table, rows, rng) for name, table in values_of.items()}


def _standardised(X: Array, y: Array, rows: int, rng: np.random.Generator) -> tuple[Array, Array]:
    X, y = (X - X.mean(axis=0)) / X.std(axis=0), (y - y.mean()) / y.std()
    if len(X) < rows:
        index = rng.integers(0, len(X), rows)
        return X[index] + 0.05 * rng.normal(size=(rows, X.shape[1])), y[index]
    return X[:rows], y[:rows]


def cells(rows: int, landmarks: int, data: Path) -> Iterator[Cell]:
    """Fit every combination of table, dtype, width and penalty."""
    for name, (X, y) in tables(rows, data).items():
        for dtype in ("float32", "float64"):
            for sigma in SIGMAS:
                wide = sigma * (X.shape[1] / 10) ** 0.5  # distances grow with the number of features
                for alpha in ALPHAS:
                    for method in METHODS:
                        yield _cell(method, name, X.astype(dtype), y, wide, alpha, landmarks)


def _cell(method: str, name: str, X: Array, y: Array, sigma: float, alpha: float, landmarks: int) -> Cell:
    given = {"alpha": alpha, "n_landmarks": landmarks, "fit_intercept": False, "random_state": 0}
    model: Any = KernelRidge(Gaussian(sigma), **given)
    if method == "sssl":
        model = SSSL(Gaussian(sigma), n_components=landmarks // 4, manifold=0, landmarks="uniform", **given)
        y = np.where(np.arange(len(y)) % 5 == 0, y, np.nan)
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y)
    seconds = time.perf_counter() - start
    reference = METHODS[method](model, X.astype(np.float64), y)
    report = model.fit_report()
    return Cell(
        method=method,
        table=name,
        dtype=str(X.dtype),
        sigma=sigma,
        alpha=alpha,
        condition=float(report["diagnostics"].get("core_condition", np.nan)),
        error=float(np.linalg.norm(model.predict(X) - reference) / np.linalg.norm(reference)),
        estimated=float(report["diagnostics"]["prediction_error"]),
        warned=any(issubclass(one.category, AccuracyWarning) for one in caught),
        blocks=report["dtype"],
        sums=report["sums"],
        sweeps=1 + len(report["sweep"]["swept_again"]),
        seconds=seconds,
    )


def least_squares(model: Any, rows: Array, y: Array) -> Array:
    """Return fitted values (n,) of ridge on whitened rows."""
    return _ridge(_whitened(model, rows), y, model.alpha)


def eigenfunctions(model: Any, rows: Array, y: Array) -> Array:
    """Return fitted values (n,) of ridge on the leading eigenfunctions; y is NaN where a row has no label."""
    phi = _whitened(model, rows)
    _, root, W = np.linalg.svd(phi, full_matrices=False)
    s = min(model.n_components, int((root > len(phi) * np.finfo(np.float64).eps * root[0]).sum()))
    return _ridge(phi @ (W[:s].T * root[:s]), y - model.target_shift_, model.alpha) + model.target_shift_


def _whitened(model: Any, rows: Array) -> Array:
    kernel, landmarks = model.kernel_, model.landmarks_
    T = whiten(kernel(landmarks), warn=False)
    return np.asarray(linalg.solve_triangular(T.factor, kernel(rows, landmarks)[:, T.pivots].T, lower=True).T)


def _ridge(phi: Array, y: Array, alpha: float) -> Array:
    there, width = ~np.isnan(y), phi.shape[1]
    tall = np.vstack([phi[there], np.sqrt(alpha) * np.eye(width)])
    return np.asarray(phi @ np.linalg.lstsq(tall, np.concatenate([y[there], np.zeros(width)]), rcond=None)[0])


METHODS = {"ridge": least_squares, "sssl": eigenfunctions}


def summary(fits: list[Cell]) -> dict[str, Any]:
    """Summarize silent errors, false alarms, repeated sweeps and the accuracy of the estimated errors."""
    ratios = [cell.estimated / cell.error for cell in fits if cell.error > 1e-8 and cell.condition < 1e11]
    return {
        "fits": len(fits),
        "silently_wrong": sum(cell.silent for cell in fits),
        "false_alarms": sum(cell.false_alarm for cell in fits),
        "warned": sum(cell.warned for cell in fits),
        "swept_again": sum(cell.sweeps > 1 for cell in fits),
        "factored": sum(cell.sums == "qr" for cell in fits),
        "largest_error_without_warning": max((cell.error for cell in fits if not cell.warned), default=0.0),
        "estimated_over_error": [float(np.quantile(ratios, q)) for q in (0, 0.1, 0.5, 0.9, 1)] if ratios else [],
        "cells": [asdict(cell) for cell in fits],
    }


COLUMNS = ["method", "table", "dtype", "σ", "α", "condition", "error", "estimated", "sums", ""]


def row(cell: Cell) -> list[str]:
    """Return one line of the table."""
    said = "SILENT" if cell.silent else "false alarm" if cell.false_alarm else "warned" if cell.warned else ""
    figures = [f"{value:.0e}" for value in (cell.condition, cell.error, cell.estimated)]
    chosen = f"*{cell.sums}" if (cell.blocks, cell.sums) == ("float32", "float64") else cell.sums
    return [cell.method, cell.table, cell.dtype, f"{cell.sigma:.2g}", f"{cell.alpha:g}", *figures, chosen, said]


def verdict(result: dict[str, Any]) -> str:
    """Summarize the table in one-line sentences."""
    lines = [
        f"{result['silently_wrong']} of {result['fits']} silently wrong, {result['warned']} warned, "
        f"{result['false_alarms']} of them without need",
        f"{result['swept_again']} swept again; * sums in float64 of blocks in float32",
        f"{result['factored']} by QR of the rows, warned or not",
    ]
    if result["estimated_over_error"]:
        least, low, median, high, most = (f"{ratio:.2g}" for ratio in result["estimated_over_error"])
        lines.append(f"estimated to true error: median {median}, 80 % {low} to {high},")
        lines.append(f"all {least} to {most}")
    return "\n".join(lines)
