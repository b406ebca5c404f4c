"""What the options of a command describe: a method, its kernel and penalties, as an estimator; or a grid of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import numpy as np
from sklearn.pipeline import Pipeline

from bigkernel.corpus import Corpus
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators import (
    SSSL,
    KernelRidge,
    KernelRidgeClassifier,
    LinearRegression,
    Rescaler,
    Ridge,
    SSSLClassifier,
    Standardizer,
    UnitNormalizer,
)
from bigkernel.kernels import KERNELS, Kernel
from bigkernel.rows import Rows, as_rows

_METHODS = {
    "krr": "kernel ridge regression on Nyström landmarks",
    "sssl": "semi-supervised: ridge on the leading eigenfunctions of all rows",
    "ridge": "linear ridge regression",
    "linear": "least squares",
}


class Numbers(click.ParamType):
    """Numbers of a grid: "0.5", "0.3,1,3", or "0.3:3:10" for ten from 0.3 to 3 in equal ratios; a tuple."""

    name = "numbers"

    def __init__(self, *, whole: bool = False) -> None:
        self.whole = whole

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        """See `click.ParamType`."""
        if isinstance(value, tuple):
            return value
        try:
            parts = str(value).split(":")
            if len(parts) == 1:
                numbers = [float(part) for part in value.split(",")]
            else:
                first, last, count = float(parts[0]), float(parts[1]), int(parts[2])
                if len(parts) > 3 or not (0 < first < np.inf and 0 < last < np.inf) or not 2 <= count <= 10_000:
                    raise ValueError
                numbers = np.geomspace(first, last, count).tolist()
        except (ValueError, IndexError):
            self.fail(
                f"{value!r}: expected a number, numbers with commas between, or FIRST:LAST:COUNT (in equal ratios, "
                "both above 0)",
                param,
                ctx,
            )
        if self.whole:
            numbers = sorted({round(number) for number in numbers})
            if numbers[0] < 1:
                self.fail(f"{value!r}: expected whole numbers of at least 1", param, ctx)
        return tuple(numbers)


class Penalty(click.ParamType):
    """A penalty: a number, or "gcv"."""

    name = "number|gcv"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        """See `click.ParamType`."""
        if value == "gcv":
            return str(value)
        try:
            return float(value)
        except ValueError:
            self.fail(f"{value!r}: expected a number or gcv", param, ctx)


def model_options(function: Callable[..., Any], *, grid: bool = False) -> Callable[..., Any]:
    """What is fitted: method, kernel, landmarks, penalties, transforms; with `grid`, several values of some."""
    number: Any = Numbers() if grid else float
    for option in reversed(
        (
            click.option(
                "--method",
                type=click.Choice(list(_METHODS)),
                default="krr",
                show_default=True,
                help="; ".join(f"{name}: {text}" for name, text in _METHODS.items()) + ".",
            ),
            click.option(
                "--landmarks", type=click.IntRange(1), help="m, for krr and sssl.  [default: 1000 or all rows]"
            ),
            click.option("--kernel", type=click.Choice(list(KERNELS)), default="gaussian", show_default=True),
            click.option("--sigma", type=number, help="Bandwidth of gaussian, length of matern  [from the data]."),
            click.option("--gamma", type=number, help="Of laplacian, polynomial, sigmoid  [from the data]."),
            click.option("--degree", type=click.IntRange(1), default=3, show_default=True, help="Of polynomial."),
            click.option("--coef0", type=float, default=1.0, show_default=True, help="Of polynomial and sigmoid."),
            click.option(
                "--nu", type=click.Choice(["0.5", "1.5", "2.5"]), default="1.5", show_default=True, help="Of matern."
            ),
            click.option(
                "--alpha",
                type=Numbers() if grid else Penalty(),
                default="1e-6:1e2:20" if grid else None,
                show_default=grid,
                help="Ridge penalty."
                if grid
                else "Ridge penalty, or gcv: chosen from the statistics of the fit  [krr, ridge: 1; sssl: 0.4].",
            ),
            click.option(
                "--components",
                type=Numbers(whole=True) if grid else click.IntRange(1),
                default="120" if grid else 120,
                show_default=True,
                help="s, of sssl.",
            ),
            click.option(
                "--eigenfunctions",
                type=click.Choice(["all", "landmarks"]),
                default="all",
                show_default=True,
                help="Of sssl.",
            ),
            click.option("--intercept", is_flag=True, help="Fit an intercept (krr; ridge and linear always do)."),
            click.option(
                "--transform",
                "transforms",
                multiple=True,
                type=click.Choice(["scale", "unit-norm", "standardize"]),
                help="Row transform, kept with the model; may be given several times, in order. scale divides by the "
                "corpus's own scale.",
            ),
            click.option(
                "--task",
                type=click.Choice(["auto", "classify", "regress"]),
                default="auto",
                show_default=True,
                help="auto: classify where the corpus has classes.",
            ),
            click.option(
                "--dtype", type=click.Choice(["auto", "float32", "float64"]), default="auto", show_default=True
            ),
            click.option("--seed", type=int, default=0, show_default=True, help="Of the draw of landmarks."),
        )
    ):
        function = option(function)
    return function


def bad_rows_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--on-bad-rows."""
    return click.option(
        "--on-bad-rows",
        type=click.Choice(["refuse", "skip"]),
        default="refuse",
        show_default=True,
        help="Rows with NaN or infinity, or an infinite target or weight: end with an error that names the first ones, "
        "or leave them out and count them.",
    )(function)


