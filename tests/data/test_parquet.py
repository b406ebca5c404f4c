"""Parquet: files and folders of parts, and what is refused by column and row."""

import gzip
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bigkernel.data.convert import ingest
from bigkernel.data.readers import open_source

X = np.random.default_rng(0).normal(size=(300, 3))


def table(x=X, **columns):
    return pa.table({**{f"f{place}": column for place, column in enumerate(x.T)}, **columns})


@pytest.fixture
def written(tmp_path):
    """Write a table as one file in row groups of 70 rows."""

    def write(content, name="rows.parquet", **options):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        pq.write_table(content, path, row_group_size=options.pop("row_group_size", 70), **options)
        return path

    return write


@pytest.mark.parametrize(
    "options", [{}, {"compression": "gzip"}, {"use_dictionary": False, "data_page_version": "2.0"}]
)
def test_rows_and_labels_come_back(written, load, options):
    corpus = load(written(table(y=np.arange(300) % 4), **options))
    assert np.array_equal(corpus.array("x")[:], X)
    assert np.array_equal(corpus.column("y"), np.arange(300) % 4)
    assert corpus.info.classes == (0, 1, 2, 3)


def test_the_target_may_be_text_or_anywhere_or_none(written, load, tmp_path):
    kinds = np.array(["b", "a", "c"])[np.arange(300) % 3]
    path = written(table(kind=pa.array(kinds).dictionary_encode()))
    assert load(path).info.classes == ("a", "b", "c")
    assert open_source(written(table()), target="none").targets is None
    source = open_source(written(table()), target="f1")
    assert np.array_equal(np.concatenate(list(source.targets())), X[:, 1])
    assert np.array_equal(np.concatenate([x for x, _ in source.blocks()]), X[:, [0, 2]])


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"a": np.float32(X[:, 0]), "b": np.float32(X[:, 1])}, "float32"),
        ({"a": np.ones(300, bool)}, "uint8"),
        ({"a": np.arange(300, dtype=np.int16), "b": np.arange(300, dtype=np.int32)}, "int32"),
        ({"a": np.arange(300, dtype=np.int64), "b": np.float32(X[:, 1])}, "float64"),
    ],
)
def test_features_are_stored_in_their_common_dtype(written, columns, expected):
    source = open_source(written(pa.table(columns)), target="none")
    assert source.dtype == expected
    assert {x.dtype for x, _ in source.blocks()} == {np.dtype(expected)}


@pytest.mark.parametrize("other", [np.ones(300), np.arange(300) - 1, np.float32(X[:, 0])], ids=["f8", "i8", "f4"])
def test_whole_numbers_that_the_common_dtype_would_round_are_refused_by_row(written, load, refused, other):
    kept = np.full(300, 2**60, np.uint64)
    columns = {"kept": kept, "other": other, "y": np.arange(300) % 2}
    assert np.array_equal(load(written(pa.table(columns))).array("x")[:, 0], kept)
    kept[211] += 1
    message = refused(written(pa.table(columns)))
    assert "row 211, column 'kept': 1152921504606846977 is no float64" in message
    assert open_source(written(pa.table({"kept": kept, "y": kept}))).dtype == np.uint64


def test_the_index_that_pandas_adds_is_neither_feature_nor_target(written, load):
    index = pa.array(np.arange(300) * 7)
    corpus = load(written(table(y=np.arange(300) % 4, __index_level_0__=index)))
    assert (corpus.n_features, corpus.info.classes) == (3, (0, 1, 2, 3))


def test_parts_of_a_folder_follow_in_natural_order(written, load, tmp_path):
    for part in (10, 2, 1):
        written(table(X[part : part + 5], y=np.full(5, part)), name=f"rows/part-{part}.parquet")
    (tmp_path / "rows" / "_SUCCESS").touch()
    corpus = load(tmp_path / "rows")
    assert corpus.column("y").tolist() == [1] * 5 + [2] * 5 + [10] * 5
    assert corpus.info.source.startswith("rows (3 files) sha256:")


