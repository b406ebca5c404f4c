"""Deformed digits: rows depend on seed and number alone, and a corpus has labels and groups of the originals."""

import numpy as np
import pytest
from pipeline_runs import call

from bigkernel import open_corpus
from bigkernel.data.corpus import CorpusInfo, CorpusWriter
from pipelines.shared import deformed as made
from pipelines.shared.deformed import BLOCK_ROWS, ELASTIC, RESTYLED, blocks, turned


@pytest.fixture
def images():
    """Bright bars of several widths in the middle of 28×28 pixels."""
    bars = np.zeros((30, 28, 28), np.uint8)
    for number, image in enumerate(bars):
        image[8:20, 12 : 14 + number % 5] = 200
    return bars


@pytest.mark.parametrize("variation", [ELASTIC, RESTYLED])
def test_a_row_depends_on_seed_and_number_alone(images, variation):
    many = np.concatenate(list(blocks(images, BLOCK_ROWS + 80, 7, variation)))
    few = np.concatenate(list(blocks(images, BLOCK_ROWS + 40, 7, variation)))
    np.testing.assert_array_equal(few, many[: len(few)])
    np.testing.assert_array_equal(few[:30], images)
    other = np.concatenate(list(blocks(images, BLOCK_ROWS, 8, variation)))
    assert (other[30:60] != few[30:60]).any(axis=(1, 2)).all()
    assert (few[60:90] != few[30:60]).any(axis=(1, 2)).all()


def test_several_processes_make_the_rows_of_one(images, monkeypatch):
    alone = list(blocks(images, BLOCK_ROWS + 80, 1, ELASTIC))
    monkeypatch.setattr(made, "PARALLEL_ROWS", 0)
    for one, other in zip(alone, blocks(images, BLOCK_ROWS + 80, 1, ELASTIC, 2), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_pen_makes_strokes_thick_or_thin_and_contrast_makes_them_pale(images):
    ink = images / 255
    thick, thin, pale = turned(ink, 0, 1.0, 1.0), turned(ink, 0, -1.0, 1.0), turned(ink, 0, 0.0, 0.5)
    rows, columns = np.nonzero(ink[0])
    grown = np.zeros((28, 28))
    grown[rows.min() - 1 : rows.max() + 2, columns.min() - 1 : columns.max() + 2] = ink.max()
    np.testing.assert_allclose(thick[0], grown, atol=1e-6)
    assert thin.sum() < ink.sum() / 2
    np.testing.assert_allclose(pale, 0.5 + 0.5 * (ink - 0.5), atol=1e-6)


def test_the_command_writes_a_corpus_with_its_columns_and_refuses_an_existing_one(tmp_path, images):
    info = CorpusInfo("bars", "made here", (0, 1, 2, 3, 4), (28, 28), 255.0)
    with CorpusWriter(tmp_path / "a", n_features=784, dtype=np.uint8, columns={"y": np.int64}, info=info) as writer:
        writer.append(x=images.reshape(30, -1), y=np.arange(30) % 5)
    arguments = ["deform", tmp_path / "a", tmp_path / "b", "--rows", 1000, "--seed", 3, "--quiet"]
    call(*arguments)
    copies = open_corpus(tmp_path / "b")
    rows = np.concatenate(list(blocks(images, 1000, 3, ELASTIC)))
    np.testing.assert_array_equal(copies.column("x"), rows.reshape(1000, -1))
    np.testing.assert_array_equal(copies.column("group"), np.arange(1000) % 30)
    np.testing.assert_array_equal(copies.column("y"), np.arange(1000) % 30 % 5)
    assert (copies.info.image_shape, copies.info.classes) == ((28, 28), info.classes)
    assert "already exists" in call(*arguments, code=3).stderr


def test_rows_that_are_not_images_are_refused(tmp_path):
    with CorpusWriter(tmp_path / "a", n_features=3, dtype=np.float64, columns={}, info=CorpusInfo("a")) as writer:
        writer.append(x=np.eye(3))
    assert "expected images" in call("deform", tmp_path / "a", tmp_path / "b", "--rows", 10, "--quiet", code=3).stderr
    assert not (tmp_path / "b").exists()
