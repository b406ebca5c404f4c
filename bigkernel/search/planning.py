"""Plan a search before it runs: its candidates, the sweeps that evaluate them, and their cost.

Candidates with the same transforms share rows; those with the same landmarks whose kernels have a common argument share
a sweep; those with the same kernel share its moments. Tests: search/test_announced.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from dask.base import tokenize
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.compose import TransformedTargetRegressor
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import get_tags
from sklearn.utils.validation import check_array, has_fit_parameter

from bigkernel.arrays import Array, ColumnLike, RowsLike
from bigkernel.data.containers import in_memory
from bigkernel.engine.rows import Rows, source_of
from bigkernel.engine.sweep import plan_sweep
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators.adaptation.labelled_rows import LabelledRowsClassifier, with_labels
from bigkernel.estimators.adaptation.self_training import AdaptingMethod
from bigkernel.estimators.base import RowsEstimator, last_step, method_of
from bigkernel.estimators.fit.basis import FOURIER, BasisChoice, LandmarkBasis, RowChoice, of_kernel
from bigkernel.estimators.fit.method import holds_out
from bigkernel.estimators.fit.state import Columns
from bigkernel.estimators.inputs.checks import chosen_by_folds
from bigkernel.estimators.inputs.class_weights import without_class_weights
from bigkernel.estimators.inputs.classes import is_semi_supervised
from bigkernel.estimators.inputs.columns import is_lazy
from bigkernel.estimators.inputs.training import Training
from bigkernel.estimators.ridge import RidgeMethod, choose_solver
from bigkernel.events.job import Event, SweepStarted, observe
from bigkernel.html import columns, table
from bigkernel.kernels.algebra import Kernel
from bigkernel.kernels.feature_maps import group_by_argument
from bigkernel.search.adapting import AdaptingSweep, with_sides
from bigkernel.search.conjugate_gradients import CGSweep, by_ridge
from bigkernel.search.domain_scoring import Domains
from bigkernel.search.judging import Work, value_sweeps
from bigkernel.search.scorers import require_served
from bigkernel.search.scoring import Scoring
from bigkernel.search.splits import Partition, SpatialKFold, partitions, refuse_groups
from bigkernel.search.sweeps import Candidate, GridSweep, KernelGroup, PlanLine, SearchData
from bigkernel.statistics.domain_cells import CellTargets
from bigkernel.statistics.moments import Targets


@dataclass(eq=False)
class Prepared:
    """Candidates with the same transforms: their fitted steps, and the work that evaluates them.

    `learned` lists the sweeps that fitted the transforms; `wrapper` transforms the targets.
    """

    members: list[Candidate]
    steps: Pipeline | None
    work: Work
    learned: tuple[SweepStarted, ...]
    wrapper: TransformedTargetRegressor | None = None

    def fitted(self, candidate: Candidate) -> BaseEstimator:
        """Return the model of a candidate with its fitted steps and last step."""
        model: BaseEstimator = candidate.last
        if candidate.labelled:
            model = LabelledRowsClassifier(clone(candidate.last))
            model.__dict__.update(estimator_=candidate.last)
        model = self._wrap(model) if candidate.wraps_last else model
        if isinstance(candidate.model, Pipeline):
            steps = [] if self.steps is None else self.steps.steps
            model = Pipeline([*steps, (candidate.model.steps[-1][0], model)])
        return model if candidate.wraps_last else self._wrap(model)

    def _wrap(self, model: BaseEstimator) -> BaseEstimator:
        """Return a fitted model in what transforms its targets, with the attributes of scikit-learn's own fit."""
        if self.wrapper is None:
            return model
        wrapper = self.wrapper.set_params(regressor=clone(model))
        names = {"feature_names_in_": model.feature_names_in_} if hasattr(model, "feature_names_in_") else {}
        vars(wrapper).update(names, regressor_=model)
        return cast(BaseEstimator, wrapper)


