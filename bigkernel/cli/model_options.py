"""Options that say what is fitted: a method, its kernel, landmarks and penalties; one value of each, or grids."""

from __future__ import annotations

from typing import Any

import click

from bigkernel.cli.options import Decorator, Numbers, together, transform_option

# the names of `kernels.functions.KERNELS` and `SCALES`, and `estimators.kernel_basis.CHOICES` and
# `FOURIER`, spelt here so that --help loads none of these
KERNELS = ("gaussian", "laplacian", "matern", "linear", "polynomial", "sigmoid")
LANDMARKS = ("uniform", "balanced", "k-means", "balanced-k-means", "rpcholesky")
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


_METHOD = together(
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
        help="Who serves. Rows: uniform; balanced, as many from every domain; rpcholesky, by randomly "
        "pivoted Cholesky. Centres: k-means, balanced-k-means. Random features "
        "in their place: fourier, orthogonal-fourier.  [default: uniform; artl: k-means]",
    ),
    click.option("--kernel", type=click.Choice(KERNELS), default="gaussian", show_default=True),
)
_KERNEL = together(
    click.option("--degree", type=click.IntRange(1), default=3, show_default=True, help="Of polynomial."),
    click.option("--nu", type=click.Choice(["0.5", "1.5", "2.5"]), default="1.5", show_default=True, help="Of matern."),
)
_OTHERS = together(
    click.option(
        "--rounds",
        type=click.IntRange(0),
        default=10,
        show_default=True,
        help="Most rounds of pseudo-labels, of artl.",
    ),
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
    click.option("--intercept", is_flag=True, help="Fit an intercept (krr; ridge and linear always do)."),
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


def _model_options(*, grid: bool) -> Decorator:
    """Return the options of a fit; with `grid` bandwidths, penalties and components take several values."""
    width: Any = Numbers(words=WIDTHS) if grid else NumberOr(*WIDTHS)
    penalty = "Ridge penalty."
    if not grid:
        penalty = (
            "Ridge penalty, or gcv: chosen from the statistics of the fit (krr, ridge, sssl)  [krr, ridge: 1; "
            "sssl: 0.4; xnv: 0.001; artl: 0.1]."
        )
    return together(
        _METHOD,
        click.option(
            "--sigma",
            type=width,
            help="Bandwidth of gaussian, length of matern. scale: d·var/2 of the landmarks is its square; auto: d/2  "
            "[default: scale].",
        ),
        click.option(
            "--gamma",
            type=width,
            help="Of laplacian, polynomial, sigmoid. scale: 1/(d·var) of the landmarks, of laplacian 1/(d·std); auto: "
            "1/d, as in scikit-learn's KernelRidge  [default: scale].",
        ),
        _KERNEL,
        click.option(
            "--alpha",
            type=Numbers() if grid else NumberOr("gcv"),
            default="1e-6:1e2:20" if grid else None,
            show_default=grid,
            help=penalty,
        ),
        click.option(
            "--components",
            type=Numbers(whole=True) if grid else click.IntRange(1),
            default="120" if grid else 120,
            show_default=True,
            help="s, of sssl.",
        ),
        _OTHERS,
    )


model_options = _model_options(grid=False)
grid_options = _model_options(grid=True)
