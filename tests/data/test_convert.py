"""Which reader is chosen, what the labels become, and what an ingest leaves behind."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import replace

import numpy as np
import pytest
import scipy.io
from support.peaks import reading_peaks

from bigkernel.data.convert import ingest
from bigkernel.data.corpus import open_corpus
from bigkernel.data.labels import survey
from bigkernel.data.readers import FORMATS, open_source
from bigkernel.errors import ConfigError, DataError

X = np.random.default_rng(0).normal(size=(30, 4))


@pytest.fixture
def rows(tmp_path):
    """Save rows and labels as an archive, and open it."""

    def save(x=X, y=None):
        np.savez(tmp_path / "a.npz", x=x, **({} if y is None else {"y": y}))
        return open_source(tmp_path / "a.npz")

    return save


# ---- formats


def test_the_first_bytes_decide_whatever_the_name(tmp_path):
    np.save(tmp_path / "1.csv", X)
    (tmp_path / "1.csv.npy").rename(tmp_path / "1.csv")
    with (tmp_path / "2.txt").open("wb") as handle:
        np.savez(handle, x=X)
    scipy.io.savemat(tmp_path / "3", {"x": X, "y": np.arange(30)[:, None]}, appendmat=False)
    (tmp_path / "4.mat").write_bytes(b"\0\0\x08\x02" + bytes([0, 0, 0, 2, 0, 0, 0, 3]) + bytes(6))
    (tmp_path / "5").write_text(" ".join(["3"] + ["0.5"] * 256) + "\n")
    found = {path.name: open_source(path).format for path in tmp_path.iterdir()}
    assert found == {"1.csv": "npy", "2.txt": "npz", "3": "mat", "4.mat": "idx", "5": "usps"}
    for path in list(tmp_path.iterdir()):
        if path.name != "2.txt":
            path.write_bytes(gzip.compress(path.read_bytes()))
    assert {path.name: open_source(path).format for path in tmp_path.iterdir()} == found


def test_every_format_has_a_line_of_description():
    assert set(FORMATS) == {"idx", "csv", "usps", "mat", "npy", "npz", "libsvm", "png", "parquet", "zarr"}
    assert all(description and "\n" not in description for description in FORMATS.values())


def test_what_cannot_be_opened_is_refused_by_path(tmp_path):
    (tmp_path / "notes.xyz").write_bytes(b"\x7fELF")
    listing = ", ".join(FORMATS)
    for path, options, expected in [
        (tmp_path / "absent", {}, "no such file"),
        (tmp_path, {}, "expected a file, or a folder of PNG images"),
        (tmp_path / "notes.xyz", {}, f"unknown format: .*7f 45 4c 46.*{listing}"),
        (tmp_path / "notes.xyz", {"format": "xls"}, f"unknown format 'xls'; the formats are {listing}"),
    ]:
        with pytest.raises(DataError, match=expected) as caught:
            open_source(path, **options)
        assert str(path) in str(caught.value)


def test_options_of_other_formats_are_refused(rows, tmp_path):
    rows()
    with pytest.raises(ConfigError, match="delimiter: not an option of format 'npz', which takes x, y"):
        open_source(tmp_path / "a.npz", delimiter=",")


def test_rows_are_stored_in_the_dtype_asked_for_or_not_at_all(rows, tmp_path):
    rows(np.array([[1.0, 2.0], [3.0, 255.0]]))
    assert ingest(open_source(tmp_path / "a.npz", dtype="uint8"), tmp_path / "c").dtype == "uint8"
    for values, dtype in [([[1.0], [0.5]], "uint8"), ([[1.0], [256.0]], "uint8"), ([[0.0], [1e300]], "float32")]:
        rows(np.array(values))
        with pytest.raises(DataError, match=rf"row 1, column 0: .* is no {dtype}"):
            ingest(open_source(tmp_path / "a.npz", dtype=dtype), tmp_path / "d")
        assert not (tmp_path / "d").exists()
    for dtype in ("complex64", "nonsense", "U3"):
        with pytest.raises(ConfigError, match="dtype: expected"):
            open_source(tmp_path / "a.npz", dtype=dtype)


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
        ([0.5, 1, 2], "auto", (), np.float64),
        ([np.nan, 1, 2], "auto", (), np.float64),
        ([2.0**60, 1, 2], "auto", (), np.float64),
        (["b", "a", "b"], "auto", ("a", "b"), np.int64),
        (["b", "a", "b"], True, ("a", "b"), np.int64),
        (["-1", "a", "-1"], True, ("a",), np.int64),
    ],
)
def test_labels_become_classes_or_numbers(rows, tmp_path, y, classes, stored, dtype):
    corpus = ingest(rows(X[:3], np.array(y)), tmp_path / "c", classes=classes)
    found = corpus.column("y")
    assert (corpus.info.classes, found.dtype) == (stored, dtype)
    assert all(type(label) in (int, str) for label in corpus.info.classes)
    expected = [-1 if label == "-1" else stored.index(label) for label in y] if isinstance(y[0], str) else y
    assert np.array_equal(found, expected, equal_nan=True)
    assert len(list(corpus.check())) == 2


def test_up_to_a_thousand_integers_are_classes(tmp_path):
    def found(count, classes="auto"):
        return len(survey([np.arange(count), np.full(2, -1)], path="p", classes=classes).classes)

    assert [found(1000), found(1001), found(5000), found(5000, True)] == [1000, 0, 0, 5000]
    assert survey(iter([np.arange(600), np.arange(600, 1500)]), path="p").classes == ()
    with pytest.raises(DataError, match="more than 65,536 distinct classes"):
        survey([np.arange(70_000).astype(str)], path="p")


@pytest.mark.parametrize(
    ("y", "classes", "expected"),
    [
        ([1, -1, 1], "auto", "its labels are -1, 1, and −1 among classes means unlabelled"),
        ([-1, -1, -1], True, "its labels are -1, and −1 among classes means unlabelled"),
        (["1", "-1", "1"], "auto", "its labels are -1, 1, .* classes=True: take it as unlabelled$"),
        ([1, np.inf, 1], "auto", "row 1: the label is infinite"),
        ([1, 0.5, 1], True, "row 1: 0.5 is no class"),
        (["a", "b", "a"], False, "row 0: the label 'a' is a name"),
    ],
)
def test_labels_that_cannot_be_told_are_refused(rows, tmp_path, y, classes, expected):
    with pytest.raises(DataError, match=expected):
        ingest(rows(X[:3], np.array(y)), tmp_path / "c", classes=classes)
    assert not (tmp_path / "c").exists()


def test_classes_cannot_be_asked_of_rows_without_labels(rows, tmp_path):
    with pytest.raises(DataError, match="no labels"):
        ingest(rows(), tmp_path / "c", classes=True)


def test_labels_that_change_between_the_passes_are_noticed(rows, tmp_path):
    for before, after in [([0, 1, 2], [0, 1, 3]), (["a", "b", "b"], ["a", "c", "b"]), ([0.5, 1, 2], ["a", "b", "c"])]:
        source = rows(X[:3], np.array(before))
        changed = replace(source, blocks=lambda after=after: iter([(X[:3], np.array(after))]))
        with pytest.raises(DataError, match="the file was changed"):
            ingest(changed, tmp_path / "c")
        assert not (tmp_path / "c").exists()


# ---- what is left


def test_the_corpus_says_where_it_came_from(rows, tmp_path):
    corpus = ingest(rows(y=np.arange(30)), tmp_path / "c", name="mine", chunk_rows=7)
    digest = hashlib.sha256((tmp_path / "a.npz").read_bytes()).hexdigest()
    assert (corpus.info.name, corpus.info.source) == ("mine", f"a.npz sha256:{digest}")
    assert (corpus.chunk_rows, corpus.info.complete) == (7, True)
    assert open_corpus(tmp_path / "c").info.name == "mine"
    assert ingest(rows(), tmp_path / "d").info.name == "a"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_by_row(rows, tmp_path, bad):
    x = np.ones((5000, 2))
    x[[4200, 4400], 1] = bad
    with pytest.raises(DataError, match=r"the first are \[4200, 4400\]"):
        ingest(rows(x), tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_count_that_does_not_hold_is_refused(rows, tmp_path):
    with pytest.raises(DataError, match="30 rows, expected 31"):
        ingest(replace(rows(), n_rows=31), tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_an_existing_target_is_left_alone_unless_asked(rows, tmp_path):
    ingest(rows(), tmp_path / "c")
    with pytest.raises(DataError, match="already exists"):
        ingest(rows(X + 1), tmp_path / "c")
    assert np.array_equal(open_corpus(tmp_path / "c").array("x")[:], X)
    ingest(rows(X + 1), tmp_path / "c", overwrite=True)
    assert np.array_equal(open_corpus(tmp_path / "c").array("x")[:], X + 1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("dear")
    with pytest.raises(DataError, match="expected a corpus"):
        ingest(rows(), tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "letter").read_text() == "dear"


def test_a_target_that_cannot_be_written_is_refused(rows, tmp_path, monkeypatch):
    with pytest.raises(DataError, match="cannot be written"):
        ingest(rows(), tmp_path / "a.npz" / "c")  # under a file: no permissions help, so that root sees it too

    def full(*args: object, **rows: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bigkernel.data.corpus.CorpusWriter.append", full)
    with pytest.raises(DataError, match=r"cannot be written: No space left on device"):
        ingest(rows(), tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_memory_does_not_grow_with_the_file(tmp_path):
    paths = [tmp_path / f"{n}.csv" for n in (36_000, 90_000)]
    for path in paths:
        path.write_text("0.25,0.5,0.75,1\n" * int(path.stem))
    (rows, least), (more_rows, most) = reading_peaks(*paths, read_bytes=2**18)
    assert (rows, more_rows) == (72_000, 180_000)
    assert most < 1.1 * least
