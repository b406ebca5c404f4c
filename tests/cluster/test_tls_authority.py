"""Certificates: whole directories or none, keys that nobody else can open, and every flaw named by its file."""

import datetime
import json
import os
import shutil
import stat
import subprocess
import sys

import pytest
import yaml
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store

from bigkernel.cli import main
from bigkernel.cluster import tls_authority, tls_files
from bigkernel.cluster.tls_authority import CA_DAYS, make_certificates, renew_certificates
from bigkernel.cluster.tls_files import ROLES, check_credentials
from bigkernel.errors import ConfigError

FILES = {"ca.pem", "ca-key.pem", "scheduler.pem", "worker.pem", "client.pem", "dask-tls.yaml"}


@pytest.fixture
def made(tmp_path):
    """A directory of certificates."""
    make_certificates(tmp_path / "tls", hosts=["node1", "10.0.0.4"])
    return tmp_path / "tls"


@pytest.fixture
def at(monkeypatch):
    """Set the clock of certificates so many days off."""

    def move(days):
        moment = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
        for module in (tls_authority, tls_files):
            monkeypatch.setattr(module, "now", lambda: moment)

    return move


def certificate(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_a_directory_holds_an_authority_and_a_file_for_each_role(made):
    assert {path.name for path in made.iterdir()} == FILES
    authority = certificate(made / "ca.pem")
    serials = {authority.serial_number}
    for role in ROLES:
        found = certificate(made / f"{role}.pem")
        found.verify_directly_issued_by(authority)
        assert isinstance(found.public_key().curve, ec.SECP256R1)
        key = serialization.load_pem_private_key((made / f"{role}.pem").read_bytes(), None)
        assert key.public_key() == found.public_key()
        value = {type(extension.value): extension for extension in found.extensions}
        assert value[x509.BasicConstraints].critical
        assert not value[x509.BasicConstraints].value.ca
        assert value[x509.KeyUsage].value.digital_signature
        assert not value[x509.KeyUsage].value.key_cert_sign
        assert (ExtendedKeyUsageOID.SERVER_AUTH in value[x509.ExtendedKeyUsage].value) is (role != "client")
        assert ExtendedKeyUsageOID.CLIENT_AUTH in value[x509.ExtendedKeyUsage].value
        assert (x509.SubjectAlternativeName in value) is (role != "client")
        days = (found.not_valid_after_utc - datetime.datetime.now(datetime.UTC)).total_seconds() / 86400
        assert days == pytest.approx(365, abs=0.01)
        serials.add(found.serial_number)
    assert len(serials) == 4
    names = certificate(made / "worker.pem").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "node1"]
    assert list(map(str, names.get_values_for_type(x509.IPAddress))) == ["127.0.0.1", "::1", "10.0.0.4"]
    assert check_credentials(made) == {"ca": f"{made}/ca.pem", **{role: f"{made}/{role}.pem" for role in ROLES}}


def test_an_independent_verifier_accepts_the_chain_for_its_purpose_only(made):
    store = Store([certificate(made / "ca.pem")])
    server = PolicyBuilder().store(store).build_server_verifier(x509.DNSName("node1"))
    assert len(server.verify(certificate(made / "scheduler.pem"), [])) == 2
    with pytest.raises(x509.verification.VerificationError):
        server.verify(certificate(made / "client.pem"), [])


def test_nobody_else_can_open_a_file_whatever_the_umask(tmp_path, monkeypatch):
    opened = []
    plain = os.open

    def watched(path, flags, mode=0o777, **more):
        descriptor = plain(path, flags, mode, **more)
        if flags & os.O_CREAT:
            opened.append((os.fspath(path), flags, stat.S_IMODE(os.fstat(descriptor).st_mode)))
        return descriptor

    monkeypatch.setattr(tls_authority.os, "open", watched)
    before = os.umask(0)
    try:
        make_certificates(tmp_path / "tls")
        renew_certificates(tmp_path / "tls")
    finally:
        os.umask(before)
    assert len(opened) == 6 + 3
    assert {mode for _, _, mode in opened} == {0o600}  # from the first moment on
    assert all(flags & os.O_EXCL for _, flags, _ in opened)
    assert stat.S_IMODE((tmp_path / "tls").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "tls").iterdir()} == {0o600}


