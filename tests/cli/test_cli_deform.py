"""`bigkernel deform` makes what the library makes, tells what it costs, draws, resumes, and names what is wrong."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from bigkernel.data.corpus import CorpusInfo, CorpusWriter, open_corpus
from bigkernel.data.run_status import survey
from bigkernel.images.deform_corpus import deformation_of, deformed_rows

N, SIDE = 80, 28


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bars of 28×28 pixels, in four classes of which one has a long name."""
    path = tmp_path_factory.mktemp("images") / "bars"
    x = np.zeros((N, SIDE, SIDE), np.uint8)
    y = np.arange(N) % 4
    for image, label in zip(x, y, strict=True):
        image[5 + 4 * label : 8 + 4 * label, 4:24] = 200
    info = CorpusInfo(
        "bars", "drawn", classes=("a", "b", "c", "a very long name"), image_shape=(SIDE, SIDE), scale=255.0
    )
    with CorpusWriter(path, n_features=SIDE * SIDE, dtype=np.uint8, columns={"y": np.int64}, info=info) as writer:
        writer.append(x=x.reshape(N, -1), y=y)
    return path


def test_the_command_makes_the_rows_of_the_library_and_says_how_fast(run, images, tmp_path):
    target = tmp_path / "c"
    done = run("deform", images, target, "--rows", 500, "--seed", 4, "--strength", 0.5, "--json")
    figures = json.loads(done.stdout)
    corpus = open_corpus(images)
    rows = deformed_rows(corpus, 500, deformation_of(corpus, seed=4, strength=0.5))
    made = open_corpus(target)
    assert_array_equal(made.column("x"), rows.x.read(0, 500))
    assert made.columns == ("y", "group")
    sizes = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    assert (figures["rows"], figures["originals"], figures["copies_of_each"]) == (500, N, 5.25)
    assert (figures["raw_bytes"], figures["stored_bytes"]) == (500 * 800, sizes)
    assert figures["stored_of_raw"] == pytest.approx(sizes / (500 * 800))
    assert figures["rows_per_second"] == pytest.approx(500 / figures["seconds"], rel=0.01)


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_restyled_copies_have_a_recipe_of_their_own(run, images, tmp_path, monkeypatch, dry):
    monkeypatch.chdir(tmp_path)
    words = ["deform", images, "c", "--rows", 400, "--recipe", "restyled", "--strength", 0.5, "--seed", 4, *dry]
    out = run(*words).stdout
    assert max(map(len, out.splitlines())) <= 80
    assert "rotation_range" in out.replace(" ", "_")
    if not dry:
        corpus = open_corpus(images)
        rows = deformed_rows(corpus, 400, deformation_of(corpus, recipe="restyled", seed=4, strength=0.5))
        assert_array_equal(open_corpus("c").column("x"), rows.x.read(0, 400))


def test_a_dry_run_foretells_chunks_and_bytes_and_writes_nothing(run, images, tmp_path):
    words = ["deform", images, tmp_path / "c", "--rows", 3000, "--chunk-rows", 400]
    told = json.loads(run(*words, "--dry-run", "--json").stdout)
    assert list(tmp_path.iterdir()) == []
    assert (told["chunks"], told["chunk_rows"], told["raw_bytes"]) == (8, 400, 3000 * 800)
    assert told["seconds_on_one_processor"] == pytest.approx(3000 / told["rows_per_second_of_a_processor"], rel=0.01)
    done = json.loads(run(*words, "--json").stdout)
    # labels and groups compress better than pixels
    assert 0.4 * told["stored_bytes_expected"] < done["stored_bytes"] < 1.3 * told["stored_bytes_expected"]


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_what_is_printed_fits_eighty_columns(run, images, tmp_path, monkeypatch, dry):
    monkeypatch.chdir(tmp_path)
    out = run("deform", images, "many.corpus", "--rows", 2_000, *dry).stdout
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    assert "2,000" in out


