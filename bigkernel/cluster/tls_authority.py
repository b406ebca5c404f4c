"""A private certificate authority for one cluster, and certificates of its roles; `credentials` checks and reads them.

Dask's encryption is mutual: schedulers, workers and clients each show a certificate, and whoever shows one that the
authority signed is let in, to run any code. Host names are not compared. So the authority is made for one cluster and
signs nothing else, and a private key is a password.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bigkernel.cluster.tls_files import PURPOSES, ROLES, now, read_certificates, read_key, require_directory
from bigkernel.errors import ConfigError

CA_DAYS = 3650  # the authority outlives the certificates that it signs, so that they can be renewed
_HOST = re.compile(r"(\*\.)?([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.IGNORECASE)


@dataclass(frozen=True)
class Issued:
    """A certificate that was made: its role ("ca" for the authority), file, serial number (hex) and last moment."""

    role: str
    path: Path
    serial: str
    ends: datetime.datetime


def make_certificates(
    directory: str | os.PathLike[str], *, days: int = 365, hosts: Sequence[str] = ()
) -> tuple[Issued, ...]:
    """Make an authority and a certificate for each role, in a directory that appears whole or not at all.

    Parameters
    ----------
    directory : where; must not exist yet
    days : how long the roles' certificates hold, from now; the authority holds for ten years
    hosts : names and IP addresses to write into the certificates of scheduler and workers, besides localhost; Dask
        does not compare them, proxies and other tools may

    Raises
    ------
    ConfigError
        The directory exists or cannot be made, or `days` or a host is not what it should be.
    """
    target = Path(os.path.abspath(directory))
    names = _names(hosts)
    _require_days(days)
    if os.path.lexists(target):
        raise ConfigError(f"{target}: exists already; name a new directory, or renew its certificates (--renew)")
    scratch = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))  # mode 0700
        key, authority = _authority()
        _write(scratch / "ca.pem", _pem(authority))
        _write(scratch / "ca-key.pem", _pem(key))
        made = [_issued("ca", target, authority)]
        for role in ROLES:
            certificate, content = _sign(role, key, authority, days, names)
            _write(scratch / f"{role}.pem", content)
            made.append(_issued(role, target, certificate))
        _write(scratch / "dask-tls.yaml", _dask_configuration(target).encode())
        _sync(scratch)
        os.rename(scratch, target)
        _sync(target.parent)
    except OSError as error:
        raise ConfigError(f"{target}: cannot be made: {error.strerror}") from error
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
    return tuple(made)


def renew_certificates(
    directory: str | os.PathLike[str], *, days: int = 365, hosts: Sequence[str] = ()
) -> tuple[Issued, ...]:
    """Make new keys and certificates of all roles, signed by the authority that `directory` holds.

    Each file is replaced by one rename. What runs keeps its connections, and old and new certificates trust each other.

    Parameters
    ----------
    directory : made by `make_certificates`
    days : how long the new certificates hold, from now
    hosts : names and addresses to write into them; none: those of the present ones

    Raises
    ------
    ConfigError
        A file is missing, damaged or open to others, or the authority ends before the new certificates would.
    """
    target = Path(os.path.abspath(directory))
    _require_days(days)
    require_directory(target)
    authority = read_certificates(target / "ca.pem")[0]
    key = read_key(target / "ca-key.pem")
    if key.public_key() != authority.public_key() or not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{target / 'ca-key.pem'}: not the elliptic-curve key of {target / 'ca.pem'}")
    end = authority.not_valid_after_utc
    if now() + datetime.timedelta(days=days) > end:
        raise ConfigError(
            f"{target / 'ca.pem'}: the authority ends on {end:%Y-%m-%d}, before {days} days are over; take fewer "
            "--days, or make a new directory and give every machine its files"
        )
    made = []
    for role in ROLES:
        path = target / f"{role}.pem"
        names = _names(hosts) if hosts or not path.exists() else _present_names(path)
        certificate, content = _sign(role, key, authority, days, names)
        _replace(path, content)
        made.append(_issued(role, target, certificate))
    if not (target / "dask-tls.yaml").exists():
        _replace(target / "dask-tls.yaml", _dask_configuration(target).encode())
    return tuple(made)


def _authority() -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"bigkernel authority {os.urandom(4).hex()}")
    usage = _usage(key_cert_sign=True, crl_sign=True)
    certificate = (
        _builder(key, name, name, CA_DAYS, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return key, certificate


def _sign(
    role: str,
    ca_key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    days: int,
    names: list[x509.GeneralName],
) -> tuple[x509.Certificate, bytes]:
    """The certificate of a role, and the content of its file: the certificate and its new key."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _builder(key, _name(f"bigkernel {role}"), authority.subject, days, ca_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(PURPOSES[role]), critical=False)
    )
    if role != "client":
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = builder.sign(ca_key, hashes.SHA256())
    return certificate, _pem(certificate) + _pem(key)


