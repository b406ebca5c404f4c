"""Models inside other models: which ones may be, their parameters, and what remains of each, a member of a blend."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
from sklearn.base import BaseEstimator, is_classifier
from sklearn.pipeline import Pipeline

from bigkernel.arrays import Array
from bigkernel.errors import ConfigError
from bigkernel.estimators.base import RowsEstimator, last_step
from bigkernel.estimators.fit.basis import FOURIER
from bigkernel.estimators.fit.deviations import without_factors
from bigkernel.estimators.fit.state import ExactFit
from bigkernel.estimators.inputs.training import Training
from bigkernel.estimators.transforms.random_fourier import RandomFourier
from bigkernel.models.predictor import Predictor, require_numpy
from bigkernel.statistics.blend import Member
from bigkernel.statistics.moments import Targets
from bigkernel.statistics.predictor import Predictor as Expansion


def require_member(model: BaseEstimator, name: str, *, classifies: bool) -> None:
    """Raise `ConfigError` for the parameter `name` unless a model can be a member: ours, after our transformers."""
    *before, last = [step for _, step in model.steps] if isinstance(model, Pipeline) else [model]
    others = [step for step in before if not hasattr(step, "_row_map") and step not in (None, "passthrough")]
    if others or not (isinstance(last, RowsEstimator) and hasattr(last, "predict")):
        found = type((*others, last)[0]).__name__
        raise ConfigError(
            f"{name}: expected an estimator of bigkernel, or a Pipeline of its transformers and one, found {found}"
        )
    if is_classifier(last) != classifies:
        kind = "classifier" if classifies else "regressor"
        raise ConfigError(f"{name}: expected a {kind}, found {type(last).__name__}")
    if getattr(last, "probability", False) and getattr(last, "class_weight", None) is not None:
        raise ConfigError(f"{name}: blended probabilities know no class_weight; leave out one of the two")
    landmarks = getattr(last, "landmarks", None)
    if any(isinstance(step, RandomFourier) for step in before) or (isinstance(landmarks, str) and landmarks in FOURIER):
        raise ConfigError(f"{name}: random Fourier features cannot be blended, as they need SciPy; use landmarks")
    if hasattr(last, "given_kernel"):
        require_numpy(last.given_kernel(), f"{name}: the {{}} kernel cannot be blended, as it needs more than NumPy")


def as_targets(data: Training) -> Targets:
    """Return the targets of a fit of members, which are numbers or classes of all rows."""
    assert isinstance(data.targets, Targets)
    return data.targets


def plain_targets(targets: Targets, y: Array) -> Array:
    """Return targets as numbers, NaN where there is none, or as positions of classes, −1 where there is none."""
    known = targets.labelled(y, 0)
    if targets.classes is None:
        return np.where(known if y.ndim == 1 else known[:, None], y, np.nan)
    codes = np.full(len(y), -1)
    place = np.searchsorted(targets.classes, y[known])
    codes[known] = place if targets.position is None else targets.position[place]
    return codes


def member_of(model: BaseEstimator, rows: int, *, spread: bool = False) -> Member:
    """Return the member that a model is, fitted to so many rows; `spread`: with that of its predictions."""
    made, last = Predictor.of(model), last_step(model)
    expansion = cast(RowsEstimator, last)._with_spread() if spread else made.expansion
    if spread and isinstance(expansion, Expansion) and isinstance(fit := cast(RowsEstimator, last)._fitted, ExactFit):
        expansion = without_factors(expansion, fit)
    wrong, alpha = (getattr(last, name, None) for name in ("diagnostics_", "alpha_"))
    error = None if wrong is None else wrong.get("prediction_error")
    return Member(
        made.row_maps,
        expansion,
        rows,
        None if alpha is None else float(np.mean(alpha)),
        None if error is None else float(error),
    )


@dataclass(frozen=True)
class Parameter:
    """The value of a parameter, or the class of a model."""

    value: object


def parameters_of(model: BaseEstimator | str | None, name: str) -> Iterator[tuple[str, Parameter]]:
    """Yield the parameters of a model and of the models inside by name, those that change its fit."""
    if not isinstance(model, BaseEstimator):
        yield name, Parameter(model)
        return
    yield name, Parameter(type(model).__name__)
    for key, value in sorted(model.get_params(deep=False).items()):
        own = f"{name}.{key}"
        if isinstance(value, BaseEstimator):
            yield from parameters_of(value, own)
        elif isinstance(value, list | tuple) and all(isinstance(one, tuple) and len(one) == 2 for one in value):
            for label, step in value:  # named steps
                yield from parameters_of(step, f"{own}.{label}")
        elif key not in ("verbose", "random_state"):
            yield own, Parameter(value)
