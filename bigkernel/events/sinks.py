"""The sinks of a job: the journal of its run directory, and the scheduler of its client."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from distributed import Client

from bigkernel.data.visible import log_of
from bigkernel.events.journal import Journal
from bigkernel.events.plugin import Monitor
from bigkernel.events.relay import Relay
from bigkernel.events.scope import Scope
from bigkernel.events.views import show_scheduler

_log = log_of(__name__)
_installed: weakref.WeakKeyDictionary[Client, bool] = weakref.WeakKeyDictionary()


def install_monitor(client: Client, *, shown: bool = True) -> bool:
    """Put a `Monitor` on the scheduler of a client, unless one is there; return whether that went well.

    `shown`: to the views. What fails is logged once: the job goes on, but hears of no lost worker.
    """
    if client not in _installed:
        try:
            client.register_plugin(Monitor())
            if shown:
                client.run_on_scheduler(show_scheduler)
            _installed[client] = True
        except Exception as error:
            _log.warning("no monitoring: the scheduler refuses its plugin (%s: %s)", type(error).__name__, error)
            _installed[client] = False
    return _installed[client]


def send_to_scheduler(scope: Scope, client: object, *, wanted: bool) -> None:
    """Send a job to the scheduler of `client` from now on, where it is a Client.

    `wanted` is the setting `bigkernel.monitor`: without it nothing is sent, but the scheduler still tells of lost
    workers.
    """
    if isinstance(client, Client):
        installed = install_monitor(client, shown=wanted)
        if installed and wanted:
            scope.add_sink(f"scheduler of {client.id}", Relay(client, scope))


def write_journal(scope: Scope, run: str | os.PathLike[str]) -> str:
    """Write a job to the journal of a run from now on; return the name of this sink, by which it can be dropped."""
    name = f"journal of {Path(run).absolute()}"
    scope.add_sink(name, Journal(run, scope))
    return name
