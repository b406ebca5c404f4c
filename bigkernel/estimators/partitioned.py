"""Models of parts of the space: rows are split into leaves, each with a model of its own, blended at the borders.

The sums of L leaves that each have n/L rows and m landmarks cost as much as those of one model of m, beside L solves,
and they hold L·m landmarks.
Shapes: n rows, d features, c targets or classes, L leaves.
"""

from __future__ import annotations

import math
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from scipy import linalg
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, RegressorMixin, clone
from sklearn.dummy import DummyClassifier
from sklearn.ensemble._base import _set_random_states
from sklearn.pipeline import make_pipeline
from sklearn.utils import check_random_state, get_tags
from sklearn.utils._param_validation import HasMethods, Interval
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from bigkernel.arrays import Array, ColumnLike, RowsLike
from bigkernel.data.labels import named_labels
from bigkernel.engine.process import processors
from bigkernel.engine.rows import NumpySource, Rows, Source, as_rows
from bigkernel.engine.sweep import execution
from bigkernel.errors import DataError, RankDeficiencyWarning
from bigkernel.estimators.base import available, lacking, last_step, score_in_pieces, set_parameters
from bigkernel.estimators.inputs import input_rows, is_lazy, labels_in_memory, no_label, validate_input
from bigkernel.estimators.learned_metric import SAMPLE_BYTES, LearnedMetric
from bigkernel.estimators.ridge import KernelRidge, KernelRidgeClassifier
from bigkernel.events.job import Step, emit, job
from bigkernel.kernels.blas import one_thread
from bigkernel.kernels.functions import Gaussian
from bigkernel.kernels.landmarks import uniform

if TYPE_CHECKING:
    from sklearn.utils import Tags


_MOST_LANDMARKS, _FEWEST_LEARNED = 1000, 100  # landmarks and rows of a leaf whose estimator is not given


@dataclass(frozen=True, eq=False)
class Tree:
    """Splits of the space along directions; the subtree of a node with c leaves is the c − 1 nodes from it on.

    A row x goes left below `lower`, right above `upper`, and between them to both sides, with weights that change
    smoothly from one to the other.
    """

    directions: Array  # (L − 1, d)
    lower: Array  # (L − 1,) in units of x·direction
    upper: Array  # (L − 1,)

    @property
    def n_leaves(self) -> int:
        """L."""
        return len(self.lower) + 1

    def leaves(self, x: Array) -> Iterator[tuple[Array, Array]]:
        """Yield, for each leaf, the positions of its rows among x (n, d) and their weights, which sum to 1 a row."""
        yield from self._descend(x, np.arange(len(x)), np.ones(len(x)), 0, self.n_leaves)

    def _descend(self, x: Array, rows: Array, weight: Array, node: int, count: int) -> Iterator[tuple[Array, Array]]:
        if count == 1:
            yield rows, weight
            return
        share = self._right_share(_project(x[rows], self.directions[node]), node)
        left = count // 2
        for own, first, inner in ((1 - share, node + 1, left), (share, node + left, count - left)):
            here = own > 0
            yield from self._descend(x, rows[here], (weight * own)[here], first, inner)

    def _right_share(self, places: Array, node: int) -> Array:
        low, high = self.lower[node], self.upper[node]
        if not high > low:
            return np.asarray(places > low, np.float64)
        t = np.clip((places - low) / (high - low), 0, 1)
        return np.asarray(t * t * (3 - 2 * t))


def _project(x: Array, direction: Array) -> Array:
    """Return x·direction (n,), whose bits do not depend on the other rows."""
    return np.asarray(np.einsum("ij,j->i", x, direction, dtype=np.float64))


def grow(x: Array, n_leaves: int, overlap: float) -> Tree:
    """Split rows x (n, d) at equal shares along their principal direction, again and again.

    `overlap` is the share of a node's rows between the two borders of its split.
    """
    directions, lower, upper = [], [], []

    def split(x: Array, count: int) -> None:
        if count == 1:
            return
        left = count // 2
        direction = _principal_direction(x)
        places = _project(x, direction)
        share = left / count
        reach = overlap * min(share, 1 - share)
        low, middle, high = np.quantile(places, [share - reach, share, share + reach])
        if not places.max() > middle:  # beside many equal rows
            if not (places < middle).any():
                raise DataError(
                    f"n_leaves={n_leaves}: found a split of {len(places)} equal rows; expected fewer leaves"
                )
            low = middle = high = places[places < middle].max()
        directions.append(direction)
        lower.append(low)
        upper.append(high)
        split(x[places <= middle], left)
        split(x[places > middle], count - left)

    split(np.asarray(x, np.float64), n_leaves)
    return Tree(np.array(directions).reshape(-1, x.shape[1]), np.array(lower), np.array(upper))


