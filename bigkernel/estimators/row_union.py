"""Row transforms side by side: the features of several become one row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils.metaestimators import _BaseComposition

from bigkernel.engine.rows import Rows
from bigkernel.errors import ConfigError
from bigkernel.estimators.inputs import input_rows
from bigkernel.estimators.transforms import PlainTransformer, RowTransformer
from bigkernel.streaming.chunk import RowMap
from bigkernel.streaming.row_maps import SideBySide


class RowUnion(PlainTransformer, _BaseComposition):
    """The features of several row transforms side by side, each times a weight: scikit-learn's FeatureUnion of rows.

    Weights say how much each counts in the distance of two rows. Every transform sees the rows as they come; all are
    applied in the task, and nothing is stored.

    Parameters
    ----------
    transformer_list : list of (name, transformer)
        Row transforms of this package, or Pipelines of them.
    transformer_weights : dict of name to number, or None
        1 where a name is missing.

    Attributes
    ----------
    transformers_ : list of transformers
        Fitted clones, in the order of the list.

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import OrientationFeatures, RowUnion, UnitNormalizer
    >>> union = RowUnion([("pixels", UnitNormalizer()), ("strokes", OrientationFeatures())])
    >>> union.set_params(transformer_weights={"pixels": 0.5}).fit_transform(np.eye(16)).shape
    (16, 528)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "transformer_list": [list, tuple],
        "transformer_weights": [dict, None],
    }

    def __init__(
        self,
        transformer_list: Sequence[tuple[str, Any]] = (),
        *,
        transformer_weights: Mapping[str, float] | None = None,
    ) -> None:
        self.transformer_list = transformer_list
        self.transformer_weights = transformer_weights

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name, those of the transforms as NAME__PARAMETER."""
        found: dict[str, Any] = self._get_params("transformer_list", deep=deep)
        return found

    def set_params(self, **params: Any) -> Self:
        """Set parameters by the names of `get_params`; a name of the list alone exchanges its transform."""
        self._set_params("transformer_list", **params)
        return self

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit a clone of every transform to X (n, d).

        Raises
        ------
        ConfigError
            No transforms, two of one name, others than of this package, or a weight that is no finite number.
        """
        self._validate_params()
        named = self._require()
        input_rows(self, X, reset=True)
        self.transformers_ = [clone(transformer).fit(X) for _, transformer in named]
        return self

    @property
    def learns(self) -> str:  # type: ignore[override]
        """Those of the transforms that learn."""
        steps = (step for _, transformer in self.transformer_list for step in _steps(transformer))
        return ", ".join(step.learns for step in steps if getattr(step, "learns", ""))

    def widest(self, rows: Rows) -> Rows:
        """Rows through the transforms as wide as fits to them can make them."""
        return rows.map(SideBySide(tuple(_widest(one, rows) for _, one in self._require()), self._scales()))

    def _require(self) -> list[tuple[str, Any]]:
        """The list; `ConfigError` where it does not do."""
        named = list(self.transformer_list)
        if not named or not all(isinstance(one, tuple | list) and len(one) == 2 for one in named):
            raise ConfigError(f"transformer_list: expected a list of (name, transformer), found {named!r}")
        names = [name for name, _ in named]
        if len(set(names)) < len(names):
            raise ConfigError(f"transformer_list: expected different names, found {', '.join(map(repr, names))}")
        for name, transformer in named:
            for step in _steps(transformer):
                if not isinstance(step, RowTransformer):
                    raise ConfigError(
                        f"transformer_list: {name} is {type(step).__name__}; expected a row transform of bigkernel, or "
                        "a Pipeline of them"
                    )
        weights = self.transformer_weights or {}
        if unknown := sorted(set(weights) - set(names)):
            raise ConfigError(
                f"transformer_weights: {unknown[0]!r} is no name of the list; those are {', '.join(names)}"
            )
        for name, weight in weights.items():
            if not isinstance(weight, int | float) or not math.isfinite(weight):
                raise ConfigError(f"transformer_weights: {name}: expected a finite number, found {weight!r}")
        return named

    def _scales(self) -> tuple[float, ...]:
        weights = self.transformer_weights or {}
        return tuple(float(weights.get(name, 1.0)) for name, _ in self.transformer_list)

    def _row_map(self) -> SideBySide:
        self._require()
        chains = tuple(tuple(step._row_map() for step in _steps(one)) for one in self.transformers_)
        row_map = SideBySide(chains, self._scales())
        row_map.width(self.n_features_in_)
        return row_map


def _steps(transformer: Any) -> list[Any]:
    return [step for _, step in transformer.steps] if isinstance(transformer, Pipeline) else [transformer]


def _widest(transformer: Any, rows: Rows) -> tuple[RowMap, ...]:
    """The row maps of a transform, or of its steps, as wide as they can be."""
    seen = rows
    for step in _steps(transformer):
        seen = step.widest(seen) if step.learns else clone(step).fit(seen).transform(seen)
    return seen.row_maps[len(rows.row_maps) :]
