"""Who hears a job: the journal of its run directory, and the scheduler of its client."""

from __future__ import annotations

import os
from pathlib import Path

from distributed import Client

from bigkernel.monitor.scope import Scope
from bigkernel.monitor.transport.journal import Journal
from bigkernel.monitor.transport.plugin import install
from bigkernel.monitor.transport.relay import Relay


def tell_scheduler(scope: Scope, client: object, *, wanted: bool) -> None:
    """Let the scheduler of `client` (a Client, or anything else, which has none) hear a job from now on.

    `wanted` is the setting `bigkernel.monitor`: without it nobody hears it, but the scheduler still tells of lost
    workers.
    """
    if isinstance(client, Client):
        installed = install(client, shown=wanted)
        if installed and wanted:
            scope.add_sink(f"scheduler of {client.id}", Relay(client, scope))


def tell_journal(scope: Scope, run: str | os.PathLike[str]) -> str:
    """Let the journal of a run hear a job from now on; the name of this sink, by which it can be dropped."""
    name = f"journal of {Path(run).absolute()}"
    scope.add_sink(name, Journal(run, scope))
    return name
