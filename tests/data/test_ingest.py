"""From files to a corpus: labels, several files, splits by hash."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from bigkernel.data.check import walk
from bigkernel.data.corpus import open_corpus
from bigkernel.data.ingest import ingest
from bigkernel.data.labels import Labelling
from bigkernel.data.readers import open_source
from bigkernel.data.write_corpus import Split, split_path
from bigkernel.errors import ConfigError, DataError
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.folds import HashFolds

X = np.random.default_rng(0).normal(size=(1000, 4))
Y = np.arange(1000) % 3


@pytest.fixture
def archive(tmp_path):
    """Save rows and labels as .npz, and open the file as a source."""

    def save(name, x=X, y=Y):
        np.savez(tmp_path / f"{name}.npz", x=x, **({} if y is None else {"y": y}))
        return open_source(tmp_path / f"{name}.npz")

    return save


# ---- labels


@pytest.mark.parametrize(
    ("y", "classes", "stored", "dtype"),
    [
        ([3.0, 1.0, 3.0], "auto", (1, 3), np.int64),
        ([3, -1, 2], "auto", (2, 3), np.int64),
        ([True, False, True], "auto", (0, 1), np.int64),
        ([3, 1, 3], False, (), np.float64),
        ([-1, 1, 1], False, (), np.float64),
        ([-1, 1, 1], True, (1,), np.int64),
        ([0.5, np.nan, 2], "auto", (), np.float64),
        ([np.nan, 1, 2], "auto", (1, 2), np.int64),
        ([2.0**60, 1, 2], "auto", (), np.float64),
        (["b", "a", "b"], "auto", ("a", "b"), np.int64),
        (["b", "a", "b"], True, ("a", "b"), np.int64),
        (["-1", "a", "-1"], True, ("a",), np.int64),
    ],
)
def test_labels_become_classes_or_numbers(archive, tmp_path, y, classes, stored, dtype):
    corpus = ingest(archive("a", X[:3], np.array(y)), tmp_path / "c", classes=classes)
    labels = corpus.column("y")
    assert (corpus.info.classes, labels.dtype) == (stored, dtype)
    assert all(type(label) in (int, str) for label in corpus.info.classes)
    expected = [-1 if stored and one in ("-1", np.nan) else stored.index(one) if type(one) is str else one for one in y]
    assert np.array_equal(labels, expected, equal_nan=True)
    assert [chunk.damage for chunk in walk(corpus.path, "corpus")] == [None, None]


def test_few_whole_numbers_are_classes():
    def n_classes(*blocks, classes="auto", images=False):
        labelling = Labelling(classes, images=images)
        for y in blocks:
            labelling.encode(y, "p", np.arange(len(y)))
        return len(labelling.decide("p").classes)

    missing = np.full(2, -1)
    assert [n_classes(np.arange(n), missing, images=True) for n in (1000, 1001, 5000)] == [1000, 0, 0]
    assert [n_classes(np.arange(first, first + n), missing) for n in (20, 21) for first in (0, 1)] == [20, 20, 0, 0]
    assert [n_classes(np.arange(3.0, 3 + n)) for n in (10, 11)] == [10, 0]
    assert n_classes(np.arange(5000), classes=True) == 5000
    assert n_classes(np.arange(600), np.arange(600, 1500), images=True) == 0
    with pytest.raises(DataError, match="more than 65,536 distinct classes"):
        n_classes(np.arange(70_000).astype(str))


@pytest.mark.parametrize(
    ("y", "classes", "expected"),
    [
        ([1, -1, 1], "auto", "labels -1, 1 are ambiguous, as −1 among classes means unlabelled"),
        ([-1, -1, -1], True, "labels -1 are ambiguous, as −1 among classes means unlabelled"),
        (["1", "-1", "1"], "auto", "labels -1, 1 are ambiguous, .* classes=True"),
        ([1, np.inf, 1], "auto", r"row 1 \(from 0\): found an infinite label"),
        ([1, 0.5, 1], True, r"row 1 \(from 0\): expected a class, found 0.5"),
        (["a", "b", "a"], False, r"row 0 \(from 0\): expected a number, found the label 'a'"),
        (None, True, "needs labels"),
    ],
)
def test_ambiguous_and_invalid_labels_are_refused(archive, tmp_path, y, classes, expected):
    with pytest.raises(DataError, match=expected):
        ingest(archive("a", X[:3], None if y is None else np.array(y)), tmp_path / "c", classes=classes)
    assert not (tmp_path / "c").exists()


# ---- several files


def test_rows_of_several_files_are_in_order_with_a_domain_for_each(archive, tmp_path):
    corpus = ingest([archive("a"), archive("b", X[:10] + 1, Y[:10] + 5)], tmp_path / "c", chunk_rows=64)
    assert np.array_equal(corpus.array("x")[:], np.concatenate([X, X[:10] + 1]))
    assert np.array_equal(corpus.column("y"), np.concatenate([Y, Y[:10] + 5]))
    assert np.array_equal(corpus.column("domain"), np.repeat([0, 1], [1000, 10]))
    assert corpus.info.classes == (0, 1, 2, 5, 6, 7)
    digests = [hashlib.sha256((tmp_path / f"{name}.npz").read_bytes()).hexdigest() for name in "ab"]
    assert corpus.info.source == f"domain 0: a.npz sha256:{digests[0]}, domain 1: b.npz sha256:{digests[1]}"


def test_class_names_of_several_files_share_one_list(archive, tmp_path):
    sources = [archive("a", X[:3], np.array(["b", "d", "b"])), archive("b", X[:2], np.array(["c", "a"]))]
    corpus = ingest(sources, tmp_path / "c")
    assert (corpus.info.classes, corpus.column("y").tolist()) == (("a", "b", "c", "d"), [1, 3, 1, 2, 0])


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (X[:, :3], Y, "features: found 3, expected 4 as in .*a.npz"),
        (X.astype(np.float32), Y, "dtype: found float32, expected float64 as in .*a.npz; set the dtype"),
        (X.reshape(1000, 2, 2), Y, r"image shape: found \(2, 2\), expected None as in .*a.npz"),
        (X, None, "labels: found no labels, expected labels as in .*a.npz"),
    ],
)
def test_the_first_differing_file_is_named_with_both_values(archive, tmp_path, x, y, expected):
    with pytest.raises(DataError, match=rf"b.npz: {expected}"):
        ingest([archive("a"), archive("b", x, y), archive("c", X[:, :2])], tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_errors_name_the_row_within_its_file(archive, tmp_path):
    bad = X.copy()
    bad[7, 1] = np.nan
    with pytest.raises(DataError, match=r"b.npz: found rows with NaN or infinite values in x, the first are \[7\]"):
        ingest([archive("a"), archive("b", bad)], tmp_path / "c")
    with pytest.raises(DataError, match=r"b.npz: row 3 \(from 0\): found an infinite label"):
        ingest([archive("a"), archive("b", X[:5], np.array([0, 1, 2, np.inf, 0]))], tmp_path / "c")
    with pytest.raises(DataError, match=r"b.npz: expected 999 rows, found 1000"):
        ingest([archive("a"), replace(archive("b"), n_rows=999)], tmp_path / "c")
    assert list(tmp_path.glob("*c*")) == []


# ---- splits


def test_a_split_assigns_rows_by_the_hash_of_the_folds(archive, tmp_path):
    split = Split({"test": 0.25}, seed=3)
    rest = ingest(archive("a"), tmp_path / "train.corpus", split=split, chunk_rows=64)
    test = open_corpus(tmp_path / "train-test.corpus")
    place = HashFolds(10**6, 3).of(Chunk(X))
    assert np.array_equal(test.array("x")[:], X[place < 250_000])
    assert np.array_equal(rest.array("x")[:], X[place >= 250_000])
    assert np.array_equal(test.column("y"), Y[place < 250_000])
    assert abs(test.n_rows - 250) < 45  # 3.3 standard deviations
    assert rest.info.source.endswith(", remainder of a split test=0.25 by row, seed 3")
    assert (test.info.name, test.info.classes) == ("a test", (0, 1, 2))


def test_the_split_of_a_row_does_not_depend_on_later_rows(archive, tmp_path):
    split = Split({"test": 0.3})
    one = split.sides(0, 100)
    assert np.array_equal(split.sides(0, 1000)[:100], one)
    assert np.array_equal(np.concatenate([split.sides(0, 37), split.sides(37, 63)]), one)
    assert not np.array_equal(split.sides(0, 100, file=1), one)
    ingest([archive("a", X[:60], Y[:60]), archive("b")], tmp_path / "c", split=split)
    ingest([archive("a"), archive("b")], tmp_path / "d", split=split)
    for side in ("", "test"):
        corpora = [open_corpus(split_path(tmp_path / name, side)) for name in "cd"]
        second = [corpus.array("x")[:][corpus.column("domain") == 1] for corpus in corpora]
        assert np.array_equal(*second)


def test_a_split_without_groups_or_rows_or_onto_an_existing_path_is_refused(archive, tmp_path):
    (tmp_path / "c-test").mkdir()
    with pytest.raises(DataError, match="c-test: already exists"):
        ingest(archive("a"), tmp_path / "c", split=Split({"test": 0.3}))
    message = r"d-test: found no row in this split among 5 rows \(test=0.001 by row, seed 0\)"
    with pytest.raises(DataError, match=message):
        ingest(archive("a", X[:5], Y[:5]), tmp_path / "d", split=Split({"test": 0.001}))
    with pytest.raises(DataError, match="a split by group needs groups, found none"):
        ingest(archive("a"), tmp_path / "e", split=Split({"test": 0.3}, by="group"))
    assert not [name for name in "cde" if (tmp_path / name).exists()]


@pytest.mark.parametrize(
    ("shares", "options", "expected"),
    [
        ({"test": 0.0}, {}, "expected a share .* found test=0.0"),
        ({"test": 1.0}, {}, "expected a share .* found test=1.0"),
        ({"a": 0.5, "b": 0.5}, {}, "whose sum is below 1"),
        ({}, {}, "whose sum is below 1"),
        ({"../up": 0.1}, {}, "found '../up'"),
        ({"test": 0.1}, {"by": "column"}, "expected by row or group, found 'column'"),
    ],
)
def test_invalid_splits_are_refused(shares, options, expected):
    with pytest.raises(ConfigError, match=expected):
        Split(shares, **options)
