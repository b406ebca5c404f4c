"""Clients that hold what was started for them until they are closed, be it by a `with` block, `close()` or the end."""

from __future__ import annotations

import atexit
from contextlib import AbstractContextManager
from typing import Any

from distributed import Client

from bigkernel.engine.worker_plugins import OneBlasThread, Undisturbed
from bigkernel.errors import ConfigError


def held(opened: AbstractContextManager[Client]) -> Client:
    """Enter a context, and leave it when its client is closed, or when the process ends.

    No context variable is set, as Dask's own block does: cells of a notebook run in contexts of their own.
    """
    client = opened.__enter__()

    def close(*args: Any, **kwargs: Any) -> None:
        """Close the client, and end what was started for it."""
        if vars(client).pop("close", None) is not None:  # once; the context closes the client by its own method
            atexit.unregister(close)
            opened.__exit__(None, None, None)

    client.close = close
    atexit.register(close)
    return client


def with_plugins(client: Client) -> Client:
    """Give a client that exists the plugins that jobs want; a `ConfigError` where it is asynchronous or closed."""
    if client.asynchronous:
        raise ConfigError(
            "client: this distributed.Client is asynchronous, and a fit waits for its answers; make one without "
            "asynchronous=True, for instance Client(client.scheduler.address)"
        )
    if client.status != "running":
        raise ConfigError(f"client: this distributed.Client is {client.status}; make another one")
    for plugin in (Undisturbed(), OneBlasThread()):
        client.register_plugin(plugin)
    return client
