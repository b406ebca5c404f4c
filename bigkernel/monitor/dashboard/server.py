"""Routes on the scheduler's HTTP server: the page `/bigkernel`, and its state `/bigkernel/state.json`.

They are added while the scheduler runs, by a driver (`events.sinks`) or by Dask's configuration:

    distributed.scheduler.preload: [bigkernel.monitor.dashboard.server]

They need no Bokeh; where there is one, Dask's own pages link to ours. Whatever fails here is logged once, and the
scheduler goes on.
"""

from __future__ import annotations

import ipaddress
import socket
import weakref
from typing import Any

from distributed import Scheduler
from distributed.http.utils import RequestHandler
from tornado.httputil import HTTPServerRequest
from tornado.web import Application

from bigkernel.config import settings
from bigkernel.data.visible import log_of
from bigkernel.events.plugin import NAME, Monitor, state_of
from bigkernel.monitor.dashboard import metrics
from bigkernel.monitor.page import render, to_json

PAGE = "bigkernel"  # below the dashboard's prefix, and in its menu
STATE = "bigkernel/state.json"
_log = log_of(__name__)
_failed: weakref.WeakSet[Application] = weakref.WeakSet()


async def dask_setup(scheduler: Scheduler) -> None:
    """Keep the state of jobs on this scheduler from its start; called by Dask for a preloaded module."""
    if NAME not in scheduler.plugins:
        monitor = Monitor()
        await monitor.start(scheduler)
        scheduler.add_plugin(monitor, name=NAME)
    show(scheduler)


def show(dask_scheduler: Scheduler) -> None:
    """Show the board of a scheduler on its HTTP server and among its metrics, once, as far as possible.

    A scheduler without a board shows none.
    """
    plugin = dask_scheduler.plugins.get(NAME)
    if not isinstance(plugin, Monitor) or plugin.shown:
        return
    plugin.shown = True
    for module, add in ((__name__, install), (metrics.__name__, metrics.install)):
        try:
            add(dask_scheduler)
        except Exception as error:
            _log.warning("%s: not shown (%s: %s)", module, type(error).__name__, error)


def install(scheduler: Scheduler) -> None:
    """Add the routes of a scheduler's jobs to its HTTP server."""
    application: Any = getattr(scheduler, "http_application", None)
    if application is None:
        _log.warning("no page and no JSON of jobs: the scheduler has no HTTP server")
        return
    dashboard = next((app for app in application.applications if hasattr(app, "app_paths")), None)
    if dashboard is not None:
        prefix = str(dashboard.prefix).rstrip("/")
    else:  # the scheduler does not store the prefix of its paths, "" or "/…"
        patterns = [getattr(rule.matcher, "regex", None) for rule in application.wildcard_router.rules]
        paths = [str(pattern.pattern).removesuffix("$") for pattern in patterns if pattern is not None]
        prefix = next((path.removesuffix("/health") for path in paths if path.endswith("/health")), "")
    given = {"dask_server": scheduler}
    application.add_handlers(r".*", [(f"{prefix}/{PAGE}", Page, given), (f"{prefix}/{STATE}", State, given)])
    _guard(application, prefix)
    if dashboard is not None:  # add the page to the menu of Dask's pages, which is not a documented interface
        from distributed.dashboard.scheduler import template_variables

        pages = template_variables(scheduler)["pages"]  # one list per scheduler, held by Dask's own pages
        if PAGE not in pages:
            pages.insert(1, PAGE)


def _guard(application: Any, prefix: str) -> None:
    """Answer requests to our routes under the name of another host with 403.

    A site whose name was made to resolve here (DNS rebinding) could read them otherwise. It cannot use an address or a
    name of this machine.
    """
    find, ours = application.find_handler, f"{prefix}/{PAGE}"
    here = {"localhost", socket.gethostname(), socket.getfqdn(), *settings().page_hosts}
    known = {name.rstrip(".").lower() for name in here}

    def find_handler(request: HTTPServerRequest, **options: Any) -> Any:
        if request.path.startswith(ours) and not _is_known(str(request.host_name), known):
            return application.get_handler_delegate(request, Refused)
        return find(request, **options)

    application.find_handler = find_handler


def _is_known(host: str, known: set[str]) -> bool:
    """Return True for addresses, loopback names and known host names."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        name = host.rstrip(".").lower()
        return name in known or name.endswith(".localhost")
    return True


class Refused(RequestHandler):
    """The answer to a request under a host name that is not this machine's."""

    def prepare(self) -> None:
        """Answer 403, to any method."""
        self.set_status(403)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(
            "This page is not served under this host name. Use the address of the scheduler, or add the name to "
            "bigkernel.page-hosts in the Dask configuration of the scheduler.\n"
        )


class Page(RequestHandler):
    """The page, which then requests the state; uncached, with its type fixed, not in frames of other sites."""

    def set_default_headers(self) -> None:
        """Set the headers of every answer."""
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("X-Frame-Options", "SAMEORIGIN")

    def get(self) -> None:
        """Answer 200."""
        self.finish(render())


class State(Page):
    """The state of the scheduler's board as JSON, documented by `Board.snapshot`. Other sites cannot read it."""

    def get(self) -> None:
        """Answer 200 with the state, or 503 where there is none."""
        self.set_header("Content-Type", "application/json")
        try:
            state = state_of(self.server)
            pages = any(hasattr(app, "app_paths") for app in self.application.applications)
            text = "" if state is None else to_json({**state, "pages": pages})
            fault = "this scheduler keeps no record of jobs"
        except Exception as error:
            if self.application not in _failed:
                _failed.add(self.application)
                _log.warning("/%s is not available (%s)", STATE, type(error).__name__, exc_info=True)
            text, fault = "", "the state is not available, see the scheduler's log"
        if not text:
            self.set_status(503)
        self.finish(text or to_json({"error": fault}))
