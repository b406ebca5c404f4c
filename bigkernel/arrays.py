"""The types of arrays, whose dtype is told by docstrings and checked where they enter, and of what picks from them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
DType = np.dtype[Any]  # float32 or float64
Index = slice | Array  # some of the rows, or of the columns
