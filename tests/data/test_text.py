"""CSV in its dialects and the USPS text, against numpy.loadtxt; every fault by line and column."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bigkernel.data.convert import ingest
from bigkernel.data.readers import open_source
from bigkernel.errors import ConfigError, DataError

TRAIN_COUNTS = [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644]
TEST_COUNTS = [359, 264, 198, 166, 200, 160, 170, 147, 166, 177]


@pytest.fixture
def table(tmp_path):
    """Write text as a .csv file."""

    def write(text: str | bytes, name: str = "t.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.mark.parametrize("delimiter", [",", ";", "\t", " ", "   ", ", "])
@pytest.mark.parametrize("header", ["", '"a" "b" "c"', "a b c"])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("packed", [False, True])
def test_every_dialect_gives_the_same_rows(table, load, delimiter, header, ends, packed):
    x = np.random.default_rng(0).normal(size=(20, 2)).round(6)
    y = np.arange(20) % 3
    lines = [header.replace(" ", delimiter)] if header else []
    lines += [delimiter.join([repr(float(a)), repr(float(b)), str(c)]) for (a, b), c in zip(x, y, strict=True)]
    text = ends.join(lines).encode()
    corpus = load(table(gzip.compress(text) if packed else text, "t.csv.gz" if packed else "t.csv"))
    assert np.array_equal(corpus.array("x")[:], x)
    assert np.array_equal(corpus.column("y"), y)
    assert (corpus.dtype, corpus.info.classes, corpus.info.name) == ("float64", (0, 1, 2), "t")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * 3), min_size=1, max_size=30),
    delimiter=st.sampled_from([",", ";", "\t", " "]),
)
def test_every_double_survives_text(tmp_path_factory, values, delimiter):
    path = tmp_path_factory.mktemp("doubles") / "t.csv"
    path.write_text("".join(delimiter.join(map(repr, row)) + "\n" for row in values))
    x = np.concatenate([x for x, _ in open_source(path, target="none").blocks()])
    assert np.array_equal(x, np.array(values))


@pytest.mark.parametrize(
    ("target", "column"), [(None, 3), (0, 0), (-1, 3), (1, 1), ("2", 2), ("b", 1), ("d", 3), ("none", None)]
)
def test_the_target_is_found_by_name_or_position(table, load, target, column):
    values = np.arange(12.0).reshape(3, 4) / 8
    path = table("a,b,c,d\n" + "\n".join(",".join(map(str, row)) for row in values))
    corpus = load(path, target=target)
    kept = [other for other in range(4) if other != column]
    assert np.array_equal(corpus.array("x")[:], values[:, kept])
    if column is None:
        assert corpus.columns == ()
    else:
        assert np.array_equal(corpus.column("y"), values[:, column])
        assert (corpus.column("y").dtype, corpus.info.classes) == (np.float64, ())


@pytest.mark.parametrize(
    ("first", "header", "rows"),
    [
        ("1,2,0", "auto", 3),
        ("a,b,c", "auto", 2),
        ('"1","2","3"', "auto", 2),
        ('"5","6","0"\n"1","2","0"\n"3","4","1"', "auto", 5),
        ("1990,1991,1992", True, 2),
        ("5.1,3.5,setosa", "auto", None),
    ],
)
def test_a_header_is_told_from_a_row(table, first, header, rows):
    path = table(f"{first}\n1,2,0\n3,4,1\n")
    if rows is None:  # the first row has a label of another kind than the rest
        with pytest.raises(DataError, match="line 2, column 2: the number '0' in a target column of names"):
            list(open_source(path).targets())
    else:
        (x, y), *_ = open_source(path, header=header).blocks()
        assert (len(x), x[-2:].tolist(), y[-2:].tolist()) == (rows, [[1, 2], [3, 4]], [0, 1])


def test_names_become_positions_in_their_sorted_list(table, load):
    path = table("5.1,virginica\n4.9,setosa\n4.7,été\n4.6,setosa\n")
    corpus = load(path)
    assert corpus.info.classes == ("setosa", "virginica", "été")
    assert corpus.column("y").tolist() == [1, 0, 2, 0]
    assert corpus.array("x")[:].ravel().tolist() == [5.1, 4.9, 4.7, 4.6]
    assert len(list(corpus.check())) == 2


def test_quoted_cells_may_hold_the_delimiter(table, load):
    corpus = load(table('size,kind\n1,"b, large"\n2,"a ""x"""\n'))
    assert corpus.info.classes == ('a "x"', "b, large")
    assert corpus.column("y").tolist() == [1, 0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,b,c\n1,2,0\n3,x,1\n", "line 3, column 1 ('b'): expected a finite number, found 'x'"),
        ("1,2,0\n3,x,1\n", "line 2, column 1: expected a finite number, found 'x'"),
        ("label,1,2\n5,6,7\n", "line 1, column 0: expected a finite number, found 'label'; leave out the column"),
        ("1,2,0\n3,1\n", "line 2: a short row of 2 cells, expected 3"),
        ("1,2,0\n3,1,2,4\n", "line 2: a long row of 4 cells, expected 3"),
        ("1,2,0\n3,,1\n", "line 2, column 1: expected a finite number, the cell is empty"),
        ("1,2,0\n3,4,\n", "line 2, column 2: expected a finite number, the cell is empty"),
        ("1,2,0\n3,nan,1\n", "line 2, column 1: expected a finite number, found 'nan'"),
        ("1,2,0\n-inf,3,1\n", "line 2, column 0: expected a finite number, found '-inf'"),
        ("1,2,0\n1e999,3,1\n", "line 2, column 0: expected a finite number, found '1e999'"),
        ("1,2,0\n3,4,NaN\n", "line 2, column 2: expected a finite number, found 'NaN'"),
        ("1,2,0\n1_0,3,1\n", "line 2, column 0: expected a finite number, found '1_0'"),
        ("1,2,0\n0x10,3,1\n", "line 2, column 0: expected a finite number, found '0x10'"),
        ("1,2,0\n１,3,1\n", "line 2, column 0: expected a finite number, found '１'"),
        ("1;2;0\n1,5;3;1\n", "line 2, column 0: expected a finite number, found '1,5'; write decimals with a point"),
        ("1,2,0\n\n3,4,1\n", "line 2: an empty line between rows"),
        ("1,2,0\n3,4,red\n", "line 2, column 2: the name 'red' in a target column of numbers"),
        ('1,2,"a\n3,4,b\n', "line 1: a quotation mark is not closed"),
        (b"1,2,a\n3,4,caf\xe9\n", "line 2: byte 0xe9 is not UTF-8"),
        (b"1,2,0\n3,\x004,1\n", "line 2: a NUL character"),
        ("1,2,0\n" + "1,2,0\n" * 60_000 + "1,y,0\n", "line 60002, column 1: expected a finite number, found 'y'"),
        ("1,2,0\n" * 60_000 + "1,2\n" + "1,2,0\n", "line 60001: a short row"),
        ("1,2,0\n" * 60_000 + "\n" * 9 + "1,2,0\n", "line 60001: an empty line"),
        ("", "no rows: the file is empty"),
        ("\n\n", "no rows: the file is empty"),
        ("a,b,c\n", "no rows"),
        ("7\n8\n", "line 1: a single column"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_fault_is_named_by_line_column_and_text(table, refused, text, expected, packed):
    raw = text if isinstance(text, bytes) else text.encode()
    assert expected in refused(table(gzip.compress(raw, 1) if packed else raw))


@pytest.mark.parametrize("text, expected", [("1,2\n3,4\nx,6\n", "line 3, column 0"), ("a,b\n", "no rows")])
def test_a_fault_past_the_first_pass_leaves_nothing(table, refused, text, expected):
    assert expected in refused(table(text), target="none")


def test_empty_lines_at_the_end_are_no_rows(table, load):
    assert load(table("1,2\n3,4\n\n  \n\n")).n_rows == 2


def test_a_line_without_end_is_refused_before_it_fills_the_memory(table, monkeypatch):
    monkeypatch.setattr("bigkernel.data.readers.lines._MOST_LINE_BYTES", 10**6)
    with pytest.raises(DataError, match="line 2: longer than 1,000,000 bytes"):
        list(open_source(table(gzip.compress(b"1,2\n" + b"1" * 10**7)), target="none").blocks())


def test_a_byte_order_mark_is_no_part_of_the_first_name(table):
    path = table("\ufeffa,b\n1,2\n".encode())
    assert [y.tolist() for y in open_source(path, target="a").targets()] == [[1.0]]


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        (DataError, {"target": "z"}, "no column 'z' for the target; its columns are 'a', 'b', 'b'"),
        (DataError, {"target": "b"}, "2 columns are named 'b'"),
        (DataError, {"target": 3}, "no column 3 for the target; its columns are 0 to 2"),
        (DataError, {"target": "a", "header": False}, "no column 'a' for the target; it has no header"),
        (ConfigError, {"delimiter": "|"}, "delimiter: expected"),
        (ConfigError, {"header": "maybe"}, "header: expected"),
    ],
)
def test_options_that_a_table_does_not_allow_are_refused_with_what_it_has(table, kind, options, expected):
    with pytest.raises(kind, match=expected):
        open_source(table("a,b,b\n1,2,3\n"), **options)