@pytest.mark.parametrize("step", range(12))
def test_a_directory_is_whole_or_not_there_wherever_it_was_stopped(step, tmp_path, monkeypatch):
    """The making is interrupted at each of its writes, flushes and renames in turn."""
    calls = []

    def stopping(function):
        def call(*arguments):
            calls.append(function)
            if len(calls) == step + 1:
                raise KeyboardInterrupt
            return function(*arguments)

        return call

    monkeypatch.setattr(tls_authority, "_write", stopping(tls_authority._write))
    monkeypatch.setattr(tls_authority, "_sync", stopping(tls_authority._sync))
    monkeypatch.setattr(tls_authority, "_sign", stopping(tls_authority._sign))
    target = tmp_path / "tls"
    try:
        make_certificates(target)
    except KeyboardInterrupt:
        assert not target.exists() or step == 10  # the flush of the parent comes after the rename
    if target.exists():
        check_credentials(target)
        assert {path.name for path in target.iterdir()} == FILES
    assert {path.name for path in tmp_path.iterdir()} <= {"tls"}
    assert (len(calls) > step) is (step < 11)


@pytest.mark.parametrize("kind", ["directory", "file", "link to nothing"])
def test_what_is_there_already_is_left_alone(kind, tmp_path):
    target = tmp_path / "tls"
    {"directory": target.mkdir, "file": target.touch, "link to nothing": lambda: target.symlink_to("nowhere")}[kind]()
    with pytest.raises(ConfigError, match=f"{target}: exists already.*--renew"):
        make_certificates(target)
    assert os.path.lexists(target)
    assert not target.is_dir() or not list(target.iterdir())


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file/tls: cannot be made: "):
        make_certificates(tmp_path / "file" / "tls")


@pytest.mark.parametrize("host", ["", "a b", "-a", "a..b", "x" * 64, "ü", "a/b", "*", "1.2.3.4:8786", "tls://a", "a\n"])
def test_a_host_that_is_none_is_refused(host, tmp_path):
    with pytest.raises(ConfigError, match="host: expected a host name or an IP address"):
        make_certificates(tmp_path / "tls", hosts=[host])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("days", [0, -1, CA_DAYS + 1, 1.5, True, float("nan")])
def test_days_out_of_range_are_refused(days, tmp_path):
    with pytest.raises(ConfigError, match="days: expected"):
        make_certificates(tmp_path / "tls", days=days)
    assert not list(tmp_path.iterdir())


def test_renewal_gives_new_keys_that_old_ones_trust(made, at):
    old = {role: certificate(made / f"{role}.pem") for role in ROLES}
    authority = (made / "ca.pem").read_bytes()
    at(360)
    renewed = renew_certificates(made, days=30)
    assert (made / "ca.pem").read_bytes() == authority
    for item, role in zip(renewed, ROLES, strict=True):
        new = certificate(made / f"{role}.pem")
        assert item.role == role
        assert int(item.serial, 16) == new.serial_number != old[role].serial_number
        assert new.public_key() != old[role].public_key()
        assert new.issuer == old[role].issuer
        assert (new.not_valid_after_utc - old[role].not_valid_after_utc).days == 25
    names = certificate(made / "worker.pem").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "node1" in names.get_values_for_type(x509.DNSName)
    check_credentials(made)
    assert {path.name for path in made.iterdir()} == FILES


