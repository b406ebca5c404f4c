"""Landmarks for rows that lie anywhere: who is read, and which method chooses among them.

The methods (all but "uniform" see a uniform sample only, never all n rows):

    "uniform"            rows, all equally likely (Williams & Seeger 2000)
    "balanced"           the same number of rows of every domain, which the column "domain" tells
    "k-means"            centres of k-means, which need not be rows (Zhang, Tsang & Kwok 2008)
    "balanced-k-means"   the same number of centres for every domain
    "leverage"           rows by recursive ridge leverage scores (`bigkernel.kernels.landmark_sampling`)
    "rpcholesky"         rows by randomly pivoted Cholesky, in blocks (`bigkernel.kernels.landmark_sampling`)

The last two work in this process, on n sampled rows of d features. Beside 16nd bytes of rows and strips of a fixed
size, "rpcholesky" takes 8nm bytes for the factor F of K̂ = FFᵀ (half of that in float32), and "leverage" 8m² for the
matrix of a dictionary of at most m rows (0.7m: 4m²). They choose among 20 rows a landmark; from 3,700 landmarks on
among fewer, down to two from 11,600 on, where the factor is float32 unless rows are float64. How many rows are looked
at does not depend on what is free: landmarks are the same on every machine on which they can be chosen.

Weights of rows are not looked at. Shapes: n rows, d features, m landmarks.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import dask
import numpy as np
from distributed import Client
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from bigkernel.arrays import Array
from bigkernel.config import settings
from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import choose_executor
from bigkernel.errors import ConfigError, DataError, PlanTooLarge
from bigkernel.estimators.checks import free_bytes
from bigkernel.kernels import uniform_landmarks as draws
from bigkernel.kernels.algebra import Kernel
from bigkernel.kernels.landmark_sampling import recursive_leverage, rp_cholesky

Ids = NDArray[np.int64]

CHOICES = ("uniform", "balanced", "k-means", "balanced-k-means", "leverage", "rpcholesky")
BY_KERNEL = {"leverage": recursive_leverage, "rpcholesky": rp_cholesky}
FEW_ROWS = 20_000  # up to which k-means sees every row, by scikit-learn; beyond, a sample, by k-means|| of dask-ml
ROWS_PER_LANDMARK = 20  # of a sample of more than FEW_ROWS rows
SAMPLE_BYTES = 2**30
FACTOR_BYTES = 2**31  # of (rows of the sample, m) numbers, up to which there are more than two rows a landmark
LLOYD_STEPS = 10  # of k-means on a sample of more than FEW_ROWS rows
SCALABLE_ROUNDS = 5  # of the choice of its first centres, m candidates expected in each (Bahmani et al. 2012)
STRIPS_BYTES = 2**28  # of rows and kernel values that a choice by the kernel works on at a time
_PART_BYTES = 2**25


@dataclass(frozen=True, eq=False)
class Chosen:
    """Landmarks (m, d) float64; the row ids (m,) they are, sorted, or None for centres; and what is to be said."""

    landmarks: Array
    rows: Ids | None = None
    note: str | None = None


def choose(rows: Rows, method: str, count: int, *, kernel: Kernel, rng: np.random.RandomState) -> Chosen:
    """Choose `count` landmarks for rows and a kernel.

    Bad rows that are to be skipped are no landmarks, and no part of a sample; a kernel's "scale" is taken from the
    sample. A note says why landmarks are fewer than `count`: the rows are, or have fewer different ones to give.
    """
    possible = min(count, len(rows))
    draws.require_count(len(rows), possible)
    skip, ids, note = rows.bad_rows == "skip", None, None
    if method == "uniform":
        ids = draws.uniform(len(rows), possible, rng, sound=rows.sound if skip else None)
        landmarks = rows.take(ids)
    elif method == "balanced":
        domains = _domains(rows, possible)
        drawn = [one.ids(draws.uniform(len(one), k, rng, sound=one.sound if skip else None)) for one, k in domains]
        ids = np.sort(np.concatenate(drawn))
        landmarks = rows.take(ids)
    elif method == "k-means":
        landmarks, note = _centres(rows, possible, rng)
    elif method == "balanced-k-means":
        state, found = rng.get_state(), []
        for one, k in _domains(rows, possible):
            rng.set_state(state)  # a domain's centres do not depend on the domains before it
            found.append(_centres(one, k, rng))
        landmarks = np.concatenate([centres for centres, _ in found])
        note = "; ".join(missing for _, missing in found if missing) or None
    elif method in BY_KERNEL:
        landmarks, ids, note = _by_kernel(rows, method, possible, kernel, rng)
    else:
        raise ConfigError(f"landmarks: expected {', '.join(map(repr, CHOICES))} or an array (m, d), found {method!r}")
    if (taken := len(landmarks)) < count:
        why = note or "the rows are all that can be drawn"
        note = f"{why}; {taken:,} landmarks are taken, {count:,} were asked for"
    return Chosen(landmarks, ids, note)


def sample_size(n_rows: int, n_features: int, count: int, *, least: int) -> int:
    """Count the rows of the uniform sample: 20 a landmark within `SAMPLE_BYTES`, at least `least`, or all."""
    most = max(count, SAMPLE_BYTES // (8 * max(1, n_features)))
    return min(n_rows, max(least, min(ROWS_PER_LANDMARK * count, most)))


def sampled(rows: Rows | DomainRows, size: int, rng: np.random.RandomState, *, least: int = 1) -> Ids:
    """Draw a uniform sample of `size` rows without the bad ones, but `least` if there are; sorted places."""
    places = draws.uniform(len(rows), size, rng) if size < len(rows) else np.arange(len(rows))
    if rows.bad_rows == "skip":
        places = places[rows.sound(places)]
        if len(places) < least:
            places = draws.uniform(len(rows), least, rng, sound=rows.sound)
    return places


@dataclass(frozen=True, eq=False)
class DomainRows:
    """The rows of a domain by their place among them, from the column alone, a step of the rows at a time."""

    rows: Rows
    domain: Any
    bounds: tuple[int, ...]  # (s + 1,) row ids where steps begin
    counts: Ids  # (s,) rows of the domain in each step

    def __len__(self) -> int:
        return int(self.counts.sum())

    @property
    def bad_rows(self) -> str:
        """See `Rows`."""
        return self.rows.bad_rows

    def sound(self, places: Ids) -> Array:
        """See `Rows`."""
        return self.rows.sound(self.ids(places))

    def ids(self, places: Ids) -> Ids:
        """Return the row ids of sorted places."""
        ends = np.cumsum(self.counts)
        found = [np.empty(0, np.int64)]
        for step, piece in enumerate(np.split(places, np.searchsorted(places, ends[:-1]))):
            if len(piece):
                start, stop = self.bounds[step : step + 2]
                mine = np.flatnonzero(self.rows.columns["domain"].read(start, stop) == self.domain)
                found.append(start + mine[piece - (ends[step] - self.counts[step])])
        return np.concatenate(found)


def _domains(rows: Rows, count: int) -> list[tuple[DomainRows, int]]:
    """Return the rows of each domain and how many landmarks it gives: as equal as may be, the last ones one more."""
    if "domain" not in rows.columns:
        raise DataError(
            f"{rows.name}: landmarks by domain need a column 'domain', and there is none; pass sample_domain"
        )
    bounds, counts = rows.bounds(settings()), dict[Any, NDArray[np.int64]]()
    for step, (start, stop) in enumerate(pairwise(bounds)):
        for number, size in zip(*np.unique(rows.columns["domain"].read(start, stop), return_counts=True), strict=True):
            counts.setdefault(number, np.zeros(len(bounds) - 1, np.int64))[step] = size
        if len(counts) > count:
            raise DataError(
                f"n_landmarks={count}: expected one for each domain at least, and there are {len(counts)} in rows 0 to "
                f"{stop - 1} alone"
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


def _by_kernel(
    rows: Rows, method: str, count: int, kernel: Kernel, rng: np.random.RandomState
) -> tuple[Array, Ids, str | None]:
    """Choose rows by values of the kernel: landmarks, their ids, and what is to be said."""
    if not kernel.positive:
        raise ConfigError(
            f"landmarks={method!r}: the {kernel.name} kernel is not positive definite, and its values at rows are no "
            "variances; expected 'uniform' or 'k-means' for it"
        )
    d, most = rows.shape[1], max(2 * count, FACTOR_BYTES // (8 * count))
    size = min(sample_size(len(rows), d, count, least=0), most)
    options = {}
    if method == "rpcholesky" and most * count * 8 > FACTOR_BYTES and rows.dtype != np.float64:
        options["dtype"] = np.float32
    matrix = 8 * count**2 if method == "leverage" else (4 if options else 8) * size * count
    needed, free = matrix + 16 * size * d + STRIPS_BYTES, free_bytes()
    if needed > free:
        raise PlanTooLarge(
            f"landmarks={method!r}: choosing {count:,} landmarks among {size:,} rows takes {needed / 1e9:,.1f} GB in "
            f"this process, and {free / 1e9:,.1f} GB are free; take fewer, or 'uniform'"
        )
    ids = sampled(rows, size, rng, least=count)
    X, count = rows.take(ids), min(count, len(ids))
    places = np.sort(BY_KERNEL[method](kernel.resolve(X), X, count, rng, **options))
    short = f"{method}: these explain the {len(ids):,} rows of the sample up to rounding"
    return X[places], ids[places], short if len(places) < count else None


def _centres(drawn: Rows | DomainRows, count: int, rng: np.random.RandomState) -> tuple[Array, str | None]:
    """Find centres of rows, and what is to be said."""
    rows = drawn if isinstance(drawn, Rows) else drawn.rows
    size = sample_size(len(drawn), rows.shape[1], count, least=FEW_ROWS)
    ids = sampled(drawn, size, rng, least=count)
    if isinstance(drawn, DomainRows):
        ids = drawn.ids(ids)
    count = min(count, len(ids))
    centres, nearest = _few(rows.take(ids), count, rng) if len(ids) <= FEW_ROWS else _many(rows, ids, count, rng)
    kept = np.flatnonzero(nearest)  # of two centres at one place, one is nearest to no row
    return centres[kept], f"k-means: the rows have {len(kept)} different centres only" if len(kept) < count else None


def _few(X: Array, count: int, rng: np.random.RandomState) -> tuple[Array, Array]:
    """Find centres (m, d), and to how many rows each is the nearest (m,), by scikit-learn."""
    from sklearn.cluster import KMeans  # loads a third of scikit-learn, which other choices do without

    unit, largest = 1.0, float(np.abs(X).max(initial=0.0))
    if largest and not 1e-100 < largest < 1e100:  # whose squares would leave float64
        unit = float(2.0 ** np.floor(np.log2(largest)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different rows than centres: see the note
        model = KMeans(count, n_init=1, random_state=rng).fit(X if unit == 1 else X / unit)
    return model.cluster_centers_ * unit, np.bincount(model.labels_, minlength=count)


def _many(rows: Rows, ids: Ids, count: int, rng: np.random.RandomState) -> tuple[Array, Array]:
    """Do the same by k-means|| and Lloyd's steps, over a sample that stays where its parts were read."""
    import dask.array as da
    from dask_ml.cluster import k_means as scalable  # takes 2 s and 200 MB to import

    part = max(256, _PART_BYTES // (8 * max(count, rows.shape[1])))
    plain = replace(rows, columns={}, classes=())
    take = dask.delayed(plain.take, pure=False)
    executor = choose_executor(rows)
    scheduler = executor if isinstance(executor, Client) else "threads" if executor == "threads" else "synchronous"
    with dask.config.set(scheduler=scheduler):
        pieces = np.array_split(ids, -(-len(ids) // part))
        X = da.concatenate([da.from_delayed(take(i), (len(i), rows.shape[1]), np.float64) for i in pieces]).persist()
        model = scalable.KMeans(
            count,
            oversampling_factor=count,
            init_max_iter=SCALABLE_ROUNDS,
            max_iter=LLOYD_STEPS,
            random_state=int(rng.randint(2**31 - 1)),
        )
        model.fit(X)
        nearest = da.bincount(model.labels_, minlength=count).compute()
    return model.cluster_centers_, nearest
