"""Commands that are killed and resumed: `tune`, `predict`; F28, another job in the same run directory."""

import csv
import json
import re
import signal

import dask
import pytest
from drivers import HELD, SEGMENTS, SLOW, Driver, leftovers, published, same_model

from bigkernel.data import zarr_arrays
from bigkernel.data.run_directory import survey

pytestmark = pytest.mark.cluster
GRID = ["--landmarks", "200", "--sigma", "2:8:3", "--alpha", "1e-2,1", "--folds", "3", "--seed", "1"]


def table(path):
    with open(path / "results.csv", newline="") as file:
        return list(csv.reader(file))


def digest(path):
    return zarr_arrays.digest(zarr_arrays.read_group(path, "predictions")[0])


@pytest.fixture(scope="module")
def undisturbed(fault_corpus, tmp_path_factory):
    """The directory of the undisturbed search on threads."""
    folder = tmp_path_factory.mktemp("undisturbed")
    twin = Driver(["tune", fault_corpus.path, *GRID, "--cluster", "threads", "--out", "twin"], folder, **SLOW)
    assert twin.wait() == 0, twin.errors()
    return folder / "twin"


@pytest.mark.slow
def test_a_killed_search_is_resumed_to_the_same_results(fault_corpus, undisturbed, start, tmp_path):
    command = ["tune", fault_corpus.path, *GRID, "--cluster", "threads", "--out", "out"]
    driver = start(command, **HELD)
    receipts = tmp_path / "out" / ".tune.run" / "tune" / "receipts"
    driver.until(lambda: len(list(receipts.glob("0-*.json"))) >= 3, "three segments")
    driver.process.send_signal(signal.SIGKILL)
    assert driver.wait() == -9
    refused = start(command, **SLOW)
    assert refused.wait() == 3
    assert "holds an interrupted search; pass --resume to continue" in refused.errors()
    again = start([*command, "--resume"], **SLOW)
    assert again.wait() == 0, again.errors()
    assert table(tmp_path / "out") == table(undisturbed)
    assert same_model(tmp_path / "out" / "best.model", undisturbed / "best.model")
    assert leftovers(tmp_path / "out") == []
    assert not (tmp_path / "out" / ".tune.run").exists()


@pytest.fixture(scope="module")
def fitted(fault_corpus, tmp_path_factory):
    """A model of the corpus, and its undisturbed predictions."""
    folder = tmp_path_factory.mktemp("fitted")
    for command in (
        ["fit", fault_corpus.path, "m.model", "--landmarks", "200", "--seed", "1"],
        ["predict", "m.model", fault_corpus.path, "twin", "--decision"],
    ):
        driver = Driver(command, folder, **SLOW)
        assert driver.wait() == 0, driver.errors()
    return folder / "m.model", folder / "twin"


@pytest.mark.slow
def test_a_killed_prediction_is_resumed_to_the_same_bytes(fault_corpus, fitted, start, tmp_path):
    model, twin = fitted
    command = ["predict", model, fault_corpus.path, "out", "--decision", "--run", "run"]
    driver = start(command, **HELD)
    driver.until(lambda: published(tmp_path / "run") >= 3, "three segments")
    driver.process.kill()
    assert driver.wait() == -9
    assert not (tmp_path / "out").exists()  # half-written stores have another name
    kept = published(tmp_path / "run")
    again = start([*command, "--resume"], **SLOW)
    assert again.wait() == 0, again.errors()
    assert sum(len(path.read_text().splitlines()) - 1 for path in tmp_path.glob("run/*/starts/0-*")) <= 2
    assert kept >= 3
    assert digest(tmp_path / "out") == digest(twin)
    assert leftovers(tmp_path / "run") == []
    assert list(tmp_path.glob("*.partial")) == []


CHANGES = [
    (["--sigma", "3"], r"statistic\.features\.kernel\.sigma was 4\.0, now it is 3\.0"),
    (["--kernel", "matern"], r"statistic\.features\.kernel was Gaussian, now it is Matern"),
    (["--seed", "2"], r"statistic\.features\.landmarks has other values than before \(float\d\d \(200, 32\)\)"),
    (["--transform", "unit-norm"], r"row_maps was none, now it is 1"),
]


@pytest.mark.slow
def test_f28_a_changed_job_is_refused_and_another_penalty_resumes(fault_corpus, start, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = ["fit", fault_corpus.path, "a.model", "--landmarks", "200", "--seed", "1", "--sigma", "4", "--run", "run"]
    driver = start(job, **HELD)
    driver.until(lambda: published(tmp_path / "run") >= 2, "two segments")
    (state,) = survey(tmp_path / "run")  # while it runs
    assert (state.state, state.holder.split()[1]) == ("running", str(driver.process.pid))
    driver.process.send_signal(signal.SIGTERM)
    assert driver.wait() == 75
    before = published(tmp_path / "run")
    with dask.config.set({"bigkernel.min-segments": SEGMENTS}):
        assert "block_rows was 64, now it is 2048" in run(*job, "--resume", code=5).stderr
        with dask.config.set({"bigkernel.block-rows": 64}):
            for change, text in CHANGES:
                message = rf"ResumeMismatchError: \S+: the run on disk belongs to another job: .*{text}"
                assert re.search(message, run(*job, *change, "--resume", code=5).stderr)
            assert published(tmp_path / "run") == before
            # the sweep does not depend on the penalty
            assert json.loads(run(*job, "--alpha", "3", "--resume", "--json").stdout)["resumed_segments"] == before
    (state,) = survey(tmp_path / "run")
    assert (state.state, state.segments_done, state.rows_done) == ("finished", state.segments, state.rows)
    run("check", "run")
