"""Options of a model: method, kernel, landmarks and penalties; single values or grids."""

from __future__ import annotations

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
    "xnv": "semi-supervised: ridge on the canonical correlations of two views of the kernel over all rows",
    "artl": "classes of an unlabelled domain from those of a labelled one; corpora have a column domain",
    "ridge": "linear ridge regression",
    "linear": "least squares",
}

_METHOD = together(
    click.option(
        "--method",
        type=click.Choice(list(_METHODS)),
        default="krr",
        show_default=True,
        help="; ".join(f"{name}: {text}" for name, text in _METHODS.items())
        + ". If the corpus has classes, all but ridge and linear classify.",
    ),
    click.option(
        "--landmarks",
        type=click.IntRange(1),
        help="Number of landmarks, for all but ridge and linear; xnv: of each view.  [default: 1000 or all rows]",
    ),
    click.option(
        "--landmark-choice",
        type=click.Choice([*LANDMARKS, *FOURIER]),
        metavar="CHOICE",
        help="Choice of landmarks. Rows: uniform; balanced, equally many from every domain; rpcholesky, by randomly "
        "pivoted Cholesky. Centres: k-means, balanced-k-means. Random features instead: fourier, "
        "orthogonal-fourier.  [default: uniform; artl: k-means]",
    ),
    click.option("--kernel", type=click.Choice(KERNELS), default="gaussian", show_default=True),
)
_REST = together(
    click.option(
        "--solver",
        type=click.Choice(["auto", "direct", "cg"]),
        help="krr only. direct: one sweep for m×m moments, which the model keeps. cg: conjugate gradients, one sweep "
        "per step and no m×m moments, for more than about 10,000 landmarks. auto: the cheaper from 4,096 on  "
        "[default: auto].",
    ),
    click.option("--intercept", is_flag=True, help="Fit an intercept (krr; xnv, ridge and linear always do)."),
    click.option(
        "--class-weight",
        type=click.Choice(["balanced"]),
        help="Classifiers only. balanced: all classes have the same total weight.",
    ),
    click.option(
        "--probability",
        is_flag=True,
        help="Classifiers only: calibrate probabilities on held-out folds, by one more sweep; see score for their "
        "quality.",
    ),
    transform_option,
    click.option("--dtype", type=click.Choice(["auto", "float32", "float64"]), default="auto", show_default=True),
    click.option("--seed", type=int, default=0, show_default=True, help="Seed of the choice of landmarks."),
)


def _model_options(*, grid: bool) -> Decorator:
    """Return the options of a fit; with `grid` bandwidths, penalties and components take several values."""
    width = Numbers(*WIDTHS, several=grid)
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
            help="Bandwidth of gaussian, length scale of matern. scale: d·var/2 of the landmarks is its square; "
            "auto: d/2  [default: scale].",
        ),
        click.option(
            "--gamma",
            type=width,
            help="gamma of laplacian, polynomial, sigmoid. scale: 1/(d·var) of the landmarks, for laplacian "
            "1/(d·std); auto: 1/d, as in scikit-learn's KernelRidge  [default: scale].",
        ),
        click.option("--degree", type=click.IntRange(1), default=3, show_default=True, help="Degree of polynomial."),
        click.option(
            "--nu",
            type=click.Choice(["0.5", "1.5", "2.5"]),
            default="1.5",
            show_default=True,
            help="Smoothness of matern.",
        ),
        click.option(
            "--alpha",
            type=Numbers() if grid else Numbers("gcv", several=False),
            default="1e-6:1e2:20" if grid else None,
            show_default=grid,
            help=penalty,
        ),
        click.option(
            "--components",
            type=Numbers(whole=True) if grid else click.IntRange(1),
            help="Number of components of sssl  [default: 120].",
        ),
        _REST,
    )


model_options = _model_options(grid=False)
grid_options = _model_options(grid=True)