@dataclass(frozen=True, eq=False)
class Given:
    """The arguments of `fit`: rows, targets, and other columns."""

    X: RowsLike
    y: ColumnLike = None
    groups: ColumnLike = None
    sample_weight: ColumnLike = None
    sample_domain: ColumnLike = None


def candidates_of(estimator: BaseEstimator, grid: Iterable[Mapping[str, object]]) -> list[Candidate]:
    """Make a candidate of each set of parameters.

    Raises
    ------
    ConfigError
        The estimator does not have a parameter, is not one of ours, or is exact.
    """
    candidates = []
    for index, params in enumerate(grid):
        # the estimator with these parameters, and its last step without what transforms targets
        try:
            model = clone(estimator)
            model.set_params(**{key: clone(value, safe=False) for key, value in params.items()})
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"param_grid: {error}") from error
        wrapper, wraps_last, last = None, isinstance(model, Pipeline), last_step(model)
        if isinstance(last, TransformedTargetRegressor):
            _require_by_row(last)
            # transforms of targets and of rows commute
            wrapper, model = last, _with_last(model, last.regressor)
            last = last_step(model)
        inner = last.estimator if isinstance(last, LabelledRowsClassifier) else None
        labelled = isinstance(inner, RowsEstimator)
        if isinstance(inner, RowsEstimator) and not is_semi_supervised(inner):
            last = inner
            model = _with_last(model, last)
        if isinstance(last, RowsEstimator) and hasattr(last, "transform"):
            raise ConfigError(
                f"estimator: {type(last).__name__} has no predictions to score; search a Pipeline of it and a "
                "classifier, for which it is fitted once to all rows, or ARTLClassifier"
            )
        if not isinstance(last, RowsEstimator):
            wraps = hasattr(last, "estimator")
            advice = "; search what it wraps, on labelled rows" if wraps else ""
            found = type(last).__name__
            if found == "NoneType":
                found = "TransformedTargetRegressor without a regressor: pass one, such as KernelRidge()"
            raise ConfigError(f"estimator: expected a classifier or regressor of bigkernel, found {found}{advice}")
        # its method and columns, of which a sweep must sum something that candidates share
        last.check_parameters()
        method, columns = method_of(last)
        if columns.exact:
            name, flat = type(last).__name__, " and manifold=0" * hasattr(last, "manifold")
            raise ConfigError(
                f"estimator: exact fits ({name} with n_landmarks=None{flat}) share no sweep; set n_landmarks, as in "
                f"{name}(n_landmarks=500), or use scikit-learn's GridSearchCV"
            )
        weighting = getattr(last, "class_weight", None)
        solve_settings = replace(method.solve_settings(), weighting="" if weighting is None else repr(weighting))
        point = index, dict(params), model, last, method, columns, solve_settings
        candidates.append(Candidate(*point, wrapper=wrapper, wraps_last=wraps_last, labelled=labelled))
    return candidates


def index_of_given(estimator: BaseEstimator, grid: list[dict[str, object]], everyone: list[Candidate]) -> int | None:
    """Return the index of the estimator as it is, which joins the candidates of a grid; None if it cannot be one."""
    params = estimator.get_params()
    given = {name: params[name] for point in grid for name in point if name in params}
    if (own := tokenize(given)) in (known := [*map(tokenize, grid)]):
        return known.index(own)
    try:
        (candidate,) = candidates_of(estimator, [given])
    except ConfigError:  # such as that of an exact fit, in a grid of numbers of landmarks
        return None
    everyone.append(replace(candidate, index=len(grid)))
    return len(grid)


def _with_last(model: BaseEstimator, last: BaseEstimator) -> BaseEstimator:
    """Return an estimator with another last step."""
    return Pipeline([*model.steps[:-1], (model.steps[-1][0], last)]) if isinstance(model, Pipeline) else last


