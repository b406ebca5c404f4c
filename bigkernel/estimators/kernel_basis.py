"""Columns of the kernel estimators: kernel values at m landmarks, or m random Fourier features.

A basis is an immutable value: the kernel with every parameter a number, the dtype of its blocks, and the landmarks,
whose core K_mm is whitened, or what the features are drawn from, which are white as they are. Shapes: n rows, d
features, m landmarks or random features.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from bigkernel.arrays import Array
from bigkernel.engine.rows import Rows
from bigkernel.errors import ConfigError, DataError, ModelRejected
from bigkernel.estimators.checks import require_exact
from bigkernel.estimators.fit_state import UNSTORED, Columns, RowBasis
from bigkernel.estimators.inputs import near_mean
from bigkernel.estimators.landmark_choice import CHOICES, choose, sampled
from bigkernel.events.job import spent
from bigkernel.kernels import uniform_landmarks as draws
from bigkernel.kernels.algebra import Kernel
from bigkernel.kernels.feature_maps import LandmarkMap, centre_of
from bigkernel.kernels.functions import Gaussian, Laplacian, Matern
from bigkernel.kernels.given import Precomputed
from bigkernel.kernels.random_fourier import FourierMap
from bigkernel.solvers import residuals
from bigkernel.solvers.residuals import Certificates
from bigkernel.solvers.whitening import Whitening, reduced, whiten
from bigkernel.statistics.moments import Moments
from bigkernel.streaming.chunk import Chunk

FOURIER = ("fourier", "orthogonal-fourier")
FREQUENCY_BYTES = 2**33  # of the random frequencies that a model may ask for
NOISE_ROWS = 64  # points whose blocks are looked at in float64
FEW_LANDMARKS = 4  # below which points between them lie on a line, or in a plane
GLANCE_ROWS = 256  # rows that tell the bandwidth "scale", the origin and the dtype of random features


@dataclass(frozen=True, eq=False)
class LandmarkBasis:
    """Kernel values at landmarks.

    Attributes
    ----------
    kernel : every parameter a number
    landmarks : (m, d) float64
    dtype : of the blocks
    sample : (k, d) rows of the fit, of kernels whose k(x, x) varies and of few landmarks
    sums : dtype of products of blocks and of their sums over some thousand rows; None: that of the blocks
    """

    kernel: Kernel
    landmarks: Array
    dtype: str
    sample: Array | None = field(default=None, metadata=UNSTORED)
    sums: str | None = None

    @property
    def width(self) -> int:
        """m."""
        return len(self.landmarks)

    @property
    def sum_dtype(self) -> np.dtype[Any] | None:
        """`sums`."""
        return None if self.sums is None else np.dtype(self.sums)

    def features(self) -> LandmarkMap:
        """The map of rows to columns."""
        return LandmarkMap(self.kernel, self.landmarks, np.dtype(self.dtype))

    def centred(self) -> LandmarkMap:
        """The map whose moments are swept: about a point near the mean of its blocks."""
        return replace(self.features(), shift=self.shift)

    @cached_property
    def shift(self) -> Array:
        """What moments are swept about, (m,): a point near the mean of the blocks."""
        return centre_of(self.kernel, self.landmarks, self.dtype)

    def core(self) -> Array:
        """K_mm."""
        return self.kernel(self.landmarks)

    def core_rows(self, rows: slice) -> Array:
        """Some rows of K_mm, (b, m)."""
        return self.kernel(self.landmarks[rows], self.landmarks)

    def whitening(self, *, warn: bool = True, certificates: Certificates | None = None) -> Whitening:
        """The whitening of the core."""
        eps, name = float(np.finfo(self.dtype).eps), self.kernel.name
        return whiten(self.core(), eps=eps, kernel=name, warn=warn, certificates=certificates, overwrite=True)

    def noise(self) -> Array | None:
        """What blocks of some points between landmarks differ by from those in float64, (k, m); None where they are."""
        if self.dtype == "float64":
            return None
        points = self._between(NOISE_ROWS).astype(self.dtype)
        block = self.features().block(Chunk(points), slice(None))
        return np.asarray(block - self.kernel(points.astype(np.float64), self.landmarks))

    def core_diagonal(self) -> Array:
        """That of K_mm, (m,)."""
        return np.asarray(self.kernel.diag(self.landmarks))

    def glance(self) -> tuple[Array, Array] | None:
        """Kernel values of some landmarks and of points between them, (k, m), and of each with itself, (k,)."""
        points = np.concatenate([self.landmarks[:GLANCE_ROWS], self._between(GLANCE_ROWS)])
        return np.asarray(self.kernel(points, self.landmarks)), np.asarray(self.kernel.diag(points))

    def _between(self, count: int) -> Array:
        some = self.landmarks if self.sample is None else np.concatenate([self.landmarks, self.sample])
        some = some[:count]
        return np.asarray((some + np.roll(some, 1, axis=0)) / 2)

    def trace_error(self, moments: Moments) -> float | None:
        """tr(K − K̂)/tr(K), K̂ the kernel that the landmarks make of K; None where it is not known.

        Of all rows of the fit, from their moments, where k(x, x) = 1; else of the sample. Costs a whitening and two
        triangular solves of m right-hand sides.
        """
        if not self.kernel.positive:
            return None
        whitening = self.whitening(warn=False)
        if unit_diagonal(self.kernel):
            # tr K̂ = Σ ‖φ‖² = tr(TᵀGT)
            known, total = float(np.trace(reduced(moments, whitening).G)), float(moments.n)
        elif self.sample is not None:
            known = float((whitening.reduce(self.kernel(self.landmarks, self.sample)) ** 2).sum())
            total = float(self.kernel.diag(self.sample).sum())
        else:  # a model from a file
            return None
        return min(1.0, max(0.0, 1 - known / total)) if total > 0 else None

    def figures(self) -> dict[str, int]:
        """Landmarks that repeat another, and features that do not vary among them."""
        return {
            "duplicate_landmarks": residuals.duplicates(self.landmarks),
            "constant_features": residuals.constant_features(self.landmarks),
        }


@dataclass(frozen=True, eq=False)
class FourierBasis:
    """`width` random Fourier features about `origin` (d,); `mean` (m,) is a point near the mean of the features."""

    kernel: Kernel
    seed: int
    origin: Array
    width: int
    orthogonal: bool
    dtype: str
    mean: Array
    sums: str | None = None  # as in `LandmarkBasis`

    @property
    def sum_dtype(self) -> np.dtype[Any] | None:
        """`sums`."""
        return None if self.sums is None else np.dtype(self.sums)

    def features(self) -> FourierMap:
        """The map of rows to columns."""
        dtype = np.dtype(self.dtype)
        return FourierMap(self.kernel, self.seed, self.width, self.origin, self.orthogonal, dtype)

    def centred(self) -> FourierMap:
        """The map whose moments are swept: about a point near the mean of its blocks."""
        return replace(self.features(), shift=self.mean.astype(self.dtype))

    def core(self) -> Array:
        """The identity: random features are white."""
        return np.eye(self.width)

    def core_rows(self, rows: slice) -> Array:
        """Some rows of the identity, (b, m)."""
        start, stop, _ = rows.indices(self.width)
        return np.eye(stop - start, self.width, start)

    def core_diagonal(self) -> Array:
        """Ones."""
        return np.ones(self.width)

    def whitening(self, *, warn: bool = True, certificates: Certificates | None = None) -> Whitening:
        """No whitening."""
        return Whitening(self.width, self.width)

    def noise(self) -> Array | None:
        """Not known: features are of order one, and white."""
        return None

    def glance(self) -> tuple[Array, Array] | None:
        """Not needed: their moments are as white as they are."""
        return None

    def trace_error(self, moments: Moments) -> float | None:
        """Not known."""
        return None

    def figures(self) -> dict[str, int]:
        """Nothing: there are no landmarks."""
        return {}


Basis = LandmarkBasis | FourierBasis


def of_kernel(basis: Columns) -> Basis:
    """Return columns of a kernel, which those of kernel methods are."""
    assert isinstance(basis, LandmarkBasis | FourierBasis)
    return basis


class RowChoice:
    """How a linear model chooses its columns: the rows themselves, about a point near their mean."""

    exact = False
    dtype = "float64"

    def require_rows(self, rows: Rows) -> None:
        """Nothing: any number of rows will do."""

    def choose(self, rows: Rows, *, look: bool = True, like: Basis | RowBasis | None = None) -> RowBasis:
        """Return the columns for rows; `like`: a basis whose point is taken."""
        del look
        return like if isinstance(like, RowBasis) else RowBasis(near_mean(rows))


@dataclass(frozen=True, eq=False, kw_only=True)
class BasisChoice:
    """How an estimator chooses its columns.

    Attributes
    ----------
    kernel : as it was given, before rows tell it anything
    landmarks : a name, or an array (m, d)
    count : m; None: as many as are given, or every row
    dtype : "auto", "float32" or "float64"
    random_state : of the draw
    exact : True where a fit takes every row for a landmark, all in memory
    every_row : the name of an estimator that takes every row for a landmark where no count is given, or ""
    """

    kernel: Kernel
    landmarks: Any
    count: int | None
    dtype: str = "auto"
    random_state: Any = None
    exact: bool = False
    every_row: str = ""

    @property
    def fourier(self) -> bool:
        """True where the columns are random features."""
        return isinstance(self.landmarks, str) and self.landmarks in FOURIER

    def count_for(self, rows: Rows) -> int | None:
        """Return the number of landmarks to take of rows, or None: as many as are given."""
        del rows
        return self.count

    def width_for(self, rows: Rows) -> int:
        """Return m of a fit on landmarks to rows: those that are drawn are no more than the rows."""
        width = int(self.count or len(self.landmarks))
        return min(width, len(rows)) if isinstance(self.landmarks, str) and not self.fourier else width

    def require_rows(self, rows: Rows) -> None:
        """Refuse first rows that are fewer than the landmarks, of which later ones become none."""
        if isinstance(self.landmarks, str) and not self.fourier:
            draws.require_count(len(rows), self.count_for(rows) or 0)

    def choose(self, rows: Rows, *, look: bool = True, like: Basis | RowBasis | None = None) -> Basis:
        """Choose the columns for rows.

        Parameters
        ----------
        look : False: the first rows stand for those drawn, as a plan needs no more
        like : a basis whose landmarks are taken
        """
        if self.fourier:
            return self._draw_features(rows, look=look)
        landmarks = like.landmarks if isinstance(like, LandmarkBasis) else self._draw_landmarks(rows, look=look)
        kernel = self.kernel.resolve(landmarks)
        sample = None
        if (not unit_diagonal(kernel) or len(landmarks) < FEW_LANDMARKS) and look and like is None:
            sample = rows.take(np.linspace(0, len(rows) - 1, min(len(rows), GLANCE_ROWS)).astype(np.int64))
        narrow = _within(kernel, landmarks, "float32")
        basis = LandmarkBasis(kernel, landmarks, self._block_dtype(rows, kernel, landmarks, narrow=narrow), sample)
        if like is None and not _within(kernel, landmarks, basis.dtype):
            raise DataError(
                f"{kernel.name} kernel: squares of its values at the landmarks leave the range of {basis.dtype}; "
                "scale the rows, or take dtype='float64'"
            )
        return basis

    def _draw_landmarks(self, rows: Rows, *, look: bool) -> Array:
        """Choose the landmarks (m, d)."""
        count, d = self.count_for(rows), rows.shape[1]
        if not isinstance(self.landmarks, str):
            landmarks = draws.given(self.landmarks, d)
            if count not in (None, len(landmarks)):
                raise DataError(f"n_landmarks={count}, but {len(landmarks)} landmarks were given")
            return landmarks
        if self.every_row and self.count is None:
            require_exact(self.every_row, len(rows))
            return draws.given(rows.take(np.arange(len(rows))), d)
        assert count is not None
        if not look:
            first = rows.take(np.arange(min(len(rows), count, GLANCE_ROWS)))
            return np.resize(first, (min(len(rows), count), d))
        rng = check_random_state(self.random_state)
        with spent("landmarks"):
            chosen = choose(rows, self.landmarks, count, kernel=self.kernel, rng=rng)
        residuals.warn_or_note(chosen.note or "", True, None)
        return chosen.landmarks

    def _draw_features(self, rows: Rows, *, look: bool) -> FourierBasis:
        assert self.count is not None
        kernel, seed, sample = draw_spectrum(rows, self.kernel, self.random_state, look=look)
        dtype, orthogonal = self._block_dtype(rows, kernel, sample), self.landmarks == "orthogonal-fourier"
        origin = sample.mean(axis=0)
        features = FourierMap(kernel, seed, self.count, origin, orthogonal, np.dtype(dtype))
        mean = features.of(sample).mean(axis=0, dtype=np.float64)
        return FourierBasis(kernel, seed, origin, self.count, orthogonal, dtype, mean)

    def _block_dtype(self, rows: Rows, kernel: Kernel, points: Array, *, narrow: bool = True) -> str:
        """Return the dtype of the blocks; `narrow`: values at the points fit float32."""
        if self.dtype != "auto":
            return str(self.dtype)
        if rows.dtype.kind == "f" and rows.dtype.itemsize > 4:
            return "float64"
        try:
            kernel.bind(points, np.float32)
        except DataError:  # float32 cannot resolve these distances
            return "float64"
        return "float32" if narrow else "float64"


def check_landmarks(landmarks: Any, count: int | None, *, uncounted: tuple[str, ...] = ("uniform",)) -> None:
    """Raise `ConfigError` for an unknown choice, or one that needs to be told how many; `uncounted` need not."""
    if not isinstance(landmarks, str):
        return
    if landmarks not in CHOICES + FOURIER:
        names = ", ".join(map(repr, CHOICES + FOURIER))
        raise ConfigError(f"landmarks: expected one of {names}, or an array (m, d), found {landmarks!r}")
    if count is None and landmarks not in uncounted:
        raise ConfigError(f"landmarks={landmarks!r}: expected n_landmarks to say how many, found None")


def is_precomputed(kernel: Any) -> bool:
    """Return whether a kernel, as it was given, is a matrix of kernel values."""
    return bool(kernel.precomputed if isinstance(kernel, Kernel) else kernel == Precomputed.name)


def require_frequencies(estimator: str, d: int, count: int) -> None:
    """Raise `ModelRejected` where a model asks for more random frequencies than can be made."""
    if 8 * d * count > FREQUENCY_BYTES:
        raise ModelRejected(
            f"{estimator}: {count:,} random features of {d:,} would take {8e-9 * d * count:,.0f} GB, more "
            f"than {FREQUENCY_BYTES / 1e9:,.0f} GB"
        )


def unit_diagonal(kernel: Kernel) -> bool:
    """True for kernels of the distance, k(x, x) = 1 for every x."""
    return isinstance(kernel, Gaussian | Laplacian | Matern)


def _within(kernel: Kernel, landmarks: Array, dtype: str) -> bool:
    """True where sums of products of kernel values, which k(z, z) bounds, stay in the range of a dtype by far."""
    with np.errstate(over="ignore", invalid="ignore"):
        largest, limits = np.abs(kernel.diag(landmarks)).max(), np.finfo(dtype)
        return bool(1e9 * largest**2 < limits.max and not 0 < largest**2 < 1e9 * limits.tiny)


def draw_spectrum(rows: Rows, kernel: Kernel, random_state: Any, *, look: bool = True) -> tuple[Kernel, int, Array]:
    """The kernel with every parameter a number, a seed of its frequencies, and some rows (k, d).

    `look=False`: the first rows stand for those drawn.
    """
    rng = check_random_state(random_state)
    seed, count = int(rng.randint(2**31 - 1)), min(len(rows), GLANCE_ROWS)
    with spent("landmarks"):
        sample = rows.take(sampled(rows, count, rng) if look else np.arange(count))
    return kernel.resolve(sample), seed, sample
