"""Models of regions of the space: rows are split into leaves, each with a model of its own, blended at the borders.

The sums of L leaves that each have n/L rows and m landmarks cost as much as those of one model of m, beside L solves,
and they hold L·m landmarks. `engine.leaf_rows` writes rows by leaf, `leaf_fits` fits them, `statistics.blend` predicts.
Shapes: n rows, d features, c targets or classes, L leaves.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, replace
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

import dask
import numpy as np
from distributed import Client
from scipy import linalg
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.ensemble._base import _set_random_states
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval

from bigkernel.arrays import Array, ColumnLike, RowsLike
from bigkernel.config import settings
from bigkernel.data.atomic_write import remove_at_once, require_free, writing
from bigkernel.engine.context import forget
from bigkernel.engine.leaf_rows import LeafRows
from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import choose_executor, execution, plan_sweep, sweep
from bigkernel.errors import ConfigError, DataError, RankDeficiencyWarning
from bigkernel.estimators.base import Classifier, Regressor, RowsEstimator, last_step, parameters
from bigkernel.estimators.evaluation import FitReport
from bigkernel.estimators.fit.basis import draw_rows
from bigkernel.estimators.fit.state import BlendFit, Fitted
from bigkernel.estimators.inputs.class_weights import class_factors
from bigkernel.estimators.inputs.classes import is_semi_supervised
from bigkernel.estimators.inputs.training import Training
from bigkernel.estimators.ridge import KernelRidge, KernelRidgeClassifier
from bigkernel.estimators.tables.blended import Parameter, as_targets, parameters_of, require_member
from bigkernel.estimators.tables.leaf_fits import AllRows, LeafFits, LeafNumbers
from bigkernel.estimators.tables.learned_metric import LearnedMetric, importances_of
from bigkernel.kernels.functions import Gaussian
from bigkernel.statistics.blend import AnyPredictor, Blend, Member, Tree, project
from bigkernel.streaming.plan import Plan

if TYPE_CHECKING:
    import dask.array as da

_MOST_LANDMARKS, _FEWEST_LEARNED = 1000, 100  # landmarks and rows of a leaf whose estimator is not given
_SAMPLE_BYTES = 2**27  # most bytes of the rows on which the tree is grown
_MODULE_BYTES = 2**27  # of scikit-learn and what it imports, in a worker
_OTHER_BYTES = 2**26  # of a fit: modules that it imports, small arrays
_MATRICES = 13  # m×m matrices of float64 in the fit of a leaf, at most: those of a QR factorisation
_OF_SPREAD = 8  # more of them, with standard deviations


def grow(x: Array, n_leaves: int, overlap: float, *, evenly: bool = False) -> Tree:
    """Split rows x (n, d) at equal shares along their principal direction, again and again.

    `overlap` is the share of a node's rows between the two borders of its split; `evenly`: only of the last splits, and
    those above have borders that are as far apart.
    """
    directions, lower, upper = [], [], []

    def split(x: Array, count: int) -> None:
        if count == 1:
            return
        left = count // 2
        direction = _principal_direction(x)
        places = project(x, direction)
        share = left / count
        # a node of c leaves is c^(1/d) times as wide as one
        reach = overlap * min(share, 1 - share) * ((2 / count) ** (1 / x.shape[1]) if evenly else 1)
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


@parameters
class _Partitioned(MetaEstimatorMixin, RowsEstimator):
    """Base of the estimators of leaves: a tree, and a fit of every leaf."""

    tree_ = Fitted[Tree]("blend.shares")
    leaves_ = Fitted[tuple[Member, ...]]("blend.members")
    _keeps_sums = False
    _evenly: ClassVar[bool] = False  # whether all borders are as far apart
    _ridge: ClassVar[type[KernelRidge | KernelRidgeClassifier]] = KernelRidge  # of a leaf whose estimator is not given
    posterior = False  # whether leaves keep what standard deviations need
    _parameter_constraints: ClassVar[dict[str, list[object]]] = {
        "estimator": [HasMethods(["fit", "predict"]), None],
        "n_leaves": [Interval(Integral, 1, None, closed="left")],
        "overlap": [Interval(Real, 0, 1, closed="left")],
        "n_samples": [Interval(Integral, 2, None, closed="left")],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    estimator: BaseEstimator | None = None
    n_leaves: int = 16
    _: KW_ONLY
    overlap: float = 0.1
    n_samples: int = 50_000
    random_state: int | np.random.RandomState | None = None
    verbose: int = 0

    @property
    def _semi_supervised(self) -> bool:  # type: ignore[override]
        return is_semi_supervised(last_step(self._model()))

    @property
    def leaf_rows_(self) -> Array:
        """Rows of each leaf (L,), with those that two share."""
        return np.array([leaf.rows for leaf in self.leaves_])

    @property
    def feature_importances_(self) -> Array:
        """Mean of the importances of the features (d,) in leaves that begin with a `LearnedMetric`."""
        first = next(iter(getattr(self._model(), "steps", [("", None)])))[1]
        if not isinstance(first, LearnedMetric):
            raise AttributeError("feature_importances_: leaves learn no metric")
        each = [importances_of(leaf.row_maps[0]) for leaf in self.leaves_ if leaf.row_maps]
        return np.asarray(np.mean(each, axis=0))

    # -- fitting -------------------------------------------------------------------------------------------------------

    def check_parameters(self) -> None:
        super().check_parameters()
        require_member(self._model(), "estimator", classifies=isinstance(self, ClassifierMixin))

    def _fit_members(self, data: Training) -> BlendFit:
        self._require_rows(data)
        rng = check_random_state(self.random_state)
        with _directory() as directory:
            source, counts = self._route(data, directory, rng)
            leaves = self._fit_leaves(self._fits(data, source, counts, rng), data.rows)
        return BlendFit(data.inputs, Blend(source.tree, leaves, data.inputs.classes))

    def _require_rows(self, data: Training) -> None:
        if len(data.rows) < 2 * self.n_leaves:
            raise DataError(
                f"{data.rows.name}: n_samples={len(data.rows)}; expected at least two rows for each of "
                f"{self.n_leaves} leaves"
            )

    def _route(self, data: Training, directory: Path, rng: np.random.RandomState) -> tuple[LeafRows, Array]:
        """Grow the tree on a sample, and write rows by leaf; return what reads them, and their numbers (L,)."""
        rows = data.rows
        count = min(self.n_samples, len(rows), max(2 * self.n_leaves, _SAMPLE_BYTES // (8 * rows.shape[1])))
        sample = rows.take(draw_rows(rows, count, rng))
        tree = grow(sample, self.n_leaves, self.overlap, evenly=self._evenly)
        source = LeafRows.of(tree, as_targets(data), directory, rows, rows.bounds(settings()))
        shared = sum(len(places) for places, _ in tree.leaves(sample)) / len(sample)
        require_free(directory, int(shared * len(rows) * source.dtype.itemsize), "the rows of leaves")
        counts = sweep(rows, source, what="route").total["rows"]
        return source, counts.astype(np.int64)

    def _fits(self, data: Training, source: LeafRows, counts: Array, rng: np.random.RandomState) -> LeafFits:
        """Return the statistic that fits leaves of so many rows (L,)."""
        rows, targets, config = data.rows, as_targets(data), settings()
        models = [_by_position(clone(self._model(int(count))), data.inputs.classes) for count in counts]
        for model in models:
            _set_random_states(model, rng)
        most, d = int(counts.max()), rows.shape[1]
        m, widest = _columns(models[counts.argmax()], rows.window(0, min(most, len(rows))), most)
        row_bytes = rows.row_bytes + 8 * (d * bool(rows.row_maps) + widest + targets.width + 2)
        parameters = dict(parameters_of(self, type(self).__name__))
        parameters |= {
            name: Parameter(getattr(config, name)) for name in ("segment_rows", "min_segments", "chunk_bytes")
        }
        seeds = [
            value for model in models for name, value in model.get_params().items() if name.endswith("random_state")
        ]
        sample = _sample_bytes(models[counts.argmax()], most, d)
        matrices = _MATRICES + _OF_SPREAD * self.posterior
        block_bytes = config.block_rows * 8 * (m + 2 * widest) + 8 * m * (matrices * m + 6 * targets.width)
        return LeafFits(
            source=source,
            rows=AllRows(rows, targets),
            models=tuple(models),
            parameters={**parameters, "random_state": Parameter(tuple(seeds))},
            config=config,
            fit_bytes=_OTHER_BYTES + 2 * most * row_bytes + sample + block_bytes,
            module_bytes=_MODULE_BYTES if isinstance(choose_executor(rows), Client) else 0,
            fit_flops=float(np.mean(counts * (2.0 * widest + m) * m + 10.0 * m**3)),
            spread=self.posterior,
        )

    def _fit_leaves(self, fits: LeafFits, rows: Rows) -> tuple[Member, ...]:
        """Fit all leaves, on any executor, and read them; do again what a run has lost."""
        numbers = Rows(LeafNumbers(len(fits.models)), name=rows.name)
        # a learned kernel may be flat: landmarks beyond its rank are no fault of the user
        ignored = RankDeficiencyWarning if self.estimator is None else None
        with warnings.catch_warnings():
            if ignored is not None:
                warnings.simplefilter("ignore", ignored)
            if not (fits.source.is_complete() or fits.is_complete()):
                forget("route")
                sweep(rows, fits.source, what="route")
            sweep(numbers, fits, client=choose_executor(rows), what="leaves")
            if not fits.is_complete():
                forget("leaves")
                sweep(numbers, fits, client=choose_executor(rows), what="leaves")
        return fits.read(ignored)

    def plan(self, X: RowsLike, y: ColumnLike = None, sample_domain: ColumnLike = None) -> Plan:
        """Return the plan of the sweep that fits the leaves, for leaves of equal size; nothing is run."""
        self.check_parameters()
        data = clone(self)._read_fit(X, y, sample_domain, None)
        self._require_rows(data)
        tree = Tree(np.zeros((self.n_leaves - 1, data.rows.shape[1])), *np.zeros((2, self.n_leaves - 1)))
        each = -(-len(data.rows) // self.n_leaves)
        counts = np.full(self.n_leaves, int(each * (1 + self.overlap) ** np.log2(self.n_leaves)))
        source = LeafRows.of(tree, as_targets(data), Path(), data.rows, (0,))
        fits = self._fits(data, source, counts, np.random.RandomState(0))
        steps = plan_sweep(Rows(LeafNumbers(self.n_leaves), name=data.rows.name), fits)
        read = len(data.rows) * data.rows.row_bytes
        return replace(steps, n_rows=len(data.rows), n_features=data.rows.x.shape[1], bytes_read=read)

    def _model(self, rows: int = 2 * _MOST_LANDMARKS) -> BaseEstimator:
        """Return the estimator of a leaf with so many rows."""
        if self.estimator is not None:
            return self.estimator
        if rows < _FEWEST_LEARNED:
            return self._ridge(alpha="cv")
        m = min(_MOST_LANDMARKS, rows // 2)
        model: BaseEstimator = make_pipeline(leaf_metric(), self._ridge(Gaussian(sigma=1.0), n_landmarks=m, alpha="cv"))
        return model

    def fit_report(self) -> FitReport:
        """Describe the fit as plain data: rows, landmarks and penalties of the leaves, and the largest error estimate.

        `prediction_error` is the largest of those of the leaves; see `KernelRidge.fit_report`.
        """
        leaves = self.leaves_
        rows, alphas = self.leaf_rows_, [leaf.alpha for leaf in leaves if leaf.alpha is not None]
        wrong = [leaf.prediction_error for leaf in leaves if leaf.prediction_error is not None]
        return FitReport(
            estimator=type(self).__name__,
            leaves=len(leaves),
            landmarks=sum(leaf.predictor.n_landmarks for leaf in leaves),
            leaf_rows={"least": int(rows.min()), "median": float(np.median(rows)), "most": int(rows.max())},
            alpha={"least": min(alphas), "most": max(alphas)} if alphas else {},
            diagnostics={"prediction_error": max(wrong)} if wrong else {},
        )


def leaf_metric() -> LearnedMetric:
    """Return a metric that is learned in a second or so, for each of many leaves."""
    return LearnedMetric(method="gradient", n_landmarks=300, n_samples=16_000, max_iter=12)


def _by_position(model: BaseEstimator, labels: Array | None) -> BaseEstimator:
    """Return a model whose class weights are those of the positions of labels, as leaves have them."""
    last = last_step(model)
    if labels is not None and isinstance(weights := getattr(last, "class_weight", None), Mapping):
        last.set_params(class_weight=dict(enumerate(class_factors(weights, labels))))
    return model


def _columns(model: BaseEstimator, rows: Rows, count: int) -> tuple[int, int]:
    """Return the most columns of the sums of a model fitted to so many rows, and of its rows after row maps."""
    widths = [rows.shape[1]]
    before = [step for _, step in model.steps[:-1]] if isinstance(model, Pipeline) else []
    for step in (one for one in before if hasattr(one, "_row_map")):
        learns = bool(getattr(step, "learns", "")) or isinstance(step, LearnedMetric)
        rows = step.widest(rows) if learns else clone(step).fit(rows).transform(rows)
        widths.append(rows.shape[1])
    last = last_step(model)
    inner = [one for _, one in getattr(last, "estimators", ())]  # stages, or the model of leaves
    inner += [last._model(count)] if isinstance(last, _Partitioned) else []
    if inner:
        each = [_columns(one, rows, count) for one in inner]
        return max(m for m, _ in each), max(*widths, *(width for _, width in each))
    views = cast(RowsEstimator, last).n_views
    return views * min(count, getattr(last, "n_landmarks", rows.shape[1]) or count), max(widths)


def _lacks_spread(leaf: Member) -> bool:
    if isinstance(leaf.predictor, Blend):
        return any(_lacks_spread(inner) for inner in leaf.predictor.members)
    return leaf.predictor.spread is None


def _sample_bytes(model: BaseEstimator, rows: int, d: int) -> int:
    """Return the bytes of the samples on which steps of a model learn a metric."""
    learning = [step for _, step in getattr(model, "steps", ()) if isinstance(step, LearnedMetric)]
    return sum(min(rows, step.n_samples) * (12 * step.n_landmarks + 16 * d) for step in learning)


@contextmanager
def _directory() -> Iterator[Path]:
    """Yield a directory for the files of a fit: in the run, where models stay, or a temporary one."""
    inside = execution.get().job
    if inside is None:
        place = dask.config.get("temporary-directory", None) or tempfile.gettempdir()
        if not os.path.isdir(place):
            raise ConfigError(f"temporary-directory: expected a directory for the rows of leaves, found {place!r}")
        with writing(place):
            scratch = Path(tempfile.mkdtemp(prefix="bigkernel-leaves-", dir=place))
        try:
            yield scratch
        finally:
            remove_at_once(scratch)
        return
    directory = inside.next("files-of-leaves")
    directory.mkdir(parents=True, exist_ok=True)
    yield directory
    for rows in directory.glob("*.rows"):  # the models stay, so that a resumed run has them
        rows.unlink()


@parameters
class PartitionedRegressor(_Partitioned, Regressor):
    """Split rows into leaves, fit a regressor to each, and blend the predictions of neighbours at the borders.

    The sums of L leaves of m landmarks cost as much as those of one model, beside L solves, and they hold L·m
    landmarks; each leaf may learn a metric, a width and a penalty of its own. Rows are split at the median along the
    direction in which they vary most, so a `LearnedMetric` before it makes it split along features that matter.

    Parameters
    ----------
    estimator : regressor of bigkernel, or a Pipeline of its transformers that ends with one, or None
        Cloned for every leaf. None: a `LearnedMetric` of at most 12 steps, and a `KernelRidge` with 1,000 landmarks,
        or half the rows of a leaf if these are fewer, whose penalty is chosen by generalised cross-validation.
    n_leaves : int
    overlap : float in [0, 1)
        Share of the rows of a split that both sides learn; their predictions change smoothly from one side to the
        other. 0: borders are hard.
    n_samples : int
        Number of rows on which the splits are found.
    posterior : bool, default False
        Whether leaves of `KernelRidge` keep the covariance of their Gaussian processes, for
        ``predict(X, return_std=True)``: 16 m² bytes each, in memory and in files; those of exact leaves
        are computed again for each block of rows.
    random_state : int, RandomState or None
    verbose : int
        1: show progress.

    Attributes
    ----------
    leaves_ : tuple of L models: `row_maps`, `predictor`, number of `rows`, `alpha` and `prediction_error` of the fit
    leaf_rows_ : (L,) rows of each, with those that two share
    tree_ : the splits: `directions` (L − 1, d), `lower` and `upper` (L − 1,) borders along them

    Notes
    -----
    `fit` raises `ConfigError` for an estimator that is none of bigkernel, and `DataError` for a leaf with too few rows.
    Rows that are not in memory are written leaf by leaf, as they are stored, to the run of `executing`, or to Dask's
    or the system's directory for temporary files; there must be room for them. Workers on other machines need a run.
    Leaves are fitted side by side, each by one task and with one thread of BLAS, and keep no sums. Weights count in
    their fits, not in the splits.

    References
    ----------
    Beaglehole, Holzmüller, Radhakrishnan & Belkin, xRFM (ICLR 2026), for leaves with metrics of their own.

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import KernelRidge, Matern, PartitionedRegressor
    >>> x = np.linspace(0, 1, 2000)[:, None]
    >>> y = np.sin(100 * x[:, 0])
    >>> one = KernelRidge(Matern("scale"), n_landmarks=20, alpha="cv", random_state=0)
    >>> leaves = PartitionedRegressor(one, n_leaves=16, random_state=0).fit(x, y)
    >>> bool(one.fit(x, y).score(x, y) < 0.6), bool(leaves.score(x, y) > 0.99)
    (True, True)
    """

    _parameter_constraints: ClassVar[dict[str, list[object]]] = {
        **_Partitioned._parameter_constraints,
        "posterior": ["boolean"],
    }

    _: KW_ONLY
    posterior: bool = False

    def check_parameters(self) -> None:
        super().check_parameters()
        last = last_step(self._model())
        if self.posterior and not (getattr(last, "posterior", False) or isinstance(last, KernelRidge)):
            raise ConfigError(f"posterior: expected leaves of KernelRidge, found {type(last).__name__}")

    def predict(self, X: RowsLike, return_std: bool = False) -> Array | da.Array | tuple[Array, Array]:
        """Predict numbers (n,) or (n, c) of the rows X, and with `return_std` the standard deviations of observations.

        Returns what `KernelRidge.predict` returns. Deviations are those of a mixture of the processes of the leaves of
        a row: Σ w (s² + (f_ℓ − f)²), with the weights w of the blend. They need a fit with ``posterior=True``.
        """
        return self._mean_and_std(X) if return_std else super().predict(X)

    def _with_spread(self) -> AnyPredictor:
        if not self.posterior or any(_lacks_spread(leaf) for leaf in self.leaves_):
            raise ConfigError("return_std: the leaves kept no covariance; fit with posterior=True")
        return self._expansion()


class PartitionedClassifier(_Partitioned, Classifier):
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
    >>> one = KernelRidgeClassifier(n_landmarks=30, alpha="cv", random_state=0)
    >>> leaves = PartitionedClassifier(one, n_leaves=16, random_state=0).fit(X, y)
    >>> bool(leaves.score(X, y) > one.fit(X, y).score(X, y) + 0.1)
    True
    """

    _ridge: ClassVar[type[KernelRidge | KernelRidgeClassifier]] = KernelRidgeClassifier

    @property
    def probability(self) -> bool:
        """Whether the leaves give probabilities."""
        if self.__sklearn_is_fitted__():
            return self._predictor().logits
        return hasattr(last_step(self._model()), "predict_proba")
