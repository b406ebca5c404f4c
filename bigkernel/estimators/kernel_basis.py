"""What every estimator of a kernel in m columns shares: which m, the kernel's parameters, the dtype, the core.

Columns are the kernel's values at m landmarks, whose core K_mm is whitened; or m random Fourier features, which are
white as they are. Shapes: n rows, d features, m landmarks or random features.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from bigkernel.engine.rows import Rows
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators.landmark_choice import CHOICES, choose, sampled
from bigkernel.kernels import uniform_landmarks as draws
from bigkernel.kernels.feature_maps import LandmarkMap, centre_of
from bigkernel.kernels.functions import Gaussian, Kernel, Laplacian, Matern, as_kernel
from bigkernel.kernels.random_fourier import FourierMap
from bigkernel.monitor.scope import spent
from bigkernel.solvers.residuals import Certificates, tell
from bigkernel.solvers.ridge import Whitening, identity, whiten

Array = NDArray[Any]
FOURIER = ("fourier", "orthogonal-fourier")
OF_FOURIER = ("fourier_seed_", "fourier_origin_", "fourier_mean_")
GLANCE_ROWS = 256  # rows that tell the bandwidth "scale", the origin and the dtype of random features


class KernelBasis(BaseEstimator):
    """Base of the estimators with a kernel and landmarks.

    They have the parameters kernel, gamma, degree, coef0, n_landmarks, landmarks, dtype and random_state; `_start` sets
    kernel_, dtype_, and landmarks_ (m, d), or in their place fourier_seed_ (an int), fourier_origin_ (d,) and
    fourier_mean_ (m,), a point near the mean of the features.
    """

    @property
    def _fourier(self) -> bool:
        """Whether the columns are random features."""
        return isinstance(self.landmarks, str) and self.landmarks in FOURIER

    @property
    def _exact(self) -> bool:
        return self.n_landmarks is None and isinstance(self.landmarks, str)

    @property
    def _n_drawn(self) -> Any:
        """How many landmarks `_start` takes, or None: n_landmarks; more for an estimator with several sets of them."""
        return self.n_landmarks

    def _check_landmarks(self) -> None:
        if not isinstance(self.landmarks, str):
            return
        if self.landmarks not in CHOICES + FOURIER:
            names = ", ".join(map(repr, CHOICES + FOURIER))
            raise ConfigError(f"landmarks: expected one of {names}, or an array (m, d), found {self.landmarks!r}")
        if self.n_landmarks is None and self.landmarks != "uniform":
            raise ConfigError(f"landmarks={self.landmarks!r}: expected n_landmarks to say how many, found None")
        if self._fourier and getattr(self, "eigenfunctions", "all") == "landmarks":
            raise ConfigError(
                f"landmarks={self.landmarks!r}: random features have no landmarks to take eigenfunctions of; expected "
                "eigenfunctions='all'"
            )

    def _kernel(self) -> Kernel:
        return as_kernel(self.kernel, gamma=self.gamma, degree=self.degree, coef0=self.coef0)

    def _start(self, rows: Rows, *, look: bool = True) -> None:
        """Choose landmarks, fix the kernel's parameters and the dtype; `look=False`: as they are likely to be."""
        for name in ("sample_weight_", "landmarks_", *OF_FOURIER, "_trace_rows"):  # of another fit before
            self.__dict__.pop(name, None)
        if self._fourier:
            self._start_fourier(rows, look=look)
            return
        if isinstance(self.landmarks, str):
            draws.require_count(len(rows), self._n_drawn)
            if not look:  # the first rows stand for the draw
                first = rows.take(np.arange(min(len(rows), self._n_drawn, 256)))
                self.landmarks_ = np.resize(first, (self._n_drawn, rows.shape[1]))
            else:
                rng = check_random_state(self.random_state)
                with spent("landmarks"):
                    chosen = choose(rows, self.landmarks, self._n_drawn, kernel=self._kernel(), rng=rng)
                tell(chosen.note or "", True, None)
                self.landmarks_ = chosen.landmarks
        else:
            self.landmarks_ = draws.given(self.landmarks, rows.shape[1])
            if self._n_drawn not in (None, len(self.landmarks_)):
                raise DataError(f"n_landmarks={self._n_drawn}, but {len(self.landmarks_)} landmarks were given")
        self.kernel_ = self._kernel().resolve(self.landmarks_)
        if not unit_diagonal(self.kernel_) and look:
            places = np.linspace(0, len(rows) - 1, min(len(rows), GLANCE_ROWS)).astype(np.int64)
            self._trace_rows = rows.take(places)
        self.dtype_ = self._compute_dtype(rows)
        if not self._within(self.dtype_):
            raise DataError(
                f"{self.kernel_.name} kernel: squares of its values at the landmarks leave the range of {self.dtype_}; "
                "scale the rows, or take dtype='float64'"
            )

    def _start_fourier(self, rows: Rows, *, look: bool) -> None:
        self.kernel_, self.fourier_seed_, sample = begin(rows, self._kernel(), self.random_state, look=look)
        self.fourier_origin_ = sample.mean(axis=0)
        self.dtype_ = self._compute_dtype(rows, sample)
        self.fourier_mean_ = self._features().of(sample).mean(axis=0, dtype=np.float64)

    def _compute_dtype(self, rows: Rows, points: Array | None = None) -> str:
        if self.dtype != "auto":
            return str(self.dtype)
        if rows.dtype.kind == "f" and rows.dtype.itemsize > 4:
            return "float64"
        try:
            self.kernel_.bind(self.landmarks_ if points is None else points, np.float32)
        except DataError:  # float32 cannot resolve these distances
            return "float64"
        return "float32" if self._fourier or self._within("float32") else "float64"

    def _within(self, dtype: str) -> bool:
        """Whether sums of products of kernel values, which k(z, z) bounds, stay in the range of a dtype by far."""
        with np.errstate(over="ignore", invalid="ignore"):
            largest = np.abs(self.kernel_.diag(self.landmarks_)).max()
            return bool(1e9 * largest**2 < np.finfo(dtype).max)

    @property
    def _columns(self) -> int:
        """m: landmarks or random features of the fit."""
        return int(self.n_landmarks) if self._fourier else len(self.landmarks_)

    def _features(self) -> Any:
        dtype = np.dtype(self.dtype_)
        if not self._fourier:
            return LandmarkMap(self.kernel_, self.landmarks_, dtype)
        return FourierMap(
            self.kernel_,
            self.fourier_seed_,
            self.n_landmarks,
            self.fourier_origin_,
            self.landmarks == "orthogonal-fourier",
            dtype,
        )

    def _centred(self) -> Any:
        """The map whose moments are swept: about a point near the mean of its blocks."""
        if self._fourier:
            return replace(self._features(), shift=self.fourier_mean_.astype(self.dtype_))
        return replace(self._features(), shift=centre_of(self.kernel_, self.landmarks_, self.dtype_))

    def _whitening(self, *, warn: bool = True, certificates: Certificates | None = None) -> Whitening:
        if self._fourier:
            return identity(self.n_landmarks)
        eps, name = float(np.finfo(self.dtype_).eps), self.kernel_.name
        return whiten(self._core(), eps=eps, kernel=name, warn=warn, certificates=certificates)

    def _trace_error(self) -> float | None:
        """tr(K − K̂)/tr(K), K̂ the kernel that the landmarks make of K; None where it is not known.

        Of all rows of the fit, from their moments, where k(x, x) = 1; else of some rows that were looked at when the
        landmarks were chosen. Costs a whitening and two triangular solves of m right-hand sides.
        """
        if self._fourier or not self.kernel_.positive or not hasattr(self, "statistics_"):
            return None
        whitening = self._whitening(warn=False)
        if unit_diagonal(self.kernel_):
            # tr K̂ = Σ ‖φ‖² = tr(TᵀGT)
            known = float(np.trace(whitening.rotate(self.statistics_["G"].sum(axis=0))))
            total = float(self.statistics_["n"].sum())
        elif hasattr(self, "_trace_rows"):
            known = float((whitening.reduce(self.kernel_(self.landmarks_, self._trace_rows)) ** 2).sum())
            total = float(self.kernel_.diag(self._trace_rows).sum())
        else:  # a model from a file
            return None
        return min(1.0, max(0.0, 1 - known / total)) if total > 0 else None

    def _core(self) -> Array:
        return np.eye(self.n_landmarks) if self._fourier else self.kernel_(self.landmarks_)


def unit_diagonal(kernel: Kernel) -> bool:
    """Whether k(x, x) = 1 for every x: a kernel of the distance."""
    return isinstance(kernel, Gaussian | Laplacian | Matern)


def begin(rows: Rows, kernel: Kernel, random_state: Any, *, look: bool = True) -> tuple[Kernel, int, Array]:
    """What random features are made of: the kernel with every parameter a number, a seed, and some rows (k, d).

    `look=False`: the first rows stand for those drawn.
    """
    rng = check_random_state(random_state)
    seed, count = int(rng.randint(2**31 - 1)), min(len(rows), GLANCE_ROWS)
    if look:
        with spent("landmarks"):
            sample = rows.take(sampled(rows, count, rng))
    else:
        sample = rows.take(np.arange(count))
    return kernel.resolve(sample), seed, sample
