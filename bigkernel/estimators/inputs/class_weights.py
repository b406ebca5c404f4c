"""Weights by class, as scikit-learn's: a factor for the weights of every row of a class.

"balanced" gives every class the same total weight: the factor of class c is W/(k W_c), W_c the weight of its rows, W
that of all labelled rows and k the number of classes with rows. It reads only the columns y and weight, before the
sweep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from numbers import Real

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import StrOptions

from bigkernel.arrays import Array
from bigkernel.engine.rows import ClassWeightSource, Rows
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators.inputs.columns import column_chunks
from bigkernel.estimators.inputs.training import Inputs
from bigkernel.statistics.moments import Targets

CLASS_WEIGHT: dict[str, list[object]] = {"class_weight": [dict, StrOptions({"balanced"}), None]}


def weigh_classes(estimator: BaseEstimator, rows: Rows, targets: Targets, inputs: Inputs) -> Rows:
    """Return rows whose weights include the factors of their classes, by `class_weight` of the estimator."""
    given = getattr(estimator, "class_weight", None)
    if given is None:
        return rows
    labels, names = targets.classes, inputs.classes
    assert labels is not None
    assert names is not None
    position = np.arange(len(labels)) if targets.position is None else targets.position
    if isinstance(given, dict):
        factors = class_factors(given, names)
    else:
        weights = np.bincount(position, class_weights(rows, labels), len(names))
        there = weights > 0
        factors = np.ones(len(names))
        factors[there] = weights.sum() / (there.sum() * weights[there])
    y, weight = rows.columns["y"], rows.columns.get("weight")
    weighed = ClassWeightSource(y, weight, labels, factors[position])
    return replace(rows, columns={**rows.columns, "weight": weighed})


def without_class_weights(rows: Rows) -> Rows:
    """Return the rows without the factors of their classes."""
    weight = rows.columns.get("weight")
    if not isinstance(weight, ClassWeightSource):
        return rows
    columns = {name: column for name, column in rows.columns.items() if name != "weight"}
    return replace(rows, columns=columns if weight.weight is None else {**columns, "weight": weight.weight})


def class_weights(rows: Rows, labels: Array) -> Array:
    """Return the sum of the weights of the rows of each label (k,), sorted as in the column y; bad rows count too."""
    sums = np.zeros(len(labels))
    for chunk in column_chunks(rows, "y", "weight"):
        y, weight = chunk.y, chunk.weight
        assert y is not None
        weight = np.ones(len(y)) if weight is None else np.asarray(weight, np.float64)
        place = np.minimum(np.searchsorted(labels, y), len(labels) - 1)
        counts = (labels[place] == y) & np.isfinite(weight) & (weight > 0)
        sums += np.bincount(place[counts], weight[counts], len(labels))
    return sums


def class_factors(class_weight: Mapping[object, object], names: Array) -> Array:
    """Return the factor of each class by a dict; 1 for classes that it does not name.

    `ConfigError`: a factor is not a finite number of at least 0. `DataError`: the dict names an unknown class, and
    leaves out a known one.
    """
    factors: dict[object, float] = {}
    for label, factor in class_weight.items():
        if isinstance(factor, bool) or not isinstance(factor, Real) or not 0 <= float(factor) < np.inf:
            raise ConfigError(
                f"class_weight: expected finite non-negative numbers, found {factor!r} for class {label!r}"
            )
        factors[label] = float(factor)
    known = names.tolist()
    strange = [label for label in class_weight if label not in known]
    missing = [label for label in known if label not in class_weight]
    if strange and missing:
        raise DataError(
            f"class_weight: expected a weight for each of the classes {known}; {strange[0]!r} is not one of them, "
            f"and {missing[0]!r} has no weight"
        )
    return np.array([factors.get(label, 1.0) for label in known])