def chosen_rows(corpus: Corpus, on_bad_rows: str) -> Rows:
    """The rows of a corpus, the bad ones to be refused or skipped."""
    rows = as_rows(corpus)
    return rows.skip_bad_rows() if on_bad_rows == "skip" else rows


def build(corpus: Corpus, options: dict[str, Any]) -> Any:
    """The estimator (in a Pipeline, where there are transforms) that the options describe."""
    task = options["task"]
    if task == "auto":
        classify = bool(corpus.info.classes) and options["method"] in ("krr", "sssl")
    else:
        classify = task == "classify"
    if "y" not in corpus.columns:
        raise DataError(f"{corpus.path}: has no labels y; nothing can be fitted to it")
    estimator = _estimator(corpus, options, classify)
    made = {
        "scale": lambda: Rescaler(1 / corpus.info.scale),
        "unit-norm": UnitNormalizer,
        "standardize": Standardizer,
    }
    steps: list[tuple[str, Any]] = [(name, made[name]()) for name in options["transforms"]]
    if len({name for name, _ in steps}) < len(steps):
        raise ConfigError("--transform: each may be given once")
    return Pipeline([*steps, ("model", estimator)]) if steps else estimator


def _estimator(corpus: Corpus, options: dict[str, Any], classify: bool) -> Any:
    method = options["method"]
    if method in ("ridge", "linear"):
        if classify:
            raise ConfigError(f"--method {method} regresses on numbers; use krr or sssl to classify")
        if any(isinstance(label, str) for label in corpus.info.classes):
            raise DataError(f"{corpus.path}: its labels are text, there are no numbers to regress on")
        return LinearRegression() if method == "linear" else Ridge(alpha=_or(options["alpha"], 1.0))
    common = {
        "kernel": _kernel(options),
        "n_landmarks": _or(options["landmarks"], min(1000, corpus.n_rows)),
        "dtype": options["dtype"],
        "random_state": options["seed"],
    }
    if method == "krr":
        kind: Any = KernelRidgeClassifier if classify else KernelRidge
        return kind(alpha=_or(options["alpha"], 1.0), fit_intercept=options["intercept"], **common)
    if options["intercept"]:
        raise ConfigError("--intercept: sssl has none")
    kind = SSSLClassifier if classify else SSSL
    return kind(
        alpha=_or(options["alpha"], 0.4),
        n_components=options["components"],
        eigenfunctions=options["eigenfunctions"],
        **common,
    )


def _kernel(options: dict[str, Any]) -> Kernel:
    name = options["kernel"]
    taken: dict[str, dict[str, Any]] = {
        "gaussian": {"sigma": options["sigma"]},
        "matern": {"length_scale": options["sigma"], "nu": float(options["nu"])},
        "laplacian": {"gamma": options["gamma"]},
        "polynomial": {"gamma": options["gamma"], "degree": options["degree"], "coef0": options["coef0"]},
        "sigmoid": {"gamma": options["gamma"], "coef0": options["coef0"]},
    }
    params = taken.get(name, {})
    for width in ("sigma", "gamma"):
        used = {"sigma": ("gaussian", "matern"), "gamma": ("laplacian", "polynomial", "sigmoid")}[width]
        if options[width] is not None and name not in used:
            raise ConfigError(f"--{width}: the {name} kernel has none")
    return KERNELS[name](**{key: value for key, value in params.items() if value is not None})


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def build_grid(corpus: Corpus, options: dict[str, Any]) -> tuple[Any, dict[str, list[Any]]]:
    """The estimator of the first values of options that hold several, and the grid of all of them."""
    several = {name: options[name] for name in ("sigma", "gamma", "alpha", "components") if options[name] is not None}
    first = {name: values[0] for name, values in several.items()}
    model = build(corpus, {**options, **first})
    grid: dict[str, list[Any]] = {"alpha": list(several["alpha"])}
    if options["method"] == "linear":
        raise ConfigError("--method linear: it has nothing to tune")
    if options["method"] != "ridge":
        widths = [name for name in ("sigma", "gamma") if name in several]
        values = [{**options, **first, widths[0]: width} for width in several[widths[0]]] if widths else [options]
        grid["kernel"] = [_kernel(one) for one in values]
    if options["method"] == "sssl":
        grid["n_components"] = list(several["components"])
    prefix = "model__" if isinstance(model, Pipeline) else ""
    return model, {f"{prefix}{name}": values for name, values in grid.items()}
