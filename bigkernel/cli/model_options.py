"""Options that say what is fitted: a method, its kernel, landmarks and penalties; one value of each, or grids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from bigkernel.cli.options import Numbers, transform_option

# the names of `kernels.functions.KERNELS` and `SCALES`, `estimators.landmark_choice.CHOICES` and
# `estimators.kernel_basis.FOURIER`, spelt here so that --help loads none of these
KERNELS = ("gaussian", "laplacian", "matern", "linear", "polynomial", "sigmoid")
LANDMARKS = ("uniform", "balanced", "k-means", "balanced-k-means", "leverage", "rpcholesky")
FOURIER = ("fourier", "orthogonal-fourier")
WIDTHS = ("scale", "auto")
_METHODS = {
    "krr": "kernel ridge regression on Nyström landmarks",
    "sssl": "semi-supervised: ridge on the leading eigenfunctions of all rows",
    "xnv": "semi-supervised: ridge on what two views of the kernel agree on over all rows",
    "artl": "classes of an unlabelled domain from those of a labelled one; corpora have a column domain",
    "ridge": "linear ridge regression",
    "linear": "least squares",
}


_Option = Callable[[Callable[..., Any]], Callable[..., Any]]


class NumberOr(click.ParamType):
    """A number, or one of some words."""

    def __init__(self, *words: str) -> None:
        self.words = words
        self.name = "|".join(("number", *words))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        """See `click.ParamType`."""
        if value in self.words:
            return str(value)
        try:
            return float(value)
        except ValueError:
            self.fail(f"{value!r}: expected a number or {' or '.join(self.words)}", param, ctx)


_SOLVER = (
    click.option(
        "--solver",
        type=click.Choice(["auto", "direct", "cg"]),
        default="auto",
        show_default=True,
        help="Of krr. direct: one sweep for m×m moments, which the model keeps. cg: conjugate gradients, a sweep a "
        "step and no m×m moments, for more than about 10,000 landmarks. auto: the cheaper from 4,096 on.",
    ),
    click.option(
        "--tol",
        type=click.FloatRange(0, min_open=True),
        default=1e-3,
        show_default=True,
        help="Of --solver cg: how far the objective may end above its least value, as a share of it.",
    ),
)
_ROUNDS = click.option(
    "--rounds",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help="Most rounds of pseudo-labels, of artl.",
)
_OF_THE_ROWS: tuple[_Option, ...] = (
    transform_option,
    click.option(
        "--task",
        type=click.Choice(["auto", "classify", "regress"]),
        default="auto",
        show_default=True,
        help="auto: classify where the corpus has classes.",
    ),
    click.option("--dtype", type=click.Choice(["auto", "float32", "float64"]), default="auto", show_default=True),
    click.option("--seed", type=int, default=0, show_default=True, help="Of the draw of landmarks."),
)


_OF_CLASSES = (
    click.option(
        "--class-weight",
        type=click.Choice(["balanced"]),
        help="Of classifiers. balanced: rows weigh such that every class weighs as much in all.",
    ),
    click.option(
        "--probability",
        is_flag=True,
        help="Of classifiers: calibrate probabilities on held-out folds, by one more sweep; score tells how good.",
    ),
)


def _method_options() -> tuple[_Option, ...]:
    """What is fitted, and on which landmarks."""
    return (
        click.option(
            "--method",
            type=click.Choice(list(_METHODS)),
            default="krr",
            show_default=True,
            help="; ".join(f"{name}: {text}" for name, text in _METHODS.items()) + ".",
        ),
        click.option(
            "--landmarks",
            type=click.IntRange(1),
            help="m, for all but ridge and linear; xnv: of each view.  [default: 1000 or all rows]",
        ),
        click.option(
            "--landmark-choice",
            type=click.Choice([*LANDMARKS, *FOURIER]),
            metavar="CHOICE",
            help="Who serves. Rows: uniform; balanced, as many from every domain; leverage, by ridge leverage "
            "scores; rpcholesky, by randomly pivoted Cholesky. Centres: k-means, balanced-k-means. Random features "
            "in their place: fourier, orthogonal-fourier.  [default: uniform; artl: k-means]",
        ),
    )


def _kernel_options(*, grid: bool) -> tuple[_Option, ...]:
    """The kernel and its parameters."""
    number: Any = Numbers(words=WIDTHS) if grid else NumberOr(*WIDTHS)
    return (
        click.option("--kernel", type=click.Choice(KERNELS), default="gaussian", show_default=True),
        click.option(
            "--sigma",
            type=number,
            help="Bandwidth of gaussian, length of matern. scale: d·var/2 of the landmarks is its square; auto: d/2  "
            "[default: scale].",
        ),
        click.option(
            "--gamma",
            type=number,
            help="Of laplacian, polynomial, sigmoid. scale: 1/(d·var) of the landmarks, of laplacian 1/(d·std); auto: "
            "1/d, as in scikit-learn's KernelRidge  [default: scale].",
        ),
        click.option("--degree", type=click.IntRange(1), default=3, show_default=True, help="Of polynomial."),
        click.option(
            "--nu", type=click.Choice(["0.5", "1.5", "2.5"]), default="1.5", show_default=True, help="Of matern."
        ),
    )


def _penalty_options(*, grid: bool) -> tuple[_Option, ...]:
    """Penalty and components, of which a grid takes several values."""
    return (
        click.option(
            "--alpha",
            type=Numbers() if grid else NumberOr("gcv"),
            default="1e-6:1e2:20" if grid else None,
            show_default=grid,
            help="Ridge penalty."
            if grid
            else "Ridge penalty, or gcv: chosen from the statistics of the fit (krr, ridge, sssl)  [krr, ridge: 1; "
            "sssl: 0.4; xnv: 0.001; artl: 0.1].",
        ),
        click.option(
            "--components",
            type=Numbers(whole=True) if grid else click.IntRange(1),
            default="120" if grid else 120,
            show_default=True,
            help="s, of sssl.",
        ),
    )


def model_options(function: Callable[..., Any], *, grid: bool = False) -> Callable[..., Any]:
    """Options of a fit: method, kernel, landmarks, penalties, transforms; with `grid`, several values of some."""
    options: tuple[_Option, ...] = (
        *_method_options(),
        *_kernel_options(grid=grid),
        *_penalty_options(grid=grid),
        _ROUNDS,
        *_SOLVER,
        click.option("--intercept", is_flag=True, help="Fit an intercept (krr; ridge and linear always do)."),
        *_OF_CLASSES,
        *_OF_THE_ROWS,
    )
    for option in reversed(options):
        function = option(function)
    return function
