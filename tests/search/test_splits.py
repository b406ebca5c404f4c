"""Folds of every kind: which rows each split trains on and tests, in how many sweeps, and the scores of refits."""

from dataclasses import replace

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import reference
import xarray as xr
import zarr
from numpy.testing import assert_allclose, assert_array_equal
from peers import assert_like_peer, split_scores
from sklearn import model_selection as ms
from sklearn.pipeline import make_pipeline

from bigkernel import Gaussian, KernelRidge, KernelRidgeClassifier, SpatialKFold, Standardizer, SweepSearchCV, cells
from bigkernel.engine.rows import as_rows
from bigkernel.errors import ConfigError, DataError
from bigkernel.search.splits import partitions
from bigkernel.streaming.folds import DomainFolds, HashFolds

rng = np.random.default_rng(1974)
N, D = 60, 3
X = rng.normal(size=(N, D))
Z = X[:8] + 0.03
y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=N)
LABELS = rng.permutation(np.repeat([4, 7, 9], [30, 18, 12]))
GROUPS = rng.integers(0, 11, N) * 3 - 5
MODEL = KernelRidge(Gaussian(1.2), landmarks=Z)
CLASSIFIER = KernelRidgeClassifier(Gaussian(1.2), landmarks=Z)
GRID, MSE = {"alpha": [0.05, 1.0]}, {"scoring": "neg_mean_squared_error"}
EVERY = np.arange(N)
SPLITTERS = {
    # splits in one sweep: those that test no row twice and train on all others
    "k": (ms.KFold(4), 1),
    "shuffled": (ms.KFold(4, shuffle=True, random_state=3), 1),
    "repeated": (ms.RepeatedKFold(n_splits=3, n_repeats=2, random_state=0), 2),
    "overlapping": (ms.ShuffleSplit(4, test_size=0.4, random_state=0), 4),
    "sparse": (ms.ShuffleSplit(3, test_size=0.02, random_state=0), 2),
    "not covering": (ms.ShuffleSplit(3, test_size=0.3, train_size=0.4, random_state=0), 3),
    "in time": (ms.TimeSeriesSplit(3), 3),
    "predefined": (ms.PredefinedSplit(np.where(EVERY % 4 == 3, -1, EVERY % 4)), 1),
}


def splits_of(groups, rows):
    """(train, test) row ids of every split, in its order, read from the folds."""
    result = {}
    for group in groups:
        fold = group.folds.of(group.attach(rows).read(0, len(rows)))
        for number, split in enumerate(group.splits):
            test, train = fold == number, (fold != number) & (fold >= -1)
            result[split] = (np.flatnonzero(train), np.flatnonzero(test))
    assert sorted(result) == list(range(len(result)))
    return [result[split] for split in sorted(result)]


def assert_splits(groups, rows, expected):
    result, expected = splits_of(groups, rows), list(expected)
    assert len(result) == len(expected)
    for (train, test), (other_train, other_test) in zip(result, expected, strict=True):
        assert_array_equal(train, np.sort(other_train))
        assert_array_equal(test, np.sort(other_test))
        assert not set(train) & set(test)


def pairs_of(fold, names):
    """(train, test) row ids of each of the folds named."""
    return [(np.flatnonzero(fold != name), np.flatnonzero(fold == name)) for name in names]


@pytest.mark.parametrize("name", SPLITTERS)
def test_a_splitter_has_the_rows_of_each_split_and_the_scores_of_refits(name):
    cv, sweeps = SPLITTERS[name]
    given, rows = list(cv.split(X, y)) if name in ("repeated", "sparse", "in time") else cv, as_rows(X, y)
    groups = partitions(given, rows, None, classifier=False, seed=0)
    assert_splits(groups, rows, cv.split(X, y))
    assert len(groups) == sweeps
    search = assert_like_peer(MODEL, GRID, X, y, cv=given, scoring="neg_mean_squared_error", new=X[:5], atol=1e-8)
    whole = any(group.whole for group in groups)
    assert len(search.plan_.sweeps) == sweeps + (not whole)  # else one more, of the best on all rows


@pytest.mark.parametrize("count", [2, 5, None])
def test_a_number_means_the_folds_of_scikit_learn(count):
    rows, k = as_rows(X, y), count or 5
    assert_splits(partitions(count, rows, None, classifier=False, seed=9), rows, ms.KFold(k).split(X))
    rows = as_rows(X, LABELS)
    assert_splits(partitions(count, rows, None, classifier=True, seed=9), rows, ms.StratifiedKFold(k).split(X, LABELS))


