"""Estimators from the options of a command: a method with its kernel and penalties, or a grid of them."""

from __future__ import annotations

from typing import Any

from sklearn.pipeline import Pipeline

from bigkernel.cli.transforms import steps
from bigkernel.data.corpus import Corpus
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators import (
    SSSL,
    XNV,
    ARTLClassifier,
    KernelRidge,
    KernelRidgeClassifier,
    LinearRegression,
    Ridge,
    SSSLClassifier,
    XNVClassifier,
)
from bigkernel.kernels.algebra import Kernel
from bigkernel.kernels.functions import KERNELS


def chosen_rows(corpus: Corpus, on_bad_rows: str) -> Rows:
    """The rows of a corpus, the bad ones to be refused or skipped."""
    rows = as_rows(corpus)
    return rows.skip_bad_rows() if on_bad_rows == "skip" else rows


def build(corpus: Corpus, options: dict[str, Any]) -> Any:
    """The estimator (in a Pipeline, where there are transforms) that the options describe."""
    task = options["task"]
    if task == "auto":
        classify = bool(corpus.info.classes) and options["method"] not in ("ridge", "linear")
    else:
        classify = task == "classify"
    if "y" not in corpus.columns:
        raise DataError(f"{corpus.path}: has no labels y; nothing can be fitted to it")
    of_classes = {name: options.get(name) for name in ("class_weight", "probability") if options.get(name)}
    if of_classes and (not classify or options["method"] in ("ridge", "linear")):
        raise ConfigError(f"--{next(iter(of_classes)).replace('_', '-')}: it is for classes, and this fits numbers")
    estimator = _of_method(corpus, options, classify).set_params(**of_classes)
    before = steps(options["transforms"], corpus, options["seed"])
    return Pipeline([*before, ("model", estimator)]) if before else estimator


def _of_method(corpus: Corpus, options: dict[str, Any], classify: bool) -> Any:
    method = options["method"]
    solver = {"solver": options.get("solver", "auto"), "tol": options.get("tol", 1e-3)}
    if solver["solver"] == "cg" and method != "krr":
        raise ConfigError(f"--solver cg: {method} is solved directly; cg is for --method krr")
    if method in ("ridge", "linear"):
        if classify:
            raise ConfigError(f"--method {method} regresses on numbers; use krr, sssl or xnv to classify")
        if any(isinstance(label, str) for label in corpus.info.classes):
            raise DataError(f"{corpus.path}: its labels are text, there are no numbers to regress on")
        return LinearRegression() if method == "linear" else Ridge(alpha=_or(options["alpha"], 1.0))
    common = _common(corpus, options, centres=method == "artl")
    if method == "krr":
        kind: Any = KernelRidgeClassifier if classify else KernelRidge
        return kind(alpha=_or(options["alpha"], 1.0), fit_intercept=options["intercept"], **solver, **common)
    if options["intercept"]:
        raise ConfigError(f"--intercept: {_INTERCEPTS[method]}")
    if method in _INTERCEPTS and method != "sssl" and options["alpha"] == "gcv":
        raise ConfigError(f"--alpha gcv: {method} is not ridge alone; give a number")
    if method == "xnv":
        # two views of as many landmarks each
        common["n_landmarks"] = min(common["n_landmarks"], max(1, corpus.n_rows // 2))
        return (XNVClassifier if classify else XNV)(alpha=_or(options["alpha"], 1e-3), **common)
    if method == "artl":
        if not classify:
            raise ConfigError("--method artl classifies; use krr, sssl or xnv to regress on numbers")
        width = {} if _has_width(options) else {"kernel": "rbf", "gamma": "median"}
        return ARTLClassifier(alpha=_or(options["alpha"], 0.1), n_rounds=options["rounds"], **common | width)
    kind = SSSLClassifier if classify else SSSL
    return kind(alpha=_or(options["alpha"], 0.4), n_components=options["components"], **common)


_INTERCEPTS = {"sssl": "sssl has none", "xnv": "xnv always has one", "artl": "artl has none"}


def _common(corpus: Corpus, options: dict[str, Any], *, centres: bool = False) -> dict[str, Any]:
    """Return the parameters that all kernel methods are given; `centres`: landmarks are these where nothing is said."""
    return {
        "kernel": _kernel(options),
        "n_landmarks": _or(options["landmarks"], min(1000, corpus.n_rows)),
        "landmarks": _or(options["landmark_choice"], "k-means" if centres else "uniform"),
        "dtype": options["dtype"],
        "random_state": options["seed"],
    }


def _has_width(options: dict[str, Any]) -> bool:
    """Tell if a kernel was chosen, or a bandwidth of the default one."""
    return options["kernel"] != "gaussian" or options["sigma"] is not None


def _kernel(options: dict[str, Any]) -> Kernel:
    name = options["kernel"]
    taken = {
        "gaussian": {"sigma": "sigma"},
        "matern": {"length_scale": "sigma", "nu": "nu"},
        "laplacian": {"gamma": "gamma"},
        "polynomial": {"gamma": "gamma", "degree": "degree"},
        "sigmoid": {"gamma": "gamma"},
    }.get(name, {})
    for width in ("sigma", "gamma"):
        if options[width] is not None and width not in taken.values():
            raise ConfigError(f"--{width}: the {name} kernel has none")
    given = {key: options[option] for key, option in taken.items() if options[option] is not None}
    return KERNELS[name](**given | ({"nu": float(given["nu"])} if "nu" in given else {}))


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
        if options["method"] != "artl" or _has_width(options):  # whose own comes from the landmarks
            grid["kernel"] = [_kernel(one) for one in values]
    if options["method"] == "sssl":
        grid["n_components"] = list(several["components"])
    prefix = "model__" if isinstance(model, Pipeline) else ""
    return model, {f"{prefix}{name}": values for name, values in grid.items()}
