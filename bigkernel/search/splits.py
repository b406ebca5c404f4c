"""From the parameter `cv` to folds that a sweep keeps apart, and a splitter by places.

Splits that train on all rows but the tested ones share a sweep if no row is tested twice; any other split has its own
sweep. In semi-supervised learning only labelled rows are folded, and unlabelled ones contribute to every fold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import pairwise
from numbers import Integral
from typing import Literal, cast

import numpy as np
from sklearn.cluster import KMeans
from sklearn.model_selection import (
    GroupKFold,
    GroupShuffleSplit,
    ShuffleSplit,
    StratifiedGroupKFold,
    StratifiedShuffleSplit,
    check_cv,
)

from bigkernel.arrays import Array, RowsLike
from bigkernel.config import settings
from bigkernel.data.containers import names_of
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators.fit.basis import sample_ids
from bigkernel.solvers.pseudo_labels import SourceTargetSplits
from bigkernel.streaming.folds import NOT_USED, ColumnFolds, DomainFolds, Folds, HashFolds, HeldOut, MapFolds, SomeFolds

_SAMPLE, _MOST_BLOCKS = 2**14, 2**24


@dataclass(frozen=True, eq=False)
class Partition:
    """Splits that one sweep serves."""

    folds: Folds  # the fold that tests a row
    splits: tuple[int, ...]  # number of the split, in the order of the results, of each fold
    column: Array | None = None  # (n,) the fold of every row, if the folds read it
    whole: bool = True  # whether it contains every labelled row, so that its moments are those of all rows
    sides: SourceTargetSplits | None = None  # source and target of each split, for candidates that adapt

    def attach(self, rows: Rows) -> Rows:
        """Add the column of the folds to the rows, if there is one."""
        return rows if self.column is None else as_rows(rows, fold=self.column)

    def halves(self) -> list[Partition]:
        """Divide the splits into two partitions."""
        count = self.folds.count
        return [
            replace(self, folds=SomeFolds(self.folds, tuple(half)), splits=tuple(self.splits[i] for i in half))
            for half in (range(count // 2), range(count // 2, count))
        ]


def partitions(cv: object, rows: Rows, labelled: Array | None, *, classifier: bool, seed: int) -> list[Partition]:
    """Return partitions that together contain every split of `cv` (`SweepSearchCV`).

    `labelled` are the labelled rows, (n,) bool, or None: the labels are only read if the folds need them. `DataError`:
    there are fewer than two folds, groups or domains, or a column is missing.
    """
    # by kind, a name first: text has a method `split` as splitters do
    if hasattr(cv, "compute"):  # a Dask array
        cv = np.asarray(cv)
    if isinstance(cv, str):
        return [_named(cv, rows, labelled)]
    if isinstance(cv, int | np.integer) and not isinstance(cv, bool) and cv == 0:
        return [Partition(SomeFolds(HashFolds(1), ()), (0,))]
    if cv is None or (isinstance(cv, int | np.integer) and not isinstance(cv, bool)):
        return _counted(5 if cv is None else int(cv), rows, labelled, classifier=classifier, seed=seed)
    if isinstance(cv, float | np.floating) and 0 < cv < 1:
        return _held_out(float(cv), rows, labelled, classifier=classifier, seed=seed)
    if hasattr(cv, "of") and hasattr(cv, "count"):
        return [Partition(cv, tuple(range(_several(cv.count))))]
    if isinstance(cv, list) and cv and hasattr(cv[0], "of"):
        return [Partition(fold, (number,), whole=False) for number, fold in enumerate(cv)]
    if hasattr(cv, "split") and not isinstance(cv, type):
        return _given(cv, rows, labelled, classifier=classifier)
    if isinstance(cv, Iterable) and not isinstance(cv, type):
        given = cv if hasattr(cv, "dtype") else list(cv)
        if isinstance(given, list) and not (given and isinstance(given[0], Integral)):
            return _given(given, rows, labelled, classifier=classifier)
        if (column := np.asarray(given)).ndim == 1 and column.dtype.kind in "iu":
            return [_column(rows, column)]
    raise ConfigError(
        "cv: expected a number of folds, a share of rows to hold out (below 1), 'domains', a splitter, an array of "
        f"folds, pairs (train, test), or a value with `count` and `of(chunk)`, found {cv!r}"
    )


def refuse_groups(cv: object) -> None:
    """Raise `ConfigError` for a `cv` beside which given groups would have no effect."""
    number = isinstance(cv, int | float | np.integer | np.floating) and cv != 0
    splits = hasattr(cv, "split") and not isinstance(cv, str)  # one of scikit-learn that ignores groups warns
    if not (cv is None or number or splits or getattr(cv, "by", "") == "group"):
        raise ConfigError(
            f"groups: not used with a cv of type {type(cv).__name__}, which says by itself which rows are tested "
            "together; leave out one of them"
        )


def _several(count: int, what: str = "folds") -> int:
    if count < 2:
        raise DataError(f"cv: expected at least 2 {what}, found {count}")
    return count


def _named(cv: str, rows: Rows, labelled: Array | None) -> Partition:
    if cv != "domains":
        raise ConfigError(f"cv: expected 'domains' as the only name, found {cv!r}")
    domain = rows.column("domain")
    if domain is None:
        raise DataError("domain: cv='domains' needs a column of domains, and the input has none")
    domains = np.unique(domain if labelled is None else domain[labelled])
    _several(len(domains), "domains")
    return Partition(DomainFolds(domains), tuple(range(len(domains))))


def _counted(count: int, rows: Rows, labelled: Array | None, *, classifier: bool, seed: int) -> list[Partition]:
    _several(count)
    grouped = "group" in rows.columns
    if not rows.in_memory:
        if grouped:
            _several(len(np.unique(_required(rows, "group"))), "groups")
        return [Partition(HashFolds(count, seed, "group" if grouped else "row"), tuple(range(count)))]
    if grouped:
        groups = _required(rows, "group")
        chosen = groups if labelled is None else groups[labelled]
        if len(np.unique(chosen)) < count:
            raise DataError(
                f"cv: {count} folds of whole groups need as many groups, found {len(np.unique(chosen))} among the "
                "labelled rows"
            )
        cv = StratifiedGroupKFold(count) if classifier else GroupKFold(count)
    else:
        cv = check_cv(count, _required(rows, "y"), classifier=classifier)
    return _given(cv, rows, labelled, classifier=classifier)


def _held_out(share: float, rows: Rows, labelled: Array | None, *, classifier: bool, seed: int) -> list[Partition]:
    grouped = "group" in rows.columns
    if not rows.in_memory:
        return [Partition(HeldOut(share, seed, "group" if grouped else "row"), (0,))]
    kind = GroupShuffleSplit if grouped else StratifiedShuffleSplit if classifier else ShuffleSplit
    return _given(kind(1, test_size=share, random_state=seed), rows, labelled, classifier=classifier)


def _required(rows: Rows, name: str) -> Array:
    values = rows.column(name)
    if values is None:
        raise DataError(f"{name}: expected this column for the folds, found none")
    return values


def _column(rows: Rows, fold: Array) -> Partition:
    if len(fold) != len(rows):
        raise DataError(f"cv: expected a fold for each of the {len(rows)} rows, found {len(fold)} folds")
    names = np.unique(fold[fold >= 0])
    _several(len(names))
    codes = np.where(fold >= 0, np.searchsorted(names, fold), -1)
    return Partition(ColumnFolds(len(names)), tuple(range(len(names))), codes)


def _pair(number: int, pair: object, n: int) -> tuple[Array, Array]:
    """Return the row ids of a given split to train and to test on."""
    try:
        train, test = (_ids(number, np.asarray(ids), n) for ids in cast(Iterable[object], pair))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"cv: split {number}: expected a pair (train, test) of row ids") from error
    for ids in (train, test):
        if ids.ndim != 1 or (len(ids) and (ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= n)):
            raise DataError(f"cv: split {number}: expected row ids from 0 to {n - 1}")
        if len(np.unique(ids)) < len(ids):
            raise DataError(f"cv: split {number} holds a row twice; use sample_weight to count rows more than once")
    return train, test


def _ids(number: int, ids: Array, n: int) -> Array:
    """Return row ids, also of a mask of the rows."""
    if ids.dtype != bool:
        return ids
    if ids.shape != (n,):
        raise DataError(f"cv: split {number}: expected a mask of {n} rows, found shape {ids.shape}")
    return np.flatnonzero(ids)


def _given(cv: object, rows: Rows, labelled: Array | None, *, classifier: bool) -> list[Partition]:
    """Return the partitions of a splitter or of given (train, test) pairs, over the labelled rows."""
    n = len(rows)
    ids = np.arange(n) if labelled is None else np.flatnonzero(labelled)
    # the row ids of each split
    if hasattr(cv, "split"):
        y, groups = _required(rows, "y")[ids], rows.column("group")
        try:
            pairs = list(cv.split(np.zeros((len(ids), 1)), y, None if groups is None else groups[ids]))
        except ValueError as error:
            raise DataError(f"cv: {error}") from error
        pairs = [(ids[train], ids[test]) for train, test in pairs]
    else:
        pairs = [_pair(number, pair, n) for number, pair in enumerate(cast(Iterable[object], cv))]
    if not pairs:
        raise DataError("cv: expected at least one split, found none")
    # splits that test disjoint rows and train on all others are folds of one partition
    all_ids = np.zeros(n, bool)
    all_ids[ids] = True
    columns: list[Array] = []
    members: list[list[int]] = []
    shared: list[int] = []
    for number, (train, test) in enumerate(pairs):
        if not len(test) or not len(train):
            raise DataError(
                f"cv: split {number}: expected rows to train on and to test on, found {len(train)} and {len(test)}"
            )
        trained, tested = np.zeros(n, bool), np.zeros(n, bool)
        trained[train], tested[test] = True, True
        if (trained & tested).any():
            raise DataError(f"cv: split {number} has row {int(np.argmax(trained & tested))} in both train and test")
        whole = np.array_equal((trained | tested)[ids], all_ids[ids])
        # the first partition whose tested rows these do not meet, or a new one
        home = next((i for i in shared if whole and (columns[i][test] == -1).all()), None)
        if home is None:
            columns.append(np.full(n, -1) if whole else np.where(trained, -1, NOT_USED))
            members.append([])
            home = len(columns) - 1
            if whole:
                shared.append(home)
        columns[home][test] = len(members[home])
        members[home].append(number)
    return [
        Partition(ColumnFolds(len(numbers)), tuple(numbers), column, not (column == NOT_USED).any())
        for column, numbers in zip(columns, members, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class SpatialKFold:
    """Folds of blocks of space or time, or of clusters: test rows are apart from those of the fit, as in gaps of a map.

    `SweepSearchCV` takes it for rows of any size; with a gap, and forward, each fold has a sweep of its own.
    scikit-learn takes it for arrays, and `splitter.split(places)` where places are no features.

    Parameters
    ----------
    n_splits : int
    size : float, (k,) or None
        Sides of blocks; `np.ptp(places, axis=0) / 8` makes eight along each coordinate. None: clusters, by k-means.
    columns : list of positions or names of features
        The k coordinates, before transforms of a Pipeline; None: all features. Extent and clusters are those of a
        sample of 16,384 rows; the outer blocks have no end.
    gap : float or (k,)
        Rows nearer than this to test rows in all coordinates are not trained on; at most `size`, unless forward.
    order : {"random", "checkerboard", "forward"}
        A block is in a random fold; in another one than its neighbours; or, of one column with the time, is one of the
        last `n_splits`, each tested by a fit to the rows before it (`size` None: of n_splits + 1 equal ones).
    random_state : int

    References
    ----------
    Roberts et al., Cross-validation strategies for data with temporal, spatial, hierarchical, or phylogenetic
    structure, Ecography 40 (2017).

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import SpatialKFold
    >>> for train, test in SpatialKFold(2, size=2, gap=1, order="forward").split(np.arange(8)[:, None]):
    ...     print(train, test)
    [0 1] [3 4]
    [0 1 2 3] [5 6 7]
    """

    n_splits: int = 5
    _: KW_ONLY
    size: float | Sequence[float] | Array | None = None
    columns: Sequence[int | str] | None = None
    gap: float | Sequence[float] | Array = 0.0
    order: Literal["random", "checkerboard", "forward"] = "random"
    random_state: int = 0

    def get_n_splits(self, X: object = None, y: object = None, groups: object = None) -> int:
        """Return the number of splits."""
        return self.n_splits

    def split(self, X: RowsLike, y: object = None, groups: object = None) -> Iterator[tuple[Array, Array]]:
        """Yield the numbers of the rows to train on and to test on, of rows of any kind, read a chunk at a time."""
        rows, made = as_rows(X), self.folds(X)
        for folds in made if isinstance(made, list) else [made]:
            fold = np.concatenate([folds.of(rows.read(*piece)) for piece in pairwise(rows.bounds(settings()))])
            for number in range(folds.count):
                yield np.flatnonzero((fold >= -1) & (fold != number)), np.flatnonzero(fold == number)

    def folds(self, X: RowsLike) -> MapFolds | list[MapFolds]:
        """Return the folds of rows, in a list where some do not train on all rows that they do not test."""
        rows, n = replace(as_rows(X), row_maps=()), self.n_splits
        names, every = [*map(str, names_of(X) or rows.feature_names)], range(rows.shape[1])
        chosen = every if self.columns is None else self.columns
        try:
            columns = np.array([names.index(one) if isinstance(one, str) else every[one] for one in chosen])
        except (ValueError, IndexError) as error:
            raise ConfigError(f"columns: expected some of {names or every}, found {self.columns}") from error
        ids = sample_ids(rows, _SAMPLE, np.random.RandomState(self.random_state))
        whole = self._whole(columns, rows.take(ids)[:, columns])
        gap, forward = np.broadcast_to(np.asarray(self.gap, float), len(columns)), self.order == "forward"
        one_by_one = [replace(whole, count=1, number=number, gap=gap, forward=forward) for number in range(n)]
        return one_by_one if forward or gap.any() else whole

    def _whole(self, columns: Array, places: Array) -> MapFolds:
        """Return the folds without a gap, for the extent of places (n, k)."""
        n, least, extent, rng = self.n_splits, places.min(axis=0), np.ptp(places, axis=0), self.random_state
        if self.size is None and self.order == "random":
            return MapFolds(n, columns, KMeans(n, n_init=4, random_state=rng).fit(places).cluster_centers_, extent)
        size = extent / (n + 1) if self.size is None else np.broadcast_to(np.asarray(self.size, float), len(extent))
        shape = np.maximum(np.ceil(extent / size - 1e-9), 1)  # the largest coordinates are in the last blocks
        orders = {"forward": len(columns) == 1} | dict.fromkeys(("random", "checkerboard"), np.all(self.gap <= size))
        if not (orders.get(self.order) and n > 1 and (size > 0).all() and shape.prod() <= _MOST_BLOCKS):
            raise ConfigError(
                f"expected order {', '.join(orders)} (of one column), 2 folds or more, gaps up to size, and up to "
                f"{_MOST_BLOCKS:,} blocks, found {self}, of {shape.prod():.3g} blocks"
            )
        if self.order == "forward":
            return MapFolds(n, columns, least + extent - (n + 1) * size, size, np.arange(-1, n))
        numbers = np.indices(shape := shape.astype(int)).sum(axis=0)
        if self.order == "random":
            numbers = np.random.RandomState(rng).permutation(numbers.size).reshape(shape)
        return MapFolds(n, columns, least, size, numbers % n)
