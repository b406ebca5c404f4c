"""A graph that connects rows through their nearest landmarks, from the same sweep: `manifold` and `n_neighbors`.

Tests: estimators/test_sssl.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral, Real

import numpy as np
from sklearn.utils._param_validation import Interval

from bigkernel.arrays import Array
from bigkernel.errors import ConfigError
from bigkernel.estimators.fit.state import GRAPH_SUMS, MomentFit, Problem
from bigkernel.solvers.anchor_graph import add_anchors, laplacian
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics.moments import MomentStatistic

GRAPH: dict[str, list[object]] = {
    "manifold": [Interval(Real, 0, None, closed="left")],
    "n_neighbors": [Interval(Integral, 1, None, closed="left")],
}
WEIGHTS = (0.0, 0.1, 1.0)  # that "gcv" chooses from, the preferred one last


@dataclass(frozen=True)
class Graph:
    """The weight of the graph (`manifold`; 0: no graph), and the number of landmarks that connect a row."""

    manifold: float | str  # "gcv": one of `WEIGHTS`
    n_neighbors: int

    @property
    def exists(self) -> bool:
        """Whether the sums need a graph."""
        return isinstance(self.manifold, str) or self.manifold > 0

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights to choose from."""
        return WEIGHTS if isinstance(self.manifold, str) else (float(self.manifold),)

    def weighing(self, weight: float) -> Graph:
        """Return the graph with this weight."""
        return replace(self, manifold=weight)

    def neighbors_among(self, landmarks: int) -> int | None:
        """Return the number of landmarks that connect a row, of those there are; None: there is no graph."""
        return min(int(self.n_neighbors), landmarks) if self.exists else None

    def add_anchors(self, statistic: MomentStatistic) -> MomentStatistic:
        """Return the statistic with the anchors of all its rows, if there is a graph."""
        neighbors = self.neighbors_among(statistic.features.width)
        return statistic if neighbors is None else add_anchors(statistic, neighbors)

    def with_neighbors(self, problem: Problem) -> Problem:
        """Return the problem with the number of neighbours, which its sums lack; without sums of another graph."""
        neighbors, sums = self.neighbors_among(problem.basis.width), problem.statistics
        if neighbors is None and any(name in sums for name in GRAPH_SUMS):
            sums = {name: values for name, values in sums.items() if name not in GRAPH_SUMS}
        return replace(problem, statistics=sums, neighbors=neighbors)

    def require_same(self, fit: MomentFit) -> None:
        """Raise `ConfigError` where the graph of a fit has another number of neighbours."""
        summed, requested = fit.neighbors, self.neighbors_among(fit.basis.width)
        if None not in (summed, requested) and summed != requested:
            raise ConfigError(
                f"n_neighbors={self.n_neighbors}: expected {summed}, as in the fitted statistics; set "
                f"n_neighbors={summed}, or fit again"
            )

    def laplacian(self, problem: Problem, whitening: Whitening) -> Array | None:
        """Return ΦᵀLΦ (r, r) in whitened coordinates, or None."""
        if not self.exists:
            return None
        total = problem.statistics
        if "anchors" not in total:
            raise ConfigError(f"manifold={self.manifold!r}: fitted without a graph (manifold=0); fit again")
        # both about the same point, which does not change a Laplacian
        return whitening.rotate(laplacian(np.sum(total["G"], axis=0), total["anchors"], total["degrees"]))


NO_GRAPH = Graph(0.0, 1)


def refuse_graph(landmarks: object, graph: Graph, *, fourier: bool) -> None:
    """Raise `ConfigError` for a graph among random features."""
    if fourier and graph.exists:
        raise ConfigError(
            f"landmarks={landmarks!r}: random features have no landmarks for an anchor graph; set manifold=0, or use "
            "another choice of landmarks"
        )
