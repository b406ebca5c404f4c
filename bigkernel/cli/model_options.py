"""Options of a model: method, kernel, landmarks and penalties; single values or grids."""

from __future__ import annotations

import click

from bigkernel.cli.options import Decorator, Numbers, together, transform_option

# the names of `kernels.functions.KERNELS` and `SCALES`, and `estimators.fit.basis.CHOICES` and
# `FOURIER`, spelt here so that --help loads none of these
KERNELS = ("gaussian", "laplacian", "matern", "linear", "polynomial", "sigmoid")
LANDMARKS = ("uniform", "balanced", "k-means", "balanced-k-means", "rpcholesky")
FOURIER = ("fourier", "orthogonal-fourier")
WIDTHS = ("scale", "auto")
_METHOD = together(
    click.option(
        "--method",
        type=click.Choice(["krr", "sssl", "xnv", "artl", "ridge", "linear", "tabular"]),
        metavar="NAME",
        default="krr",
        help="krr: kernel ridge regression; sssl, xnv: semi-supervised, by leading eigenfunctions or two views; artl: "
        "classes of a domain without labels from another; ridge, linear: linear; tabular: chosen on "
        "held-out rows.  [krr; tables: tabular]",
    ),
    click.option(
        "--landmarks",
        type=click.IntRange(1),
        metavar="N",
        help="More landmarks cost more and fit closer.  [default: 1000; sssl: 500; xnv: 200; at most all rows]",
    ),
    click.option(
        "--landmark-choice",
        type=click.Choice([*LANDMARKS, *FOURIER]),
        metavar="NAME",
        help="Rows: uniform, balanced (by domain), rpcholesky; centres: k-means, balanced-k-means; features: "
        "fourier, orthogonal-fourier.  [uniform; sssl, artl: k-means]",
    ),
    click.option(
        "--kernel",
        type=click.Choice(KERNELS),
        default="gaussian",
        show_default=True,
        metavar="NAME",
        help="; ".join(KERNELS) + ".",
    ),
)
_REST = together(
    click.option(
        "--solver",
        type=click.Choice(["auto", "direct", "cg"]),
        metavar="NAME",
        help="krr: direct, or cg beyond 10,000 landmarks.  [auto]",
    ),
    click.option(
        "--noise-variance",
        type=click.FloatRange(0, min_open=True),
        metavar="N",
        help="krr: of predict --std.  [default: estimated]",
    ),
    click.option("--intercept/--no-intercept", default=None, help="Fit an intercept.  [default: for numbers, xnv]"),
    click.option(
        "--class-weight",
        type=click.Choice(["balanced"]),
        metavar="WORD",
        help="balanced: equal total weight per class.",
    ),
    click.option("--probability", is_flag=True, default=None, help="Calibrate class probabilities, by one more sweep."),
    transform_option,
    click.option(
        "--dtype",
        type=click.Choice(["auto", "float32", "float64"]),
        default="auto",
        metavar="NAME",
        help="auto, float32 or float64.  [default: auto]",
    ),
    click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Seed of random choices."),
)


_LEAVES = (
    click.option("--time-limit", type=click.FloatRange(0), metavar="S", help="Seconds of tabular.  [default: 240]"),
    click.option("--leaves", type=click.IntRange(1), metavar="N", help="Models and metrics of N parts of the space."),
    click.option("--posterior", is_flag=True, help="Leaves of numbers keep what predict --std needs."),
)


def _model_options(*, grid: bool) -> Decorator:
    """Return the options of a fit; with `grid` bandwidths, penalties and components take several values."""
    width = Numbers(*WIDTHS, several=grid)
    defaults = (
        ", or cv: chosen by the fit on held-out folds; gcv: from the sums of all rows.  [krr, ridge: 1; sssl: 0.1, "
        "numbers 0.4; xnv: 0.001; artl: 0.1]"
    )
    return together(
        _METHOD,
        click.option(
            "--sigma",
            type=width,
            metavar="NUMBER",
            help="Width of gaussian, matern, laplacian; scale: by the variance of d features; auto: by d.  "
            "[default: scale]",
        ),
        click.option(
            "--gamma",
            type=width,
            metavar="NUMBER",
            help="Of polynomial, sigmoid, laplacian (1/sigma): a number, scale or auto (1/d).  [default: scale]",
        ),
        click.option("--degree", type=click.IntRange(1), default=3, metavar="N", help="Of polynomial.  [default: 3]"),
        click.option(
            "--nu", type=click.Choice(["0.5", "1.5", "2.5"]), default="1.5", help="Of matern.  [default: 1.5]"
        ),
        click.option(
            "--alpha",
            type=Numbers("cv", "gcv", several=grid),
            default="1e-6:1e2:20" if grid else None,
            show_default=grid,
            help=f"Ridge penalty{'; cv: each fold takes it from the others.' if grid else defaults}",
        ),
        click.option(
            "--components",
            type=Numbers(whole=True) if grid else click.IntRange(1),
            metavar="N",
            help="Components of sssl.  [default: 120]",
        ),
        click.option(
            "--manifold",
            type=click.FloatRange(0),
            metavar="NUMBER",
            help="Weight of the graph of rows in sssl and artl; 0: none.  [sssl: 3, numbers by gcv; artl: 1]",
        ),
        *(() if grid else _LEAVES),
        _REST,
    )


model_options = _model_options(grid=False)
grid_options = _model_options(grid=True)
