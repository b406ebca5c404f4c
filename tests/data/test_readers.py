"""All formats: valid files are read, and bad ones are refused by their file and row."""

import bz2
import gzip
import hashlib
import lzma
import struct
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.peaks import reading_peaks

from bigkernel.data.readers import FORMATS, open_source
from bigkernel.data.readers.source import SkippedRows
from bigkernel.errors import ConfigError, DataError

X = np.random.default_rng(0).normal(size=(300, 4)).round(6)
Y = np.arange(300) % 3
PIXELS = np.random.default_rng(1).integers(0, 256, (30, 4, 3), np.uint8)
IDX_TYPES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Change to a new working directory for every test."""
    monkeypatch.chdir(tmp_path)


def idx(values, code=None):
    code = IDX_TYPES[values.dtype.str[1:]] if code is None else code
    head = struct.pack(f">BBBB{values.ndim}I", 0, 0, code, values.ndim, *values.shape)
    return head + values.astype(values.dtype.newbyteorder(">")).tobytes()


def table(x=X, **columns):
    return pa.table({**{f"f{place}": column for place, column in enumerate(x.T)}, **columns})


def write(name, content):
    """Write bytes, text, an Arrow table or variables, depending on the content; return the path."""
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, pa.Table):
        pq.write_table(content, path, row_group_size=70)
    elif isinstance(content, dict):
        np.savez(path, **content)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def lines(x=X, y=Y, delimiter=",", header=(), ends="\n"):
    rows = [delimiter.join(header)] if header else []
    rows += [delimiter.join([*map(repr, map(float, row)), str(label)]) for row, label in zip(x, y, strict=True)]
    return ends.join(rows)


def read(path, **options):
    """Return all rows and labels of a source."""
    blocks = list(open_source(path, **options).batches())
    return np.concatenate([block["x"] for block in blocks]), np.concatenate([block["y"] for block in blocks])


# ---- valid files

NPY = {"x": X, "y": Y}


def npy(x, y):
    np.save("r.npy", x)
    np.save("l.npy", y)
    return "r.npy", {"labels": "l.npy"}


def npz(save, **arrays):
    save("a.npz", **arrays)
    return "a.npz", {}


def images(ending="", pack=bytes):
    write(f"labels{ending}", pack(idx(Y.astype("u1"))))
    return write(f"images{ending.replace('idx1', 'idx3')}", pack(idx(X))), {}


def text(content, **options):
    return write("t.csv", content), options


def packed(delimiter):
    return write("t.csv.gz", gzip.compress(lines(delimiter=delimiter, ends="\r\n").encode())), {}


GOOD = {
    "npy": lambda: npy(X, Y),
    "npy in Fortran order": lambda: npy(np.asfortranarray(X), Y[:, None]),
    "npz": lambda: npz(np.savez, **NPY),
    "npz compressed": lambda: npz(np.savez_compressed, **NPY),
    "npz with objects": lambda: npz(np.savez, meta=np.array([{}]), **NPY),
    "npz in Fortran order": lambda: npz(np.savez, data=np.asfortranarray(X), labels=Y),
    "idx": lambda: images("-idx1-ubyte"),
    "idx in gzip": lambda: images(".idx1-ubyte.gz", gzip.compress),
    "parquet": lambda: (write("t.parquet", table(y=Y)), {}),
    "parquet, target in front": lambda: (write("t.parquet", table().add_column(0, "y", [Y])), {"target": "y"}),
    "csv with a header": lambda: text(lines(header=["a", "b", "c", "d", "y"])),
    "csv by its last column": lambda: text(lines(), target=-1, header=False),
    "csv by semicolons": lambda: packed(";"),
    "csv by tabs": lambda: packed("\t"),
    "csv by blanks": lambda: packed(" "),
    "csv by runs of blanks": lambda: packed("   "),
}
BARE = {"npy": "labels", "npz": "y", "idx": "labels", "par": "target", "csv": "target"}


@pytest.mark.parametrize("kind", GOOD)
def test_rows_and_labels_come_back(kind, load):
    path, options = GOOD[kind]()
    corpus = load(Path(path), **options)
    assert np.array_equal(np.asarray(corpus), X)
    assert np.array_equal(corpus.column("y"), Y)
    assert (corpus.dtype, corpus.info.classes) == ("float64", (0, 1, 2))
    assert corpus.info.source.startswith(f"{Path(path).name} sha256:")
    assert not open_source(path, **{BARE[kind[:3]]: "none"}).labelled


def test_format_is_recognised_by_the_first_bytes_and_not_by_the_name():
    np.save("1.csv", X)
    Path("1.csv.npy").rename("1.csv")
    with open("2.txt", "wb") as handle:
        np.savez(handle, x=X)
    write("4.csv", idx(PIXELS))
    write("6.csv", "+1 1:2 4:0.5\n")
    write("7.npy", b"PAR1" + write("t.parquet", table(y=Y)).read_bytes()[4:])
    formats = [open_source(path).format for path in sorted(Path().glob("[1-7]*"))]
    assert formats == ["npy", "npz", "idx", "libsvm", "parquet"]


@pytest.mark.parametrize("dtype", IDX_TYPES)
def test_every_type_of_idx_is_read_in_native_byte_order(dtype, load):
    values = np.array([[1, 2, 3], [100, 5, 6]], dtype)
    corpus = load(write("m", idx(values)))
    assert (corpus.dtype, np.asarray(corpus).tolist()) == (np.dtype(dtype).name, values.tolist())
    assert (corpus.info.scale, corpus.info.image_shape) == (255.0 if dtype == "u1" else 1.0, None)


@pytest.mark.parametrize("name", ["m.idx", "m.npy", "m.npz"])
def test_images_keep_their_shape_and_large_files_are_read_in_blocks(name, load):
    values = np.random.default_rng(0).integers(0, 256, (10_001, 4, 5), dtype=np.uint8)
    if name == "m.npy":
        np.save(name, values)
    else:
        write(name, idx(values) if name == "m.idx" else {"x": values})
    blocks = [x for x, *_ in open_source(name).blocks()]
    assert [len(x) for x in blocks] == [4096, 4096, 1809]
    assert np.array_equal(np.concatenate(blocks), values.reshape(-1, 20))
    info = load(Path(name)).info
    assert (info.image_shape, info.scale) == ((4, 5), 255.0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * 3), min_size=1, max_size=30),
    delimiter=st.sampled_from([",", ";", "\t", " "]),
)
def test_every_double_written_as_text_is_read_back(tmp_path_factory, values, delimiter):
    path = tmp_path_factory.mktemp("doubles") / "t.csv"
    path.write_text("".join(delimiter.join(map(repr, row)) + "\n" for row in values))
    blocks = open_source(path, target="none", delimiter=delimiter, header=False).batches()
    assert np.array_equal(np.concatenate([block["x"] for block in blocks]), np.array(values))


def test_names_become_classes_and_a_header_is_recognised(load):
    corpus = load(write("t.csv", 'size,kind\n1,"b, large"\n2,"a ""x"""\n3, été\n'))
    assert (corpus.info.classes, corpus.column("y").tolist()) == (('a "x"', "b, large", "été"), [1, 0, 2])
    assert read(write("t.csv", "1990,1991\n1,2\n"), header=True)[0].tolist() == [[1.0]]
    assert read(write("t.csv", "1,2\n\n3,4"))[1].tolist() == [2, 4]


