"""Weights by class, as scikit-learn has them: a factor for the weights of every row of a class.

"balanced" gives every class the same weight in all: the factor of
class c is W/(k W_c), W_c the weight of its rows, W that of all labelled rows and k the number of classes that have any.
The columns y and weight alone are read for it, before the sweep.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import StrOptions

from bigkernel.config import settings
from bigkernel.engine.rows import Rows
from bigkernel.engine.sources import ClassWeightSource
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators.fit_state import Inputs
from bigkernel.statistics.moments import Targets

Array = NDArray[Any]
CLASS_WEIGHT: dict[str, list[Any]] = {"class_weight": [dict, StrOptions({"balanced"}), None]}


def check_class_weight(given: Any) -> None:
    """Raise `ConfigError` where a dict gives a class no finite number of at least 0."""
    for label, factor in given.items() if isinstance(given, dict) else ():
        if isinstance(factor, bool) or not isinstance(factor, Real) or not 0 <= float(factor) < np.inf:
            raise ConfigError(
                f"class_weight: expected finite numbers of at least 0, found {factor!r} for the class {label!r}"
            )


def weigh_classes(rows: Rows, targets: Targets, inputs: Inputs, given: Any) -> Rows:
    """Return rows whose weights have the factors of their classes, which `class_weight` has given."""
    if given is None:
        return rows
    labels, names = targets.classes, inputs.classes
    assert labels is not None
    assert names is not None
    position = np.arange(len(labels)) if targets.position is None else targets.position
    if isinstance(given, dict):
        factors = _given(given, names)[position]
    else:
        factors = _balanced(np.bincount(position, class_weights(rows, labels), len(names)))[position]
    y, weight = rows.columns["y"], rows.columns.get("weight")
    return replace(rows, columns={**rows.columns, "weight": ClassWeightSource(y, weight, labels, factors, repr(given))})


def class_weights(rows: Rows, labels: Array) -> Array:
    """The sum of the weights of the rows of each label (k,), sorted as the column y holds them; bad rows count too."""
    found, columns = np.zeros(len(labels)), rows.columns
    for start, stop in pairwise(rows.bounds(settings())):
        y = columns["y"].read(start, stop)
        weight = np.ones(len(y)) if "weight" not in columns else columns["weight"].read(start, stop)
        place = np.minimum(np.searchsorted(labels, y), len(labels) - 1)
        counts = (labels[place] == y) & np.isfinite(weight) & (weight > 0)
        found += np.bincount(place[counts], np.asarray(weight, np.float64)[counts], len(labels))
    return found


def _balanced(weights: Array) -> Array:
    there = weights > 0
    factors: Array = np.ones(len(weights))
    factors[there] = weights.sum() / (there.sum() * weights[there])
    return factors


def _given(wanted: dict[Any, Any], names: Array) -> Array:
    """The factors of a dict; 1 where it names no class.

    Raises
    ------
    DataError
        It names a class that is not there, and leaves out one that is.
    """
    known = [name.item() for name in names]
    strange = [label for label in wanted if label not in known]
    missing = [label for label in known if label not in wanted]
    if strange and missing:
        raise DataError(
            f"class_weight: {strange[0]!r} is none of the classes {known}, and {missing[0]!r} has no weight"
        )
    return np.array([float(wanted.get(label, 1.0)) for label in known])
