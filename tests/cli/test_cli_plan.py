"""`bigkernel plan`: memory, time from a pilot, and sweeps that are not timed."""

import json
import sys

import numpy as np
import pytest

from bigkernel import write_corpus
from bigkernel.config import settings
from bigkernel.engine import cards
from bigkernel.engine.cards import Card
from bigkernel.streaming.devices import device_of
from bigkernel.streaming.plan import Plan

N, D = 12_000, 12
X = np.random.default_rng(0).integers(0, 255, (N, D), dtype=np.uint8)


@pytest.fixture
def corpus(here):
    """Make a corpus of three classes."""
    write_corpus("c", X, np.arange(N) % 3, chunk_rows=500)
    return "c"


@pytest.fixture
def numbers(here):
    """Make a corpus of numbers."""
    write_corpus("n", X, np.arange(N) * 0.5, chunk_rows=500)
    return "n"


@pytest.fixture
def planned(run):
    """Return a function that gives the figures of a plan."""
    return lambda *arguments: json.loads(run("plan", *arguments, "--json").stdout)


def test_a_plan_estimates_memory_and_time(corpus, here, planned):
    figures = planned(corpus, "--landmarks", 50)
    assert (figures["rows"], figures["features"]) == (N, D)
    assert figures["worker_bytes"] > figures["process_bytes"] > 0
    assert 0 < figures["least_seconds"] <= figures["expected_seconds"] <= figures["most_seconds"] < 600
    assert figures["pilot_rows"] > 0
    assert figures["not_timed"] == []
    assert [path.name for path in here.iterdir()] == [corpus]


def test_a_fit_of_few_rows_is_run_whole(here, run, planned):
    write_corpus("few", X[:100], np.arange(100) % 3)
    figures = planned("few", "--landmarks", 50)
    assert figures["pilot_rows"] is None
    assert figures["expected_seconds"] > 0
    text = run("plan", "few", "--landmarks", 50).stdout
    assert "time estimated from the fit itself" in text
    assert "pilot of" not in text


def test_without_time_nothing_is_run(corpus, monkeypatch, planned, run):
    monkeypatch.setattr("bigkernel.engine.pilot.pilot", lambda *_, **__: pytest.fail("it was run"))
    figures = planned(corpus, "--landmarks", 50, "--no-time")
    assert "expected_seconds" not in figures
    assert figures["flops"] > 0
    assert "pilot" not in run("plan", corpus, "--landmarks", 50, "--no-time").stdout


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--transform", "standardize"], "sweep for standardize"),
        (["--probability"], "calibrated probabilities"),
        (["--method", "sssl"], ""),
    ],
)
def test_sweeps_that_are_not_timed_are_named(corpus, options, named, planned):
    figures = planned(corpus, "--landmarks", 50, *options)
    assert named in " ".join(figures["not_timed"])
    assert figures["expected_seconds"] > 0


def test_linear_methods_have_a_plan_of_their_moments(numbers, planned):
    figures = planned(numbers, "--method", "ridge", "--no-time")
    assert (figures["rows"], figures["features"]) == (N, D)
    assert figures["partial_bytes"] == 8 * (D * D + 2 * D + 4)
    assert figures["flops"] == N * (D + D * D + 4 * D)
    assert figures == planned(numbers, "--method", "linear", "--no-time")


def test_conjugate_gradients_are_planned_by_their_sweeps(corpus, planned):
    figures = planned(corpus, "--landmarks", 20, "--solver", "cg", "--no-time")
    assert figures["solver"] == "cg"
    assert figures["sweeps"] > 2
    assert figures["driver_bytes"] > 0
    assert figures["flops"] > planned(corpus, "--landmarks", 20, "--no-time")["flops"]


def test_invalid_plans_are_refused_before_anything_is_run(corpus, numbers, monkeypatch, run):
    monkeypatch.setattr("bigkernel.engine.pilot.pilot", lambda *_, **__: pytest.fail("it was run"))
    assert "needs unlabelled rows of a target domain" in run("plan", corpus, "--method", "artl", code=3).stderr
    refused = run("plan", numbers, "--method", "xnv", "--solver", "cg", code=8).stderr
    assert "--solver: not used by xnv of numbers" in refused


