"""Folders of PNG images: labels from folders, and the images that are refused by name."""

import os
import re
import struct
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from bigkernel.data.readers import open_source
from bigkernel.errors import ConfigError, DataError


@pytest.fixture
def image(tmp_path):
    """Write pixels as FOLDER/NAME.png."""

    def write(name, pixels=None, mode=None, folder="images"):
        path = tmp_path / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.zeros((4, 3), np.uint8) if pixels is None else pixels
        made = Image.fromarray(pixels)
        (made if mode is None else made.convert(mode)).save(path)
        return path

    return write


def grey(value, shape=(4, 3), dtype=np.uint8):
    return np.full(shape, value, dtype)


def test_the_folders_are_the_labels_in_natural_order(image, load, tmp_path):
    for label in ("10", "2", "0"):
        for number in (11, 2):
            image(f"{label}/img{number}.png", grey(int(label) * 20 + number))
    corpus = load(tmp_path / "images")
    assert corpus.array("x")[:, 0].tolist() == [2, 11, 42, 51, 202, 211]
    assert corpus.column("y").tolist() == [0, 0, 2, 2, 10, 10]
    assert (corpus.info.classes, corpus.info.image_shape, corpus.info.scale) == ((0, 2, 10), (4, 3), 255.0)
    assert (corpus.dtype, corpus.info.source[:24]) == ("uint8", "images (6 files) sha256:")


def test_blocks_are_cut_to_their_size(image, tmp_path, monkeypatch):
    for number in range(25):
        image(f"{number % 2}/{number}.png", grey(number))
    monkeypatch.setattr("bigkernel.data.readers.source.BLOCK_BYTES", 12 * 7)
    blocks = list(open_source(tmp_path / "images").blocks())
    assert [len(x) for x, _ in blocks] == [7, 7, 7, 4]
    assert np.concatenate([x[:, 0] for x, _ in blocks]).tolist() == [*range(0, 25, 2), *range(1, 25, 2)]


def test_named_folders_are_named_classes_and_rows_are_read_along_the_lines(image, load, tmp_path):
    pixels = np.arange(12, dtype=np.uint8).reshape(4, 3)
    image("dog/a.png", pixels)
    image("cat/b.PNG", pixels + 1)
    (tmp_path / "images" / ".DS_Store").touch()
    corpus = load(tmp_path / "images")
    assert corpus.array("x")[:].tolist() == [(pixels + 1).ravel().tolist(), pixels.ravel().tolist()]
    assert (corpus.info.classes, corpus.column("y").tolist()) == (("cat", "dog"), [0, 1])


def test_images_without_folders_have_no_labels(image, load, tmp_path):
    image("1.png")
    assert load(tmp_path / "images").columns == ()


def test_sixteen_bits_stay_sixteen(image, load, tmp_path):
    pixels = np.array([[0, 1], [256, 65535]], np.uint16)
    image("1.png", pixels)
    corpus = load(tmp_path / "images")
    assert corpus.array("x")[:].tolist() == [[0, 1, 256, 65535]]
    assert (corpus.dtype, corpus.info.scale) == ("uint16", 65535.0)


@pytest.mark.parametrize(
    ("mode", "kind"), [("RGB", "colour"), ("P", "palette"), ("LA", "grey with"), ("1", "grey of 1")]
)
def test_colour_is_refused_unless_it_is_to_be_converted(image, refused, tmp_path, mode, kind):
    image("1.png", grey(255), mode)
    message = refused(tmp_path / "images")
    assert f"{kind}" in message
    assert "--grey" in message
    (x, _), *_ = open_source(tmp_path / "images", grey=True).blocks()
    assert (x.dtype, x.tolist()) == ("uint8", [[255] * 12])


def test_an_image_of_another_size_is_refused_by_its_name_before_any_is_decoded(image, refused, tmp_path, monkeypatch):
    for number in range(5):
        image(f"3/{number}.png", grey(0, (5, 3)) if number == 4 else None)
    monkeypatch.setattr("bigkernel.data.readers.png._decoded", None)
    message = refused(tmp_path / "images")
    assert "3/4.png: 5×3 pixels, grey of 8 bits, but 3/0.png has 4×3 pixels, grey of 8 bits" in message


