"""The driver's part: sends the messages of its jobs to the scheduler, and hears what the scheduler tells.

Messages are put in a queue and sent from the client's event loop a few times a second, so that a sweep never waits for
them. What a slow scheduler did not take is sent again with what came since, at most the last thousand messages; when
the connection has ended nothing is sent any more.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from distributed import Client

from bigkernel.events.kinds import Event, Figures, Merged, Pulse, SweepStarted
from bigkernel.events.messages import TOPIC, message_of
from bigkernel.events.plugin import topic_of
from bigkernel.events.scope import Scope

_EVERY_SECONDS = 0.2
_SEND_SECONDS = 5.0  # most that a scheduler may take for a batch
_FLUSH_SECONDS = 2.0  # most that the end of a job waits for its last messages
_MOST_KEPT = 1000  # messages that are sent again when the scheduler was too slow


class Relay:
    """A sink of a job: sends its messages to the scheduler of `client`."""

    def __init__(self, client: Client, scope: Scope) -> None:
        self._client, self._scope = client, scope
        self._post = _post_of(client)
        self._on_workers = True

    def __call__(self, event: Event) -> None:
        """Queue the message of an event.

        Of a sweep on its workers the scheduler knows running segments and merges before the driver. Figures, which may
        hold images of rows, are for the journal: everybody on the machine may read what the scheduler shows.
        """
        if isinstance(event, SweepStarted):
            self._on_workers = event.executor == "dask"
        if isinstance(event, Figures) or (self._on_workers and isinstance(event, Pulse | Merged)):
            return
        self._post.put({**message_of(event, self._scope), "driver": self._client.id})

    def close(self) -> None:
        """Let the last messages leave."""
        self._post.flush()


class _Post:
    """The queue of one client, and what listens to its scheduler."""

    def __init__(self, client: Client) -> None:
        self._client = weakref.ref(client)
        self._loop = client.loop
        self._queue: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._busy = threading.Lock()  # held while a coroutine sends
        self._idle = threading.Event()
        self._idle.set()
        self._hurry = asyncio.Event()
        self._ending = 0  # flushes that wait
        self.listeners: dict[str, Callable[[dict[str, Any]], None]] = {}
        client.subscribe_topic(topic_of(client.id), self._dispatch)

    def _dispatch(self, event: tuple[float, Any]) -> None:
        message = event[1]
        for token, listener in list(self.listeners.items()) if isinstance(message, dict) else ():
            if message.get("sweep", token) == token:
                listener(message)

    def put(self, message: dict[str, Any]) -> None:
        """Queue a message."""
        self._queue.put(message)
        self._start()

    def _start(self) -> None:
        if self._busy.acquire(blocking=False):
            self._idle.clear()
            try:
                self._loop.add_callback(self._send)
            except RuntimeError:  # the loop is closed
                self._done()

    async def _send(self) -> None:
        """Send what is queued, in order, until nothing has come for a while."""
        messages: list[dict[str, Any]] = []
        try:
            while True:
                client = self._open_client()
                while not self._queue.empty():
                    messages.append(self._queue.get_nowait())
                if client is None or not messages:
                    return
                try:
                    sending = client.scheduler.log_event(topic=TOPIC, msg={"messages": messages})
                    await asyncio.wait_for(sending, _SEND_SECONDS)
                    messages = []
                except (TimeoutError, OSError):  # a slow scheduler; if it is gone the job will notice itself
                    messages = messages[-_MOST_KEPT:]
                del client
                if not self._ending or messages:
                    with suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(self._hurry.wait(), _EVERY_SECONDS)
                    self._hurry.clear()
        finally:
            self._done()
            if self._open_client() is not None and not self._queue.empty():
                self._start()  # it came while this was ending

    def _open_client(self) -> Client | None:
        client = self._client()
        return client if client is not None and client.status == "running" else None

    def _done(self) -> None:
        self._idle.set()
        self._busy.release()

    def flush(self) -> None:
        """Send what is queued now, and wait until it has left, for a bounded time."""
        self._ending += 1
        with suppress(RuntimeError):  # the loop is closed
            self._loop.add_callback(self._hurry.set)
        self._idle.wait(_FLUSH_SECONDS)
        self._ending -= 1


_posts: weakref.WeakKeyDictionary[Client, _Post] = weakref.WeakKeyDictionary()
_making = threading.Lock()  # sweeps in several threads begin at once: of two posts, only the later one would hear


def _post_of(client: Client) -> _Post:
    with _making:
        if client not in _posts:
            _posts[client] = _Post(client)
        return _posts[client]


def listen(client: Client, token: str, listener: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
    """Hear what the scheduler tells about the sweep with this token, and about lost workers; return how to end it.

    `listener` is called in the client's event loop. Returns when the scheduler knows who listens, or has been too slow:
    what happens to a task that is submitted afterwards is heard.
    """
    post = _post_of(client)
    post.listeners[token] = listener
    post.put({"kind": "listen", "sweep": token, "driver": client.id})
    post.flush()

    def leave() -> None:
        post.listeners.pop(token, None)
        post.put({"kind": "leave", "sweep": token, "driver": client.id})

    return leave
