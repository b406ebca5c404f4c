"""IDX files: made with struct, damaged at every byte, and MNIST itself."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bigkernel.data.convert import ingest
from bigkernel.data.corpus import open_corpus
from bigkernel.data.readers import open_source
from bigkernel.errors import DataError

TRAIN_COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
TEST_COUNTS = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def idx(values: np.ndarray, code: int = 0x08) -> bytes:
    head = struct.pack(f">BBBB{values.ndim}I", 0, 0, code, values.ndim, *values.shape)
    return head + values.astype(values.dtype.newbyteorder(">")).tobytes()


IMAGES = np.random.default_rng(1).integers(0, 256, (7, 3, 5), dtype=np.uint8)
LABELS = np.array([3, 1, 2, 1, 3, 2, 1], np.uint8)


@pytest.fixture(params=["plain", "gzip", "dotted"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """Images and labels, named so that they find each other."""
    gap, ending = (".", "") if request.param == "dotted" else ("-", ".gz" if request.param == "gzip" else "")
    images, labels = (tmp_path / f"train-{what}{gap}idx{n}-ubyte{ending}" for what, n in (("images", 3), ("labels", 1)))
    pack = gzip.compress if ending else bytes
    images.write_bytes(pack(idx(IMAGES)))
    labels.write_bytes(pack(idx(LABELS)))
    return images, labels


def test_rows_labels_and_picture_shape_come_through_unchanged(pair, load):
    source = open_source(pair[0])
    assert (source.format, source.n_rows, source.n_features, source.labelled) == ("idx", 7, 15, True)
    corpus = load(pair[0])
    assert np.array_equal(corpus.array("x")[:], IMAGES.reshape(7, 15))
    assert np.array_equal(corpus.column("y"), LABELS)
    assert (corpus.dtype, corpus.column("y").dtype) == ("uint8", np.int64)
    assert (corpus.info.image_shape, corpus.info.scale, corpus.info.classes) == ((3, 5), 255.0, (1, 2, 3))
    assert [step[:1] for step in corpus.check()] == [("x",), ("y",)]


def test_labels_of_another_name_are_given_or_declined(pair, load, tmp_path):
    images, labels = pair[0].rename(tmp_path / "a.idx"), pair[1].rename(tmp_path / "b.idx")
    assert not open_source(images).labelled
    assert np.array_equal(load(images, labels=labels).column("y"), LABELS)
    assert ingest(open_source(images, labels="none"), tmp_path / "bare").columns == ()


@pytest.mark.parametrize(
    ("code", "dtype"), [(0x08, "u1"), (0x09, "i1"), (0x0B, "i2"), (0x0C, "i4"), (0x0D, "f4"), (0x0E, "f8")]
)
def test_every_type_code_is_read_in_native_byte_order(tmp_path, load, code, dtype):
    values = np.array([[1, 2, 3], [100, 5, 6]], dtype)
    (tmp_path / "m").write_bytes(idx(values, code))
    corpus = load(tmp_path / "m")
    assert corpus.dtype == np.dtype(dtype).name
    assert np.array_equal(corpus.array("x")[:], values)
    assert corpus.info.scale == (255.0 if dtype == "u1" else 1.0)
    assert corpus.info.image_shape is None


def test_large_files_stream_in_blocks_that_join_to_the_whole(tmp_path):
    values = np.random.default_rng(0).integers(0, 256, (10_001, 4, 4), dtype=np.uint8)
    (tmp_path / "m.idx").write_bytes(idx(values))
    blocks = [x for x, _ in open_source(tmp_path / "m.idx").blocks()]
    assert [len(x) for x in blocks] == [4096, 4096, 1809]
    assert np.array_equal(np.concatenate(blocks), values.reshape(-1, 16))


@pytest.mark.parametrize("which", [0, 1])
def test_a_file_cut_short_at_any_byte_is_refused_and_nothing_is_left(pair, refused, tmp_path, which):
    whole = pair[which].read_bytes()
    for length in range(len(whole)):
        pair[which].write_bytes(whole[:length])
        with pytest.raises(DataError) as caught:
            ingest(open_source(pair[0]), tmp_path / "corpus")
        assert str(pair[which]) in str(caught.value)
        assert "byte" in str(caught.value)
        assert not (tmp_path / "corpus").exists()


def test_truncation_names_the_byte_where_the_content_ends_and_where_it_should(tmp_path, refused):
    whole = idx(IMAGES)
    (tmp_path / "a.idx").write_bytes(whole[:100])
    message = refused(tmp_path / "a.idx")
    assert "ends at byte 100" in message
    assert f"byte {len(whole)}" in message
    (tmp_path / "b.idx").write_bytes(gzip.compress(whole[:100]))
    message = refused(tmp_path / "b.idx")
    assert "ends at byte 100" in message
    assert f"byte {len(whole)}" in message
    (tmp_path / "c.idx").write_bytes(whole + b"!")
    assert (
        f"trailing bytes: its header claims 7 × 3 × 5 values of 1 bytes from byte 16 on, to end at byte {len(whole)}"
        in (refused(tmp_path / "c.idx"))
    )
    (tmp_path / "d.idx").write_bytes(gzip.compress(whole + b"!"))
    assert f"trailing bytes: by its header the content ends at byte {len(whole)}" in refused(tmp_path / "d.idx")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10**6), bit=st.integers(0, 7), which=st.integers(0, 1))
def test_a_flipped_bit_in_gzip_data_is_refused_or_harmless(tmp_path_factory, place, bit, which):
    folder = tmp_path_factory.mktemp("flip")
    files = [folder / "train-images-idx3-ubyte.gz", folder / "train-labels-idx1-ubyte.gz"]
    for path, values in zip(files, (IMAGES, LABELS), strict=True):
        path.write_bytes(gzip.compress(idx(values)))
    damaged = bytearray(files[which].read_bytes())
    damaged[place % len(damaged)] ^= 1 << bit
    files[which].write_bytes(bytes(damaged))
    try:
        corpus = ingest(open_source(files[0], format="idx"), folder / "corpus")
    except DataError as error:
        message = str(error)
    else:
        message = ""
    if message:
        assert str(files[which]) in message
        assert not (folder / "corpus").exists()
    else:  # a bit of the gzip header that means nothing for the content
        assert np.array_equal(corpus.array("x")[:], IMAGES.reshape(7, 15))
        assert np.array_equal(corpus.column("y"), LABELS)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"\x00\x01\x08\x03" + bytes(40), "byte 0: expected an IDX magic"),
        (b"\x00\x00\x0a\x03" + bytes(40), "found 00 00 0a 03"),
        (struct.pack(">4B", 0, 0, 8, 1) + bytes(40), "byte 3: expected 2 or 3 dimensions for images"),
        (struct.pack(">4B4I", 0, 0, 8, 4, 1, 1, 1, 1) + bytes(1), "byte 3: expected 2 or 3 dimensions"),
        (struct.pack(">4B3I", 0, 0, 8, 3, 0, 4, 4), "byte 4: dimension 0 is 0"),
        (struct.pack(">4B3I", 0, 0, 8, 3, 4, 4, 0), "byte 12: dimension 2 is 0"),
        (struct.pack(">4B3I", 0, 0, 8, 3, *(2**32 - 1,) * 3) + bytes(9), "ends at byte 25"),
        (gzip.compress(struct.pack(">4B3I", 0, 0, 14, 3, *(2**32 - 1,) * 3), mtime=0), "compressed bytes can hold"),
        (
            gzip.compress(struct.pack(">4B2I", 0, 0, 8, 2, 1, 2**24 + 1) + bytes(2**24 + 1), mtime=0),
            "1 to 16,777,216 features",
        ),
        (b"", "byte 0"),
    ],
)
def test_a_head_that_makes_no_sense_is_refused_by_byte_before_anything_is_allocated(tmp_path, refused, head, expected):
    (tmp_path / "bad.idx").write_bytes(head)
    assert expected in refused(tmp_path / "bad.idx", format="idx")


def test_labels_that_are_not_a_pair_with_the_images_are_refused(pair, tmp_path):
    pair[1].write_bytes(idx(LABELS[:-1]))
    with pytest.raises(DataError, match=r"byte 4: 6 labels, but .* has 7 images"):
        open_source(pair[0])
    with pytest.raises(DataError, match=r"byte 3: expected 1 dimensions for labels \(n,\), found 3"):
        open_source(pair[0], labels=pair[0])
    with pytest.raises(DataError, match="no such file"):
        open_source(pair[0], labels=tmp_path / "absent")


@pytest.mark.parametrize(("name", "counts"), [("train", TRAIN_COUNTS), ("t10k", TEST_COUNTS)])
def test_mnist_has_its_published_counts_and_pixels(data_file, tmp_path, name, counts):
    path = data_file(f"{name}-images-idx3-ubyte.gz")
    steps: list[tuple[int, int | None]] = []
    corpus = ingest(open_source(path), tmp_path / "mnist", progress=lambda *step: steps.append(step))
    y = corpus.column("y")
    assert np.bincount(y).tolist() == counts
    assert corpus.info.classes == tuple(range(10))
    assert (corpus.shape, corpus.dtype, corpus.info.image_shape, corpus.info.scale) == (
        (sum(counts), 784),
        "uint8",
        (28, 28),
        255.0,
    )
    with gzip.open(path) as content:
        oracle = np.frombuffer(content.read(), np.uint8, offset=16).reshape(-1, 784)
    assert np.array_equal(corpus.array("x")[:], oracle)
    assert steps[-1] == (sum(counts), sum(counts))
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    assert f"{name}-images-idx3-ubyte.gz sha256:" in corpus.info.source
    assert f", {name}-labels-idx1-ubyte.gz sha256:" in corpus.info.source
    assert str(path.parent) not in corpus.info.source
    assert open_corpus(tmp_path / "mnist") == corpus
