"""A graph in which rows meet in their nearest landmarks, from the same sweep: `manifold` and `n_neighbors`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral, Real

import numpy as np
from sklearn.utils._param_validation import Interval

from bigkernel.arrays import Array
from bigkernel.errors import ConfigError
from bigkernel.estimators.fit_state import GRAPH_SUMS, MomentFit, Problem
from bigkernel.solvers.anchor_graph import add_anchors, laplacian
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics.moments import MomentStatistic

GRAPH: dict[str, list[object]] = {
    "manifold": [Interval(Real, 0, None, closed="left")],
    "n_neighbors": [Interval(Integral, 1, None, closed="left")],
}


@dataclass(frozen=True)
class Graph:
    """The weight of the graph (`manifold`; 0: there is none), and in how many landmarks a row meets others."""

    manifold: float
    n_neighbors: int

    def neighbors_among(self, landmarks: int) -> int | None:
        """Return how many of so many landmarks a row meets others in; None: there is no graph."""
        return min(int(self.n_neighbors), landmarks) if self.manifold > 0 else None

    def add_anchors(self, statistic: MomentStatistic) -> MomentStatistic:
        """Return the statistic with the anchors of all its rows, where there is a graph."""
        neighbors = self.neighbors_among(statistic.features.width)
        return statistic if neighbors is None else add_anchors(statistic, neighbors)

    def noted(self, problem: Problem) -> Problem:
        """Return the problem with the anchors of a row, which its sums do not tell; without sums of another's graph."""
        neighbors, sums = self.neighbors_among(problem.basis.width), problem.statistics
        if neighbors is None and any(name in sums for name in GRAPH_SUMS):
            sums = {name: values for name, values in sums.items() if name not in GRAPH_SUMS}
        return replace(problem, statistics=sums, neighbors=neighbors)

    def require_same(self, fit: MomentFit) -> None:
        """Raise `ConfigError` where the graph that was summed has other anchors than the rows that are to come."""
        summed, wanted = fit.neighbors, self.neighbors_among(fit.basis.width)
        if None not in (summed, wanted) and summed != wanted:
            raise ConfigError(
                f"n_neighbors={self.n_neighbors}: expected {summed}, as in the fitted statistics; set "
                f"n_neighbors={summed}, or fit again"
            )

    def laplacian(self, problem: Problem, whitening: Whitening) -> Array | None:
        """Return ΦᵀLΦ (r, r) in whitened coordinates, or None."""
        if not self.manifold > 0:
            return None
        total = problem.statistics
        if "anchors" not in total:
            raise ConfigError(f"manifold={self.manifold}: fitted without a graph (manifold=0); fit again")
        # about one point both, which a Laplacian does not see
        return whitening.rotate(laplacian(np.sum(total["G"], axis=0), total["anchors"], total["degrees"]))


NO_GRAPH = Graph(0.0, 1)


def refuse_graph(landmarks: object, manifold: float, *, fourier: bool) -> None:
    """Raise `ConfigError` for a graph among random features."""
    if fourier and manifold > 0:
        raise ConfigError(
            f"landmarks={landmarks!r}: random features have no landmarks for an anchor graph; set manifold=0, or use "
            "another choice of landmarks"
        )