def test_a_number_keeps_groups_together_and_classes_even():
    rows = as_rows(X, y, group=GROUPS)
    assert_splits(partitions(4, rows, None, classifier=False, seed=0), rows, ms.GroupKFold(4).split(X, y, GROUPS))
    rows = as_rows(X, LABELS, group=GROUPS)
    expected = ms.StratifiedGroupKFold(4).split(X, LABELS, GROUPS)
    assert_splits(partitions(4, rows, None, classifier=True, seed=0), rows, expected)


@pytest.mark.parametrize("cv", [ms.GroupKFold(3), ms.LeaveOneGroupOut()])
def test_splitters_of_groups_are_given_them(cv):
    for groups in (GROUPS, np.array([f"g{group}" for group in GROUPS])):
        search = assert_like_peer(MODEL, GRID, X, y, cv=cv, fit={"groups": groups}, new=X[:5], **MSE)
        assert len(search.plan_.sweeps) == 1


def test_one_row_is_left_out_in_one_sweep():
    few = slice(0, 20)
    model = KernelRidge(MODEL.kernel, landmarks=Z, fit_intercept=False)
    search = assert_like_peer(model, GRID, X[few], y[few], cv=ms.LeaveOneOut(), new=X[:5], **MSE)
    assert search.n_splits_ == 20
    assert len(search.plan_.sweeps) == 1
    # the shortcut of a linear smoother: residual / (1 − h)
    B = reference.gaussian(X[few], Z, 1.2)
    coef, _ = reference.nystrom_krr(B, reference.gaussian(Z, Z, 1.2), np.eye(20), 0.05)
    H = B @ coef
    expected = ((y[few] - H @ y[few]) / (1 - np.diagonal(H))) ** 2
    assert_allclose(-split_scores(search)[0], expected, rtol=1e-7)


NUMBERS = np.array([7, 7, 2, -1, 100, 2] * 10)


@pytest.mark.parametrize(
    "given",
    [NUMBERS, NUMBERS.tolist(), NUMBERS.astype(np.int8), pd.Series(NUMBERS), da.from_array(NUMBERS, chunks=7)],
    ids=["array", "list", "int8", "series", "dask"],
)
def test_a_column_of_folds_names_the_fold_that_tests_a_row(given):
    rows = as_rows(X, y)
    expected = pairs_of(NUMBERS, (2, 7, 100))
    assert_splits(partitions(given, rows, None, classifier=False, seed=0), rows, expected)
    assert_like_peer(MODEL, GRID, X, y, cv=given, peer_cv=expected, new=X[:5])


@pytest.mark.parametrize("folds", [HashFolds(4, 1), HashFolds(3, by="group"), DomainFolds(np.unique(GROUPS))])
def test_folds_as_plain_data_are_taken(folds):
    columns = {"group": GROUPS, "domain": GROUPS}
    fold = folds.of(as_rows(X, **columns).read(0, N))
    pairs = pairs_of(fold, range(folds.count))
    fit = {"groups": GROUPS} if getattr(folds, "by", "") == "group" else {"sample_domain": GROUPS}
    assert_like_peer(MODEL, GRID, X, y, cv=folds, peer_cv=pairs, new=X[:5], fit=fit, peer_fit={}, **MSE)


def lazy(kind, make_corpus, chunk_rows, **columns):
    if kind == "corpus":
        return make_corpus(X, chunk_rows=chunk_rows, name=f"{chunk_rows}", **columns), {}
    chunked = {
        name: da.from_array(values, chunks=chunk_rows)
        if kind == "dask"
        else zarr.array(values, chunks=(chunk_rows,), dtype=values.dtype)
        for name, values in columns.items()
    }
    rows = da.from_array(X, chunks=(chunk_rows, D)) if kind == "dask" else zarr.array(X, chunks=(chunk_rows, D))
    return rows, {{"group": "groups", "domain": "sample_domain"}.get(name, name): v for name, v in chunked.items()}


