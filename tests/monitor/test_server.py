"""The routes of the scheduler's HTTP server: the page, its state, and what happens where they cannot be."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import pytest
import yaml
from distributed import Scheduler
from page_reader import read
from simulated import messages
from tornado.httpclient import AsyncHTTPClient, HTTPRequest, HTTPResponse

from bigkernel.events.plugin import NAME, Monitor, board_of
from bigkernel.monitor.dashboard import server

CLUSTER = Path(__file__).parents[2] / "cluster" / "dask.yaml"


def on_scheduler(check: Callable[[Scheduler], Coroutine[Any, Any, None]], *, monitored: bool = True, **options: Any):
    """Run a check on a scheduler without workers, whose dashboard has a free port."""

    async def run() -> None:
        options.setdefault("dashboard", False)
        async with Scheduler(host="127.0.0.1", port=0, dashboard_address="127.0.0.1:0", **options) as scheduler:
            if monitored:
                await server.dask_setup(scheduler)
            await check(scheduler)

    asyncio.run(asyncio.wait_for(run(), 60))


async def get(scheduler: Scheduler, path: str, **headers: str) -> HTTPResponse:
    """The answer to a GET of a path, whatever its status."""
    request = HTTPRequest(f"http://127.0.0.1:{scheduler.http_server.port}{path}", headers=headers)
    return await AsyncHTTPClient().fetch(request, raise_error=False)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What our modules logged as warnings."""
    found = [record for record in caplog.records if record.name.startswith("bigkernel")]
    return [record.getMessage() for record in found if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("dashboard", [True, False])
def test_the_page_is_live_with_and_without_dasks_own_which_link_to_it(dashboard):
    async def check(scheduler):
        ours, theirs = await get(scheduler, "/bigkernel"), await get(scheduler, "/status")
        assert (ours.code, theirs.code) == (200, 200 if dashboard else 404)
        assert read(ours.body.decode()) is None
        assert (b'<a href="bigkernel">Bigkernel</a>' in theirs.body) == dashboard
        assert json.loads((await get(scheduler, "/bigkernel/state.json")).body)["pages"] == dashboard
        before = len(scheduler.http_application.default_router.rules)
        await server.dask_setup(scheduler)  # again
        assert len(scheduler.http_application.default_router.rules) == before
        assert (await get(scheduler, "/status")).body.count(b'href="bigkernel"') == dashboard

    on_scheduler(check, dashboard=dashboard)


def test_the_json_is_the_state_of_the_scheduler_and_not_for_other_sites():
    async def check(scheduler):
        for message, now in messages(20, 4):
            board_of(scheduler).apply(message, now)
        answer = await get(scheduler, "/bigkernel/state.json", Origin="http://elsewhere.example")
        state = json.loads(answer.body)
        assert answer.code == 200
        assert state["jobs"] == json.loads(json.dumps(board_of(scheduler).snapshot(state["time"])["jobs"]))
        assert state["jobs"][0]["sweeps"][0]["rows_done"] == 10 * 65_536
        board_of(scheduler).jobs["simulated"].title = "\x1b[2J\u202e"  # text of others is letters
        evil = json.loads((await get(scheduler, "/bigkernel/state.json")).body)["jobs"][0]["title"]
        assert evil == "\\x1b[2J\\u202e"
        assert (state["workers"], state["address"]) == ({}, scheduler.address)
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Content-Type"].startswith("application/json")
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]
        assert (await get(scheduler, "/bigkernel/other.json")).code == 404

    on_scheduler(check)


def test_the_routes_keep_the_prefix_of_the_dashboard():
    async def check(scheduler):
        assert (await get(scheduler, "/behind/proxy/bigkernel/state.json")).code == 200
        assert (await get(scheduler, "/behind/proxy/bigkernel")).code == 200
        assert (await get(scheduler, "/bigkernel/state.json")).code == 404

    on_scheduler(check, http_prefix="/behind/proxy")


