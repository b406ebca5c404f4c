"""The types of arrays and dtypes, which are told by docstrings and checked where they enter."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
DType = np.dtype[Any]
