"""Transformers of scikit-learn that a model file can hold beside our estimators: those whose fit is plain numbers.

A closed table names for each of them the fitted arrays and numbers, with their shapes (d features, s components, q
quantiles). What is not in it has no place in a model file: its state would be code, or pickle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn import decomposition, feature_selection, preprocessing
from sklearn.base import BaseEstimator

from bigkernel.estimators.file_content import Content
from bigkernel.estimators.state_schema import Entry, Floats, Names, PenaltyNumber, Scales, Whole


@dataclass(frozen=True)
class Counts(Entry):
    """Rows that were seen, or their weight: a number of at least 0, or d of them where values were missing."""

    def read(self, content: Content) -> Any:
        """See `Entry`."""
        value = content.values.pop(self.name, None)
        given = value if isinstance(value, list) else [value]
        sound = [type(one) in (int, float) and 0 <= one < 2**63 for one in given]
        if not all(sound) or (isinstance(value, list) and len(value) != content.sizes["d"]):
            raise content.refuse(f"{self.name} must be a number of at least 0, or one of every feature")
        return np.array(value)[()]  # a NumPy number, of which `partial_fit` asks the shape


@dataclass(frozen=True)
class Components(Floats):
    """(s, d), in the order that they lie in memory: products of another order have other last bits."""

    def read(self, content: Content) -> Any:
        """See `Entry`."""
        order = content.values.pop(f"{self.name}order", None)
        if order not in ("C", "F"):
            raise content.refuse(f"{self.name}order must be C or F")
        return np.asarray(super().read(content), order=order)

    def write(self, content: Content, value: Any) -> None:
        """See `Entry`."""
        super().write(content, value)
        content.values[f"{self.name}order"] = "C" if value.flags.c_contiguous else "F"


@dataclass
class PlainStep:
    """A transformer of scikit-learn as `read_state` and `write_state` take an estimator: entries lie below "step"."""

    step: BaseEstimator
    state_schema: tuple[Entry, ...]

    def _known_sizes(self) -> dict[str, int]:
        return {}

    def _restore(self, parts: Mapping[str, Any]) -> None:
        # scikit-learn has None there
        absent = {entry.name: None for entry in self.state_schema if not entry.when(self)}
        for name, value in {**absent, **parts["step"]}.items():
            if value is not None or name != "feature_names_in_":
                setattr(self.step, name, value)


_When = Callable[[Any], bool]


def _floats(axes: str, *names: str, when: _When = lambda _: True, kind: Any = Floats) -> tuple[Any, ...]:
    return tuple(kind(name, f"step.{name}", when, axes=tuple(axes)) for name in names)


def _having(*flags: str) -> _When:
    """True of a step one of whose parameters `flags` is set."""
    return lambda one: any(getattr(one.step, flag) for flag in flags)


_SEEN = (Whole("n_features_in_", "step.n_features_in_", axis="d"), Names("feature_names_in_", "step.feature_names_in_"))
_ROWS = (Counts("n_samples_seen_", "step.n_samples_seen_"),)
_SPECTRUM = _floats("s", "explained_variance_", "explained_variance_ratio_", "singular_values_")
_SCHEMAS: dict[type[BaseEstimator], tuple[Entry, ...]] = {
    preprocessing.StandardScaler: (
        *_floats("d", "mean_", when=_having("with_mean", "with_std")),
        *_floats("d", "var_", when=_having("with_std")),
        *_floats("d", "scale_", when=_having("with_std"), kind=Scales),
        *_ROWS,
    ),
    preprocessing.MinMaxScaler: (
        *_floats("d", "min_", "data_min_", "data_max_", "data_range_"),
        *_floats("d", "scale_", kind=Scales),
        *_ROWS,
    ),
    preprocessing.MaxAbsScaler: (*_floats("d", "max_abs_"), *_floats("d", "scale_", kind=Scales), *_ROWS),
    preprocessing.RobustScaler: (
        *_floats("d", "center_", when=_having("with_centering")),
        *_floats("d", "scale_", when=_having("with_scaling"), kind=Scales),
    ),
    preprocessing.Normalizer: (),
    preprocessing.QuantileTransformer: (
        Whole("n_quantiles_", "step.n_quantiles_", axis="q"),
        *_floats("qd", "quantiles_"),
        *_floats("q", "references_"),
    ),
    decomposition.PCA: (
        Whole("n_components_", "step.n_components_", axis="s"),
        Whole("n_samples_", "step.n_samples_"),
        *_floats("sd", "components_", kind=Components),
        *_floats("d", "mean_"),
        *_SPECTRUM,
        PenaltyNumber("noise_variance_", "step.noise_variance_"),
    ),
    decomposition.TruncatedSVD: (*_floats("sd", "components_", kind=Components), *_SPECTRUM),
    feature_selection.VarianceThreshold: _floats("d", "variances_"),
}
STEPS = {f"sklearn.{kind.__name__}": kind for kind in _SCHEMAS}


def as_plain_step(step: BaseEstimator) -> PlainStep:
    """A step of a class of the table, for `read_state` and `write_state`."""
    return PlainStep(step, (*_SEEN, *_SCHEMAS[type(step)]))
