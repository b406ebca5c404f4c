"""Domains on the command line: models of several sources, of which one has no labels."""

import json
import re

import numpy as np
import pytest

from bigkernel import load_model

N, CLASSES = 120, 3
rng = np.random.default_rng(5)
LABELS = np.arange(N) % CLASSES
CENTRES = np.array([[0, 0, 0, 0], [3, 0, 3, 0], [0, 3, 0, 3]])
SOURCE = CENTRES[LABELS] + 0.4 * rng.normal(size=(N, 4))
TARGET = CENTRES[LABELS] + [1.2, -0.8, 0.9, 0.5] + 0.4 * rng.normal(size=(N, 4))
COMMON = ("--landmarks", 30, "--sigma", 2.0)


@pytest.fixture
def pair(run, here):
    """Make `pair.corpus` of a labelled and an unlabelled domain, and `target.corpus`, the second with its labels."""
    np.savez("source.npz", x=SOURCE, y=LABELS)
    np.savez("target.npz", x=TARGET, y=np.full(N, -1))
    np.savez("truth.npz", x=TARGET, y=LABELS)
    run("ingest", "source.npz", "target.npz", "pair.corpus", "--chunk-rows", 50)
    run("ingest", "truth.npz", "target.corpus", "--chunk-rows", 50)
    return here


def test_artl_adapts_to_an_unlabelled_source_and_reports_its_rounds(run, pair):
    command = ["fit", "pair.corpus", "m", "--method", "artl", *COMMON, "--score", "target.corpus"]
    figures = json.loads(run(*command, "--json").stdout)
    assert (figures["source_rows"], figures["target_rows"]) == (N, N)
    assert figures["held_out_error_percent"] < 3
    assert 1 <= len(figures["rounds"]) <= 10
    text = run(*command, "--overwrite").stdout
    assert re.search(rf"rounds +{len(figures['rounds'])}\s", text)
    assert max(map(len, text.splitlines())) <= 80
    assert json.loads(run("score", "m", "target.corpus", "--json").stdout)["error_percent"] < 3


@pytest.mark.parametrize("method", ["xnv", "krr"])
def test_other_methods_fit_the_labelled_rows(run, pair, method):
    figures = json.loads(run("fit", "pair.corpus", "m", "--method", method, *COMMON, "--json").stdout)
    assert figures["labelled_rows"] == N
    assert json.loads(run("score", "m", "target.corpus", "--json").stdout)["rows"] == N


@pytest.mark.parametrize("choice", ["balanced-k-means", "fourier"])
def test_the_option_sets_the_choice_of_landmarks(run, pair, choice):
    figures = json.loads(run("fit", "pair.corpus", "m", *COMMON, "--landmark-choice", choice, "--json").stdout)
    assert figures["landmark_choice"] == choice
    assert load_model("m").landmarks == choice


@pytest.fixture
def images(run, here):
    """Make `c`, a corpus of 30 images of three classes."""
    np.save("images.npy", rng.integers(0, 255, (30, 8, 8)).astype(np.uint8))
    np.save("images-labels.npy", LABELS[:30])
    run("ingest", "images.npy", "c", "--labels", "images-labels.npy")


def test_parameters_of_a_transform_reach_it(run, images):
    options = ["--transform", "moments:aspect=0.2", "--transform", "project:n-components=6,whiten=yes"]
    options += ["--landmarks", 9, "--seed", 4]
    planned = json.loads(run("plan", "c", *options, "--json").stdout)
    assert planned["flops"] > json.loads(run("plan", "c", "--landmarks", 9, "--json").stdout)["flops"]
    figures = json.loads(run("fit", "c", "m", *options, "--run", "work", "--json").stdout)
    model = load_model("m")
    assert [name for name, _ in model.steps] == ["moments", "project", "model"]
    assert model[0].aspect == 0.2
    assert (model[1].n_components, model[1].whiten) == (6, True)
    again = json.loads(run("fit", "c", "m", *options, "--run", "work", "--resume", "--overwrite", "--json").stdout)
    assert again["training_mse"] == figures["training_mse"]


SETTING, DATA = 8, 3  # exit codes
REFUSED = {
    "gcv for xnv": (SETTING, ["--method", "xnv", "--alpha", "gcv"], "The 'alpha' parameter of XNV"),
    "intercept of artl": (SETTING, ["--method", "artl", "--intercept"], "not used by artl"),
    "artl without unlabelled rows": (DATA, ["--method", "artl", "--landmarks", 9], "all rows are labelled"),
    "unknown parameter": (SETTING, ["--transform", "moments:side=5"], "Invalid parameter 'side' for estimator Mom"),
    "invalid value": (SETTING, ["--transform", "moments:aspect=-1"], "--transform moments: The 'aspect'"),
    "value of another type": (SETTING, ["--transform", "project:whiten=2"], "--transform project: The 'whiten'"),
    "parameter twice": (2, ["--transform", "moments:aspect=1,aspect=0"], "once, found 'aspect=0' twice"),
    "unknown transform": (2, ["--transform", "convolve"], "'convolve' is not one of 'scale'"),
    "parameter without value": (
        2,
        ["--transform", "scale:factor"],
        "expected NAME:KEY=VALUE,KEY=VALUE, found 'factor'",
    ),
    "strokes without images": (DATA, ["--transform", "orientations", "--landmarks", 9], "image_shape"),
}


@pytest.mark.parametrize("code, options, match", REFUSED.values(), ids=REFUSED)
def test_invalid_options_are_refused(run, here, code, options, match):
    np.savez("c.npz", x=np.column_stack([SOURCE, SOURCE[:, 0]]), y=LABELS)
    run("ingest", "c.npz", "c")
    assert match in run("fit", "c", "m", *options, code=code).stderr
    assert not (here / "m").exists()
