"""Domains on the command line: several sources, one of them without labels, to a model of both."""

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
    """`pair.corpus`: a labelled domain and one without labels; `target.corpus`: the second with them."""
    np.savez("source.npz", x=SOURCE, y=LABELS)
    np.savez("target.npz", x=TARGET, y=np.full(N, -1))
    np.savez("truth.npz", x=TARGET, y=LABELS)
    run("ingest", "source.npz", "target.npz", "pair.corpus", "--chunk-rows", 50)
    run("ingest", "truth.npz", "target.corpus", "--chunk-rows", 50)
    return here


def test_artl_learns_an_unlabelled_source_of_its_own_and_says_how_its_rounds_went(run, pair):
    command = ["fit", "pair.corpus", "m", "--method", "artl", *COMMON, "--score", "target.corpus"]
    told = json.loads(run(*command, "--json").stdout)
    assert (told["source_rows"], told["target_rows"]) == (N, N)
    assert told["held_out_error_percent"] < 3
    assert 1 <= len(told["rounds"]) <= 10
    text = run(*command, "--overwrite").stdout
    assert re.search(rf"rounds +{len(told['rounds'])}\s", text)
    assert max(map(len, text.splitlines())) <= 80
    assert json.loads(run("score", "m", "target.corpus", "--json").stdout)["error_percent"] < 3


@pytest.mark.parametrize("method", ["xnv", "krr"])
def test_labelled_rows_alone_or_all_rows_make_a_model_of_other_methods(run, pair, method):
    told = json.loads(run("fit", "pair.corpus", "m", "--method", method, *COMMON, "--json").stdout)
    assert told["labelled_rows"] == N
    assert json.loads(run("score", "m", "target.corpus", "--json").stdout)["rows"] == N


@pytest.mark.parametrize("choice", ["balanced-k-means", "fourier"])
def test_landmarks_are_chosen_as_asked(run, pair, choice):
    told = json.loads(run("fit", "pair.corpus", "m", *COMMON, "--landmark-choice", choice, "--json").stdout)
    assert told["landmark_choice"] == choice
    assert load_model("m").landmarks == choice


@pytest.fixture
def images(run, here):
    """`c`: a corpus of 30 images of three classes."""
    np.save("images.npy", rng.integers(0, 255, (30, 8, 8)).astype(np.uint8))
    np.save("images-labels.npy", LABELS[:30])
    run("ingest", "images.npy", "c", "--labels", "images-labels.npy")


def test_patches_are_learnt_with_the_parameters_that_a_transform_names(run, images):
    options = ["--transform", "moments:aspect=0.2", "--transform", "conv:patch-size=3/2,n-landmarks=6/5,sigma=0.6"]
    options += ["--landmarks", 9, "--seed", 4]
    planned = json.loads(run("plan", "c", *options, "--json").stdout)
    assert planned["flops"] > json.loads(run("plan", "c", "--landmarks", 9, "--json").stdout)["flops"]
    told = json.loads(run("fit", "c", "m", *options, "--run", "work", "--json").stdout)
    model = load_model("m")
    assert [name for name, _ in model.steps] == ["moments", "conv", "model"]
    assert model[0].aspect == 0.2
    assert (model[1].patch_size, model[1].n_landmarks, model[1].sigma) == ((3, 2), (6, 5), 0.6)
    assert (model[1].random_state, model[1].second_landmarks_.shape) == (4, (5, 24))
    again = json.loads(run("fit", "c", "m", *options, "--run", "work", "--resume", "--overwrite", "--json").stdout)
    assert again["training_mse"] == told["training_mse"]


SETTING, DATA = 8, 3  # exit codes
REFUSED = {
    "a penalty of xnv from the statistics": (
        SETTING,
        ["--method", "xnv", "--alpha", "gcv"],
        "The 'alpha' parameter of XNV",
    ),
    "an intercept of artl": (SETTING, ["--method", "artl", "--intercept"], "not used by artl"),
    "nothing to adapt to": (DATA, ["--method", "artl", "--landmarks", 9], "all rows are labelled"),
    "a parameter that is none": (
        SETTING,
        ["--transform", "conv:side=5"],
        "Invalid parameter 'side' for estimator Conv",
    ),
    "a value that is none": (SETTING, ["--transform", "conv:sigma=-1"], "--transform conv: The 'sigma' parameter"),
    "a value of another kind": (SETTING, ["--transform", "project:whiten=2"], "--transform project: The 'whiten'"),
    "a parameter twice": (2, ["--transform", "conv:sigma=1,sigma=2"], "every parameter once, found 'sigma=2' twice"),
    "a transform that is none": (2, ["--transform", "convolve"], "'convolve' is not one of 'scale'"),
    "a parameter without value": (2, ["--transform", "conv:sigma"], "expected NAME:KEY=VALUE,KEY=VALUE, found 'sigma'"),
    "strokes of what is no image": (DATA, ["--transform", "orientations", "--landmarks", 9], "image_shape"),
}


@pytest.mark.parametrize("code, options, match", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_in_one_line(run, here, code, options, match):
    np.savez("c.npz", x=np.column_stack([SOURCE, SOURCE[:, 0]]), y=LABELS)
    run("ingest", "c.npz", "c")
    assert match in run("fit", "c", "m", *options, code=code).stderr
    assert not (here / "m").exists()