@pytest.mark.parametrize("kind, grouped", [("dask", True), ("zarr", False), ("corpus", True)])
def test_lazy_rows_are_folded_by_a_hash_of_row_or_group_in_any_chunks(kind, grouped, make_corpus):
    groups = EVERY // 2 * 1000  # two copies of each
    columns = {"y": y} | ({"group": groups} if grouped else {})
    fold = HashFolds(3, 5, "group" if grouped else "row").of(as_rows(X, group=groups).read(0, N))
    expected = SweepSearchCV(MODEL, GRID, cv=fold, scoring="neg_mean_squared_error").fit(X, y)
    for chunk_rows in (7, 60):
        rows, options = lazy(kind, make_corpus, chunk_rows, **columns)
        search = SweepSearchCV(MODEL, GRID, cv=3, scoring="neg_mean_squared_error", random_state=5).fit(rows, **options)
        assert_allclose(split_scores(search), split_scores(expected), rtol=0, atol=1e-8)
        assert_allclose(search.predict(X[:5]), expected.predict(X[:5]), atol=1e-8)
    if grouped:
        tested = [set(groups[fold == number]) for number in range(3)]
        assert all(not tested[i] & tested[j] for i in range(3) for j in range(i))


@pytest.mark.parametrize("kind", ["dask", "corpus"])
def test_lazy_domains_and_splitters_and_columns(kind, make_corpus):
    rows, options = lazy(kind, make_corpus, 7, y=y, domain=EVERY % 4)
    expected = SweepSearchCV(MODEL, GRID, cv=EVERY % 4).fit(X, y)
    for cv in ("domains", EVERY % 4, pairs_of(EVERY % 4, range(4))):
        search = SweepSearchCV(MODEL, GRID, cv=cv).fit(rows, **options)
        assert_allclose(split_scores(search), split_scores(expected), rtol=0, atol=1e-8)
    shuffled = SweepSearchCV(MODEL, GRID, cv=ms.KFold(3, shuffle=True, random_state=0)).fit(rows, **options)
    in_memory = SweepSearchCV(MODEL, GRID, cv=ms.KFold(3, shuffle=True, random_state=0)).fit(X, y)
    assert_allclose(split_scores(shuffled), split_scores(in_memory), rtol=0, atol=1e-8)


def test_unlabelled_rows_of_a_corpus_are_neither_trained_on_nor_tested(make_corpus):
    codes = np.where(EVERY % 5, LABELS, -1)
    corpus, known = make_corpus(X, classes=(4, 7, 9), y=codes.astype("i1")), codes != -1
    expected = SweepSearchCV(CLASSIFIER, GRID, cv=ms.StratifiedKFold(3)).fit(X[known], codes[known])
    search = SweepSearchCV(CLASSIFIER, GRID, cv=ms.StratifiedKFold(3)).fit(corpus)
    assert_array_equal(split_scores(search), split_scores(expected))
    fold = np.arange(N) % 3
    expected = SweepSearchCV(CLASSIFIER, GRID, cv=fold[known]).fit(X[known], codes[known])
    assert_array_equal(split_scores(SweepSearchCV(CLASSIFIER, GRID, cv=fold).fit(corpus)), split_scores(expected))


PLACES = X[:, :2]
BLOCKS = SpatialKFold(3, size=0.5, columns=[0, 1])
SPATIAL = {
    # splits that one sweep serves, and those that take one each
    "blocks": (BLOCKS, 1),
    "checkerboard": (replace(BLOCKS, n_splits=2, order="checkerboard"), 1),
    "clusters": (replace(BLOCKS, size=None), 1),
    "gap": (replace(BLOCKS, size=[1.0, 1.5], gap=[0.3, 0.2]), 3),
    "forward": (SpatialKFold(3, columns=[2], gap=0.2, order="forward"), 3),
}


@pytest.mark.parametrize("name", SPATIAL)
def test_places_have_the_same_folds_in_every_container_and_the_scores_of_refits(name):
    splitter, sweeps = SPATIAL[name]
    expected = list(splitter.split(X))
    assert len(expected) == splitter.get_n_splits()
    lazy, frame = da.from_array(X, chunks=(17, 3)), pd.DataFrame(X, columns=list("abc"))
    by_name = replace(splitter, columns=[*frame.columns[list(splitter.columns)]])
    for kind, cv in ((as_rows(X), splitter), (as_rows(lazy).skip_bad_rows(), splitter), (frame, by_name)):
        rows = as_rows(kind)
        groups = partitions(cv.folds(kind), rows, None, classifier=False, seed=0)
        assert len(groups) == sweeps
        assert_splits(groups, rows, expected)
        assert_splits(partitions(list(cv.split(kind)), rows, None, classifier=False, seed=0), rows, expected)
    search = assert_like_peer(MODEL, GRID, X, y, cv=splitter, new=X[:5], **MSE)
    # places are those before the transforms of a pipeline
    model = make_pipeline(Standardizer(), KernelRidge(Gaussian(1.2), landmarks=Z))
    grid = {"kernelridge__alpha": GRID["alpha"]}
    scores = [
        split_scores(SweepSearchCV(model, grid, cv=splitter, **MSE).fit(kind, y))
        for kind in (X, as_rows(lazy), lazy, cells(xr.Dataset({key: ("row", frame[key]) for key in frame})))
    ]
    for other in scores[1:]:
        assert_allclose(other, scores[0], rtol=1e-9)
    assert not np.allclose(scores[0], split_scores(search), rtol=1e-3)


