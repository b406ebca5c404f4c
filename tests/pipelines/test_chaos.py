"""The chaos pipeline: a short round of it keeps its promises (F1, F5, F7), and a promise that is broken is told."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from click.testing import CliRunner, Result

from bigkernel import Gaussian, KernelRidge, save_model
from bigkernel.errors import DataError
from pipelines.__main__ import main
from pipelines.chaos import command as chaos
from pipelines.chaos import page as chaos_page
from pipelines.chaos import round as chaos_round
from pipelines.chaos.driver import Driver, Fit, Ledger, clear, differences, kind_of, ledger, leftovers, lives
from pipelines.chaos.round import Log, Record, Round, Trouble

SMALL = ["--minutes", "0", "--rows", "24000", "--landmarks", "1200", "--segments", "12", "--every", "2"]
FIT = Fit(Path("/nowhere"), 10, 2, 100, 12, 0)


def run(out: Path, *args: str) -> Result:
    return CliRunner().invoke(main, ["chaos", *SMALL, "--out", str(out), *args], catch_exceptions=False)


def events(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_a_fit_whose_processes_are_killed_and_frozen_gives_the_same_model(tmp_path: Path) -> None:
    out = tmp_path / "chaos"
    done = run(out)
    assert done.exit_code == 0, done.output
    results = json.loads((out / "results.json").read_text())
    undisturbed, record, *_ = results["records"]  # a quick first round leaves time for another
    assert results["identical"]
    assert record["identical"]
    assert record["kills"]
    assert record["freezes"]
    assert undisturbed["segments"] in (12, 24)  # twice where a processor's float32 sums round beyond the bound
    assert undisturbed["again"] == 0
    assert record["segments"] == undisturbed["segments"]
    assert sorted(how for *_, how in record["drivers"]) == ["SIGKILL"] * 3 + ["SIGTERM", "finished"]
    # a segment is begun again for a worker that was struck, or because its driver died meanwhile
    assert max(record["in_flight"]) <= 2

    told = events(out)
    mine = [event for event in told if event.get("round") == "1"]
    assert [event["seconds"] for event in told] == sorted(event["seconds"] for event in told)
    exits = [event["code"] for event in mine if event["event"] == "exit"]
    assert sorted(exits[:-1]) == [-9, -9, -9, 75]
    assert exits[-1] == 0
    deaths = [event["signal"] for event in mine if event["event"] == "death"]
    assert [{"SIGKILL": -9, "SIGTERM": 75}[name] for name in deaths] == exits[:-1]
    assert sum(event["event"] == "kill" for event in mine) == len(record["kills"])
    assert any("left its lock" in event["text"] for event in mine if event["event"] == "incident")

    assert not [p for p in psutil.process_iter(["cmdline"]) if str(out) in " ".join(p.info["cmdline"] or ())]
    assert leftovers(out) == []
    assert (out / "timeline.png").stat().st_size > 1000
    assert "<img" in (out / "report.html").read_text()
    assert max(map(len, done.output[done.output.index("Rounds") :].splitlines()[1:5])) <= 80


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., Path]:
    """Save a small fitted model under a name, after a change to it."""
    X = np.arange(40.0).reshape(20, 2) / 40

    def make(name: str, change: Callable[[KernelRidge], object] = lambda fitted: None) -> Path:
        fitted = KernelRidge(Gaussian(0.5), n_landmarks=5, random_state=0).fit(X, X[:, 0])
        change(fitted)
        save_model(fitted, tmp_path / name)
        return tmp_path / name

    return make


def one_bit(fitted: KernelRidge) -> None:
    fitted.dual_coef_[0] = np.nextafter(fitted.dual_coef_[0], np.inf)


def test_the_last_bit_of_one_number_is_a_difference(model: Callable[..., Path]) -> None:
    first = model("first.model")
    assert differences(first, model("second.model")) == []
    assert differences(first, model("bit.model", one_bit)) == ["model.solution.coef"]
    other = model("other.model", lambda fitted: fitted.set_params(alpha=2.0))
    assert differences(first, other) == ["model"]
    with pytest.raises(DataError, match="does not exist"):
        differences(first, first.with_name("none.model"))


class Pretended(Round):
    """A round that fits nothing: it takes a model that is there."""

    model: Path

    def run(self) -> Record:
        self._directory.mkdir(parents=True, exist_ok=True)
        source = self.model if self.record.name != "undisturbed" else self.model.with_name("first.model")
        shutil.copyfile(source, self._directory / "fitted.model")
        self.record.drivers = [(0.0, 1.0, "SIGKILL")] * 4 + [(1.0, 2.0, "finished")]
        self.record.kills, self.record.freezes, self.record.seconds = [0.5], [(0.2, 0.9)], 2.0
        return self.record


@pytest.mark.parametrize("change, code", [(one_bit, 1), (lambda fitted: None, 0)], ids=["changed", "same"])
def test_a_model_that_is_not_identical_is_told_and_ends_with_1(
    change: Any, code: int, model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model("first.model")
    Pretended.model = model("other.model", change)
    monkeypatch.setattr(chaos, "Round", Pretended)
    done = run(tmp_path / "out", "--rows", "2400")
    assert done.exit_code == code
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [record["identical"] for record in results["records"]] == [True, code == 0]
    assert results["identical"] == (code == 0)
    assert ("NO" in done.output.split("\nRounds\n")[1]) == (code == 1)
    assert ("model.solution.coef" in done.output) == (code == 1)
    assert ("model.solution.coef" in (tmp_path / "out" / "report.html").read_text()) == (code == 1)
    # what a failed round leaves is kept to be looked at
    assert (tmp_path / "out" / "rounds" / "1" / "fitted.model").exists() == (code == 1)


def alive(pid: int) -> bool:
    """Whether there is a process of this number that is not only waiting to be reaped."""
    return psutil.pid_exists(pid) and lives(psutil.Process(pid))


def disturbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> tuple[Record, list[dict[str, Any]]]:
    """A round whose drivers run a program of the test's own."""
    monkeypatch.setattr(Fit, "command", lambda self, model, run, *, resume: [sys.executable, "-c", program])
    (tmp_path / "round").mkdir()
    log = Log(tmp_path / "log.jsonl", lambda text: None)
    record = Round(FIT, tmp_path / "round", "1", log, np.random.default_rng(0), 1.0).run()
    return record, events(tmp_path)


