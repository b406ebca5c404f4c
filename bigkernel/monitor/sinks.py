"""Who hears a job: the journal of its run directory, and the scheduler of its client."""

from __future__ import annotations

import os

from distributed import Client

from bigkernel.monitor import Scope
from bigkernel.monitor.journal import Journal
from bigkernel.monitor.plugin import install
from bigkernel.monitor.relay import Relay


def attach_sinks(scope: Scope, client: object, run: str | os.PathLike[str] | None, *, wanted: bool) -> None:
    """Let the journal of `run` and the scheduler of `client` (a Client, or anything else) hear a job from now on.

    `wanted` is the setting `bigkernel.monitor`: without it nobody hears it, but the scheduler still tells of lost
    workers.
    """
    if isinstance(client, Client):
        installed = install(client, shown=wanted)
        if installed and wanted:
            scope.add_sink(f"scheduler of {client.id}", Relay(client, scope))
    if run is not None and wanted:
        scope.add_sink(f"journal of {run}", Journal(run, scope))