@pytest.mark.parametrize("delimiter", ["tab", "\t", ";", ",", "blank", " "])
def test_a_delimiter_that_is_given_is_not_questioned(table, delimiter):
    mark = {"tab": "\t", "blank": "  "}.get(delimiter, delimiter)
    path = table(f"1{mark}2\n3{mark}4\n")
    assert [x.tolist() for x, _ in open_source(path, delimiter=delimiter).blocks()] == [[[1], [3]]]


def test_gzip_text_cut_short_at_any_byte_is_refused(tmp_path, refused):
    lines = np.random.default_rng(0).normal(size=(40, 3)).round(4).tolist()
    whole = gzip.compress("".join(",".join(map(str, line)) + "\n" for line in lines).encode())
    path = tmp_path / "t.csv.gz"
    for length in range(2, len(whole), 3):
        path.write_bytes(whole[:length])
        message = refused(path)
        assert "truncated" in message
        assert "byte" in message


def test_wine_is_what_numpy_reads(data_file, load):
    path = data_file("winequality-white.csv")
    corpus = load(path)
    oracle = np.loadtxt(path, delimiter=";", skiprows=1)
    x, y = corpus.array("x")[:], corpus.column("y")
    assert np.array_equal(x, oracle[:, :11])
    assert np.array_equal(y, oracle[:, 11])
    assert x.min(0).tolist() == [3.8, 0.08, 0, 0.6, 0.009, 2, 9, 0.98711, 2.72, 0.22, 8.0]
    assert x.max(0).tolist() == [14.2, 1.1, 1.66, 65.8, 0.346, 289, 440, 1.03898, 3.82, 1.08, 14.2]
    assert np.bincount(y)[3:].tolist() == [20, 163, 1457, 2198, 880, 175, 5]
    assert corpus.info.classes == (3, 4, 5, 6, 7, 8, 9)