def _require_by_row(wrapper: TransformedTargetRegressor) -> None:
    """Raise `ConfigError` for a transformer of targets that is fitted to the training rows of a fold."""
    if wrapper.transformer is not None and not isinstance(wrapper.transformer, FunctionTransformer):
        raise ConfigError(
            f"estimator: {type(wrapper.transformer).__name__} is fitted to the targets of each training fold, which "
            "folds of one sweep cannot be; leave out a scaler, which changes no prediction with fit_intercept=True, "
            "or use func and inverse_func, or scikit-learn's GridSearchCV"
        )


def _transform_targets(wrapper: TransformedTargetRegressor, y: ColumnLike) -> tuple[Array, Array]:
    """Fit the transformation of targets as scikit-learn does; return the targets before and after it."""
    if y is None:
        raise DataError("y: expected targets in memory for a TransformedTargetRegressor, found None")
    try:
        given: Array = check_array(in_memory(y, "y"), input_name="y", ensure_2d=False, dtype="numeric")
        wrapper._training_dim = given.ndim  # noqa: SLF001
        columns = given.reshape(len(given), -1)
        wrapper._fit_transformer(columns)  # noqa: SLF001
        return given, np.asarray(wrapper.transformer_.transform(columns)).reshape(given.shape)
    except ValueError as error:
        raise DataError(f"TransformedTargetRegressor: {error}") from error


def prepare(everyone: list[Candidate], given: Given, *, cv: object, seed: int, scoring: Scoring) -> list[Prepared]:
    """Prepare the work of all candidates, with those of the same transforms together.

    Raises
    ------
    ConfigError
        A score does not apply to a candidate.
    DataError
        Rows, targets or folds are invalid.
    """
    if isinstance(cv, SpatialKFold):  # by places before transforms, which Dask arrays do not keep
        dask_maps = hasattr(given.X, "dask") and any(isinstance(one.model, Pipeline) for one in everyone)
        cv = cv.folds(given.X) if is_lazy(given.X) and not dask_maps else list(cv.split(given.X))
    if given.groups is not None:
        refuse_groups(cv)
    classifier = is_classifier(everyone[0].last)
    prepared: list[Prepared] = []
    for members in _by_transforms(everyone):
        model = members[0].model
        steps = model[:-1] if isinstance(model, Pipeline) and len(model) > 1 else None
        # transforms are fitted once, to all rows
        inner, learned = _through(steps, given)
        # targets are read as by a candidate with an intercept; the others undo their shift
        proto = clone(members[0].last)
        if any(member.solve_settings.fit_intercept for member in members):
            proto.set_params(fit_intercept=True)
        wrapper, y = members[0].wrapper, given.y
        if wrapper is not None:
            original, y = _transform_targets(wrapper, y)
        if members[0].labelled:
            inner, y = with_labels(inner, y), None
        data = proto.read_search(inner, y, given.sample_weight, given.sample_domain, given.groups)
        rows, targets, inputs = data.rows, data.targets, data.inputs
        require_served(scoring, inputs, targets.width)
        # all candidates are tested on the same folds
        if prepared:
            splits = prepared[0].work.partitions
        else:
            splits = _partitions(cv, rows, targets, classifier=classifier, seed=seed)
            _require_folds(splits, scoring, everyone)
        if isinstance(targets, CellTargets):
            splits = with_sides(splits, rows, targets.cells)
        # what is scored: without weights of classes, and on the scale of the given targets
        search = SearchData(rows, targets, inputs, without_class_weights(rows))
        if wrapper is not None:  # scores compare original targets with predictions on their scale
            search.judging = replace(rows, columns={**rows.columns, "y": source_of(original, "y")})
            search.inverse = wrapper.transformer_.inverse_transform
        if scoring.of_domains:
            with _noting() as started:
                search.domains = Domains.of(search.judging, targets, scoring.of_domains)
            learned = (*learned, *started)
        # as few sweeps as memory allows
        sweeps = arrange(members, search, splits, scoring)
        if scoring.gcv:
            _require_gcv(members, everyone)
        prepared.append(Prepared(members, steps, Work(search, splits, sweeps), learned, wrapper))
    return prepared


