"""Base classes of the estimators for rows of any size: fit, prediction, score and report.

NumPy input passes scikit-learn's validation and is swept in this process. Dask and zarr arrays, corpora and `Rows` are
never loaded into memory: `fit` sweeps them, `predict` returns a lazy Dask array, `predict_to` writes to disk. A
`Method` defines sums and solves; a `BasisChoice` or `RowChoice` defines the columns.
Shapes: n rows, d features, p columns, c targets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import KW_ONLY, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar, cast, dataclass_transform
from weakref import WeakKeyDictionary

import dask
import numpy as np
import zarr
from distributed import Client
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.pipeline import Pipeline
from sklearn.utils._available_if import _AvailableIfDescriptor
from sklearn.utils.metaestimators import _BaseComposition
from sklearn.utils.validation import _check_feature_names, check_consistent_length, check_is_fitted

from bigkernel.arrays import Array, ColumnLike, Labelled, RowsLike
from bigkernel.config import settings
from bigkernel.data.containers import in_memory, is_dask_array
from bigkernel.data.prediction_table import is_table, preparing_table, write_table
from bigkernel.engine import grid_store, prediction_store
from bigkernel.engine.grids import Grid, dataset_of, grid_of, is_grid, label_cells, label_dtype, variables
from bigkernel.engine.rows import DaskSource, NumpySource, Rows, as_rows
from bigkernel.engine.sweep import choose_executor, device_here, sweep
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators.callbacks import CallbackSupportMixin, calling_back
from bigkernel.estimators.evaluation import FitReport
from bigkernel.estimators.fit import fit as fitting
from bigkernel.estimators.fit.basis import (
    DEFAULT_LANDMARKS,
    BasisChoice,
    RowChoice,
    Seed,
    check_landmarks,
    is_precomputed,
    of_kernel,
)
from bigkernel.estimators.fit.calibration import plan_calibration, refuse_folds
from bigkernel.estimators.fit.method import Method, holds_out
from bigkernel.estimators.fit.precision import Whitened
from bigkernel.estimators.fit.state import (
    BlendFit,
    ExactFit,
    Fit,
    Fitted,
    IterativeFit,
    LinearSolution,
    LogisticSolution,
    MomentFit,
    Problem,
    ProjectionFit,
    Report,
)
from bigkernel.estimators.inputs.checks import chosen_by_folds
from bigkernel.estimators.inputs.classes import (
    class_targets,
    is_semi_supervised,
    labels_in_memory,
    no_label,
    plain_labels,
)
from bigkernel.estimators.inputs.columns import is_lazy, validated_weight
from bigkernel.estimators.inputs.read import (
    grid_targets,
    input_rows,
    is_sound,
    near_target,
    read_cells,
    read_training,
    require_numbers,
)
from bigkernel.estimators.inputs.training import Inputs, Training
from bigkernel.events.job import job
from bigkernel.kernels.algebra import Kernel
from bigkernel.kernels.feature_maps import IdentityMap, LandmarkMap
from bigkernel.kernels.functions import as_kernel
from bigkernel.solvers.ridge import require_alpha
from bigkernel.statistics.blend import AnyPredictor, Deviations
from bigkernel.statistics.moments import Targets
from bigkernel.statistics.predictor import BlockPredictor, Predictor, Projection, log_softmax, softmax
from bigkernel.statistics.scores import ScoreStatistic, score
from bigkernel.streaming.chunk import Chunk, Workspace
from bigkernel.streaming.devices import device_of
from bigkernel.streaming.plan import Accumulator, Plan

if TYPE_CHECKING:
    import dask.array as da
    from sklearn.utils import Tags

    from bigkernel.kernels.random_fourier import FourierMap  # of SciPy

DEVICE_ROWS = 4096  # in memory; fewer are predicted by processors, before any setting is read

E = TypeVar("E", bound=BaseEstimator)
P = TypeVar("P", bound=AnyPredictor)
_PREDICTORS: WeakKeyDictionary[object, AnyPredictor] = WeakKeyDictionary()  # by fit


@dataclass_transform(eq_default=False)
def parameters(estimator: type[E]) -> type[E]:
    """Make the annotated attributes of an estimator its parameters: arguments of `__init__`, stored as they are given.

    scikit-learn reads their names and defaults from its signature.
    """
    return dataclass(eq=False, repr=False)(estimator)


def last_step(model: BaseEstimator) -> BaseEstimator:
    """Return the last step of a Pipeline, or the model itself."""
    return model[-1] if isinstance(model, Pipeline) else model


class NamedSteps(_BaseComposition):
    """Base of estimators with a list of (name, estimator): parameters of these are NAME__PARAMETER."""

    _steps_name: ClassVar[str]  # of the parameter that is the list

    def get_params(self, deep: bool = True) -> dict[str, object]:
        """Return parameters by name, those of the steps as NAME__PARAMETER."""
        params: dict[str, object] = self._get_params(self._steps_name, deep=deep)
        return params

    def set_params(self, **params: object) -> Self:
        """Set parameters by the names of `get_params`; a name in the list replaces its step."""
        self._set_params(self._steps_name, **params)
        return self


def method_of(estimator: RowsEstimator) -> tuple[Method, BasisChoice | RowChoice]:
    """Return the method of an estimator, and its choice of columns."""
    return estimator._method(), estimator._columns()


def restore(estimator: BaseEstimator, inputs: Inputs, fit: Fit | ProjectionFit | None = None) -> None:
    """Set the features of a fit as scikit-learn's validation would, and the fit if one is given."""
    estimator.n_features_in_ = inputs.n_features
    _check_feature_names(estimator, None, reset=True)
    if inputs.feature_names is not None:
        estimator.feature_names_in_ = inputs.feature_names
    if fit is not None:
        vars(estimator)["_fitted"] = fit


