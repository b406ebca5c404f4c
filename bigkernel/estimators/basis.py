"""What every estimator of a kernel in m columns shares: which m, the kernel's parameters, the dtype, the core.

m landmarks and their kernel values, whose core K_mm is whitened. Shapes: n rows, d features, m landmarks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from bigkernel import landmarks as draws
from bigkernel.certify import Certificates, tell
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators.choosing import CHOICES, choose
from bigkernel.features import LandmarkMap, centre_of
from bigkernel.kernels import Kernel, as_kernel
from bigkernel.monitor import spent
from bigkernel.rows import Rows
from bigkernel.solve import Whitening, whiten

Array = NDArray[Any]


class KernelBasis(BaseEstimator):
    """Base of the estimators with a kernel and landmarks.

    They have the parameters kernel, gamma, degree, coef0, n_landmarks, landmarks, dtype and random_state; `_start` sets
    landmarks_, kernel_ and dtype_.
    """

    @property
    def _exact(self) -> bool:
        return self.n_landmarks is None and isinstance(self.landmarks, str)

    def _check_landmarks(self) -> None:
        if not isinstance(self.landmarks, str):
            return
        if self.landmarks not in CHOICES:
            names = ", ".join(map(repr, CHOICES))
            raise ConfigError(f"landmarks: expected one of {names}, or an array (m, d), found {self.landmarks!r}")
        if self.n_landmarks is None and self.landmarks != "uniform":
            raise ConfigError(f"landmarks={self.landmarks!r}: expected n_landmarks to say how many, found None")

    def _kernel(self) -> Kernel:
        return as_kernel(self.kernel, gamma=self.gamma, degree=self.degree, coef0=self.coef0)

    def _start(self, rows: Rows, *, look: bool = True) -> None:
        """Choose landmarks, fix the kernel's parameters and the dtype; `look=False`: as they are likely to be."""
        self.__dict__.pop("sample_weight_", None)  # of an exact fit before
        if isinstance(self.landmarks, str):
            draws.require_count(len(rows), self.n_landmarks)
            if not look:  # the first rows stand for the draw
                first = rows.take(np.arange(min(len(rows), self.n_landmarks, 256)))
                self.landmarks_ = np.resize(first, (self.n_landmarks, rows.shape[1]))
            else:
                rng = check_random_state(self.random_state)
                with spent("landmarks"):
                    chosen = choose(rows, self.landmarks, self.n_landmarks, kernel=self._kernel(), rng=rng)
                tell(chosen.note or "", True, None)
                self.landmarks_ = chosen.landmarks
        else:
            self.landmarks_ = draws.given(self.landmarks, rows.shape[1])
            if self.n_landmarks not in (None, len(self.landmarks_)):
                raise DataError(f"n_landmarks={self.n_landmarks}, but {len(self.landmarks_)} landmarks were given")
        self.kernel_ = self._kernel().resolve(self.landmarks_)
        self.dtype_ = self._compute_dtype(rows)
        if not self._within(self.dtype_):
            raise DataError(
                f"{self.kernel_.name} kernel: squares of its values at the landmarks leave the range of {self.dtype_}; "
                "scale the rows, or take dtype='float64'"
            )

    def _compute_dtype(self, rows: Rows) -> str:
        if self.dtype != "auto":
            return str(self.dtype)
        if rows.dtype.kind == "f" and rows.dtype.itemsize > 4:
            return "float64"
        try:
            self.kernel_.bind(self.landmarks_, np.float32)
        except DataError:  # float32 cannot resolve these distances
            return "float64"
        return "float32" if self._within("float32") else "float64"

    def _within(self, dtype: str) -> bool:
        """Whether sums of products of kernel values, which k(z, z) bounds, stay in the range of a dtype by far."""
        with np.errstate(over="ignore", invalid="ignore"):
            largest = np.abs(self.kernel_.diag(self.landmarks_)).max()
            return bool(1e9 * largest**2 < np.finfo(dtype).max)

    def _features(self) -> LandmarkMap:
        return LandmarkMap(self.kernel_, self.landmarks_, np.dtype(self.dtype_))

    def _centred(self) -> LandmarkMap:
        """The map whose moments are swept: about a point near the mean of its blocks."""
        return replace(self._features(), shift=centre_of(self.kernel_, self.landmarks_, self.dtype_))

    def _whitening(self, *, warn: bool = True, certificates: Certificates | None = None) -> Whitening:
        eps, name = float(np.finfo(self.dtype_).eps), self.kernel_.name
        return whiten(self._core(), eps=eps, kernel=name, warn=warn, certificates=certificates)

    def _core(self) -> Array:
        return self.kernel_(self.landmarks_)