def test_the_contact_sheet_shows_an_original_of_each_class_and_its_copies(run, images, tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    run("deform", images, tmp_path / "c", "--rows", 9, "--dry-run", "--picture", tmp_path / "c.png")
    sheet = np.asarray(pillow.open(io.BytesIO((tmp_path / "c.png").read_bytes())).convert("L"))
    corpus = open_corpus(images)
    original = 255 - 255 * (corpus.column("x")[0].reshape(SIDE, SIDE) / 255.0)
    copy = 255.0 - deformation_of(corpus).copies(corpus.column("x")[:1], N).reshape(SIDE, SIDE)
    doubled = [np.kron(picture.round(), np.ones((2, 2))) for picture in (original, copy)]
    windows = np.lib.stride_tricks.sliding_window_view(sheet, (2 * SIDE, 2 * SIDE))[54, :]
    places = [np.flatnonzero((np.abs(windows - picture) <= 1).all(axis=(1, 2))) for picture in doubled]
    assert [len(place) for place in places] == [1, 1]
    assert places[0][0] < places[1][0]


def test_without_pillow_the_picture_is_refused_before_any_work(run, images, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    done = run("deform", images, tmp_path / "c", "--rows", 500, "--picture", tmp_path / "c.png", code=8)
    assert 'pip install "bigkernel[data]"' in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options, code, text",
    [
        (["--strength", "nan"], 8, "strength: expected pixels between 0 and 28"),
        (["--smoothness", "-1"], 8, "smoothness: expected a finite number"),
        (["--shift", "28"], 8, "shift: expected whole pixels"),
        (["--recipe", "restyled", "--shift", "1"], 8, "shift: is of the recipe elastic"),
        (["--recipe", "wavy"], 2, "Invalid value for '--recipe'"),
        (["--rows", "0"], 2, "0 is not in the range"),
        (["--resume"], 2, "--resume needs --run DIR"),
        (["--picture", "no/such/place.png"], 3, "place.png: the picture cannot be written: No such file or directory"),
        (["--rows", "9" * 15, "--dry-run"], 4, "the corpus takes up to"),
        (["--rows", "9" * 15], 4, "the corpus takes up to"),
    ],
)
def test_wrong_options_are_named_and_leave_nothing(run, images, tmp_path, options, code, text):
    assert text in run("deform", images, tmp_path / "c", "--rows", 100, *options, code=code).stderr
    assert list(tmp_path.iterdir()) == []


def test_rows_that_are_no_pictures_are_refused(run, make_corpus, tmp_path):
    make_corpus(np.zeros((30, 12)), name="table")
    done = run("deform", tmp_path / "table", tmp_path / "c", "--rows", 100, code=3)
    assert "its rows are no pictures (no image_shape)" in done.stderr


KILLED = """
import os, signal, sys
import bigkernel.images.deform_corpus as digits
write, written = digits.write_chunk, []

def counted(*arguments):
    written.append(arguments)
    if len(written) == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    write(*arguments)

digits.write_chunk = counted
from bigkernel.cli import main
main(sys.argv[1:])
"""


@pytest.mark.filterwarnings("ignore:.*left a lock and is dead:RuntimeWarning")
def test_a_command_that_is_killed_in_the_middle_is_gone_on_with_to_the_same_bytes(run, images, tmp_path):
    words = ["deform", str(images), str(tmp_path / "c"), "--rows", "2000", "--chunk-rows", "100"]
    in_run = [*words, "--run", str(tmp_path / "run")]
    killed = subprocess.run([sys.executable, "-c", KILLED, *in_run], capture_output=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "c").exists()
    assert "ResumeMismatch" in run(*in_run, "--resume", "--strength", "2", code=5).stderr
    assert "rows_per_second" not in json.loads(run(*in_run, "--resume", "--json").stdout)
    run(*[word if word != str(tmp_path / "c") else str(tmp_path / "undisturbed") for word in words])
    contents = [
        {os.path.relpath(file, root): file.read_bytes() for file in root.rglob("*") if file.is_file()}
        for root in (tmp_path / "c", tmp_path / "undisturbed")
    ]
    assert contents[0] == contents[1]
    assert [state.state for state in survey(tmp_path / "run")] == ["finished"]


def test_a_job_that_is_sent_again_after_its_end_succeeds(run, images, tmp_path):
    words = ["deform", images, tmp_path / "c", "--rows", 300, "--chunk-rows", 100, "--run", tmp_path / "run"]
    run(*words)
    before = (tmp_path / "c").stat().st_ino
    assert json.loads(run(*words, "--resume", "--json").stdout)["rows"] == 300
    assert (tmp_path / "c").stat().st_ino == before
    assert [state.state for state in survey(tmp_path / "run")] == ["finished"]
    for other in (["--seed", 1], ["--name", "mine"], ["--chunk-rows", 50]):  # not what is there
        assert "already exists" in run(*words, "--resume", *other, code=3).stderr