def cached_predictor(fit: object, make: Callable[[], P]) -> P:
    """Return the predictor of a fit, made once for the lifetime of the fit.

    A fit is an immutable value, so every fit has its own predictor; no pickle or file holds it.
    """
    predictor = _PREDICTORS.get(fit)
    return cast(P, _PREDICTORS.setdefault(fit, make()) if predictor is None else predictor)


F = TypeVar("F")


class _Available(_AvailableIfDescriptor):
    def _check(self, obj: BaseEstimator, owner: type) -> None:
        if lacking := self.check(obj):
            raise AttributeError(f"{owner.__name__} has no {self.attribute_name}: {lacking}")


def available(lacks: Callable[[E], str]) -> Callable[[F], F]:
    """Make a method present unless `lacks` says what the estimator lacks for it, which the `AttributeError` repeats."""

    def decorate(method: F) -> F:
        return cast(F, _Available(method, lacks, attribute_name=method.__name__))  # type: ignore[attr-defined]

    return decorate


def lacking(estimator: object, name: str) -> str:
    """Say why an estimator has no method of this name, or return ""."""
    try:
        getattr(estimator, name)
    except AttributeError as error:
        return str(error.__cause__ or error)
    return ""


def _predicts(estimator: BaseEstimator) -> str:
    return "it transforms rows" if hasattr(estimator, "transform") else ""


def _adds_rows(estimator: RowsEstimator) -> str:
    """Say why a fit keeps no sums to which `partial_fit` adds, or return ""."""
    if not estimator._keeps_sums:
        return "its fit takes several sweeps of the same rows; fit all rows at once"
    if getattr(estimator, "probability", False):
        return "probabilities are calibrated on all rows; set probability=False"
    if chosen_by_folds(alpha := getattr(estimator, "alpha", None)):
        return f"alpha={alpha!r} chooses on folds of all rows; set a number, or 'gcv'"
    if getattr(estimator, "solver", None) == "cg":
        return "conjugate gradients keep no sums; set solver='direct'"
    return "an exact fit keeps no sums; set n_landmarks" if estimator._columns().exact else ""


def _gives_probabilities(estimator: RowsEstimator) -> str:
    return "" if getattr(estimator, "probability", True) else "set probability=True and fit again"


def shown(verbose: int) -> AbstractContextManager[None]:
    """Return a context in which progress is displayed, by the parameter `verbose` of an estimator."""
    if not verbose:
        return nullcontext()
    from bigkernel.monitor.terminal.bar import progress

    return progress(verbose=int(verbose))