@pytest.mark.parametrize("options", [["--no-time", "--cluster", "local"], ["--no-time"], []], ids=" ".join)
def test_a_plan_beyond_the_memory_limit_is_refused_with_the_landmarks_that_fit(corpus, options, monkeypatch, run):
    monkeypatch.setattr("bigkernel.engine.pilot.pilot", lambda *_, **__: pytest.fail("it was run"))
    given = [corpus, "--memory-limit", "256MB", "--workers", 2, *options]
    refused = run("plan", *given, "--landmarks", 3000, code=4).stderr
    assert "more than its limit of 256 MB" in refused
    fitting = int(refused.split()[-1].replace(",", ""))
    assert 1000 < fitting < 3000
    run("plan", *given, "--no-time", "--landmarks", fitting)
    run("plan", *given, "--no-time", "--landmarks", 3000, "--memory-limit", "1GB")


@pytest.mark.parametrize("where, message", [("tcp://far:8786", "is not encrypted"), ("cluster.yaml", "bigkernel[ssh]")])
def test_a_plan_without_time_checks_the_cluster_and_reaches_none(corpus, here, where, message, monkeypatch, run):
    monkeypatch.setitem(sys.modules, "asyncssh", None)
    (here / "cluster.yaml").write_text("bigkernel:\n  cluster:\n    kind: ssh\n    hosts: [a, b]\n    tls: keys\n")
    refused = run("plan", corpus, "--landmarks", 50, "--no-time", "--cluster", where, code=8).stderr
    assert message in refused
    assert "connecting" not in refused


@pytest.mark.cluster
def test_a_plan_on_workers_is_refused_in_the_words_of_the_fit(corpus, cluster, monkeypatch, run):
    check = Plan.check
    monkeypatch.setattr(Plan, "check", lambda self, limit, *others: check(self, 256_000_000, *others))
    given = [corpus, "--landmarks", 3000, "--cluster", cluster.scheduler_address]
    planned = run("plan", *given, code=4).stderr.splitlines()[-1].split()
    fitted = run("fit", corpus, "m", *given[1:], code=4).stderr.splitlines()[-1].split()
    assert [word for word in planned if word.isalpha()] == [word for word in fitted if word.isalpha()]
    needed = [int(words[words.index("needs") + 1]) for words in (planned, fitted)]
    assert needed[0] == pytest.approx(needed[1], rel=0.05)  # but for what the workers have kept


def test_a_plan_for_a_gpu_needs_none_and_tells_its_memory(corpus, planned, run):
    figures = planned(corpus, "--landmarks", 50, "--no-time", "--device", "cuda")
    assert figures["device_bytes"] > 1_500_000_000 + 12 * 12_000 * 50
    assert figures["block_rows"] == 65_536
    assert "device_bytes" not in planned(corpus, "--landmarks", 50, "--no-time")
    assert "device bytes" in run("plan", corpus, "--landmarks", 50, "--no-time", "--device", "cuda").stdout


def test_a_plan_that_does_not_fit_on_the_gpu_here_is_refused(corpus, monkeypatch, run):
    few = Card("cuda", "A small one", total=2 * 10**9, free=2 * 10**9)
    monkeypatch.setattr(cards, "find_card", lambda name: few)
    options = ["--no-time", "--device", "cuda", "--landmarks"]
    run("plan", corpus, *options, 50)
    refused = run("plan", corpus, *options, 9000, "--solver", "direct", code=4).stderr
    assert "of A small one, which has 2.0 of 2.0 GB free: use at most about" in refused


@pytest.mark.parametrize("command", ["fit", "tune", "predict", "score", "plan"])
def test_a_device_that_is_not_there_ends_a_command(corpus, monkeypatch, run, command):
    monkeypatch.setitem(sys.modules, "array_api_compat.torch", None)
    device_of.cache_clear()
    run("fit", corpus, "one.model", "--landmarks", 20, "--device", "auto")
    given = {
        "fit": [corpus, "m"],
        "tune": [corpus, "--sigma", 1, "--out", "tuned"],
        "plan": [corpus, "--landmarks", 20],
        "predict": ["one.model", corpus, "p"],
        "score": ["one.model", corpus],
    }[command]
    assert "is not installed; pip install 'bigkernel[gpu]'" in run(command, *given, "--device", "cuda", code=8).stderr
    assert settings().device == "cpu"
