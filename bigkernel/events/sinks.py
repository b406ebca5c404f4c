"""Sinks of a job: the journal of its run, the scheduler of its client, and views.

Messages to the scheduler are queued and sent from the client's event loop a few times a second, so that a sweep never
waits for them. What a slow scheduler did not take is sent again with later ones, at most the last thousand messages;
after the end of the connection nothing is sent. The scheduler's reports about a sweep come back the same way.

Views are functions that packages register as entry points of the group `bigkernel.views`: `scheduler` is called once
with a scheduler that has a board (`plugin.board_of`), `run` with a run directory whose job has ended. Errors of a view
are logged: no view may ever stop a job.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from distributed import Client, Scheduler

from bigkernel.data.visible import log_of
from bigkernel.events.job import TOPIC, Event, Figures, Merged, Message, Pulse, Scope, SweepStarted, message_of
from bigkernel.events.journal import Journal
from bigkernel.events.plugin import Monitor

_EVERY_SECONDS = 0.2
_SEND_SECONDS = 5.0  # most seconds for the scheduler to take a batch
_FLUSH_SECONDS = 2.0  # most seconds that the end of a job waits for its last messages
_MOST_KEPT = 1000  # messages sent again if the scheduler was too slow
_log = log_of(__name__)
_installed: weakref.WeakKeyDictionary[Client, bool] = weakref.WeakKeyDictionary()
_posts: weakref.WeakKeyDictionary[Client, _Post] = weakref.WeakKeyDictionary()
# sweeps in several threads begin at once: of two queues, only the later one would receive reports
_making = threading.Lock()


def write_journal(scope: Scope, run: str | os.PathLike[str]) -> str:
    """Write a job to the journal of a run from now on; return the name of this sink, for removing it."""
    name = f"journal of {Path(run).absolute()}"
    scope.add_sink(name, Journal(run, scope))
    return name


def send_to_scheduler(scope: Scope, client: Client, *, monitored: bool) -> None:
    """Send a job to the scheduler of `client` from now on.

    `monitored` is the setting `bigkernel.monitor`: without it nothing is sent, but the scheduler still reports lost
    workers.
    """
    if install_monitor(client, shown=monitored) and monitored:
        scope.add_sink(f"scheduler of {client.id}", Relay(client, scope))


def install_monitor(client: Client, *, shown: bool = True) -> bool:
    """Install a `Monitor` on the scheduler of a client unless there is one; return whether that succeeded.

    `shown`: to the views. A failure is logged once: the job continues without reports of lost workers.
    """
    if client not in _installed:
        try:
            client.register_plugin(Monitor())
            if shown:
                client.run_on_scheduler(show_scheduler)
            _installed[client] = True
        except Exception as error:
            _log.warning("no monitoring: the scheduler refused the plugin (%s: %s)", type(error).__name__, error)
            _installed[client] = False
    return _installed[client]


def show_scheduler(dask_scheduler: Scheduler) -> None:
    """Show the board of a scheduler in all views; for `Client.run_on_scheduler`."""
    _show("scheduler", dask_scheduler)


def show_run(directory: str) -> None:
    """Show a run whose job has ended in all views."""
    _show("run", directory)


@cache
def _views(name: str) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group="bigkernel.views", name=name))


def _show(name: str, subject: object) -> None:
    for view in _views(name):
        try:
            view.load()(subject)
        except Exception as error:
            _log.warning("%s: monitoring of %s failed (%s: %s)", view.value, subject, type(error).__name__, error)


class Relay:
    """A sink of a job that sends its messages to the scheduler of `client`."""

    def __init__(self, client: Client, scope: Scope) -> None:
        self._client, self._scope = client, scope
        self._post = _post_of(client)
        self._on_workers = True

    def __call__(self, event: Event) -> None:
        """Queue the message of an event.

        On a cluster the scheduler knows running segments and merges before the driver does. Figures, which may hold
        images of rows, go only to the journal: anyone on the machine may read what the scheduler shows.
        """
        if isinstance(event, SweepStarted):
            self._on_workers = event.executor == "dask"
        if not (isinstance(event, Figures) or (self._on_workers and isinstance(event, Pulse | Merged))):
            message = message_of(event, self._scope.job, self._scope.sweep)
            self._post.put({**message, "driver": self._client.id})

    def close(self) -> None:
        """Wait until the last messages are sent."""
        self._post.flush()


def listen(client: Client, token: str, listener: Callable[[Message], None]) -> Callable[[], None]:
    """Call `listener` with the scheduler's reports on a sweep and on lost workers; return a function that ends this.

    `listener` is called in the client's event loop. `listen` returns when the scheduler has registered it, or is too
    slow: later tasks are then reported.
    """
    post = _post_of(client)
    post.listeners[token] = listener
    post.put({"kind": "listen", "sweep": token, "driver": client.id})
    post.flush()

    def leave() -> None:
        post.listeners.pop(token, None)
        post.put({"kind": "leave", "sweep": token, "driver": client.id})

    return leave


def _post_of(client: Client) -> _Post:
    with _making:
        if client not in _posts:
            _posts[client] = _Post(client)
        return _posts[client]


class _Post:
    """The message queue of one client, and the listeners to its scheduler."""

    def __init__(self, client: Client) -> None:
        self._client, self._loop = weakref.ref(client), client.loop
        self._lock = threading.Lock()  # of the messages, and of whether a coroutine sends them
        self._messages: list[Message] = []
        self._idle, self._hurry = threading.Event(), asyncio.Event()
        self._idle.set()
        self.listeners: dict[str, Callable[[Message], None]] = {}
        client.subscribe_topic(f"{TOPIC}-{client.id}", self._dispatch)

    def _dispatch(self, event: tuple[float, Any]) -> None:
        message = event[1]
        for token, listener in list(self.listeners.items()) if isinstance(message, dict) else ():
            if message.get("sweep", token) == token:
                listener(message)

    def put(self, message: Message) -> None:
        """Queue a message."""
        with self._lock:
            self._messages.append(message)
            if self._idle.is_set():
                self._idle.clear()
                self._loop.add_callback(self._send)

    async def _send(self) -> None:
        """Send queued messages in order until nothing has been added for a while."""
        try:
            while True:
                with self._lock:
                    client, messages, self._messages = self._open_client(), self._messages, []
                    if client is None or not messages:
                        self._idle.set()
                        return
                try:
                    sending = client.scheduler.log_event(topic=TOPIC, msg={"messages": messages})
                    await asyncio.wait_for(sending, _SEND_SECONDS)
                except (TimeoutError, OSError):  # a slow scheduler; if it is lost, the job notices that itself
                    with self._lock:
                        self._messages = [*messages, *self._messages][-_MOST_KEPT:]
                    self._hurry.clear()  # the next attempt waits, also while a flush does
                del client
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), _EVERY_SECONDS)
        except BaseException:
            self._idle.set()
            raise

    def _open_client(self) -> Client | None:
        client = self._client()
        return client if client is not None and client.status == "running" else None

    def flush(self) -> None:
        """Send queued messages now, and wait for that, for a bounded time."""
        if self._open_client() is not None:
            self._loop.add_callback(self._hurry.set)
            self._idle.wait(_FLUSH_SECONDS)
            self._loop.add_callback(self._hurry.clear)