class RowsEstimator(CallbackSupportMixin, BaseEstimator):
    """Base of the estimators that are fitted to rows.

    A subclass defines its method and its choice of columns, and overrides how rows are read where it must. The fit is
    one immutable value, from which fitted attributes are read.
    """

    _fitted: Fit | None = None
    n_views: ClassVar[int] = 1  # of which each has the columns
    _semi_supervised = False  # labels may be missing in arrays
    verbose = 0
    _keeps_sums = True  # `partial_fit` adds to what a fit keeps
    classes_ = Fitted[Array]("inputs.classes")
    target_shift_ = Fitted[Array]("inputs.target_shift")
    diagnostics_ = Fitted[Mapping[str, float]]("diagnostics")
    skipped_rows_ = Fitted[int]("skipped_rows")
    sweep_ = Fitted[Mapping[str, object]]("sweep")
    alpha_ = Fitted[float | Array]("solution.alpha")
    training_mse_ = Fitted[Array]("solution.training_mse")

    def _method(self) -> Method:
        """Return the method: its sums and its solve."""
        raise ConfigError(f"{type(self).__name__}: its parts keep no sums; fit again, or search with GridSearchCV")

    def _columns(self) -> BasisChoice | RowChoice:
        """Return the choice of columns for rows."""
        raise ConfigError(f"{type(self).__name__}: consists of other models, and has no columns of its own")

    def _read_fit(self, X: RowsLike, y: ColumnLike, sample_domain: ColumnLike, sample_weight: ColumnLike) -> Training:
        """Return validated rows with their domains and targets, and the names of both."""
        if hasattr(self, "transform"):  # transformers ignore targets unless they override this
            return read_cells(self, X, None, sample_domain, sample_weight, labels=False, fallback="one")
        return read_training(self, X, y, sample_weight, sample_domain)

    def read_search(
        self, X: RowsLike, y: ColumnLike, sample_weight: ColumnLike, sample_domain: ColumnLike, groups: ColumnLike
    ) -> Training:
        """Return the data of a search, with the domains and groups that folds may need."""
        data = self._read_fit(X, y, sample_domain, sample_weight)
        return replace(data, rows=as_rows(data.rows, group=groups))

    # -- parameters ----------------------------------------------------------------------------------------------------

    def check_parameters(self) -> None:
        """Raise if a parameter is invalid."""
        self._validate_params()
        alpha = getattr(self, "alpha", 0.0)
        require_alpha(0.0 if isinstance(alpha, str) else alpha)

    def __sklearn_is_fitted__(self) -> bool:
        return self._fitted is not None

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _require(self, name: str) -> Fit:
        """Return the fit; `AttributeError` before it."""
        if self._fitted is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._fitted

    @property
    def intercept_(self) -> Array | float:
        """The intercept, (c,); a float for one column of numbers."""
        fit = self._require("intercept_")
        intercept: Array = fit.solution.intercept
        return intercept[0] if fit.inputs.flat else intercept

    # -- fitting -------------------------------------------------------------------------------------------------------

    def fit(
        self, X: RowsLike, y: ColumnLike = None, sample_weight: ColumnLike = None, *, sample_domain: ColumnLike = None
    ) -> Self:
        """Fit the model to rows X (n, d).

        Parameters
        ----------
        y : (n,) labels, or (n,) or (n, c) numbers; None for a corpus that carries its own
            In semi-supervised methods a row is unlabelled where a number is NaN, or a label −1 (among text "-1").
        sample_weight : (n,), or None
        sample_domain : (n,) integers or names
            The domain of each row, for balanced landmarks; lazy rows may carry theirs in a column.
        """
        self.check_parameters()
        data = self._read_fit(X, y, sample_domain, sample_weight)
        with job(f"{type(self).__name__}.fit"), shown(self.verbose), calling_back(self, X, y):
            if (blend := self._fit_members(data)) is not None:
                self._fitted = blend  # type: ignore[assignment]  # `_expansion` alone reads it
            else:
                self._fitted = fitting.fit(self._method(), self._columns(), data)
        return self

    def _fit_members(self, data: Training) -> BlendFit | None:
        """Fit the models of which an estimator consists; None: it has sums of its own."""
        return None

    def _partial_fit(self, X: RowsLike, y: ColumnLike, classes: ColumnLike, sample_weight: ColumnLike) -> Self:
        if isinstance(self._fitted, IterativeFit):
            self._require_moments("fit a clone of the estimator")
        before = self._fitted if isinstance(self._fitted, MomentFit) else None
        self.check_parameters()
        method, columns = self._method(), self._columns()
        if columns.exact:
            raise ConfigError(f"{type(self).__name__}: partial_fit needs n_landmarks; an exact fit has no statistics")
        if before is not None:
            method.graph.require_same(before)
        known = None if before is None else before.inputs
        data = read_training(self, X, y, sample_weight, known=known, classes=classes)
        with job(f"{type(self).__name__}.partial_fit"), shown(self.verbose):
            if before is not None:
                self._fitted = fitting.add_rows(method, before, data)
            else:
                columns.require_rows(data.rows)
                basis = columns.choose(data.rows)
                self._fitted = fitting.fit_sums(method, data, basis, choose=columns.dtype == "auto")
        return self

    def refit(self) -> Self:
        """Solve again from the kept statistics, after `set_params` of `alpha` or `n_components`, without a sweep.

        The kernel and the landmarks stay those of the fit.
        """
        check_is_fitted(self)
        method = self._method()
        refuse_folds(method, "refit")
        self.check_parameters()
        before = self._require_moments("fit again")
        method.graph.require_same(before)
        self._fitted = fitting.solve_again(method, before)
        return self

    def _require_moments(self, advice: str) -> MomentFit:
        """Return the fit; `ConfigError` if it keeps no statistics."""
        if isinstance(self._fitted, MomentFit):
            return self._fitted
        form = "an exact fit" if isinstance(self._fitted, ExactFit) else "a fit by conjugate gradients"
        raise ConfigError(f"{type(self).__name__}: {form} keeps no statistics; {advice}")

    def fit_from_sums(self, data: Training, white: Whitened, problem: Problem | None) -> None:
        """Fit on whitened columns to these sums of the rows, or by a sweep if there are none or they are too coarse."""
        restore(self, data.inputs)
        method = self._method()
        # sums of folds need their own sweep
        if problem is None or holds_out(method):
            sums = fitting.sum_in_precision(method, data, white[0], choose=False, white=white)
        else:
            sums = fitting.Summed(method.check(problem, data.rows.name), *white[1:], {})
        choose = self._columns().dtype == "auto"
        self._fitted = fitting.fit_sums(method, data, white[0], choose=choose, sums=sums)

    def plan(self, X: RowsLike, y: ColumnLike = None, sample_domain: ColumnLike = None) -> Plan:
        """Return the plan of `fit` on these rows, without running it.

        Returns
        -------
        Plan
            Rows, chunks, segments, flops, bytes read, and the memory of a task.
        """
        self.check_parameters()
        columns = self._columns()
        if columns.exact:
            raise ConfigError(f"{type(self).__name__}: an exact fit has no sweep to plan; set n_landmarks")
        data, method = copy(self)._read_fit(X, y, sample_domain, None), self._method()
        basis = columns.choose(data.rows, look=False)
        return plan_calibration(method, data, basis, method.plan(data, columns, basis))

    def _report(self, fit: Fit, **columns: object) -> FitReport:
        """Return the figures that all fits report, and those of the columns of this one."""
        report = FitReport(
            estimator=type(self).__name__,
            **columns,
            alpha=np.asarray(fit.solution.alpha).tolist(),
            diagnostics=dict(fit.diagnostics),  # empty for a model from a file
            skipped_rows=fit.skipped_rows,
        )
        if isinstance(fit, MomentFit):
            report |= {"rows": int(fit.statistics["rows"].sum())}
            report |= {} if fit.r_factor is None else {"sums": "qr"}
        else:
            report |= {"rows": fit.basis.width if isinstance(fit, ExactFit) else fit.rows}
        if not isinstance(fit, ExactFit):
            report |= {"sweep": dict(fit.sweep)}
        return report

    # -- scores ------------------------------------------------------------------------------------------------------

    @available(_predicts)
    def score_totals(
        self, X: RowsLike, y: ColumnLike = None, sample_weight: ColumnLike = None, *, worst: int = 0, std: bool = False
    ) -> Accumulator:
        """Sum up what scores are computed from in one sweep: `confusion` (c, c), or `n`, `sse`, … (c,).

        `worst` k > 0 adds k worst-classified rows, or k sampled rows and residuals, `std` scores of deviations.
        """
        check_is_fitted(self)
        rows, y = grid_targets(input_rows(self, X, reset=False), y, classes=isinstance(self, ClassifierMixin))
        if y is None and "y" not in rows.columns:
            raise DataError(f"{rows.name}: expected labels to score against, found none")
        if isinstance(self, ClassifierMixin):
            rows, targets = class_targets(self, rows, y if y is None else plain_labels(y), self.classes_)
        else:
            targets = Targets(self._predictor().width, missing=-1 if y is None and rows.classes else None)
            rows = as_rows(rows, y)
        rows = as_rows(rows, weight=sample_weight)
        shift = near_target(rows, targets)
        # an exact fit leaves residuals without a unit
        spread = np.sqrt(np.maximum(getattr(self, "training_mse_", 1.0), 1e-300))
        predictor = Deviations(self._with_spread()) if std else self._predictor()
        statistic = ScoreStatistic(predictor, targets, shift, keep=worst, spread=spread)
        return sweep(rows, statistic, what="score").total

    # -- prediction ----------------------------------------------------------------------------------------------------

    def _features(self) -> IdentityMap | LandmarkMap | FourierMap:
        """Return the map of rows to the columns of the coefficients."""
        basis = self._require("predict").basis
        return cast("IdentityMap | LandmarkMap | FourierMap", basis.predicting(basis.features()))

    def _coefficients(self) -> tuple[Array, Array]:
        """Return W (p, c) and b (c,) over the features; those of a ∘ f + b + log w where the model is calibrated."""
        fit = self._require("predict")
        solution, calibration = fit.solution, fit.calibration
        # about the point of the features: about 0 it would lose the digits of an offset
        intercept = solution.level if isinstance(solution, LinearSolution) else solution.intercept
        if calibration is None:
            return solution.coef, intercept
        offset = calibration.log_weights
        return solution.coef * calibration.scale, calibration.logits(intercept) + (0 if offset is None else offset)

    def _expansion(self) -> AnyPredictor:
        """Return the fitted model as plain data for a file, with its landmarks in one array."""
        check_is_fitted(self)
        if isinstance(blended := cast(object, self._fitted), BlendFit):
            return blended.blend
        fit = self._require("predict")
        classes = self.classes_ if isinstance(self, ClassifierMixin) else None
        logits = fit.calibration is not None or isinstance(fit.solution, LogisticSolution)
        weights = None if fit.calibration is None else fit.calibration.log_weights
        return Predictor(self._features(), *self._coefficients(), classes, logits, weights)

    def _figures(self) -> dict[str, object]:
        """Return what a file says of the fit: estimator, rows, penalty, estimated error; a blend says it of members."""
        if isinstance(cast(object, self._fitted), BlendFit):
            return {"estimator": type(self).__name__}
        report = self._report(self._require("predict"))
        error = {"prediction_error": self.diagnostics_.get("prediction_error")}
        return {name: report[name] for name in ("estimator", "rows", "alpha")} | error

    def _predictor(self) -> AnyPredictor:
        """Return the fitted model for predictions, which reads many landmarks in slices, cached with the fit."""
        return cached_predictor(self._require("predict"), lambda: self._expansion().sliced())

    def _values(self, X: RowsLike, make: Callable[[], BlockPredictor] | None = None) -> Array | da.Array:
        """Compute f(X), (n, c), or the values of another predictor: an array, or a lazy Dask array."""
        if self._fitted is None:
            check_is_fitted(self)
        make = make or self._predictor
        if is_sound(X, self):
            return make().values(Chunk(X, work=_work_for(len(X))))
        rows = input_rows(self, X, reset=False)
        rows = rows if rows.grid else replace(rows, bad_rows="refuse")
        return _values_in_memory(rows, make()) if rows.in_memory else _lazy_values(rows, make())

    def _from_values(self, values: Array | da.Array, *, on_grid: bool = False) -> Array | da.Array:
        """Return numbers, or labels of the largest values; `on_grid`: cells without values have none."""
        inputs = self._require("predict").inputs
        if inputs.classes is None:
            return values[:, 0] if inputs.flat else values
        if is_dask_array(values):
            label = label_cells if on_grid else _labels
            dtype = label_dtype(inputs.classes) if on_grid else inputs.classes.dtype
            return values.map_blocks(label, inputs.classes, dtype=dtype, drop_axis=1)
        return _labels(values, inputs.classes)

    def _grid(self, X: RowsLike) -> Grid | None:
        """Return the grid of which the rows are the cells, or None."""
        if isinstance(X, Rows):
            return X.grid
        return grid_of(variables(X, getattr(self, "feature_names_in_", None), "X"), X, "X") if is_grid(X) else None

    def _on_grid(self, X: RowsLike, values: Array | da.Array, classes: Array | None = None) -> Labelled:
        """Return lazy values of rows of a grid as a DataArray or Dataset; `classes` are those of their columns."""
        if isinstance(values, np.ndarray) or (grid := self._grid(X)) is None:
            return values
        if classes is not None:
            ((name, _),) = grid.outputs(self._require("predict").inputs.targets, 1, more=["class"])
            return grid.array(values, name, {}, classes)
        arrays = self._variables(grid, values)
        return arrays[0] if values.ndim == 1 else dataset_of(arrays)

    def _variables(self, grid: Grid, values: da.Array, *, std: int = 0) -> list[Labelled]:
        """Return values (n,) or (n, c) of rows of a grid as DataArrays of each target and deviation."""
        count = 1 if values.ndim == 1 else values.shape[1] // (1 + std)
        outputs = grid.outputs(self._require("predict").inputs.targets, count, std=std)
        values = values if grid.lazy else values.persist()  # once, not for each column
        columns = [values] if values.ndim == 1 else [values[:, i] for i in range(values.shape[1])]
        return [grid.array(column, *output) for column, output in zip(columns, outputs, strict=True)]

    @available(_predicts)
    def predict(self, X: RowsLike) -> Array | da.Array:
        """Predict labels (n,) or numbers (n,) or (n, c) of the rows X.

        Returns a NumPy array for NumPy input, a lazy Dask array for Dask and zarr arrays, corpora and Rows. Of a
        Dataset of xarray a DataArray of the same dimensions, coordinates and chunks, which is NaN (among text "") where
        a variable is.
        """
        values = self._values(X)
        on_grid = not isinstance(values, np.ndarray) and self._grid(X) is not None
        return self._on_grid(X, self._from_values(values, on_grid=on_grid))

    def _with_spread(self) -> AnyPredictor:
        """Return the fitted model with the spread of its predictions."""
        raise ConfigError(f"return_std: {type(self).__name__} has no predictive standard deviation; use KernelRidge")

    def _mean_and_std(self, X: RowsLike, *, shares: bool = False) -> Labelled:
        """Predict numbers (n,) or (n, c) and the standard deviations of observations (and shares), each alike."""
        check_is_fitted(self)
        both = self._values(X, lambda: Deviations(self._with_spread(), shares))
        if not isinstance(both, np.ndarray) and (grid := self._grid(X)) is not None:
            return dataset_of(self._variables(grid, both, std=1 + shares))
        c = both.shape[1] // (2 + shares)
        flat = self._require("predict").inputs.flat
        return MeanAndStd(both[:, i] if flat else both[:, i : i + c] for i in range(0, both.shape[1], c))

    @available(_predicts)
    def predict_to(
        self,
        X: RowsLike,
        path: prediction_store.Target,
        *,
        decision: bool = False,
        probability: bool = False,
        return_std: bool = False,
        overwrite: bool = False,
        raw_text: bool = False,
    ) -> zarr.Group | list[str]:
        """Predict the rows of a zarr array or corpus on the workers and write the predictions to disk, or to a store.

        Inside `executing(run=…)` an interrupted call leaves its chunks beside `path`, and `resume` continues with them.

        Parameters
        ----------
        X : any rows, or a Dataset of xarray
        path : of the zarr group with `prediction`, and the ids or source rows of a corpus that has them; of a Dataset
            with its coordinates, as `xarray.open_zarr` reads it. With a name that ends in .csv or .parquet of a table
            of these, with classes by name. It appears complete or not at all. Or a store of zarr, a URL or `StorePath`
        decision : also write `decision` (n, c)
        probability : also write the probabilities of the classes, in tables alone
        return_std : also write the standard deviations of observations, `std`, as `KernelRidge.predict` returns them
        overwrite : replace predictions of the same kind at `path`
        raw_text : write text to CSV as it is, also what spreadsheets take for formulas

        Returns
        -------
        zarr.Group, or the names of the columns of a table

        Raises
        ------
        ConfigError
            The model gives no probabilities or standard deviations, or `path` is of the wrong kind for them or for X.
        DataError
            `path` exists or cannot be written, or two outputs would have the same name.
        """
        check_is_fitted(self)
        target = prediction_store.target_of(path)
        rows, name = input_rows(self, X, reset=False), type(self).__name__
        if probability and not self._predictor().logits:
            raise ConfigError(f"probability: {name} gives none; fit a classifier with probability=True")
        if not is_table(path):
            if probability:
                raise ConfigError("probability: expected a path that ends in .csv or .parquet; or pass decision=True")
            return self._write_store(rows, target, decision=decision, std=return_std, overwrite=overwrite)
        if rows.grid or not isinstance(target, Path):
            raise ConfigError(f"{target}: expected a zarr group for a Dataset or in a store, found the name of a table")
        table, both = str(target), decision or probability
        with preparing_table(table, overwrite=overwrite) as store:  # workers write its chunks
            group = self._write_store(rows, store, decision=both, std=return_std, overwrite=True)
            return write_table(table, group, decision=decision, probability=probability, raw_text=raw_text)

    def _write_store(
        self, rows: Rows, target: prediction_store.Location, *, decision: bool, std: bool, overwrite: bool
    ) -> zarr.Group:
        """Write predictions as a zarr group."""
        bounds = rows.bounds(settings())
        chunk_rows = max(1, bounds[1] if len(bounds) > 1 else 1)
        if rows.grid is None and any(start % chunk_rows for start in bounds[:-1]):
            raise DataError(
                f"{rows.name}: expected chunks of equal size; use predict(), which returns a lazy array for such input"
            )
        predictor = Deviations(self._with_spread()) if std else self._predictor()
        flat = self._require("predict").inputs.flat is not False
        with prediction_store.publishing(target, overwrite=overwrite) as place:
            plain = Rows(rows.x, {}, rows.row_maps, rows.name)
            ids = {rows.id_column: rows.ids["id"]} if "id" in rows.ids else rows.ids
            if rows.grid is None:
                prediction_store.create(
                    place, predictor, len(rows), chunk_rows, decision=decision, flat=flat, std=std, ids=ids
                )
                writer = prediction_store.PredictionWriter(predictor, place, chunk_rows, decision, flat, std)
                prediction_store.fill(plain, writer)
            else:
                targets = self._require("predict").inputs.targets
                largest = max((stop - start for start, stop in pairwise(bounds)), default=1)
                on_grid = grid_store.create(
                    place, predictor, rows.grid, targets, chunk_rows=largest, decision=decision, std=std
                )
                prediction_store.fill(plain.skip_bad_rows(), on_grid)
        return prediction_store.open_predictions(target)


