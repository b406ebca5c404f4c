"""Certificates: complete directories or none, keys that only their owner can open, and flaws named with their file."""

import datetime
import json
import os
import shutil
import stat
import sys

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from distributed import Security

from bigkernel.cli import main
from bigkernel.cluster import certificates
from bigkernel.cluster.certificates import FILES, make_certificates, security_of
from bigkernel.errors import ConfigError


@pytest.fixture
def made(tmp_path):
    """A directory of certificates, made with a umask that allows everything."""
    before = os.umask(0)
    try:
        make_certificates(tmp_path / "tls")
    finally:
        os.umask(before)
    return tmp_path / "tls"


def pem_of(days):
    """PEM texts of a self-signed certificate that is valid between two days from now, and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    start, end = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=day) for day in days)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(start).not_valid_after(end)
    text = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    return text, private(key, serialization.NoEncryption())


def private(key, encryption):
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def replace(directory, days):
    """Replace the certificates of a directory."""
    cert, key = pem_of(days)
    for name, content in zip(FILES, (cert, cert, key), strict=True):
        (directory / name).write_bytes(content)


def test_a_directory_is_private_and_gives_a_security_that_requires_encryption(made):
    assert {path.name for path in made.iterdir()} == set(FILES)
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in made.iterdir()} == {0o600}
    security = security_of(made)
    assert isinstance(security, Security)
    assert security.require_encryption
    for role in ("client", "scheduler", "worker"):
        config = security.get_tls_config_for_role(role)
        assert [config[name] for name in ("ca_file", "cert", "key")] == [str(made / name) for name in FILES]
    certificate = x509.load_pem_x509_certificate((made / "cert.pem").read_bytes())
    assert 364 < (certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)).total_seconds() / 86400 <= 365


@pytest.mark.parametrize("step", range(3))
def test_an_interrupted_command_leaves_no_directory(step, tmp_path, monkeypatch):
    write, calls = certificates.Path.write_text, []

    def stopping(path, *args, **options):
        calls.append(path)
        if len(calls) == step + 1:
            raise KeyboardInterrupt
        return write(path, *args, **options)

    monkeypatch.setattr(certificates.Path, "write_text", stopping)
    with pytest.raises(KeyboardInterrupt):
        make_certificates(tmp_path / "tls")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["directory", "file", "link to nothing"])
def test_an_existing_target_is_left_unchanged(kind, tmp_path):
    target = tmp_path / "tls"
    {"directory": target.mkdir, "file": target.touch, "link to nothing": lambda: target.symlink_to("nowhere")}[kind]()
    with pytest.raises(ConfigError, match=f"{target}: already exists"):
        make_certificates(target)
    assert not target.is_dir() or not list(target.iterdir())


def test_a_target_that_cannot_be_created_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file/tls: cannot be created: "):
        make_certificates(tmp_path / "file" / "tls")


def chmod(mode):
    return lambda path: path.chmod(mode)


def write(text):
    return lambda path: path.write_text(text)


def encrypt(path):
    key = ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(private(key, serialization.BestAvailableEncryption(b"secret")))


FLAWS = {
    "missing": ("cert.pem", lambda path: path.unlink(), "cert.pem: found no certificates"),
    "no authority": ("ca.pem", lambda path: path.unlink(), "ca.pem: found no certificates"),
    "readable by the group": ("key.pem", chmod(0o640), r"key.pem: accessible to other users \(mode 0640\); chmod 600"),
    "readable by all": ("key.pem", chmod(0o604), "key.pem: accessible to other users"),
    "a writable authority": ("ca.pem", chmod(0o666), "ca.pem: accessible to other users .* chmod 644"),
    "a writable directory": ("", chmod(0o770), r"accessible to other users \(mode 0770\); chmod 750"),
    "empty": ("cert.pem", write(""), "expected certificates and the key of cert.pem"),
    "an empty authority": ("ca.pem", write(""), "expected certificates"),
    "text": ("key.pem", write("here"), "expected certificates"),
    "an encrypted key": ("key.pem", encrypt, "key.pem: expected a private key without passphrase"),
    "another key": ("key.pem", lambda path: path.write_bytes(pem_of((-1, 9))[1]), "expected certificates and the key"),
    "another authority": ("ca.pem", lambda path: path.write_bytes(pem_of((-1, 9))[0]), "cert.pem: .* create a new"),
    "expired": ("", lambda path: replace(path, (-9, -1)), "cert.pem: certificate has expired .*ca.pem and the clock"),
    "not valid yet": ("", lambda path: replace(path, (1, 9)), "cert.pem: certificate is not yet valid"),
    "a pipe": ("cert.pem", lambda path: (path.unlink(), os.mkfifo(path, 0o600)), "cert.pem: expected a file"),
    "a directory": ("cert.pem", lambda path: (path.unlink(), path.mkdir(0o700)), "cert.pem: expected a file"),
    "a file for a directory": ("", lambda path: (shutil.rmtree(path), path.touch()), "expected a directory of cert"),
}


@pytest.mark.parametrize("file, damage, message", FLAWS.values(), ids=FLAWS)
def test_a_flaw_is_refused_with_its_file(file, damage, message, made):
    damage(made / file)
    with pytest.raises(ConfigError, match=rf"(?s)^{made}.*{message}"):
        security_of(made)


def test_a_certificate_that_expires_within_a_week_is_used_with_a_warning(made, caplog):
    replace(made, (-1, 9))
    security_of(made)
    assert not caplog.records
    replace(made, (-1, 6))
    security_of(made)
    assert [record.getMessage().split(": ")[0] for record in caplog.records] == [f"{made}/cert.pem"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_key_of_another_user_is_refused(made):
    os.chown(made / "key.pem", 12345, -1)
    with pytest.raises(ConfigError, match=r"key.pem: expected owner \d+ or root, found user 12345"):
        security_of(made)


def test_the_command_makes_certificates_and_explains_their_use(tmp_path):
    target, runner = str(tmp_path / "tls"), CliRunner()
    shown = runner.invoke(main, ["certs", target])
    assert shown.exit_code == 0, shown.output
    assert f"tls: {target}" in shown.stdout
    again = runner.invoke(main, ["certs", target])
    assert again.exit_code == ConfigError.exit_code
    assert again.stderr.startswith("ConfigError: ")
    figures = json.loads(runner.invoke(main, ["certs", f"{target}2", "--json"]).stdout)
    assert figures == {"directory": f"{target}2", "files": list(FILES)}


def test_without_cryptography_its_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ConfigError, match=r'pip install "bigkernel\[tls\]"'):
        make_certificates(tmp_path / "tls")