def test_a_driver_that_hangs_is_killed_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos_round, "PATIENCE_SECONDS", 1.0)
    program = "import sys, time; print('deep in thought', file=sys.stderr, flush=True); time.sleep(600)"
    record, told = disturbed(tmp_path, monkeypatch, program)
    assert "hangs" in record.trouble
    assert record.last_lines == ["deep in thought"]
    (begun,) = (event for event in told if event["event"] == "driver")
    assert not alive(begun["pid"])
    (trouble,) = (event for event in told if event["event"] == "trouble")
    assert trouble["last_lines"] == record.last_lines


def test_an_exit_code_that_nobody_asked_for_is_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record, _ = disturbed(tmp_path, monkeypatch, "import sys; sys.exit('Stalled: no worker came')")
    assert "exit code 1, expected 0" in record.trouble
    assert record.last_lines == ["Stalled: no worker came"]


def test_a_process_that_is_left_is_trouble_and_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos_round, "GONE_SECONDS", 0.5)
    note = tmp_path / "pid"
    program = (
        "import pathlib, subprocess, sys, time; p = subprocess.Popen(['sleep', '600']); "
        f"pathlib.Path({str(note)!r}).write_text(str(p.pid)); time.sleep(1)"
    )
    record, _ = disturbed(tmp_path, monkeypatch, program)
    assert f"its processes [{note.read_text()}] live" in record.trouble
    assert not alive(int(note.read_text()))


def test_a_finished_segment_that_is_begun_again_is_seen(tmp_path: Path) -> None:
    for name, content in {"starts/0-0": "a\n", "starts/0-1": "a\nb\n", "receipts/0-0.json": "{}"}.items():
        path = tmp_path / "moments" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    before = ledger(tmp_path)
    assert before == Ledger({"moments/0-0": ["a"], "moments/0-1": ["a", "b"]}, frozenset({"moments/0-0"}))
    assert before.open == {"moments/0-1": "b"}
    assert before.repeats == 1
    (tmp_path / "moments" / "starts" / "0-1").write_text("a\nb\nc\n")
    assert before.begun_again(ledger(tmp_path)) == []
    (tmp_path / "moments" / "starts" / "0-0").write_text("a\nc\n")
    assert before.begun_again(ledger(tmp_path)) == ["moments/0-0"]