def test_renewal_makes_what_is_missing(made):
    for name in ("worker.pem", "dask-tls.yaml"):
        (made / name).unlink()
    renew_certificates(made, hosts=["node2"])
    check_credentials(made)
    assert {path.name for path in made.iterdir()} == FILES


def test_an_authority_that_ends_first_is_not_renewed_from(made, at):
    at(CA_DAYS - 10)
    with pytest.raises(ConfigError, match=r"ca.pem: the authority ends on .* before 30 days"):
        renew_certificates(made, days=30)
    renew_certificates(made, days=9)


@pytest.mark.parametrize("file", ["ca-key.pem", "ca.pem"])
def test_renewal_needs_the_whole_authority(file, made, tmp_path):
    make_certificates(tmp_path / "other")
    (made / file).unlink()
    with pytest.raises(ConfigError, match=f"{file}: cannot be read"):
        renew_certificates(made)
    shutil.copy(tmp_path / "other" / file, made / file)
    with pytest.raises(ConfigError, match="not the elliptic-curve key of"):
        renew_certificates(made)


def pem(text):
    return f"-----BEGIN {text}-----\nAAAA\n-----END {text}-----\n"


def chmod(mode):
    return lambda path: path.chmod(mode)


def replace(text):
    return lambda path: path.write_text(text)


def swap(old, new):
    return lambda path: path.write_text(path.read_text().replace(old, new))


FLAWS = {
    "missing": ("client.pem", lambda path: path.unlink(), "cannot be read"),
    "no authority": ("ca.pem", lambda path: path.unlink(), "cannot be read"),
    "readable by the group": ("client.pem", chmod(0o640), r"read by other users \(mode 0640\); chmod 600"),
    "readable by all": ("client.pem", chmod(0o604), "read by other users"),
    "writable by the group": ("client.pem", chmod(0o620), "other users"),
    "an authority that others can replace": ("ca.pem", chmod(0o666), "written by other users"),
    "empty": ("client.pem", replace(""), "expected a"),
    "an empty authority": ("ca.pem", replace(""), "expected a certificate"),
    "text": ("client.pem", replace("here"), "expected a"),
    "a broken key": ("client.pem", replace(pem("PRIVATE KEY")), "expected a private key"),
    "a broken certificate": ("ca.pem", replace(pem("CERTIFICATE")), "expected a certificate"),
    "an encrypted key": (
        "client.pem",
        lambda path: path.write_bytes(
            ec.generate_private_key(ec.SECP256R1()).private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(b"secret"),
            )
        ),
        "encrypted",
    ),
    "no key": ("client.pem", swap("PRIVATE KEY", "NOTHING"), "expected a private key"),
    "huge": ("client.pem", replace("#" * (2**20 + 1)), "at most"),
    "a pipe": ("client.pem", lambda path: (path.unlink(), os.mkfifo(path, 0o600)), "expected a file"),
    "a directory": ("client.pem", lambda path: (path.unlink(), path.mkdir(0o700)), "client.pem: "),
}


@pytest.mark.parametrize("file, spoil, message", FLAWS.values(), ids=FLAWS)
def test_a_flaw_is_refused_by_its_file(file, spoil, message, made):
    spoil(made / file)
    with pytest.raises(ConfigError, match=rf"{made / file}: .*{message}|{made / file}: {message}"):
        check_credentials(made, ["client"])


@pytest.mark.parametrize("role, other", [("client", "worker"), ("scheduler", "client"), ("worker", "client")])
def test_a_certificate_of_a_lesser_role_does_not_serve(role, other, made):
    shutil.copy(made / f"{other}.pem", made / f"{role}.pem")
    if role == "client":
        check_credentials(made, [role])  # a worker may be a client
        return
    with pytest.raises(ConfigError, match=f"a {role} needs a certificate for server and client authentication"):
        check_credentials(made, [role])


