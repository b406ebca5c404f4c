"""Hostile text is shown as plain letters at every output (F44).

Names of files, classes, hosts, jobs and workers, lines of journals and errors, with escape sequences, control
characters, direction marks, markup, quotes, line ends, NUL, lone surrogates, and ten million letters.
"""

import ast
import io
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
from made_run import make_run, put_into_journal
from page_reader import read as read_page
from rich.console import Console
from simulated import messages

from bigkernel.cli.options import say
from bigkernel.data.visible import MOST_LETTERS, all_visible, log_of, visible
from bigkernel.events.board import Board
from bigkernel.events.job import Incident, Note, Scope, emit
from bigkernel.events.journal import Journal
from bigkernel.events.journal import read as read_journal
from bigkernel.events.plugin import NAME, Monitor
from bigkernel.monitor.dashboard.metrics import Collector
from bigkernel.monitor.page import render
from bigkernel.monitor.report import write
from bigkernel.monitor.terminal.bar import progress
from bigkernel.monitor.terminal.figures import show
from bigkernel.monitor.terminal.live import picture
from pipelines.shared.page import Column, Table

PACKAGE = Path(__file__).parents[2] / "bigkernel"
ESCAPES = "\x1b[2J\x1b]0;title\x07\x1b]8;;ftp:x\x1b\\\x9b31m\x00\x08\x7f\r\u202eexe.gnp\u2066\u200f\u200b\udc80"
MARKUP = "<script>alert(1)</script>\"'&`[bold]{{ 7*7 }}"
HOSTILE = f"{MARKUP}{ESCAPES}\nsecond line"
LONG = 10_000_000
# characters that are never sent to a terminal
NEVER = set("\x00\x07\x08\x7f\x9b\u202e\u2066\u200f\u200b\udc80")


def require_letters(text):
    """Assert that text holds no control characters, and can be encoded."""
    assert not NEVER & set(text), sorted(NEVER & set(text))
    assert "\x1b" not in text
    text.encode()


# ---------------------------------------------------------------- the function `visible`


def test_control_characters_are_shown_as_their_escapes():
    assert visible("a\x1b[31mb\x07\u202e\udc80\x00") == "a\\x1b[31mb\\x07\\u202e\\udc80\\x00"
    assert visible("a\nb\r\t") == "a\\nb\\r\\t"
    assert visible("a\nb\r", lines=True) == "a\nb\\r"
    assert visible("één\u00a0% … 漢字 🙂") == "één\u00a0% … 漢字 🙂"
    require_letters(visible(HOSTILE))


def test_long_text_is_truncated_with_its_length():
    assert visible("\x1b" * LONG) == "\\x1b" * MOST_LETTERS + "… (10,000,000 letters)"
    assert all_visible({"\x1b": ["\x07", 3, None, {"a": HOSTILE}]}, most=4)["\\x1b"][3] == {
        "a": f"{HOSTILE[:4]}… ({len(HOSTILE)} letters)"
    }


# ---------------------------------------------------------------- terminals


class Screen(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self):
        return True


def job_of(evil):
    """Return the state of a scheduler where every name is this one."""
    board = Board()
    for message, now in messages(12, 2):
        for key in ("title", "host", "run", "what", "worker", "executor"):
            if key in message:
                message[key] = evil
        if "receipt" in message:
            message["receipt"]["worker"] = evil
            message["receipt"]["seconds"] = {evil: 1.0}
        board.apply(message, now)
    for kind, entries in (("note", {"text": evil}), ("incident", {"incident": "worker", "text": evil, "worker": evil})):
        board.apply({"kind": kind, "job": "simulated", "sweep": "simulated-sweep", **entries}, now)
    return {**board.snapshot(now), "workers": {}, "time": now}


@pytest.mark.parametrize("evil", [HOSTILE, ESCAPES * 100_000], ids=["all", "long"])
def test_lines_of_watch_and_the_page(evil):
    stream, state = io.StringIO(), job_of(evil)
    console = Console(file=stream, width=100)
    for line in picture(state, 100):
        console.print(line)
    require_letters(stream.getvalue())
    require_letters(render(state))
    assert len(stream.getvalue()) < 10_000
    assert evil != HOSTILE or "\\x1b" in stream.getvalue()


def test_lines_above_the_bar(monkeypatch):
    stream = Screen()
    with progress(stream=stream):
        emit(Note(HOSTILE))
        emit(Incident("retry", HOSTILE, worker=HOSTILE))
    assert "\\x1b[2J\\x1b]0;title\\x07" in stream.getvalue().replace("\n", "")
    assert not NEVER & set(stream.getvalue())
    assert "\x1b]" not in stream.getvalue()


def test_figures_and_tables(capsys):
    show({HOSTILE: HOSTILE, "classes": [HOSTILE, ESCAPES]}, as_json=False, title=HOSTILE)
    Table([Column("name", HOSTILE, left=True)], [{"name": HOSTILE}]).print(Console(width=400, soft_wrap=True))
    say(HOSTILE)
    say(HOSTILE, err=True)
    captured = capsys.readouterr()
    require_letters(captured.out)
    require_letters(captured.err)
    assert captured.out.replace("\n", "").count("\\u202e") >= 3


# ---------------------------------------------------------------- commands


