"""A directory of certificates, checked before it is used.

    DIR/                    mode 0700, files 0600 (`certificates` makes it)
        ca.pem              the authority's certificate: every machine has it
        ca-key.pem          its key: signs new certificates; belongs on no machine of the cluster
        scheduler.pem       certificate and key of a role in one file, so that renewal is one rename
        worker.pem
        client.pem
        dask-tls.yaml       Dask's configuration, for schedulers and workers that are started by hand

Certificates of another authority serve as well, under these names: certificate (and those between it and the
authority), then the key, in one file.
"""

from __future__ import annotations

import datetime
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID

from bigkernel.data.visible import log_of
from bigkernel.errors import ConfigError

ROLES = ("scheduler", "worker", "client")
# schedulers and workers call one another, so both listen and connect; a client's certificate is no server's
PURPOSES = {
    "scheduler": (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH),
    "worker": (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH),
    "client": (ExtendedKeyUsageOID.CLIENT_AUTH,),
}
SOON_DAYS = 7  # certificates that end within these are used, with a warning
_LARGEST_BYTES = 2**20  # of a PEM file
_log = log_of(__name__)


def check_credentials(directory: str | os.PathLike[str], roles: Sequence[str] = ROLES) -> dict[str, str]:
    """Check what `roles` need of a directory of certificates, as it is now.

    Returns
    -------
    dict of absolute paths: "ca" and each role

    Raises
    ------
    ConfigError
        Names the file that is missing, damaged, readable or writable by others, of another authority, without the
        right to its role, not valid yet or expired; and says what to do.
    """
    target = Path(os.path.abspath(directory))
    require_directory(target)
    trusted = target / "ca.pem"
    authorities = read_certificates(trusted)
    for authority in authorities:
        _require_valid(trusted, authority, "make a new directory: bigkernel certs DIR")
    for role in roles:
        path = target / f"{role}.pem"
        key, chain = read_key(path), read_certificates(path)
        if key.public_key() != chain[0].public_key():
            raise ConfigError(f"{path}: its private key is not that of its certificate; make the file anew")
        for i, certificate in enumerate(chain):
            above = chain[i + 1 : i + 2] or authorities
            if not any(_signed(certificate, by) for by in above):
                raise ConfigError(f"{path}: not signed by the authority in {trusted}; the two must be of one making")
            _require_valid(path, certificate, f"bigkernel certs {target} --renew")
        _require_purpose(path, chain[0], role)
    return {"ca": str(trusted), **{role: str(target / f"{role}.pem") for role in roles}}


def read_certificates(path: Path) -> list[x509.Certificate]:
    """The certificates of a PEM file, in their order; at least one.

    Raises
    ------
    ConfigError
    """
    try:
        return x509.load_pem_x509_certificates(_read(path, private=False))
    except ValueError as error:
        raise ConfigError(f"{path}: expected a certificate in PEM form: {error}") from error


def read_key(path: Path) -> PrivateKeyTypes:
    """The private key of a PEM file that nobody but its owner may open.

    Raises
    ------
    ConfigError
    """
    try:
        return serialization.load_pem_private_key(_read(path, private=True), password=None)
    except TypeError as error:
        raise ConfigError(f"{path}: its private key is encrypted; store it without a passphrase, mode 0600") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path}: expected a private key in PEM form: {error}") from error


def require_directory(path: Path) -> None:
    """Refuse what is no directory, or one where others could put files of their own.

    Raises
    ------
    ConfigError
    """
    try:
        found = path.stat()
    except OSError as error:
        raise ConfigError(
            f"{path}: no directory of certificates there ({error.strerror}); make one: bigkernel certs {path}"
        ) from error
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"{path}: expected a directory of certificates; make one: bigkernel certs DIR")
    _require_ours(path, found, forbidden=0o022, what="written")


def now() -> datetime.datetime:
    """This moment, as certificates count."""
    return datetime.datetime.now(datetime.UTC)


def _read(path: Path, *, private: bool) -> bytes:
    try:
        # not blocking: a pipe in the place of a file would wait for a writer
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ConfigError(f"{path}: expected a file")
            if private:
                _require_ours(path, found, forbidden=0o077, what="read")
            else:
                _require_ours(path, found, forbidden=0o022, what="written")
            content = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); `bigkernel certs DIR` makes the files of a cluster"
        ) from error
    if len(content) > _LARGEST_BYTES:
        raise ConfigError(f"{path}: expected a PEM file of at most {_LARGEST_BYTES} bytes")
    return content


def _require_ours(path: Path, found: os.stat_result, *, forbidden: int, what: str) -> None:
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in (os.geteuid(), 0):
        raise ConfigError(f"{path}: belongs to user {found.st_uid}, expected {os.geteuid()} or root; chown it")
    if mode & forbidden:
        raise ConfigError(f"{path}: can be {what} by other users (mode {mode:04o}); chmod {mode & ~0o077:o} {path}")


def _signed(certificate: x509.Certificate, by: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(by)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _require_valid(path: Path, certificate: x509.Certificate, cure: str) -> None:
    start, end, moment = certificate.not_valid_before_utc, certificate.not_valid_after_utc, now()
    if moment > end:
        raise ConfigError(f"{path}: expired on {end:%Y-%m-%d %H:%M} UTC; {cure}")
    if moment < start:
        raise ConfigError(f"{path}: not valid before {start:%Y-%m-%d %H:%M} UTC; is the clock of this machine right?")
    if end - moment < datetime.timedelta(days=SOON_DAYS):
        _log.warning("%s: expires on %s UTC; %s", path, f"{end:%Y-%m-%d %H:%M}", cure)


def _require_purpose(path: Path, certificate: x509.Certificate, role: str) -> None:
    try:
        allowed = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return  # good for anything
    except ValueError as error:
        raise ConfigError(f"{path}: its extensions cannot be read: {error}") from error
    if not set(PURPOSES[role]) <= set(allowed):
        need = "client authentication" if role == "client" else "server and client authentication"
        raise ConfigError(f"{path}: a {role} needs a certificate for {need}, this one is for another purpose")
