"""Fitted estimators and Pipelines as one file: the class, parameters and fit, with all moments, of every step.

The fit of an estimator is a frozen dataclass, which is stored by its fields (`models.file`). A transformer is stored by
its fitted attributes, which a closed table lists. The file also holds the predictor of the model, for `Predictor.load`;
arrays that it shares with the fit are stored once.
Reading runs no code of the file: names are looked up in closed tables.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from numbers import Integral
from typing import Any, get_args

import numpy as np
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from bigkernel import estimators
from bigkernel.data.visible import log_of
from bigkernel.errors import ConfigError, DataError, ModelRejectedError
from bigkernel.estimators.adaptation.labelled_rows import LabelledRowsClassifier
from bigkernel.estimators.base import last_step, restore
from bigkernel.estimators.fit import state as fit_state
from bigkernel.estimators.fit.basis import FourierBasis, LandmarkBasis, require_frequencies
from bigkernel.estimators.inputs.training import Inputs
from bigkernel.kernels.functions import SCALES, Gaussian, Matern
from bigkernel.models.file import LIMIT_BYTES, Contents, Packing, opened, require, unpack, write
from bigkernel.models.predictor import Predictor, require_blend
from bigkernel.models.predictor import kind_of as predictor_kind
from bigkernel.solvers.pseudo_labels import PseudoLabels
from bigkernel.solvers.residuals import VECTORS
from bigkernel.solvers.variogram import SMOOTHNESS, Correlation, Variogram
from bigkernel.statistics.predictor import Calibration

log = log_of(__name__)
_FITS = (
    fit_state.MomentFit,
    fit_state.ExactFit,
    fit_state.IterativeFit,
    fit_state.ProjectionFit,
    fit_state.BlendFit,
    fit_state.KrigingFit,
)
_SOLUTIONS = [
    kind for kind in vars(fit_state).values() if isinstance(kind, type) and issubclass(kind, fit_state.Solution)
]
_BASES = (LandmarkBasis, FourierBasis, fit_state.RowBasis)
_CLASSES: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (*_FITS, *_SOLUTIONS, *_BASES, Inputs, PseudoLabels, Calibration, Variogram, Correlation)
}
_NO_STEPS = ("passthrough", "drop")
_IMAGE = ("image_height_", "image_width_")
# fitted attributes of transformers that store them as scikit-learn does
_SPECTRUM = ("explained_variance_", "explained_variance_ratio_", "singular_values_")
_BY_FEATURE = (
    *("mean_", "scale_", "var_", "min_", "data_min_", "data_max_", "data_range_", "max_abs_", "center_", "variances_"),
    *("fourier_origin_", "feature_names_in_", "source_mean_"),
)
_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "Rescaler": (),
    "UnitNormalizer": (),
    "Standardizer": ("mean_", "scale_"),
    "OnSphere": ("columns_",),
    "Periodic": ("columns_", "periods_"),
    "Projector": ("mean_", "components_", "explained_variance_", "explained_variance_ratio_"),
    "CORAL": ("source_mean_", "source_components_", "source_domains_"),
    "SubspaceAlignment": ("mean_", "components_", "source_mean_", "source_components_", "source_domains_"),
    "RandomFourier": ("kernel_", "fourier_seed_", "fourier_origin_"),
    "MomentNormalizer": _IMAGE,
    "OrientationFeatures": _IMAGE,
    "RowUnion": (),
    "TableEncoder": ("columns_", "_target"),
    "LearnedMetric": ("weights_", "centre_", "kernel_", "penalty_", "rounds_", "n_iter_", "gain_", "gain_error_"),
    "TabularRegressor": ("candidates_", "ended_"),
    "TabularClassifier": ("candidates_", "ended_"),
    "sklearn.preprocessing.StandardScaler": ("mean_", "var_", "scale_", "n_samples_seen_"),
    "sklearn.preprocessing.MinMaxScaler": (
        "min_",
        "data_min_",
        "data_max_",
        "data_range_",
        "scale_",
        "n_samples_seen_",
    ),
    "sklearn.preprocessing.MaxAbsScaler": ("max_abs_", "scale_", "n_samples_seen_"),
    "sklearn.preprocessing.RobustScaler": ("center_", "scale_"),
    "sklearn.preprocessing.Normalizer": (),
    "sklearn.preprocessing.QuantileTransformer": ("n_quantiles_", "quantiles_", "references_"),
    "sklearn.decomposition.PCA": ("n_components_", "n_samples_", "components_", "mean_", *_SPECTRUM, "noise_variance_"),
    "sklearn.decomposition.TruncatedSVD": ("components_", *_SPECTRUM),
    "sklearn.feature_selection.VarianceThreshold": ("variances_",),
    "sklearn.preprocessing.FunctionTransformer": (),
    "sklearn.compose.TransformedTargetRegressor": ("_training_dim",),
}
_NAMED = ("steps", "estimators", "transformer_list")  # parameters that are lists of steps by name
_BLENDED = ("PartitionedRegressor", "PartitionedClassifier", "ResidualRegressor", "Kriging")
_COMMON = ("n_features_in_", "feature_names_in_", "_sklearn_output_config")
_INNER = ("regressor_", "transformer_", "model_")  # fitted
_ADVICE = "joblib.dump or skops.io.dump store any Pipeline, and such files must only be loaded from trusted sources"


def _name_of(step: Any) -> str | None:
    """Return the name of the class of a step in a file; None if it cannot be stored."""
    kind = type(step)
    name = kind.__name__
    if kind.__module__.startswith("sklearn."):
        name = f"sklearn.{kind.__module__.split('.')[1]}.{name}"
    return name if _class_of(name) is kind else None


def _class_of(name: str) -> type[BaseEstimator] | None:
    """Import and return the class of a name in a file; None if it is not in the closed tables."""
    module, _, kind = name.rpartition(".")
    if name in estimators.__all__ or (module and name in _ATTRIBUTES):
        step: type[BaseEstimator] = getattr(importlib.import_module(module) if module else estimators, kind)
        return step
    return None


def save_model(model: Any, path: str | os.PathLike[str], *, moments: bool = True, overwrite: bool = False) -> None:
    """Write a fitted estimator of bigkernel, or a Pipeline of them, to a file that appears complete or not at all.

    A Pipeline may begin with transformers of scikit-learn whose fit is numbers: StandardScaler, MinMaxScaler,
    MaxAbsScaler, RobustScaler, Normalizer, QuantileTransformer, PCA, TruncatedSVD, VarianceThreshold, and
    FunctionTransformer of a NumPy function; for tables with `TableEncoder`. A TransformedTargetRegressor is stored with
    transformers of these classes. Of a `LabelledRowsClassifier` the classifier is stored.

    Parameters
    ----------
    moments : bool
        False: write only the predictor, a small file for services that `load_model` does not read.

    Raises
    ------
    ConfigError
        A step or a parameter cannot be stored; without moments, the model needs more than NumPy.
    sklearn.exceptions.NotFittedError
    DataError
        `path` exists and `overwrite` is False, or it is inside a store, or cannot be written.
    PlanTooLargeError
        There is too little room on the disk.
    RunLockedError
        Another driver is writing it, such as a running `bigkernel fit`.

    Notes
    -----
    `Predictor.load` refuses some models that `load_model` reads, such as those with transformers of scikit-learn or
    kernels that need more than NumPy. This is logged as a warning, with the step.
    """
    last = last_step(model)
    if isinstance(last, LabelledRowsClassifier):
        check_is_fitted(last)
        inner = last.estimator_
        model = Pipeline([*model.steps[:-1], (model.steps[-1][0], inner)]) if isinstance(model, Pipeline) else inner
    packing = Packing(_kind_of)
    try:
        described = _pack_step(model, "model", packing) if moments else None
    except ConfigError as error:
        raise ConfigError(
            f"save_model: {str(error).removeprefix('save_model: ').removeprefix('model.')}; {_ADVICE}"
        ) from None
    fault = ""
    try:
        predictor = Predictor.of(model).packed(packing)
    except ConfigError as error:
        if not moments:
            raise
        predictor, fault = {"refused": str(error)}, str(error).removeprefix("predictor: ").partition("; use")[0]
    write(path, {"predictor": predictor, "model": described}, packing.arrays, overwrite=overwrite)
    if fault and hasattr(model, "predict"):
        log.warning("%s: Predictor.load refuses this model, use load_model: %s", path, fault)


def load_model(path: str | os.PathLike[str], *, limit_bytes: int = LIMIT_BYTES) -> Any:
    """Load the estimator or Pipeline of a model file.

    Raises
    ------
    ModelRejectedError
        The file is damaged, has another format, names an unknown class, or has arrays of more than `limit_bytes`.
    DataError
        There is no file at `path`, or it holds only a predictor.
    """
    model = check_model(path, limit_bytes=limit_bytes)
    if model is None:
        raise DataError(
            f"{os.fspath(path)}: saved without moments, for Predictor.load only; save the model with moments"
        )
    return model


def check_model(path: str | os.PathLike[str], *, limit_bytes: int = LIMIT_BYTES) -> Any:
    """Read all of a model file; None if it holds only a predictor. Raises as `load_model`."""
    with opened(path, limit_bytes=limit_bytes) as contents:
        said = contents.values
        require(set(said) == {"predictor", "model"}, "expected a file with a predictor and a model")
        if set(said["predictor"]) != {"refused"}:
            Predictor.unpacked(said["predictor"], contents)
        model = None if said["model"] is None else _unpack_step(said["model"], contents)
        if unknown := sorted(set(contents.entries) - set(contents.read)):
            raise ModelRejectedError(f"unknown array {unknown[0]!r}")
    return model


def _kind_of(name: str) -> type[Any] | None:
    return _CLASSES.get(name) or predictor_kind(name)


def _pack_step(step: Any, path: str, packing: Packing) -> dict[str, Any]:
    """Return the description of a fitted step or a Pipeline for a file."""
    if isinstance(step, Pipeline):
        return {"steps": _pack_named(step.steps, path, packing)}
    if step is None or isinstance(step, str):
        return {"class": step or "passthrough"}
    name = _name_of(step)
    if name is None:
        stored = ", ".join(known.rpartition(".")[2] for known in _ATTRIBUTES if "." in known)
        raise ConfigError(
            f"expected an estimator of bigkernel (for tables TableEncoder) or one of {stored}, and no subclass, found "
            f"{type(step).__name__}"
        )
    check_is_fitted(step, "n_features_in_" if "." in name else None)
    own = f"{path}.{type(step).__name__}"
    params = {key: packing.pack(value, f"{own}.{key}") for key, value in _params(step).items()}
    if name in _ATTRIBUTES:
        fit = {name: getattr(step, name) for name in (*_COMMON, *_ATTRIBUTES[name]) if hasattr(step, name)}
    else:
        fit = step._fitted
    inner: list[tuple[str, Any]] = []
    if name == "RowUnion":
        labels = [label for label, _ in step.transformer_list]
        inner = list(zip(labels, step.transformers_, strict=True))
    else:
        inner = [(one, getattr(step, one)) for one in _INNER if getattr(step, one, None) is not None]
    said = {"class": name, "params": params, "fitted": packing.pack(fit, path)}
    if type(step).__name__ in _BLENDED:
        said["unfitted"] = _pack_unfitted(step, f"{path}.unfitted", packing)
    return {**said, "inner": _pack_named(inner, path, packing)} if inner else said


def _pack_unfitted(step: Any, path: str, packing: Packing) -> Any:
    """Return the description of a model before its fit: classes and parameters, and models inside."""
    if step is None or isinstance(step, str):
        return {"class": step}
    if (name := _name_of(step)) is None and not isinstance(step, Pipeline):
        raise ConfigError(f"expected an estimator of bigkernel, found {type(step).__name__}")
    params, models = {}, {}
    for key, value in step.get_params(deep=False).items():
        own = f"{path}.{type(step).__name__}.{key}"
        if isinstance(value, BaseEstimator):
            models[key] = _pack_unfitted(value, own, packing)
        elif key in _NAMED:
            models[key] = [[label, _pack_unfitted(one, own, packing)] for label, one in value]
        else:
            drawn = key == "random_state" and not isinstance(value, Integral)
            params[key] = packing.pack(None if drawn else value, own)
    return {"class": name or "Pipeline", "params": params, "models": models}


def _unpack_unfitted(said: Any, contents: Contents) -> Any:
    """Return the model that `_pack_unfitted` described."""
    if set(said) == {"class"}:
        require(said["class"] in (None, *_NO_STEPS), f"unknown class {said['class']!r}")
        return said["class"]
    kind = Pipeline if said["class"] == "Pipeline" else _class_of(said["class"])
    require(kind is not None, f"unknown class {said['class']!r}")
    assert kind is not None
    params = {str(key): unpack(value, _kind_of, contents) for key, value in said["params"].items()}
    for key, value in said["models"].items():
        several = isinstance(value, list)
        named = [(label, _unpack_unfitted(one, contents)) for label, one in value] if several else None
        params[key] = _unpack_unfitted(value, contents) if named is None else named
    wrong = sorted(set(params) ^ set(kind._get_param_names()))
    require(not wrong, f"{kind.__name__}: parameters {wrong} are unknown or missing")
    return kind(**params)


def _pack_named(steps: list[tuple[str, Any]], path: str, packing: Packing) -> list[list[Any]]:
    """Return the descriptions of steps by name; a `ConfigError` names the step that cannot be stored."""
    packed = []
    for i, (label, step) in enumerate(steps):
        try:
            packed.append([label, _pack_step(step, f"{path}.{i}", packing)])
        except ConfigError as error:
            fault = str(error).removeprefix("save_model: ").removeprefix(f"{path}.{i}.")
            raise ConfigError(f"step {label!r}: {fault}") from None
    return packed


def _params(step: BaseEstimator) -> dict[str, Any]:
    """Return the parameters to store."""
    params: dict[str, Any] = step.get_params(deep=False)
    for name in ("transformer_list", "estimators", "estimator"):
        params.pop(name, None)  # the fitted ones are stored, or all parameters are beside
    for name in ("regressor", "transformer"):
        if params.get(name) is not None:
            params[name] = "given"
    if not isinstance(params.get("landmarks", ""), str):
        params["landmarks"] = "given"  # they are stored with the fit
    seed = params.get("random_state")
    if "random_state" in params:
        params["random_state"] = int(seed) if isinstance(seed, Integral) else None  # the draw is over
    return params


def _unpack_step(said: Mapping[str, Any], contents: Contents) -> Any:
    """Return the step or Pipeline that `_pack_step` described."""
    if set(said) == {"steps"}:
        return Pipeline(_unpack_named(said["steps"], contents))
    name = said["class"]
    if name in _NO_STEPS:
        return name
    kind = _class_of(name)
    if kind is None:
        raise ModelRejectedError(f"unknown class {name!r}")
    params = {str(key): unpack(value, _kind_of, contents) for key, value in said["params"].items()}
    named = _unpack_named(said["inner"], contents) if "inner" in said else []
    if name == "RowUnion":
        params["transformer_list"] = [(label, clone(one)) for label, one in named]
    if name == "sklearn.compose.TransformedTargetRegressor":
        fits = dict(named)
        params |= {one: clone(fits[f"{one}_"]) for one in ("regressor", "transformer") if params[one] is not None}
    if "unfitted" in said:
        params = _unpack_unfitted(said["unfitted"], contents).get_params(deep=False)
    wrong = sorted(set(params) ^ set(kind._get_param_names()))
    require(not wrong, f"{kind.__name__}: parameters {wrong} are unknown or missing")
    fitted = unpack(said["fitted"], _kind_of, contents)
    if params.get("landmarks") == "given":
        params["landmarks"] = fitted.basis.landmarks
    step = kind(**params)
    step._validate_params()
    if name in _ATTRIBUTES:
        _set_attributes(step, name, fitted, named)
    else:
        require(isinstance(fitted, _FITS), f"{kind.__name__}: expected a fit, found {type(fitted).__name__}")
        blended = isinstance(fitted, fit_state.BlendFit)
        require(blended == (kind.__name__ in _BLENDED), f"{kind.__name__}: expected another fit")
        (_require_blend if blended else _require_fit)(step, fitted)
        restore(step, fitted.inputs, fitted)
    return step


def _unpack_named(said: Any, contents: Contents) -> list[tuple[str, Any]]:
    """Return steps by name."""
    steps = [(name, _unpack_step(one, contents)) for name, one in said]
    names = [name for name, _ in steps]
    different = names and all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
    require(different, f"expected distinct step names, found {names}")
    return steps


def _set_attributes(step: Any, kind: str, fitted: Any, named: list[tuple[str, Any]]) -> None:
    """Set the fitted attributes of a transformer, whose shapes must fit its number of features."""
    known = {*_COMMON, *_ATTRIBUTES[kind]}
    if not isinstance(fitted, dict) or not set(fitted) <= known:
        raise ModelRejectedError(f"{kind}: unknown fitted values {sorted(set(fitted) - known)}")
    d, r, q = fitted["n_features_in_"], *(len(fitted.get(name, ())) for name in ("components_", "references_"))
    shapes: dict[str, tuple[int, ...]] = {**dict.fromkeys(_BY_FEATURE, (d,)), **dict.fromkeys(_SPECTRUM, (r,))}
    shapes |= {"components_": (r, d), "references_": (q,), "quantiles_": (q, d)}
    shapes["source_components_"] = (r if "components_" in fitted else d, d)
    _require_shapes(kind, {name: (fitted.get(name), shape) for name, shape in shapes.items()})
    outputs = {*fitted.get("_sklearn_output_config", {}).values()}
    require(outputs <= {"default", "pandas", "polars"}, f"{kind}: unknown output {sorted(outputs)}")
    for name, value in fitted.items():
        if not isinstance(getattr(type(step), name, None), property):
            setattr(step, name, value)
    if kind == "RandomFourier":
        require_frequencies(kind, d, int(step.n_components))
    if kind == "RowUnion":
        step.transformers_ = [one for _, one in named]
        fits = all(one.n_features_in_ == d for one in step.transformers_)
        require(bool(named) and fits, f"{kind}: expected steps of {d} features")
    else:
        inner = {"model_"} if "candidates_" in known else {*_INNER} - {"model_"}
        require({label for label, _ in named} <= inner, f"{kind}: unknown steps")
        vars(step).update(named)
    if kind in ("TabularRegressor", "TabularClassifier"):
        model: Any = getattr(step, "model_", None)
        require({*fitted} >= {*_ATTRIBUTES[kind]}, f"{kind}: expected {', '.join(_ATTRIBUTES[kind])}")
        same = isinstance(model, Pipeline) and is_classifier(model) == is_classifier(step)
        require(same and model.n_features_in_ == d, f"{kind}: expected a model of {d} features")
        require(sum(line["chosen"] is True for line in step.candidates_) == 1, f"{kind}: expected one chosen candidate")
    if kind == "LearnedMetric":
        whole = {*fitted} >= {*_ATTRIBUTES[kind]} and isinstance(step.kernel_, Gaussian | Matern)
        require(whole and np.ndim(step.weights_) in (1, 2), f"{kind}: expected weights and a kernel")
    if kind == "TableEncoder":
        step.encoding()  # refuses columns of another number, or none that varies
    if hasattr(step, "_row_map"):
        step._row_map().width(d)


def _require_shapes(name: str, arrays: Mapping[str, tuple[Any, tuple[int, ...]]]) -> None:
    """Raise `ModelRejectedError` unless each array is None or has its shape."""
    for what, (array, shape) in arrays.items():
        actual = None if array is None else np.shape(array)
        require(actual in (None, shape), f"{name}: expected {what} of shape {shape}, found {actual}")


def _require_fit(step: Any, fit: Any) -> None:
    """Raise `ModelRejectedError` unless the arrays of a fit have consistent shapes."""
    name, basis, solution, inputs = type(step).__name__, fit.basis, fit.solution, fit.inputs
    p, d, c, classes = basis.width, inputs.n_features, solution.coef.shape[-1], inputs.classes
    views = getattr(step, "n_views", 1)
    require(basis.views == views and not p % views, f"{name}: expected the landmarks of {views} views")
    r_factor, sample = getattr(fit, "r_factor", None), vars(basis).get("sample")
    arrays: dict[str, tuple[Any, tuple[int, ...]]] = {
        "coefficients": (solution.coef, (p // views, c)),
        "intercept": (solution.intercept, (c,)),
        "landmarks": (vars(basis).get("landmarks"), (p, d)),
        "sample of rows": (sample, (len(sample), d) if sample is not None else ()),
        "origin": (vars(basis).get("origin"), (d,)),
        "mean of the features": (vars(basis).get("mean"), (p,)),
        "point that rows are summed about": (vars(basis).get("shift"), (p,)),
        "centre": (getattr(fit, "centre", None), (p,)),
        "weights of rows": (getattr(fit, "weight", None), (p,)),
        "shift of the targets": (inputs.target_shift, (c,)),
        "names of the features": (inputs.feature_names, (d,)),
        "labels": (classes, (c,) if is_classifier(step) else np.shape(classes)),
        "R factor of the rows": (r_factor, (len(r_factor),) * 2 if r_factor is not None else ()),
        **_statistics(fit, p),
    }
    _require_shapes(name, arrays)
    require(classes is not None or not is_classifier(step), f"{name}: expected {c} class labels")
    # the last parameter of the type of its method
    kind: Any = get_args(type(step._method()).__orig_bases__[0])[-1] if hasattr(step, "_method") else object
    require(isinstance(solution, kind) and not (inputs.flat and c != 1), f"{name}: the solution has an unexpected type")
    _require_basis(name, basis, d)


def _require_blend(step: Any, fit: Any) -> None:
    """Raise `ModelRejectedError` unless the members of a fit belong together and to the estimator."""
    blend, inputs, name = fit.blend, fit.inputs, type(step).__name__
    require_blend(blend, inputs.n_features)
    same = np.array_equal(blend.classes, inputs.classes) and is_classifier(step) == (blend.classes is not None)
    require(
        same and len(blend.members) == getattr(step, "n_leaves", len(blend.members)), f"{name}: expected other members"
    )
    require(not (inputs.flat and blend.width != 1), f"{name}: expected one target")
    require(isinstance(fit, fit_state.KrigingFit) == (name == "Kriging"), f"{name}: expected another fit")
    if isinstance(fit, fit_state.KrigingFit):
        found, d, c = fit.variogram, inputs.n_features, blend.width
        rho = found.correlation
        shapes = found.inverse_ranges.shape, found.sill.shape, found.semivariances.shape
        fits = shapes == ((d, d), (c,), (len(found.lags), c)) and found.trend in ("constant", "linear")
        fits &= rho.nu in SMOOTHNESS and 0 <= rho.far < 1 and rho.reach > 0 and found.ratio > 0
        require(fits, f"{name}: expected a variogram of {d} coordinates")


def _statistics(fit: Any, p: int) -> dict[str, tuple[Any, tuple[int, ...]]]:
    """Return the sums of a fit with their expected shapes."""
    sums = getattr(fit, "statistics", None)
    if sums is None:
        return {}
    groups, targets = len(sums["rows"]), sums["C"].shape[-1]
    shapes: dict[str, tuple[int, ...]] = {
        **{"rows": (groups,), "n": (groups,), "G": (groups, p, p), "C": (groups, p, targets), "s": (groups, p)},
        **{"t": (groups, targets), "q": (groups, targets), "anchors": (p, p), "degrees": (p,)},
        **{"E": (groups, p, VECTORS), "probed_rows": (groups,)},
    }
    known = {"rows", "n", "G", "C", "s", "t", "q"} <= set(sums) <= set(shapes)
    require(known, f"unknown or missing statistics among {sorted(sums)}")
    arrays = {f"statistics {name}": (values, shapes[name]) for name, values in sums.items()}
    if (labels := fit.pseudo_labels) is not None:
        k = len(fit.inputs.classes)
        arrays |= {"pseudo-labels": (labels.sums, (p, k)), "counts of pseudo-labels": (labels.counts, (k,))}
    return arrays


def _require_basis(name: str, basis: Any, d: int) -> None:
    """Raise unless the parameters of the kernel are numbers that suit rows of d features, and it fits into memory."""
    kernel = getattr(basis, "kernel", None)
    given = {str(value) for value in kernel.get_params().values()} if kernel is not None else set()
    require(not given & {"median", *SCALES}, f"{name}: expected a kernel with numeric parameters, such as sigma")
    if isinstance(basis, LandmarkBasis):
        basis.kernel.resolve(basis.landmarks)  # refuses parameters of other rows
    if isinstance(basis, FourierBasis):
        require_frequencies(name, d, basis.width)
    if isinstance(basis, LandmarkBasis | FourierBasis):
        real = basis.dtype in ("float32", "float64") and basis.sums in (None, "float32", "float64")
        require(real, f"{name}: expected float32 or float64, found {basis.dtype!r}")
        basis.features()  # refuses kernels without frequencies