def _by_transforms(everyone: list[Candidate]) -> list[list[Candidate]]:
    """Group candidates by transforms, type of model and weights of classes."""
    groups: dict[object, list[Candidate]] = {}
    for candidate in everyone:
        steps = candidate.model[:-1] if isinstance(candidate.model, Pipeline) else None
        transforms = tokenize([step for _, step in steps.steps]) if steps else ""  # equal for copies
        functions = [getattr(candidate.wrapper, name, "") for name in ("func", "inverse_func", "transformer")]
        key = (
            type(candidate.last).__name__,
            candidate.labelled,
            candidate.solve_settings.weighting,
            transforms,
            tokenize(functions),
        )
        groups.setdefault(key, []).append(candidate)
    return list(groups.values())


def _through(steps: Pipeline | None, given: Given) -> tuple[RowsLike, tuple[SweepStarted, ...]]:
    """Fit the transforms; return the transformed rows, and the sweeps of the fit."""
    if steps is None:
        return given.X, ()
    for _, step in steps.steps:
        if _learns_from_targets(step):
            raise ConfigError(
                f"estimator: {type(step).__name__} learns from y, and SweepSearchCV fits transforms once, to all rows, "
                "so scores of held-out rows would be too high; use scikit-learn's GridSearchCV"
            )
    names = [name for name, step in steps.steps if has_fit_parameter(step, "sample_domain")]
    params = {} if given.sample_domain is None else {f"{name}__sample_domain": given.sample_domain for name in names}
    with _noting() as started:
        inner = steps.fit_transform(given.X, given.y, **params)
    return inner, tuple(started)


@contextmanager
def _noting() -> Iterator[list[SweepStarted]]:
    """Give a list of the sweeps that start in the context."""
    started: list[SweepStarted] = []

    def note(event: Event) -> None:
        if isinstance(event, SweepStarted):
            started.append(event)

    with observe(note):
        yield started


def _learns_from_targets(step: object) -> bool:
    """Return whether a transformer of another package learns from y, as the selection of features by scores does."""
    if isinstance(step, str | RowsEstimator) or type(step).__name__ == "VarianceThreshold":
        return False
    inner = [one for _, one, *_ in getattr(step, "steps", None) or getattr(step, "transformers", None) or ()]
    inner += [one for _, one in getattr(step, "transformer_list", ())]
    if any(map(_learns_from_targets, inner)):
        return True
    selects = any(kind.__name__ == "SelectorMixin" for kind in type(step).__mro__)
    return selects or bool(get_tags(step).target_tags.required)


def _partitions(cv: object, rows: Rows, targets: Targets, *, classifier: bool, seed: int) -> list[Partition]:
    """Return the folds of the labelled rows; labels of lazy rows are read only if the folds need them."""
    needed = rows.in_memory or not (isinstance(cv, int | float | None) or hasattr(cv, "of"))
    labels = rows.column("y") if needed else None
    labelled = None if labels is None else targets.labelled(labels, 0)
    return partitions(cv, rows, labelled, classifier=classifier, seed=seed)


def _require_folds(splits: Sequence[Partition], scoring: Scoring, everyone: list[Candidate]) -> None:
    """Raise `ConfigError` for scores of held-out rows where no row is held out, and for choices without two others."""
    held = [name for name in scoring.names.values() if name != "neg_gcv"]
    if held and not splits[0].folds.count:
        raise ConfigError(f"cv=0: {held[0]} needs folds; use scoring='neg_gcv', or folds")
    least = min(one.folds.count for one in splits)
    if least < 3 and any(chosen_by_folds(candidate.method.alpha) for candidate in everyone):
        raise ConfigError(
            f"alpha='cv': the penalty of each fold is chosen by the errors on the others, which takes 3 folds of one "
            f"sweep at least, found {least}; use cv=3 or more, or numbers, as in alpha=np.geomspace(1e-6, 1e2, 20)"
        )