def test_a_certificate_of_another_authority_is_refused(made, tmp_path):
    make_certificates(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "worker.pem", made / "worker.pem")
    check_credentials(made, ["client", "scheduler"])
    with pytest.raises(ConfigError, match=r"worker.pem: not signed by the authority in .*ca.pem"):
        check_credentials(made)


def test_a_key_of_another_certificate_is_refused(made):
    first, second = ((made / f"{role}.pem").read_text().split("-----BEGIN P") for role in ("client", "worker"))
    (made / "client.pem").write_text(first[0] + "-----BEGIN P" + second[1])
    with pytest.raises(ConfigError, match=r"client\.pem: its private key is not that of its certificate"):
        check_credentials(made, ["client"])


@pytest.mark.parametrize(
    "days, message",
    [(366, r"client.pem: expired on .* --renew"), (-1, "not valid before"), (CA_DAYS + 1, "ca.pem: expired on .* new")],
)
def test_a_certificate_out_of_its_time_is_refused(days, message, made, at):
    at(days)
    with pytest.raises(ConfigError, match=message):
        check_credentials(made, ["client"])


def test_one_that_ends_within_a_week_is_used_with_a_warning(made, at, caplog):
    at(350)
    check_credentials(made, ["client"])
    assert not caplog.records
    at(360)
    check_credentials(made, ["client"])
    assert [record.getMessage().split(": ")[0] for record in caplog.records] == [f"{made}/client.pem"]


def test_a_directory_that_others_can_change_is_refused(made):
    made.chmod(0o770)
    with pytest.raises(ConfigError, match=rf"{made}: can be written by other users \(mode 0770\); chmod 700"):
        check_credentials(made)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_key_of_another_user_is_refused(made):
    os.chown(made / "client.pem", 12345, -1)
    with pytest.raises(ConfigError, match=r"client.pem: belongs to user 12345, expected \d+ or root"):
        check_credentials(made)


@pytest.mark.parametrize("place", ["nowhere", "file"])
def test_what_is_no_directory_is_refused_with_the_command_that_makes_one(place, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=f"{place}: .*bigkernel certs"):
        check_credentials(tmp_path / place)


def test_the_configuration_for_dask_names_every_file_whatever_the_path_holds(tmp_path):
    target = tmp_path / 'a "path": # with é'
    make_certificates(target)
    comm = yaml.safe_load((target / "dask-tls.yaml").read_text())["distributed"]["comm"]
    assert comm["require-encryption"] is True
    assert comm["default-scheme"] == "tls"
    assert comm["tls"]["ca-file"] == str(target / "ca.pem")
    assert {role: comm["tls"][role]["cert"] for role in ROLES} == {role: str(target / f"{role}.pem") for role in ROLES}


def test_the_command_makes_and_renews_and_says_what_to_do_next(tmp_path):
    target, runner = str(tmp_path / "tls"), CliRunner()
    shown = runner.invoke(main, ["certs", target, "--host", "node1", "--days", "30"])
    assert shown.exit_code == 0, shown.output
    assert all(word in shown.stdout for word in ("scheduler.pem", "client.pem", f"tls: {target}", "dask-tls.yaml"))
    assert max(map(len, shown.stdout.splitlines()[:5])) <= 80
    again = runner.invoke(main, ["certs", target])
    assert again.exit_code == ConfigError.exit_code
    assert again.stderr.startswith("ConfigError: ")
    renewed = runner.invoke(main, ["certs", target, "--renew", "--json"])
    figures = json.loads(renewed.stdout)
    assert figures["directory"] == target
    assert [item["role"] for item in figures["certificates"]] == list(ROLES)
    assert figures["certificates"][2]["serial"] == format(
        certificate(tmp_path / "tls" / "client.pem").serial_number, "x"
    )
    assert runner.invoke(main, ["certs", target, "--days", "0"]).exit_code == 2


def test_a_package_without_tls_in_use_does_not_load_cryptography_in_workers():
    code = "import sys, bigkernel, bigkernel.engine.tasks; print('cryptography' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
