"""The page in a browser: a real job from its start to its end, light and dark, hostile names, a part that fails."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from bigkernel.monitor.dashboard.page import Page
from browser import Tab, browsing, chromium
from distributed import Client, LocalCluster
from drivers import wait_until
from made_run import make_run, tell
from probes import Both, Hold, Sleep, Sums
from simulated import messages

from bigkernel import connect
from bigkernel.data.run_status import survey
from bigkernel.engine.context import executing
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import sweep
from bigkernel.events.plugin import board_of
from bigkernel.events.sinks import install_monitor
from bigkernel.monitor.dashboard import page_figures
from bigkernel.monitor.report import write

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cluster,
    pytest.mark.skipif(chromium() is None, reason="no Chromium (chromium, chromium-browser, google-chrome) is there"),
]
SEGMENTS, ROWS_A_SEGMENT, WIDTH = 24, 200, 4
HOSTILE = "<img src=x onerror=\"document.body.dataset.owned='yes'\">"


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
    """A scheduler without workers that keeps books, which tests fill with simulated messages.

    Bokeh forgets a page that was closed after 15 s; here after one.
    """
    with (
        dask.config.set(
            {"distributed.scheduler.dashboard.bokeh-application.unused_session_lifetime_milliseconds": 1000}
        ),
        LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        assert install_monitor(client)
        yield cluster


def page_of(cluster: LocalCluster) -> str:
    """The address of the page."""
    return f"http://127.0.0.1:{cluster.scheduler.http_server.port}/bigkernel"


def feed(cluster: LocalCluster, *told: tuple[dict[str, Any], float]) -> None:
    """Let the scheduler hear messages, in its own thread."""

    async def hear() -> None:
        for message, now in told:
            board_of(cluster.scheduler).apply(message, now)

    cluster.sync(hear)


def text(selector: str) -> str:
    """An expression: the text of an element."""
    return f"document.querySelector({selector!r}).textContent"


def count(state: str) -> str:
    """An expression: how many segments the legend of the map says are in a state."""
    return f"""Number(document.querySelector('#bk-legend [data-state="{state}"]').dataset.count)"""


def cells() -> str:
    """An expression: the states of the cells of the map."""
    sources = 'Bokeh.documents[0].get_model_by_name("map").renderers'
    return f"Array.from({sources}[0].data_source.data.state)"


def test_a_job_is_seen_from_its_first_segment_to_the_end_and_so_is_the_death_of_a_worker(tab, make_corpus, tmp_path):
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
        install_monitor(client)
        victim = min(client.run(os.getpid).values())
        place = client.dashboard_link.rsplit("/", 1)[0]
        tab.open(f"{place}/bigkernel")
        tab.until("!document.getElementById('bk-empty').hidden")
        thread = threading.Thread(target=job, daemon=True)
        thread.start()
        tab.until(f"{count('running')} > 0")
        tab.until(f"{count('published')} + {count('merged')} > 3")
        os.kill(victim, signal.SIGKILL)
        Path(hold.gate).touch()
        tab.until("document.querySelector('#bk-log li[data-kind=worker]')")
        assert "its process ended" in tab.evaluate(text("#bk-log li[data-kind=worker] span"))
        tab.until(f"{count('merged')} == {SEGMENTS}")
        thread.join(60)
        tab.until("document.getElementById('bk-page').dataset.state == 'finished'")
        tab.until(f"{cells()}.every((state) => state == 'merged')")

        with urllib.request.urlopen(f"{place}/bigkernel/state.json", timeout=60) as answer:
            state = answer.read().decode()
        shown = tab.evaluate("fetch('bigkernel/state.json').then((answer) => answer.json())")["jobs"][0]
        kept = survey(run)[0]
        told = shown["sweeps"][0]
        assert '"state": "finished"' in state
        assert (told["segments"]["merged"], told["rows_done"]) == (kept.segments_done, kept.rows_done) == (SEGMENTS, n)
        assert f"{kept.rows_done:,} of {kept.rows:,} rows" in tab.evaluate(text(".bk-job"))
        assert tab.evaluate(f"{cells()}.length") == kept.segments
        assert tab.evaluate(text("#bk-merge-text")) == f"{told['merges_done']} of {SEGMENTS - 1} merges"
        assert told["merges_done"] == SEGMENTS - 1
        assert "bigkernel fit digits.corpus" in tab.evaluate(text(".bk-job"))
        assert swept[0].total["rows"] == n
        assert tab.problems == []


def test_the_page_is_light_or_dark_as_the_system_is_and_remembers_the_switch(tab, scheduler):
    feed(scheduler, *messages(40, 4))
    axis = "Bokeh.documents[0].get_model_by_name('rate').below[0].axis_label_text_color"
    for dark, theme in ((True, "dark"), (False, "light")):
        tab.open(page_of(scheduler), dark=dark)
        tab.until("!document.getElementById('bk-detail').hidden")
        assert tab.evaluate("document.documentElement.dataset.theme") == theme
        soft = "getComputedStyle(document.documentElement).getPropertyValue('--soft').trim()"
        tab.until(f"{axis} == {soft}")
    light = tab.evaluate(axis)
    tab.evaluate("document.getElementById('bk-theme').click()")
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
    assert tab.evaluate(axis) != light
    tab.open(page_of(scheduler), dark=False)
    tab.until("!document.getElementById('bk-detail').hidden")
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
    tab.evaluate("localStorage.clear()")
    assert tab.problems == []


def test_a_job_that_is_clicked_at_stays_until_the_newest_is_followed_again(tab, scheduler):
    feed(scheduler, *messages(12, 2, job="past", finished=True), *messages(30, 2, job="present"))
    tab.open(page_of(scheduler))
    tab.until(f"{cells()}.length == 30")
    tab.evaluate("document.querySelector('#bk-past summary').click()")
    tab.evaluate("document.querySelector('[data-job=past]').click()")
    tab.until(f"{cells()}.length == 12 && {cells()}.every((state) => state == 'merged')")
    tab.until("document.querySelector('[data-job=past]').getAttribute('aria-pressed') == 'true'")
    tab.evaluate("document.getElementById('bk-follow').click()")
    tab.until(f"{cells()}.length == 30 && document.getElementById('bk-follow').hidden")
    assert tab.problems == []


def test_the_page_fits_1280_800_and_390_pixels(tab, scheduler):
    feed(scheduler, *messages(2000, 100))
    for width in (1280, 800, 390):
        tab.open(page_of(scheduler), width=width)
        tab.until(f"{cells()}.length == 2000")
        tab.until("document.querySelectorAll('.bk-plot .bk-Figure').length == 4")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.problems == []


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_of_a_report_is_clipped(tab, tmp_path, width):
    counts = np.random.RandomState(0).poisson(900, (10, 10)).tolist()
    score = {"rows": 90_000, "of": "scored", "classes": list(range(10)), "confusion": counts}
    fit = {"certificates": {"whitening": 1e-3, "solution": 99.0, "rounding": 0.0, "prediction_error": 1.234e-12}}
    run = make_run(tmp_path / "run", segments=40)
    tell(run, ("score", score), ("fit", fit))
    for dark in (False, True):
        tab.open(f"file://{write(run)}", width=width, dark=dark)
        tab.until("document.querySelectorAll('nav a').length > 6")
        clipped = """[...document.querySelectorAll('main *')].filter((node) =>
            (getComputedStyle(node).overflowX != 'visible' && node.scrollWidth > node.clientWidth + 1) ||
            (!node.closest('svg') && node.getBoundingClientRect().right > innerWidth)).map((node) => node.outerHTML)"""
        assert tab.evaluate(clipped) == []
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.problems == []


def test_names_from_outside_are_text(tab, scheduler):
    changed = [
        ({**message, **({"title": HOSTILE, "run": HOSTILE} if message["kind"] == "job_started" else {})}, now)
        for message, now in messages(8, 2)
    ]
    last = changed[-1][1]
    note = {"kind": "note", "job": "simulated", "text": HOSTILE}
    feed(scheduler, *changed, (note, last))
    tab.open(page_of(scheduler))
    tab.until(f"{text('#bk-log li span')}.includes('onerror')")
    assert tab.evaluate(text(".bk-command")) == HOSTILE
    assert tab.evaluate("document.querySelectorAll('main img').length") == 0
    assert tab.evaluate("document.body.dataset.owned ?? 'no'") == "no"
    done = tab.evaluate(text(".bk-bar + .bk-line .bk-name"))
    assert re.fullmatch(r"[5-9]\d %", done)
    assert tab.evaluate("document.title") == f"{done} · {HOSTILE} · bigkernel"
    assert tab.problems == []


def test_a_part_that_fails_says_so_in_its_place(tab, scheduler, monkeypatch, caplog):
    def broken(*args: Any) -> None:
        raise ZeroDivisionError("a drawing without figures")

    monkeypatch.setattr(page_figures.Stages, "update", broken)
    feed(scheduler, *messages(8, 2))
    tab.open(page_of(scheduler))
    tab.until("document.querySelector('[data-part=stages] > .bk-failure')")
    assert "see the scheduler's log" in tab.evaluate(text("[data-part=stages] > .bk-failure"))
    assert tab.evaluate("document.querySelectorAll('.bk-failure:not([hidden])').length") == 1
    assert tab.evaluate(f"{cells()}.length") == 8
    assert tab.problems == []


def test_a_page_that_nobody_looks_at_costs_nothing(browser, scheduler, monkeypatch):
    times: list[float] = []
    update = Page.update

    def counted(page: Page) -> None:
        times.append(time.monotonic())
        update(page)

    monkeypatch.setattr(Page, "update", counted)
    feed(scheduler, *messages(8, 2))
    tab = browser()
    tab.open(page_of(scheduler))
    tab.until("!document.getElementById('bk-detail').hidden")
    wait_until(lambda: len(times) >= 4)
    # once a second; a scheduler that is busy is late, and makes up for it
    assert 0.6 < (times[3] - times[0]) / 3 < 10
    tab.close()
    wait_until(lambda: time.monotonic() - times[-1] > 2.5)


def test_a_cut_connection_is_told(tab):
    with LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster:
        with Client(cluster, set_as_default=False) as client:
            assert install_monitor(client)
        tab.open(page_of(cluster))
        tab.until("!document.getElementById('bk-empty').hidden")
        assert tab.evaluate("document.getElementById('bk-cut').hidden")
    tab.until("!document.getElementById('bk-cut').hidden")


def test_a_cell_tells_its_rows_its_worker_and_its_attempts(tab, scheduler):
    told = json.dumps(list(messages(60, 4))).replace("tcp://", "<b>tcp://")
    feed(scheduler, *json.loads(told))
    tab.open(page_of(scheduler))
    tab.until(f"{cells()}.length == 60 && document.querySelector('.bk-Figure')")
    x, y, width, height = tab.evaluate(
        "(({x, y, width, height}) => [x, y, width, height])"
        "(document.querySelector('[data-part=map] .bk-plot').getBoundingClientRect())"
    )
    # the eleventh cell of the first of four lines
    for step in range(3):
        tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + width * 0.7 + 2 * step, y=y + height / 8)
    shown = """((walk) => walk(document.body))(function walk(node) {
        return node.classList?.contains("bk-tooltip-content") ? node.textContent :
            [...(node.shadowRoot?.children ?? []), ...node.children].map(walk).join("") })"""
    tab.until(f"{shown}.includes('attempts 1')")
    told = tab.evaluate(shown)
    first, stop = re.search(r"rows ([\d,]+) to ([\d,]+)", told).groups()
    assert int(stop.replace(",", "")) - int(first.replace(",", "")) == 65_536
    assert "merged" in told
    assert "worker <b>tcp://10.0.0." in told


def test_dasks_own_pages_lead_to_ours_and_ours_to_theirs(tab, scheduler):
    tab.open(page_of(scheduler).replace("bigkernel", "workers"))
    tab.until("document.querySelector('a[href=bigkernel]')")
    tab.evaluate("document.querySelector('a[href=bigkernel]').click()")
    tab.until("location.pathname == '/bigkernel' && !document.getElementById('bk-empty').hidden")
    assert scheduler.scheduler.address in tab.evaluate(text("#bk-empty pre"))
    tab.evaluate("document.querySelector('a[href=workers]').click()")
    tab.until("location.pathname == '/workers' && document.readyState == 'complete'")
    assert Path(tab.evaluate("location.pathname")).name == "workers"
