"""`python -m pipelines mercer`: which kernels are positive definite symmetric (PDS) on real digits, by eigenvalues.

Definition 1 of “Fast Domain Generalization with Kernel Methods”, part 1, the printed reference: every Gram matrix is
symmetric without a negative eigenvalue. A sample of rows can refute it, not prove it: the table says for each kernel
what theory knows and what the digits show.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits
from sklearn.preprocessing import normalize

from bigkernel import Gaussian, Laplacian, Linear, Matern, Polynomial, Sigmoid, check_positive_definite
from bigkernel.arrays import Array
from bigkernel.errors import DataError
from bigkernel.kernels.positive_definite import GramSpectrum
from pipelines.shared.charts import Curve, curves
from pipelines.shared.experiments import Report, digit_pair, options, steps
from pipelines.shared.page import Column, Table


@dataclass(frozen=True)
class Case:
    """A kernel of the table, its theoretical property, and whether its spectrum is plotted."""

    name: str
    kernel: Callable[[Array, Array], Any]
    theory: str
    plotted: bool = False


def cases() -> list[Case]:
    """Return the kernels of the reference, ours beside them, and the Gaussian as the reference prints it."""
    printed = lambda X, Z: np.exp(-cdist(X, Z) / (2 * 0.31**2))  # noqa: E731
    return [
        Case("linear", Linear(), "PDS", True),
        Case("polynomial, p = 2, c = 1", Polynomial(2, gamma=1.0, coef0=1.0), "PDS", True),
        Case("polynomial, p = 3, c = 0", Polynomial(3, gamma=1.0, coef0=0.0), "PDS"),
        Case("Gaussian, σ = 0.06", Gaussian(0.06), "PDS"),
        Case("Gaussian, σ = 0.31", Gaussian(0.31), "PDS", True),
        Case("Gaussian, σ = 1.4", Gaussian(1.4), "PDS", True),
        Case("Gaussian as printed, σ = 0.31", printed, "PDS"),
        Case("Laplacian, γ = 1", Laplacian(1.0), "PDS"),
        Case("Matérn 3/2, ℓ = 0.5", Matern(0.5, nu=1.5), "PDS"),
        Case("sigmoid, a = 1, b = 0", Sigmoid(gamma=1.0, coef0=0.0), "not PDS"),
        Case("sigmoid, a = 1, b = 1", Sigmoid(gamma=1.0, coef0=1.0), "not PDS", True),
        Case("sigmoid, a = 1, b = −1", Sigmoid(gamma=1.0, coef0=-1.0), "not PDS", True),
    ]


def digits(data: Path) -> tuple[Array, str]:
    """Return digits (n, d) of unit norm and their name: the USPS–MNIST pair, or scikit-learn's if it is missing."""
    try:
        usps, _, mnist, _ = digit_pair(data)
    except DataError:
        return normalize(load_digits().data), "1,797 digits of 8×8 pixels from scikit-learn (--data has no others)"
    return np.concatenate([usps, mnist]), "1,800 USPS and 2,000 MNIST digits of 16×16 pixels"


def record(case: Case, spectra: list[GramSpectrum]) -> dict[str, Any]:
    """Return a line of the table: the extremes over the draws."""
    scaled = [one.eigenvalues[-1] / np.abs(one.eigenvalues).max() for one in spectra]
    return {
        "kernel": case.name,
        "theory": case.theory,
        "draws": len(spectra),
        "positive": sum(one.positive_definite for one in spectra),
        "largest": float(np.mean([one.eigenvalues[0] for one in spectra])),
        "smallest": float(min(scaled)),
        "negative_percent": 100 * max(one.negative_mass for one in spectra),
        "rank": int(np.mean([one.rank for one in spectra])),
    }