def _principal_direction(x: Array) -> Array:
    """Return the unit vector (d,) along which rows vary most; its largest entry is positive."""
    d = x.shape[1]
    if len(x) < 2:
        return np.asarray(np.eye(d)[0])
    centred = x - x.mean(axis=0)
    centred /= np.abs(centred).max() or 1.0
    _, vectors = linalg.eigh(centred.T @ centred, subset_by_index=[d - 1, d - 1])
    direction: Array = vectors[:, 0]
    return np.asarray(direction if direction[np.argmax(np.abs(direction))] > 0 else -direction)


class _Partitioned(MetaEstimatorMixin, BaseEstimator):
    """Base of the estimators of leaves: tree, fit leaf by leaf, weighted sums of predictions."""

    _ridge: ClassVar[type[BaseEstimator]] = KernelRidge  # of a leaf whose estimator is not given
    _semi_supervised: ClassVar[bool] = False
    _parameter_constraints: ClassVar[dict[str, list[object]]] = {
        "estimator": [HasMethods(["fit", "predict"]), None],
        "n_leaves": [Interval(Integral, 1, None, closed="left")],
        "overlap": [Interval(Real, 0, 1, closed="left")],
        "n_samples": [Interval(Integral, 2, None, closed="left")],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        estimator: BaseEstimator | None = None,
        n_leaves: int = 16,
        *,
        overlap: float = 0.1,
        n_samples: int = 50_000,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        set_parameters(self, locals())

    def _fit(self, X: RowsLike, y: Array | None) -> Self:
        """Grow the tree on a sample, and fit a clone of the estimator to the rows of every leaf."""
        rng, rows = check_random_state(self.random_state), as_rows(X)
        if len(rows) < 2 * self.n_leaves:
            raise DataError(
                f"{rows.name}: n_samples={len(rows)}; expected at least two rows for each of {self.n_leaves} leaves"
            )
        # leaves are fitted side by side, each with one thread of BLAS; the sweeps of a run are numbered, so in order
        inside = execution.get()
        beside = processors() if inside.job is None and inside.client != "serial" else 1
        with job(f"fit {self.n_leaves} leaves"), one_thread(), ExitStack() as stack:
            count = min(self.n_samples, len(rows), max(2 * self.n_leaves, SAMPLE_BYTES // (8 * rows.shape[1])))
            ids = uniform(len(rows), count, rng, usable=rows.sound if rows.bad_rows == "skip" else None)
            self.tree_ = grow(rows.take(ids), self.n_leaves, self.overlap)
            # a learned kernel may be flat: landmarks beyond its rank are no fault of the user
            ignored = (RankDeficiencyWarning,) if self.estimator is None else ()
            stack.enter_context(_one_warning_each(self.n_leaves, ignored))
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bigkernel-leaves-")))
            pool = stack.enter_context(ThreadPoolExecutor(beside))
            fits: list[Future[BaseEstimator]] = []
            self.leaf_rows_ = np.zeros(self.n_leaves, np.int64)
            for leaf, (x, targets) in enumerate(_rows_by_leaf(X, rows, y, self.tree_, scratch)):
                self.leaf_rows_[leaf] = rows_here = as_rows(x).shape[0]
                model = clone(self._model(rows_here))
                _set_random_states(model, rng)
                fits.append(pool.submit(copy_context().run, self._fit_leaf, model, leaf, x, targets))
                if (ahead := leaf - beside + 1) >= 0:  # no more rows of leaves in memory than are fitted
                    fits[ahead].result()
                    emit(Step("fit leaves", ahead + 1, self.n_leaves))
            self.leaves_ = [fit.result() for fit in fits]
            emit(Step("fit leaves", self.n_leaves, self.n_leaves))
        return self

    def _model(self, rows: int = 2 * _MOST_LANDMARKS) -> BaseEstimator:
        """Return the estimator of a leaf with so many rows."""
        if self.estimator is not None:
            return self.estimator
        if rows < _FEWEST_LEARNED:
            return self._ridge(alpha="gcv")
        metric = LearnedMetric(method="gradient", n_landmarks=300, n_samples=16_000, max_iter=12)
        m = min(_MOST_LANDMARKS, rows // 2)
        return make_pipeline(metric, self._ridge(Gaussian(sigma=1.0), n_landmarks=m, alpha="gcv"))

    def _fit_leaf(self, model: BaseEstimator, leaf: int, x: RowsLike, y: Array | None) -> BaseEstimator:
        if isinstance(x, Rows) and not type(last_step(model)).__module__.startswith("bigkernel."):
            y = _labels(x) if isinstance(self, ClassifierMixin) else x.column("y")
            x = x.take(np.arange(len(x)))
        try:
            return model.fit(x, y)
        except DataError as error:
            rows = int(self.leaf_rows_[leaf])
            raise DataError(
                f"leaf {leaf + 1} of {self.n_leaves} with {rows:,} rows: {error}; with fewer leaves each has more rows"
            ) from error

    def _blend(self, X: RowsLike, width: int) -> Array:
        """Return the weighted sums (n, width) of the values of the leaves for rows X, read step by step."""
        check_is_fitted(self)
        if not is_lazy(X):
            X, _ = validate_input(self, X, reset=False)
            if isinstance(X, np.ndarray):
                return self._blend_in_memory(X, width)
        rows = replace(input_rows(self, X, reset=False), bad_rows="refuse")
        sums = np.empty((len(rows), width))
        for ids, part in rows.pieces():
            sums[ids] = self._blend_in_memory(part.take(np.arange(len(ids))), width)
        return sums

    def _blend_in_memory(self, x: Array, width: int) -> Array:
        sums = np.zeros((len(x), width))
        for model, (rows, weight) in zip(self.leaves_, self.tree_.leaves(x), strict=True):
            if len(rows):
                sums[rows] += weight[:, None] * self._values(model, x[rows])
        return sums

    def _values(self, model: BaseEstimator, x: Array) -> Array:
        """Return what a leaf predicts for rows x, (n, width)."""
        return np.asarray(model.predict(x), np.float64).reshape(len(x), -1)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        inner = get_tags(self._model())
        tags.input_tags.sparse = inner.input_tags.sparse
        tags.target_tags = inner.target_tags
        return tags


def _rows_by_leaf(
    X: RowsLike, rows: Rows, y: Array | None, tree: Tree, scratch: Path
) -> Iterator[tuple[RowsLike, Array | None]]:
    """Yield rows and targets of each leaf: of arrays by index, of other rows from files that one pass writes."""
    lazy, members = is_lazy(X), [[np.empty(0, np.int64)] for _ in range(tree.n_leaves)]
    for ids, part in rows.pieces():
        stored = part.x.read(0, len(ids))
        for leaf, (places, _) in enumerate(tree.leaves(part.take(np.arange(len(ids))))):
            members[leaf].append(ids[places])
            if lazy:
                with open(scratch / f"{leaf}.rows", "ab") as file:
                    file.write(np.ascontiguousarray(stored[places]).data)
    columns = {name: source.read(0, len(rows)) for name, source in rows.columns.items()} if lazy else {}
    for leaf, ids in enumerate(map(np.concatenate, members)):
        if not lazy:
            assert y is not None
            yield X[ids], y[ids]  # type: ignore[index]
            continue
        shape = (len(ids), *rows.x.shape[1:])
        x = np.memmap(scratch / f"{leaf}.rows", rows.dtype, "r", shape=shape) if len(ids) else rows.x.read(0, 0)
        own: dict[str, Source] = {name: NumpySource(values[ids]) for name, values in columns.items()}
        yield replace(rows, x=NumpySource(x), columns=own, ids={}), None


@contextmanager
def _one_warning_each(n_leaves: int, ignored: tuple[type[Warning], ...]) -> Iterator[None]:
    """Repeat the first warning of each category that was raised within the block, with their number."""
    with warnings.catch_warnings(record=True) as caught:
        for category in ignored:
            warnings.simplefilter("ignore", category)
        yield
    counts = Counter(one.category for one in caught)
    for one in caught:
        if count := counts.pop(one.category, 0):
            others = f" ({count} such warnings from {n_leaves} leaves)" if count > 1 else ""
            warnings.warn(f"{one.message}{others}", one.category, stacklevel=5)


class PartitionedRegressor(RegressorMixin, _Partitioned):
    """Split rows into leaves, fit a regressor to each, and blend the predictions of neighbours at the borders.

    The sums of L leaves of m landmarks cost as much as those of one model, beside L solves, and they hold L·m
    landmarks; each leaf may learn a metric, a width and a penalty of its own. Rows are split at the median along the
    direction in which they vary most, so a `LearnedMetric` before it makes it split along features that matter.

    Parameters
    ----------
    estimator : regressor or Pipeline, or None
        Cloned for every leaf. None: a `LearnedMetric` of at most 12 steps, and a `KernelRidge` with 1,000 landmarks,
        or half the rows of a leaf if these are fewer, whose penalty is chosen by generalised cross-validation.
    n_leaves : int
    overlap : float in [0, 1)
        Share of the rows of a split that both sides learn; their predictions change smoothly from one side to the
        other. 0: borders are hard.
    n_samples : int
        Number of rows on which the splits are found.
    random_state : int, RandomState or None

    Attributes
    ----------
    leaves_ : list of L fitted estimators
    leaf_rows_ : (L,) rows of each, with those that two share
    tree_ : the splits: `directions` (L − 1, d), `lower` and `upper` (L − 1,) borders along them

    Notes
    -----
    Rows that are not in memory are written leaf by leaf to the directory for temporary files, in one pass; there must
    be room for them, in the dtype in which they are stored.

    References
    ----------
    Beaglehole, Holzmüller, Radhakrishnan & Belkin, xRFM (ICLR 2026), for leaves with metrics of their own.

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import KernelRidge, Matern, PartitionedRegressor
    >>> x = np.linspace(0, 1, 2000)[:, None]
    >>> y = np.sin(100 * x[:, 0])
    >>> one = KernelRidge(Matern("scale"), n_landmarks=20, alpha="gcv", random_state=0)
    >>> leaves = PartitionedRegressor(one, n_leaves=16, random_state=0).fit(x, y)
    >>> bool(one.fit(x, y).score(x, y) < 0.6), bool(leaves.score(x, y) > 0.99)
    (True, True)
    """

    def fit(self, X: RowsLike, y: ColumnLike = None) -> Self:
        """Fit to rows X (n, d) and y (n,) or (n, c); y None for a corpus or Rows with their own.

        Raises
        ------
        DataError
            Rows or targets are not finite numbers, or a leaf has too few rows for its estimator.
        """
        self._validate_params()
        if is_lazy(X):
            rows = as_rows(input_rows(self, X, reset=True), y)
            if (column := rows.column("y")) is None:
                raise DataError(f"{rows.name}: PartitionedRegressor requires y to be passed, but the target y is None")
            self._target_shape = column.shape[1:]
            return self._fit(replace(as_rows(rows, column.astype(np.float64)), classes=()), None)
        X, targets = validate_input(self, X, y, reset=True, multi_output=True, y_numeric=True)
        targets = np.asarray(targets, np.float64)  # whole numbers are no classes
        self._target_shape = targets.shape[1:]
        return self._fit(X, targets)

    def predict(self, X: RowsLike) -> Array:
        """Predict targets (n,) or (n, c) of rows X (n, d), which are read step by step if they are not in memory."""
        check_is_fitted(self)
        return self._blend(X, math.prod(self._target_shape)).reshape(-1, *self._target_shape)

    def score(self, X: RowsLike, y: ColumnLike = None, sample_weight: ColumnLike = None) -> float:
        """Return R² of the predictions."""
        return score_in_pieces(self, X, y, sample_weight)


class PartitionedClassifier(ClassifierMixin, _Partitioned):
    """Split rows into leaves, fit a classifier to each, and blend their values at the borders.

    A leaf whose rows are all of one class predicts it. See `PartitionedRegressor`.

    Parameters
    ----------
    estimator : classifier or Pipeline, or None
        Cloned for every leaf. None: a `LearnedMetric` and a `KernelRidgeClassifier`, as in `PartitionedRegressor`.
    n_leaves, overlap, n_samples, random_state : as in `PartitionedRegressor`

    Attributes
    ----------
    classes_ : (c,)
    leaves_, leaf_rows_, tree_ : as in `PartitionedRegressor`

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import KernelRidgeClassifier, PartitionedClassifier
    >>> X = np.random.default_rng(0).uniform(size=(2000, 2))
    >>> y = (np.floor(6 * X) % 2).sum(axis=1) == 1  # a board of chess
    >>> one = KernelRidgeClassifier(n_landmarks=30, alpha="gcv", random_state=0)
    >>> leaves = PartitionedClassifier(one, n_leaves=16, random_state=0).fit(X, y)
    >>> bool(leaves.score(X, y) > one.fit(X, y).score(X, y) + 0.1)
    True
    """

    _ridge: ClassVar[type[BaseEstimator]] = KernelRidgeClassifier

    def fit(self, X: RowsLike, y: ColumnLike = None) -> Self:
        """Fit to rows X (n, d) and classes y (n,); y None for a corpus or Rows with their own. See the regressor."""
        self._validate_params()
        y = y if is_lazy(y) else labels_in_memory(self, y)
        if is_lazy(X):
            rows = input_rows(self, X, reset=True)
            if y is None and "y" not in rows.columns:
                raise DataError(f"{rows.name}: PartitionedClassifier requires y to be passed, but the target y is None")
            if y is None and rows.classes:
                self.classes_ = np.unique(rows.classes)
                return self._fit(rows, None)
            labels = np.asarray(as_rows(rows, y).column("y") if y is None or is_lazy(y) else y)
            self.classes_, codes = np.unique(labels[~no_label(labels)] if y is None else labels, return_inverse=True)
            rows = as_rows(rows, codes if labels.dtype.kind in "OTU" else labels)
            return self._fit(replace(rows, classes=tuple(self.classes_.tolist())), None)
        X, labels = validate_input(self, X, y, reset=True)
        check_classification_targets(labels)
        self.classes_ = np.unique(labels)
        return self._fit(X, labels)

    def decision_function(self, X: RowsLike) -> Array:
        """Compute the blended values (n, c) of the classes, (n,) of the second for two; near 1 for a sure class."""
        values = self._scores(X)
        return 2 * values[:, 1] - 1 if len(self.classes_) == 2 else values

    @available(lambda self: lacking(self._model(), "predict_proba"))
    def predict_proba(self, X: RowsLike) -> Array:
        """Compute the blended probabilities (n, c) of the leaves."""
        return self._scores(X)

    def predict(self, X: RowsLike) -> Array:
        """Predict classes (n,)."""
        scores = self._scores(X)
        return np.asarray(self.classes_[scores.argmax(axis=1)])

    def score(self, X: RowsLike, y: ColumnLike = None, sample_weight: ColumnLike = None) -> float:
        """Return the share of rows X whose class y is predicted; rows of a corpus without a label are left out."""
        return score_in_pieces(self, X, y, sample_weight)

    def _scores(self, X: RowsLike) -> Array:
        check_is_fitted(self)
        return self._blend(X, len(self.classes_))

    def _fit_leaf(self, model: BaseEstimator, leaf: int, x: RowsLike, y: Array | None) -> BaseEstimator:
        labels = _labels(x) if isinstance(x, Rows) else np.asarray(y)
        if len(found := np.unique(labels)) == 1:
            return DummyClassifier().fit(np.zeros((1, self.n_features_in_)), found)
        return super()._fit_leaf(model, leaf, x, y)

    def _values(self, model: BaseEstimator, x: Array) -> Array:
        """Return the probabilities of the classes, else values that are 1 for a sure class."""
        values = np.zeros((len(x), len(self.classes_)))
        if hasattr(model, "predict_proba"):
            own = model.predict_proba(x)
        else:
            own = np.asarray(model.decision_function(x))
            own = np.column_stack([1 - own, 1 + own]) / 2 if own.ndim == 1 else own
        values[:, np.searchsorted(self.classes_, model.classes_)] = own
        return values


def _labels(rows: Rows) -> Array:
    """Return the labels of the rows that have one, by name."""
    codes = rows.column("y")
    assert codes is not None
    labels = named_labels(codes, rows.classes)
    return labels if np.isin(-1, rows.classes) else labels[~no_label(labels)]
