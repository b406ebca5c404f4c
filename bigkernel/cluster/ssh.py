"""Clusters on hosts that are reached by SSH: one session a host, in which `hosted` holds the host's part.

Host keys are always compared with a file of known ones, users are known by key alone, and no other file of SSH's
configuration is read. Beyond loopback everything between scheduler, workers and driver is encrypted: with the
certificates of `tls:`, or with ones that are made for this cluster; hosts get theirs over the session and store none.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import shlex
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import bigkernel
from bigkernel.cluster.cluster_file import SshFile, memory_bytes
from bigkernel.cluster.dask_settings import START_SECONDS
from bigkernel.cluster.ssh_remote import BEAT_SECONDS
from bigkernel.cluster.tls_authority import make_certificates
from bigkernel.cluster.tls_files import ROLES, check_credentials
from bigkernel.config import Settings, settings
from bigkernel.data.visible import log_of
from bigkernel.engine.context import is_loopback
from bigkernel.errors import BigKernelError, ConfigError, Stalled

_CONNECT_SECONDS = 30  # for a connection, and for logging in
AGAIN_SECONDS = 30  # a host whose session ended is tried again this often
_END_SECONDS = 20  # for what a session has started to end
_log = log_of(__name__)


@contextmanager
def ssh_cluster(file: SshFile) -> Iterator[tuple[str, Path | None]]:
    """Start scheduler and workers for the length of a block.

    Yields
    ------
    address of the scheduler, and the directory of certificates that reach it (None: not encrypted)

    Raises
    ------
    ConfigError
        asyncssh is missing, a host's key is not known, a host refuses the user or lacks the package, or a file of
        keys or certificates does not fit; names the host or the file.
    Stalled
        A host does not answer, or what was started there does not.
    """
    _asyncssh()
    wanted = settings()
    memory = wanted.memory_limit_bytes if file.memory_limit is None else memory_bytes(file.memory_limit)
    with _certificates(file) as tls:
        start = _Start(file, wanted, memory, tls)
        loop, ready, leave = asyncio.new_event_loop(), Future[str](), asyncio.Event()
        thread = threading.Thread(target=loop.run_forever, name="bigkernel-ssh", daemon=True)
        thread.start()
        held = asyncio.run_coroutine_threadsafe(_hold(start, ready, leave), loop)
        try:
            yield ready.result(), tls
        finally:
            if not ready.done():
                held.cancel()
            loop.call_soon_threadsafe(leave.set)
            with suppress(BaseException):
                held.result(3 * _END_SECONDS)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_END_SECONDS)
            if not thread.is_alive():
                loop.close()


@dataclass(frozen=True)
class _Start:
    """The parts of a start: the file, the settings of the driver, bytes of a worker, certificates."""

    file: SshFile
    wanted: Settings
    memory_bytes: int
    tls: Path | None

    def order(self, role: str, host: str, address: str, **more: Any) -> dict[str, Any]:
        """Return the line that `ssh_remote` reads from its input."""
        files = {} if self.tls is None else check_credentials(self.tls, (role,))
        return {
            "role": role,
            "name": host,
            "host": address,
            "settings": asdict(self.wanted),
            # stall-seconds may be shorter than the time from one beat to the next
            "silence_seconds": max(self.wanted.stall_seconds, START_SECONDS + 3 * BEAT_SECONDS),
            "tls": {name: Path(path).read_text(encoding="ascii") for name, path in files.items()},
            **more,
        }


@dataclass(eq=False)
class _Session:
    """A process on a host: what it was told to be, the last that it said, and the tasks that listen and talk to it."""

    host: str
    process: Any
    order: Mapping[str, Any]
    said: deque[str] = field(default_factory=lambda: deque(maxlen=20))
    listener: asyncio.Task[None] | None = None
    beats: asyncio.Task[None] | None = None

    async def listen(self) -> None:
        """Hand on what is logged there."""
        with suppress(Exception):
            async for line in self.process.stderr:
                if line.strip():
                    self.said.append(line.strip())
                _log.info("%s: %s", self.host, line.rstrip())

    async def beat(self) -> None:
        """Tell the process that the driver lives, as long as it can be told."""
        with suppress(Exception):  # the session has ended, which `_keep` sees
            while not self.process.is_closing():
                await asyncio.sleep(BEAT_SECONDS)
                self.process.stdin.write("\n")

    async def end(self) -> None:
        """Let the process end, and wait for it, not for ever."""
        if self.beats is not None:
            self.beats.cancel()
        with suppress(Exception):
            self.process.stdin.write_eof()
        with suppress(Exception):
            await asyncio.wait_for(self.process.wait_closed(), _END_SECONDS)
        if self.listener is not None:
            self.listener.cancel()


async def _hold(start: _Start, ready: Future[str], leave: asyncio.Event) -> None:
    """Connect to all hosts, start everything, keep it alive until `leave`, and end it; `ready` gets the address."""
    opened: list[Any] = []  # connections
    sessions: list[_Session] = []
    try:
        try:
            ready.set_result(await _begin(start, opened, sessions))
        except BaseException as error:
            ready.set_exception(error)
            return
        await _restart_lost(start, opened, sessions, leave)
    finally:
        for role in ("worker", "scheduler"):
            await asyncio.gather(*(session.end() for session in sessions if session.order["role"] == role))
        for connection in opened:
            connection.close()
        for connection in opened:
            with suppress(Exception):
                await asyncio.wait_for(connection.wait_closed(), _END_SECONDS)


async def _begin(start: _Start, opened: list[Any], sessions: list[_Session]) -> str:
    file, connections = start.file, dict[str, Any]()
    hosts = list(dict.fromkeys((file.scheduler, *file.hosts)))

    async def enter(host: str) -> None:
        connections[host] = await _connected(file, host)
        opened.append(connections[host])

    await _all(enter(host) for host in hosts)
    places = {host: _place(host, connections[host], encrypted=start.tls is not None) for host in hosts}
    dashboard = 8787 if file.dashboard is None else file.dashboard
    order = start.order("scheduler", file.scheduler, places[file.scheduler], dashboard=dashboard)
    (address,) = await _started(start, connections[file.scheduler], order, sessions)
    more = {"workers": file.workers, "memory_bytes": start.memory_bytes, "directory": file.directory}
    await _all(
        _started(
            start,
            connections[host],
            start.order("worker", host, places[host], scheduler=address, **more),
            sessions,
        )
        for host in file.hosts
    )
    return str(address)


async def _all(steps: Iterable[Coroutine[Any, Any, Any]]) -> None:
    """Do all at once; where one fails, the others end before its error is raised."""
    tasks = [asyncio.ensure_future(step) for step in steps]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _restart_lost(start: _Start, opened: list[Any], sessions: list[_Session], leave: asyncio.Event) -> None:
    """Start anew what was lost with its session, until `leave`."""
    again: list[asyncio.Task[None]] = []
    try:
        while not leave.is_set():
            for session in list(sessions):
                if not session.process.is_closing():
                    continue
                sessions.remove(session)
                if session.beats is not None:
                    session.beats.cancel()
                role, said = session.order["role"], session.said[-1] if session.said else "it said nothing"
                _log.warning(
                    "%s: the session of the %s ended, and what ran there with it (%s)", session.host, role, said
                )
                if role == "worker":
                    again.append(asyncio.ensure_future(_again(start, session.order, opened, sessions)))
            with suppress(TimeoutError):
                await asyncio.wait_for(leave.wait(), BEAT_SECONDS)
    finally:
        for task in again:
            task.cancel()
        await asyncio.gather(*again, return_exceptions=True)


async def _again(start: _Start, order: Mapping[str, Any], opened: list[Any], sessions: list[_Session]) -> None:
    """Start the workers of a host that was lost, as soon as it answers."""
    host = order["name"]
    while True:
        await asyncio.sleep(AGAIN_SECONDS)
        mine: list[_Session] = []
        connection = None
        try:
            connection = await _connected(start.file, host)
            await _started(start, connection, order, mine)
            opened.append(connection)
            sessions.extend(mine)
        except (BigKernelError, OSError) as error:
            _log.info("%s: not back yet: %s", host, error)
        else:
            _log.warning("%s: is back, and has workers again", host)
            return
        finally:
            for session in mine:
                if session not in sessions:
                    await session.end()
            if connection is not None and connection not in opened:
                connection.close()


async def _connected(file: SshFile, host: str) -> Any:
    """A connection to a host whose key is known, as a user whose key it knows."""
    asyncssh, seconds = _asyncssh(), min(_CONNECT_SECONDS, settings().stall_seconds)
    port = dict(zip(file.hosts, file.ports, strict=True)).get(host, file.ports[0])
    known, at = _known_hosts(file), f"{host} (port {port})"
    options: dict[str, Any] = {"username": file.user} if file.user else {}
    if file.key is not None:
        _require_private(file.key)
        options |= {"client_keys": [str(file.key)], "agent_path": None}
    try:
        return await asyncssh.connect(
            host,
            port,
            config=None,
            known_hosts=known,
            preferred_auth="publickey",
            connect_timeout=seconds,
            login_timeout=seconds,
            keepalive_interval=15,
            keepalive_count_max=4,
            **options,
        )
    except asyncssh.HostKeyNotVerifiable as error:
        raise ConfigError(
            f"{at}: its host key is not the one in {' or '.join(known)} ({error.reason}); make sure that it is the "
            f"right machine, then: ssh-keyscan -p {port} {host} >> {known[0]}"
        ) from error
    except asyncssh.PermissionDenied as error:
        by = f"the key {file.key}" if file.key else "the keys of ~/.ssh and of the agent"
        raise ConfigError(
            f"{at}: refuses user {file.user or 'of the same name'} with {by} ({error.reason}); put the public key into "
            "~/.ssh/authorized_keys there, or name another (user:, key:)"
        ) from error
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        raise ConfigError(
            f"{file.key}: cannot be used as a private key of SSH without a passphrase: {error}"
        ) from error
    except (OSError, asyncssh.Error) as error:
        reason = str(error) or type(error).__name__
        raise Stalled(f"{at}: no SSH server let us in within {seconds} s ({reason}); is it running?") from error


async def _started(start: _Start, connection: Any, order: Mapping[str, Any], sessions: list[_Session]) -> list[str]:
    """Start a host's part of the cluster; the addresses of what runs there."""
    host, python = order["name"], start.file.python or sys.executable
    seconds = max(START_SECONDS, start.wanted.stall_seconds)
    try:
        process = await connection.create_process(
            f"{shlex.quote(python)} -m bigkernel.cluster.ssh_remote", encoding="utf-8"
        )
    except (OSError, _asyncssh().Error) as error:
        raise ConfigError(
            f"{host}: lets us in, but starts no program for us ({error}); is the account limited?"
        ) from error
    session = _Session(host, process, order)
    sessions.append(session)
    session.listener = asyncio.ensure_future(session.listen())
    process.stdin.write(json.dumps(order) + "\n")
    session.beats = asyncio.ensure_future(session.beat())  # from now on, for other hosts may take long to start
    try:
        line = await asyncio.wait_for(process.stdout.readline(), seconds)
    except TimeoutError as error:
        raise Stalled(f"{host}: the {order['role']} did not start within {seconds} s; {_last(session)}") from error
    try:
        found = json.loads(line)
        return list(found["addresses"])
    except KeyError:
        raise ConfigError(f"{host}: the {order['role']} cannot start there: {found.get('error')}") from None
    except (ValueError, TypeError):
        await asyncio.wait({session.listener}, timeout=1.0)  # what it said last may be on its way
        what = f"`{python} -m bigkernel.cluster.ssh_remote` ended before it started the {order['role']}"
        raise ConfigError(
            f"{host}: {what}; {_last(session)}; install bigkernel {bigkernel.__version__} there, and name its "
            "interpreter (python:)"
        ) from None


