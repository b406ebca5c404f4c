"""NumPy's files: written by numpy.save, in both orders, cut at every byte; never pickle."""

from __future__ import annotations

import gzip
import io
import struct

import numpy as np
import pytest

from bigkernel.data.readers import open_source
from bigkernel.errors import DataError

X = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
Y = np.arange(50) % 4


def packed(array: np.ndarray, **options) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("ending", [".npy", ".npy.gz"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", ">i2", "u1", "?"])
def test_rows_in_either_order_are_read_in_native_bytes(tmp_path, load, order, ending, dtype):
    values = np.array((X > 0) * 3, dtype=dtype, order=order)
    path = tmp_path / ("x" + ending)
    path.write_bytes(gzip.compress(packed(values)) if ending.endswith("gz") else packed(values))
    np.save(tmp_path / "labels.npy", Y[:, None])
    corpus = load(path, labels=tmp_path / "labels.npy")
    assert np.array_equal(corpus.array("x")[:], values)
    assert np.array_equal(corpus.column("y"), Y)
    assert (corpus.info.classes, corpus.info.name, corpus.info.scale) == ((0, 1, 2, 3), "x", 1.0)
    assert corpus.dtype == (np.dtype(dtype).newbyteorder("=").name if dtype != "?" else "uint8")


def test_three_dimensional_bytes_are_pictures(tmp_path, load):
    values = np.random.default_rng(0).integers(0, 256, (9, 4, 3), dtype=np.uint8)
    for order in "CF":
        path = tmp_path / f"{order}.npy"
        np.save(path, np.asarray(values, order=order))
        source = open_source(path)
        assert (source.image_shape, source.scale, source.n_features, source.labelled) == ((4, 3), 255.0, 12, False)
        assert np.array_equal(np.concatenate([x for x, _ in source.blocks()]), values.reshape(9, 12))


def test_a_vector_is_one_feature(tmp_path, load):
    np.save(tmp_path / "x.npy", X[:, 0])
    assert np.array_equal(load(tmp_path / "x.npy").array("x")[:], X[:, :1])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("names", [("x", "y"), ("X", "labels"), ("data", "target")])
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_archive_streams_rows_and_labels(tmp_path, load, save, names, order):
    save(tmp_path / "a.npz", **{names[0]: np.asarray(X, order=order), names[1]: Y, "other": np.ones(3)})
    corpus = load(tmp_path / "a.npz")
    assert np.array_equal(corpus.array("x")[:], X)
    assert np.array_equal(corpus.column("y"), Y)


def test_archive_arrays_can_be_named_and_labels_declined(tmp_path, load):
    np.savez(tmp_path / "a.npz", rows=X, kind=np.array(["b", "a"])[Y % 2])
    corpus = load(tmp_path / "a.npz", x="rows", y="kind")
    assert corpus.info.classes == ("a", "b")
    assert np.array_equal(corpus.column("y"), 1 - Y % 2)
    assert not open_source(tmp_path / "a.npz", x="rows", y="none").labelled
    np.savez(tmp_path / "b.npz", x=X)
    assert not open_source(tmp_path / "b.npz").labelled


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, order):
    path = tmp_path / "x.npy"
    np.save(path, np.ones((20_000, 64), order=order))
    for content, expected in [(np.ones((20_000, 63)), "it has shape"), (b"nothing", "was it changed meanwhile")]:
        blocks = open_source(path).blocks()
        next(blocks)
        path.write_bytes(content if isinstance(content, bytes) else packed(content))
        with pytest.raises(DataError, match=expected):
            list(blocks)
        np.save(path, np.ones((20_000, 64), order=order))


def test_large_arrays_stream_in_blocks(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(2**20).reshape(-1, 64))
    lengths = [len(x) for x, _ in open_source(tmp_path / "a.npz").blocks()]
    assert sum(lengths) == 2**14
    assert max(lengths) == 2048


@pytest.mark.parametrize(
    ("arrays", "options", "expected"),
    [
        ({"a": X, "b": Y}, {}, "no array x or X or data for x; it holds a, b; give x=NAME"),
        ({"x": X, "X": X}, {}, "more than one of x or X or data for x"),
        ({"x": X, "lab": Y}, {}, 'no array y or labels or target for y; it holds x, lab; give y=NAME, or y="none"'),
        ({"x": X, "y": Y}, {"x": "z"}, "no array 'z' for x"),
        ({"x": X, "y": Y[:49]}, {}, "[y]: expected 50 labels to go with"),
        ({"x": X[:0], "y": Y[:0]}, {}, "no rows: its shape is (0, 6)"),
        ({"x": X[None, None], "y": Y}, {}, "expected numbers of shape (n, d) or (n, height, width)"),
        ({"x": X.astype(str), "y": Y}, {}, "expected numbers of shape (n, d)"),
        ({"x": X + 1j, "y": Y}, {}, "expected an array of numbers, found dtype complex64"),
        ({"x": X[:, :0], "y": Y}, {}, "expected rows of 1 to 16,777,216 features, found 0"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_the_archive_holds(tmp_path, refused, arrays, options, expected):
    np.savez(tmp_path / "a.npz", **arrays)
    assert expected in refused(tmp_path / "a.npz", **options)


def test_objects_are_never_unpickled(tmp_path, refused):
    (tmp_path / "x.npy").write_bytes(packed(np.array([{}, []], dtype=object), allow_pickle=True))
    assert "found dtype object" in refused(tmp_path / "x.npy")
    np.savez(tmp_path / "a.npz", x=np.array([{}, []], dtype=object))
    assert "found dtype object" in refused(tmp_path / "a.npz")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["npy", "npy.gz", "npz"])
def test_a_file_cut_short_at_any_byte_is_refused(tmp_path, refused, order, kind):
    values = np.asarray(X[:5, :3], order=order)
    path = tmp_path / f"x.{kind}"
    if kind == "npz":
        np.savez(path, x=values)
    else:
        path.write_bytes(gzip.compress(packed(values)) if kind == "npy.gz" else packed(values))
    whole = path.read_bytes()
    for length in range(1, len(whole), 4):
        path.write_bytes(whole[:length])
        assert "byte" in refused(path, format=kind[:3])
    if kind == "npy":
        path.write_bytes(whole[:-8])
        assert f"ends at byte {len(whole) - 8}" in refused(path)
        path.write_bytes(whole + b"more")
        assert f"trailing bytes: its header claims shape (5, 3) of float32, to end at byte {len(whole)}" in refused(
            path
        )


def test_a_flipped_bit_in_an_archive_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=X[:5, :3])
    whole = (tmp_path / "a.npz").read_bytes()
    start = whole.index(b"x.npy") + 25
    for place in range(start, start + 60):
        damaged = bytearray(whole)
        damaged[place] ^= 4
        (tmp_path / "a.npz").write_bytes(bytes(damaged))
        with pytest.raises(DataError):
            list(open_source(tmp_path / "a.npz").blocks())


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"\x93NUMPY\x07\x00" + bytes(100), "expected b'\\x93NUMPY' and version 1.0 or 2.0"),
        (b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + bytes(9), "expected 2147483648 bytes got 9"),
        (b"\x93NUMPY\x01\x00" + struct.pack("<H", 9) + b"{'descr':", "byte 19: its .npy header cannot be read"),
    ],
)
def test_a_head_that_makes_no_sense_is_refused(tmp_path, refused, head, expected):
    (tmp_path / "x.npy").write_bytes(head)
    assert expected in refused(tmp_path / "x.npy")


def test_an_absurd_shape_is_refused_before_anything_is_allocated(tmp_path, refused):
    text = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 1000000)}"
    raw = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(64)
    (tmp_path / "x.npy").write_bytes(raw)
    assert f"ends at byte {len(raw)}" in refused(tmp_path / "x.npy")
    (tmp_path / "x.npy").write_bytes(gzip.compress(raw))
    assert "compressed bytes can hold" in refused(tmp_path / "x.npy")
