"""The command line from a file to a score: output for people and as JSON, help, and exit codes."""

import gzip
import json
import re
import shutil
import struct
from pathlib import Path

import dask
import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from numpy.testing import assert_allclose, assert_array_equal

from bigkernel import Gaussian, KernelRidgeClassifier, Rescaler, SSSLClassifier, UnitNormalizer, load_model, open_corpus
from bigkernel.cli import main
from bigkernel.data.readers import FORMATS

rng = np.random.default_rng(17)
N, SIDE = 300, 4
LABELS = rng.integers(0, 3, N)
PIXELS = np.clip(
    rng.normal(90, 30, (N, SIDE, SIDE)) + 60 * LABELS[:, None, None] * (np.eye(SIDE) - 0.3), 0, 255
).astype(np.uint8)
ROWS = PIXELS.reshape(N, -1)
NUMBERS = np.round(ROWS[:, 0] * 0.1 + rng.normal(size=N), 4)
STEPS = {"chunk-bytes": 1024, "min-segments": 5, "block-rows": 16}
FIT = ["--landmarks", "40", "--sigma", "0.7", "--transform", "unit-norm", "--alpha", "0.5"]

pytestmark = pytest.mark.usefixtures("small_steps")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Make a corpus of classes, one of numbers, and a model of the first; tests do not change them."""
    root = tmp_path_factory.mktemp("made")
    np.savez(root / "digits.npz", x=ROWS, y=LABELS)
    np.savez(root / "numbers.npz", x=ROWS, y=NUMBERS)
    commands = [
        ["ingest", root / "digits.npz", root / "digits.corpus", "--chunk-rows", 30],
        ["ingest", root / "numbers.npz", root / "numbers.corpus", "--chunk-rows", 30],
        ["fit", root / "digits.corpus", root / "digits.model", *FIT],
    ]
    # as `small_steps`, which a fixture of a module cannot use
    with dask.config.set({f"bigkernel.{key}": value for key, value in STEPS.items()}):
        for command in commands:
            result = CliRunner().invoke(main, [str(argument) for argument in command])
            assert result.exit_code == 0, result.output
    return root


@pytest.fixture
def work(made, here):
    """Copy the files of `made`, so that a test may change them."""
    shutil.copytree(made, here, dirs_exist_ok=True)
    return here


def idx(path, array, code=8):
    """Write an IDX file."""
    content = struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def files(path):
    return sorted(str(child.relative_to(path)) for child in Path(path).rglob("*"))


def expected_model():
    model = KernelRidgeClassifier(Gaussian(0.7), alpha=0.5, n_landmarks=40, random_state=0)
    return model.fit(UnitNormalizer().fit_transform(ROWS), LABELS)


# ---------------------------------------------------------------- from a file to a score


def test_images_become_a_corpus_a_model_predictions_and_a_score(run, here):
    idx(here / "train-images-idx3-ubyte", PIXELS)
    idx(here / "train-labels-idx1-ubyte", LABELS.astype(np.uint8))
    made = json.loads(run("ingest", "train-images-idx3-ubyte", "c", "--chunk-rows", 30, "--json").stdout)
    assert (made["format"], made["rows"], made["features"], made["image_shape"]) == ("idx", N, 16, [4, 4])
    assert made["labels"] == {str(i): int((i == LABELS).sum()) for i in range(3)}
    assert json.loads(run("info", "c", "--json").stdout)["rows"] == N
    checked = json.loads(run("check", "c", "--json").stdout)
    assert checked["intact"] is True
    assert checked["arrays"] == ["x", "y"]
    planned = json.loads(run("plan", "c", "--landmarks", 40, "--json").stdout)
    fitted = json.loads(run("fit", "c", "m", *FIT, "--json").stdout)
    assert fitted["rows"] == planned["rows"] == N
    assert fitted["segments"] == planned["segments"] > 1
    assert fitted["landmarks"] == fitted["rank"] == 40
    predicted = json.loads(run("predict", "m", "c", "p", "--decision", "--json").stdout)
    assert predicted["rows"] == N
    group, wanted = zarr.open_group(here / "p", mode="r"), expected_model()
    mapped = UnitNormalizer().fit_transform(ROWS)
    assert_allclose(group["decision"][...], wanted.decision_function(mapped), atol=2e-3)
    assert_array_equal(group["prediction"][...], group["decision"][...].argmax(axis=1))
    scored = json.loads(run("score", "m", "c", "--json").stdout)
    accuracy = (group["prediction"][...] == LABELS).mean()
    assert scored["accuracy_percent"] == pytest.approx(100 * accuracy)
    assert scored["error_percent"] == pytest.approx(100 * (1 - accuracy))
    assert np.trace(scored["confusion"]) == (group["prediction"][...] == LABELS).sum()
    assert scored["standard_error_percent"] == pytest.approx(100 * np.sqrt(accuracy * (1 - accuracy) / N))
    assert accuracy > 0.6


@pytest.mark.filterwarnings("ignore::bigkernel.errors.RankDeficiencyWarning")
@pytest.mark.parametrize(
    "options",
    ["krr --kernel matern --nu 2.5 --intercept", "krr --kernel polynomial --degree 2 --transform standardize", "ridge"],
)
def test_every_method_is_fitted_and_scored(run, work, options):
    options = ["--method", *options.split(), *([] if options == "ridge" else ["--landmarks", 20])]
    fitted = json.loads(run("fit", "digits.corpus", "m", *options, "--json").stdout)
    scored = json.loads(run("score", "m", "digits.corpus", "--json").stdout)
    assert fitted["estimator"] == type(getattr(load_model("m"), "steps", [("", load_model("m"))])[-1][1]).__name__
    assert scored["rows"] == N
    assert ("r2" in scored) == ("ridge" in options)


def test_options_reach_the_estimator(run, work):
    options = ["--method", "sssl", "--landmarks", 30, "--sigma", 0.4, "--components", 7, "--alpha", 0.2, "--seed", 5]
    run("fit", "digits.corpus", "m", *options, "--transform", "scale", "--transform", "unit-norm")
    model = load_model("m")
    assert [name for name, _ in model.steps] == ["scale", "unit-norm", "model"]
    assert isinstance(model[0], Rescaler)
    assert isinstance(model[-1], SSSLClassifier)
    wanted = {"n_landmarks": 30, "n_components": 7, "alpha": 0.2, "random_state": 5}
    assert {name: model[-1].get_params()[name] for name in wanted} == wanted
    assert model[-1].kernel.sigma == 0.4


COMMANDS = [
    ["info", "digits.corpus"],
    ["info", "digits.model"],
    ["check", "digits.corpus"],
    ["check", "digits.model"],
    ["plan", "digits.corpus", "--landmarks", "40"],
    ["fit", "digits.corpus", "new.model", *FIT],
    ["predict", "digits.model", "digits.corpus", "out"],
    ["score", "digits.model", "digits.corpus"],
    ["ingest", "digits.npz", "new.corpus"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_output_is_lines_of_80_columns_or_one_json_object(run, work, command):
    lines = run(*command).stdout.splitlines()
    assert len(lines) > 2
    assert max(map(len, lines)) <= 80
    result = run(*command, *["--overwrite"] * (command[0] in ("fit", "predict", "ingest")), "--json")
    assert isinstance(json.loads(result.stdout), dict)
    assert result.stdout.count("\n") == 1
    assert result.stderr == ""


@pytest.mark.parametrize("name", ["a[/b].corpus", "with blank, ünïcode"])
def test_a_path_is_printed_as_it_is(run, work, name):
    shutil.copytree("digits.corpus", name)
    assert name in run("info", name).stdout.replace("\n", "")


@pytest.mark.parametrize("command", ["", *main.commands])
def test_help_names_every_option(run, command):
    result = run(*([command] if command else []), "--help")
    if not command:
        assert all(name in result.stdout for name in main.commands)
        assert "Exit codes" in result.stdout
        return
    if command == "ingest":
        assert all(f"{name:<8} {description}\n" in result.stdout for name, description in FORMATS.items())
    for parameter in main.get_command(None, command).params:
        argument = parameter.metavar or parameter.name.upper()
        name = parameter.opts[0] if parameter.param_type_name == "option" else argument.rstrip(".")
        assert name in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.parametrize("command", ["fit", "plan"])
def test_help_lists_options_under_headings_on_80_lines(run, command):
    text = run(command, "--help").stdout
    headings = [text.index(heading) for heading in ("\nMain options:", "\nMore options:", "\nWhere and how it runs:")]
    assert headings == sorted(headings)
    assert headings[0] < text.index("  --landmarks") < headings[1] < text.index("  --degree") < headings[2]
    assert len(re.findall(r"\n  --landmarks ", text)) == 1
    assert text.count("\n") <= 80


# ---------------------------------------------------------------- exit codes


FAILING = {
    "missing source": (3, "none.npz", ["ingest", "none.npz", "new"]),
    "unknown format": (3, "junk.bin", ["ingest", "junk.bin", "new"]),
    "missing corpus": (3, "does not exist", ["info", "none"]),
    "missing model": (3, "does not exist", ["predict", "none", "digits.corpus", "new"]),
    "not a corpus": (3, "by bigkernel ingest FILE", ["fit", "digits.npz", "new"]),
    "not a model": (7, "digits.corpus", ["predict", "digits.corpus", "digits.corpus", "new"]),
    "alpha below 0": (8, "alpha", ["fit", "digits.corpus", "new", "--alpha", "-1"]),
    "sigma 0": (8, "sigma", ["fit", "digits.corpus", "new", "--sigma", "0"]),
    "gamma of a gaussian": (8, "gamma", ["fit", "digits.corpus", "new", "--gamma", "1"]),
    "transform twice": (8, "transform", ["fit", "digits.corpus", "new", *["--transform", "scale"] * 2]),
    "components of krr": (8, "not used by krr", ["fit", "digits.corpus", "new", "--components", "9"]),
    "artl of numbers": (8, "expected classes", ["fit", "numbers.corpus", "new", "--method", "artl"]),
    "no landmarks": (2, "landmarks", ["fit", "digits.corpus", "new", "--landmarks", "0"]),
    "unknown option": (2, "--wrong", ["fit", "digits.corpus", "new", "--wrong"]),
    "unknown command": (2, "guess", ["guess"]),
    "misspelt command": (2, "No such command 'fitt'", ["fitt", "digits.corpus"]),
    "misspelt option": (2, "--landmarks", ["fit", "digits.corpus", "new", "--landmrks", "9"]),
    "missing argument": (2, "MODEL", ["fit", "digits.corpus"]),
    "resume without a run": (2, "--run", ["fit", "digits.corpus", "new", "--resume"]),
    "target exists": (3, "already exists", ["fit", "digits.corpus", "digits.model"]),
    "target exists, predict": (3, "already exists", ["predict", "digits.model", "digits.corpus", "numbers.corpus"]),
    "target exists, ingest": (3, "already exists", ["ingest", "digits.npz", "digits.corpus"]),
    "target below a file": (3, "cannot be written", ["fit", "digits.corpus", "digits.npz/new"]),
    "target below a file, predict": (3, "be written", ["predict", "digits.model", "digits.corpus", "digits.npz/new"]),
    "target below a file, ingest": (3, "cannot be written", ["ingest", "numbers.npz", "digits.npz/new"]),
    "no cluster file": (8, "found none", ["fit", "digits.corpus", "new", "--cluster", "none.yaml"]),
    "bad cluster file": (8, "nodes", ["fit", "digits.corpus", "new", "--cluster", "bad.yaml"]),
    "memory limit": (8, "memory", ["fit", "digits.corpus", "new", "--cluster", "local", "--memory-limit", "lots"]),
    "other features": (3, "16 features", ["score", "narrow.model", "digits.corpus"]),
    "other features, predict": (3, "16 features", ["predict", "narrow.model", "digits.corpus", "new"]),
    "no labels": (3, "label", ["fit", "bare.corpus", "new"]),
    "no labels, score": (3, "label", ["score", "digits.model", "bare.corpus"]),
    "no labelled row": (3, "label", ["score", "digits.model", "unlabelled.corpus"]),
}


@pytest.fixture(scope="module")
def odd(made, tmp_path_factory):
    """Add files and corpora that commands refuse."""
    root = tmp_path_factory.mktemp("odd")
    shutil.copytree(made, root, dirs_exist_ok=True)
    (root / "junk.bin").write_bytes(bytes(range(256)) * 4)
    (root / "bad.yaml").write_text("bigkernel:\n  cluster:\n    kind: local\n    nodes: 3\n")
    np.savez(root / "narrow.npz", x=ROWS[:, :5], y=LABELS)
    np.savez(root / "bare.npz", x=ROWS)
    np.savez(root / "unlabelled.npz", x=ROWS, y=np.full(N, -1))
    for arguments in (
        ["ingest", "narrow.npz", "narrow.corpus"],
        ["ingest", "bare.npz", "bare.corpus"],
        ["ingest", "unlabelled.npz", "unlabelled.corpus", "--labels-are", "numbers"],
        ["fit", "narrow.corpus", "narrow.model", "--landmarks", "10"],
    ):
        where = [str(root / part) if "." in part else part for part in arguments]
        result = CliRunner().invoke(main, where)
        assert result.exit_code == 0, (arguments, result.output)
    # all labels of this corpus are missing: −1, which is no class
    metadata = root / "unlabelled.corpus" / "zarr.json"
    content = json.loads(metadata.read_text())
    content["attributes"]["bigkernel"]["classes"] = [0, 1, 2]
    metadata.write_text(json.dumps(content))
    return root


@pytest.mark.parametrize("code, message, command", FAILING.values(), ids=FAILING)
def test_a_failure_has_an_exit_code_and_a_message_and_writes_nothing(run, odd, monkeypatch, code, message, command):
    monkeypatch.chdir(odd)
    before = files(odd)
    result = run(*command, code=code)
    assert message in result.stderr
    assert result.stdout == ""
    assert files(odd) == before


@pytest.mark.parametrize(
    "command",
    [
        ["ingest", "digits.npz", "thesis"],
        ["fit", "digits.corpus", "thesis", "--landmarks", "10"],
        ["predict", "digits.model", "digits.corpus", "thesis"],
    ],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize("kind", ["directory", "file"])
def test_overwrite_does_not_replace_files_of_another_kind(run, work, command, kind):
    thesis = work / "thesis"
    if kind == "directory":
        thesis.mkdir()
        thesis = thesis / "chapter"
    thesis.write_text("years of work")
    assert "thesis" in run(*command, "--overwrite", code=3).stderr
    assert thesis.read_text() == "years of work"


def test_info_of_a_model_has_its_steps_settings_and_arrays(run, work):
    found = json.loads(run("info", "digits.model", "--json").stdout)
    assert found["steps"] == "UnitNormalizer → KernelRidgeClassifier"
    assert (found["n_landmarks"], found["kernel"]) == (40, {"name": "gaussian", "sigma": 0.7})
    assert found["keeps_its_sums"]
    assert "model.1.solution.coef (40, 3)" in found["arrays"]


def test_overwrite_replaces_files_of_the_same_kind(run, work):
    run("fit", "digits.corpus", "digits.model", "--overwrite", "--landmarks", 10)
    assert len(load_model("digits.model").landmarks_) == 10
    run("predict", "digits.model", "digits.corpus", "out")
    run("predict", "digits.model", "numbers.corpus", "out", "--overwrite")
    run("ingest", "numbers.npz", "digits.corpus", "--overwrite")
    assert open_corpus("digits.corpus").info.classes == ()


@pytest.mark.cluster
def test_a_cluster_gives_the_same_model(run, work, cluster):
    fitted = json.loads(
        run("fit", "digits.corpus", "far.model", *FIT, "--cluster", cluster.scheduler_address, "--json").stdout
    )
    assert fitted["executor"] == "dask"
    assert_array_equal(load_model("far.model")[-1].dual_coef_, load_model("digits.model")[-1].dual_coef_)
    scored = [
        json.loads(run("score", "digits.model", "digits.corpus", *where, "--json").stdout)
        for where in ([], ["--cluster", cluster.scheduler_address])
    ]
    assert scored[0]["confusion"] == scored[1]["confusion"]
    result = run("predict", "digits.model", "digits.corpus", "out", "--cluster", cluster.scheduler_address)
    assert "dashboard: http://127.0.0.1:" in result.stderr