@pytest.mark.parametrize("skipped", [None, SkippedRows()])
def test_columns_of_true_and_false_are_numbers_as_in_pandas(skipped):
    text = "a,b,c,y\n" + "True,1,false,0\nFALSE,2,TRUE,1\ntrue,3,False,0\n" * 20
    frame = pd.read_csv(write("t.csv", text + "0,1,no,1\n" * (skipped is not None)), nrows=60)
    assert (read("t.csv", skipped=skipped)[0] == frame[["a", "b", "c"]].to_numpy(float)).all()
    assert skipped is None or (skipped.count, skipped.first) == (1, ["t.csv row 60"])


def test_files_of_a_folder_are_read_in_natural_order_without_the_index_of_pandas(load):
    for number in (10, 2, 1):
        columns = {"y": np.full(5, number), "__index_level_0__": np.arange(5)}
        write(f"rows/part-{number}.parquet", table(X[number : number + 5], **columns))
    Path("rows/_SUCCESS").touch()
    corpus = load(Path("rows"))
    assert (corpus.n_features, corpus.column("y").tolist()) == (4, [1] * 5 + [2] * 5 + [10] * 5)
    assert corpus.info.source == "rows"


def test_parquet_columns_have_a_common_dtype_and_labels_may_be_text():
    half = pa.table({"a": np.arange(300, dtype=np.int64), "b": np.float32(X[:, 1]), "c": np.ones(300, bool)})
    source = open_source(write("t.parquet", half), target="none")
    assert source.dtype == next(source.blocks())[0].dtype == np.float64
    names = pa.array(np.array(["b", "a", "c"])[Y]).dictionary_encode()
    assert read(write("t.parquet", table(kind=names)))[1].tolist() == np.array(["b", "a", "c"])[Y].tolist()


