"""Models inside other models: which ones may be, their parameters, and what remains of each, a part of a blend."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline

from bigkernel.errors import ConfigError
from bigkernel.estimators.base import RowsEstimator, last_step
from bigkernel.models.predictor import Predictor
from bigkernel.statistics.blend import Part


def require_part(model: BaseEstimator | str, name: str) -> None:
    """Raise `ConfigError` for the parameter `name` unless a model is an estimator of ours, after our transformers."""
    steps = [model] if not isinstance(model, Pipeline) else [step for _, step in model.steps]
    *before, last = steps
    strange = [step for step in before if not hasattr(step, "_row_map") and step not in (None, "passthrough")]
    if strange or not (isinstance(last, RowsEstimator) and hasattr(last, "predict")):
        found = type((*strange, last)[0]).__name__
        raise ConfigError(
            f"{name}: expected an estimator of bigkernel, or a Pipeline of its transformers and one, found {found}"
        )
    if getattr(last, "probability", False) and getattr(last, "class_weight", None) is not None:
        raise ConfigError(f"{name}: blended probabilities know no class_weight; leave out one of the two")


def part_of(model: BaseEstimator, rows: int) -> Part:
    """Return the part that a model is, fitted to so many rows."""
    made, last = Predictor.of(model), last_step(model)
    wrong, alpha = (getattr(last, name, None) for name in ("diagnostics_", "alpha_"))
    error = None if wrong is None else wrong.get("prediction_error")
    return Part(
        made.row_maps,
        made.expansion,
        rows,
        None if alpha is None else float(np.mean(alpha)),
        None if error is None else float(error),
    )


def parameters_of(model: BaseEstimator, name: str = "") -> Iterator[tuple[str, object]]:
    """Yield the parameters of a model and of the models inside as plain data, by name."""
    yield name, type(model).__name__
    for key, value in sorted(model.get_params(deep=False).items()):
        own = f"{name}.{key}"
        if isinstance(value, BaseEstimator):
            yield from parameters_of(value, own)
        elif isinstance(value, list) and all(isinstance(one, tuple) and len(one) == 2 for one in value):  # named steps
            for label, step in value:
                yield from (
                    parameters_of(step, f"{own}.{label}") if isinstance(step, BaseEstimator) else ((label, step),)
                )
        else:
            yield own, value
