"""`python -m pipelines representer`: seven points, a line, polynomials, a kernel fit and its ±2σ band.

The printed reference is “Practical usage of Representer theorem”; the points and the hyper-parameters are its own.

By the representer theorem the regularised fit over a whole function space is a sum of kernels at the data,
g(x) = Σ α_j k(x, x_j), with α̂ = (K + γI)⁻¹y: kernel ridge regression. The reference's squared exponential
g2·exp(−(x−x')A(x−x')) + w2·[same row] is ours by three identities (`mapped`): it has no 2 in the exponent, so
σ = (2A)^{-1/2}; a scale g2 on the kernel is a factor on the penalty; w2 on the diagonal is added to the penalty.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from bigkernel import Gaussian, KernelRidge, LinearRegression
from bigkernel.arrays import Array
from pipelines.shared.charts import Curve, curves
from pipelines.shared.experiments import Report, options, timed
from pipelines.shared.page import Column, Table

REFERENCE = "“Practical usage of Representer theorem”"
X = np.array([1.0, 4, 6, 9, 11, 15, 18])
Y = np.array([3.0, 4, 2.5, 2, 3, 1.5, 3.5])
DEGREES = (1, 2, 3, 4)
NAMES = {1: "linear", 2: "2nd order", 3: "3rd order", 4: "4th order"}


@dataclass(frozen=True)
class SquaredExponential:
    """The reference's `kernel_se`: g2·exp(−A(x−x')²), with w2 added on the diagonal of the training matrix."""

    g2: float = 1.0
    A: float = 1 / 25
    w2: float = 1e-8

    def mapped(self, gamma: float) -> tuple[float, float]:
        """Return (σ, alpha) with which `KernelRidge(Gaussian(σ), alpha)` is (K + γI)⁻¹y of this kernel.

        g2·k₁ + (w2 + γ)I = g2·(k₁ + (w2 + γ)/g2·I), and a common factor of kernel and penalty cancels in the fit.
        """
        return (2 * self.A) ** -0.5, (self.w2 + gamma) / self.g2


def polynomial(x: Array, y: Array, degree: int, at: Array) -> Array:
    """Fit a least-squares polynomial of this degree by `LinearRegression` on powers of scaled x; return it at `at`."""
    centre, half = (x.max() + x.min()) / 2, max((x.max() - x.min()) / 2, 1e-300)
    powers = [np.power.outer((points - centre) / half, np.arange(1, degree + 1)) for points in (x, at)]
    values: Array = LinearRegression().fit(powers[0], y).predict(powers[1])
    return values


def posterior_draws(
    x: Array, y: Array, at: Array, kernel: SquaredExponential, gamma: float, count: int, seed: int
) -> Array:
    """Draw functions (count, len(at)) from the Gaussian process given the points, by the dense equations."""
    k = lambda a, b: kernel.g2 * np.exp(-kernel.A * np.subtract.outer(a, b) ** 2)  # noqa: E731
    system = k(x, x) + (gamma + kernel.w2) * np.eye(len(x))
    solved = np.linalg.solve(system, np.column_stack([y, k(x, at)]))
    mean, covariance = k(at, x) @ solved[:, 0], k(at, at) - k(at, x) @ solved[:, 1:]
    values, vectors = np.linalg.eigh(covariance)
    noise = np.random.default_rng(seed).normal(size=(len(at), count))
    draws: Array = mean + ((vectors * np.sqrt(np.maximum(values, 0))) @ noise).T
    return draws


@click.command()
@click.option("--g2", type=float, default=1.0, show_default=True, help="Scale of the kernel, printed as g2.")
@click.option("--a", "a", type=float, default=1 / 25, show_default=True, help="1/length², printed as A.")
@click.option("--w2", type=float, default=1e-8, show_default=True, help="Noise on the diagonal, printed as w2.")
@click.option("--gamma", type=float, default=1e-4, show_default=True, help="The penalty, printed as gamma.")
@options("representer", repeats=10, repeats_help="Functions drawn from the posterior, in the last figure.")
def representer(
    g2: float, a: float, w2: float, gamma: float, data: Path, repeats: int, seed: int, out: Path, as_json: bool
) -> None:
    """Fit seven points with polynomials and with kernels.

    The printed reference is “Practical usage of Representer theorem”.

    \b
    1. A line and polynomials of degree 2 to 4 by least squares.
    2. Kernel ridge regression with the printed squared exponential: g2, A, w2 and
       gamma become sigma and alpha of KernelRidge, and its predictions are
       compared with the printed five lines, written out.
    3. The same model as a Gaussian process: its band of two standard deviations
       (return_std=True) and functions drawn from it.

    \b
    python -m pipelines representer
    python -m pipelines representer --gamma 0.1

    In --out: report.html, fits.csv, curves.csv, fig1.png to fig5.png. The seven points are in the program; --data is
    not read. Some seconds.
    """
    if not (a > 0 and g2 > 0 and gamma >= 0 and w2 >= 0):
        raise click.UsageError("expected --a and --g2 above 0, --gamma and --w2 of at least 0")
    x, y = X, Y
    kernel = SquaredExponential(g2, a, w2)
    sigma, alpha = kernel.mapped(gamma)
    at = np.linspace(0, 20, 401)
    report = Report(out, "The representer theorem on seven points", f"{len(x)} points, σ = {sigma:.4g}", quiet=as_json)

    fits, std, seconds = fit_all(x, y, at, kernel, gamma)
    difference = float(np.abs(printed_formula(x, y, at, kernel, gamma) - fits["kernel"][len(x) :]).max())
    report.page.text(
        "Over all functions of the kernel's space, the one that minimises Σ(y − g(x))² + γ‖g‖² is a sum of kernels at "
        f"the data points: g(x) = Σ α_j k(x, x_j), here with {len(x)} coefficients. That is kernel ridge regression, "
        "and the mean of a Gaussian process.",
        f"The hyper-parameters of {REFERENCE}, g2 = {g2:g}, A = {a:g}, w2 = {w2:g}, γ = {gamma:g}, are σ = (2A)^(−1/2) "
        f"= {sigma:.6g} and alpha = (γ + w2)/g2 = {alpha:.6g} of KernelRidge. Largest difference to the printed "
        f"formula, written out: {difference:.1e}.",
    )
    _table(report, x, y, fits, seconds, sigma, alpha)
    _figures(report, x, y, at, fits, std)
    _process(report, x, y, at, fits["kernel"][len(x) :], std, posterior_draws(x, y, at, kernel, gamma, repeats, seed))
    columns = {"x": at, **{name: values[len(x) :] for name, values in fits.items()}, "std": std}
    lines = [dict(zip(columns, map(float, line), strict=True)) for line in zip(*columns.values(), strict=True)]
    Table([Column(name, name) for name in columns], lines).write_csv(out / "curves.csv")
    facts = {"kernel": f"σ {sigma:.6g}, alpha {alpha:.6g}", "seed": seed}
    report.say(f"σ = {sigma:.6g}, alpha = {alpha:.6g}; largest difference to the printed formula {difference:.1e}")
    report.finish(facts, difference=difference, sigma=sigma, alpha=alpha)


def fit_all(
    x: Array, y: Array, at: Array, kernel: SquaredExponential, gamma: float
) -> tuple[dict[str, Array], Array, dict[str, float]]:
    """Fit the polynomials and the kernel; return values at x and `at`, deviations at `at` and seconds, by name."""
    fits, seconds = {}, {}
    for degree in DEGREES:
        fits[NAMES[degree]], seconds[NAMES[degree]] = timed(polynomial, x, y, degree, np.concatenate([x, at]))
    sigma, alpha = kernel.mapped(gamma)
    ridge = KernelRidge(Gaussian(sigma), alpha=alpha, noise_variance=alpha, fit_intercept=False)
    model, seconds["kernel"] = timed(ridge.fit, x[:, None], y)
    mean, unit_std = model.predict(at[:, None], return_std=True)
    fits["kernel"] = np.concatenate([model.predict(x[:, None]), mean])
    # standard deviation for our kernel of scale 1; the printed kernel is g2 times as large
    return fits, np.sqrt(kernel.g2) * unit_std, seconds


def printed_formula(x: Array, y: Array, at: Array, kernel: SquaredExponential, gamma: float) -> Array:
    """Evaluate the kernel fit at `at` with the reference's five lines."""
    K = kernel.g2 * np.exp(-kernel.A * np.subtract.outer(x, x) ** 2) + kernel.w2 * np.eye(len(x))
    alphahat = np.linalg.solve(K + gamma * np.eye(len(x)), y)
    ktest = kernel.g2 * np.exp(-kernel.A * np.subtract.outer(at, x) ** 2)
    values: Array = ktest @ alphahat
    return values


