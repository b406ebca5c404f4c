"""Corpora of deformed images: rows and columns are as said, whoever makes them; what cannot be deformed is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from bigkernel import KernelRidgeClassifier, executing
from bigkernel.data.corpus import Corpus, CorpusInfo, CorpusWriter, open_corpus
from bigkernel.engine.sources import NumpySource
from bigkernel.errors import ConfigError, DataError
from bigkernel.images.deform_corpus import deform_corpus, deformation_of, deformed_at, deformed_rows, source_text
from bigkernel.images.elastic import Deformation
from bigkernel.images.image_sources import Chosen, Repeated, RowNumbers
from bigkernel.images.restyle import Restyling

N, SIDE, ROWS = 60, 8, 500
COLUMNS = {
    "y": np.arange(N) % 3,
    "weight": np.linspace(0.5, 2, N),
    "domain": np.arange(N) % 2,
    "group": 1000 + np.arange(N) // 2,
}


@pytest.fixture(scope="module")
def pixels() -> np.ndarray:
    x = np.random.default_rng(4).integers(0, 256, (N, SIDE, SIDE))
    x[:, :2], x[:, :, 6:] = 0, 0
    return x.reshape(N, -1).astype(np.uint8)


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Corpus]:
    """Write images and columns as a corpus in a directory of its own."""

    def make(x: np.ndarray, *, image_shape: Any = (SIDE, SIDE), **columns: np.ndarray) -> Corpus:
        path = tmp_path_factory.mktemp("corpus") / "images"
        kinds = {name: values.dtype for name, values in columns.items()}
        classes = (0, 1, 2) if "y" in columns else ()
        info = CorpusInfo("images", "a camera", classes=classes, image_shape=image_shape, scale=255.0)
        with CorpusWriter(
            path, n_features=x.shape[1], dtype=x.dtype, columns=kinds, info=info, chunk_rows=25
        ) as writer:
            writer.append(x=x, **columns)
        return open_corpus(path)

    return make


@pytest.fixture(scope="module")
def images(write: Callable[..., Corpus], pixels: np.ndarray) -> Corpus:
    return write(pixels, **COLUMNS)


def rows_of(corpus: Corpus) -> dict[str, np.ndarray]:
    return {name: corpus.column(name) for name in ("x", *corpus.columns)}


def test_rows_are_the_images_and_then_their_copies_with_all_columns(images, pixels, tmp_path):
    with executing("serial"):
        made = deform_corpus(images, tmp_path / "c", ROWS, seed=3, strength=2.0, shift=1, chunk_rows=64)
    original = np.arange(ROWS) % N
    copies = Deformation(SIDE, SIDE, 3, 2.0, 8 / 7, 1).copies(pixels[original[N:]], N)
    x = made.column("x")
    assert_array_equal(x[:N], pixels)
    assert_array_equal(x[N:], copies)
    assert (x[N : 2 * N] != pixels).any(axis=1).all()
    for name, values in COLUMNS.items():
        assert_array_equal(made.column(name), values[original])
    info = replace(images.info, name="deformed images", source=made.info.source)
    assert (made.info, made.chunk_rows, made.dtype) == (info, 64, "uint8")
    assert made.info.source == source_text(images, deformation_of(images, seed=3, strength=2.0, shift=1))
    assert made.info.source.endswith(f"strength 2.0, smoothness {8 / 7!r} px, shift 1 px, originals: a camera")


def test_restyled_copies_are_written_by_the_same_door(images, pixels, tmp_path):
    options = {"recipe": "restyled", "seed": 3, "strength": 0.5}
    with executing("serial"):
        made = deform_corpus(images, tmp_path / "c", ROWS, **options, chunk_rows=64)
    restyling = Restyling(SIDE, SIDE, 3).times(0.5)
    assert_array_equal(made.column("x")[N:], restyling.copies(pixels[np.arange(N, ROWS) % N], N))
    assert "recipe restyled 1, seed 3, size ±0.25, aspect ±0.05, rotation ±5.0, shear ±0.075" in made.info.source
    assert deformed_at(tmp_path / "c", images, ROWS, restyling) == made
    assert deformed_at(tmp_path / "c", images, ROWS, restyling.times(2)) is None
    assert deformed_at(tmp_path / "c", images, ROWS, deformation_of(images, seed=3, strength=0.5)) is None


def test_without_groups_the_number_of_the_original_is_the_group(write, pixels, tmp_path):
    with executing("serial"):
        made = deform_corpus(write(pixels), tmp_path / "c", ROWS, name="many")
    assert (made.columns, made.info.name) == (("group",), "many")
    assert_array_equal(made.column("group"), np.arange(ROWS) % N)


def test_fewer_rows_than_images_are_the_first_images(images, pixels, tmp_path):
    with executing("serial"):
        assert_array_equal(deform_corpus(images, tmp_path / "c", 7).column("x"), pixels[:7])


@pytest.mark.parametrize("chunk_rows", [50, 1000])
def test_threads_and_chunks_change_no_bit(images, tmp_path, chunk_rows):
    with executing("serial"):
        expected = rows_of(deform_corpus(images, tmp_path / "serial", ROWS, chunk_rows=30))
    with executing("threads"), dask.config.set({"bigkernel.chunk-bytes": 2048}):
        found = rows_of(deform_corpus(images, tmp_path / "threads", ROWS, chunk_rows=chunk_rows))
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert_array_equal(found[name], values)


@pytest.mark.cluster
def test_worker_processes_make_the_same_bytes(client: Client, images, tmp_path):
    def content(path: Path) -> dict[str, bytes]:
        return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}

    for name, executor in (("here", "serial"), ("there", client)):
        with executing(executor):
            deform_corpus(images, tmp_path / name, ROWS, chunk_rows=40)
    assert content(tmp_path / "here") == content(tmp_path / "there")


@settings(max_examples=8)
@given(cuts=st.lists(st.integers(0, ROWS), max_size=5))
def test_any_cut_of_a_source_gives_the_same_rows(images, cuts):
    rows = deformed_rows(images, ROWS, deformation_of(images, seed=1), chunk_rows=64)
    whole, bounds = rows.read(0, ROWS), sorted({0, *cuts, ROWS})
    pieces = [rows.part(a, b).read(a, b) for a, b in pairwise(bounds)]
    for name in ("x", *COLUMNS):
        assert_array_equal(np.concatenate([getattr(piece, name) for piece in pieces]), getattr(whole, name))


def test_rows_can_be_fitted_without_being_written(images, pixels, tmp_path):
    options = {"n_landmarks": 20, "random_state": 0, "alpha": 0.1}
    with executing("serial"):
        made = deform_corpus(images, tmp_path / "c", ROWS, chunk_rows=100)
        stored_fit = KernelRidgeClassifier("gaussian", **options).fit(made)
        rows = deformed_rows(images, ROWS, deformation_of(images), chunk_rows=100)
        lazy_fit = KernelRidgeClassifier("gaussian", **options).fit(rows)
    assert_array_equal(lazy_fit.decision_function(pixels), stored_fit.decision_function(pixels))


def test_columns_of_their_own_kind_read_any_range():
    repeated = Repeated(NumpySource(np.array([5, 6, 7])), 3, 10)
    assert_array_equal(repeated.read(2, 10), [7, 5, 6, 7, 5, 6, 7, 5])
    assert repeated.read(4, 4).dtype == repeated.dtype
    assert repeated.read(4, 4).shape == (0,)
    numbers = Repeated(RowNumbers(3), 3, 10)
    assert_array_equal(numbers.read(2, 7), [2, 0, 1, 2, 0])
    chosen = Repeated(RowNumbers(3), 3, 10, Chosen(np.array([0, 2]), 2))
    assert_array_equal(chosen.read(0, 10), [0, 1, 2, 0, 2, 0, 2, 0, 2, 0])
    others = Repeated(repeated.source, 3, 11), Repeated(RowNumbers(4), 4, 10)
    assert len({source.fingerprint() for source in (repeated, numbers, chosen, *others)}) == 5


def test_a_corpus_is_known_again_by_its_images_and_every_option(images, write, pixels, tmp_path):
    def look(corpus: Corpus = images, n_rows: int = ROWS, **options: Any) -> Corpus | None:
        return deformed_at(tmp_path / "c", corpus, n_rows, deformation_of(corpus, **options))

    assert look() is None
    with executing("serial"):
        made = deform_corpus(images, tmp_path / "c", ROWS)
    assert look() == made
    assert look(write(pixels, **COLUMNS)) == made  # the same content elsewhere
    for options in ({"seed": 1}, {"strength": 1.01}, {"smoothness": 1.0}, {"shift": 1}, {"n_rows": ROWS + 1}):
        assert look(**options) is None, options
    brighter = pixels.copy()
    brighter[N - 1, 0] = 9
    assert look(write(brighter, **COLUMNS)) is None
    assert look(write(pixels, **{**COLUMNS, "y": COLUMNS["y"][::-1]})) is None
    (tmp_path / "c" / "group" / "c" / "0").unlink()
    assert look() is None


def test_every_worker_is_asked_for_the_images(images):
    rows = deformed_rows(images, ROWS, deformation_of(images))
    assert {(source.path, source.name) for source in rows.stored} == {
        (images.path, name) for name in ("x", *images.columns)
    }


@pytest.mark.parametrize("height, smoothness, shift", [(28, 4.0, 1), (16, 16 / 7, 1), (8, 8 / 7, 0), (64, 64 / 7, 2)])
def test_lengths_follow_the_height_of_the_image(write, height, smoothness, shift):
    corpus = write(np.zeros((1, height * 5), np.uint8), image_shape=(height, 5))
    found = deformation_of(corpus)
    assert (found.strength, found.smoothness, found.shift) == (1.0, pytest.approx(smoothness), shift)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_other_pixels_than_bytes_keep_to_the_range_of_the_images(write, pixels, dtype, tmp_path):
    corpus = write(pixels.astype(dtype) - 100)
    found = deformation_of(corpus)
    assert (found.low, found.high) == (-100.0, float(pixels.max()) - 100)
    with executing("serial"):
        x = deform_corpus(corpus, tmp_path / "c", ROWS, strength=4.0, shift=2).column("x")
    assert x.dtype == dtype
    assert (x.min(), x.max()) == (found.low, found.high)


def test_what_cannot_be_deformed_is_refused_with_its_reason(images, write, pixels, tmp_path):
    with pytest.raises(DataError, match="its rows are no pictures"):
        deformation_of(write(pixels, image_shape=None))
    with pytest.raises(DataError, match="image_shape 8×9 is 72 pixels, but rows have 64"):
        deformation_of(write(pixels, image_shape=(8, 9)))
    bad = pixels.astype(np.float32)
    bad[31, 5] = np.nan
    with pytest.raises(DataError, match="row 31 has a pixel that is not finite"):
        deformation_of(write(bad))
    with pytest.raises(DataError, match=r"row 2 has a pixel that is not finite or beyond ±1.67772e\+07"):
        deformation_of(write(pixels.astype(np.int64) + 2**24 * (np.arange(N)[:, None] == 2)))
    with pytest.raises(ConfigError, match="rows: expected at least 1, found 0"):
        deform_corpus(images, tmp_path / "c", 0)
    with pytest.raises(ConfigError, match=r"strength: .* found inf"):
        deform_corpus(images, tmp_path / "c", ROWS, strength=float("inf"))
    with pytest.raises(ConfigError, match="recipe: expected elastic or restyled, found 'wavy'"):
        deformation_of(images, recipe="wavy")
    with pytest.raises(ConfigError, match="smoothness: is of the recipe elastic"):
        deformation_of(images, recipe="restyled", smoothness=1.0)
    with pytest.raises(ConfigError, match="shift: is of the recipe elastic"):
        deformation_of(images, recipe="restyled", shift=1)
    with pytest.raises(ConfigError, match="size: expected a range of 0 to 1, found"):
        deformation_of(images, recipe="restyled", strength=3.0)
    with pytest.raises(DataError, match="is the corpus of the originals; write the copies elsewhere"):
        deform_corpus(images, images.path, ROWS, overwrite=True)
    with executing("serial"):
        deform_corpus(images, tmp_path / "c", 5)
        with pytest.raises(DataError, match="exists"):
            deform_corpus(images, tmp_path / "c", 5)
        assert len(deform_corpus(images, tmp_path / "c", 6, overwrite=True)) == 6


def test_a_worker_needs_no_package_for_pictures():
    code = (
        "import sys, bigkernel.images.deform_corpus; from bigkernel.images.elastic import Deformation; "
        "import numpy as np; "
        "Deformation(8, 8).copies(np.zeros((2, 64), np.uint8), 0); "
        "print({'matplotlib', 'PIL', 'sklearn'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
