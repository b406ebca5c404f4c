"""MATLAB files: written by scipy.io.savemat, cut at every byte, and the two digit files."""

import gzip
import io
import struct
import subprocess
import zlib

import numpy as np
import pytest
import scipy.io

from bigkernel.data.readers import mat, mat_process, open_source
from bigkernel.errors import DataError

X = np.random.default_rng(0).normal(size=(12, 5))
Y = np.arange(12) % 3 + 1


@pytest.fixture
def apart():
    """Start the process of `scipy.io` as an ingest does; without, it works in the tests' own, to save their time."""


@pytest.fixture(autouse=True)
def here(request, monkeypatch):
    def run(task, content, memory_bytes):
        out = io.BytesIO()
        try:
            mat_process.answer(task, content, out)
        except SystemExit as error:
            return subprocess.CompletedProcess([], 1, b"", str(error).encode())
        return subprocess.CompletedProcess([], 0, out.getvalue(), b"")

    if "apart" not in request.fixturenames:
        monkeypatch.setattr(mat, "_run", run)


@pytest.fixture
def saved(tmp_path):
    """Write variables as a MATLAB file."""

    def write(variables, name="m.mat", **options):
        scipy.io.savemat(tmp_path / name, variables, **options)
        return tmp_path / name

    return write


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("across", [False, True])
def test_the_largest_matrix_and_the_fitting_vector_are_found(saved, load, compressed, across):
    y = Y[None] if across else Y[:, None]
    path = saved({"small": np.ones((2, 2)), "gnd": y, "fea": X, "note": "text"}, do_compression=compressed)
    corpus = load(path)
    assert np.array_equal(corpus.array("x")[:], X)
    assert np.array_equal(corpus.column("y"), Y)
    assert (corpus.info.classes, corpus.info.image_shape, corpus.dtype) == ((1, 2, 3), None, "float64")


def test_variables_can_be_named_and_labels_declined(apart, saved, load, tmp_path):
    path = saved({"a": X, "b": X[:, :4] + 1, "y1": Y[:, None], "y2": 1.5 * Y[:, None]})
    corpus = load(path, x="b", y="y2")
    assert np.array_equal(corpus.array("x")[:], X[:, :4] + 1)
    assert np.array_equal(corpus.column("y"), 1.5 * Y)
    source = open_source(path, y="none")
    assert not source.labelled
    assert [(x.shape, y) for x, y in source.blocks()] == [((12, 5), None)]


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "float32", "float64", "bool"])
def test_every_numeric_class_keeps_its_values(saved, load, dtype):
    values = np.random.default_rng(0).integers(0, 2, (9, 64)).astype(dtype)
    corpus = load(saved({"x": values, "y": np.arange(9)[:, None]}))
    assert np.array_equal(corpus.array("x")[:], values)
    assert corpus.info.image_shape == (8, 8)
    assert corpus.info.scale == (255.0 if dtype == "uint8" else 1.0)