COLUMNS = (
    Column("kernel", "kernel", left=True),
    Column("theory", "theory", left=True),
    Column("positive", "PDS in", lambda r: f"{r['positive']} of {r['draws']}"),
    Column("draws", "draws", hidden=True),
    Column("largest", "λ max", ".3g"),
    Column("smallest", "λ min/max", ".0e"),
    Column("negative_percent", "negative %", ".2g"),
    Column("rank", "rank", ","),
)


@click.command()
@click.option("--rows", type=click.IntRange(2, 5000), default=1000, show_default=True, help="Digits in a Gram matrix.")
@options("mercer", repeats=3, repeats_help="Draws of the digits.")
def mercer(rows: int, data: Path, repeats: int, seed: int, out: Path, as_json: bool) -> None:
    """Compute eigenvalues of Gram matrices on real digits, to see which kernels are PDS.

    \b
    1. Draws --rows digits, --repeats times, each digit of unit norm.
    2. Computes the spectrum of every kernel of the printed reference (“Fast
       Domain Generalization with Kernel Methods”, part 1) and of ours with
       bigkernel.check_positive_definite, and shows which are PDS.

    \b
    python -m pipelines mercer
    python -m pipelines mercer --rows 3000 --repeats 1

    In --out: report.html, kernels.csv, spectra.png. Without the digit pair in --data it takes
    scikit-learn's digits, and says so. Up to a minute on two processors.
    """
    X, source = digits(data)
    rows = min(rows, len(X))
    rng = np.random.default_rng(seed)
    draws = [rng.permutation(len(X))[:rows] for _ in range(repeats)]
    report = Report(out, "Positive definite or not", f"{rows:,} digits a draw, {repeats} draws", quiet=as_json)
    records, lines = [], []
    with steps("eigenvalues", len(cases()), quiet=as_json) as after:
        for case in cases():
            spectra = [check_positive_definite(case.kernel, X[ids]) for ids in draws]
            records.append(record(case, spectra))
            if case.plotted:
                lines.append(_spectrum(case.name, spectra[0]))
            after()
    _kernels(report, records, lines, rows)
    report.finish({"data": source, "rows": f"{rows:,} a draw, unit norm", "draws": repeats, "seed": seed})


def _kernels(report: Report, records: list[dict[str, Any]], lines: list[Curve], rows: int) -> None:
    """Write the table of the kernels and plot their spectra."""
    positive = [r["kernel"] for r in records if r["positive"] == r["draws"]]
    report.page.text(
        f"{len(positive)} of {len(records)} kernels have no negative eigenvalue in any draw. A matrix of finite size "
        "can refute that a kernel is positive definite symmetric (PDS), and cannot prove it; the column “theory” can.",
        "“Fast Domain Generalization with Kernel Methods”, part 1, prints the Gaussian with the distance unsquared, "
        "exp(−‖x − x'‖/(2σ²)). That is another kernel, of the Matérn family with ν = 1/2, and PDS as well; the code "
        "of that reference squares the distance, and so do we.",
    )
    report.table(
        "kernels",
        "Kernels on digits",
        Table(COLUMNS, records),
        caption="λ max is the mean over the draws, λ min/max the least over them: within ± n·eps ≈ "
        f"{rows * np.finfo(float).eps:.0e} it is zero to rounding. Negative %: the largest share of Σ|λ| that is "
        "negative. Rank: eigenvalues above that rounding. KernelRidge drops a negative part and warns.",
    )
    report.figure(
        "spectra",
        curves,
        lines,
        x_label="number of the eigenvalue by size",
        y_label="|λ| / largest |λ|",
        x_log=True,
        y_log=True,
        y_range=(1e-17, 3),
        height=4.2,
        caption="Size of the eigenvalues of one draw, on logarithmic axes; where a curve is below n·eps it shows "
        "rounding. How fast it falls is how few landmarks a Nyström approximation needs.",
    )


def _spectrum(name: str, spectrum: GramSpectrum) -> Curve:
    size = np.sort(np.abs(spectrum.eigenvalues))[::-1]
    return Curve(name, np.arange(1, len(size) + 1), np.maximum(size / size[0], 1e-18), marks=False)
