"""What the inputs of users become: rows with their columns, how y becomes targets, and the names of both.

Shapes: d features, c targets. Tests: estimators/test_inputs.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self, cast

import numpy as np
from sklearn.base import BaseEstimator

from bigkernel.arrays import Array
from bigkernel.engine.rows import Rows
from bigkernel.solvers.pseudo_labels import SourceTarget
from bigkernel.statistics.domain_cells import Cells, cell_targets
from bigkernel.statistics.moments import Targets

AnyTargets = Targets | Cells | SourceTarget


@dataclass(frozen=True, eq=False)
class Inputs:
    """Names and kinds of the columns of a fit; None where there are none of a kind."""

    n_features: int  # d
    feature_names: Array | None = None  # (d,)
    classes: Array | None = None  # (c,) sorted labels
    flat: bool | None = None  # whether numeric targets are one column (n,), not (n, c)
    # (c,) a point near the mean of numeric targets, subtracted before they are summed
    target_shift: Array | None = None
    # domains, source_domains, target_domains: sorted integers or names
    domains: Array | None = None
    source_domains: Array | None = None
    target_domains: Array | None = None
    targets: tuple[Mapping[str, str], ...] | None = None  # name and units of each, where variables of xarray were given

    @classmethod
    def of(cls, estimator: BaseEstimator) -> Self:
        """Take the features from an estimator that scikit-learn has validated."""
        return cls(estimator.n_features_in_, getattr(estimator, "feature_names_in_", None))

    def of_targets(self) -> Inputs:
        """Return the inputs of targets without a shift."""
        shift = self.target_shift
        return self if shift is None or not shift.any() else replace(self, target_shift=np.zeros_like(shift))

    @property
    def shift(self) -> Array:
        """The shift of the targets, 0 if there is none."""
        return np.asarray(0.0) if self.target_shift is None else self.target_shift


@dataclass(frozen=True, eq=False)
class Training:
    """Rows with their columns y, weight and domain, how y becomes targets, and the names of both.

    `targets` are `Targets`, or `Cells` for methods with domains, or `SourceTarget` for methods that adapt a source to a
    target.
    """

    rows: Rows
    targets: AnyTargets
    inputs: Inputs

    @property
    def labels(self) -> Targets:
        """Which rows have a label, and how labels become targets."""
        return self.targets if isinstance(self.targets, Targets) else cell_targets(self.cells)

    @property
    def cells(self) -> Cells:
        """Domains and classes of methods with domains."""
        return cast(Cells, getattr(self.targets, "cells", self.targets))

    @property
    def sides(self) -> SourceTarget:
        """Source and target of methods that adapt."""
        assert isinstance(self.targets, SourceTarget)
        return self.targets