@pytest.mark.parametrize(
    ("variables", "options", "expected"),
    [
        ({"x": X, "z": X + 1, "y": Y[:, None]}, {}, "equally large matrices x, z for x; it holds x (12×5 double)"),
        ({"x": X, "y": Y[:, None], "d": Y[:, None]}, {}, "several vectors of 12 labels (y, d)"),
        (
            {"x": X, "y": Y[:11, None]},
            {},
            "no vector of 12 labels for the rows of 'x'; it holds x (12×5 double), y (11×1",
        ),
        ({"x": X.T, "y": Y[:, None]}, {}, "if the samples are the columns of 'x', save its transpose"),
        ({"x": X, "y": Y[:, None]}, {"x": "fts"}, "no matrix of numbers 'fts' for x; it holds x (12×5 double)"),
        ({"x": X, "y": Y[:, None]}, {"y": "gnd"}, "no vector of 12 labels named 'gnd'"),
        (
            {"s": {"x": X}, "c": np.array([X, "a"], dtype=object)},
            {},
            "no matrix of numbers for x; it holds s (1×1 struct)",
        ),
        ({"x": X + 1j, "y": Y[:, None]}, {}, "expected real numbers, found complex ones in x (12×5 double)"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_the_file_holds(saved, refused, variables, options, expected):
    assert expected in refused(saved(variables), **options)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_a_file_cut_short_at_any_byte_is_refused_with_its_size(saved, refused, compressed, packed):
    path = saved({"x": X[:3, :2], "y": Y[:3, None]}, do_compression=compressed)
    whole = path.read_bytes()
    whole = gzip.compress(whole) if packed else whole
    for length in range(1, len(whole), 7 if packed else 5):
        path.write_bytes(whole[:length])
        message = refused(path, format="mat")
        assert "byte" in message or "no vector of 3 labels" in message  # cut between two variables
    if not packed:
        path.write_bytes(whole[:-5])
        message = refused(path)
        assert f"ends at byte {len(whole) - 5}" in message
        assert f"byte {len(whole)} at least" in message


def test_a_damaged_byte_is_refused_or_harmless(saved):
    path = saved({"x": X, "y": Y[:, None]}, do_compression=True)
    whole = path.read_bytes()
    outcomes = []
    for place in range(128, len(whole), 3):
        damaged = bytearray(whole)
        damaged[place] ^= 0x41
        path.write_bytes(bytes(damaged))
        try:
            source = open_source(path)
            rows = np.concatenate([x for x, _ in source.blocks()])
        except DataError:
            outcomes.append("refused")
        else:
            outcomes.append("same" if np.array_equal(rows, X) else "other")
    assert set(outcomes) <= {"refused", "same"}  # "same": bytes that say nothing about the numbers
    assert outcomes.count("refused") > len(outcomes) / 2


@pytest.mark.parametrize("compressed", [False, True])
def test_a_type_that_crashes_scipy_is_refused(apart, saved, refused, compressed):
    """One byte that numbers an unknown storage type: scipy 1.17 reads past its table and dies."""
    path = saved({"x": X, "y": Y[:, None]}, do_compression=compressed)
    whole = bytearray(path.read_bytes())
    if compressed:
        length = int.from_bytes(whole[132:136], "little")
        inner = bytearray(zlib.decompress(bytes(whole[136 : 136 + length])))
        inner[48] = 200  # matrix tag 8, flags 16, dimensions 16, name 8
        packed = zlib.compress(bytes(inner))
        path.write_bytes(bytes(whole[:132]) + len(packed).to_bytes(4, "little") + packed + bytes(whole[136 + length :]))
    else:
        whole[128 + 48] = 200
        path.write_bytes(bytes(whole))
    assert "damaged: x (12×5 double) at byte 128: scipy.io crashed over it (SIGSEGV)" in refused(path)


def test_big_endian_files_and_short_elements_are_read(tmp_path, load):
    def variable(name, code, shape, stored, values):
        data = np.asarray(values).astype(">" + stored).tobytes(order="F")
        kind = {"u1": 2, "f8": 9}[stored]
        short = len(data) <= 4
        body = struct.pack(">4I", 6, 8, code, 0) + struct.pack(">2I2i", 5, 8, *shape)
        body += struct.pack(">2H4s", len(name), 1, name)
        body += struct.pack(">2H4s", len(data), kind, data) if short else struct.pack(">2I", kind, len(data)) + data
        return struct.pack(">2I", 14, len(body)) + body

    x = np.arange(6.0).reshape(3, 2)
    content = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x01\x00MI"
    content += variable(b"x", 6, (3, 2), "f8", x) + variable(b"y", 6, (3, 1), "u1", [7, 9, 7])
    (tmp_path / "m.mat").write_bytes(content)
    oracle = scipy.io.loadmat(tmp_path / "m.mat")
    assert np.array_equal(oracle["x"], x)
    corpus = load(tmp_path / "m.mat")
    assert np.array_equal(corpus.array("x")[:], x)
    assert corpus.column("y").tolist() == [7, 9, 7]


@pytest.mark.parametrize(
    ("place", "value", "expected"),
    [
        (0, 3, "the variable that begins at byte 128: Expecting miMATRIX type here, got 3"),
        (24, 9, "the variable that begins at byte 128: Expecting miINT32 as data type"),
        (35, 255, "the variable that begins at byte 128: impossible dimensions (-16777204, 5)"),
        (35, 127, "the variable that begins at byte 128: x (2130706444×5 double) of 85228257760 bytes, more than its"),
        (40, 9, "the variable that begins at byte 128: Expecting miINT8 as data type"),
        (42, 5, "the variable that begins at byte 128: Error in SDE format data"),
        (32, 13, "x (13×5 double) at byte 128: cannot reshape array of size 60 into shape (5,13)"),
        (16, 9, "x (12×5 uint8) at byte 128: it is stored as float64 of shape (12, 5)"),
        (50, 1, "x (12×5 double) at byte 128: cannot reshape array of size 0 into shape (5,12)"),
    ],
)
def test_a_damaged_head_is_refused_by_what_it_says(saved, refused, place, value, expected):
    path = saved({"x": X, "y": Y[:, None]})
    whole = bytearray(path.read_bytes())
    whole[128 + place] = value
    path.write_bytes(bytes(whole))
    assert expected in refused(path, y="none")


def test_a_variable_that_asks_for_more_memory_than_it_may_hold_is_refused(apart, saved, refused):
    path = saved({"x": X})
    whole = bytearray(path.read_bytes())
    whole[128 + 55] = 127  # 2 GiB of data, by the tag of the real part
    path.write_bytes(bytes(whole))
    assert "x (12×5 double) at byte 128: it asks for more memory than its values can take" in refused(path, y="none")


def test_more_variables_than_are_looked_at_are_refused_while_the_file_is_walked(tmp_path, refused):
    header = b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\1IM"
    (tmp_path / "m.mat").write_bytes(gzip.compress(header + struct.pack("<2I", 14, 0) * 10**6))
    assert "byte 131200: more than 16,384 variables" in refused(tmp_path / "m.mat")


def test_a_variable_that_takes_too_long_is_refused(apart, saved, refused, monkeypatch):
    monkeypatch.setattr("bigkernel.data.readers.mat._SPARE_SECONDS", -300)
    assert "x.mat: damaged: the variable that begins at byte 128: nothing after" in refused(saved({"x": X}, "x.mat"))


@pytest.mark.parametrize(
    "content, expected",
    [
        (b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(600), "7.3 (HDF5).*'-v7'"),
        (b"\x89HDF\r\n\x1a\n".ljust(600), "7.3 (HDF5).*'-v7'"),
        (b"anything else", "expected the 128-byte header of a MATLAB 5.0 file, found 13 bytes"),
    ],
)
def test_what_is_no_matlab_file_of_version_5_is_refused_with_the_remedy(tmp_path, refused, content, expected):
    path = tmp_path / "m.mat"
    path.write_bytes(content)
    message = refused(path)
    assert all(words in message for words in expected.split(".*"))


@pytest.mark.parametrize(
    ("name", "counts", "largest"),
    [
        ("digits16_MNIST_2000.mat", [196, 227, 207, 202, 196, 179, 191, 206, 195, 201], 0.99609375),
        ("digits16_USPS_1800.mat", [352, 241, 165, 166, 166, 126, 139, 172, 129, 144], 0.9999895),
    ],
)
def test_the_digit_pair_has_its_counts_and_range(data_file, load, name, counts, largest):
    corpus = load(data_file(name))
    x, y = corpus.array("x")[:], corpus.column("y")
    assert np.bincount(y)[1:].tolist() == counts
    assert corpus.info.classes == tuple(range(1, 11))
    assert (corpus.shape, corpus.info.image_shape, corpus.info.scale) == ((sum(counts), 256), (16, 16), 1.0)
    assert x.min() == 0
    assert x.max() == pytest.approx(largest, abs=1e-7)
    oracle = scipy.io.loadmat(data_file(name))
    assert np.array_equal(x, oracle["fts"])
    assert np.array_equal(y, oracle["labels"].ravel())