INDEXED = pd.DataFrame({"u": X[:, 0], "v": X[:, 1], "price": X[:, 2]})
INDEXES = {
    "names": pd.Index([f"n{place}" for place in range(300)], name="who"),
    "times": pd.date_range("2020", periods=300, name="who"),
    "without a name": np.random.default_rng(0).permutation(300),
    "several": pd.MultiIndex.from_arrays([Y, np.arange(300)], names=["a", "who"]),
}


@pytest.mark.parametrize("metadata", [True, False])
@pytest.mark.parametrize("kind", INDEXES)
def test_the_index_of_a_frame_is_neither_target_nor_feature(kind, metadata):
    INDEXED.set_index(INDEXES[kind]).to_parquet("t.parquet")
    INDEXED.set_index(INDEXES["without a name"]).to_csv("t.csv")
    if not metadata:
        names = ["u", "v", "price", "__null_dask_index__"]
        pq.write_table(pq.read_table("t.parquet").select([0, 1, 2, 3]).rename_columns(names), "t.parquet")
        pd.read_csv("t.csv").to_csv("t.csv", index=False)
    for path in ("t.parquet", "t.csv"):
        source = open_source(path)
        assert (source.feature_names, source.target) == (("u", "v"), "price")
        assert any("an index or empty" in note for note in source.notes)
        assert (read(path)[0] == X[:, :2]).all()


def test_the_index_of_a_frame_is_the_target_or_the_ids_if_it_is_named(load):
    INDEXED.set_index(INDEXES["times"]).to_parquet("t.parquet")
    assert load(Path("t.parquet"), id="who").column("id")[1].startswith("2020-01-02")
    INDEXED.set_index("u").to_parquet("t.parquet")
    source = open_source("t.parquet", target="u")
    assert (source.feature_names, source.target) == (("v", "price"), "u")
    assert open_source("t.parquet", drop=["u"]).target == "price"


TEXT = pd.DataFrame({"0": X[:60, 0], "1": X[:60, 1], "2": X[:60, 2], "3": Y[:60]})


@pytest.mark.parametrize(
    ("first", "rows", "headed", "noted"),
    [
        ("0,1,2,3", TEXT, True, True),
        (",0,1,2,3", TEXT.reset_index(), True, True),
        ("1990,1991,1992,1993", TEXT, True, True),
        ("0,1,2,kind", TEXT, True, True),
        ("a,b,c,kind", TEXT, True, False),
        ("0,1", TEXT[["0", "3"]], False, True),
        ("1990,1992,1991,1999", TEXT, False, True),
        ("0,1,2,3", TEXT.round().astype(int), False, True),
        ("4,3,9,2", TEXT.round().astype(int), False, False),
        ("1.5,2.5,0.5,2", TEXT, False, False),
        ("1.5,2.5,0.5,a", TEXT.assign(kind="a").drop(columns="3"), False, False),
    ],
)
def test_line_1_is_compared_with_the_rows_below(first, rows, headed, noted):
    path = write("t.csv", first + "\n" + rows.to_csv(index=False, header=False))
    assert [len(read(path, header=header)[0]) for header in (None, True)] == [61 - headed, 60]
    assert any("--header" in note for note in open_source(path).notes) == noted


def test_rows_of_names_without_a_header_are_all_read():
    path = write("t.csv", "p,x,e\nq,y,f\np,x,f\n" * 9)
    source = open_source(path, encode=True)
    assert sum(len(batch["x"]) for batch in source.batches()) == 27
    assert any("is a row of data" in note for note in source.notes)


