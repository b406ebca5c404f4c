"""The report of a run: of real jobs, of jobs that died, failed or were gone on with, and of damaged directories."""

import json
import os
import shutil

import dask
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_run import make_run, put_into_journal, tell

from bigkernel import Gaussian, KernelRidgeClassifier, LinearRegression, executing
from bigkernel.data.run_directory import read_sealed, write_sealed
from bigkernel.data.run_lock import locked
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import sweep
from bigkernel.errors import DataError
from bigkernel.events.kinds import Figures, SegmentDone
from bigkernel.events.scope import emit, observe
from bigkernel.kernels.feature_maps import IdentityMap
from bigkernel.monitor.report import figures, gather, write
from bigkernel.statistics.feature_sums import FeatureSums

pytestmark = pytest.mark.usefixtures("small_steps")
CHANCE = np.random.default_rng(8)
X = CHANCE.normal(size=(200, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)


@pytest.fixture
def corpus(make_corpus):
    """200 rows of two classes, cut into at least five segments."""
    return make_corpus(X, y=Y, classes=(0, 1))


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A job that was killed half way and gone on with after an hour, never to be changed."""
    return make_run(tmp_path_factory.mktemp("killed") / "digits.run", segments=120)


@pytest.fixture
def copy(killed, tmp_path):
    """The same, to be damaged."""
    shutil.copytree(killed, tmp_path / "copy")
    return tmp_path / "copy"


def model():
    return KernelRidgeClassifier(Gaussian(sigma=1.0), n_landmarks=20, random_state=0)


def test_a_job_leaves_the_report_of_what_it_did(corpus, tmp_path, reported):
    with executing("threads", run=tmp_path / "run", command=["bigkernel", "fit", "a.corpus"]):
        fitted = model().fit(corpus)
        emit(Figures("fit", fitted.fit_report()))
    facts = gather(tmp_path / "run")
    assert facts.state == "finished"
    (sweep,) = facts.sweeps
    found = sweep.figures()
    assert (found["sweep"], found["state"], found["rows_done"]) == ("moments", "finished", 200)
    assert found["segments_done"] == found["segments"] >= 5
    assert found["bytes_read"] == found["planned_bytes_read"] == X.nbytes
    assert found["computed_flops"] == pytest.approx(found["planned_flops"])
    assert found["seconds"] > 0
    assert set(found["stage_seconds"]) >= {"block", "gram"}
    page = reported(tmp_path / "run")
    assert "Finished" in page.text
    for heading in ("Plan against measurement", "Timeline", "Where the time went", "Certificates of the numbers"):
        assert heading in page.headings
    assert "residual of the solve" in page.text
    assert "bigkernel fit a.corpus" in page.text


@pytest.mark.cluster
def test_the_work_of_every_worker_of_a_cluster_is_shown(corpus, client, tmp_path, reported):
    with executing(client, run=tmp_path / "run"):
        model().fit(corpus)
    (sweep,) = gather(tmp_path / "run").sweeps
    workers = sweep.workers()
    assert set(workers) <= {str(address) for address in client.scheduler_info()["workers"]}
    assert sum(worker["rows"] for worker in workers.values()) == 200
    assert all(worker["peak_bytes"] > 1e7 for worker in workers.values())
    assert "Memory of the workers" in reported(tmp_path / "run").headings


def interrupted(corpus, run, *, after=2):
    """A fit that is interrupted when one segment more than these is finished, which nobody hears of any more."""

    def interrupt(event):
        if isinstance(event, SegmentDone) and event.done > after:
            raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        observe(interrupt),
        executing("serial", run=run, command=["/usr/bin/bigkernel", "fit", "my corpus"]),
    ):
        model().fit(corpus)


def test_an_interrupted_job_says_what_is_kept_and_how_to_go_on(corpus, tmp_path, reported):
    interrupted(corpus, tmp_path / "run")
    page = reported(tmp_path / "run")
    facts = gather(tmp_path / "run")
    assert facts.state == "interrupted"
    assert facts.sweeps[0].state == "interrupted"
    assert f"3 of {facts.sweeps[0].segments} segments are kept" in page.text
    assert "/usr/bin/bigkernel fit 'my corpus' --resume" in page.text


def test_a_resumed_job_shows_both_attempts_and_adds_them_up(corpus, tmp_path, reported):
    interrupted(corpus, tmp_path / "run")
    with executing("serial", run=tmp_path / "run", resume=True, command=["bigkernel", "fit"]):
        model().fit(corpus)
    facts = gather(tmp_path / "run")
    (sweep,) = facts.sweeps
    assert [attempt.job["state"] for attempt in facts.attempts] == ["interrupted", "finished"]
    # the journal does not know the segment that was published while the driver was stopped; receipts do
    assert sum(worker["segments"] for worker in sweep.workers().values()) == sweep.segments - 1
    leaves = [(attempt, receipt) for attempt, receipt in sweep.receipts if receipt.node.startswith("0-")]
    assert sorted({attempt for attempt, _ in leaves}) == [0, 1]
    assert sum(attempt == 0 for attempt, _ in leaves) == 3
    page = reported(tmp_path / "run")
    assert "Finished in 2 attempts" in page.text
    assert "attempt 2" in page.text
    assert f"taken over moments: 3 of {sweep.segments} segments found in the run" in page.text


def test_a_failed_job_shows_its_error_as_text(corpus, tmp_path, reported):
    def explode(event):
        if isinstance(event, Figures):
            raise SystemExit("<script>alert(1)</script> & more")

    with pytest.raises(SystemExit), observe(explode), executing("serial", run=tmp_path / "run", command=["fit"]):
        emit(Figures("fit", model().fit(corpus).fit_report()))
    page = reported(tmp_path / "run")
    assert "Failed" in page.text
    assert "SystemExit: <script>alert(1)</script> & more" in page.text
    assert gather(tmp_path / "run").state == "failed"


def test_a_job_that_fails_before_its_first_sweep_has_a_report(tmp_path, reported):
    with pytest.raises(ValueError, match="early"), executing("serial", run=tmp_path / "run"):
        raise ValueError("early")
    page = reported(tmp_path / "run")
    assert "nothing was finished yet" in page.text
    assert "No sweep had begun." in page.text


def test_a_directory_without_a_run_is_refused(tmp_path):
    with pytest.raises(DataError, match="no run is there"):
        write(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_page_that_cannot_be_written_leaves_nothing(corpus, tmp_path):
    with executing("serial", run=tmp_path / "run"):
        model().fit(corpus)
    (tmp_path / "taken").mkdir()
    with pytest.raises(DataError, match="cannot be written"):
        write(tmp_path / "run", tmp_path / "taken")
    assert not list(tmp_path.glob(".*.partial"))


def test_text_from_outside_is_never_markup(copy, reported):
    evil = "<script>x</script>\"'&\n</style>"
    put_into_journal(copy, evil)
    moved = copy.rename(copy.with_name("<script>run"))
    page = reported(moved)
    assert page.titles[0] == "<script>run"
    assert page.text.count("<script>x</script>") > 5
    assert "Confusion" in page.headings


def test_a_job_at_work_is_reported_as_it_is_now(corpus, tmp_path, reported):
    with executing("serial", run=tmp_path / "run"):
        model().fit(corpus)
        assert gather(tmp_path / "run").state == "running"
        assert "Running since" in reported(tmp_path / "run").text
    assert gather(tmp_path / "run").state == "finished"


def test_clocks_that_differ_do_not_move_work_to_another_attempt(copy):
    for file in (copy / "moments" / "receipts").glob("0-*.json"):
        receipt = read_sealed(file)
        write_sealed(file, {**receipt, "ended": receipt["ended"] - 86_400})  # workers of yesterday
    (sweep,) = gather(copy).sweeps
    leaves = [attempt for attempt, receipt in sweep.receipts if receipt.node.startswith("0-")]
    assert leaves.count(1) == 60


def age(run):
    """Let a minute have passed since the last line of the journal."""
    old = (run / "journal.jsonl").stat().st_mtime - 60
    os.utime(run / "journal.jsonl", (old, old))


@pytest.mark.parametrize("failed", [False, True])
def test_what_a_job_without_a_journal_has_finished_is_finished(failed, corpus, tmp_path, reported):
    run = tmp_path / "run"
    interrupted(corpus, run)
    if failed:
        journal = run / "journal.jsonl"
        journal.write_text(journal.read_text().replace('"state": "interrupted"', '"state": "failed"'))
    with dask.config.set({"bigkernel.monitor": False}), executing("serial", run=run, resume=True):
        model().fit(corpus)
    age(run)
    facts = gather(run)
    assert (facts.state, facts.error, facts.sweeps[0].state) == ("finished", "", "finished")
    page = reported(run)
    assert "Finished" in page.text
    assert "The last attempt left no journal" in page.text
    assert "To go on" not in page.text


@pytest.mark.parametrize("state", ["failed", "interrupted", ""])
def test_a_job_without_a_journal_is_at_work_whatever_became_of_the_one_before(state, copy):
    lines = (copy / "journal.jsonl").read_text().splitlines(keepends=True)
    lines = [line for line in lines if '"second' not in line]
    if state:
        end = {"kind": "job_ended", "job": "first", "state": state, "error": "x", "time": json.loads(lines[-1])["time"]}
        lines.append(json.dumps(end) + "\n")
    (copy / "journal.jsonl").write_text("".join(lines))
    (copy / "moments" / "receipts" / "0-3.json").unlink()
    (copy / "moments" / "receipts" / f"{(120 - 1).bit_length()}-0.json").unlink()
    with locked(copy):
        facts = gather(copy)
    assert (facts.state, facts.error, facts.sweeps[0].state) == ("running", "", "running")
    assert gather(copy).state == (state or "interrupted")


def test_a_job_of_many_sweeps_that_failed_after_them_has_failed(tmp_path):
    def work():
        with executing("serial", run=tmp_path / "run"):
            for _ in range(14):
                sweep(as_rows(X), FeatureSums(IdentityMap(np.zeros(4))), what="means")
            raise ValueError("the solve")

    with pytest.raises(ValueError, match="the solve"):
        work()
    age(tmp_path / "run")
    facts = gather(tmp_path / "run")
    assert facts.state == "failed"
    assert [len(one.parts) for one in facts.sweeps] == [1] * 14
    assert {part["executor"] for one in facts.sweeps for _, part in one.parts} == {"serial"}, "none is forgotten"


@pytest.mark.parametrize("place", ["same", "moved", "linked"])
def test_a_sweep_with_a_run_of_its_own_is_one_sweep_wherever_it_is(place, tmp_path, reported):
    run = tmp_path / "same"
    sweep(as_rows(X), FeatureSums(IdentityMap(np.zeros(4))), client="serial", run=run, what="means")
    if place == "moved":
        run = run.rename(tmp_path / "moved")
    elif place == "linked":
        (tmp_path / "linked").symlink_to(run)
        run = tmp_path / "linked"
    (found,) = gather(run).sweeps
    assert (found.name, found.state, found.rows_done) == (place, "finished", 200)
    ((number, part),) = found.parts
    assert (number, part["what"], part["executor"]) == (0, "means", "serial")
    assert "Finished" in reported(run).text


def test_a_killed_driver_is_told_from_one_that_was_interrupted(copy, reported):
    lines = (copy / "journal.jsonl").read_text().splitlines(keepends=True)
    (copy / "journal.jsonl").write_text("".join(line for line in lines if '"second' not in line))
    facts = gather(copy)
    assert facts.state == "interrupted"
    assert "The driver ended without a word" in reported(copy).text


def test_many_attempts_are_all_remembered(copy):
    lines = (copy / "journal.jsonl").read_text().splitlines(keepends=True)
    more = [line.replace('"first', f'"job{i}') for i in range(20) for line in lines if '"first' in line]
    (copy / "journal.jsonl").write_text("".join(lines + more))
    assert len(gather(copy).attempts) == 22


def test_pauses_between_attempts_are_drawn_short(killed, reported):
    page = reported(killed)
    assert "Grey bands are pauses of 9 min 40 s, 1 h." in page.text
    assert "driver died" in page.text
    facts = gather(killed)
    assert facts.sweeps[0].figures()["announced_bytes"] == 630_000_000
    assert facts.sweeps[0].figures()["predicted_seconds"] > 0


def test_a_run_without_a_journal_is_read_from_its_receipts(tmp_path, reported):
    run = make_run(tmp_path / "old", journal=False)
    facts = gather(run)
    (sweep,) = facts.sweeps
    found = sweep.figures()
    assert facts.state == "finished"
    assert facts.attempts == ()
    assert sum(worker["segments"] for worker in found["workers"].values()) == 40
    assert found["stage_seconds"]["block"] > 0
    assert found["peak_bytes"] == 550_000_000
    page = reported(run)
    assert "Timeline" in page.headings
    assert "There is no journal" in page.text
    assert "Rate over time" not in page.headings


def test_receipts_that_do_not_say_when_they_ended_are_dated_by_their_files(corpus, tmp_path, reported):
    with executing("serial", run=tmp_path / "run"):
        model().fit(corpus)
    for file in (tmp_path / "run" / "moments" / "receipts").glob("*.json"):
        write_sealed(file, {**read_sealed(file), "ended": 0.0})
    (tmp_path / "run" / "journal.jsonl").unlink()
    receipts = [receipt for _, receipt in gather(tmp_path / "run").sweeps[0].receipts]
    assert min(receipt.ended for receipt in receipts) > 1e9
    assert "Timeline" in reported(tmp_path / "run").headings


def test_a_moved_run_is_the_same_run(copy, killed):
    a, b = figures(copy), figures(killed)
    assert a["sweeps"] == b["sweeps"]


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
    "negative times": lambda text: text.replace('"time": ', '"time": -1e15, "was": '),
    "plans of another kind": lambda text: text.replace('"plan": {', '"plan": 7, "was": {'),
    "no stops": lambda text: text.replace('"stops": [', '"stops": [], "was": ['),
    "unknown kinds": lambda text: text.replace('"kind": "segment"', '"kind": "fragment"'),
    "no first line": lambda text: text.split("\n", 1)[1],
    "a deep line": lambda text: text + "[" * 200_000 + "\n",
    "deep figures": lambda text: text.replace('"plan": {', '"plan": {"x": ' + "[" * 500 + "]" * 500 + ", ", 1),
    "numbers for workers": lambda text: text.replace('"worker": "', '"worker": 7, "was": "'),
    "half letters": lambda text: text.replace('"title": "', '"title": "\\ud800').replace("worker tcp", "\\ud800"),
    "only the end": lambda text: text.splitlines(keepends=True)[-1],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_journal_never_keeps_a_report_from_being_made(damage, copy, reported):
    path = copy / "journal.jsonl"
    path.write_text(damage(path.read_text()))
    page = reported(copy)
    assert "Timeline" in page.headings
    json.dumps(figures(copy))


@pytest.mark.parametrize("line", ["[" * 200_000, '{"kind": "note", "text": "x", "job": "second", "time": 1e300}'])
def test_one_line_that_is_damaged_costs_that_line(line, copy, killed):
    with open(copy / "journal.jsonl", "a") as file:
        file.write(line + "\n")
    assert figures(copy)["attempts"] == figures(killed)["attempts"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_change_of_bytes_keeps_a_report_from_being_made(data, copy, killed, reported):
    text = bytearray((killed / "journal.jsonl").read_bytes())
    for _ in range(data.draw(st.integers(1, 30))):
        place = data.draw(st.integers(0, len(text) - 1))
        text[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    (copy / "journal.jsonl").write_bytes(bytes(text))
    assert "Timeline" in reported(copy).headings


def test_a_journal_that_is_a_directory_is_named(copy, reported):
    (copy / "journal.jsonl").unlink()
    (copy / "journal.jsonl").mkdir()
    assert "The journal cannot be read" in reported(copy).text


@pytest.mark.parametrize("name", ["command.json", "moments/manifest.json", "moments/receipts/0-3.json", "lock.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"command": 7, "sha256": "x"}'])
def test_damaged_files_are_named_or_left_out(name, content, copy, reported):
    (copy / name).write_bytes(content)
    page = reported(copy)
    assert ("is damaged: its settings are not known" in page.text) == (name == "moments/manifest.json")
    assert "Timeline" in page.headings


@pytest.mark.parametrize("key", ["start", "bytes_read", "elapsed", "peak_bytes", "skipped", "starts", "ended"])
def test_a_receipt_with_a_text_for_a_number_is_left_out(key, copy, reported):
    path = copy / "moments" / "receipts" / "0-3.json"
    write_sealed(path, {**read_sealed(path), key: "many"})
    (copy / "journal.jsonl").unlink()
    assert "Timeline" in reported(copy).headings
    assert figures(copy)["sweeps"][0]["segments_done"] == 119


def test_without_receipts_the_journal_alone_is_shown(copy, reported):
    shutil.rmtree(copy / "moments" / "receipts")
    page = reported(copy)
    assert "Timeline" not in page.headings
    assert "Where the time went" in page.headings


@pytest.mark.parametrize(
    "values",
    [
        {"rows": "three"},
        {"rows": 3, "classes": 7},
        {"rows": 3, "classes": ["a", "b"], "confusion": [[1]], "worst": 3},
        {"rows": 3, "classes": ["a"], "confusion": [[-1]], "worst": {"row": [1]}},
        {"rows": 3, "classes": ["a"], "confused": [["a", "b", 3]]},
        {"rows": 3, "mse": None, "r2": "x", "residuals": [1, "x"]},
        {"rows": 3, "residuals": [[1.0]], "residual_unit": None},
    ],
    ids=str,
)
def test_figures_of_another_version_cost_one_section_at_most(values, copy, reported):
    tell(copy, ("score", values), ("fit", {"certificates": values}))
    page = reported(copy)
    assert "Timeline" in page.headings
    assert "Settings and versions" in page.headings


@pytest.mark.parametrize(
    ("swept", "shown"),
    [
        ({"excess_by_step": [0.3, 0.02, 4e-4], "tol": 1e-3}, True),
        ({"excess_by_step": [0.3, "x", 0.0, None], "tol": "x"}, True),
        ({"excess_by_step": [], "tol": 1e-3}, False),
        ({"excess_by_step": "many"}, False),
        ({}, False),
    ],
    ids=str,
)
def test_the_steps_of_a_descent_are_drawn_where_there_were_any(swept, shown, copy, reported):
    tell(copy, ("fit", {"sweep": swept}))
    page = reported(copy)
    assert ("Steps of conjugate gradients" in page.headings) == shown
    assert ("wanted: 0.001" in page.text) == (shown and swept["tol"] == 1e-3)
    assert "could not be made" not in page.text


def test_the_best_candidates_of_a_search_are_shown(copy, reported):
    record = {"alpha": 1e-3, "coef0": None, "standard_error": 0.002}
    records = [{"sigma": 0.5 + i, **record, "score": 0.9 - i / 100, "rank": i + 1} for i in range(30)]
    values = {"score": "accuracy", "candidates": 90, "folds": 5, "records": [*records[::-1], 7, {"score": "x"}]}
    tell(copy, ("tune", values))
    page = reported(copy)
    assert "0.9000 best accuracy by cross-validation, ± 0.002" in page.text
    assert "The best 20 of 90 candidates, means over 5 folds, ± their standard error." in page.text
    assert page.text.index("0.90000") < page.text.index("0.89000")


@pytest.mark.slow
def test_two_thousand_segments_of_a_hundred_workers_take_less_than_a_megabyte(tmp_path):
    run = make_run(tmp_path / "big", segments=2000, workers=100)
    page = write(run)
    assert 50_000 < page.stat().st_size < 1_000_000
    assert page.read_text(encoding="utf-8").count("<rect") > 2000


def test_the_figures_are_plain_data(killed):
    found = json.loads(json.dumps(figures(killed), allow_nan=False))
    assert found["state"] == "finished"
    assert found["sweeps"][0]["settings"]["statistic.kernel.sigma"] == "0.7"
    assert found["attempts"][0]["state"] == "running"
    assert [event["kind"] for event in found["attempts"][0]["events"]].count("worker") > 0


def test_sweeps_that_keep_nothing_are_shown_too(corpus, tmp_path, reported):
    with executing("serial", run=tmp_path / "run"):
        LinearRegression().fit(as_rows(X, Y.astype(float)))
    assert gather(tmp_path / "run").state == "finished"
    assert "Finished" in reported(tmp_path / "run").text