def test_wine_quality_can_be_a_number(data_file, load):
    corpus = load(data_file("winequality-white.csv"), target="quality", classes=False, dtype="float32")
    assert (corpus.column("y").dtype, corpus.info.classes, corpus.dtype) == (np.float64, (), "float32")
    assert corpus.column("y").mean() == pytest.approx(5.877909, abs=1e-6)


@pytest.mark.parametrize(("name", "counts"), [("zip.train.gz", TRAIN_COUNTS), ("zip.test.gz", TEST_COUNTS)])
def test_usps_is_recognised_and_has_its_published_counts(data_file, load, name, counts):
    corpus = load(data_file(name))
    x, y = corpus.array("x")[:], corpus.column("y")
    assert open_source(data_file(name)).format == "usps"
    assert np.bincount(y).tolist() == counts
    assert (corpus.shape, corpus.dtype, corpus.info.image_shape) == ((sum(counts), 256), "float32", (16, 16))
    assert (x.min(), x.max(), corpus.info.scale) == (-1, 1, 1.0)
    assert corpus.info.classes == tuple(range(10))
    if name == "zip.test.gz":
        oracle = np.loadtxt(data_file(name))
        assert np.array_equal(x, oracle[:, 1:].astype(np.float32))
        assert np.array_equal(y, oracle[:, 0])


def test_usps_faults_are_named_by_line_and_column(tmp_path, refused):
    row = " ".join(["6.0000"] + ["-1.0000"] * 256) + " \n"
    path = tmp_path / "zip.any"
    path.write_text(row + row.replace("-1.0000 \n", "x \n"))
    assert "line 2, column 256: expected a finite number, found 'x'" in refused(path)
    path.write_text(row + row[:-10] + "\n")
    assert "line 2: a short row of 256 cells, expected 257" in refused(path)
    path.write_text("1 2 3\n")
    assert "line 1: expected a digit and 256 grey values, found 3 columns" in refused(path, format="usps")


def test_blocks_and_first_pass_agree_across_block_borders(tmp_path, load):
    y = np.random.default_rng(0).integers(0, 5, 60_000)
    path = tmp_path / "t.csv"
    path.write_text("".join(f"{row},{2 * row + 1},c{label}\n" for row, label in enumerate(y)))
    source = open_source(path)
    assert len(list(source.blocks())) > 1
    corpus = ingest(source, tmp_path / "corpus")
    assert np.array_equal(corpus.column("y"), y)
    assert np.array_equal(corpus.array("x")[:], np.stack([np.arange(60_000), 2 * np.arange(60_000) + 1], 1))