def test_books_are_shown_once_and_only_where_there_are_any(monkeypatch):
    shown = []
    monkeypatch.setattr(server, "install", shown.append)
    monkeypatch.setattr(server.metrics, "install", shown.append)
    scheduler = SimpleNamespace(plugins={})
    server.show(scheduler)
    assert shown == []
    scheduler.plugins[NAME] = Monitor()
    for _ in range(2):
        server.show(scheduler)
    assert shown == [scheduler] * 2  # the page and the metrics


def test_without_an_http_server_there_is_nothing_and_one_warning(caplog):
    class Bare:
        pass

    server.install(Bare())
    assert warnings_of(caplog) == ["no page and no JSON of jobs: the scheduler has no HTTP server"]


def test_a_dashboard_that_is_built_otherwise_costs_the_link_alone(caplog, monkeypatch):
    def other(scheduler):
        raise TypeError("template_variables() takes other arguments")

    async def start_with_theirs_changed(scheduler):
        monkeypatch.setattr("distributed.dashboard.scheduler.template_variables", other)
        await server.dask_setup(scheduler)
        for path in ("/bigkernel", "/bigkernel/state.json"):
            assert (await get(scheduler, path)).code == 200

    on_scheduler(start_with_theirs_changed, monitored=False, dashboard=True)
    assert len(warnings_of(caplog)) == 1
    assert "takes other arguments" in warnings_of(caplog)[0]


def test_a_state_that_cannot_be_sent_is_an_error_and_logged_once(caplog, monkeypatch):
    def broken(scheduler):
        raise ZeroDivisionError("no figures")

    async def check(scheduler):
        monkeypatch.setattr(server, "state_of", broken)
        for _ in range(3):
            answer = await get(scheduler, "/bigkernel/state.json")
            assert answer.code == 503
            assert "see the scheduler's log" in json.loads(answer.body)["error"]

    on_scheduler(check)
    assert len(warnings_of(caplog)) == 1


def test_a_scheduler_without_books_says_so():
    async def check(scheduler):
        server.install(scheduler)
        answer = await get(scheduler, "/bigkernel/state.json")
        assert answer.code == 503
        assert json.loads(answer.body) == {"error": "this scheduler keeps no record of jobs"}
        assert (await get(scheduler, "/bigkernel")).code == 200

    on_scheduler(check, monitored=False)


def test_the_configuration_that_we_ship_shows_the_page_and_no_logs():
    async def check(scheduler):
        assert board_of(scheduler) is not None
        for path in ("/bigkernel", "/bigkernel/state.json", "/status", "/health"):
            assert (await get(scheduler, path)).code == 200, path
        for path in ("/info/main/workers.html", "/info/main/logs.html", "/json/identity.json", "/proxy/80/x/y"):
            assert (await get(scheduler, path)).code == 404, path

    with dask.config.set(dask.config.merge(dask.config.config, yaml.safe_load(CLUSTER.read_text()))):
        routes = dask.config.get("distributed.scheduler.http.routes")
        kept = [route for route in routes if route != "distributed.http.scheduler.prometheus"]
        with dask.config.set({"distributed.scheduler.http.routes": kept}):  # needs an optional package
            on_scheduler(check, monitored=False, dashboard=True)


STRANGE = ("evil.example", "evil.example:80", "127.0.0.1.evil.example")
KNOWN = ("localhost", "LOCALHOST.:99", "jobs.localhost", "127.0.0.1:8787", "[::1]:8787", "192.0.2.7")


def test_our_routes_answer_under_the_names_of_this_machine_only():
    async def check(scheduler):
        for host in (*STRANGE, *KNOWN, socket.gethostname(), "watch.example.org"):
            for path in ("/bigkernel", "/bigkernel/state.json"):
                answer = await get(scheduler, path, Host=host)
                assert answer.code == (403 if host in STRANGE else 200), host
                assert (b"bigkernel.page-hosts" in answer.body) == (host in STRANGE)
        assert (await get(scheduler, "/status", Host=STRANGE[0])).code == 200  # Dask's own pages are its own affair

    with dask.config.set({"bigkernel.page-hosts": ["watch.example.org"]}):
        on_scheduler(check, dashboard=True)