def _require_gcv(members: list[Candidate], everyone: list[Candidate]) -> None:
    """Raise `ConfigError` for neg_gcv with several penalties, different class weights, or no moments."""
    if (count := len({one.solve_settings.weighting for one in everyone})) > 1:
        raise ConfigError(
            f"class_weight: neg_gcv includes class weights, which must be the same for all candidates, found {count} "
            "different ones; use another score"
        )
    if any(member.solve_settings.by_direction for member in members):
        raise ConfigError(
            f"scoring: neg_gcv needs one penalty for all directions, but {type(members[0].last).__name__} has one "
            "for each; use another score"
        )
    if any(member.choice for member in members):
        raise ConfigError(
            "scoring: neg_gcv needs moments, which conjugate gradients do not compute; use another score, or "
            "solver='direct'"
        )


# -- from candidates to sweeps -----------------------------------------------------------------------------------------


def arrange(
    members: list[Candidate], data: SearchData, partitions: list[Partition], scoring: Scoring
) -> list[GridSweep]:
    """Group all members into as few sweeps as memory allows."""
    sweeps: list[GridSweep] = []
    # candidates of the same landmarks, by conjugate gradients or by moments
    _choose_solvers(members, data, partitions)
    for group in _share_landmarks(members, data.rows):
        sweeps += _cg_sweeps([candidate for candidate in group if candidate.choice])
        group = [candidate for candidate in group if not candidate.choice]
        if not group:
            continue
        if not isinstance(group[0].basis, LandmarkBasis):
            data.kernels.append(KernelGroup(group))
            sweeps.append(GridSweep(data.kernels[-1:]))
            continue
        # those of one kernel, precision and graph share its moments
        kernels: dict[tuple[object, ...], list[Candidate]] = {}
        adapts = isinstance(group[0].method, AdaptingMethod)  # all members are of one type
        for candidate in group:
            basis, graph = candidate.basis, candidate.method.graph
            key = basis.dtype, candidate.columns.dtype == "auto", _key(of_kernel(basis).kernel), graph.n_neighbors
            kernels.setdefault(key, []).append(candidate)
        # in float64 if a float32 core would lose landmarks
        for one in kernels.values():
            data.kernels.append(KernelGroup(one))
            if data.kernels[-1].chooses and data.kernels[-1].method.whitens:
                data.kernels[-1].whiten()
                data.drop_whitenings()
        # kernels that differ in their width share the distances of a sweep
        for dtype in ("float32", "float64"):
            groups = [kernel for kernel in data.kernels[-len(kernels) :] if kernel.basis.dtype == dtype]
            if adapts or any(candidate.method.graph.exists for one in groups for candidate in one.candidates):
                kind = AdaptingSweep if adapts else GridSweep  # one kernel each, as a graph belongs to a kernel
                sweeps += [kind([one]) for one in groups]
                continue
            for family in group_by_argument([of_kernel(one.basis).kernel for one in groups]):
                sweeps += GridSweep([groups[place] for place in family]).within_memory(data, partitions, scoring)
    return sweeps


def _choose_solvers(members: list[Candidate], data: SearchData, partitions: list[Partition]) -> None:
    """Set the preconditioner of the candidates that conjugate gradients fit."""
    counts = [len(one.splits) for one in partitions]
    splits, most = sum(counts), max(counts)
    trained = len(data.rows) * (1 - 1 / most) if most > 1 else None  # a single fold has its own preconditioner
    groups: dict[object, list[Candidate]] = {}
    for candidate in members:
        if not isinstance(candidate.method, RidgeMethod) or isinstance(candidate.method.alpha, str):
            continue
        groups.setdefault((_draw_of(by_ridge(candidate)[1]), _cg_key(candidate)), []).append(candidate)
    training = Training(data.rows, data.targets, data.inputs)
    for group in groups.values():
        models = splits * len(group)
        for candidate in group:
            candidate.choice, _ = choose_solver(*by_ridge(candidate), training, models=models, trained=trained)


