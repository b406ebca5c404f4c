"""Landmarks for rows that lie anywhere: who is read, and which method chooses among them.

The methods (all but "uniform" see a uniform sample only, never all n rows):

    "uniform"            rows, all equally likely (Williams & Seeger 2000)
    "balanced"           the same number of rows of every domain, which the column "domain" tells
    "k-means"            centres of k-means, which need not be rows (Zhang, Tsang & Kwok 2008)
    "balanced-k-means"   the same number of centres for every domain
    "leverage"           rows by recursive ridge leverage scores (`bigkernel.kernels.landmark_sampling`)
    "rpcholesky"         rows by randomly pivoted Cholesky, in blocks (`bigkernel.kernels.landmark_sampling`)

The last two work in this process, as far as its memory goes (`bigkernel.estimators.choice_memory`): among 20 rows a
landmark, from 3,700 landmarks on among fewer, down to two from 11,600 on. There the factor of "rpcholesky" is float32,
unless rows are float64.

Weights of rows are not looked at. Shapes: n rows, d features, m landmarks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import dask
import numpy as np
from distributed import Client
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from bigkernel.config import settings
from bigkernel.engine.context import executor_in_force
from bigkernel.engine.rows import Rows
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators.choice_memory import require_room
from bigkernel.kernels import uniform_landmarks as draws
from bigkernel.kernels.algebra import Kernel
from bigkernel.kernels.landmark_sampling import recursive_leverage, rp_cholesky

Array = NDArray[Any]
Ids = NDArray[np.int64]

CHOICES = ("uniform", "balanced", "k-means", "balanced-k-means", "leverage", "rpcholesky")
BY_KERNEL = {"leverage": recursive_leverage, "rpcholesky": rp_cholesky}
FEW_ROWS = 20_000  # up to which k-means sees every row, by scikit-learn; beyond, a sample, by k-means|| of dask-ml
ROWS_PER_LANDMARK = 20  # of a sample of more than FEW_ROWS rows
SAMPLE_BYTES = 2**30
FACTOR_BYTES = 2**31  # of (rows of the sample, m) numbers, up to which there are more than two rows a landmark
LLOYD_STEPS = 10  # of k-means on a sample of more than FEW_ROWS rows
SCALABLE_ROUNDS = 5  # of the choice of its first centres, m candidates expected in each (Bahmani et al. 2012)
_PART_BYTES = 2**25


@dataclass(frozen=True, eq=False)
class Chosen:
    """Landmarks (m, d) float64; the row ids (m,) they are, sorted, or None for centres; and what is to be said."""

    landmarks: Array
    rows: Ids | None = None
    note: str | None = None


def choose(rows: Rows, method: str, count: int, *, kernel: Kernel, rng: np.random.RandomState) -> Chosen:
    """Choose `count` landmarks for rows and a kernel.

    Parameters
    ----------
    rows : bad rows that are to be skipped are no landmarks, and no part of any sample
    method : one of `CHOICES`
    count : m
    kernel : as the estimator was given it; a parameter "scale" is taken from the sample where the method asks

    Returns
    -------
    Chosen
        Fewer than `count` landmarks, with a note, where the rows are fewer or have fewer different ones to give.

    Raises
    ------
    ConfigError
        An unknown method.
    DataError
        No landmark or no row; balanced, more domains than landmarks, or no column "domain".
    PlanTooLarge
        A choice by the kernel takes more memory than is free.
    """
    possible = min(count, len(rows))
    draws.require_count(len(rows), possible)
    found = _chosen(rows, method, possible, kernel, rng)
    if (taken := len(found.landmarks)) == count:
        return found
    why = found.note or "the rows are all that can be drawn"
    return replace(found, note=f"{why}; {taken:,} landmarks are taken, {count:,} were asked for")


def _chosen(rows: Rows, method: str, count: int, kernel: Kernel, rng: np.random.RandomState) -> Chosen:
    """`choose`, of at most as many landmarks as there are rows; a note says why they are fewer than `count`."""
    if method == "uniform":
        return _as_rows(rows, draws.uniform(len(rows), count, rng, sound=_sound(rows)))
    if method == "balanced":
        ids = [
            members.ids(draws.uniform(len(members), share, rng, sound=_sound(rows, members)))
            for members, share in _shares(rows, count)
        ]
        return _as_rows(rows, np.sort(np.concatenate(ids)))
    if method == "k-means":
        return _centres(rows, None, count, rng)
    if method == "balanced-k-means":
        state, found = rng.get_state(), []
        for members, share in _shares(rows, count):
            rng.set_state(state)  # a domain's centres do not depend on the domains before it
            found.append(_centres(rows, members, share, rng))
        notes = [chosen.note for chosen in found if chosen.note]
        return Chosen(np.concatenate([chosen.landmarks for chosen in found]), note="; ".join(notes) or None)
    if method in BY_KERNEL:
        return _by_kernel(rows, method, count, kernel, rng)
    raise ConfigError(f"landmarks: expected {', '.join(map(repr, CHOICES))} or an array (m, d), found {method!r}")


def sample_size(n_rows: int, n_features: int, count: int, *, least: int) -> int:
    """Rows of the uniform sample that is looked at: 20 a landmark within `SAMPLE_BYTES`, at least `least`, or all."""
    most = max(count, SAMPLE_BYTES // (8 * max(1, n_features)))
    return min(n_rows, max(least, min(ROWS_PER_LANDMARK * count, most)))


def sampled(
    rows: Rows, size: int, rng: np.random.RandomState, *, least: int = 1, members: Members | None = None
) -> Ids:
    """A uniform sample of `size` rows (of `members`) without the bad ones, but `least` if there are; sorted ids.

    Raises
    ------
    DataError
        No row is sound.
    """
    n, sound = len(rows) if members is None else len(members), _sound(rows, members)
    places = draws.uniform(n, size, rng) if size < n else np.arange(n)
    if sound is not None:
        places = places[sound(places)]
        if len(places) < least:
            places = draws.uniform(n, least, rng, sound=sound)
    return places if members is None else members.ids(places)


def _as_rows(rows: Rows, ids: Ids) -> Chosen:
    return Chosen(rows.take(ids), ids)


def _sound(rows: Rows, members: Members | None = None) -> Callable[[Ids], Array] | None:
    """Which of sorted positions among `members` are sound rows; None: a bad row is refused when it is taken."""
    if rows.bad_rows != "skip":
        return None
    return rows.sound if members is None else lambda places: rows.sound(members.ids(places))


@dataclass(frozen=True, eq=False)
class Members:
    """The rows of a domain by their place in it, from the column alone, a step of the rows at a time.

    Attributes
    ----------
    rows : all rows
    domain : its number
    bounds : (s + 1,) row ids where steps begin
    counts : (s,) rows of the domain in each step
    """

    rows: Rows
    domain: Any
    bounds: tuple[int, ...]
    counts: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.counts.sum())

    def ids(self, places: Ids) -> Ids:
        """Row ids of sorted places among the rows of the domain."""
        ends = np.cumsum(self.counts)
        pieces = np.split(places, np.searchsorted(places, ends[:-1]))
        found = [np.empty(0, np.int64)]
        for step, piece in enumerate(pieces):
            if len(piece):
                start, stop = self.bounds[step : step + 2]
                mine = np.flatnonzero(self.rows.columns["domain"].read(start, stop) == self.domain)
                found.append(start + mine[piece - (ends[step] - self.counts[step])])
        return np.concatenate(found)


def _members(rows: Rows, most: int) -> list[Members]:
    """The rows of every domain, in the order of their numbers; `DataError` where there are more than `most`."""
    if "domain" not in rows.columns:
        raise DataError(
            f"{rows.name}: landmarks by domain need a column 'domain', and there is none; pass sample_domain"
        )
    bounds = rows.bounds(settings())
    steps, counts = len(bounds) - 1, dict[Any, NDArray[np.int64]]()
    for step in range(steps):
        column = rows.columns["domain"].read(bounds[step], bounds[step + 1])
        for number, count in zip(*np.unique(column, return_counts=True), strict=True):
            counts.setdefault(number, np.zeros(steps, np.int64))[step] = count
        if len(counts) > most:
            raise DataError(
                f"n_landmarks={most}: expected one for each domain at least, and there are {len(counts)} in rows 0 to "
                f"{bounds[step + 1] - 1} alone"
            )
    return [Members(rows, number, bounds, counts[number]) for number in sorted(counts)]


def _shares(rows: Rows, count: int) -> list[tuple[Members, int]]:
    """The rows of every domain and how many landmarks it gives: as equal as may be, the last ones one more."""
    members = _members(rows, count)
    sizes, share, left = np.array([len(one) for one in members]), np.zeros(len(members), np.int64), count
    others = np.arange(len(members))
    while len(full := others[sizes[others] <= left // max(1, len(others))]):  # small domains give all they have
        share[full] = sizes[full]
        left, others = left - int(sizes[full].sum()), np.setdiff1d(others, full)
    if len(others):
        share[others] = left // len(others)
        share[others[len(others) - left % len(others) :]] += 1
    return [(one, int(part)) for one, part in zip(members, share, strict=True) if part]


def _by_kernel(rows: Rows, method: str, count: int, kernel: Kernel, rng: np.random.RandomState) -> Chosen:
    if not kernel.positive:
        raise ConfigError(
            f"landmarks={method!r}: the {kernel.name} kernel is not positive definite, and its values at rows are no "
            "variances; expected 'uniform' or 'k-means' for it"
        )
    most = max(2 * count, FACTOR_BYTES // (8 * count))
    size = min(sample_size(len(rows), rows.shape[1], count, least=0), most)
    options = {}
    if method == "rpcholesky" and most * count * 8 > FACTOR_BYTES and rows.dtype != np.float64:
        options["dtype"] = np.float32
    require_room(method, size, rows.shape[1], count, 4 if options else 8)
    ids = sampled(rows, size, rng, least=count)
    X, count = rows.take(ids), min(count, len(ids))
    places = BY_KERNEL[method](kernel.resolve(X), X, count, rng, **options)
    note = None
    if len(places) < count:
        note = f"{method}: these explain the {len(ids):,} rows of the sample up to rounding"
    return Chosen(X[np.sort(places)], ids[np.sort(places)], note)


# -- k-means -----------------------------------------------------------------------------------------------------------


def _centres(rows: Rows, members: Members | None, count: int, rng: np.random.RandomState) -> Chosen:
    """Centres of the rows `members` (None: of all)."""
    size = sample_size(len(rows) if members is None else len(members), rows.shape[1], count, least=FEW_ROWS)
    ids = sampled(rows, size, rng, least=count, members=members)
    count = min(count, len(ids))
    centres, nearest = _few(rows.take(ids), count, rng) if len(ids) <= FEW_ROWS else _many(rows, ids, count, rng)
    kept = np.flatnonzero(nearest)  # of two centres at one place, one is nearest to no row
    note = None
    if len(kept) < count:
        note = f"k-means: the rows have {len(kept)} different centres only"
    return Chosen(centres[kept], note=note)


def _few(X: Array, count: int, rng: np.random.RandomState) -> tuple[Array, Array]:
    """Centres (m, d), and to how many rows each is the nearest (m,), by scikit-learn."""
    from sklearn.cluster import KMeans  # loads a third of scikit-learn, which other choices do without

    unit, largest = 1.0, float(np.abs(X).max(initial=0.0))
    if largest and not 1e-100 < largest < 1e100:  # whose squares would leave float64
        unit = float(2.0 ** np.floor(np.log2(largest)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different rows than centres: see the note
        model = KMeans(count, n_init=1, random_state=rng).fit(X if unit == 1 else X / unit)
    return model.cluster_centers_ * unit, np.bincount(model.labels_, minlength=count)


def _many(rows: Rows, ids: Ids, count: int, rng: np.random.RandomState) -> tuple[Array, Array]:
    """The same by k-means|| and Lloyd's steps, over a sample that stays where its parts were read."""
    import dask.array as da
    from dask_ml.cluster import k_means as scalable  # takes 2 s and 200 MB to import

    part = max(256, _PART_BYTES // (8 * max(count, rows.shape[1])))
    plain = Rows(rows.x, {}, rows.row_maps, rows.name, bad_rows=rows.bad_rows)
    take = dask.delayed(plain.take, pure=False)
    executor = executor_in_force(rows)
    scheduler = executor if isinstance(executor, Client) else "threads" if executor == "threads" else "synchronous"
    with dask.config.set(scheduler=scheduler):
        X = da.concatenate(
            [
                da.from_delayed(take(piece), (len(piece), rows.shape[1]), np.float64)
                for piece in np.array_split(ids, -(-len(ids) // part))
            ]
        ).persist()
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
