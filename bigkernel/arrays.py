"""The types of arrays whose dtype is told by docstrings and checked where they enter, and of such dtypes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Dtype = np.dtype[Any]