def _cg_key(candidate: Candidate) -> object:
    """Return what is equal for candidates of the same landmarks whose conjugate gradients may share sweeps."""
    return _columns_of(candidate.columns), candidate.solve_settings.fit_intercept, by_ridge(candidate)[0].by_cg


def _cg_sweeps(members: list[Candidate]) -> list[GridSweep]:
    """Group candidates of the same landmarks that conjugate gradients fit side by side."""
    groups: dict[object, list[Candidate]] = {}
    for candidate in members:
        groups.setdefault((_cg_key(candidate), candidate.choice), []).append(candidate)
    ascending = [sorted(group, key=lambda one: float(one.solve_settings.alpha)) for group in groups.values()]
    return [CGSweep([KernelGroup(group)]) for group in ascending]


def _share_landmarks(members: list[Candidate], rows: Rows) -> list[list[Candidate]]:
    """Group candidates by their landmarks, choose these once a group, and set the basis of each candidate."""
    groups: dict[object, list[Candidate]] = {}
    for candidate in members:
        columns = candidate.columns
        if isinstance(columns, RowChoice):
            groups.setdefault("rows", []).append(candidate)
            continue
        draw = _draw_of(columns)
        kernel = _key(columns.kernel) if draw[0] == "rpcholesky" else None
        if draw[0] in FOURIER:  # features of different kernels have nothing in common
            kernel = _columns_of(columns)
        groups.setdefault((draw, kernel), []).append(candidate)
    for group in groups.values():
        # targets are shifted if one candidate has an intercept; `Problem.of_targets` undoes it for the others
        group.sort(key=lambda candidate: not candidate.solve_settings.fit_intercept)
        lead = group[0].columns.choose(rows)
        bases: dict[object, Columns] = {_columns_of(group[0].columns): lead}
        for candidate in group:
            key = _columns_of(candidate.columns)
            if key not in bases:
                bases[key] = candidate.columns.choose(rows, like=lead)
            candidate.basis = bases[key]
    return list(groups.values())


def _columns_of(columns: BasisChoice | RowChoice) -> object:
    """Return what is equal for candidates that share landmarks and have the same columns of them."""
    return (columns.dtype, _key(columns.kernel)) if isinstance(columns, BasisChoice) else None


def _draw_of(columns: BasisChoice) -> tuple[object, ...]:
    """Return what is equal for candidates that choose the same landmarks."""
    given = columns.landmarks if isinstance(columns.landmarks, str) else np.asarray(columns.landmarks).tobytes()
    seed = columns.random_state
    return given, columns.count, repr(seed.get_state()) if isinstance(seed, np.random.RandomState) else seed


def _key(kernel: Kernel) -> object:
    if hasattr(kernel, "fingerprint"):  # a function
        return kernel.name, kernel.fingerprint()
    values = kernel.get_params(deep=False).items()
    return type(kernel).__name__, tuple(
        (name, _key(value) if isinstance(value, Kernel) else np.asarray(value).tobytes()) for name, value in values
    )


