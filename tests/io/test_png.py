"""Folders of PNG images: labels from folders, and the images that are refused by name."""

from __future__ import annotations

import re
import struct
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from bigkernel.errors import ConfigError
from bigkernel.io import open_source


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
    monkeypatch.setattr("bigkernel.io.source.BLOCK_BYTES", 12 * 7)
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
    monkeypatch.setattr("bigkernel.io.png._decoded", None)
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


def test_a_damaged_checksum_is_refused(image, refused, tmp_path):
    path = image("1.png")
    content = bytearray(path.read_bytes())
    content[content.index(b"IDAT") + 8] ^= 0xFF
    path.write_bytes(content)
    assert "1.png: a damaged or cut PNG image" in refused(tmp_path / "images")


def test_a_head_that_claims_too_many_pixels_is_refused_before_it_is_decoded(image, refused, tmp_path):
    path = image("1.png")
    head = struct.pack(">IIBBBBB", 2**15, 2**15, 8, 0, 0, 0, 0)
    chunk = b"IHDR" + head
    path.write_bytes(path.read_bytes()[:12] + chunk + struct.pack(">I", zlib.crc32(chunk)))
    assert "32768×32768 pixels, at most 16,777,216 are read" in refused(tmp_path / "images")


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
