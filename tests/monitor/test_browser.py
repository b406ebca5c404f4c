"""The page in a browser: a real job from its start to its end, light and dark, hostile names, reports."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from browser import Tab, browsing, chromium
from distributed import Client, LocalCluster
from made_run import make_run, put_figures, put_into_journal
from probes import Both, Hold, Sleep, Sums
from simulated import messages

from bigkernel import connect
from bigkernel.data.run_directory import survey
from bigkernel.engine.context import executing
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import sweep
from bigkernel.events.plugin import board_of
from bigkernel.events.sinks import install_monitor
from bigkernel.html import pack
from bigkernel.monitor.report import write

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cluster,
    pytest.mark.skipif(chromium() is None, reason="no Chromium (chromium, chromium-browser, google-chrome) is there"),
]
SEGMENTS, ROWS_A_SEGMENT, WIDTH = 24, 200, 4
HOSTILE = "</script><img src=x onerror=\"document.body.dataset.owned='yes'\">"


@pytest.fixture(scope="module")
def browser() -> Iterator[Callable[[], Tab]]:
    """One browser for all tests."""
    with browsing() as new_tab:
        yield new_tab


@pytest.fixture
def tab(browser) -> Iterator[Tab]:
    """A page of its own for every test."""
    opened = browser()
    yield opened
    opened.close()


@pytest.fixture
def scheduler() -> Iterator[LocalCluster]:
    """A scheduler without workers that keeps books, which tests fill with simulated messages."""
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        assert install_monitor(client)
        yield cluster


def page_of(cluster: LocalCluster) -> str:
    """The address of the page."""
    return f"http://127.0.0.1:{cluster.scheduler.http_server.port}/bigkernel"


def feed(cluster: LocalCluster, *timed: tuple[dict[str, Any], float]) -> None:
    """Apply messages to the board of the scheduler, in its own thread."""

    async def apply() -> None:
        for message, now in timed:
            board_of(cluster.scheduler).apply(message, now)

    cluster.sync(apply)


def text(selector: str) -> str:
    """An expression: the text of an element."""
    return f"document.querySelector({selector!r}).textContent"


def count(state: str) -> str:
    """An expression: how many segments the legend of the map says are in a state."""
    return f"""Number(document.querySelector('#map [data-state="{state}"]').dataset.count)"""


def test_a_job_is_shown_from_its_first_segment_to_its_end_with_a_lost_worker(tab, make_corpus, tmp_path):
    n = SEGMENTS * ROWS_A_SEGMENT
    X = np.arange(n * WIDTH, dtype=np.float32).reshape(n, WIDTH)
    rows, run = as_rows(make_corpus(X, chunk_rows=ROWS_A_SEGMENT // 2)), tmp_path / "run"
    smaller = {"bigkernel.min-segments": SEGMENTS, "bigkernel.chunk-bytes": ROWS_A_SEGMENT // 2 * WIDTH * 4}

    def job() -> None:
        with executing(client, run=run, command=["bigkernel", "fit", "digits.corpus"]):
            swept.append(sweep(rows, Sums(WIDTH, Both((Sleep(0.2), hold))), what="moments"))

    hold = Hold(n - ROWS_A_SEGMENT, str(tmp_path / "killed"))  # it does not end before the page has shown it
    swept: list[Any] = []
    with dask.config.set(smaller), connect("local", workers=2, dashboard=0) as client:
        victim = min(client.run(os.getpid).values())
        tab.open(client.dashboard_link)
        tab.until("!document.getElementById('empty').hidden")
        thread = threading.Thread(target=job, daemon=True)
        thread.start()
        tab.until(f"{count('running')} > 0")
        tab.until(f"{count('published')} + {count('merged')} > 3")
        os.kill(victim, signal.SIGKILL)
        Path(hold.gate).touch()
        tab.until("document.querySelector('#log li[data-kind=worker]')")
        assert "the process ended" in tab.evaluate(text("#log li[data-kind=worker] span"))
        tab.until(f"{count('merged')} == {SEGMENTS}")
        thread.join(60)
        tab.until("document.getElementById('page').dataset.state == 'finished'")
        kept = survey(run)[0]
        assert kept.segments_done == SEGMENTS
        assert f"{SEGMENTS - 1} of {SEGMENTS - 1} merges" in tab.evaluate(text("#map .keys"))
        assert "bigkernel fit digits.corpus" in tab.evaluate(text("#jobs button"))
        assert swept[0].total["rows"] == n
        assert tab.problems == []


def test_the_page_is_light_or_dark_as_the_system_is_and_remembers_the_switch(tab, scheduler):
    feed(scheduler, *messages(40, 4))
    theme = "document.documentElement.dataset.theme"
    for dark, theme_name in ((True, "dark"), (False, "light")):
        tab.open(page_of(scheduler), dark=dark)
        tab.until(f"!document.getElementById('map').hidden && {theme} == {theme_name!r}")
    hints = tab.evaluate("[...document.querySelectorAll('#stages g')].map((line) => line.firstChild.textContent)")
    assert len(hints) == 5
    assert "kernel values from them" in hints
    tab.evaluate("document.getElementById('theme').click()")
    assert tab.evaluate(theme) == "dark"
    tab.open(page_of(scheduler), dark=False)
    tab.until(f"!document.getElementById('map').hidden && {theme} == 'dark'")
    tab.evaluate("localStorage.clear()")
    assert tab.problems == []


def test_a_job_that_is_clicked_at_stays_until_the_newest_is_followed_again(tab, scheduler):
    feed(scheduler, *messages(12, 2, job="past", finished=True), *messages(30, 2, job="present"))
    segments = text("#map .note")
    tab.open(page_of(scheduler))
    tab.until(f"{segments}.includes('30 segments')")
    tab.evaluate("document.querySelector('#past summary').click()")
    tab.evaluate("document.querySelector('[data-job=past]').click()")
    tab.until(f"{segments}.includes('12 segments') && {count('merged')} == 12")
    tab.evaluate("document.getElementById('follow').click()")
    tab.until(f"{segments}.includes('30 segments') && document.getElementById('follow').hidden")
    assert tab.problems == []


CLIPPED = """[...document.querySelectorAll('main *')].filter((node) => !node.closest('svg, .scroll') &&
    ((getComputedStyle(node).overflowX != 'visible' && node.scrollWidth > node.clientWidth + 1) ||
    node.getBoundingClientRect().right > innerWidth)).map((node) => node.outerHTML)"""


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_clipped_live_or_in_a_report(tab, scheduler, tmp_path, width):
    chance = np.random.RandomState(0)
    score = {"rows": 90_000, "of": "scored", "corpus": "t.corpus", "classes": list(range(10)), "error_percent": 3.1}
    score["confusion"] = chance.poisson(900, (10, 10)).tolist()
    score["worst"] = {"row": [1, 2], "true": [1, 2], "predicted": [2, 2], "margin": [-0.5, None]}
    score["worst"]["images"] = pack(chance.rand(2, 8, 8))
    fit = {"diagnostics": {"whitening": 1e-3, "solution": 99.0, "rounding": 0.0, "prediction_error": 1.234e-12}}
    fit["sweep"] = {"excess_by_step": [0.3, 0.02, 4e-4], "tol": 1e-3}
    records = [
        {"sigma": sigma, "alpha": alpha, "score": 0.9 - sigma / 100, "standard_error": 0.002, "rank": 1}
        for sigma in (0.5, 1.0, 2.0)
        for alpha in (0.1, 1.0)
    ]
    tune = {"score": "accuracy", "candidates": 6, "folds": 5, "edges": ["sigma: 0.5 is the least"], "records": records}
    run = make_run(tmp_path / "run", segments=40)
    put_figures(run, ("score", score), ("fit", fit), ("tune", tune))
    feed(scheduler, *messages(2000, 100))
    for place in (page_of(scheduler), f"file://{write(run)}"):
        for dark in (False, True):
            tab.open(place, width=width, dark=dark)
            tab.until("!document.getElementById('map').hidden")
            assert tab.evaluate(CLIPPED) == []
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
            assert tab.evaluate("document.querySelector('#plan .stacked').scrollWidth") <= width
            named = "getComputedStyle(document.querySelector('#plan td:nth-child(7)'), '::before').content"
            assert tab.evaluate(named) == ('"memory"' if width == 390 else "none")
    assert tab.evaluate("document.querySelectorAll('.digits canvas').length") == 2
    assert "This fit is unreliable" in tab.evaluate(text("#fit .failure"))
    limits = ("0.001at most 30", "99at most 30", "1.23e-12at most 3.33e-4")
    assert all(limit in tab.evaluate(text("#fit table")) for limit in limits)
    assert "(of a constant: 89." in tab.evaluate(text(".tiles"))
    assert "0.8950best accuracy by cross-validation, ± 0.002" in tab.evaluate(text(".tiles"))
    assert tab.evaluate("document.querySelectorAll('[data-best]').length") == 2  # the best sigma, with either penalty
    assert "1 earlier attempt" in tab.evaluate(text("#jobs"))
    assert tab.problems == []


def test_a_map_of_scores_fits_a_phone_and_keeps_its_colours_for_good_candidates(tab, tmp_path):
    scores = 0.9 - 0.15 * np.arange(8)[:, None] - 0.01 * np.arange(15)  # of a perfect score of 1
    scores[3:] -= 1e6
    records = [{"sigma": 2.0**i, "alpha": 2.0**j, "score": score} for (i, j), score in np.ndenumerate(scores)]
    run = make_run(tmp_path / "run")
    put_figures(run, ("tune", {"score": "r2", "candidates": 120, "folds": 5, "records": records}))
    tab.open(f"file://{write(run)}", width=390)
    tab.until("!document.getElementById('results').hidden")
    cell = "[cell.textContent, cell.style.background, cell.getBoundingClientRect().right]"
    cells = tab.evaluate(f"[...document.querySelectorAll('.matrix td')].map((cell) => {cell})")
    best, good, worse, hopeless = cells[:60:15]
    assert [one[0] for one in (best, good, worse, hopeless)] == ["0.9", "0.75", "", ""]
    assert best[1] != good[1] != worse[1] == hopeless[1]
    assert "grey: below 0.7, more than 3 times the best error" in tab.evaluate(text("#results .keys"))
    assert max(right for _, _, right in cells) <= 390
    assert tab.evaluate("document.getElementById('results').offsetHeight") < 900
    assert tab.problems == []


def test_memory_of_a_gpu_stands_beside_its_plan(tab, tmp_path):
    run = make_run(tmp_path / "run", segments=4)
    journal = run / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "sweep_started":
            line["plan"]["device_bytes"] = 2_000_000_000
        if line["kind"] == "segment":
            line["receipt"] |= {"device": "cuda", "device_peak_bytes": 3_000_000_000}
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    tab.open(f"file://{write(run)}")
    tab.until("document.body.innerText.includes('GPU memory')")
    cells = "[...document.querySelectorAll('td')].map((cell) => cell.innerText)"
    assert any(cell.split() == ["3", "GB", "of", "2", "GB"] for cell in tab.evaluate(cells))
    assert "peak on cuda 3" in tab.evaluate("document.body.innerHTML").replace("\xa0", " ")
    assert tab.problems == []


def test_targets_and_predictions_of_a_sample_are_points_near_a_diagonal(tab, tmp_path):
    sample = {"row": [7, 8, 9, 10], "actual": [0.0, 1.0, 2.0, 1.0], "predicted": [0.0, 1.0, 99.0, None]}
    score = {"rows": 900, "of": "held-out", "mse": 4.0, "r2": 0.75, "sample": sample, "targets": 1}
    run = make_run(tmp_path / "run")
    put_figures(run, ("score", score | {"corpus": "t.corpus", "residuals": [1, 2], "residual_unit": 0.1}))
    tab.open(f"file://{write(run)}", width=390)
    tab.until("document.querySelectorAll('#results circle').length == 3")
    circles = "[...document.querySelectorAll('circle')].map((one) => [one.cx.baseVal.value, one.cy.baseVal.value])"
    points = tab.evaluate(circles)
    assert points[0][0] + points[0][1] == pytest.approx(points[1][0] + points[1][1])  # both on the diagonal
    assert points[2][1] == 4  # the upper edge
    note = tab.evaluate(text("#results .note"))
    assert note.startswith("3 of 900 held-out rows, ")
    assert note.endswith("predictions outside the frame (1)")
    assert tab.problems == []


def test_importances_of_a_learned_metric_are_bars_and_a_picture(tab, tmp_path):
    shown = {"features": [f"column {i}" for i in range(40)], "importances": [0.5 / (i + 1) for i in range(40)]}
    image = {"shape": [2, 3], "data": ["AAECAwQF"]}
    run = make_run(tmp_path / "run")
    put_figures(run, ("fit", {"metric": {**shown, "count": 784, "rounds": [0.5, 0.1], "image": image}}))
    tab.open(f"file://{write(run)}", width=390)
    tab.until("document.querySelectorAll('#fit rect').length == 40")
    assert tab.evaluate(text("#fit .scroll tr:nth-child(2)")) == "column 050.0 %"
    assert tab.evaluate("document.querySelectorAll('#fit canvas').length") == 1
    note = tab.evaluate(text("#fit > .note:last-child"))
    assert "the 40 largest of 784 features" in note
    assert "0.5 with equal importances, 0.1 with these" in note
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    assert tab.problems == []


def test_names_from_outside_are_text(tab, scheduler, tmp_path):
    changed = [
        ({**message, **({"title": HOSTILE, "run": HOSTILE} if message["kind"] == "job_started" else {})}, now)
        for message, now in messages(8, 2)
    ]
    note = {"kind": "note", "job": "simulated", "text": HOSTILE}
    feed(scheduler, *changed, (note, changed[-1][1]))
    run = make_run(tmp_path / "run")
    put_into_journal(run, HOSTILE)
    for place in (page_of(scheduler), f"file://{write(run)}"):
        tab.open(place)
        tab.until(f"{text('#log')}.includes('onerror')")
        assert tab.evaluate(text("#jobs code")) == HOSTILE
        assert tab.evaluate("document.querySelectorAll('main img').length") == 0
        assert tab.evaluate("document.body.dataset.owned ?? 'no'") == "no"
    assert tab.problems == []


@pytest.mark.parametrize(
    "values",
    [
        {"rows": "three"},
        {"rows": 3, "classes": ["a", "b"], "confusion": [[1]], "worst": 3},
        {"rows": 3, "mse": None, "r2": "x", "residuals": [1, "x"]},
    ],
    ids=str,
)
def test_figures_of_another_version_cost_one_section_at_most(values, tab, tmp_path):
    run = make_run(tmp_path / "run")
    fitted = {"diagnostics": values, "sweep": values}
    put_figures(run, ("score", values), ("fit", fitted), ("tune", {"records": [values]}))
    tab.open(f"file://{write(run)}")
    tab.until("!document.getElementById('repeat').hidden")
    assert tab.evaluate("document.querySelectorAll('section > .failure').length") <= 2
    assert "moments" in tab.evaluate(text("#plan"))


def test_a_lost_scheduler_is_reported(tab):
    with LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster:
        with Client(cluster, set_as_default=False) as client:
            assert install_monitor(client)
        tab.open(page_of(cluster))
        tab.until("!document.getElementById('empty').hidden")
        assert tab.evaluate("document.getElementById('cut').hidden")
        assert cluster.scheduler.address in tab.evaluate(text("#empty pre"))
    tab.until("!document.getElementById('cut').hidden")
