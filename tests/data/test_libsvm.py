"""LIBSVM text: valid files are read, and bad lines are refused by their number."""

import gzip
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.datasets import dump_svmlight_file
from support.peaks import reading_peaks

from bigkernel.data.ingest import ingest
from bigkernel.data.readers import libsvm, open_source
from bigkernel.data.readers.source import SkippedRows
from bigkernel.errors import ConfigError, DataError


@pytest.fixture
def lines(tmp_path):
    """Write text as a file of this format."""

    def write(text, name="rows.svm"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def test_pairs_become_dense_rows_of_float32(lines, load):
    corpus = load(lines("# made by hand\n+1 1:0.5 3:-2 # the first\n-1\t2:1e-3\n\t \n2.0\n".replace("\t \n", "")))
    assert corpus.array("x")[:].tolist() == [[0.5, 0, -2], [0, np.float32(1e-3), 0], [0, 0, 0]]
    assert (corpus.dtype, corpus.column("y").tolist(), corpus.info.classes) == ("float32", [1, -1, 2], (1, 2))


@given(
    x=hnp.arrays(np.float64, (7, 5), elements=st.sampled_from([0.0, 1.5, -2.25, 1e-30, 3e7])), zero_based=st.booleans()
)
def test_files_of_scikit_learn_are_read(tmp_path_factory, x, zero_based):
    path = tmp_path_factory.mktemp("svm") / "rows.txt"
    y = np.arange(7) - 0.5
    dump_svmlight_file(x, y, str(path), zero_based=zero_based, comment="made by scikit-learn")
    source = open_source(path, format="libsvm", zero_based=zero_based, features=5)
    blocks = list(source.blocks())
    assert np.array_equal(np.concatenate([rows for rows, *_ in blocks]), x.astype(np.float32))
    assert np.array_equal(np.concatenate([labels for _, labels, *_ in blocks]), y)


def test_small_blocks_hold_the_rows_of_one_large_block(lines, monkeypatch):
    text = "".join(f"{row % 3} {row % 7 + 1}:{row} 9:1\n" for row in range(500))
    whole = open_source(lines(text))
    (x, y, *_), *rest = whole.blocks()
    assert (rest, whole.n_rows, whole.n_features) == ([], 500, 9)
    monkeypatch.setattr("bigkernel.data.readers.source.BLOCK_BYTES", 72 * 7)
    monkeypatch.setattr("bigkernel.data.readers.source.READ_BYTES", 100)
    cut = list(open_source(lines(text)).blocks())
    assert max(len(rows) for rows, *_ in cut) == 7 or len(cut) > 70
    assert np.array_equal(np.concatenate([rows for rows, *_ in cut]), x)
    assert np.array_equal(np.concatenate([labels for _, labels, *_ in cut]), y)


def test_the_format_is_recognised_with_and_without_gzip(lines, tmp_path):
    path = lines("# c\n1 1:2\n", name="rows.txt")
    assert open_source(path).format == "libsvm"
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert open_source(path).format == "libsvm"
    assert open_source(lines("1 2\n3 4\n", name="rows2.txt")).format == "csv"
    assert open_source(lines("9 12:30:15\n", name="rows3.txt")).format == "csv"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("1 2:0.5 2:1", "expected .* rising .* found '1 2:0.5 2:1'"),
        ("1 3:0.5 2:1", "expected .* rising"),
        ("1 0:0.5 2:1", "expected .* Invalid index 0 .*indices that begin at 0 need --zero-based"),
        ("1 1:1152921504606846977", "expected .* float64 rounds whole numbers from 2⁵³ on, as 1152921504606846977"),
        ("-9007199254740993 1:1", "expected .* as -9007199254740993"),
        ("1 1:abc", "expected .* found '1 1:abc'"),
        ("1 1:1_0", "expected .* underscores"),
        *((line, "expected") for line in ("1 1:", "1 1:0.5 2", "1 1:2:3 4", "1 -1:2", "1 1.5:2")),
        *((line, "expected a number and index:value") for line in ("cat 1:2", "1,2 1:2", "1:2 3:4")),
        ("1 1:1 +2:2", "expected .* signed indices"),
        ("1 qid:3 1:2", "expected .* qid"),
        ("1 99999999:1", "expected an index up to 16,777,216, found 99999999;"),
        ("1 99999999999999999999:1", "expected an index up to 16,777,216, found 99999999999999999999"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(lines, refused, line, expected):
    message = refused(lines(f"1 1:1 2:2\n# a comment\n{line}\n2 1:1\n"), format="libsvm")
    assert re.search(rf"line 3: {expected}", message), message


@pytest.mark.parametrize(
    ("line", "expected"),
    [("1 1:nan", "in x, the first are [1]"), ("inf 1:2", "row 1 (from 0): found an infinite label")]
    + [("1 1:1e39", "row 1 (from 0), column 0: expected float32, found 1e+39")],
)
def test_a_value_that_cannot_be_stored_is_refused_with_its_row(lines, refused, line, expected):
    assert expected in refused(lines(f"1 1:1 2:2\n# a comment\n{line}\n2 1:1\n"))


def test_rows_that_are_not_finite_are_skipped_and_doubles_are_stored_as_written(lines, load):
    path, skipped = lines("0 1:0\n1 1:nan 2:1\ninf 1:2\nnan 1:3\n1 1:16777217 2:0.1\n"), SkippedRows()
    corpus = load(path, skipped=skipped, dtype="float64")
    assert (skipped.count, skipped.first) == (2, ["rows.svm row 1", "rows.svm row 2"])
    assert corpus[:].tolist() == [[0, 0], [3, 0], [16777217, 0.1]]
    assert (corpus.column("y").tolist(), corpus.column("row").tolist()) == ([0, -1, 1], [0, 3, 4])


def test_a_truncated_file_is_refused(lines, refused, tmp_path):
    message = refused(lines("1 1:1\n1 1:0.25"))
    assert "line 2: the file ends within this line, at b'1 1:0.25', and may be truncated" in message
    path = tmp_path / "cut.svm.gz"
    path.write_bytes(gzip.compress(b"1 1:1 2:0.25\n" * 5000)[:-30])
    assert "truncated: the compressed data end early" in refused(path)


def test_files_with_different_largest_indices_need_a_number_of_features(lines, tmp_path):
    paths = [lines("1 1:1 4:1\n2 2:1\n"), lines("1 1:1\n2 2:1\n", name="test.svm")]
    message = r"test.svm: features: found 2, expected 4 as in .*rows.svm; .*set the number of features .*--features"
    with pytest.raises(DataError, match=message):
        ingest([open_source(path) for path in paths], tmp_path / "c")
    assert ingest([open_source(path, features=4) for path in paths], tmp_path / "c").shape == (4, 4)


def test_files_without_rows_or_features_or_with_too_many_are_refused(lines, refused):
    assert "line 2: expected" in refused(lines("1 1:1\n1 4:1\n"), features=3)
    assert "no line with a label" in refused(lines("# nothing\n"), format="libsvm")
    message = refused(lines("1\n2\n"), format="libsvm")
    assert "found no index:value pair in 2 lines; set the number of features" in message
    with pytest.raises(ConfigError, match="features: expected 1 to 16,777,216, found 0"):
        open_source(lines("1 1:1\n"), features=0)


def test_memory_does_not_grow_with_the_file(lines):
    few, many = (lines("1 1:0.25 50:0.5 100:0.75\n" * n, name=f"{n}.svm") for n in (3_000, 7_000))
    (rows, least), (more_rows, most) = reading_peaks(few, many, read_bytes=2**15)
    assert (rows, more_rows) == (3_000, 7_000)
    assert most < 1.1 * least


def test_wide_rows_are_read_in_blocks_of_one_row(lines):
    source = open_source(lines("1 1000000:1\n" * 9))
    assert [len(x) for x, *_ in source.blocks()] == [1] * 9
    assert libsvm.recognises(b"1 1000000:1\n")
