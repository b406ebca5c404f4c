"""What blocks of sparse rows lose: their products are about 0, and values far from it cost the distances digits.

Shapes: k points, m landmarks, d features.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bigkernel.kernels.feature_maps import LandmarkMap
from bigkernel.kernels.sparse_blocks import SparsePoints
from bigkernel.streaming.chunk import Chunk

Array = NDArray[Any]
_SEEN = 100.0  # times ε of the values, that rounding must exceed to count beside that of dense blocks


def sparse_noise(features: LandmarkMap, points: Array) -> Array | None:
    """What float64 blocks of sparse points (k, d) differ by from those about the mean of the landmarks, (k, m).

    None where rows of such landmarks become dense, or the difference is that of any rounding in float64.
    """
    map_of_sparse = features.of_sparse_rows(0.0)
    if not isinstance(map_of_sparse.landmarks, SparsePoints):
        return None
    values = features.kernel(points, features.landmarks)
    block = map_of_sparse.block(Chunk(sparse.csr_array(points)), slice(None)) - values
    least = _SEEN * float(np.finfo(np.float64).eps) * float(np.linalg.norm(values))
    return np.asarray(block) if float(np.linalg.norm(block)) > least else None
