"""Parameters `manifold` and `n_neighbors`: a graph in which rows meet in their nearest landmarks, in the same sweep."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval

from bigkernel.errors import ConfigError
from bigkernel.estimators.fit_state import GRAPH_SUMS, MomentFit, Problem
from bigkernel.solvers.anchor_graph import anchored, laplacian
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics.moments import MomentStatistic

if TYPE_CHECKING:  # what it is mixed into
    from bigkernel.estimators.moment_estimator import LandmarkEstimator as _Landmarks
else:
    _Landmarks = object

Array = NDArray[Any]
GRAPH: dict[str, list[Any]] = {
    "manifold": [Interval(Real, 0, None, closed="left")],
    "n_neighbors": [Interval(Integral, 1, None, closed="left")],
}


class Graph(_Landmarks):
    """Mixin of landmark estimators, left of those that say what is summed."""

    manifold: float
    n_neighbors: int
    landmarks: Any
    _fourier: bool

    def _check_graph(self) -> None:
        if self._fourier and self.manifold > 0:
            raise ConfigError(
                f"landmarks={self.landmarks!r}: random features have no landmarks for the graph to meet in; expected "
                "manifold=0, or another choice of landmarks"
            )

    def _anchored(self, statistic: MomentStatistic) -> MomentStatistic:
        """The statistic with the anchors of all its rows, where there is a graph."""
        neighbors = self.neighbors_among(statistic.features.width)
        return statistic if neighbors is None else anchored(statistic, neighbors)

    def neighbors_among(self, landmarks: int) -> int | None:
        """How many of so many landmarks a row meets others in; None: there is no graph."""
        return min(int(self.n_neighbors), landmarks) if self.manifold > 0 else None

    def _summed(self, problem: Problem, rows: Any) -> Problem:
        """See `LandmarkEstimator`; the problem tells the anchors of a row too, which its sums do not."""
        return replace(super()._summed(problem, rows), neighbors=self.neighbors_among(problem.basis.width))

    def adopt(self, rows: Any, targets: Any, inputs: Any, basis: Any, problem: Problem | None) -> Self:
        """See `RowsEstimator`; of sums that were made for others too, those of a graph are taken where there is one."""
        neighbors = self.neighbors_among(basis.width)
        if problem is not None:
            kept = {n: v for n, v in problem.statistics.items() if neighbors is not None or n not in GRAPH_SUMS}
            problem = replace(problem, statistics=kept, neighbors=neighbors)
        return super().adopt(rows, targets, inputs, basis, problem)

    def _partial_fit(self, X: Any, y: Any, classes: Any, sample_weight: Any) -> Self:
        self._require_same_neighbors()
        return super()._partial_fit(X, y, classes, sample_weight)

    def refit(self) -> Self:
        """See `LandmarkEstimator`; another n_neighbors is another graph, and takes another fit."""
        self._require_same_neighbors()
        return super().refit()

    def _require_same_neighbors(self) -> None:
        """Raise `ConfigError` where the graph that was summed has other anchors than the rows that are to come."""
        fit = self._fitted
        if not isinstance(fit, MomentFit) or fit.neighbors is None:
            return
        summed, wanted = fit.neighbors, self.neighbors_among(fit.basis.width)
        if wanted is not None and summed != wanted:
            raise ConfigError(
                f"n_neighbors={self.n_neighbors}: the rows that are summed meet in {summed} landmarks each, and one "
                f"graph has one number; set n_neighbors={summed}, or fit again"
            )

    def _graph(self, problem: Problem, whitening: Whitening) -> Array | None:
        """ΦᵀLΦ (r, r) in whitened coordinates, or None."""
        if not self.manifold > 0:
            return None
        total = problem.statistics
        if "anchors" not in total:
            raise ConfigError(f"manifold={self.manifold}: the fit was without a graph (manifold=0); fit again")
        # about one point both, which a Laplacian does not see
        return whitening.rotate(laplacian(np.sum(total["G"], axis=0), total["anchors"], total["degrees"]))
