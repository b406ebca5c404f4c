"""One host's part of a cluster: `python -m bigkernel.cluster.ssh_remote`, at the far end of a session of `ssh`.

Its first line of input is JSON: what to start, with the settings of the driver and, where the cluster is encrypted, the
certificate of the role (never on a command line, never in a file that stays). Its first line of output is JSON too: the
address of the scheduler or those of the workers, or what is wrong. After that it lives as long as its input: sshd ends
that when the session ends, however it ends, and a driver that lives says so every few seconds. Nothing is left behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

import dask
from distributed import Nanny, Scheduler, Security

from bigkernel.cluster.dask_settings import START_SECONDS, configuration, dashboard_port, one_blas_thread, pages_load
from bigkernel.engine.context import is_loopback, processors

BEAT_SECONDS = 10  # a driver that lives sends a line end this often
_CLOSE_SECONDS = 15  # for a clean end; after that the process ends without one, and its workers with it
_LONGEST_ORDER = 2**20  # bytes of the first line


class Lifeline:
    """Reads what comes in, in a thread of its own: its end, or long silence, is the end of this process.

    Parameters
    ----------
    silence_seconds : how long the driver may say nothing
    ended : called once, from the thread
    """

    def __init__(self, silence_seconds: float, ended: Any) -> None:
        self._silence, self._ended = silence_seconds, ended
        self._heard, self._over = time.monotonic(), threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._wait, daemon=True).start()

    def _listen(self) -> None:
        with suppress(OSError):
            while os.read(0, 4096):
                self._heard = time.monotonic()
        self._over.set()

    def _wait(self) -> None:
        while not self._over.wait(1.0):
            if time.monotonic() - self._heard > self._silence:
                break
        with suppress(RuntimeError):  # the loop may be closed by now
            self._ended()
        time.sleep(_CLOSE_SECONDS)
        os._exit(1)


def main() -> int:
    """Start what the first line of input asks for, tell its address, and hold it as long as the input lasts."""
    order = json.loads(sys.stdin.buffer.readline(_LONGEST_ORDER))
    try:
        asyncio.run(_hold(order))
    except OSError as error:
        _print_line({"error": str(error)})
        return 1
    return 0


async def _hold(order: Mapping[str, Any]) -> None:
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    Lifeline(order["silence_seconds"], lambda: loop.call_soon_threadsafe(over.set))
    with dask.config.set({"bigkernel": order["settings"]}):
        port, pages = 0, False
        if order["role"] == "scheduler":
            port, pages = dashboard_port(order["dashboard"]), pages_load()
        with dask.config.set(configuration(port, pages=pages)), one_blas_thread():
            async with AsyncExitStack() as stack:
                starting = _scheduler(order, port, pages) if order["role"] == "scheduler" else _workers(order)
                servers = [await stack.enter_async_context(server) for server in starting]
                _print_line({"addresses": [server.address for server in servers]})
                ends = asyncio.ensure_future(_finished(servers, over))
                await over.wait()
                ends.cancel()


async def _finished(servers: Sequence[Any], over: asyncio.Event) -> None:
    await asyncio.gather(*(server.finished() for server in servers))
    over.set()


def _scheduler(order: Mapping[str, Any], port: int, pages: bool) -> list[Scheduler]:
    return [
        Scheduler(
            host=_bracketed(order["host"]),
            port=0,
            protocol="tls" if order["tls"] else "tcp",
            security=_security(order),
            dashboard_address=f"127.0.0.1:{port}",
            dashboard=pages,
        )
    ]


def _workers(order: Mapping[str, Any]) -> list[Nanny]:
    # None: metrics and health on `host`, without pages that nobody opens and their 18 MB in each worker
    dashboard = None if is_loopback(order["host"]) else "127.0.0.1:0"
    return [
        Nanny(
            order["scheduler"],
            nthreads=1,
            name=f"{order['name']}-{i}",
            host=_bracketed(order["host"]),
            security=_security(order),
            memory_limit=order["memory_bytes"],
            local_directory=order["directory"],
            dashboard_address=dashboard,
            death_timeout=max(START_SECONDS, order["settings"]["stall_seconds"]),
        )
        for i in range(order["workers"] or processors())
    ]


def _security(order: Mapping[str, Any]) -> Security:
    """Make Dask's settings from the certificates that the driver sent: texts in PEM form, kept in memory."""
    if not order["tls"]:
        return Security()
    role = order["role"]
    return Security(
        require_encryption=True,
        tls_ca_file=order["tls"]["ca"],
        tls_min_version=ssl.TLSVersion.TLSv1_3,
        **{f"tls_{role}_cert": order["tls"][role], f"tls_{role}_key": None},
    )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _print_line(found: Mapping[str, Any]) -> None:
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    sys.exit(main())