def test_training_rows_are_apart_from_tests_by_the_gap_and_neighbours_in_other_folds():
    for train, test in SPATIAL["gap"][0].split(X):
        far = np.abs(PLACES[train][:, None] - PLACES[test]) >= [0.3, 0.2]
        assert far.any(axis=2).all()
        assert len(train) + len(test) < N
    for train, test in SPATIAL["forward"][0].split(X):
        assert X[train, 2].max() + 0.2 <= X[test, 2].min()
    grid = np.stack(np.meshgrid(np.arange(6.0), np.arange(4.0)), axis=-1).reshape(-1, 2)
    for count, steps in ((2, [(0, 1), (1, 0)]), (4, [(0, 1), (1, 0), (1, 1)])):
        fold = folds_at(SpatialKFold(count, size=[5 / 6, 3 / 4], order="checkerboard"), grid).reshape(4, 6)
        for down, right in steps:
            assert (fold[down:, right:] != fold[: 4 - down, : 6 - right]).all()


def folds_at(splitter, places):
    """The fold that tests each place."""
    fold = np.full(len(places), -1)
    for number, (_, test) in enumerate(splitter.split(places)):
        fold[test] = number
    return fold


def test_blocks_are_whole_about_as_many_in_each_fold_and_clusters_are_those_of_k_means():
    grid = np.stack(np.meshgrid(np.arange(80.0), np.arange(60.0)), axis=-1).reshape(-1, 2)
    fold = folds_at(SpatialKFold(size=np.ptp(grid, axis=0) / [8, 5]), grid).reshape(60, 80)
    edges = [np.floor(np.arange(n) * k / (n - 1)).clip(max=k - 1) for n, k in ((60, 5), (80, 8))]
    blocks = pd.DataFrame({"block": np.add.outer(8 * edges[0], edges[1]).ravel(), "fold": fold.ravel()})
    assert (blocks.groupby("block").fold.nunique() == 1).all()
    assert (blocks.groupby("fold").block.nunique() == 8).all()
    assert (folds_at(SpatialKFold(size=9.0, random_state=1), grid) != folds_at(SpatialKFold(size=9.0), grid)).any()
    for train, test in SpatialKFold(gap=7.0).split(grid[::5]):
        assert np.abs(grid[::5][train][:, None] - grid[::5][test]).max(axis=2).min() >= 7
    towns = np.repeat([[0.0, 0], [9, 1], [3, 7]], [5, 9, 2], axis=0) + rng.normal(size=(16, 2)) / 9
    assert sorted(len(test) for _, test in SpatialKFold(3).split(towns)) == [2, 5, 9]


@pytest.mark.parametrize(
    ("settings", "kind", "text"),
    [
        ({"size": 1.0, "gap": 1.5}, ConfigError, "gaps up to size"),
        ({"size": -1.0}, ConfigError, "expected order"),
        ({"size": 1e-9}, ConfigError, "16,777,216 blocks"),
        ({"size": 1.0, "order": "diagonal"}, ConfigError, "checkerboard"),
        ({"order": "forward"}, ConfigError, "of one column"),
        ({"size": 1.0, "n_splits": 1}, ConfigError, "2 folds or more"),
        ({"columns": ["lat"]}, ConfigError, "columns: expected some of"),
        ({"columns": [3]}, ConfigError, "columns: expected some of"),
    ],
)
def test_folds_of_places_that_do_not_exist_are_refused(settings, kind, text):
    with pytest.raises(kind, match=text):
        list(SpatialKFold(**settings).split(X))


def test_groups_beside_places_and_places_that_are_missing_are_refused():
    with pytest.raises(ConfigError, match="groups: not used"):
        SweepSearchCV(MODEL, GRID, cv=BLOCKS).fit(X, y, groups=GROUPS)
    with pytest.raises(DataError, match="NaN"):
        list(BLOCKS.split(np.where(X > 1, np.nan, X)))