@pytest.mark.parametrize(
    "change, words",
    [
        ({}, None),
        ({"starts/0-0": "a\nb\n"}, r"\['moments/0-0'\] were finished when a driver died, and were computed again"),
        ({"starts/0-1": "a\nb\nc\n"}, "2 segments were done again; at most 1"),
        ({"partials/.2-0.ab.partial": ""}, "left: run/moments/partials/.2-0.ab.partial"),
        ({"lock.json": "{}"}, "left: run/moments/lock.json"),
    ],
    ids=["nothing", "finished again", "too often", "half-written", "locked"],
)
def test_what_a_finished_round_leaves_is_looked_at(change: dict[str, str], words: str | None, tmp_path: Path) -> None:
    one = Round(FIT, tmp_path, "1", Log(tmp_path / "log.jsonl", print), np.random.default_rng(0), 1.0)
    files = {"starts/0-0": "a\n", "starts/0-1": "a\nb\n", "receipts/0-0.json": "{}", "partials/1-0": ""}
    for name, content in files.items():
        path = tmp_path / "run" / "moments" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    one._before, one.record.in_flight = [ledger(tmp_path / "run")], [1]
    for name, content in change.items():
        (tmp_path / "run" / "moments" / name).write_text(content)
    if words is None:
        one._inspect()
        assert (one.record.segments, one.record.again) == (1, 1)
    else:
        with pytest.raises(Trouble, match=words):
            one._inspect()


def test_an_undisturbed_fit_that_fails_is_told_in_json_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Fit, "command", lambda *_, **__: [sys.executable, "-c", "import sys; sys.exit('PlanTooLarge: m')"]
    )
    done = run(tmp_path / "out", "--rows", "2400", "--json")
    assert done.exit_code == 1
    (record,) = json.loads(done.stdout)["records"]
    assert record["last_lines"] == ["PlanTooLarge: m"]
    assert "PlanTooLarge: m" in (tmp_path / "out" / "report.html").read_text()


def test_only_what_rounds_have_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "rounds" / "1").mkdir(parents=True)
    (tmp_path / "rounds" / "undisturbed").mkdir()
    clear(tmp_path / "rounds")
    assert list((tmp_path / "rounds").iterdir()) == []
    (tmp_path / "rounds" / "thesis").mkdir()
    with pytest.raises(DataError, match="thesis is not of a round"):
        clear(tmp_path / "rounds")
    assert (tmp_path / "rounds" / "thesis").is_dir()


def test_half_written_files_and_locks_are_seen(tmp_path: Path) -> None:
    for name in ("run/moments/partials/.0-1.ab.partial/zarr.json", "run/lock.json", "run/moments/manifest.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert leftovers(tmp_path) == ["run/lock.json", "run/moments/partials/.0-1.ab.partial"]


@pytest.mark.parametrize(
    "line, kind",
    [
        ("2026-11-21 17:15:54,821 - distributed.nanny - WARNING - Restarting worker", "log"),
        ("Traceback (most recent call last):", "log"),
        ('  File "distributed/core.py", line 100, in send', "log"),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", "log"),
        ("distributed.comm.core.CommClosedError: in <TCP (closed)>: reset", "log"),
        ("/lib/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There are 6", "log"),
        ("dashboard: http://127.0.0.1:41693/status", "progress"),
        ("moments: 36 of 60 segments, 59,554 rows/s 68 GFLOP/s, 7 s left", "progress"),
        ("moments: worker tcp://127.0.0.1:4 lost: it was retired; 1 tasks under way", "incident"),
        ("/jobs/run: process 7 on here died and left its lock, which is taken", "incident"),
        ("Stalled: a segment was not finished within 60 s", "incident"),
        ("RuntimeWarning: rounding leaves moments indefinite", "incident"),
    ],
)
def test_lines_of_a_driver_are_told_apart(line: str, kind: str) -> None:
    assert kind_of(line) == kind


def test_lines_are_read_whole_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fit, "command", lambda *_, **__: [sys.executable, "-c", ""])
    with Driver(FIT, tmp_path, 1) as driver:
        driver.process.wait(30)
        driver.output.write_text("one\ntwo\nhal")
        assert driver.lines() == ["one", "two"]
        driver.output.write_text("one\ntwo\nhalf\n")
        assert driver.lines() == ["half"]
        assert driver.lines() == []


def test_the_timeline_has_a_row_a_round() -> None:
    record = Record("1", 9.0, [(0.0, 4.0, "SIGTERM"), (4.0, 9.0, "finished")], [2.0], [(1.0, 3.0)], 12, 1, [1], True)
    heights = [int.from_bytes(chaos_page.timeline([record] * n)[20:24], "big") for n in (1, 4)]
    assert heights[1] - heights[0] == pytest.approx(3 * 0.5 * 200, abs=2)
    assert chaos_page.row(record, Record("undisturbed", 5.0))["lost_seconds"] == 4.0
