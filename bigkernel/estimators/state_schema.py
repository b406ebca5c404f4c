"""Entries of a fitted estimator in a model file: names, kinds and shapes, which every class declares as `state_schema`.

An entry is read from and written to a path in the state of an estimator, as "solution.coef" (see `fit_state`), and
refuses what does not fit. Axes have names: d features, m columns, c targets or components, k classes, G domains, r the
rank; an axis that was met has its size for all entries after it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.errors import ModelRejected
from bigkernel.estimators.file_content import Content
from bigkernel.kernels.algebra import Kernel
from bigkernel.kernels.encoding import decode, encode
from bigkernel.kernels.functions import SCALES
from bigkernel.solvers.accuracy import VECTORS
from bigkernel.solvers.pseudo_labels import PseudoLabels
from bigkernel.statistics.witness import WITNESSED

Array = NDArray[Any]
_OF_STATISTICS = ("rows", "n", "G", "C", "s", "t", "q", "anchors", "degrees", *WITNESSED)


@dataclass(frozen=True)
class Entry(ABC):
    """A value at a path of the state; absent where `when` is not met by the estimator, None where it is `optional`."""

    name: str
    path: str
    when: Callable[[Any], bool] = lambda _: True
    optional: bool = False

    @abstractmethod
    def read(self, content: Content) -> Any:
        """Take the value out; raise `ModelRejected` where it does not fit."""

    def write(self, content: Content, value: Any) -> None:
        """Put the value in."""
        content.values[self.name] = encode(value, self.name)


@dataclass(frozen=True)
class Whole(Entry):
    """A whole number of at least 0, the size of an axis where one is named."""

    axis: str = ""

    def read(self, content: Content) -> int | None:
        """See `Entry`."""
        value = content.values.pop(self.name, None)
        if self.optional and value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise content.refuse(f"{self.name} must be a whole number, found {value!r}")
        if self.axis:
            content.sizes[self.axis] = value
        return value


@dataclass(frozen=True)
class Flag(Entry):
    """True or False, as `says` tells; False where it is optional and not there."""

    says: str = ""

    def read(self, content: Content) -> bool:
        """See `Entry`."""
        value = content.values.pop(self.name, None)
        if self.optional and value is None:
            return False
        if not isinstance(value, bool):
            raise content.refuse(f"{self.name} must say whether {self.says}")
        return value


@dataclass(frozen=True)
class Precision(Entry):
    """The dtype of kernel blocks, or of their sums where that is another."""

    def read(self, content: Content) -> str | None:
        """See `Entry`."""
        value = content.values.pop(self.name, None)
        if self.optional and value is None:
            return None
        if value not in ("float32", "float64"):
            raise content.refuse(f"{self.name} must be float32 or float64")
        return str(value)


@dataclass(frozen=True)
class PenaltyNumber(Entry):
    """A penalty, at least 0."""

    def read(self, content: Content) -> float:
        """See `Entry`."""
        value = content.values.pop(self.name, None)
        if not isinstance(value, float) or not 0 <= value < math.inf:
            raise content.refuse(f"{self.name} must be a number of at least 0, found {value!r}")
        return value


@dataclass(frozen=True)
class KernelEntry(Entry):
    """A kernel with every parameter a number."""

    def read(self, content: Content) -> Kernel:
        """See `Entry`."""
        kernel = decode(content.values.pop(self.name, None))
        if not isinstance(kernel, Kernel) or {"median", *SCALES} & set(map(str, kernel.get_params().values())):
            raise content.refuse(f"{self.name} must be a kernel with every parameter a number, as sigma")
        return kernel


@dataclass(frozen=True)
class Integers(Entry):
    """Whole numbers, as many as the size of an axis."""

    axis: str = ""

    def read(self, content: Content) -> Array:
        """See `Entry`."""
        value = content.values.pop(self.name, None)
        if not isinstance(value, list) or not all(type(item) is int and abs(item) < 2**63 for item in value):
            raise ModelRejected(f"{self.name}: expected a list of whole numbers")
        if self.axis:
            content.sizes[self.axis] = len(value)
        return np.array(value, np.int64)

    def write(self, content: Content, value: Any) -> None:
        """See `Entry`."""
        content.values[self.name] = [int(item) for item in value]


@dataclass(frozen=True)
class Pair(Integers):
    """Two whole numbers."""

    def read(self, content: Content) -> Any:
        """See `Entry`."""
        value = super().read(content)
        if len(value) != 2:
            raise content.refuse(f"{self.name} must be two whole numbers")
        return tuple(value.tolist())


@dataclass(frozen=True)
class Labels(Entry):
    """Different labels, as many as the size of an axis; the axis k has that size."""

    axis: str = ""

    def read(self, content: Content) -> Array | None:
        """See `Entry`."""
        kind = content.values.pop(f"{self.name}dtype", None)
        if self.name not in content.values and self.optional:
            content.sizes["k"] = 0
            return None
        labels = np.asarray(content.values.pop(self.name, []), dtype=None if kind != "U" else str)
        if labels.ndim != 1 or labels.dtype.kind not in "biufU":
            raise ModelRejected(f"{self.name}: expected a list of labels")
        count = content.sizes.get(self.axis, len(labels))
        if len(labels) != count or len(np.unique(labels)) != count or not count:
            raise content.refuse(f"{self.name} must be {count} different labels")
        content.sizes["k"] = count
        return labels

    def write(self, content: Content, value: Any) -> None:
        """See `Entry`."""
        content.values[self.name], content.values[f"{self.name}dtype"] = value.tolist(), value.dtype.kind


@dataclass(frozen=True)
class Names(Entry):
    """Names of features, where there are any."""

    def read(self, content: Content) -> Array | None:
        """See `Entry`."""
        value = content.values.pop(self.name, None)
        return None if value is None else np.asarray([str(item) for item in value], dtype=object)

    def write(self, content: Content, value: Any) -> None:
        """See `Entry`."""
        content.values[self.name] = [str(name) for name in value]


@dataclass(frozen=True)
class Floats(Entry):
    """An array of finite numbers with named axes."""

    axes: tuple[str, ...] = ()

    def read(self, content: Content) -> Array | None:
        """See `Entry`."""
        array = content.arrays.pop(self.name, None)
        if array is None:
            if self.optional:
                return None
            raise content.refuse(f"{self.name} is missing")
        sizes = [content.size(axis) for axis in self.axes]
        wanted = tuple(
            found if size is None else size
            for size, found in zip(sizes, (*array.shape, *(-1,) * len(self.axes)), strict=False)
        )
        if array.shape != wanted:
            raise content.refuse(f"{self.name} must have the shape {wanted}, found {array.shape}")
        content.sizes |= {axis: size for axis, size in zip(self.axes, wanted, strict=True) if "/" not in axis}
        return array

    def write(self, content: Content, value: Any) -> None:
        """See `Entry`."""
        content.arrays[self.name] = np.asarray(value)


@dataclass(frozen=True)
class Scales(Floats):
    """Numbers above 0."""

    def read(self, content: Content) -> Array | None:
        """See `Entry`."""
        array = super().read(content)
        if array is not None and not (array > 0).all():
            raise content.refuse(f"{self.name} must be above 0")
        return array


@dataclass(frozen=True)
class Weights(Floats):
    """Weights of the landmarks, at least 0 and not all of them 0."""

    def read(self, content: Content) -> Array | None:
        """See `Entry`."""
        weight, size = content.arrays.pop(self.name, None), content.sizes["m"]
        if weight is not None and (weight.shape != (size,) or not (weight >= 0).all() or not weight.any()):
            raise content.refuse(f"{self.name} must be {size} numbers of at least 0")
        return weight


@dataclass(frozen=True)
class Coefficients(Floats):
    """(p, c); in the file (p,) where numbers are one column, and where `transposed` (c, p)."""

    transposed: bool = False

    def read(self, content: Content) -> Array:
        """See `Entry`."""
        coef = content.arrays.pop(self.name, np.zeros((0, 0)))
        coef = coef[:, None] if coef.ndim == 1 else coef.T if self.transposed else coef
        size, c = content.size(self.axes[0]), coef.shape[-1] if coef.ndim == 2 else 0
        if coef.shape != (size, c) or not c or not size:
            raise content.refuse("the shape of its coefficients (dual_coef_, coef_) is missing or wrong")
        content.sizes["c"] = c
        return coef

    def write(self, content: Content, value: Any) -> None:
        """See `Entry`."""
        coef = np.asarray(value)
        content.arrays[self.name] = coef[:, 0] if content.flat else coef.T if self.transposed else coef


@dataclass(frozen=True)
class Intercept(Entry):
    """(c,); in the file a number where numbers are one column."""

    def read(self, content: Content) -> Array:
        """See `Entry`."""
        found = content.arrays.pop(self.name, None)
        intercept = np.atleast_1d(content.values.pop(self.name, None) if found is None else found)
        c = content.sizes["c"]
        if intercept.dtype.kind != "f" or intercept.shape != (c,) or not np.isfinite(intercept).all():
            raise content.refuse(f"{self.name} must be {c} finite numbers")
        return intercept

    def write(self, content: Content, value: Any) -> None:
        """See `Entry`."""
        if content.flat:
            content.values[self.name] = float(value[0])
        else:
            content.arrays[self.name] = value


@dataclass(frozen=True)
class OneColumn(Flag):
    """`_flat`: numbers that are targets are one column."""

    def read(self, content: Content) -> bool:
        """See `Entry`."""
        flat = super().read(content)
        if flat and content.sizes["c"] != 1:
            raise content.refuse(f"{self.name} must say whether {self.says}")
        return flat


@dataclass(frozen=True)
class Statistics(Entry):
    """The moments that `refit` and `partial_fit` go on from, of `groups` of rows.

    `columns` is their axis, and `width(sizes)` the number of targets.
    """

    groups: int = 1
    columns: str = "m"
    width: Callable[[Mapping[str, int]], int] = lambda sizes: sizes["c"]

    def read(self, content: Content) -> dict[str, Array] | None:
        """See `Entry`."""
        named = {name: f"statistics.{name}" for name in _OF_STATISTICS}
        found = {name: content.arrays.pop(key) for name, key in named.items() if key in content.arrays}
        if not found:
            return None
        g, size, c = self.groups, content.sizes[self.columns], self.width(content.sizes)
        wanted = {
            "rows": (g,),
            "n": (g,),
            "G": (g, size, size),
            "C": (g, size, c),
            "s": (g, size),
            "t": (g, c),
            "q": (g, c),
        }
        if "anchors" in found:
            wanted |= {"anchors": (size, size), "degrees": (size,)}
        if "E" in found:
            wanted |= {"E": (g, size, VECTORS), "seen": (g,)}
        if {name: values.shape for name, values in found.items()} != wanted:
            raise content.refuse("the shapes of its statistics do not fit its coefficients")
        return found

    def write(self, content: Content, value: Any) -> None:
        """See `Entry`."""
        content.arrays |= {f"statistics.{name}": np.asarray(values) for name, values in value.items()}


@dataclass(frozen=True)
class PseudoLabelSums(Entry):
    """Sums and counts of the pseudo-labels that the solution was made with, where there are any."""

    def read(self, content: Content) -> PseudoLabels | None:
        """See `Entry`."""
        if not {"pseudo.sums", "pseudo.counts"} & set(content.arrays):
            return None
        sums, counts = content.arrays.pop("pseudo.sums"), content.arrays.pop("pseudo.counts")
        m, k = content.sizes["m"], content.sizes["k"]
        if sums.shape != (m, k) or counts.shape != (k,):
            raise content.refuse("the shapes of its pseudo-labels do not fit its statistics")
        return PseudoLabels(sums, counts)

    def write(self, content: Content, value: Any) -> None:
        """See `Entry`."""
        content.arrays |= {"pseudo.sums": np.asarray(value.sums), "pseudo.counts": np.asarray(value.counts)}


@dataclass(frozen=True)
class Numbers(Entry):
    """Numbers by name."""

    keys: tuple[str, ...] = ()

    def read(self, content: Content) -> dict[str, float]:
        """See `Entry`."""
        value = content.values.pop(self.name, None)
        if not isinstance(value, dict) or set(value) != set(self.keys):
            raise ModelRejected(f"{self.name}: expected the numbers {', '.join(self.keys)}")
        return {key: float(item) for key, item in value.items()}

    def write(self, content: Content, value: Any) -> None:
        """See `Entry`."""
        content.values[self.name] = {key: encode(value[key], key) for key in self.keys}


SEEN = (Whole("n_features_in_", "n_features_in_", axis="d"), Names("feature_names_in_", "feature_names_in_"))
FEATURES = (Whole("n_features_in_", "inputs.n_features", axis="d"), Names("feature_names_in_", "inputs.feature_names"))
SOLUTION = (
    Coefficients("dual_coef_", "solution.coef", axes=("m",)),
    Intercept("intercept_", "solution.intercept"),
)
OF_CLASSES = (Labels("classes_", "inputs.classes", axis="c"),)
OF_NUMBERS = (
    OneColumn("_flat", "inputs.flat", says="targets are one column"),
    Floats("target_shift_", "inputs.target_shift", axes=("c",)),
)