def _table(
    report: Report, x: Array, y: Array, fits: dict[str, Array], seconds: dict[str, float], sigma: float, alpha: float
) -> None:
    """Write the errors of every fit at the points."""
    records = [
        {
            "fit": name,
            "parameters": len(x) if name == "kernel" else degree + 1,
            "mse": float(np.mean((values[: len(x)] - y) ** 2)),
            "largest": float(np.abs(values[: len(x)] - y).max()),
            "leave_one_out": _leave_one_out(x, y, None if name == "kernel" else degree, sigma, alpha),
            "seconds": seconds[name],
        }
        for degree, (name, values) in enumerate(fits.items(), 1)
    ]
    columns = [
        Column("fit", "fit", left=True),
        Column("parameters", "parameters", ","),
        Column("mse", "training MSE", ".2e"),
        Column("largest", "largest error", ".2e"),
        Column("leave_one_out", "leave-one-out MSE", ".3f"),
        Column("seconds", "s", ".4f"),
    ]
    report.table(
        "fits",
        "Fits",
        Table(columns, records),
        caption="Leave-one-out: every point in turn predicted from the others, which is what an interpolating curve "
        "does not show. Nothing was tuned.",
    )


def _process(report: Report, x: Array, y: Array, at: Array, mean: Array, std: Array, draws: Array) -> None:
    """Plot the Gaussian process: samples, mean and band."""
    report.page.heading("As a Gaussian process")
    functions = [
        Curve("draws" if i == 0 else "", at, draw, marks=False, colour=6, width=0.8) for i, draw in enumerate(draws)
    ]
    report.figure(
        "fig5",
        curves,
        [
            *functions,
            Curve("mean ± 2σ", at, mean, band=2 * std, marks=False, colour=1),
            Curve("training data", x, y, line=False, colour="ink"),
        ],
        **AXES,
        caption=f"{len(draws)} functions drawn from the Gaussian process given the points, its mean, and the band of "
        "two standard deviations of an observation, from predict(…, return_std=True).",
    )


