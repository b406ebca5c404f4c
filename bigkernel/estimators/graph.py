"""Parameters `manifold` and `n_neighbors`: a graph in which rows meet in their nearest landmarks, in the same sweep."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval

from bigkernel.errors import ConfigError
from bigkernel.estimators.fit_state import Problem
from bigkernel.solvers.anchor_graph import anchored, laplacian
from bigkernel.solvers.ridge import Whitening
from bigkernel.statistics.moments import MomentStatistic

Array = NDArray[Any]
GRAPH: dict[str, list[Any]] = {
    "manifold": [Interval(Real, 0, None, closed="left")],
    "n_neighbors": [Interval(Integral, 1, None, closed="left")],
}


class Graph:
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
        if not self.manifold > 0:
            return statistic
        return anchored(statistic, min(int(self.n_neighbors), statistic.features.width))

    def _graph(self, problem: Problem, whitening: Whitening) -> Array | None:
        """ΦᵀLΦ (r, r) in whitened coordinates, or None."""
        if not self.manifold > 0:
            return None
        total = problem.statistics
        if "anchors" not in total:
            raise ConfigError(f"manifold={self.manifold}: the fit was without a graph (manifold=0); fit again")
        # about one point both, which a Laplacian does not see
        return whitening.rotate(laplacian(np.sum(total["G"], axis=0), total["anchors"], total["degrees"]))