@pytest.mark.parametrize("options", [{}, {"skipped": SkippedRows()}, {"encode": True}])
@pytest.mark.parametrize("delimiter", [";", "\t", "|", " ", ","])
def test_decimal_commas_are_detected(delimiter, options):
    frame = pd.DataFrame({"u": X[:60, 0], "v": Y[:60], "price": X[:60, 1]})
    frame.to_csv("t.csv", index=False, sep=delimiter, decimal=",")
    source = open_source("t.csv", **options)
    blocks = list(source.batches())
    assert np.concatenate([block["y"] for block in blocks]).tolist() == frame["price"].tolist()
    u = [block["x"]["u"].astype(float) if options.get("encode") else block["x"][:, 0] for block in blocks]
    assert np.concatenate(u).tolist() == frame["u"].tolist()
    assert any("decimals have a comma" in note for note in source.notes)


@pytest.mark.parametrize("first", [0, 2000], ids=["from the first row", "below the lines that are looked at"])
def test_cells_in_quotes_have_several_lines_in_files_of_several_blocks(load, first):
    notes = [f'line {row}\n\nsecond "line", ' + "z" * 100 if row >= first else f"row {row}" for row in range(6000)]
    pd.DataFrame({"u (m)": np.arange(6000.0), "note": notes, "y": Y[0]}).to_csv("t.csv", index=False)
    corpus = load(Path("t.csv"), id="note")
    assert (corpus.info.feature_names, corpus.shape) == (("u (m)",), (6000, 1))
    assert corpus.column("id").tolist() == notes


PACK = {
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda content: bytes(pa.compress(content, "zstd")),
    "zip": lambda content: zipped_text(content),
}