def _leave_one_out(x: Array, y: Array, degree: int | None, sigma: float, alpha: float) -> float:
    """Return the mean squared error of predicting each point from the others."""
    errors = []
    for i in range(len(x)):
        rest = np.arange(len(x)) != i
        if degree is None:
            model = KernelRidge(Gaussian(sigma), alpha=alpha, fit_intercept=False).fit(x[rest, None], y[rest])
            value = model.predict(x[[i], None])
        else:
            value = polynomial(x[rest], y[rest], degree, x[[i]])
        errors.append(float((value[0] - y[i]) ** 2))
    return float(np.mean(errors))


def _figures(report: Report, x: Array, y: Array, at: Array, fits: dict[str, Array], std: Array) -> None:
    """Plot the reference's four figures."""
    data = Curve("training data", x, y, line=False, colour="ink")
    lines = [
        Curve(name, at, fits[name][len(x) :], marks=False, colour=c)
        for name, c in zip(fits, (0, 5, 2, 4, 1), strict=True)
    ]
    kernel = Curve("kernel, ± 2σ", at, lines[4].y, band=2 * std, marks=False, colour=1)
    shown: list[tuple[list[Curve], str]] = [
        ([data], "The training data."),
        ([data, lines[0]], "A line by least squares."),
        ([data, *lines[:4]], "Polynomials of degree 1 to 4."),
        (
            [data, *lines[:4], kernel],
            "The kernel fit goes through the points, and its band of two standard deviations says how far "
            "it can be trusted between and beyond them.",
        ),
    ]
    for number, (chosen, caption) in enumerate(shown, 1):
        report.figure(f"fig{number}", curves, chosen, **AXES, caption=caption)


AXES: dict[str, Any] = {
    "x_ticks": (0, 5, 10, 15, 20),
    "x_label": "input x (no unit)",
    "y_label": "output y (no unit)",
    "x_range": (0.0, 20.0),
    "y_range": (0.0, 5.0),
}
