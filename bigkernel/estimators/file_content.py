"""Contents of a model file: arrays and, as JSON, what `kernels.encoding` makes of values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from bigkernel.errors import ModelRejected

Array = NDArray[Any]


@dataclass
class Content:
    """The part of a file that is one estimator's; reading takes entries out, writing puts them in.

    Attributes
    ----------
    owner : name of the class, for messages
    arrays, values : by name
    sizes : of the axes that were met
    flat : numbers that are targets are one column
    """

    owner: str
    arrays: dict[str, Array] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    flat: bool | None = None

    def refuse(self, message: str) -> ModelRejected:
        """An error that names the class."""
        return ModelRejected(f"{self.owner}: {message}")

    def size(self, axis: str) -> int | None:
        """The size of an axis, None where it was not met; "m/2" is half of m."""
        whole, _, part = axis.partition("/")
        size = self.sizes.get(whole)
        if part and size is not None:
            if size % 2:
                raise self.refuse("landmarks_ must be those of two views of one size")
            return size // 2
        return size
