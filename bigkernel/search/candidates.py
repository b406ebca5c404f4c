"""From an estimator and the parameters of candidates to sweeps: as few as kernels, landmarks and memory allow.

Candidates with the same transforms share rows; those with the same landmarks whose kernels have a common argument share
a sweep; those with the same kernel share its moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from distributed import Client

from bigkernel.arrays import Array
from bigkernel.config import settings
from bigkernel.engine.context import executor_in_force
from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import plan_sweep
from bigkernel.errors import PlanTooLarge
from bigkernel.estimators.cg_problem import planned_sample
from bigkernel.estimators.fit_state import Inputs, RowBasis, Training
from bigkernel.estimators.fitting import Method
from bigkernel.estimators.kernel_basis import FOURIER, BasisChoice, FourierBasis, LandmarkBasis, RowChoice
from bigkernel.estimators.precision import whitened, with_probe
from bigkernel.estimators.ridge import RidgeMethod, choose_solver
from bigkernel.estimators.self_training import AdaptingMethod
from bigkernel.kernels.algebra import Kernel
from bigkernel.kernels.feature_maps import IdentityMap, LandmarkFamily, gather
from bigkernel.search.scoring import Scoring
from bigkernel.search.splits import Partition
from bigkernel.solvers.cg_cost import FACTOR_BYTES, PreconditionerChoice, decades, driver_bytes
from bigkernel.solvers.penalty_grid import Penalty
from bigkernel.solvers.split_sides import SplitMomentStatistic
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics.grid_scores import GridScores
from bigkernel.statistics.moments import MomentStatistic, Targets
from bigkernel.statistics.products import ProductStatistic

_STATES = 16  # (m, columns) float64 that a step of a descent holds: the state, the next one, and what makes it


@dataclass(eq=False)
class Candidate:
    """One point of the grid.

    Attributes
    ----------
    index, params : its number and its parameters
    model, last : an estimator or Pipeline with these parameters, and its last step
    method, columns : of the last step
    penalty : in which candidates that share all moments may differ
    basis : the columns, once they are chosen
    choice : of conjugate gradients; None of a direct solve
    """

    index: int
    params: dict[str, Any]
    model: Any
    last: Any
    method: Method
    columns: BasisChoice | RowChoice
    penalty: Penalty
    basis: Any = None
    choice: PreconditionerChoice | None = None


@dataclass(eq=False)
class Sweep:
    """Kernels that share a sweep, each with its candidates; a linear model is a sweep of one map.

    Attributes
    ----------
    members : one list of candidates a kernel
    """

    members: list[list[Candidate]]

    @property
    def candidates(self) -> list[Candidate]:
        """All of them."""
        return [candidate for one in self.members for candidate in one]

    @property
    def lead(self) -> Candidate:
        """The first of them."""
        return self.members[0][0]

    @property
    def features(self) -> Any:
        """The feature map: one block a kernel."""
        basis = self.lead.basis
        if isinstance(basis, RowBasis):
            return basis.centred()
        if isinstance(basis, FourierBasis):
            return basis.features()
        kernels = tuple(one[0].basis.kernel for one in self.members)
        return LandmarkFamily(kernels, basis.landmarks, np.dtype(basis.dtype))

    @property
    def predicting(self) -> Any:
        """The part of the feature map that solutions have coefficients of."""
        return self.lead.method.predicting(self.features)

    def statistic(
        self, targets: Targets, partition: Partition, rows: int, whitenings: Sequence[Whitening] = ()
    ) -> MomentStatistic:
        """The moments of all its kernels, by fold; with their whitenings, a witness sees them."""
        features, sums = self.features, None
        if isinstance(features, LandmarkFamily):
            features = replace(features, shifts=np.stack([one[0].basis.shift for one in self.members]))
        if isinstance(self.lead.basis, FourierBasis):
            features = self.lead.basis.centred()
        if not isinstance(self.lead.basis, RowBasis):
            sums = self.lead.basis.sum_dtype
        statistic = MomentStatistic(features, targets, self.lead.method.unlabelled, partition.folds, sums=sums)
        return with_probe(statistic, whitenings, rows) if self.lead.method.probed else statistic

    def judge(
        self,
        targets: Targets,
        partition: Partition,
        weights: Array | None = None,
        intercepts: Array | None = None,
        *,
        scoring: Scoring,
    ) -> GridScores:
        """The scores of all candidates by fold; without coefficients it serves a plan."""
        if weights is None or intercepts is None:
            weights, intercepts = self.zeros(targets, partition)
        return GridScores(self.predicting, weights, intercepts, partition.folds, targets, scoring.loss)

    def zeros(self, targets: Targets, partition: Partition) -> tuple[Array, Array]:
        """Return weights (K, F, p, k·c) and intercepts (K, F, k·c) of nothing, which take no memory."""
        wide = max(len(members) for members in self.members) * targets.width
        shape = (len(self.members), partition.folds.count, self.predicting.width, wide)
        return np.broadcast_to(0.0, shape), np.broadcast_to(0.0, (*shape[:2], wide))

    def by_arithmetic(self) -> list[Sweep]:
        """A sweep for each arithmetic that its kernels are in; itself where there is one."""
        groups: dict[Any, list[list[Candidate]]] = {}
        for members in self.members:
            basis = members[0].basis
            key = (basis.dtype, basis.sums) if isinstance(basis, LandmarkBasis) else None
            groups.setdefault(key, []).append(members)
        return [replace(self, members=members) for members in groups.values()]

    def halves(self) -> list[Sweep]:
        """Two sweeps of half the kernels each."""
        middle = len(self.members) // 2
        return [replace(self, members=half) for half in (self.members[:middle], self.members[middle:])]


@dataclass(eq=False)
class Descents(Sweep):
    """Candidates of one kernel that conjugate gradients fit, by rising penalty; all folds descend in the same sweeps.

    Attributes
    ----------
    choice : of the preconditioner
    """

    choice: PreconditionerChoice = field(kw_only=True)

    @property
    def alphas(self) -> tuple[float, ...]:
        """Their penalties."""
        return tuple(float(candidate.penalty.alpha) for candidate in self.candidates)

    @property
    def factors(self) -> int:
        """How many preconditioners the penalties need."""
        return len(decades(np.array(self.alphas))[0])

    @property
    def factor_bytes(self) -> int:
        """Bytes of these."""
        return self.factors * 8 * int(self.lead.basis.width) ** 2

    def state_bytes(self, targets: Targets, partition: Partition) -> int:
        """Of the vectors of a step on the driver."""
        columns = partition.folds.count * len(self.candidates) * targets.width
        return _STATES * 8 * int(self.lead.basis.width) * columns

    def driver_bytes(self, targets: Targets, partition: Partition) -> int:
        """Most memory that arrays take on the driver, at once."""
        return driver_bytes(int(self.lead.basis.width), self.choice, self.factors) + self.state_bytes(
            targets, partition
        )

    def statistic(self, targets: Targets, partition: Partition, rows: int, whitenings: Sequence[Whitening] = ()) -> Any:
        """The products of a look, for a plan."""
        shape = (self.lead.basis.width, partition.folds.count * len(self.candidates) * targets.width)
        features, vectors = self.lead.basis.features(), np.broadcast_to(0.0, shape)
        return ProductStatistic(features, targets, vectors, "plan", residual=True, folds=partition.folds)

    def draws(self, targets: Targets) -> list[Any]:
        """What the sweep that draws rows sums up, for a plan; nothing where there is none."""
        return [planned_sample(targets, self.lead.basis, self.choice.rows)] if self.choice.rows else []

    def halves(self) -> list[Sweep]:
        """Of half the candidates each."""
        (members,), middle = self.members, len(self.candidates) // 2
        return [Descents([half], choice=self.choice) for half in (members[:middle], members[middle:])]

    def at_once(
        self, rows: Rows, targets: Targets, partition: Partition, scoring: Scoring
    ) -> list[tuple[Descents, Partition]]:
        """What descends together: all, or fewer folds, or then fewer candidates, where memory does not hold all."""
        halves: list[tuple[Any, Partition]] = []
        if self.factor_bytes > FACTOR_BYTES and len(self.candidates) > 1:
            halves = [(half, partition) for half in self.halves()]
        elif not fits(self, rows, targets, [partition], scoring):
            if partition.folds.count > 1:
                halves = [(self, half) for half in partition.halves()]
            elif len(self.candidates) > 1:
                halves = [(half, partition) for half in self.halves()]
        if not halves:
            return [(self, partition)]
        return [found for one, part in halves for found in one.at_once(rows, targets, part, scoring)]


@dataclass(eq=False)
class SidedSweep(Sweep):
    """Candidates of one kernel that adapt a source to a target."""

    def statistic(
        self, targets: Targets, partition: Partition, rows: int, whitenings: Sequence[Whitening] = ()
    ) -> MomentStatistic:
        """See `Sweep`: the moments by what the splits make of the rows."""
        assert partition.sides is not None
        basis = self.lead.basis
        graphs = [_adapting(candidate).graph.neighbors_among(basis.width) for candidate in self.candidates]
        statistic = SplitMomentStatistic(
            basis.centred(),
            targets,
            sums=basis.sum_dtype,
            splits=partition.sides,
            neighbours=max(number or 0 for number in graphs),
        )
        return with_probe(statistic, whitenings, rows)

    @property
    def rounds(self) -> int:
        """Most rounds of a candidate."""
        return max(int(_adapting(candidate).n_rounds) for candidate in self.candidates)


def _adapting(candidate: Candidate) -> AdaptingMethod:
    assert isinstance(candidate.method, AdaptingMethod)
    return candidate.method


def by_ridge(candidate: Candidate) -> tuple[RidgeMethod, BasisChoice]:
    """Return the method and the columns of a candidate that conjugate gradients may fit."""
    assert isinstance(candidate.method, RidgeMethod)
    assert isinstance(candidate.columns, BasisChoice)
    return candidate.method, candidate.columns


def arrange(
    members: list[Candidate],
    rows: Rows,
    targets: Targets,
    inputs: Inputs,
    parts: list[Partition],
    *,
    scoring: Scoring,
) -> list[Sweep]:
    """Sweeps that serve all members, as few as memory allows; and those of their scores."""
    sweeps: list[Sweep] = []
    _choose_solvers(members, rows, targets, inputs, parts)
    for group in _share_landmarks(members, rows):
        sweeps += _descents([candidate for candidate in group if candidate.choice])
        group = [candidate for candidate in group if not candidate.choice]
        if not group:
            continue
        if not isinstance(group[0].basis, LandmarkBasis):
            sweeps.append(Sweep([group]))
            continue
        kernels: dict[Any, list[Candidate]] = {}
        adapts = isinstance(group[0].method, AdaptingMethod)  # members are of one kind
        for candidate in group:
            graph = _adapting(candidate).graph.n_neighbors if adapts else None
            key = candidate.basis.dtype, candidate.columns.dtype == "auto", _key(candidate.basis.kernel), graph
            kernels.setdefault(key, []).append(candidate)
        for dtype in ("float32", "float64"):
            lists = [one for (name, *_), one in kernels.items() if name == dtype]
            if adapts:  # a kernel at a time: a graph is of one
                sweeps += [SidedSweep([one]) for one in lists]
                continue
            for family in gather([one[0].basis.kernel for one in lists]):
                sweeps += within_memory(Sweep([lists[place] for place in family]), rows, targets, parts, scoring)
    return sweeps


def _choose_solvers(
    members: list[Candidate], rows: Rows, targets: Targets, inputs: Inputs, parts: list[Partition]
) -> None:
    """Note of the candidates that conjugate gradients fit which preconditioner they take."""
    splits, most = (sum(len(part.splits) for part in parts), max(len(part.splits) for part in parts))
    trained = len(rows) * (1 - 1 / most) if most > 1 else None  # a single fold has a preconditioner of its own
    groups: dict[Any, list[Candidate]] = {}
    for candidate in members:
        if not isinstance(candidate.method, RidgeMethod) or isinstance(candidate.method.alpha, str):
            continue
        groups.setdefault((_draw_of(by_ridge(candidate)[1]), _alike(candidate)), []).append(candidate)
    data = Training(rows, targets, inputs)
    for group in groups.values():
        models = splits * len(group)
        for candidate in group:
            candidate.choice, _ = choose_solver(*by_ridge(candidate), data, models=models, trained=trained)


def _alike(candidate: Candidate) -> Any:
    """Equal for candidates of the same landmarks whose descents may share sweeps."""
    return _columns_of(candidate.columns), candidate.penalty.fit_intercept, by_ridge(candidate)[0].by_cg


def _descents(members: list[Candidate]) -> list[Sweep]:
    """Candidates of the same landmarks by what descends side by side."""
    groups: dict[Any, list[Candidate]] = {}
    for candidate in members:
        groups.setdefault((_alike(candidate), candidate.choice), []).append(candidate)
    found: list[Sweep] = []
    for group in groups.values():
        assert group[0].choice is not None
        found.append(Descents([sorted(group, key=lambda one: float(one.penalty.alpha))], choice=group[0].choice))
    return found


def _share_landmarks(members: list[Candidate], rows: Rows) -> list[list[Candidate]]:
    """Group candidates by their landmarks, drawn once a group; each is given its basis."""
    groups: dict[Any, list[Candidate]] = {}
    for candidate in members:
        columns = candidate.columns
        if isinstance(columns, RowChoice):
            groups.setdefault("rows", []).append(candidate)
            continue
        draw = _draw_of(columns)
        kernel = _key(columns.kernel) if draw[0] == "rpcholesky" else None
        if draw[0] in FOURIER:  # functions of the kernel, which share nothing with those of another
            kernel = _columns_of(columns)
        groups.setdefault((draw, kernel), []).append(candidate)
    for group in groups.values():
        # rows are shifted where one of them has an intercept; `Problem.of_targets` undoes it for the others
        group.sort(key=lambda candidate: not candidate.penalty.fit_intercept)
        lead = group[0].basis = group[0].columns.choose(rows)
        bases: dict[Any, Any] = {}
        direct = [one for one in group if not one.choice and one.method.probed and one.method.whitens]
        whitening = {_columns_of(one.columns): one.method.whiten for one in direct}
        for candidate in group:
            columns, key = candidate.columns, _columns_of(candidate.columns)
            if key not in bases:
                basis = lead if candidate is group[0] else columns.choose(rows, like=lead)
                if key in whitening:
                    basis, *_ = whitened(whitening[key], basis, choose=columns.dtype == "auto")
                bases[key] = basis
            candidate.basis = bases[key]
    return list(groups.values())


def _columns_of(columns: BasisChoice | RowChoice) -> Any:
    """Return what is equal for candidates that share landmarks and have the same columns of them."""
    return (columns.dtype, _key(columns.kernel)) if isinstance(columns, BasisChoice) else None


def _draw_of(columns: BasisChoice) -> tuple[Any, ...]:
    """Return what is equal for candidates that would draw the same landmarks."""
    given = columns.landmarks if isinstance(columns.landmarks, str) else np.asarray(columns.landmarks).tobytes()
    return given, columns.count, _seed(columns.random_state)


def about(statistic: MomentStatistic, place: int) -> Array | None:
    """What the moments of a kernel are about, (p,); None: those of rows themselves, which stay about their point."""
    features: Any = statistic.features
    if isinstance(features, IdentityMap):
        return None
    return features.about(place) if isinstance(features, LandmarkFamily) else features.shift


def within_memory(one: Sweep, rows: Rows, targets: Targets, parts: list[Partition], scoring: Scoring) -> list[Sweep]:
    """The sweep, or several of fewer kernels where one would not fit the memory of a worker."""
    if len(one.members) == 1 or fits(one, rows, targets, parts, scoring):
        return [one]
    return [found for half in one.halves() for found in within_memory(half, rows, targets, parts, scoring)]


def fits(one: Sweep, rows: Rows, targets: Targets, parts: list[Partition], scoring: Scoring) -> bool:
    """Whether a worker has the memory for a sweep of these parts and of its scores."""
    wanted, limit = settings(), limit_bytes(rows)
    if isinstance(one, Descents) and any(one.state_bytes(targets, part) > wanted.memory_limit_bytes for part in parts):
        return False
    try:
        for partition in parts:
            statistics: list[Any] = [one.statistic(targets, partition, len(rows))]
            statistics += one.draws(targets) if isinstance(one, Descents) else []
            for statistic in statistics + ([one.judge(targets, partition, scoring=scoring)] if scoring.counts else []):
                plan_sweep(partition.attach(rows), statistic).check(limit, wanted.worker_base_bytes)
    except PlanTooLarge:
        return False
    return True


def limit_bytes(rows: Rows) -> int:
    """What a worker may take."""
    limit, executor = settings().memory_limit_bytes, executor_in_force(rows)
    if isinstance(executor, Client):
        workers = executor.scheduler_info(n_workers=-1)["workers"].values()
        limit = min([limit, *(int(w["memory_limit"] // w["nthreads"]) for w in workers if w["memory_limit"])])
    return limit


def _seed(random_state: Any) -> Any:
    """Equal for candidates that would draw the same landmarks."""
    return (
        random_state if isinstance(random_state, int | np.integer) else repr(random_state and random_state.get_state())
    )


def _key(kernel: Any) -> Any:
    if hasattr(kernel, "fingerprint"):  # a function, which has no bytes of its own
        return kernel.name, kernel.fingerprint()
    values = kernel.get_params(deep=False).items()
    return type(kernel).__name__, tuple(
        (name, _key(value) if isinstance(value, Kernel) else np.asarray(value).tobytes()) for name, value in values
    )