def _score(self: RowsEstimator, X: RowsLike, y: ColumnLike = None, sample_weight: ColumnLike = None) -> float:
    """Return R², or the accuracy of a classifier; of semi-supervised estimators over the rows with a label.

    Lazy input is scored by one sweep, without the rows that have no label, by its own labels unless y is given.
    """
    if is_lazy(X):
        return score(self.score_totals(X, y, sample_weight))
    return score_in_memory(self, np.asarray(self.predict(X)), y, sample_weight)


class Regressor(MultiOutputMixin, RegressorMixin, RowsEstimator):
    """Base of the regressors; comes before `LandmarkEstimator` among the bases."""

    @available(_adds_rows)
    def partial_fit(self, X: RowsLike, y: ColumnLike = None, sample_weight: ColumnLike = None) -> Self:
        """Add rows; the result is the fit to all rows with the landmarks that the first call chose."""
        return self._partial_fit(X, y, None, sample_weight)

    score = _score


class Classifier(ClassifierMixin, RowsEstimator):
    """Base of the classifiers; comes before `LandmarkEstimator` among the bases.

    The decision values of a calibrated model are the logits a ∘ f + b, plus the logarithms of the class weights.
    Predictions and decision values agree with each other, and with probabilities times these weights.
    """

    class_weight: dict[object, float] | str | None
    calibration_scale_ = Fitted[float]("calibration.scale")
    calibration_offset_ = Fitted[Array]("calibration.offset")

    @available(_adds_rows)
    def partial_fit(
        self, X: RowsLike, y: ColumnLike = None, classes: ColumnLike = None, sample_weight: ColumnLike = None
    ) -> Self:
        """Add rows, as in `KernelRidge.partial_fit`; `classes` lists all labels where the first rows lack some."""
        if self.class_weight == "balanced":
            raise ConfigError(
                "class_weight='balanced': not supported by partial_fit, as the class frequencies of all rows are "
                "unknown; pass a dict of weights, or fit all rows at once"
            )
        return self._partial_fit(X, y, classes, sample_weight)

    score = _score

    def decision_function(self, X: RowsLike) -> Array | da.Array:
        """Compute the values of f: (n, c), or (n,) for two classes (positive: the second)."""
        values = self._values(X)
        if len(self.classes_) == 2:
            return self._on_grid(X, values[:, 1] - values[:, 0])
        return self._on_grid(X, values, classes=self.classes_)

    @available(_gives_probabilities)
    def predict_proba(self, X: RowsLike) -> Array | da.Array:
        """Predict probabilities of the classes for the rows X, (n, c): an array, or a lazy Dask array for lazy input.

        Raises
        ------
        AttributeError
            The parameter `probability` is False.
        ConfigError
            It was False when the model was fitted.
        """
        return self._of_logits(X, softmax)

    @available(_gives_probabilities)
    def predict_log_proba(self, X: RowsLike) -> Array | da.Array:
        """Predict log-probabilities, finite even where `predict_proba` underflows."""
        return self._of_logits(X, log_softmax)

    def _of_logits(self, X: RowsLike, function: Callable[[Array], Array]) -> Array | da.Array:
        check_is_fitted(self)
        if not self._predictor().logits:
            raise ConfigError(f"{type(self).__name__}: fitted with probability=False; fit again with probability=True")
        values = self._predictor().logits_of(self._values(X))
        if not is_dask_array(values):
            return function(values)
        return self._on_grid(X, values.map_blocks(function, dtype=np.float64), classes=self.classes_)