@pytest.mark.parametrize("converted", [False, True])
def test_sixteen_bits_among_eight_are_refused(image, refused, tmp_path, converted):
    image("1.png")
    image("2.png", grey(300, dtype=np.uint16))
    assert "2.png: 4×3 pixels, grey of 16 bits, but 1.png has" in refused(tmp_path / "images", grey=converted)


def test_an_image_that_was_cut_is_refused_by_its_name(image, refused, tmp_path):
    image("1.png")
    path = image("2.png", np.random.default_rng(0).integers(0, 256, (40, 30), np.uint8))
    image("1.png", np.zeros((40, 30), np.uint8))
    whole = path.read_bytes()
    for kept, expected in [
        (len(whole) // 2, "damaged or cut"),
        (20, "truncated"),
        (3, "signature"),
        (0, "found nothing"),
    ]:
        path.write_bytes(whole[:kept])
        message = refused(tmp_path / "images")
        assert "2.png" in message
        assert expected in message


def test_a_head_that_claims_too_many_pixels_is_refused_before_it_is_decoded(image, refused, tmp_path):
    path = image("1.png")
    head = struct.pack(">IIBBBBB", 2**15, 2**15, 8, 0, 0, 0, 0)
    chunk = b"IHDR" + head
    path.write_bytes(path.read_bytes()[:12] + chunk + struct.pack(">I", zlib.crc32(chunk)))
    assert "32768×32768 pixels, at most 16,777,216 are read" in refused(tmp_path / "images")


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(pixels, *parts, bits=8, interlaced=False):
    """A PNG file of grey pixels (h, w): its head, the chunks `parts` (without: one of all pixels), its end."""
    height, width = pixels.shape
    head = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, interlaced)
    parts = parts or (chunk(b"IDAT", zlib.compress(lines(pixels, bits))),)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + b"".join(parts) + chunk(b"IEND", b"")


def lines(pixels, bits=8):
    """Rows of a pass as they are stored, each behind its filter type 0."""
    planes = np.unpackbits(pixels[:, :, None], axis=2)[:, :, 8 - bits :]
    return b"".join(b"\0" + np.packbits(plane).tobytes() for plane in planes) if pixels.size else b""


def test_no_bit_of_an_image_can_flip_unseen_and_no_byte_be_cut(image, tmp_path):
    path = image("1.png", np.random.default_rng(1).integers(0, 256, (4, 3), np.uint8))
    whole = path.read_bytes()
    flipped = [bytearray(whole) for _ in range(8 * len(whole))]
    for bit, content in enumerate(flipped):
        content[bit // 8] ^= 1 << bit % 8
    for content in [*flipped, *(whole[:kept] for kept in range(len(whole)))]:
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"1\.png: "):
            list(open_source(tmp_path / "images").blocks())


STREAM = zlib.compress(lines(grey(7)))
# what is wrong, with every checksum right -> (its chunks, what the message says)
UNSOUND = {
    "missing rows": ([chunk(b"IDAT", zlib.compress(lines(grey(7))[:-4]))], "12 bytes of pixels, but .* announces 16"),
    "no pixels": ([chunk(b"tIME", bytes(7))], "0 bytes of pixels in a stream without its end"),
    "a stream without its end": ([chunk(b"IDAT", STREAM[:-4])], "16 bytes of pixels in a stream without its end"),
    "a row too many": ([chunk(b"IDAT", zlib.compress(lines(grey(7, (5, 3)))))], "more pixel data than the 16 bytes"),
    "much more than pixels": ([chunk(b"IDAT", zlib.compress(bytes(2**24)))], "more pixel data than the 16 bytes"),
    "bytes behind the stream": ([chunk(b"IDAT", STREAM + b"x")], "more pixel data"),
    "bytes behind the stream, in a chunk of their own": (
        [chunk(b"IDAT", STREAM), chunk(b"IDAT", b"x")],
        "more pixel data",
    ),
    "pixels in two places": (
        [chunk(b"IDAT", STREAM[:9]), chunk(b"tEXt", b"a\0b"), chunk(b"IDAT", STREAM[9:])],
        "pixel data after another chunk",
    ),
    "something behind the end": ([chunk(b"IDAT", STREAM), chunk(b"IEND", b"")], "more follows the end"),
    "no zlib stream": ([chunk(b"IDAT", b"\xff" + STREAM[1:])], "cannot be decompressed"),
    "another chunk that is damaged": ([b"\0\0\0\3tEXta\0b\0\0\0\0"], "byte 33: the checksum of its chunk 'tEXt'"),
}