def zipped_text(content, *names):
    with zipfile.ZipFile("packed.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names or ("__MACOSX/._t.csv", "t.csv"):
            archive.writestr(name, content)
    return Path("packed.zip").read_bytes()


@pytest.mark.parametrize("ending", PACK)
def test_compressed_text_and_images_are_read_and_damage_is_found(ending, refused, monkeypatch):
    pack, content = PACK[ending], lines(header="abcdy").encode() + b"\n"
    x, y = read(write(f"t.csv.{ending}", pack(content)))
    assert np.array_equal(x, X)
    assert np.array_equal(y, Y)
    assert open_source(write(f"t.{ending}", pack(b"1 1:2\n0 2:3\n"))).format == "libsvm"
    assert open_source(write(f"i.{ending}", pack(idx(PIXELS)))).n_rows == 30
    np.save("a.npy", X)
    assert open_source(write(f"a.npy.{ending}", pack(Path("a.npy").read_bytes()))).n_rows == 300
    assert "without" in refused(write(f"p.{ending}", pack(write("t.parquet", table(y=Y)).read_bytes())))
    if ending != "zip":
        assert len(read(write("t.csv", pack(content) + pack(content.partition(b"\n")[2])))[0]) == 600
    assert any(word in refused(write("c.csv", pack(content)[:-30])) for word in ("truncated", "Truncated", "zip file"))
    monkeypatch.setattr("bigkernel.data.readers.source._SMALL_BYTES", 1000)
    monkeypatch.setattr("bigkernel.data.readers.source.DEFLATE_RATIO", 2)
    assert "expands to more than" in refused(write("b.csv", pack(b"1,2,3\n" * 10**5)))


def test_the_target_is_called_so_or_the_last_column_and_is_noted():
    for names, target in [
        (["label", "p", "q"], "label"),
        (["p", "Target", "weight"], "Target"),
        (["class", "label", "p"], "p"),
        (["p", "weight", "y"], "y"),
        (["p", "q", "weight"], "weight"),
    ]:
        frame = pd.DataFrame(X[:, :3], columns=names)
        frame.to_csv("t.csv", index=False)
        frame.to_parquet("t.parquet")
        for path in ("t.csv", "t.parquet"):
            source = open_source(path)
            assert (source.target, len(source.notes)) == (target, 1)
            assert f"the target is {target!r}" in source.notes[0]
            assert open_source(path, group=target, target=names[1] if target != names[1] else names[0]).grouped
    assert open_source("t.csv", target="p").notes == ()


def test_delimiters_at_the_end_of_lines_are_no_column():
    for first in ("a,b,y,\n", "a,b,y\n", ""):
        path = write("t.csv", first + "1,2,red,\n3,4,blue,\n" * 9)
        assert (open_source(path).n_features, set(read(path)[1])) == (2, {"red", "blue"})
    names = write("t.csv", '"a" "b" "y"\n' + '"1" 1 2 "red"\n"2" 3 4 "blue"\n' * 9)  # as R writes them
    assert (open_source(names).feature_names, open_source(names).target) == (("a", "b"), "y")


BIG = 2**60 + np.arange(300)


@pytest.mark.parametrize(
    ("name", "options"),
    [("t.csv", {}), ("t.csv", {"skipped": SkippedRows()}), ("t.csv", {"target": "k"}), ("t.csv.gz", {})]
    + [("t.parquet", {}), ("t.parquet", {"target": "k"}), ("whole.parquet", {}), ("t.npz", {})],
)
def test_whole_numbers_that_float64_rounds_are_refused_and_are_exact_ids(name, options, refused, load):
    frame = pd.DataFrame({"u": X[:, 0], "k": BIG, "y": Y})
    if name.endswith("npz"):
        np.savez(name, x=X, y=BIG)
    elif name.endswith("parquet"):
        (frame if name[0] == "t" else frame[["k", "y"]]).to_parquet(name)
    else:
        pd.concat([frame.assign(k=Y)] * 30 + [frame]).to_csv(name, index=False)
    message = refused(name, **options)
    assert f"column '{'y' if 'npz' in name else 'k'}': expected whole numbers below 2⁵³" in message
    if name != "whole.parquet" and "npz" not in name and "skipped" not in options:
        assert int(load(Path(name), id="k", target="y").column("id")[-1]) == BIG[-1]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_groups_are_numbers_or_hashes_of_names(name, load):
    who = ["7", "ann", "7", "bob"]
    content = table(X[:4], who=who, y=[0, 1, 1, 0])
    if name == "t.csv":
        content = "f,who,y\n" + "".join(f"1,{one},{y}\n" for one, y in zip(who, [0, 1, 1, 0], strict=True))
    group = load(write(name, content), group="who").column("group")
    assert (group[0], group[2], len(set(group.tolist()))) == (7, 7, 3)
    assert group[1] == int.from_bytes(hashlib.blake2b(b"ann", digest_size=8).digest(), "big") >> 1


def test_rows_have_the_requested_dtype_or_are_refused(refused):
    assert next(open_source(write("a.npz", {"x": X.round()[:3] + 9}), dtype="uint8").blocks())[0].dtype == np.uint8
    for value, dtype in [(0.5, "uint8"), (256.0, "uint8"), (1e300, "float32")]:
        message = refused(write("a.npz", {"x": np.array([[0.0], [value]])}), dtype=dtype)
        assert f"row 1 (from 0), column 0: expected {dtype}, found {value}" in message
    for dtype in ("complex64", "nonsense", "U3"):
        with pytest.raises(ConfigError, match="dtype: expected"):
            open_source("a.npz", dtype=dtype)


def test_memory_does_not_grow_with_the_file():
    paths = [write(f"{n}.csv", "0.25,0.5,0.75,1\n" * n) for n in (800_000, 1_500_000)]
    (rows, least), (more_rows, most) = reading_peaks(*paths, read_bytes=2**18)
    assert (rows, more_rows) == (800_000, 1_500_000)
    assert most < 1.1 * least


# ---- the real files


def test_mnist(data_file, load):
    counts = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    corpus = load(data_file("t10k-images-idx3-ubyte.gz"))
    assert (corpus.shape, corpus.info.image_shape) == ((sum(counts), 784), (28, 28))
    assert np.bincount(corpus.column("y")).tolist() == counts


# ---- bad files


def cut(path, share=0.6):
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[: int(len(content) * share)])
    return path


def damaged(path, place):
    content = bytearray(Path(path).read_bytes())
    content[place] ^= 0x41
    Path(path).write_bytes(content)
    return path


def npy_head(descr, shape=(3, 2), order=False):
    text = repr({"descr": descr, "fortran_order": order, "shape": shape}).encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text


