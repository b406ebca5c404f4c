"""Routes on the scheduler's HTTP server: the page `/bigkernel` among those of Dask, and `/bigkernel/state.json`.

They are added while the scheduler runs, by a driver (`monitor.sinks`) or by Dask's configuration:

    distributed.scheduler.preload: [bigkernel.monitor.dashboard.server]

The page needs Dask's own dashboard; without it there is the JSON alone, without an HTTP server nothing. How Dask builds
its dashboard is no documented interface: whatever fails here is logged once, and the scheduler goes on.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import weakref
from typing import Any

from distributed import Scheduler
from distributed.http.utils import RequestHandler
from tornado.httputil import HTTPServerRequest
from tornado.ioloop import IOLoop
from tornado.web import Application

from bigkernel.config import settings
from bigkernel.data.visible import log_of
from bigkernel.events.plugin import NAME, Monitor, state_of
from bigkernel.monitor.dashboard import metrics

PAGE = "bigkernel"  # below the dashboard's prefix, and in its menu
STATE = "bigkernel/state.json"
_log = log_of(__name__)
_shown: weakref.WeakSet[Application] = weakref.WeakSet()
_failed: weakref.WeakSet[Application] = weakref.WeakSet()


async def dask_setup(scheduler: Scheduler) -> None:
    """Keep the books of jobs on this scheduler from its start; called by Dask for a preloaded module."""
    if NAME not in scheduler.plugins:
        monitor = Monitor()
        await monitor.start(scheduler)
        scheduler.add_plugin(monitor, name=NAME)
    show(scheduler)


def show(dask_scheduler: Scheduler) -> None:
    """Show the books of a scheduler on its dashboard and among its metrics, once, as far as that works.

    For `Client.run_on_scheduler`; a scheduler that keeps no books shows none.
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
    """Show the books of a scheduler's jobs on its HTTP server; once, however often it is called.

    Never raises: what cannot be shown is logged as a warning.
    """
    application: Any = getattr(scheduler, "http_application", None)
    if application is None:
        _log.warning("no page and no JSON about jobs: the scheduler has no HTTP server")
        return
    if application in _shown:
        return
    _shown.add(application)
    try:
        dashboard = _dashboard(application)
        prefix = _prefix(application, dashboard)
        application.add_handlers(r".*", [(f"{prefix}/{STATE}", State, {"dask_server": scheduler})])
        _guard(application, prefix)
        if dashboard is None:
            _log.info("no page about jobs, only /%s: this scheduler has no dashboard (it needs Bokeh)", STATE)
        else:
            _add_page(scheduler, application, prefix)
    except Exception as error:
        _log.warning("the page about jobs is not shown (%s: %s)", type(error).__name__, error)


def _dashboard(application: Any) -> Any:
    """Dask's Bokeh application, or None; told by what is used of it, so that this module loads without Bokeh."""
    return next((found for found in application.applications if hasattr(found, "app_paths")), None)


def _prefix(application: Any, dashboard: Any) -> str:
    """ "" or "/…": what the paths of this HTTP server begin with; the scheduler itself does not remember it."""
    if dashboard is not None:
        return str(dashboard.prefix).rstrip("/")
    patterns = [getattr(rule.matcher, "regex", None) for rule in application.wildcard_router.rules]
    paths = [str(pattern.pattern).removesuffix("$") for pattern in patterns if pattern is not None]
    return next((path.removesuffix("/health") for path in paths if path.endswith("/health")), "")


def _add_page(scheduler: Scheduler, application: Any, prefix: str) -> None:
    """Add the page as Dask adds its own (`distributed.dashboard.scheduler.connect`), and name it in their menu."""
    from distributed.dashboard.core import BokehApplication
    from distributed.dashboard.scheduler import template_variables

    from bigkernel.monitor.dashboard.page import document

    variables = template_variables(scheduler)  # one dict of each scheduler, which Dask's own pages hold
    pages = BokehApplication({f"/{PAGE}": document}, scheduler, prefix=prefix, template_variables=variables)
    application.add_application(pages)
    pages.initialize(IOLoop.current())
    pages.start()
    if PAGE not in variables["pages"]:
        variables["pages"].insert(1, PAGE)


def _guard(application: Any, prefix: str) -> None:
    """Answer what is asked of our routes under the name of another host with 403.

    A site whose name was made to lead here (DNS rebinding) could read them otherwise. It cannot make its name an
    address, nor that of this machine.
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
    """True for addresses, loopback names and those that are known."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        name = host.rstrip(".").lower()
        return name in known or name.endswith(".localhost")
    return True


class Refused(RequestHandler):
    """The answer to a request under a name that is not this machine's."""

    def prepare(self) -> None:
        """Answer 403, to any method."""
        self.set_status(403)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(
            "This page does not answer under this host name. Take the address of the scheduler, or put the name into "
            "bigkernel.page-hosts in the configuration of Dask where the scheduler runs.\n"
        )


class State(RequestHandler):
    """The state of the scheduler's board as JSON; `Board.snapshot` documents it. Other sites cannot read it."""

    def get(self) -> None:
        """Answer 200 with the state, or 503 where there is none."""
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        try:
            state = state_of(self.server)
            text = json.dumps(state, allow_nan=False)
        except Exception as error:
            if self.application not in _failed:
                _failed.add(self.application)
                _log.warning("/%s cannot be told (%s)", STATE, type(error).__name__, exc_info=True)
            state, text = None, '{"error": "the state cannot be told, see the scheduler\'s log"}'
        if state is None:
            self.set_status(503)
            text = text if text != "null" else '{"error": "this scheduler keeps no books of jobs"}'
        self.finish(text)
