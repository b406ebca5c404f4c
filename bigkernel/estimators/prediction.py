"""Predictions of all estimators: f(X) = φ(X)ᵀW + b of rows in memory, and lazily, or on disk, of all others.

What all rows share (landmarks prepared for blocks, coefficients in their dtype) is made from a fit once and kept beside
it, in this process alone. A fit is an immutable value, so another one has predictions of its own, and what was kept of
one that is gone goes with it. Shapes: n rows, p columns of φ, c targets.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import dask
import numpy as np
import zarr
from numpy.typing import NDArray
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from bigkernel.config import settings
from bigkernel.data.atomic_write import publishing
from bigkernel.data.targets import claimed, require_target
from bigkernel.engine import prediction_store
from bigkernel.engine.rows import Rows
from bigkernel.engine.sources import DaskSource, SparseSource, is_dask_array
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators.fit_state import StatefulEstimator
from bigkernel.estimators.inputs import input_rows, is_sound
from bigkernel.statistics.predictor import Predictor
from bigkernel.streaming.chunk import Chunk, RowMap

if TYPE_CHECKING:
    import dask.array as da

Array = NDArray[Any]
_KEPT: WeakKeyDictionary[Any, Predictor] = WeakKeyDictionary()  # of fits


def kept(fit: Any, make: Callable[[], Predictor]) -> Predictor:
    """The predictor of a fit: what is made of it first, as long as the fit is there."""
    found = _KEPT.get(fit)
    return _KEPT.setdefault(fit, make()) if found is None else found


class PredictingEstimator(StatefulEstimator):
    """Base of the estimators that predict: a subclass says how rows become features (`_features`)."""

    def _features(self) -> Any:
        raise TypeError(f"{type(self).__name__} has no features")

    def _coefficients(self) -> tuple[Array, Array]:
        """W (p, c) and b (c,) over the features."""
        solution = self._fitted.solution  # type: ignore[union-attr]
        return solution.coef, solution.intercept

    def _predictor(self) -> Predictor:
        """The fitted model as plain data."""
        coef, intercept = self._coefficients()
        return Predictor.of(self._features(), coef, intercept, self.classes_ if is_classifier(self) else None)

    def _kept_predictor(self) -> Predictor:
        """The fitted model as plain data, the same for all calls of the same fit."""
        return kept(self._fitted, self._predictor)

    def _values(self, X: Any, make: Callable[[], Predictor] | None = None) -> Any:
        """f(X), (n, c), or the values of another predictor: an array, or a lazy Dask array."""
        if self._fitted is None:
            check_is_fitted(self)
        make = make or self._kept_predictor
        if is_sound(self, X):
            return make().values(Chunk(X))
        rows = input_rows(self, X, reset=False)
        if isinstance(rows.x, SparseSource):
            predictor, n = make(), len(rows)
            # the blocks of dense rows, where these are no larger than a chunk: the same bits
            parts = max(-(-n // Chunk.block_rows), -(-n * rows.row_bytes // settings().chunk_bytes), 1)
            bounds = [n * i // parts for i in range(parts + 1)]
            return np.concatenate([_part_values(predictor, rows, *piece) for piece in pairwise(bounds)])
        return _part_values(make(), rows, 0, len(rows)) if rows.in_memory else _lazy_values(rows, make())

    def _from_values(self, values: Any) -> Any:
        inputs = self._require("predict").inputs
        if inputs.classes is None:
            return values[:, 0] if inputs.flat else values
        if is_dask_array(values):
            return values.map_blocks(_labels, inputs.classes, dtype=inputs.classes.dtype, drop_axis=1)
        return _labels(values, inputs.classes)

    def _expansion(self) -> Predictor:
        """Return the fitted model as plain data, its landmarks whole: what a file holds."""
        check_is_fitted(self)
        return replace(self._kept_predictor(), features=self._features())

    def predict(self, X: Any) -> Any:
        """Predicted labels (n,) or numbers (n,) or (n, c) of the rows X.

        A NumPy array for NumPy input, a lazy Dask array for Dask and zarr arrays, corpora and Rows.
        """
        return self._from_values(self._values(X))

    def _spread_predictor(self) -> Predictor:
        """The predictor whose values end with a standard deviation."""
        raise ConfigError(f"std: {type(self).__name__} has no predictive standard deviation; KernelRidge has")

    def predict_to(
        self,
        X: Any,
        path: str | os.PathLike[str],
        *,
        decision: bool = False,
        std: bool = False,
        overwrite: bool = False,
    ) -> zarr.Group:
        """Predict the rows of a zarr array or corpus on the workers and write the predictions to disk.

        Parameters
        ----------
        X : corpus, zarr array or Rows of one
        path : where a group with `prediction` (and `decision` (n, c) or `std` (n,) where asked) appears, whole or not
            at all
        std : write the standard deviation of an observation too, as `KernelRidge.predict(…, return_std=True)`

        Inside `executing(run=…)` an interrupted call leaves its chunks beside `path`, and `resume` goes on with them.
        """
        check_is_fitted(self)
        require_target(path, "the prediction store")
        rows = input_rows(self, X, reset=False)
        bounds = rows.bounds(settings())
        chunk_rows = max(1, bounds[1] if len(bounds) > 1 else 1)
        if any(start % chunk_rows for start in bounds[:-1]):
            raise DataError(f"{rows.name}: chunks of unequal size; predict() gives a lazy array for such input")
        predictor = self._spread_predictor() if std else self._kept_predictor()
        flat = self._fitted.inputs.flat is not False  # type: ignore[union-attr]
        keep, resume = prediction_store.kept_for_run()
        with (
            claimed(path, "the prediction store"),
            publishing(path, kind="predictions", overwrite=overwrite, keep=keep, resume=resume) as scratch,
        ):
            prediction_store.create(scratch, predictor, len(rows), chunk_rows, decision=decision, flat=flat, std=std)
            writer = prediction_store.PredictionWriter(
                predictor, str(scratch.absolute()), chunk_rows, decision, flat, std
            )
            prediction_store.fill(Rows(rows.x, {}, rows.row_maps, rows.name), writer)
        return prediction_store.open_predictions(path)


class DecisionMixin:
    """`decision_function` of the classifiers."""

    def decision_function(self, X: Any) -> Any:
        """Values of f: (n, c), or (n,) for two classes (positive: the second)."""
        values = self._values(X)  # type: ignore[attr-defined]
        return values[:, 1] - values[:, 0] if len(self.classes_) == 2 else values  # type: ignore[attr-defined]


def _labels(values: Array, classes: Array) -> Array:
    chosen: Array = classes[np.argmax(values, axis=1)]
    return chosen


def _lazy_values(rows: Rows, predictor: Predictor) -> da.Array:
    """f of lazily read rows as a Dask array with their chunks; the model travels once, as one node of the graph."""
    import dask.array as da

    c = predictor.width
    model = dask.delayed(predictor, traverse=False)
    if isinstance(rows.x, DaskSource):
        array = rows.x.array
        return da.map_blocks(
            _block_values,
            array,
            predictor=model,
            row_maps=rows.row_maps,
            block_rows=settings().block_rows,
            dtype=np.float64,
            chunks=(array.chunks[0], (c,)),
            meta=np.empty((0, c)),
        )
    bounds = rows.bounds(settings())
    task = dask.delayed(_part_values, pure=False)
    plain = Rows(rows.x, {}, rows.row_maps, rows.name)
    parts = [
        da.from_delayed(task(model, plain, start, stop), (stop - start, c), np.float64)
        for start, stop in pairwise(bounds)
    ]
    return da.concatenate(parts) if parts else da.zeros((0, c))


def _block_values(x: Array, predictor: Predictor, row_maps: tuple[RowMap, ...], block_rows: int) -> Array:
    chunk = Chunk(x, row_maps=row_maps, block_rows=block_rows)
    chunk.require_finite("X")
    return predictor.values(chunk)


def _part_values(predictor: Predictor, rows: Rows, start: int, stop: int) -> Array:
    chunk = rows.read(start, stop)
    chunk.require_finite(rows.name)
    return predictor.values(chunk)
