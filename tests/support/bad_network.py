"""A network between processes of one machine that loses, delays and cuts: a relay of TCP connections.

What TCP makes of lost packets is what programs see of them: bytes that come late, in order, after a retransmission
time-out. The relay draws such waits; it can hold all bytes back for a while, and end every connection.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np

PART_BYTES = 16_384  # what waits by itself: about a dozen packets


@dataclass
class Relay:
    """Connections to `port` go on to `target` of this machine.

    Attributes
    ----------
    delay : mean seconds of each part, one way
    loss : share of the parts that come after a retransmission, 0.2 to 0.8 s later
    """

    target: int
    delay: float = 0.0
    loss: float = 0.0
    port: int = 0
    lost: int = 0  # parts that came late
    open: set[asyncio.StreamWriter] = field(default_factory=set)
    _rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def __post_init__(self) -> None:
        self._loop, self._passes = asyncio.new_event_loop(), asyncio.Event()
        self._passes.set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    def cut(self) -> None:
        """Hold every byte back, as a network that is cut does."""
        self._loop.call_soon_threadsafe(self._passes.clear)

    def mend(self) -> None:
        """Let what was held back go on."""
        self._loop.call_soon_threadsafe(self._passes.set)

    def end_connections(self) -> None:
        """End every connection, as a firewall that forgets does."""
        self._loop.call_soon_threadsafe(self._abort)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._join, "127.0.0.1", self.port))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        self._abort()
        for task in (tasks := asyncio.all_tasks(self._loop)):
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    def _abort(self) -> None:
        for writer in self.open:
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.add(writer)
        try:
            there, to_there = await asyncio.open_connection("127.0.0.1", self.target)
            self.open.add(to_there)
            await asyncio.gather(self._carry(reader, to_there), self._carry(there, writer))
        except OSError:  # nobody listens there any more
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while part := await reader.read(PART_BYTES):
                late = self._rng.random() < self.loss
                self.lost += late
                await asyncio.sleep(self._rng.exponential(self.delay) + late * self._rng.uniform(0.2, 0.8))
                await self._passes.wait()
                writer.write(part)
                await writer.drain()
        writer.close()


@contextmanager
def relay(target: int, *, delay: float = 0.0, loss: float = 0.0) -> Iterator[Relay]:
    """A relay to a port of this machine, for a block."""
    made = Relay(target, delay, loss)
    made._thread.start()
    assert made._ready.wait(10)
    try:
        yield made
    finally:
        made._loop.call_soon_threadsafe(made._loop.stop)
        made._thread.join(10)
