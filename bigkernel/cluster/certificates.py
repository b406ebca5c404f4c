"""Certificates of a cluster: a directory with `ca.pem`, `cert.pem` and `key.pem`, and Dask's `Security` from it.

Dask's encryption is mutual: any client with a certificate of the authority is let in, and runs any code. Host names are
not compared. So a directory serves one cluster, and its key is a password. The certificates made here are Dask's own
temporary ones, stored: self-signed, for a year. Certificates of another authority work as well, under these names.
"""

from __future__ import annotations

import datetime
import os
import shutil
import ssl
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from distributed import Security

from bigkernel.data.visible import log_of
from bigkernel.errors import ConfigError

FILES = ("ca.pem", "cert.pem", "key.pem")
SOON_DAYS = 7  # certificates that expire within these are used, with a warning
_log = log_of(__name__)


def make_certificates(directory: str | os.PathLike[str]) -> None:
    """Make certificates valid for a year, in a directory that appears atomically."""
    target = Path(os.path.abspath(directory))
    if os.path.lexists(target):
        raise ConfigError(f"{target}: already exists; choose a new directory")
    try:
        made = Security.temporary()
    except ImportError as error:
        raise ConfigError(f'certificates need cryptography ({error}): pip install "bigkernel[tls]"') from error
    texts = (made.tls_ca_file, made.tls_client_cert, made.tls_client_key)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))  # mode 0700
        try:
            for name, text in zip(FILES, texts, strict=True):
                (scratch / name).touch(0o600)
                (scratch / name).write_text(text, encoding="ascii")
            scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise ConfigError(f"{target}: cannot be created: {error.strerror}") from error


def security_of(directory: str | os.PathLike[str]) -> Security:
    """Return Dask's `Security` for a directory of certificates, TLS 1.3, after a check of its files.

    Raises `ConfigError` naming one that is missing, damaged, readable by others, of another authority, or expired.
    """
    target = Path(os.path.abspath(directory))
    _require_private(target)
    ca, cert, key = (str(target / name) for name in FILES)
    # OpenSSL would ask for the passphrase on the terminal
    if b"ENCRYPTED" in (target / "key.pem").read_bytes():
        raise ConfigError(
            f"{key}: expected a private key without passphrase, found an encrypted one; store it "
            "unencrypted with mode 0600"
        )
    roles = ("client", "scheduler", "worker")
    own = dict.fromkeys((f"tls_{role}_cert" for role in roles), cert)
    own |= dict.fromkeys((f"tls_{role}_key" for role in roles), key)
    made = Security(require_encryption=True, tls_ca_file=ca, tls_min_version=ssl.TLSVersion.TLSv1_3, **own)
    try:
        ends = _shake_hands(made)
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(
            f"{cert}: {error.verify_message} (checked with {ca} and the clock of this machine); create a new "
            "directory for the whole cluster with bigkernel certs DIR"
        ) from error
    except ssl.SSLError as error:
        raise ConfigError(
            f"{target}: expected certificates and the key of cert.pem in PEM format: {error}; create them with "
            "bigkernel certs DIR"
        ) from error
    if ends - time.time() < SOON_DAYS * 86400:
        when = datetime.datetime.fromtimestamp(ends, datetime.UTC)
        _log.warning("%s: expires on %s UTC; create new ones: bigkernel certs DIR", cert, f"{when:%Y-%m-%d %H:%M}")
    return made


def _require_private(target: Path) -> None:
    """Raise an error for files that are missing, of other users, or accessible to them."""
    files = [target / name for name in FILES]
    for path, forbidden in zip((target, *files), (0o022, 0o022, 0o022, 0o077), strict=True):
        try:
            status = path.stat()
        except OSError as error:
            raise ConfigError(
                f"{path}: found no certificates ({error.strerror}); create them with bigkernel certs DIR"
            ) from error
        if not (stat.S_ISDIR if path == target else stat.S_ISREG)(status.st_mode):
            what = "a directory of certificates" if path == target else "a file"
            raise ConfigError(f"{path}: expected {what}; create one with bigkernel certs DIR")
        if status.st_uid not in (os.geteuid(), 0):
            raise ConfigError(f"{path}: expected owner {os.geteuid()} or root, found user {status.st_uid}; use chown")
        if status.st_mode & forbidden:
            mode = stat.S_IMODE(status.st_mode)
            raise ConfigError(
                f"{path}: accessible to other users (mode {mode:04o}); chmod {mode & ~forbidden:o} {path}"
            )


def _shake_hands(security: Security) -> float:
    """Connect a scheduler and a client of this directory in memory; return the expiry time of the certificate."""
    listening = security.get_listen_args("scheduler")["ssl_context"]
    connecting = security.get_connection_args("client")["ssl_context"]
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = connecting.wrap_bio(back, there)
    server = listening.wrap_bio(there, back, server_side=True)
    for side in (client, server, client, server):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return float(ssl.cert_time_to_seconds(client.getpeercert()["notAfter"]))