@pytest.mark.parametrize("what", UNSOUND)
def test_pixel_data_that_are_not_those_of_the_head_are_refused(image, refused, tmp_path, what):
    parts, expected = UNSOUND[what]
    image("1.png").write_bytes(png(grey(7), *parts))
    assert re.search(f"1.png: a damaged or cut PNG image: .*{expected}", refused(tmp_path / "images"))


def test_an_image_in_several_chunks_beside_others_is_read(image, tmp_path):
    parts = [chunk(b"tEXt", b"a\0b"), *(chunk(b"IDAT", STREAM[at : at + 3]) for at in range(0, len(STREAM), 3))]
    image("1.png").write_bytes(png(grey(7), *parts, chunk(b"tIME", bytes(7))))
    (x, _), *_ = open_source(tmp_path / "images").blocks()
    assert x.tolist() == [[7] * 12]


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (5, 3), (3, 5), (9, 17)])
@pytest.mark.parametrize("bits", [1, 4, 8])
def test_interlaced_images_are_read_and_checked(image, refused, tmp_path, shape, bits):
    pixels = np.random.default_rng(2).integers(0, 2**bits, shape, np.uint8)
    passes = [
        *(pixels[0::8, 0::8], pixels[0::8, 4::8], pixels[4::8, 0::4], pixels[0::4, 2::4]),
        *(pixels[2::4, 0::2], pixels[0::2, 1::2], pixels[1::2, 0::1]),
    ]
    stored = b"".join(lines(part, bits) for part in passes)
    path = image("1.png")
    path.write_bytes(png(pixels, chunk(b"IDAT", zlib.compress(stored)), bits=bits, interlaced=True))
    (x, _), *_ = open_source(tmp_path / "images", grey=True).blocks()
    assert x[0].tolist() == (pixels.astype(int) * 255 // (2**bits - 1)).ravel().tolist()
    path.write_bytes(png(pixels, chunk(b"IDAT", zlib.compress(stored[:-1])), bits=bits, interlaced=True))
    assert f"{len(stored) - 1} bytes of pixels, but its head announces {len(stored)}" in refused(
        tmp_path / "images", grey=True
    )


@pytest.mark.parametrize(
    ("at", "value", "expected"), [(24, 3, "3 bits, 0"), (25, 5, "8 bits, 5"), (26, 1, "found 1, 0"), (28, 2, "and 2")]
)
def test_a_head_that_no_image_has_is_refused(image, refused, tmp_path, at, value, expected):
    content = bytearray(png(grey(7)))
    content[at] = value
    image("1.png").write_bytes(content)
    assert expected in refused(tmp_path / "images")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["1.png", "a/2.png"], "images \\('1.png'\\) beside folders \\('a'\\)"),
        (["a/1.png", "a/b/2.png"], "the folder 'a/b' within a label's"),
        (["1.png", "2.jpg"], "2.jpg: no PNG image among PNG images"),
        (["a/1.png", "b/"], "b: no PNG image; remove the folder"),
    ],
)
def test_folders_that_are_not_one_kind_are_refused(image, tmp_path, refused, names, expected):
    for name in names:
        if name.endswith("/"):
            (tmp_path / "images" / name).mkdir()
        else:
            image(name)
    assert re.search(expected, refused(tmp_path / "images"))


def test_a_pipe_among_images_is_refused_and_not_waited_for(image, refused, tmp_path):
    image("1.png")
    os.mkfifo(tmp_path / "images" / "2.png")
    assert "2.png: no PNG image among PNG images" in refused(tmp_path / "images")


def test_a_folder_without_images_is_refused(tmp_path, refused):
    (tmp_path / "empty").mkdir()
    assert "found none of these" in refused(tmp_path / "empty")
    assert "no PNG image in this folder" in refused(tmp_path / "empty", format="png")
    (tmp_path / "file").touch()
    assert "expected a folder for format 'png', found a file" in refused(tmp_path / "file", format="png")


def test_without_pillow_the_package_to_install_is_named(image, tmp_path, monkeypatch):
    image("1.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ConfigError, match=r'pip install "bigkernel\[data\]"'):
        open_source(tmp_path / "images")
