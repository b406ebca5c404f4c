"""Estimators from the options of a command: one with its kernel and penalties, or a grid of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.pipeline import Pipeline

from bigkernel import estimators
from bigkernel.cli.options import say
from bigkernel.cli.transforms import read, steps
from bigkernel.data.corpus import Corpus, open_corpus, require_columns
from bigkernel.data.readers import is_table_file
from bigkernel.data.readers.stores import is_url, naming, open_store, shown
from bigkernel.data.table import TableEncoding
from bigkernel.data.zarr_arrays import kind_of
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators.base import last_step
from bigkernel.estimators.evaluation import whole
from bigkernel.estimators.inputs.checks import require_valid
from bigkernel.estimators.persistence import load_model
from bigkernel.estimators.tables.partitioned import leaf_metric
from bigkernel.kernels.algebra import Kernel
from bigkernel.kernels.functions import KERNELS
from bigkernel.models.file import is_model
from bigkernel.streaming.row_maps import TakeColumns

# for numbers, for classes
_KINDS: dict[str, tuple[Any, Any]] = {
    "krr": (estimators.KernelRidge, estimators.KernelRidgeClassifier),
    "sssl": (estimators.SSSL, estimators.SSSLClassifier),
    "xnv": (estimators.XNV, estimators.XNVClassifier),
    "artl": (None, estimators.ARTLClassifier),
    "ridge": (estimators.Ridge, estimators.Ridge),
    "linear": (estimators.LinearRegression, estimators.LinearRegression),
    "tabular": (estimators.TabularRegressor, estimators.TabularClassifier),
}
# option: the parameter that it sets, if given
_PARAMETERS = {
    "alpha": "alpha",
    "components": "n_components",
    "manifold": "manifold",
    "landmark_choice": "landmarks",
    "intercept": "fit_intercept",
    "solver": "solver",
    "noise_variance": "noise_variance",
    "class_weight": "class_weight",
    "probability": "probability",
    "time_limit": "time_limit",
}


def chosen_rows(corpus: Corpus, on_bad_rows: str, columns: Sequence[str] | None = None) -> Rows:
    """Return the rows of a corpus, with bad ones refused or skipped.

    `columns` are the names of the features of a model, if known: those of a corpus with names are matched by them.
    """
    rows = as_rows(corpus)
    rows = rows.skip_bad_rows() if on_bad_rows == "skip" else rows
    if corpus.info.encoding is not None:  # the model has the names of the table
        rows = replace(rows, feature_names=())
    names = rows.feature_names
    if columns is None or not len(columns) or not names or names == tuple(columns):
        return rows
    require_columns(corpus.path, names, columns, "the fit", corpus.info.target)
    if ignored := sorted(set(names) - set(columns)):
        shown = ", ".join(ignored[:20]) + ", …" * (len(ignored) > 20)
        say(f"{corpus.path}: ignored columns that the model does not have: {shown}", err=True)
    place = {name: position for position, name in enumerate(names)}
    taken = rows.map(TakeColumns(np.array([place[name] for name in columns])))
    return replace(taken, feature_names=tuple(columns))


def encoding_at(path: str) -> TableEncoding:
    """Return how a corpus, or a model that begins with `TableEncoder`, encodes tables."""
    if is_model(path):
        model: Any = whole(load_model(path))
        encoding: TableEncoding | None = model[0].encoding() if _has_encoder(model) else None
    else:
        encoding = open_corpus(path).info.encoding
    if encoding is None:
        raise DataError(f"{path}: expected a corpus or model of an encoded table; ingest its table with --encode")
    return encoding


def _has_encoder(model: Any) -> bool:
    return isinstance(model, Pipeline) and isinstance(model[0], estimators.TableEncoder)


def with_encoder(model: Any, corpus: Corpus) -> Any:
    """Return a model of the table that a corpus was made of, if it was encoded."""
    if corpus.info.encoding is None:
        return model
    steps = model.steps if isinstance(model, Pipeline) else [("model", model)]
    return Pipeline([("table", estimators.TableEncoder.of(corpus.info.encoding)), *steps])


def without_encoder(model: Any, corpus: Corpus) -> Any:
    """Return a model of the rows of a corpus, which were encoded as the model encodes tables."""
    if not _has_encoder(model):
        return model
    if corpus.info.encoding != model[0].encoding():
        raise DataError(
            f"{corpus.path}: was not encoded as the model does it; ingest its table with --encode-as MODEL, or predict "
            "the table itself: bigkernel predict MODEL TABLE OUT"
        )
    return model[1:] if len(model) > 2 else model[-1]


def encoding_for(path: str, model: Any) -> TableEncoding | None:
    """Return how a model encodes tables, None for a corpus; `DataError` for a table and a model of numbers."""
    if not is_table_file(path):
        return None
    if not _has_encoder(model):
        raise DataError(f"{path}: expected a corpus, as the model begins with no TableEncoder; ingest the table first")
    encoding: TableEncoding = model[0].encoding()
    return encoding


def is_dataset(path: str) -> bool:
    """Return whether a path is a file, a group or a URL that xarray opens, and no corpus."""
    if is_url(path):
        return True
    place = Path(path)
    if place.is_file():
        return place.suffix in (".nc", ".nc4", ".cdf", ".h5")
    return any((place / name).is_file() for name in ("zarr.json", ".zgroup")) and kind_of(path) is None


def open_dataset(path: str) -> Any:
    """Open a NetCDF file, or a zarr group, also at a URL, with xarray, lazily."""
    try:
        import xarray
    except ImportError as error:
        raise ConfigError(f"{path}: reading it needs xarray: pip install xarray") from error
    if is_url(path):
        with naming(shown(path), "its metadata"):
            return xarray.open_zarr(open_store(path))
    try:
        if Path(path).is_dir():
            return xarray.open_dataset(path, chunks={}, engine="zarr", consolidated=False)
        return xarray.open_dataset(path, chunks={})
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {' '.join(str(error).split())}") from error


def build(corpus: Corpus, options: dict[str, Any]) -> Any:
    """Return the estimator (in a Pipeline, if there are transforms) that the options describe."""
    method, classes = options["method"], corpus.info.classes
    advice = "leave it out" + ", or pass another --method, such as krr" * (method == "tabular")
    if "y" not in corpus.columns:
        raise DataError(f"{corpus.path}: expected labels y to fit, found none")
    kind = _KINDS[method][bool(classes)]
    if kind is None:
        raise ConfigError(f"--method {method}: expected classes, but {corpus.path} holds numbers; use krr, sssl or xnv")
    if method in ("ridge", "linear") and any(isinstance(label, str) for label in classes):
        raise DataError(f"{corpus.path}: expected numbers to regress on, found text labels")
    estimator = kind()
    known = estimator.get_params()
    # two views of as many landmarks each; centres of several rows each
    most = max(1, corpus.n_rows // 2) if method in ("xnv", "sssl") else corpus.n_rows
    given: dict[str, Any] = {"dtype": options["dtype"], "random_state": options["seed"]}
    default = {"sssl": 500, "xnv": 200}.get(method, 1000)  # as of the estimators
    given["n_landmarks"] = min(default, most) if options["landmarks"] is None else options["landmarks"]
    if method != "artl" or _has_width(options):  # otherwise its bandwidth comes from the landmarks
        given["kernel"] = _kernel(options)
    asked = {"landmarks": "n_landmarks", "sigma": "kernel", "gamma": "kernel", "leaves": "kernel"}
    for option, name in asked.items():
        if options.get(option) is not None and name not in known:
            raise ConfigError(f"--{option}: not used by {method}; {advice}")
    if options.get("posterior") and not options.get("leaves"):
        raise ConfigError("--posterior: is of leaves; give --leaves too, or leave it out")
    given = {name: value for name, value in given.items() if name in known}
    for option, name in _PARAMETERS.items():
        if options.get(option) is not None:
            if name not in known:
                what = method if classes else f"{method} of numbers"
                raise ConfigError(f"--{option.replace('_', '-')}: not used by {what}; {advice}")
            given[name] = options[option]
    estimator.set_params(**given)
    require_valid(estimator, f"--method {method}")
    before = steps(options["transforms"], corpus)
    if leaves := options.get("leaves"):
        # learned in every leaf, as by default
        given = dict(map(read, options["transforms"]))
        inner = [("metric", leaf_metric().set_params(**given["metric"]))] if "metric" in given else []
        before = [step for step in before if step[0] != "metric"]
        leaf = Pipeline([*inner, ("model", estimator)]) if inner else estimator
        kind = (estimators.PartitionedRegressor, estimators.PartitionedClassifier)[is_classifier(estimator)]
        kept: dict[str, Any] = {"posterior": True} if options["posterior"] and not is_classifier(estimator) else {}
        estimator = kind(leaf, leaves, random_state=options["seed"], **kept)
    return Pipeline([*before, ("model", estimator)]) if before else estimator


def _has_width(options: dict[str, Any]) -> bool:
    """Return True if a kernel was chosen, or a bandwidth of the default one."""
    return options["kernel"] != "gaussian" or options["sigma"] is not None


def _kernel(options: dict[str, Any]) -> Kernel:
    name = options["kernel"]
    taken = {
        "gaussian": {"sigma": "sigma"},
        "matern": {"sigma": "sigma", "nu": "nu"},
        "laplacian": {"sigma": "sigma", "gamma": "gamma"},
        "polynomial": {"gamma": "gamma", "degree": "degree"},
        "sigmoid": {"gamma": "gamma"},
    }.get(name, {})
    for width in ("sigma", "gamma"):
        if options[width] is not None and width not in taken.values():
            raise ConfigError(f"--{width}: not used by the {name} kernel; leave it out")
    given = {key: options[option] for key, option in taken.items() if options[option] is not None}
    return KERNELS[name](**given | ({"nu": float(given["nu"])} if "nu" in given else {}))


def build_grid(corpus: Corpus, options: dict[str, Any]) -> tuple[Any, dict[str, list[Any]]]:
    """Return the estimator of the first values of options with several, and the grid of all of them."""
    if options["method"] in ("linear", "tabular"):
        raise ConfigError(f"--method {options['method']}: has no parameter to tune; use bigkernel fit")
    several = {name: options[name] for name in ("sigma", "gamma", "alpha", "components") if options[name] is not None}
    first = {**options, **{name: values[0] for name, values in several.items()}}
    model = build(corpus, first)
    grid = {_PARAMETERS[name]: list(several[name]) for name in ("alpha", "components") if name in several}
    if "kernel" in last_step(model).get_params() and (options["method"] != "artl" or _has_width(options)):
        width = "sigma" if "sigma" in several else "gamma"
        grid["kernel"] = [_kernel({**first, width: value}) for value in several.get(width, (None,))]
    prefix = "model__" if isinstance(model, Pipeline) else ""
    return model, {f"{prefix}{name}": values for name, values in grid.items()}