def score_in_memory(estimator: BaseEstimator, predicted: Array, y: ColumnLike, sample_weight: ColumnLike) -> float:
    """Return accuracy or R² of rows in memory, of semi-supervised estimators for the rows with a label alone."""
    classifier = isinstance(estimator, ClassifierMixin)
    truth = labels_in_memory(estimator, y) if classifier else in_memory(y, "y")
    weight = validated_weight(sample_weight, len(predicted))
    if is_semi_supervised(estimator):
        check_consistent_length(truth, predicted)
        labelled = ~no_label(truth) if classifier else Targets(1).labelled(truth, 0)
        if not labelled.any():
            raise DataError("y: expected a labelled row to score against, found none")
        truth, predicted = truth[labelled], predicted[labelled]
        weight = None if weight is None else weight[labelled]
    elif not classifier:
        require_numbers(truth)
    metric = accuracy_score if classifier else r2_score
    return float(metric(truth, predicted, sample_weight=weight))


def _labels(values: Array, classes: Array) -> Array:
    chosen: Array = classes[np.argmax(values, axis=1)]
    return chosen


def training_values(rows: Rows, predictor: BlockPredictor) -> Array:
    """Compute f of rows of a fit, (n, c), where its sweeps run; NaN for bad rows that it skips."""
    if rows.in_memory:
        return _values_in_memory(rows, predictor)
    chosen = choose_executor(rows)
    scheduler = chosen.get if isinstance(chosen, Client) else {"serial": "synchronous"}.get(chosen, chosen)
    return np.asarray(_lazy_values(rows, predictor).compute(scheduler=scheduler))


