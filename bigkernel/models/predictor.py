"""A fitted model that needs only NumPy: tables to rows, row maps, f(x) = φ(x)ᵀW + b, by the same code as the model.

Model files store it first (`estimators.persistence`), so that reading it needs no scikit-learn, Dask or zarr.
Shapes: n rows, d features, c classes or targets.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from typing import Any, Self

import numpy as np

from bigkernel.arrays import Array
from bigkernel.data.containers import by_name, in_memory, names_of
from bigkernel.data.table import TableColumn, TableEncoding, cells_of
from bigkernel.errors import ConfigError, DataError
from bigkernel.kernels.algebra import Kernel, OnColumns, Product, Scaled, Sum
from bigkernel.kernels.feature_maps import IdentityMap, LandmarkMap, WithoutCaches
from bigkernel.kernels.functions import KERNELS
from bigkernel.kernels.given import Pairwise
from bigkernel.models.file import LIMIT_BYTES, Contents, Packing, opened, require, stored_fields, unpack
from bigkernel.statistics.blend import Blend, Everywhere, Member, Tree
from bigkernel.statistics.predictor import ExactSpread, Projection, Spread, log_softmax, softmax
from bigkernel.statistics.predictor import Predictor as Expansion
from bigkernel.streaming.chunk import Chunk, RowMap, Workspace, is_plain, mapped_width
from bigkernel.streaming.devices import HOST, device_of
from bigkernel.streaming.row_maps import (
    Circles,
    LinearMap,
    Scale,
    SideBySide,
    Sphere,
    Standardize,
    UnitNorm,
    float_of,
    map_rows,
)

_MADE = (Sum, Product, Scaled, OnColumns)
_FEATURES = (IdentityMap, LandmarkMap)
_MAPS = (Scale, UnitNorm, Standardize, LinearMap, SideBySide, Circles, Sphere, Projection)
# imported on demand
_IMAGE_MAPS = ("MomentNormalise", "Orientations")
_CLASSES: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        Expansion,
        Spread,
        ExactSpread,
        Tree,
        Everywhere,
        Member,
        Blend,
        TableEncoding,
        TableColumn,
        *_FEATURES,
        *_MAPS,
    )
}
_CLASSES["Expansion"] = Expansion  # as annotated here


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Predictor(WithoutCaches):
    """A fitted model that needs only NumPy, for services: `load` reads it from a model file.

    Its predictions are equal to those of the model, and it is thread-safe.

    Attributes
    ----------
    n_features : d of the input rows
    expansion : f of the mapped rows: features, coefficients, intercept, and labels of classes; or members with such
    row_maps : applied to the rows in order
    flat : whether predicted numbers are one column, (n,)
    feature_names : (d,) names of the features of the fit, or None
    table : how columns of a table become rows, of a model that begins with `TableEncoder`, or None
    fit : of the model: its estimator, rows, penalty and estimated error, as far as they are known
    device : what computes, "cpu" or "cuda"; given to `load` or `of`, never stored

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import Gaussian, KernelRidge, Predictor, save_model
    >>> X = np.linspace(0, 6, 50)[:, None]
    >>> model = KernelRidge(Gaussian(sigma=1.0), alpha=1e-6, n_landmarks=12, random_state=0).fit(X, np.sin(X[:, 0]))
    >>> save_model(model, "sine.model")
    >>> bool((Predictor.load("sine.model").predict(X) == model.predict(X)).all())
    True
    """

    n_features: int
    expansion: Expansion | Blend
    row_maps: tuple[RowMap, ...] = ()
    flat: bool = False
    feature_names: Array | None = None
    table: TableEncoding | None = None
    fit: Mapping[str, Any] = field(default_factory=dict)
    device: str = field(default=HOST.name, metadata={"stored": False})

    def __post_init__(self) -> None:
        for part in inside(self):
            if not isinstance(part, Expansion):
                if kind_of(type(part).__name__) is not type(part):
                    raise _needs_more(f"the row map {part.name!r}")
            elif not isinstance(part.features, _FEATURES):
                raise _needs_more(f"the feature map {type(part.features).__name__}")
            elif isinstance(part.features, LandmarkMap):
                require_numpy(part.features.kernel)

    @classmethod
    def of(cls, model: Any, *, device: str = HOST.name) -> Self:
        """Return the predictor of a fitted estimator of bigkernel, or of a Pipeline that ends with one.

        A `ConfigError` names a step, kernel or feature map that needs more than NumPy, or is not supported.
        """
        *before, (_, last) = steps_of(model)
        if not (hasattr(last, "predict") and hasattr(last, "_expansion")):
            raise ConfigError(
                f"predictor: expected a classifier or regressor of bigkernel, found {type(last).__name__}"
            )
        named = [(label, step) for label, step in before if step is not None and step != "passthrough"]
        encoder = named[0][1] if named and hasattr(named[0][1], "encoding") else None
        for label, step in named:
            if not hasattr(step, "_row_map") and step is not encoder:
                raise ConfigError(
                    f"predictor: step {label!r}: expected a row transform of bigkernel, found {type(step).__name__}"
                )
        expansion, first = last._expansion(), (*(step for _, step in named), last)[0]
        names = getattr(first, "feature_names_in_", None)
        return cls(
            n_features=int(first.n_features_in_),
            expansion=expansion,
            row_maps=tuple(step._row_map() for _, step in named if step is not encoder),
            flat=bool(last._fitted.inputs.flat),
            feature_names=None if names is None else np.asarray(names, str),
            table=None if encoder is None else encoder.encoding(),
            fit=last._figures(),
            device=device_of(device).name,
        )

    def __repr__(self) -> str:
        whole, c = self.expansion, self.expansion.width
        by = f"{whole.n_landmarks:,} landmarks" if self._has_landmarks else "a linear model"
        by += f" in {len(whole.members):,} members" if isinstance(whole, Blend) else ""
        return f"Predictor({self.n_features:,} features, {by}, {c} {'targets' if self.classes is None else 'classes'})"

    @property
    def _has_landmarks(self) -> bool:
        return any(isinstance(one, Expansion) and isinstance(one.features, LandmarkMap) for one in inside(self))

    @property
    def classes(self) -> Array | None:
        """Labels (c,), or None if it predicts numbers."""
        return self.expansion.classes

    def predict(self, X: Any) -> Array:
        """Predict labels (n,) or numbers (n,) or (n, c) of the rows X (n, d).

        X may also be columns (n,) by name, as a mapping or a structured array, in any order; those that the model does
        not have are ignored.

        Raises
        ------
        DataError
            X is not a matrix of finite numbers, or has another number (or other names) of features.
        """
        values = self._values(X)
        if self.classes is None:
            return values[:, 0] if self.flat else values
        chosen: Array = self.classes[np.argmax(values, axis=1)]
        return chosen

    def decision_function(self, X: Any) -> Array:
        """Compute the values of f: (n, c), or (n,) for two classes (positive: the second)."""
        if self.classes is None:
            raise ConfigError("decision_function: expected a classifier, found a regressor; use predict")
        values = self._values(X)
        return values[:, 1] - values[:, 0] if len(self.classes) == 2 else values

    def predict_proba(self, X: Any) -> Array:
        """Predict probabilities of the classes, (n, c), by a calibrated model or logistic regression."""
        return softmax(self._logits(X))

    def predict_log_proba(self, X: Any) -> Array:
        """Predict log-probabilities, finite even where `predict_proba` underflows."""
        return log_softmax(self._logits(X))

    def _logits(self, X: Any) -> Array:
        if not self.expansion.logits:
            raise ConfigError("predict_proba: the model was fitted without probabilities; fit with probability=True")
        return self.expansion.logits_of(self._values(X))

    @cached_property
    def _sliced(self) -> Expansion | Blend:
        """The expansion with many landmarks in slices, as in the model."""
        return self.expansion.sliced()

    def _values(self, X: Any) -> Array:
        x = self._rows(X)
        for row_map in self.row_maps:
            x = map_rows(x, row_map, float_of(x.dtype))
        return self._sliced.values(Chunk(x, work=Workspace(device=device_of(self.device))))

    def _rows(self, X: Any) -> Array:
        """Validate X as a matrix of finite numbers, in the dtype that the model would use."""
        if names_of(X) and self.feature_names is not None:
            X = by_name(X, self.feature_names.tolist(), "X", "the fit")
        width = self.n_features
        if self.table is not None:
            X = self.table.encode(X)
            width = X.shape[1]
        elif self.feature_names is not None and (isinstance(X, Mapping) or getattr(X, "dtype", np.dtype(int)).names):
            X = np.stack(cells_of(X, self.feature_names.tolist()), 1)
        if is_plain(X, width):
            return np.asarray(X)
        if hasattr(X, "toarray"):
            raise DataError("X: sparse rows are not supported; pass X.toarray()")
        try:
            x = in_memory(X, "X")
            if x.dtype.kind == "c":
                raise TypeError("found complex numbers")
            x = x if is_plain(x, width) else x.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(f"X: expected a matrix of numbers: {error}") from error
        if x.ndim != 2 or not len(x) or x.shape[1] != width:
            raise DataError(f"X: expected at least one row of {width} features, found shape {x.shape}")
        bad = np.flatnonzero(~np.isfinite(x).all(axis=1))
        if len(bad):
            raise DataError(f"X: {len(bad)} rows contain NaN or infinity, the first are {bad[:5].tolist()}")
        return x

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, limit_bytes: int = LIMIT_BYTES, device: str = HOST.name) -> Self:
        """Load the predictor from a model file, without moments and without running code of the file.

        Raises
        ------
        ModelRejectedError
            The file is damaged, has another format, names an unknown class, or has arrays of more than `limit_bytes`.
        ConfigError
            The model needs more than NumPy, or there is no such device; the message names the reason.
        DataError
            There is no file at `path`.
        """
        with opened(path, limit_bytes=limit_bytes) as contents:
            said = contents.values["predictor"]
            if set(said) != {"refused"}:
                return replace(cls.unpacked(said, contents), device=device_of(device).name)
        raise ConfigError(f"{os.fspath(path)}: {said['refused']}")

    @classmethod
    def unpacked(cls, said: Any, contents: Contents) -> Self:
        """Return the predictor of an open file, and check that it is consistent."""
        known = {one.name for one in stored_fields(cls)}
        require(set(said) == known, f"values {sorted(said)} do not belong to a predictor")
        predictor = cls(**{name: unpack(value, kind_of, contents) for name, value in said.items()})
        _require_valid(predictor, contents.limit_bytes)
        return predictor

    def packed(self, packing: Packing) -> dict[str, Any]:
        """Return the fields for a file."""
        return {
            one.name: packing.pack(getattr(self, one.name), f"predictor.{one.name}")
            for one in stored_fields(type(self))
        }


def kind_of(name: str) -> type[Any] | None:
    """Return the class of a name in a file from a closed table, or None."""
    kind: type[Any] | None = (
        getattr(import_module("bigkernel.streaming.images"), name) if name in _IMAGE_MAPS else _CLASSES.get(name)
    )
    return kind


def steps_of(model: Any) -> list[tuple[str, Any]]:
    """Return the steps of a model by name, with those of the Pipeline that its last step chose, if it did."""
    steps: list[tuple[str, Any]] = getattr(model, "steps", [("model", model)])
    chosen = getattr(getattr(steps[-1][1], "model_", None), "steps", None)
    return steps if chosen is None else [*steps[:-1], *chosen]


def inside(model: Predictor | Member) -> Iterator[RowMap | Expansion]:
    """Yield the row maps and the expansions of a model, those inside others included."""
    yield from _each(model.row_maps)
    whole = model.predictor if isinstance(model, Member) else model.expansion
    if isinstance(whole, Expansion):
        yield whole
    for member in whole.members if isinstance(whole, Blend) else ():
        yield from inside(member)


def _each(row_maps: tuple[RowMap, ...]) -> Iterator[RowMap | Expansion]:
    """Yield row maps, those inside unions, and the expansions of projections."""
    for row_map in row_maps:
        yield row_map
        if isinstance(row_map, Projection):
            yield row_map.predictor
        for chain in row_map.chains if isinstance(row_map, SideBySide) else ():
            yield from _each(chain)


def _needs_more(what: str) -> ConfigError:
    return ConfigError(f"predictor: {what} needs more than NumPy; use load_model instead")


def require_numpy(
    kernel: Kernel, fault: str = "predictor: the {} kernel needs more than NumPy; use load_model instead"
) -> None:
    """Raise `ConfigError` with the fault if a kernel inside needs another library, or is a function."""
    if isinstance(kernel, _MADE):
        for inner in kernel.terms:
            require_numpy(inner, fault)
    elif type(kernel) not in KERNELS.values() and not (type(kernel) is Pairwise and kernel.metric == "cosine"):
        raise ConfigError(fault.format(kernel.formula()))


def _require_valid(predictor: Predictor, limit_bytes: int) -> None:
    """Raise if shapes are inconsistent, or it takes more memory than allowed."""
    d, names = predictor.n_features, predictor.feature_names
    require(names is None or (names.dtype.kind == "U" and names.shape == (d,)), f"expected {d} feature names")
    encoded = d if predictor.table is None else len(predictor.table.outputs)
    require(predictor.table is None or len(predictor.table.names) == d, f"expected {d} columns of a table")
    mapped = mapped_width(predictor.row_maps, encoded)  # refuses maps that do not fit each other
    require(isinstance(predictor.expansion, Expansion | Blend), "expected an expansion")
    if isinstance(predictor.expansion, Blend):
        require_blend(predictor.expansion, mapped)
    held = 0
    for part in inside(predictor):
        if isinstance(part, SideBySide):
            each = part.chains and len(part.scales) == len(part.chains)
            require(each, "expected a number for each map of the union")
        if not isinstance(part, Expansion):
            continue
        require_fitting(part)
        if isinstance(one := part.features, LandmarkMap):
            # a combined kernel prepares the landmarks for each kernel inside
            held += one.kernel.prepared_bytes(one.width, one.n_features, one.dtype.itemsize)
    room = f"needs {held:,} bytes of memory, more than the limit of {limit_bytes:,}"
    require(held <= limit_bytes, room)


def require_fitting(expansion: Expansion) -> None:
    """Raise unless features, coefficients, intercept and labels have consistent shapes."""
    features, coef, intercept, classes = expansion.features, expansion.coef, expansion.intercept, expansion.classes
    c = len(intercept)
    if isinstance(features, IdentityMap):
        require(features.shift.ndim == 1, "expected a shift (d,)")
    if isinstance(features, LandmarkMap):
        given = features.kernel.get_params().values()
        numbers = not any(isinstance(value, str) and value == "scale" for value in given)
        require(numbers, f"expected numeric kernel parameters, found {features.kernel.formula()}")
        z = features.landmarks
        require(z.dtype == np.float64 and z.ndim == 2, "expected landmarks (m, d) in float64")
        features.kernel.resolve(z)
    fits = features.dtype in (np.float32, np.float64) and coef.shape == (features.width, c)
    require(
        fits and intercept.shape == (c,), f"expected coefficients of {features.width} columns, found shape {coef.shape}"
    )
    different = classes is None or (classes.shape == (c,) and len(set(classes.tolist())) == c)
    require(different, f"expected {c} distinct labels")
    spread, p = expansion.spread, features.width
    if isinstance(spread, ExactSpread):
        fits = spread.noise.shape == (p,) and spread.scale.shape == (c,) and isinstance(features, LandmarkMap)
        require(fits and bool((spread.noise > 0).all()), f"expected the noise of {p} rows above 0, and {c} scales")
    elif spread is not None:
        q, scale = len(spread.centre), spread.scale
        shapes = spread.explained.shape[:1], spread.uncertain.shape, spread.centre.shape, scale.shape
        fits = spread.explained.ndim == 2 and shapes == ((p,), (p, q), (q,), (c,)) and isinstance(features, LandmarkMap)
        require(fits, f"expected the spread of {p} columns and {c} targets")


def require_blend(whole: Blend, d: int) -> None:
    """Raise unless the members belong together, and to rows of d features."""
    shares, count, classes = whole.shares, len(whole.members), whole.classes
    if isinstance(shares, Tree):
        shapes = shares.directions.shape, shares.lower.shape, shares.upper.shape
        fits = shapes == ((count - 1, d), (count - 1,), (count - 1,))
        require(fits, f"expected {count - 1} splits of {d} features, found {shapes}")
    require(shares.n_features == d and shares.n_leaves == count > 0, f"expected {count} members of {d} features")
    ordered = classes is None or (classes.ndim == 1 and np.array_equal(np.unique(classes), classes))
    require(ordered and (classes is None or len(classes) == whole.width), f"expected {whole.width} sorted classes")
    for member in whole.members:
        require(isinstance(member, Member), f"expected a member, found {type(member).__name__}")
        inner = mapped_width(member.row_maps, d)
        fits = member.predictor.n_features == inner and member.predictor.width == whole.width
        require(fits, f"expected members of {d} features and {whole.width} targets")
        if isinstance(member.predictor, Blend):
            require_blend(member.predictor, inner)
        else:
            require_fitting(member.predictor)