@pytest.fixture
def named(make_corpus, tmp_path):
    """A corpus whose directory, name and classes are hostile."""
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    made = make_corpus(rng.normal(size=(60, 3)), y=y, classes=(HOSTILE, "b" * 20_000))
    return Path(shutil.move(made.path, tmp_path / "a\x1b[2J\u202e\udc80.corpus"))


def test_commands_on_files_with_hostile_names(run, named, tmp_path):
    model, job = tmp_path / "m\x1b]0;x\x07.model", tmp_path / "r\x1b[31m.run"
    texts = []
    for command in (
        ["fit", named, model, "--landmarks", 10, "--run", job],
        ["info", named],
        ["info", model],
        ["check", named],
        ["score", model, named],
        ["predict", model, named, tmp_path / "p\x1b[1m"],
        ["report", job],
        ["watch", job, "--once"],
        ["watch", job],
        ["plan", named, "--landmarks", 10],
    ):
        result = run(*command)
        texts += [result.stdout, result.stderr]
        require_letters(result.stdout)
        require_letters(result.stderr)
    assert any("\\x1b" in text for text in texts)
    assert "20,000" not in texts[0]
    require_letters((job / "report.html").read_text(encoding="utf-8"))


def test_errors_of_commands(run, tmp_path, named):
    evil = "none\x1b[2J\x07\u202e"
    for command, code in (
        (["info", tmp_path / evil], 3),
        (["fit", named, named], 3),
        (["fit", tmp_path / evil, tmp_path / "m"], 3),
        (["watch", tmp_path / evil], 3),
        ([evil], 2),
        (["fit", f"--{evil}"], 2),
        (["fit", named, "m", "--sigma", evil], 2),
        (["fit", named, "m", "--transform", evil], 2),
        (["fit", named, "m", "--cluster", f"tcp://{evil}:1"], 8),
        ([f"--{evil}"], 2),
    ):
        output = run(*command, code=code).output
        assert output
        require_letters(output)


# ---------------------------------------------------------------- logs


def test_lines_of_logs(caplog):
    log = log_of("bigkernel.hostile")
    with caplog.at_level(logging.INFO):
        log.warning("%s: %s of %d (%s)", HOSTILE, ValueError(HOSTILE), 3, Path("\x1b[2J"))
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            log.warning("it failed", exc_info=True)
    shown = [logging.Formatter("%(funcName)s %(message)s").format(record) for record in caplog.records]
    assert len(shown) == 2
    for line in shown:
        require_letters(line)
        assert line.startswith("test_lines_of_logs ")  # the name of the caller
    assert "Traceback" in shown[1]


def test_all_output_passes_through_visible():
    """No other modules have a logger, echo, or print plain text."""
    allowed = {
        "getLogger": {"data/visible.py", "cluster/connect.py"},  # the second silences another logger
        "echo": {"cli/options.py", "cli/runs.py"},  # the second prints JSON alone
        "print": {"monitor/terminal/figures.py"},  # JSON alone
    }
    callers = {name: set() for name in allowed}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = node.func if isinstance(node, ast.Call) else None
            key = getattr(called, "attr", getattr(called, "id", ""))
            if key in allowed and ast.unparse(called) in ("logging.getLogger", "click.echo", "print"):
                callers[key].add(str(path.relative_to(PACKAGE)))
    assert callers == allowed


# ---------------------------------------------------------------- journals, reports, metrics, the page


def test_a_journal_is_ascii_and_returns_the_text(tmp_path):
    journal = Journal(tmp_path, Scope(job="a", sweep="b"))
    journal(Note(HOSTILE))
    journal.close()
    raw = (tmp_path / "journal.jsonl").read_bytes()
    assert raw.isascii()
    assert not set(raw) - set(range(32, 127)) - {10}
    ((message, _),) = read_journal(tmp_path)
    assert message["text"] == HOSTILE


@pytest.mark.parametrize("evil", [HOSTILE, ESCAPES * 300], ids=["all", "long"])
def test_the_report_shows_letters(tmp_path, evil):
    run = make_run(tmp_path / "digits.run", segments=30)
    put_into_journal(run, evil)
    html = Path(write(run)).read_bytes().decode("utf-8")
    require_letters(html)
    assert "\\x1b[2J" in read_page(html)["jobs"][0]["title"]


class Scheduler:
    """The attributes of a scheduler that the metrics use."""

    status = None

    def __init__(self, monitor):
        self.plugins = {NAME: monitor}


def test_labels_of_metrics():
    prometheus_client = pytest.importorskip("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families

    for evil in (HOSTILE, ESCAPES * 100_000):
        collector, board = Collector(), Board()
        state = job_of(evil)
        board.snapshot = lambda now, state=state: state  # type: ignore[method-assign]
        monitor = Monitor()
        monitor.board = board
        scheduler = Scheduler(monitor)
        collector.add(scheduler)
        registry = prometheus_client.CollectorRegistry()
        registry.register(collector)
        text = prometheus_client.generate_latest(registry).decode("utf-8")
        require_letters(text)
        assert "bigkernel_sweep_rows{" in text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        labels = [value for sample in samples for value in sample.labels.values()]
        assert max(map(len, labels)) < 2500
        assert any("\\x1b[2J" in label for label in labels)