# -- the plan ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SearchPlan:
    """The plan of a search: candidates, splits, sweeps and their cost.

    Attributes
    ----------
    candidates, splits : their numbers
    sweeps : a line for each; one line for all expected sweeps of conjugate gradients
    flops : of the sweeps
    task_bytes : most memory of a task of any sweep, on top of the process
    count : number of sweeps
    driver_bytes : approximate memory of conjugate gradients on the driver; 0 without them
    """

    candidates: int
    splits: int
    sweeps: tuple[str, ...]
    flops: float
    task_bytes: int
    count: int
    driver_bytes: int = 0

    def _repr_html_(self) -> str:
        figures = {"candidates": self.candidates, "splits": self.splits, "sweeps": self.count, "flops": self.flops}
        figures |= {"task_bytes": self.task_bytes} | ({"driver_bytes": self.driver_bytes} if self.driver_bytes else {})
        return table("plan of a search", figures) + columns(["its sweeps"], [[line.strip()] for line in self.sweeps])

    def __str__(self) -> str:
        lines = [f"{self.candidates} candidates, {self.splits} splits: {self.count} sweeps"]
        return "\n".join(lines + [f"  {line}" for line in self.sweeps])


def planned(
    work: Sequence[tuple[Sequence[Candidate], Work]],
    scoring: Scoring,
    *,
    learned: Sequence[SweepStarted] = (),
    refit: bool = True,
) -> SearchPlan:
    """Plan the candidates with the work that evaluates them.

    `learned` lists the sweeps of their transforms; `refit` adds those of the best candidate on all rows.
    """
    splits = sum(len(partition.splits) for partition in work[0][1].partitions)
    lines = [PlanLine(f"before: sweep for {one.what}", one.plan.flops, one.plan.task_bytes) for one in learned]
    # every sweep of every partition, as `Work.run` goes through them
    for _, one in work:
        for sweep in one.sweeps:
            for whole in one.partitions:
                for some, partition in sweep.divide(one.data, whole, scoring):
                    lines += some.lines(one.data, partition, scoring)
                    lines += _value_lines(some, partition, one.data, scoring)
    if refit:  # which work the best belongs to is open yet
        lines += max(([*_of_best(one)] for _, one in work), key=lambda own: sum(line.count for line in own))
    return SearchPlan(
        candidates=sum(len(members) for members, _ in work),
        splits=splits,
        sweeps=tuple(line.text for line in lines),
        flops=sum((line.count * line.flops for line in lines), 0.0),
        task_bytes=max((line.task_bytes for line in lines), default=0),
        count=sum(line.count for line in lines),
        driver_bytes=max((line.driver_bytes for line in lines), default=0),
    )


def _value_lines(one: GridSweep, partition: Partition, data: SearchData, scoring: Scoring) -> Iterator[PlanLine]:
    """Plan the sweeps of the scores that need values of f."""
    for some, plan in value_sweeps(one, partition, data, scoring) if scoring.scorers else []:
        yield PlanLine(
            f"  predictions of {len(some.candidates)} candidates for held-out rows", plan.flops, plan.task_bytes
        )


def _of_best(work: Work) -> Iterator[PlanLine]:
    """Plan the further sweeps that the best candidate may take on all rows."""
    data, direct = work.data, [one for one in work.sweeps if one.keeps_moments]
    methods = [candidate.method for one in direct for candidate in one.candidates]
    whole = next((partition for partition in work.partitions if partition.whole), None)
    # the sums of the folds of a fit, or those of all rows, are not kept
    if direct and (any(map(holds_out, methods)) or whole is None):
        partition = whole or work.partitions[0]
        rows = partition.attach(data.rows)
        plans = [plan_sweep(rows, one.statistic(data.targets, partition, len(rows))) for one in direct]
        largest = max(plans, key=lambda plan: plan.flops)
        yield PlanLine("refit on all rows: moments", largest.flops, largest.task_bytes)
        if any(method.probability for method in methods):
            yield PlanLine("refit on all rows: values for calibration", largest.flops, largest.task_bytes)
    adapting = [one for one in direct if isinstance(one, AdaptingSweep) and one.rounds]
    if adapting:
        first = work.partitions[0]
        lines = [one.round_line("of the refit on all rows", data, first, best=True) for one in adapting]
        yield max(lines, key=lambda line: line.count * line.flops)
