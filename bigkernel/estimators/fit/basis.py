"""Columns of the kernel estimators: kernel values at m landmarks, or m random Fourier features.

A basis is an immutable value: the kernel with every parameter a number, the dtype of its blocks, and the landmarks,
whose core K_mm is whitened, or the seed of random features, which are white already. Landmarks are chosen among rows
that may be stored anywhere (all choices but "uniform" use a uniform sample, never all n rows):

    "uniform"            rows, all equally likely (Williams & Seeger 2000)
    "balanced"           the same number of rows of every domain, given by the column "domain"
    "k-means"            centres of k-means, which need not be rows (Zhang, Tsang & Kwok 2008)
    "balanced-k-means"   the same number of centres for every domain
    "rpcholesky"         rows by randomly pivoted Cholesky, in blocks (`bigkernel.kernels.landmarks`)

"rpcholesky" runs in this process, on n sampled rows of d features. Beside 16nd bytes of rows and strips of a fixed size
it takes 8nm bytes for the factor F of K̂ = FFᵀ (half of that in float32). It chooses among 20 rows a landmark; from
3,700 landmarks on among fewer, down to two from 11,600 on, where the factor is float32 unless rows are float64. The
size of the sample does not depend on free memory: landmarks are the same on every machine that can choose them.

Weights of rows are ignored. Shapes: n rows, d features, m landmarks or random features.
Tests: estimators/test_landmark_choices.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state

from bigkernel.arrays import Array, Index
from bigkernel.config import settings
from bigkernel.data.containers import by_name, in_memory, length, names_of
from bigkernel.engine.process import free_memory
from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import device_here
from bigkernel.errors import ConfigError, DataError, ModelRejectedError, PlanTooLargeError
from bigkernel.estimators.fit.state import UNSTORED, ColumnMap, Columns, RowBasis
from bigkernel.estimators.inputs.checks import require_exact, warn_of_scales
from bigkernel.estimators.inputs.read import near_mean
from bigkernel.events.job import spent
from bigkernel.kernels import landmarks as draws
from bigkernel.kernels.algebra import Kernel, PreparedLandmarks
from bigkernel.kernels.feature_maps import FeatureMap, LandmarkFamily, LandmarkMap, centre_of
from bigkernel.kernels.given import Precomputed
from bigkernel.kernels.landmarks import Ids
from bigkernel.kernels.on_device import device_for, solving_on
from bigkernel.kernels.random_fourier import FourierMap
from bigkernel.kernels.threads import one_thread
from bigkernel.solvers import residuals
from bigkernel.solvers.residuals import SolveDiagnostics
from bigkernel.solvers.whitening import Whitening, reduce_moments, whiten
from bigkernel.solvers.xnv import first_view
from bigkernel.statistics.moments import Moments
from bigkernel.streaming.chunk import Chunk, Workspace
from bigkernel.streaming.devices import HOST

Seed = int | np.random.RandomState | None

DEFAULT_LANDMARKS = 500  # of estimators with `most`
CHOICES = ("uniform", "balanced", "k-means", "balanced-k-means", "rpcholesky")
FOURIER = ("fourier", "orthogonal-fourier")
FREQUENCY_BYTES = 2**33  # most memory of the random frequencies of a model
NOISE_ROWS = 64  # points whose blocks are compared with float64
FEW_LANDMARKS = 4  # below which points between them lie on a line, or in a plane
SAMPLE_ROWS = 256  # rows that set the bandwidth "scale", the origin and the dtype of random features
LEAST_ROWS = 20_000  # of the sample of k-means
ROWS_PER_LANDMARK = 20  # of larger samples
SAMPLE_BYTES = 2**30
FACTOR_BYTES = 2**31  # of (rows of the sample, m) numbers, up to which there are more than two rows a landmark
SEED_ROWS, SEED_LEAST = 3, 2000  # rows a centre, and in all, among which k-means chooses its first centres
LLOYD_STEPS = 10  # of k-means from these
DIRECTIONS = 64  # in which its rows are compared, where they have more features
STRIPS_BYTES = 2**28  # of rows and kernel values that a choice by the kernel works on at a time


@dataclass(frozen=True, eq=False)
class LandmarkBasis(ColumnMap):
    """Kernel values at landmarks."""

    kernel: Kernel  # every parameter a number
    landmarks: Array  # (m, d) float64
    dtype: str  # of the blocks
    # (k, d) rows of the fit, of kernels whose k(x, x) varies and of few landmarks
    sample: Array | None = None
    # dtype of products of blocks and of their sums over some thousand rows; None: that of the blocks
    sums: str | None = None
    # (m,) the rows of the fit that the landmarks are; None: not known, or they are no rows
    ids: Array | None = field(default=None, metadata=UNSTORED)
    views: int = 1  # that the landmarks are of; those of the first view come first

    @property
    def width(self) -> int:
        """Number of landmarks, m."""
        return len(self.landmarks)

    def features(self) -> LandmarkMap:
        return LandmarkMap(self.kernel, self.landmarks, np.dtype(self.dtype))

    def centred(self) -> LandmarkMap:
        return replace(self.features(), shift=self.shift)

    @cached_property
    def shift(self) -> Array:
        """Point near the mean of the blocks that moments are swept about, (m,)."""
        return centre_of(self.kernel, self.landmarks, self.dtype)

    def core(self) -> Array:
        """Compute K_mm, of many landmarks on the device of a solve, if it is a matrix product."""
        device, Z = device_for(self.width), np.asarray(self.landmarks, np.float64)
        if device is HOST or type(prepared := self.kernel.bind(Z)) is not PreparedLandmarks:
            return self.kernel(self.landmarks)
        values = device.moved(prepared).values(device.array(Z), len(Z))
        return device.to_host((values + values.T) / 2)

    def core_rows(self, rows: Index, columns: Index = slice(None)) -> Array:
        """Compute some rows of K_mm, or of some of its columns, (b, m)."""
        return self.kernel(self.landmarks[rows], self.landmarks[columns])

    def whitening(self, diagnostics: SolveDiagnostics | None = None, *, solves: bool = True) -> Whitening:
        if not solves:
            return replace(self, dtype="float64").whitening()
        eps, name, diagnostics = float(np.finfo(self.dtype).eps), self.kernel.name, diagnostics or SolveDiagnostics()
        with solving_on(device_here):
            return whiten(self.core(), eps=eps, kernel=name, diagnostics=diagnostics, overwrite=True)

    def predicting(self, features: FeatureMap) -> FeatureMap:
        if self.views == 1:
            return features
        assert isinstance(features, LandmarkMap | LandmarkFamily)
        return replace(features, landmarks=features.landmarks[: features.width // self.views])

    def predicted_from(self, moments: Moments) -> Moments:
        return moments if self.views == 1 else first_view(moments, self.width // self.views)

    def noise(self) -> Array | None:
        """Return differences of blocks of points between landmarks from float64, (k, m); None for float64 blocks."""
        if self.dtype == "float64":
            return None
        points = self._between(NOISE_ROWS).astype(self.dtype)
        work = Workspace(device=device_here())  # as sweeps compute blocks
        block = work.device.to_host(self.features().block(Chunk(points, work=work), slice(None)))
        return np.asarray(block - self.kernel(points.astype(np.float64), self.landmarks))

    def core_diagonal(self) -> Array:
        """Compute the diagonal of K_mm, (m,)."""
        return np.asarray(self.kernel.diag(self.landmarks))

    def sample_block(self) -> tuple[Array, Array] | None:
        """Compute k of some landmarks and points between them, (k, m), and of each with itself, (k,)."""
        points = np.concatenate([self.landmarks[:SAMPLE_ROWS], self._between(SAMPLE_ROWS)])
        return np.asarray(self.kernel(points, self.landmarks)), np.asarray(self.kernel.diag(points))

    def _between(self, count: int) -> Array:
        some = self.landmarks if self.sample is None else np.concatenate([self.landmarks, self.sample])
        some = some[:count]
        return np.asarray((some + np.roll(some, 1, axis=0)) / 2)

    def trace_error(self, moments: Moments) -> float | None:
        """Compute tr(K − K̂)/tr(K), K̂ the Nyström approximation of K; None where it is unknown.

        It is of all rows of the fit, from their moments, where k(x, x) = 1, and otherwise of the sample. Costs a
        whitening and two triangular solves of m right-hand sides.
        """
        if not self.kernel.positive:
            return None
        whitening = self.whitening()
        if self.kernel.of_distance:
            # tr K̂ = Σ ‖φ‖² = tr(TᵀGT)
            known, total = float(np.trace(reduce_moments(moments, whitening).G)), float(moments.n)
        elif self.sample is not None:
            known = float((whitening.reduce(self.kernel(self.landmarks, self.sample)) ** 2).sum())
            total = float(self.kernel.diag(self.sample).sum())
        else:  # landmarks were given, without rows
            return None
        return min(1.0, max(0.0, 1 - known / total)) if total > 0 else None

    @property
    def mean_diagonal(self) -> float:
        """The mean of k(x, x)."""
        return float(np.mean(self.kernel.diag(self.landmarks if self.sample is None else self.sample)))

    def figures(self) -> dict[str, int]:
        """Count landmarks that repeat another, and features that are constant among them."""
        return {
            "duplicate_landmarks": residuals.duplicates(self.landmarks),
            "constant_features": residuals.constant_features(self.landmarks),
        }


@dataclass(frozen=True, eq=False)
class FourierBasis(ColumnMap):
    """`width` random Fourier features about `origin` (d,); `mean` (m,) is a point near the mean of the features."""

    kernel: Kernel
    seed: int
    origin: Array
    width: int
    orthogonal: bool
    dtype: str
    mean: Array
    sums: str | None = None  # as in `LandmarkBasis`
    mean_diagonal: ClassVar[float] = 1.0

    def features(self) -> FourierMap:
        dtype = np.dtype(self.dtype)
        return FourierMap(self.kernel, self.seed, self.width, self.origin, self.orthogonal, dtype)

    def centred(self) -> FourierMap:
        return replace(self.features(), shift=self.mean.astype(self.dtype))

    def core(self) -> Array:
        """Return the identity: random features are white."""
        return np.eye(self.width)

    def core_rows(self, rows: Index, columns: Index = slice(None)) -> Array:
        """Return some rows of the identity, or of some of its columns, (b, m)."""
        assert isinstance(rows, slice)
        start, stop, _ = rows.indices(self.width)
        return np.eye(stop - start, self.width, start)[:, columns]

    def core_diagonal(self) -> Array:
        """Return ones."""
        return np.ones(self.width)

    def whitening(self, diagnostics: SolveDiagnostics | None = None, *, solves: bool = True) -> Whitening:
        """Return no whitening."""
        return Whitening(self.width, self.width)

    def trace_error(self, moments: Moments) -> float | None:
        """Return None: it is unknown."""
        return None


Basis = LandmarkBasis | FourierBasis


def of_kernel(basis: Columns) -> Basis:
    """Narrow the type of columns to those of a kernel."""
    assert isinstance(basis, LandmarkBasis | FourierBasis)
    return basis


class RowChoice:
    """The columns of a linear model: the rows themselves, about a point near their mean."""

    exact = False
    dtype = "float64"

    def require_rows(self, rows: Rows) -> None:
        """Accept any number of rows."""

    def choose(self, rows: Rows, *, look: bool = True, like: Basis | RowBasis | None = None) -> RowBasis:
        """Return the columns for rows, about the point of the basis `like` if it is given."""
        return like if isinstance(like, RowBasis) else RowBasis(near_mean(rows))


@dataclass(frozen=True, eq=False, kw_only=True)
class BasisChoice:
    """The settings by which an estimator chooses its columns."""

    kernel: Kernel  # as given, before its bandwidth is set from rows
    landmarks: str | ArrayLike  # a name, or an array (m, d)
    count: int | None  # m; None: as many as are given, or every row
    dtype: str = "auto"  # "auto", "float32" or "float64"
    random_state: Seed = None  # seed of the choice
    exact: bool = False  # whether every row is a landmark and the fit takes place in memory
    most: int = 0  # landmarks where `count` is None: so many, or half as many as rows if these are fewer
    every_row: str = ""  # the name of an estimator that makes every row a landmark unless a count is given, or ""

    @property
    def fourier(self) -> bool:
        """Whether the columns are random features."""
        return isinstance(self.landmarks, str) and self.landmarks in FOURIER

    def count_for(self, rows: Rows) -> int | None:
        """Return the number of landmarks to choose from rows, or None: as many as are given."""
        return self.count or (min(self.most, max(1, len(rows) // 2)) if self.most else None)

    def width_for(self, rows: Rows) -> int:
        """Return m of a fit to rows; landmarks sampled from rows are no more than the rows."""
        width = int(self.count or length(self.landmarks))
        return min(width, len(rows)) if isinstance(self.landmarks, str) and not self.fourier else width

    def require_rows(self, rows: Rows) -> None:
        """Raise `DataError` for first rows fewer than the landmarks, as later rows never become landmarks."""
        if isinstance(self.landmarks, str) and not self.fourier:
            draws.require_count(len(rows), self.count_for(rows) or 0)

    def choose(self, rows: Rows, *, look: bool = True, like: Basis | RowBasis | None = None) -> Basis:
        """Choose the columns for rows, or take the landmarks of the basis `like`.

        Without `look`, the first rows are taken, which suffice for a plan.
        """
        if self.fourier:
            return self._draw_features(rows, look=look)
        if isinstance(like, LandmarkBasis):
            landmarks, ids = like.landmarks, like.ids
        else:
            landmarks, ids = self._draw_landmarks(rows, look=look)
        # a bandwidth given by a rule becomes a number
        kernel = self.kernel.resolve(landmarks)
        if look and like is None:
            warn_of_scales(kernel, landmarks, rows.feature_names)
        # few landmarks, or those of a kernel whose k(x, x) varies, do not represent the rows: keep some of these
        sample = None
        if (not kernel.of_distance or len(landmarks) < FEW_LANDMARKS) and look and like is None:
            places = np.linspace(0, len(rows) - 1, min(len(rows), SAMPLE_ROWS)).astype(np.int64)
            sample = rows.take(rows.ids_at(places))
        dtype = self._block_dtype(rows, kernel, landmarks)
        if like is None and not _within(kernel, landmarks, dtype):
            raise DataError(
                f"{kernel.name} kernel: squares of its values at the landmarks exceed the range of {dtype}; scale "
                "the rows, or use dtype='float64'"
            )
        return LandmarkBasis(kernel, landmarks, dtype, sample, _sums_of(dtype), ids=ids)

    def _draw_landmarks(self, rows: Rows, *, look: bool) -> tuple[Array, Ids | None]:
        """Choose the landmarks (m, d); return also their rows (m,), if they are rows."""
        count, d = self.count_for(rows), rows.shape[1]
        if not isinstance(self.landmarks, str):
            given, names = self.landmarks, rows.feature_names
            if names and names_of(given):
                given = by_name(given, names, "landmarks", "the fit")
            landmarks = draws.as_landmarks(in_memory(given, "landmarks"), d)
            if count not in (None, len(landmarks)):
                raise DataError(f"n_landmarks={count}: expected the number of landmarks passed, {len(landmarks)}")
            return landmarks, None
        if self.every_row and self.count is None:
            require_exact(self.every_row, len(rows))
            every = rows.ids_at(np.arange(len(rows)))
            return draws.as_landmarks(rows.take(every), d), every
        assert count is not None
        if not look:
            first = rows.take(np.arange(min(len(rows), count, SAMPLE_ROWS)))
            return np.resize(first, (min(len(rows), count), d)), None
        rng = check_random_state(self.random_state)
        with spent("landmarks"):
            landmarks, ids, note = choose(rows, self.landmarks, count, kernel=self.kernel, rng=rng)
        residuals.warn_or_note(note or "", True, None)
        return landmarks, ids

    def _draw_features(self, rows: Rows, *, look: bool) -> FourierBasis:
        assert self.count is not None
        kernel, seed, sample = draw_spectrum(rows, self.kernel, self.random_state, look=look)
        dtype, orthogonal = self._block_dtype(rows, kernel, sample), self.landmarks == "orthogonal-fourier"
        origin = sample.mean(axis=0)
        # moments are swept about the mean of the features of a few rows
        features = FourierMap(kernel, seed, self.count, origin, orthogonal, np.dtype(dtype))
        mean = features.of(sample).mean(axis=0, dtype=np.float64)
        return FourierBasis(kernel, seed, origin, self.count, orthogonal, dtype, mean)

    def _block_dtype(self, rows: Rows, kernel: Kernel, points: Array) -> str:
        """Return the dtype of the blocks: float32, unless rows, or values at the points, do not fit it."""
        if self.dtype != "auto":
            return str(self.dtype)
        if rows.dtype.kind == "f" and rows.dtype.itemsize > 4:
            return "float64"
        try:
            kernel.bind(points, np.float32)
        except DataError:  # float32 cannot resolve these distances
            return "float64"
        return "float32" if _within(kernel, points, "float32") else "float64"


# -- which rows serve as landmarks -------------------------------------------------------------------------------------


def choose(
    rows: Rows, method: str, count: int, *, kernel: Kernel, rng: np.random.RandomState
) -> tuple[Array, Ids | None, str | None]:
    """Choose `count` landmarks (m, d) for rows and a kernel; return them, the ids of their rows, and a note.

    Centres have no ids. Bad rows to be skipped are in neither landmarks nor samples; a kernel's "scale" is that of the
    sample. The note says why landmarks are fewer than `count`: there are fewer rows, or fewer different ones.
    """
    possible = min(count, len(rows))
    draws.require_count(len(rows), possible)
    ids, note = None, None
    if method == "uniform":
        ids = draw_rows(rows, possible, rng)
        landmarks = rows.take(ids)
    elif method in ("balanced", "balanced-k-means"):
        landmarks, ids, note = _by_domain(rows, method, possible, rng)
    elif method == "k-means":
        landmarks, note = _centres(rows, possible, rng)
    elif method == "rpcholesky":
        landmarks, ids, note = _by_cholesky(rows, possible, kernel, rng)
    else:
        raise ConfigError(f"landmarks: expected {', '.join(map(repr, CHOICES))} or an array (m, d), found {method!r}")
    if (taken := len(landmarks)) < count:
        why = note or "no more rows can be sampled"
        note = f"{why}: using {taken:,} of {count:,} requested landmarks"
    return landmarks, ids, note


def _by_domain(rows: Rows, method: str, count: int, rng: np.random.RandomState) -> tuple[Array, Ids | None, str | None]:
    """Choose rows or centres of every domain."""
    domains = _domains(rows, count)
    if method == "balanced":
        ids = np.sort(np.concatenate([draw_rows(one, k, rng) for one, k in domains]))
        return rows.take(ids), ids, None
    state, results = rng.get_state(), []
    for one, k in domains:
        rng.set_state(state)  # a domain's centres do not depend on the domains before it
        results.append(_centres(one, k, rng))
    notes = [note for _, note in results if note]
    return np.concatenate([centres for centres, _ in results]), None, "; ".join(notes) or None


def sample_size(n_rows: int, n_features: int, count: int, *, least: int) -> int:
    """Return the size of the uniform sample: 20 rows a landmark within `SAMPLE_BYTES`, at least `least`, or all."""
    most = max(count, SAMPLE_BYTES // (8 * max(1, n_features)))
    return min(n_rows, max(least, min(ROWS_PER_LANDMARK * count, most)))


def draw_rows(some: Rows | DomainRows, count: int, rng: np.random.RandomState) -> Ids:
    """Draw the ids of rows uniformly, in the order of their places, and others for bad ones that are skipped."""
    usable = (lambda places: some.sound(some.ids_at(places))) if some.bad_rows == "skip" else None
    return some.ids_at(draws.uniform(len(some), count, rng, usable=usable))


def sample_ids(rows: Rows | DomainRows, size: int, rng: np.random.RandomState, *, least: int = 1) -> Ids:
    """Draw the ids of `size` rows, in the order of their places, without bad ones but at least `least` if possible."""
    ids = rows.ids_at(draws.uniform(len(rows), size, rng) if size < len(rows) else np.arange(len(rows)))
    if rows.bad_rows == "skip":
        ids = ids[rows.sound(ids)]
        if len(ids) < least:
            ids = draw_rows(rows, least, rng)
    return ids


@dataclass(frozen=True, eq=False)
class DomainRows:
    """The rows of a domain by their place in it, found from the column alone, a step of the rows at a time."""

    rows: Rows
    domain: object  # its number
    bounds: tuple[int, ...]  # (s + 1,) row ids where steps start
    counts: Ids  # (s,) rows of the domain in each step

    def __len__(self) -> int:
        return int(self.counts.sum())

    @property
    def bad_rows(self) -> str:
        return self.rows.bad_rows

    def sound(self, ids: Ids) -> Array:
        """Return which of the row ids are good rows, (k,) bool."""
        return self.rows.sound(ids)

    def ids_at(self, places: Ids) -> Ids:
        """Return the row ids of sorted places."""
        ends = np.cumsum(self.counts)
        ids = [np.empty(0, np.int64)]
        for step, piece in enumerate(np.split(places, np.searchsorted(places, ends[:-1]))):
            if len(piece):
                start, stop = self.bounds[step : step + 2]
                mine = np.flatnonzero(self.rows.columns["domain"].read(start, stop) == self.domain)
                ids.append(start + mine[piece - (ends[step] - self.counts[step])])
        return np.concatenate(ids)


def _domains(rows: Rows, count: int) -> list[tuple[DomainRows, int]]:
    """Return the rows of each domain and its number of landmarks, as equal as possible; the last ones have one more."""
    if "domain" not in rows.columns:
        raise DataError(f"{rows.name}: landmarks by domain need a column 'domain', found none; pass sample_domain")
    # count the rows of each domain in each step, from the column alone
    bounds, counts = rows.bounds(settings()), dict[int, Ids]()
    for step, (start, stop) in enumerate(pairwise(bounds)):
        for number, size in zip(*np.unique(rows.columns["domain"].read(start, stop), return_counts=True), strict=True):
            counts.setdefault(number, np.zeros(len(bounds) - 1, np.int64))[step] = size
        if len(counts) > count:
            raise DataError(
                f"n_landmarks={count}: expected at least one for each domain, found {len(counts)} domains in rows 0 "
                f"to {stop - 1}"
            )
    domains = [DomainRows(rows, number, bounds, counts[number]) for number in sorted(counts)]
    sizes, shares, left = np.array([len(one) for one in domains]), np.zeros(len(domains), np.int64), count
    others = np.arange(len(domains))
    while len(full := others[sizes[others] <= left // max(1, len(others))]):  # small domains give all they have
        shares[full] = sizes[full]
        left, others = left - int(sizes[full].sum()), np.setdiff1d(others, full)
    if len(others):
        shares[others] = left // len(others)
        shares[others[len(others) - left % len(others) :]] += 1
    return [(one, int(share)) for one, share in zip(domains, shares, strict=True) if share]


def _by_cholesky(rows: Rows, count: int, kernel: Kernel, rng: np.random.RandomState) -> tuple[Array, Ids, str | None]:
    """Choose rows by randomly pivoted Cholesky; return landmarks, their ids, and a note if they are too few."""
    if not kernel.positive:
        raise ConfigError(
            f"landmarks='rpcholesky': expected a positive definite kernel, found the {kernel.name} kernel; use "
            "'uniform' or 'k-means'"
        )
    d, most = rows.shape[1], max(2 * count, FACTOR_BYTES // (8 * count))
    size = min(sample_size(len(rows), d, count, least=0), most)
    dtype = np.dtype(np.float32 if most * count * 8 > FACTOR_BYTES and rows.dtype != np.float64 else np.float64)
    needed, free = dtype.itemsize * size * count + 16 * size * d + STRIPS_BYTES, free_memory()
    if needed > free:
        raise PlanTooLargeError(
            f"landmarks='rpcholesky': choosing {count:,} landmarks among {size:,} rows takes {needed / 1e9:,.1f} GB "
            f"in this process, and {free / 1e9:,.1f} GB are free; use fewer landmarks, or 'uniform'"
        )
    # pivots are drawn among the rows of a sample
    ids = sample_ids(rows, size, rng, least=count)
    X, count = rows.take(ids), min(count, len(ids))
    places = np.sort(draws.rp_cholesky(kernel.resolve(X), X, count, rng, dtype=dtype))
    short = f"landmarks='rpcholesky': these explain the sample of {len(ids):,} rows up to rounding error"
    return X[places], ids[places], short if len(places) < count else None


def _centres(some: Rows | DomainRows, count: int, rng: np.random.RandomState) -> tuple[Array, str | None]:
    """Find centres of rows by k-means; return them, and a note if they are too few."""
    rows = some if isinstance(some, Rows) else some.rows
    ids = sample_ids(some, sample_size(len(some), rows.shape[1], count, least=LEAST_ROWS), rng, least=count)
    count = min(count, len(ids))
    centres = _k_means(rows.take(ids), count, rng)
    short = f"landmarks='k-means': the sample has {len(centres)} distinct centres"
    return centres, short if len(centres) < count else None


def _k_means(X: Array, count: int, rng: np.random.RandomState) -> Array:
    """Find centres (m, d) of rows, which are overwritten; of equal centres one is returned.

    The first ones are chosen among a few rows a centre, and rows are compared in few directions: to use all of them,
    and to move centres to the end, is not more accurate (D35 of DESIGN).
    """
    # in float32 about the mean, in units of a power of two near the largest value, as squares of others may overflow
    unit = float(np.ldexp(1.0, np.clip(-np.frexp(np.abs(X).max(initial=0.0))[1], -1022, 1022)))
    X *= unit
    mean = X.mean(axis=0)
    X -= mean
    points = X.astype(np.float32)
    some = draws.uniform(len(points), min(len(points), max(SEED_LEAST, SEED_ROWS * count)), rng)
    with one_thread():  # two threads of BLAS wait for each other in thin products
        if X.shape[1] > DIRECTIONS:
            # those in which a few rows vary most, by subspace iteration from random ones
            directions = rng.standard_normal((X.shape[1], DIRECTIONS)).astype(np.float32)
            for _ in range(2):
                directions = np.linalg.qr(points[some].T @ (points[some] @ directions))[0]
            points = points @ directions
        first = some[draws.spread(points[some], count, rng)]
    _, nearest = draws.move_centres(points, points[first], LLOYD_STEPS)
    centres, counts = draws.group_means(X, nearest, count)
    return np.asarray((centres[counts > 0] + mean) / unit)


# -- checks ------------------------------------------------------------------------------------------------------------


def check_landmarks(
    landmarks: str | ArrayLike, count: int | None, *, uncounted: tuple[str, ...] = ("uniform",)
) -> None:
    """Raise `ConfigError` for an unknown choice, or one without the number it needs; `uncounted` need none."""
    if not isinstance(landmarks, str):
        return
    if landmarks not in CHOICES + FOURIER:
        names = ", ".join(map(repr, CHOICES + FOURIER))
        raise ConfigError(f"landmarks: expected one of {names}, or an array (m, d), found {landmarks!r}")
    if count is None and landmarks not in uncounted:
        raise ConfigError(f"n_landmarks: expected a number with landmarks={landmarks!r}, found None")


def is_precomputed(kernel: object) -> bool:
    """Return whether a kernel, as given, is a matrix of kernel values."""
    return bool(kernel.precomputed if isinstance(kernel, Kernel) else kernel == Precomputed.name)


def require_frequencies(estimator: str, d: int, count: int) -> None:
    """Raise `ModelRejectedError` if a model has more random frequencies than fit into memory."""
    if 8 * d * count > FREQUENCY_BYTES:
        raise ModelRejectedError(
            f"{estimator}: {count:,} random features of {d:,} would take {8e-9 * d * count:,.0f} GB, more "
            f"than {FREQUENCY_BYTES / 1e9:,.0f} GB"
        )


def _within(kernel: Kernel, landmarks: Array, dtype: str) -> bool:
    """Return whether sums of products of kernel values, bounded by k(z, z), stay well in the range of a dtype."""
    with np.errstate(over="ignore", invalid="ignore"):
        largest, limits = np.abs(kernel.diag(landmarks)).max(), np.finfo(dtype)
        return bool(1e9 * largest**2 < limits.max and not 0 < largest**2 < 1e9 * limits.tiny)


def draw_spectrum(rows: Rows, kernel: Kernel, random_state: Seed, *, look: bool = True) -> tuple[Kernel, int, Array]:
    """Return the kernel with every parameter a number, a seed of its frequencies, and a sample of rows (k, d).

    With `look=False`, the sample is the first rows.
    """
    rng = check_random_state(random_state)
    seed, count = int(rng.randint(2**31 - 1)), min(len(rows), SAMPLE_ROWS)
    with spent("landmarks"):
        sample = rows.take(sample_ids(rows, count, rng) if look else np.arange(count))
    return kernel.resolve(sample), seed, sample


def _sums_of(dtype: str) -> str | None:
    """Return the dtype of sums of blocks: float64 on a device where its products cost as little as those of blocks."""
    here = device_here()
    known = here is not HOST or settings().device == "cuda"  # of workers
    return "float64" if dtype == "float32" and known and here.fast_float64 else None
