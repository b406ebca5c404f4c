"""Clients that hold what was started for them until they are closed, be it by a `with` block, `close()` or the end.

A client that exists already is its caller's: a `with` block makes it the current one and leaves it open.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Self

from distributed import Client

from bigkernel.config import settings
from bigkernel.engine.worker_plugins import OneBlasThread, Undisturbed
from bigkernel.errors import ConfigError
from bigkernel.events.sinks import install_monitor


@contextmanager
def closing(client: Client) -> Iterator[Client]:
    """A client that is closed at the end of the block.

    Dask's own block marks the client in the context that it begins in, and may end in no other: cells of a notebook
    are others.
    """
    try:
        yield client
    finally:
        client.close()


def held(opened: AbstractContextManager[Client]) -> Client:
    """Enter a context, and leave it when its client is closed: at the end of a `with` block, by `close()`, or when
    the process ends.
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


_entered: ContextVar[tuple[AbstractContextManager[None], ...]] = ContextVar("entered", default=())


class _Callers(Client):
    """A client of the caller, who closes it: its `with` blocks may lie inside one another, and inside one of Dask's.

    Dask's own block keeps one token in the client, which a second block overwrites, and closes the client at its end.
    """

    def __enter__(self) -> Self:
        current = self.as_current()
        current.__enter__()
        _entered.set((*_entered.get(), current))
        return self

    def __exit__(self, *error: Any) -> None:
        *outer, current = _entered.get()
        _entered.set(tuple(outer))
        current.__exit__(*error)


def adopted(client: Client, given: list[str]) -> Client:
    """Give a client that exists the plugins that jobs want: the books of jobs, one BLAS thread, Ctrl-C for the driver.

    It is returned, and its `with` blocks leave it open from now on.

    Parameters
    ----------
    given : arguments that describe a cluster, for the refusal: this one is there

    Raises
    ------
    ConfigError
        It is asynchronous or closed, or there are such arguments.
    """
    if given:
        raise ConfigError(f"{given[0]}: a client was given, whose cluster is there; leave out {', '.join(given)}")
    if client.asynchronous:
        raise ConfigError(
            "client: this distributed.Client is asynchronous, and a fit waits for its answers; make one without "
            "asynchronous=True, for instance Client(client.scheduler.address)"
        )
    if client.status != "running":
        raise ConfigError(f"client: this distributed.Client is {client.status}; make another one")
    for plugin in (Undisturbed(), OneBlasThread()):
        client.register_plugin(plugin)
    install_monitor(client, shown=settings().monitor)
    kind = type(client)
    if not issubclass(kind, _Callers):  # a block of Dask's that has begun has its own end at hand, and closes it
        client.__class__ = type(kind.__name__, (_Callers, kind), {})
    return client