def test_groups_are_a_column_of_the_corpus(written, tmp_path):
    path = written(table(y=np.arange(300) % 2, patient=np.arange(300) // 3))
    corpus = ingest(open_source(path, target="y", group="patient"), tmp_path / "c")
    assert corpus.shape == (300, 3)
    assert np.array_equal(corpus.column("group"), np.arange(300) // 3)


def test_a_column_of_text_is_refused_by_its_name(written, refused):
    message = refused(written(table(city=["Ulm"] * 300, y=np.arange(300))))
    assert "column 'city' holds string, expected numbers" in message


@pytest.mark.parametrize(("column", "target"), [("f", "y"), ("y", "y"), ("g", "y")])
def test_a_null_is_refused_by_its_row(written, refused, column, target):
    values = [*range(299), 1]
    columns = {name: pa.array(values) for name in ("f", "y", "g")}
    columns[column] = pa.array([None if row == 211 else value for row, value in enumerate(values)])
    message = refused(written(pa.table(columns)), target=target, group="g")
    assert f"row 211, column {column!r}: a null" in message


def test_values_that_are_not_finite_are_refused_by_row(written, refused):
    x = X.copy()
    x[123, 1] = np.nan
    assert "the first are [123]" in refused(written(table(x, y=np.arange(300))))


@pytest.mark.parametrize("kept", [3, 50, 3000, -4, -1])
def test_a_file_that_was_cut_is_refused(written, refused, kept):
    path = written(table(y=np.arange(300)))
    path.write_bytes(path.read_bytes()[:kept])
    assert "cannot be read at its footer" in refused(path, format="parquet")


def test_parquet_within_gzip_is_refused(written, refused):
    path = written(table())
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert "Parquet within gzip" in refused(path)


def test_damage_within_a_page_is_refused_with_its_row(written, refused):
    path = written(table(y=np.arange(300)), write_page_checksum=True)
    content = bytearray(path.read_bytes())
    column = pq.ParquetFile(path).metadata.row_group(2).column(1)
    start = column.data_page_offset + column.total_compressed_size // 2
    content[start : start + 100] = bytes(100)
    path.write_bytes(content)
    assert "cannot be read from row" in refused(path)


def test_parts_that_differ_are_refused_by_the_first(written, refused, tmp_path):
    written(table(y=np.arange(300)), name="rows/1.parquet")
    written(table(z=np.arange(300)), name="rows/2.parquet")
    message = refused(tmp_path / "rows")
    assert "2.parquet: its columns are f0 (double), f1 (double), f2 (double), z (int64), but" in message


def test_other_files_and_folders_among_the_parts_are_refused(written, refused, tmp_path):
    written(table(), name="rows/1.parquet")
    (tmp_path / "rows" / "notes.txt").touch()
    assert "'notes.txt' is no Parquet file" in refused(tmp_path / "rows")
    (tmp_path / "rows" / "notes.txt").unlink()
    (tmp_path / "rows" / "year=2000").mkdir()
    assert "the folder 'year=2000' within" in refused(tmp_path / "rows")
    (tmp_path / "rows" / "year=2000").rmdir()
    os.mkfifo(tmp_path / "rows" / "2.parquet")  # nobody would ever write to it
    assert "'2.parquet' is no Parquet file" in refused(tmp_path / "rows")


def test_columns_that_are_not_there_or_have_two_uses_are_refused(written, refused):
    path = written(table(y=np.arange(300)))
    assert "no column 'z' for the target; its columns are 'f0', 'f1', 'f2', 'y'" in refused(path, target="z")
    assert "column 'y' is the target and the group" in refused(path, group="y")
    assert "expected rows of 1 to 16,777,216 features, found 0" in refused(written(pa.table({"y": [1, 2]})))


def test_a_row_group_is_read_block_by_block(written):
    rows = 40_000
    path = written(table(np.zeros((rows, 3)), y=np.arange(rows)), row_group_size=rows)
    sizes = [len(x) for x, _ in open_source(path).blocks()]
    assert sum(sizes) == rows
    assert max(sizes) <= 4096