def _last(session: _Session) -> str:
    return f"it said last: {session.said[-1][:500]}" if session.said else "it said nothing"


def _place(host: str, connection: Any, *, encrypted: bool) -> str:
    """The address by which we reached a host: there its part of the cluster listens."""
    address = str(connection.get_extra_info("peername")[0])
    if is_loopback(address) and not is_loopback(host):
        raise ConfigError(
            f"{host}: leads to {address} here, where no other machine reaches it; write its address of the network"
        )
    if not is_loopback(address) and not encrypted:
        raise ConfigError(f"{host}: leads to {address}, beyond this machine, without encryption; write its address")
    return address


def _known_hosts(file: SshFile) -> list[str]:
    """Files of known host keys; there is at least one, so that keys are compared in any case."""
    usual = [Path("~/.ssh/known_hosts").expanduser(), Path("/etc/ssh/ssh_known_hosts")]
    found = [str(path) for path in ([file.known_hosts] if file.known_hosts else usual) if path.is_file()]
    if not found:
        raise ConfigError(
            f"{file.known_hosts or usual[0]}: no file of known hosts, and hosts whose key is not known are not "
            "trusted; make one: ssh-keyscan HOST… > FILE, and compare the keys with those of the hosts"
        )
    return found


def _require_private(key: Path) -> None:
    try:
        mode = key.stat().st_mode & 0o777
    except OSError as error:
        raise ConfigError(f"{key}: the private key cannot be read: {error.strerror}") from error
    if mode & 0o077:
        raise ConfigError(f"{key}: can be read by other users (mode {mode:04o}); chmod 600 {key}")


@contextmanager
def _certificates(file: SshFile) -> Iterator[Path | None]:
    """The directory of certificates: that of the file, or one made for the block where hosts are beyond loopback."""
    if file.tls is not None:
        check_credentials(file.tls, ROLES)
        yield file.tls
    elif all(is_loopback(host) for host in (file.scheduler, *file.hosts)):
        yield None
    else:
        with tempfile.TemporaryDirectory(prefix="bigkernel-") as scratch:  # mode 0700
            target = Path(scratch) / "certificates"
            make_certificates(target, days=365, hosts=tuple(dict.fromkeys((file.scheduler, *file.hosts))))
            yield target


def _asyncssh() -> Any:
    try:
        return importlib.import_module("asyncssh")
    except ImportError as error:
        raise ConfigError(f'kind: ssh needs asyncssh ({error}): pip install "bigkernel[ssh]"') from error