def zipped(head):
    with zipfile.ZipFile("bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", head + bytes(48))
    return Path("bomb.npz")


PAIR = {"x": X, "y": Y}
HUGE = struct.pack(">BBBB3I", 0, 0, 8, 3, 2**31, 2**10, 2**10)
HOLED = [None if row == 211 else row for row in range(300)]
TWICE = pa.Table.from_arrays([pa.array(X[:, 0])] * 3, names=["a", "a", "y"])
# case -> (a function that writes the file, text of the message, options if any)
BAD = {
    # truncated
    "idx cut": (lambda: cut(write("m", idx(PIXELS))), "truncated: header claims 30 × 4 × 3 values"),
    "idx.gz cut": (lambda: cut(write("m.gz", gzip.compress(idx(PIXELS)))), "truncated: the compressed data end early"),
    "idx.gz damaged": (lambda: damaged(write("m.gz", gzip.compress(idx(PIXELS))), 200), "cannot be read"),
    "idx too long": (lambda: write("m", idx(PIXELS) + b"more"), "trailing bytes"),
    "idx.gz too long": (lambda: write("m.gz", gzip.compress(idx(PIXELS) + b"more")), "trailing bytes after 30"),
    "npy cut": (lambda: cut(write("m.npy", npy_head("<f8") + bytes(48)), 0.95), "truncated: header claims"),
    "npz cut": (lambda: cut(write("m.npz", PAIR)), "expected a complete .npz archive"),
    "npz damaged": (lambda: damaged(write("m.npz", PAIR), 900), "cannot be read"),
    "parquet cut": (lambda: cut(write("t.parquet", table(y=Y))), "cannot be read as a table of numbers"),
    "csv.gz cut": (lambda: cut(write("t.csv.gz", gzip.compress(lines().encode()))), "truncated: the compressed"),
    # wrong magic
    "idx magic": (lambda: write("m.idx", b"\0\1\x08\3" + bytes(20)), "expected an IDX magic"),
    "idx dimensions": (lambda: write("m", idx(PIXELS[..., None])), "expected 2 or 3 dimensions"),
    "npy magic": (lambda: write("m.npy", b"\x93NUMBY\1\0" + bytes(90)), ".npy header cannot be read"),
    "no format": (lambda: write("notes.xyz", b"\x7fELF"), "7f 45 4c 46"),
    # absurd sizes, bombs
    "idx sizes": (lambda: write("m", HUGE), "truncated"),
    "idx.gz sizes": (lambda: write("m.gz", gzip.compress(HUGE)), "more than"),
    "npy sizes": (lambda: write("m.npy", npy_head("<f8", (2**40, 2**20)) + bytes(48)), "truncated"),
    "npy too wide": (lambda: write("m.npy", npy_head("<f8", (0, 2**30))), "at least one row"),
    "npz bomb": (lambda: zipped(npy_head("<f8", (2**30, 2**10))), "but the archive holds"),
    "csv too wide": (lambda: write("t.csv", "1" + ",1" * 2**18 + "\n"), "at most 131,072 columns, found 262,145"),
    # no pickle
    "npy objects": (lambda: write("m.npy", npy_head("|O", (3,)) + b"\x80\4"), "expected numbers (n, d) or"),
    "npz objects": (lambda: write("m.npz", {"x": X, "y": np.array([{}] * 300)}), "no vector of 300 labels"),
    # NaN, infinity
    "csv NaN": (lambda: write("t.csv", "1,2,0\n3,nan,1\n"), "in x, the first are [1]"),
    "parquet infinity": (lambda: write("t.parquet", table(np.where(X[123, 1] == X, np.inf, X), y=Y)), "[123]"),
    "npz NaN": (lambda: write("m.npz", {"x": np.where(X[7, 1] == X, np.nan, X), "y": Y}), "the first are [7]"),
    "parquet null": (lambda: write("t.parquet", table(a=pa.array(HOLED), y=Y)), "row 211 (from 0), column 'a': miss"),
    "parquet rounding": (
        lambda: write("t.parquet", table(id=np.full(300, 2**60 + 1), y=Y)),
        "row 0 (from 0), column 'id': expected whole numbers below 2⁵³, which float64 holds, found 1152921504606846977",
    ),
    # ragged rows, text, labels
    "csv ragged": (lambda: write("t.csv", "a,b\n1,2\n3\n"), "row 1 (from 0): Expected 2 columns, got 1"),
    "csv text": (
        lambda: write("t.csv", "a,b,y\n1,7,0\n2,Bonn,1\n"),
        "In column 'b': row 1 (from 0): CSV conversion error",
    ),
    "csv not true": (
        lambda: write("t.csv", "a,y\n" + "True,0\n" * 60 + "yes,0"),
        "'a': row 60 (from 0): CSV conversion",
    ),
    "csv empty cells": (lambda: write("t.csv", "a,b,y\n1,,0\n,,1"), "row 0 (from 0), columns 'a', 'b': missing values"),
    "csv thousands": (lambda: write("t.csv", "1,512;0\n2,500;1\n"), "'column 0': row 0 (from 0)|set --decimal ,"),
    "csv decimals": (lambda: write("t.csv", "1,5;0\n2,5;1\n"), "set --decimal ,", {"delimiter": ";", "decimal": "."}),
    "csv two decimals": (lambda: write("t.csv", "1,5;0\n2,5;1\n3,5;1\n2.5;1\n"), "row 3 (from 0)"),
    "csv labels in thousands": (lambda: write("t.csv", "0.5;1,234\n2.5;a\n"), "the label '1,234' among names"),
    "csv mixed labels": (lambda: write("t.csv", "1,a\n2,7\n"), "row 1 (from 0): found the label '7' among"),
    "csv not UTF-8": (lambda: write("t.csv", b"1,a\n2,\xff\n"), "line 2: not UTF-8"),
    "csv NUL": (lambda: write("t.csv", b"1,a\n2,\0\n"), "line 2: found a NUL character"),
    "csv one column": (lambda: write("t.csv", "1\n2\n"), "expected several columns, found 1 in line 1, '1'"),
    "parquet text": (lambda: write("t.parquet", table(city=["Ulm"] * 300, y=Y)), "leave them out (--drop city)"),
    **{
        f"parquet long {role}": (
            lambda: write("t.parquet", table(city=["Ulm" * 2000] * 300, y=Y)),
            "texts of at most 4,096 bytes, found one of 6,000",
            {role: "city"},
        )
        for role in ("target", "group", "id")
    },
    "csv long name": (lambda: write("t.csv", "a,b\n1,x\n2," + "y" * 5000 + "\n"), "at most 4,096 bytes"),
    "csv columns of text": (lambda: write("t.csv", "a b,c,d,y\nno,5,?,0\n,6,yes,1\n"), "(--drop 'a b' --drop d)"),
    # empty
    "csv prose": (lambda: write("t.csv", "By hand\n\na,b,y\n" + "1,2,0\n" * 9), "found 1 in line 1, 'By hand'"),
    "csv prose with commas": (lambda: write("t.csv", "By, hand\na,b,y\n" + "1,2,0\n" * 9), "line 1, 'By,hand'"),
    "csv long row": (lambda: write("t.csv", "a,b,y\n" + f'1,"{"z" * 10**6}",0\n' * 3), "256 kB", {"drop": ["b"]}),
    "zip of two": (
        lambda: write("t.csv", zipped_text(b"1,2\n", "a", "b")),
        "expected one file in a compressed archive",
    ),
    "hdf5": (lambda: write("t.h5", b"\x89HDF\r\n\x1a\n"), "found HDF5 or NetCDF; convert it"),
    "feather": (lambda: write("t.csv", b"ARROW1\0\0"), "found Feather"),
    "json": (lambda: write("t.csv", '[{"a": 1}]'), "found JSON"),
    "web page": (lambda: write("t.csv", "<!DOCTYPE html>"), "found a web page"),
    "tar": (lambda: write("t.csv.gz", gzip.compress(bytes(257) + b"ustar")), "an archive"),
    "csv empty": (lambda: write("t.csv", ""), "at least one row, found an empty file"),
    "csv header alone": (lambda: write("t.csv", "a,b\n"), "at least one row|no table in text"),
    "idx empty": (lambda: write("m", idx(PIXELS[:0])), "at least one row, found shape (0, 4, 3)"),
    "npy empty": (lambda: write("m.npy", npy_head("<f8", (0, 2))), "at least one row"),
    # columns and arrays
    "csv twice": (lambda: write("t.csv", "a,a,y\n1,2,0\n"), "two columns are named 'a'"),
    "parquet twice": (lambda: write("t.parquet", TWICE), "two columns are named 'a'"),
    "no such column": (lambda: write("t.csv", "a,b,y\n1,2,0\n"), "no column 'z' for the target", {"target": "z"}),
    "no such position": (lambda: write("t.csv", "a,b,y\n1,2,0\n"), "the columns are 0 to 2", {"target": 3}),
    "one for both": (
        lambda: write("t.csv", "a,b,y\n1,2,0\n"),
        "is two of target, group and id",
        {"group": "y", "target": "y"},
    ),
    "npz without x": (lambda: write("m.npz", {"a": Y}), "no matrix for x among a (300)"),
    "npz without y": (lambda: write("m.npz", {"x": X, "b": X}), 'pass y=NAME, or y="none"'),
    "npz labels": (lambda: write("m.npz", {"x": X, "y": Y[1:]}), "expected 300 labels to match"),
    "idx labels": (
        lambda: (write("images-idx3-ubyte", idx(PIXELS)), write("labels-idx1-ubyte", idx(PIXELS[:29, 0, 0])))[1],
        *("expected 30 labels to match", {"path": "images-idx3-ubyte"}),
    ),
    "files differ": (
        lambda: (write("rows/1.parquet", table(y=Y)), write("rows/2.parquet", table(z=Y)))[1],
        *("expected the columns of", {"path": "rows"}),
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_by_name_and_leaves_nothing(case, refused):
    make, expected, *options = BAD[case]
    message = refused(**{"path": make(), **dict(*options)})
    assert any(text in message for text in expected.split("|")), message
    assert not [name for name in Path().iterdir() if "refused" in name.name]


@pytest.mark.parametrize("name", ["t.parquet", "m.npz"])
def test_a_file_cut_anywhere_is_refused(name, refused):
    whole = write(name, table(X[:4], y=Y[:4]) if name == "t.parquet" else {"x": X[:4], "y": Y[:4, None]}).read_bytes()
    for length in range(1, len(whole), 37):
        refused(write(name, whole[:length]), format=Path(name).suffix[1:])


def test_paths_and_options_that_cannot_be_opened_are_refused(tmp_path):
    write("t.csv", "1,2\n")
    for path, options, expected in [
        (tmp_path / "absent", {}, "no such file"),
        (tmp_path, {}, "expected a file, or a folder of Parquet files"),
        (tmp_path / "t.csv", {"format": "xls"}, f"unknown format 'xls'; expected one of {', '.join(FORMATS)}"),
        (tmp_path / "t.csv", {"format": "zarr"}, "expected a folder for format 'zarr', found a file"),
    ]:
        with pytest.raises(DataError, match=expected) as caught:
            open_source(path, **options)
        assert str(path) in str(caught.value)
    with pytest.raises(ConfigError, match="x: unknown option of format 'csv', which has target, group, id, drop"):
        open_source("t.csv", x="x")
    with pytest.raises(ConfigError, match="delimiter: expected"):
        open_source("t.csv", delimiter="::")


@pytest.mark.parametrize("module, name", [("pyarrow.csv", "t.csv"), ("pyarrow.parquet", "t.parquet")])
def test_a_missing_library_is_refused_with_the_extra_to_install(monkeypatch, module, name):
    path = write(name, table(y=Y) if name == "t.parquet" else "1,2\n")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r'pip install "bigkernel\[data\]"'):
        list(open_source(path).batches())


def test_a_row_group_far_larger_than_its_file_is_refused(monkeypatch):
    pq.write_table(table(np.zeros((20_000, 4))), "t.parquet", use_dictionary=False, compression="zstd")
    assert open_source("t.parquet").n_rows == 20_000
    monkeypatch.setattr("bigkernel.data.readers.tables._GROUP_BYTES", 1000)
    monkeypatch.setattr("bigkernel.data.readers.source.DEFLATE_RATIO", 20)
    with pytest.raises(DataError, match=r"row group of .* bytes in a file of .*smaller row groups"):
        open_source("t.parquet")
