"""The type of arrays whose dtype is told by docstrings and checked where they enter."""

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
