"""Clients of running schedulers: encrypted beyond this machine, every wait bounded."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import dask
from distributed import Client, Security, rpc
from distributed.comm import CommClosedError, parse_address, parse_host_port
from tornado.ioloop import IOLoop

from bigkernel.cluster.certificates import security_of
from bigkernel.config import settings
from bigkernel.errors import ConfigError, StalledError

PATIENT = {
    "distributed.comm.retry.count": 3,
    "distributed.comm.timeouts.connect": "30s",
    "distributed.comm.timeouts.tcp": "30s",
}
_SCHEMES = ("tcp", "tls", "ucx", "inproc")


@contextmanager
def attach(address: str, tls: Path | None) -> Iterator[Client]:
    """Yield a client of the scheduler at `address`, which keeps running after the block.

    `tls` is a directory of certificates, needed for tls:// and refused for others. A scheduler has 30 s to answer, or
    `bigkernel.stall-seconds` if that is less.
    """
    require_encrypted(address, tls)
    security = Security() if tls is None else security_of(tls)
    seconds = min(30, settings().stall_seconds)
    with dask.config.set(PATIENT):
        if not address.startswith("inproc://"):
            _greet(address, security, tls, seconds)
        try:
            client = Client(address, security=security, timeout=seconds)
        except OSError as error:
            raise StalledError(f"{address}: lost the scheduler while connecting ({error}); is it running?") from error
        with closing(client):
            yield client


def _greet(address: str, security: Security, tls: Path | None, seconds: int) -> None:
    """Check within `seconds` that a scheduler answers at the address; a Client would wait forever for other servers."""

    async def identity() -> dict[str, Any]:
        connection = security.get_connection_args("client")
        async with rpc(address, timeout=seconds, connection_args=connection) as server:
            return dict(await server.identity())

    def ask() -> dict[str, Any]:
        loop = IOLoop(make_current=False)
        try:
            return dict(loop.run_sync(lambda: asyncio.wait_for(identity(), seconds)))
        finally:
            loop.close(all_fds=True)  # Dask leaves the socket of an abandoned connection open

    try:
        # in a separate thread: the caller may be inside a running event loop, as in notebooks
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(ask).result()
    except (CommClosedError, ValueError) as error:
        raise ConfigError(f"{address}: {_refusal(error, tls)}") from error
    except OSError as error:
        detail = f" ({error})" if str(error) else ""
        raise StalledError(
            f"{address}: no scheduler answered within {seconds} s{detail}; check that it is running"
        ) from error
    except RuntimeError as error:
        raise ConfigError(f"{address}: refused by the configuration of Dask: {error}") from error
    if answer.get("type") != "Scheduler":
        raise ConfigError(f"{address}: expected a scheduler, found a {answer.get('type')}; pass that of the scheduler")


def _refusal(error: BaseException, tls: Path | None) -> str:
    """Explain why a scheduler and this client cannot connect, and what to do; Dask's own messages do not."""
    if tls is None:
        return "the scheduler closed the connection before answering; if it uses TLS, write tls:// and tls: DIR"
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        # a StreamClosedError of Tornado keeps the error of the socket in real_error
        cause = cause.__cause__ or getattr(cause, "real_error", None) or cause.__context__
    return (
        f"no encrypted connection could be made ({cause or error}): the scheduler uses tcp://, or other certificates "
        f"than {tls}"
    )


def require_encrypted(address: str, tls: Path | None) -> None:
    """Raise an error for an invalid address, tls:// without certificates, or no TLS to another machine."""
    scheme, place = parse_address(address if "://" in address else f"tcp://{address}")
    try:
        if scheme not in _SCHEMES:
            raise ValueError(f"expected one of {', '.join(_SCHEMES)}")
        host, port = ("", 1) if scheme == "inproc" else parse_host_port(place)
        if not 0 < port < 2**16:
            raise ValueError(f"{port} is not a port")
    except ValueError as error:
        raise ConfigError(f"{address}: expected the address of a scheduler ({error})") from error
    if scheme == "tls":
        if tls is None:
            raise ConfigError(
                f"{address}: expected a directory of certificates; pass connect(…, tls=DIR), or write kind: address, "
                "address: tls://…, tls: DIR in a cluster file (create one with bigkernel certs DIR)"
            )
        return
    if tls is not None:
        raise ConfigError(f"{address}: certificates ({tls}) need an encrypted address, found {scheme}://; write tls://")
    if scheme != "inproc" and not is_loopback(host):
        raise ConfigError(
            f"{address}: the connection to another machine is not encrypted, and anyone who can alter it can run "
            "code on both machines; use tls:// with certificates (bigkernel certs DIR), or an ssh tunnel to 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Return True for names of this machine only: "localhost" or an address such as 127.0.0.1 or ::1."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"  # any other name may lead elsewhere