def _builder(
    key: ec.EllipticCurvePrivateKey,
    subject: x509.Name,
    issuer: x509.Name,
    days: int,
    signer: ec.EllipticCurvePrivateKey,
) -> x509.CertificateBuilder:
    start = now()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - datetime.timedelta(hours=1))  # the clocks of two machines differ
        .not_valid_after(start + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys(("localhost", "127.0.0.1", "::1", *hosts)):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            if not _HOST.fullmatch(host) or len(host) > 253:
                raise ConfigError(f"host: expected a host name or an IP address, found {host!r}") from None
            names.append(x509.DNSName(host))
    return names


def _require_days(days: int) -> None:
    if isinstance(days, bool) or not isinstance(days, int) or not 1 <= days <= CA_DAYS:
        raise ConfigError(f"days: expected a number from 1 to {CA_DAYS}, found {days!r}")


def _present_names(path: Path) -> list[x509.GeneralName]:
    certificate = read_certificates(path)[0]
    try:
        return list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return _names(())


def _dask_configuration(target: Path) -> str:
    # a string of JSON is a quoted string of YAML, whatever the path holds
    roles = "".join(f"      {role}: {{cert: {json.dumps(str(target / f'{role}.pem'))}}}\n" for role in ROLES)
    return f"""\
# Made by `bigkernel certs`: Dask's configuration for a scheduler and workers that are started by hand.
#   DASK_CONFIG=THIS_FILE dask scheduler --host NODE1 --dashboard-address 127.0.0.1:8787
#   DASK_CONFIG=THIS_FILE dask worker tls://NODE1:8786 --host NODE2 --dashboard-address 127.0.0.1:0 --nthreads 1
# Another machine gets ca.pem, the one file of its role and this file, with its own paths; never ca-key.pem.
distributed:
  comm:
    default-scheme: tls
    require-encryption: true
    tls:
      min-version: 1.3
      ca-file: {json.dumps(str(target / "ca.pem"))}
      # each file holds a certificate and its key
{roles}"""


def _pem(item: x509.Certificate | ec.EllipticCurvePrivateKey) -> bytes:
    if isinstance(item, x509.Certificate):
        return item.public_bytes(serialization.Encoding.PEM)
    return item.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _issued(role: str, target: Path, certificate: x509.Certificate) -> Issued:
    path = target / f"{role}.pem"
    return Issued(role, path, format(certificate.serial_number, "x"), certificate.not_valid_after_utc)


def _write(path: Path, content: bytes) -> None:
    """A new file that nobody else can open, from its first moment on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        os.fchmod(file.fileno(), 0o600)  # whatever the umask
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _replace(path: Path, content: bytes) -> None:
    scratch = path.with_name(f".{path.name}.{os.urandom(4).hex()}.partial")
    try:
        _write(scratch, content)
        os.replace(scratch, path)
        _sync(path.parent)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be replaced: {error.strerror}") from error
    finally:
        scratch.unlink(missing_ok=True)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