def _values_in_memory(rows: Rows, predictor: BlockPredictor) -> Array:
    device = _work_for(len(rows)).device.name
    if isinstance(rows.x, NumpySource):
        return _chunk_values(predictor, rows, 0, len(rows), device=device)
    # in the blocks of dense rows, where these are no larger than a chunk, for the same bits
    n = len(rows)
    count = max(-(-n // Chunk.block_rows), -(-n * rows.row_bytes // settings().chunk_bytes), 1)
    bounds = [n * i // count for i in range(count + 1)]
    return np.concatenate([_chunk_values(predictor, rows, *piece, device=device) for piece in pairwise(bounds)])


def _work_for(count: int) -> Workspace:
    """Return the buffers for predictions of rows in memory: on the device, unless they are few."""
    return Workspace() if count < DEVICE_ROWS else Workspace(device=device_here())


def _lazy_values(rows: Rows, predictor: BlockPredictor) -> da.Array:
    """Return f of lazily read rows as a Dask array with their chunks; the model is one node of the graph."""
    from bigkernel.data import dask_arrays as da

    c = predictor.width
    model = dask.delayed(predictor, traverse=False)
    plain = Rows(rows.x, {}, rows.row_maps, rows.name, bad_rows=rows.bad_rows)
    if isinstance(rows.x, DaskSource):
        array = rows.x.dense
        return da.map_blocks(
            _block_values,
            array,
            predictor=model,
            rows=replace(plain, x=NumpySource(np.empty((0, rows.x.shape[1])))),
            block_rows=settings().block_rows,
            device=settings().device,
            dtype=np.float64,
            chunks=(array.chunks[0], (c,)),
            meta=np.empty((0, c)),
        )
    bounds = rows.bounds(settings())
    task = dask.delayed(_chunk_values, pure=False)
    chunks = [
        da.from_delayed(task(model, plain, start, stop, device=settings().device), (stop - start, c), np.float64)
        for start, stop in pairwise(bounds)
    ]
    return da.concatenate(chunks) if chunks else da.zeros((0, c))


def _block_values(x: Array, predictor: BlockPredictor, rows: Rows, block_rows: int, device: str) -> Array:
    return _chunk_values(predictor, replace(rows, x=NumpySource(x)), 0, len(x), block_rows, device)


def _chunk_values(
    predictor: BlockPredictor,
    rows: Rows,
    start: int,
    stop: int,
    block_rows: int = Chunk.block_rows,
    device: str = "cpu",
) -> Array:
    work = Workspace(device=device_of(device))
    chunk, bad = rows.validate_or_mask(replace(rows.read(start, stop), block_rows=block_rows, work=work))
    values = predictor.values(chunk)
    if bad:
        values[np.asarray(chunk.weight) == 0] = np.nan
    return values


@parameters
class LandmarkEstimator(RowsEstimator):
    """Base of the estimators on landmarks, with the parameters that these have in common."""

    kernel: Kernel | str = "rbf"
    _: KW_ONLY
    n_landmarks: int | None = None
    landmarks: str | ArrayLike = "uniform"
    gamma: float | str = "scale"
    degree: int = 3
    coef0: float = 1.0
    dtype: str = "auto"
    random_state: Seed = None
    verbose: int = 0
    kernel_ = Fitted[Kernel]("basis.kernel")
    dtype_ = Fitted[str]("basis.dtype")
    landmarks_ = Fitted[Array]("basis.landmarks")
    fourier_seed_ = Fitted[int]("basis.seed")
    fourier_origin_ = Fitted[Array]("basis.origin")
    rank_ = Fitted[int]("solution.rank")
    statistics_ = Fitted[Accumulator]("uncentred_statistics")
    sample_weight_ = Fitted[Array]("weight")
    # the method determines which of these exist
    n_iter_ = Fitted[int]("solution.iterations")
    eigenvalues_ = Fitted[Array]("solution.eigenvalues")
    n_components_ = Fitted[int]("solution.n_components")
    correlations_ = Fitted[Array]("solution.correlations")
    view_ranks_ = Fitted[tuple[int, int]]("solution.view_ranks")
    distributional_variance_ = Fitted[Mapping[str, float]]("solution.variance")
    training_log_loss_ = Fitted[float]("solution.log_loss")
    domains_ = Fitted[Array]("inputs.domains")
    source_domains_ = Fitted[Array]("inputs.source_domains")
    target_domains_ = Fitted[Array]("inputs.target_domains")

    def given_kernel(self) -> Kernel:
        """Return the kernel that the parameters name, before its bandwidth is set from rows."""
        return as_kernel(self.kernel, gamma=self.gamma, degree=self.degree, coef0=self.coef0)

    def _columns(self) -> BasisChoice:
        exact = self.n_landmarks is None and isinstance(self.landmarks, str)
        return BasisChoice(
            kernel=self.given_kernel(),
            landmarks=self.landmarks,
            count=self.n_landmarks,
            dtype=self.dtype,
            random_state=self.random_state,
            exact=exact,
        )

    def set_params(self, **params: object) -> Self:
        """Set parameters; `kernel__sigma` and the like turn a kernel given by name into the kernel itself."""
        if isinstance(self.kernel, str) and any(name.startswith("kernel__") for name in params):
            super().set_params(kernel=params.pop("kernel", self.kernel))
            if isinstance(self.kernel, str):
                super().set_params(kernel=self.given_kernel())
        result: Self = super().set_params(**params)
        return result

    def check_parameters(self) -> None:
        super().check_parameters()
        self._check_landmarks()
        self._method().check_settings(self._columns())

    def _check_landmarks(self) -> None:
        check_landmarks(self.landmarks, self.n_landmarks)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = is_precomputed(self.kernel)
        return tags

    def _row_map(self) -> Projection:
        """Return the map of a transformer, z(x) = φ(x)ᵀW + b."""
        return Projection(int(self.n_features_in_), cast(Predictor, self._predictor()))

    @property
    def n_landmarks_(self) -> int:
        """Number of landmarks, of each view where there are two."""
        basis = self._require("n_landmarks_").basis
        return int(basis.width) // basis.views

    @property
    def dual_coef_(self) -> Array:
        """Coefficients over the columns, (m, c); (m,) for one column of numbers."""
        fit = self._require("dual_coef_")
        coef: Array = fit.solution.coef
        return coef[:, 0] if fit.inputs.flat else coef

    def with_landmarks(self, count: int) -> Self:
        """Fit a model on `count` of the landmarks from the kept statistics, without a sweep.

        The moments of some landmarks are a subset of those of all, so one fit with many landmarks gives the fits with
        fewer. Sampled landmarks are subsampled at random, the same in every process, and smaller subsamples are subsets
        of larger ones; of a given array the first ones are taken. The kernel stays that of the fit.

        Parameters
        ----------
        count : int, from 1 to the number of landmarks of the fit

        Returns
        -------
        A fitted estimator with `n_landmarks=count`, which shares no statistics with this one.

        Raises
        ------
        ConfigError
            More landmarks than the fit has, or an exact fit, which keeps no statistics.

        Examples
        --------
        >>> import numpy as np
        >>> from bigkernel import Gaussian, KernelRidge
        >>> X = np.linspace(0, 6, 50)[:, None]
        >>> model = KernelRidge(Gaussian(sigma=0.5), alpha=0.01, n_landmarks=12, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> model.with_landmarks(5).dual_coef_.shape
        (5,)
        """
        check_is_fitted(self)
        method = self._method()
        refuse_folds(method, "with_landmarks")
        before = self._require_moments("fit with n_landmarks")
        columns = fitting.some_landmarks(before, method.graph, count, self._columns())
        fewer: Self = copy(self).set_params(n_landmarks=count)
        if not isinstance(self.landmarks, str):
            fewer.set_params(landmarks=self.landmarks_[columns])
        fewer._fitted = fitting.fit_columns(fewer._method(), before, columns)
        return fewer

    def fit_report(self) -> Report:
        """Describe the fit as plain data.

        Reports kernel, landmarks, rank, dtype, skipped bad rows, and the seconds, rates and peak memory of the sweep.
        `trace_error` is tr(K − K̂)/tr(K) of the landmarks (of the rows of the fit by their moments where k(x, x) = 1,
        otherwise of 256 rows; None for random features and for models from files with other kernels). `diagnostics`
        holds residual ratios of the solve (`solvers.residuals`; rounding leaves about 1, above 30 is an error),
        conditions of the core and of the solved matrix, effective degrees of freedom, the rounding of the moments, the
        numbers of duplicate landmarks and of features that are constant among them, and `prediction_error`: the
        distance of predictions from least squares in float64, relative to their norm (`solvers.ridge`,
        `solvers.accuracy`). With `probability`, the rows of the calibration and their log-loss are reported too.
        """
        check_is_fitted(self)
        fit = self._require("fit")
        basis = of_kernel(fit.basis)
        report = self._report(
            fit,
            kernel=basis.kernel.describe(),
            landmarks=basis.width,
            landmark_choice=self.landmarks if isinstance(self.landmarks, str) else "given",
            rank=int(fit.solution.rank),
            dtype=basis.dtype,
            sums=basis.sums or basis.dtype,
        )
        if isinstance(fit, MomentFit):
            report["trace_error"] = basis.trace_error(fit.moments)
        if not isinstance(fit, ExactFit):
            labelled = fit.statistics["rows"][-1] if isinstance(fit, MomentFit) else fit.rows
            report |= {"labelled_rows": int(labelled), "block_rows": settings().block_rows}
        calibration = fit.calibration
        if calibration is not None and calibration.rows:
            report |= {"calibration_rows": calibration.rows, "calibration_log_loss": calibration.log_loss}
        report |= fit.solution.report(fit)
        return report


class MeanAndStd(tuple[Array, ...]):
    """Predictions and their standard deviations, which TransformedTargetRegressor takes for one array."""

    @property
    def ndim(self) -> int:
        """Raise `ConfigError`: there are two arrays."""
        raise ConfigError(
            "return_std: gives two arrays; deviations of transformed targets have no inverse transform, so call "
            "predict(X, return_std=True) of the fitted regressor_ itself"
        )


def some_landmarks_choice(estimator: LandmarkEstimator) -> BasisChoice:
    """Return the choice of columns with `DEFAULT_LANDMARKS`, or half as many as rows, unless landmarks are given."""
    columns = LandmarkEstimator._columns(estimator)
    return replace(columns, exact=False, most=DEFAULT_LANDMARKS) if columns.exact else columns


def every_row_choice(estimator: LandmarkEstimator) -> BasisChoice:
    """Return the choice of columns where every row is a landmark unless `n_landmarks` is given."""
    return replace(LandmarkEstimator._columns(estimator), exact=False, every_row=type(estimator).__name__)
