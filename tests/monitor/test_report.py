"""The state of a run and its page: of real jobs, of jobs that died, failed or were resumed, and of damage."""

import json
import shutil

import dask
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_run import make_run
from page_reader import read

from bigkernel import Gaussian, KernelRidgeClassifier, LinearRegression, executing
from bigkernel.data.run_lock import locked
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import sweep
from bigkernel.errors import DataError
from bigkernel.events.job import Figures, SegmentDone, emit, observe
from bigkernel.kernels.feature_maps import IdentityMap
from bigkernel.monitor.report import gather, write
from bigkernel.statistics.moments import FeatureSums

pytestmark = pytest.mark.usefixtures("small_steps")
X = np.random.default_rng(8).normal(size=(200, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
SEGMENTS = 40


@pytest.fixture
def corpus(make_corpus):
    """200 rows of two classes, cut into at least five segments."""
    return make_corpus(X, y=Y, classes=(0, 1))


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A job that was killed half way and resumed after an hour; tests must not change it."""
    return make_run(tmp_path_factory.mktemp("killed") / "digits.run", segments=SEGMENTS)


@pytest.fixture
def copy(killed, tmp_path):
    """The same, to be damaged."""
    shutil.copytree(killed, tmp_path / "copy")
    return tmp_path / "copy"


def reported(run):
    """Write the report of a run, and read the state inside."""
    page = write(run)
    assert page == run / "report.html"
    assert not list(run.glob(".*.partial"))
    return read(page.read_text(encoding="utf-8"))


def fit(corpus, run, client="serial", **options):
    with executing(client, run=run, command=["bigkernel", "fit", "my corpus"], **options):
        fitted = KernelRidgeClassifier(Gaussian(sigma=1.0), n_landmarks=20, random_state=0).fit(corpus)
        emit(Figures("fit", fitted.fit_report()))


def interrupted(corpus, run, *, after=2):
    """A fit that is interrupted when one segment more than these is finished, which no observer receives."""

    def interrupt(event):
        if isinstance(event, SegmentDone) and event.done > after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), observe(interrupt):
        fit(corpus, run)


def test_a_job_leaves_the_report_of_what_it_did(corpus, tmp_path):
    fit(corpus, tmp_path / "run", "threads")
    state = read((tmp_path / "run" / "report.html").read_text())
    run, (job,) = state["run"], state["jobs"]
    assert (run["state"], run["name"], run["command"]) == ("finished", "run", "bigkernel fit 'my corpus'")
    assert run["gaps"] == []
    (kept,) = run["sweeps"]
    assert (kept["name"], kept["state"], kept["rows_done"]) == ("moments", "finished", 200)
    assert kept["settings"]["block_rows"] == "16"
    (sweep,) = job["sweeps"]
    assert sweep["states"] == "m" * kept["segments"]
    assert set(sweep["stage_seconds"]) >= {"block", "gram"}
    assert job["figures"]["fit"]["diagnostics"]["prediction_error"] < 1e-3


@pytest.mark.cluster
def test_the_work_of_every_worker_of_a_cluster_is_shown(corpus, client, tmp_path):
    fit(corpus, tmp_path / "run", client)
    workers = gather(tmp_path / "run")["jobs"][0]["sweeps"][0]["workers"]
    assert set(workers) <= {str(address) for address in client.scheduler_info()["workers"]}
    assert sum(worker["rows"] for worker in workers.values()) == 200
    assert all(worker["peak_bytes"] > 1e7 for worker in workers.values())


def test_an_interrupted_job_that_is_resumed_shows_both_attempts(corpus, tmp_path):
    interrupted(corpus, tmp_path / "run")
    run = reported(tmp_path / "run")["run"]
    assert (run["state"], run["segments_done"]) == ("interrupted", 3)
    assert run["command"] == "bigkernel fit 'my corpus' --resume"
    fit(corpus, tmp_path / "run", resume=True)
    with pytest.raises(DataError, match="already holds a run"):
        fit(corpus, tmp_path / "run")
    state = reported(tmp_path / "run")
    assert state["run"]["state"] == "finished"  # whatever is refused
    assert [job["state"] for job in state["jobs"]] == ["failed", "finished", "interrupted"]
    assert state["jobs"][1]["sweeps"][0]["resumed"] == [0, 1, 2]


def test_a_failed_job_shows_its_error_and_one_without_a_sweep_says_so(corpus, tmp_path):
    with pytest.raises(ValueError, match="early"), executing("serial", run=tmp_path / "run"):
        raise ValueError("early")
    state = reported(tmp_path / "run")
    assert (state["run"]["state"], state["jobs"][0]["error"]) == ("failed", "ValueError: early")
    assert state["run"]["gaps"] == ["No sweep has started."]


def test_a_directory_without_a_run_is_refused_and_a_page_that_cannot_be_written_leaves_nothing(killed, tmp_path):
    with pytest.raises(DataError, match="found no run"):
        write(tmp_path)
    (tmp_path / "taken").mkdir()
    with pytest.raises(DataError, match="cannot be written"):
        write(killed, tmp_path / "taken")
    assert not list(tmp_path.glob(".*.partial"))


def test_a_job_at_work_is_reported_as_it_is_now(corpus, tmp_path):
    with executing("serial", run=tmp_path / "run"):
        LinearRegression().fit(corpus)
        assert reported(tmp_path / "run")["run"]["state"] == "running"
    assert gather(tmp_path / "run")["run"]["state"] == "finished"


@pytest.mark.parametrize("state", ["failed", "interrupted", ""])
def test_a_job_without_a_journal_is_at_work_whatever_became_of_the_one_before(state, copy):
    lines = (copy / "journal.jsonl").read_text().splitlines(keepends=True)
    lines = [line for line in lines if '"second' not in line]
    if state:
        end = {"kind": "job_ended", "job": "first", "state": state, "error": "x", "time": json.loads(lines[-1])["time"]}
        lines.append(json.dumps(end) + "\n")
    (copy / "journal.jsonl").write_text("".join(lines))
    (copy / "moments" / "receipts" / "0-3.json").unlink()
    (copy / "moments" / "receipts" / f"{(SEGMENTS - 1).bit_length()}-0.json").unlink()
    with locked(copy):
        assert gather(copy)["run"]["state"] == "running"
    found = gather(copy)
    assert (found["run"]["state"], found["jobs"][0]["state"]) == (state or "interrupted", state or "lost")


def test_no_sweep_and_no_attempt_is_forgotten(tmp_path, copy):
    with executing("serial", run=tmp_path / "run"), dask.config.set({"bigkernel.min-segments": 1}):
        for _ in range(14):
            sweep(as_rows(X), FeatureSums(IdentityMap(np.zeros(4))), what="means")
    assert len(gather(tmp_path / "run")["jobs"][0]["sweeps"]) == 14
    lines = (copy / "journal.jsonl").read_text().splitlines(keepends=True)
    more = [line.replace('"first', f'"job{i}') for i in range(20) for line in lines if '"first' in line]
    (copy / "journal.jsonl").write_text("".join(lines + more))
    assert len(gather(copy)["jobs"]) == 22


def test_of_many_sweeps_only_the_longest_keep_their_segments(copy):
    lines = [json.loads(line) for line in (copy / "journal.jsonl").read_text().splitlines()]
    first = next(line for line in lines if line["kind"] == "sweep_started" and line["job"] == "second")
    more = [{**first, "sweep": f"more{i}", "what": f"more{i}"} for i in range(60)]
    (copy / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*lines[:-1], *more, lines[-1]]))
    sweeps = [one for job in reported(copy)["jobs"] for one in job["sweeps"]]
    assert sum("states" in one for one in sweeps) == 40


@pytest.mark.parametrize("place", ["same", "moved", "linked"])
def test_a_sweep_with_a_run_of_its_own_is_one_sweep_wherever_it_is(place, tmp_path):
    run = tmp_path / "same"
    sweep(as_rows(X), FeatureSums(IdentityMap(np.zeros(4))), client="serial", run=run, what="means")
    if place == "moved":
        run = run.rename(tmp_path / "moved")
    elif place == "linked":
        (tmp_path / "linked").symlink_to(run)
        run = tmp_path / "linked"
    state = reported(run)
    assert (state["run"]["state"], state["run"]["sweeps"][0]["rows_done"]) == ("finished", 200)
    assert [one["what"] for one in state["jobs"][0]["sweeps"]] == ["means"]


DAMAGE = {
    "cut off": lambda text: text[: len(text) // 2],
    "garbage lines": lambda text: "\x00\x01{]\n" + text.replace("\n", "\nnull\n[1,2]\n", 40),
    "empty": lambda text: "",
    "not a number": lambda text: text.replace('"elapsed": ', '"elapsed": NaN, "was": '),
    "infinite plan": lambda text: text.replace('"flops": ', '"flops": Infinity, "was": '),
    "texts for numbers": lambda text: text.replace('"peak_bytes": ', '"peak_bytes": "many", "was": '),
    "lists for texts": lambda text: text.replace('"worker": "', '"worker": ["a"], "was": "'),
    "no times": lambda text: text.replace('"time": ', '"time": null, "was": '),
    "huge times": lambda text: text.replace('"time": ', '"time": 1e300, "was": '),
    "plans of another kind": lambda text: text.replace('"plan": {', '"plan": 7, "was": {'),
    "no stops": lambda text: text.replace('"stops": [', '"stops": [], "was": ['),
    "unknown kinds": lambda text: text.replace('"kind": "segment"', '"kind": "fragment"'),
    "no first line": lambda text: text.split("\n", 1)[1],
    "a deep line": lambda text: text + "[" * 200_000 + "\n",
    "deep figures": lambda text: text.replace('"plan": {', '"plan": {"x": ' + "[" * 500 + "]" * 500 + ", ", 1),
    "half letters": lambda text: text.replace('"title": "', '"title": "\\ud800').replace("worker tcp", "\\ud800"),
    "only the end": lambda text: text.splitlines(keepends=True)[-1],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_journal_never_keeps_a_report_from_being_made(damage, copy):
    path = copy / "journal.jsonl"
    path.write_text(damage(path.read_text()))
    state = reported(copy)
    assert state["run"]["segments_done"] == SEGMENTS


def test_one_line_that_is_damaged_costs_that_line(copy, killed):
    for line in ("[" * 200_000, '{"kind": "note", "text": "x", "job": "second", "time": 1e300}'):
        with open(copy / "journal.jsonl", "a") as file:
            file.write(line + "\n")
    assert gather(copy)["jobs"] == gather(killed)["jobs"]
    assert gather(copy)["run"]["gaps"] == ["2 damaged lines of the journal are left out."]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_change_of_bytes_keeps_a_report_from_being_made(data, copy, killed):
    text = bytearray((killed / "journal.jsonl").read_bytes())
    for _ in range(data.draw(st.integers(1, 30))):
        place = data.draw(st.integers(0, len(text) - 1))
        text[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    (copy / "journal.jsonl").write_bytes(bytes(text))
    assert reported(copy)["run"]["state"] in ("finished", "interrupted", "failed")


@pytest.mark.parametrize("name", ["command.json", "moments/manifest.json", "moments/receipts/0-3.json", "lock.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"command": 7, "sha256": "x"}'])
def test_damaged_files_are_named_or_left_out(name, content, copy):
    (copy / name).write_bytes(content)
    gaps = " ".join(reported(copy)["run"]["gaps"])
    assert ("is damaged: the settings are unknown" in gaps) == (name == "moments/manifest.json")


@pytest.mark.slow
def test_a_report_of_two_thousand_segments_takes_less_than_a_megabyte(tmp_path):
    page = write(make_run(tmp_path / "big", segments=2000, workers=100))
    assert 50_000 < page.stat().st_size < 1_000_000
