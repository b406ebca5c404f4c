"""The image and the compose file: closed, of one version; and the commands of their services, run here, fit a model."""

from __future__ import annotations

import fnmatch
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import yaml
from dask.utils import parse_bytes
from drivers import sums_of, wait_until
from machines import free_port

import bigkernel
from bigkernel.cluster.certificates import make_certificates
from bigkernel.config import settings

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "cluster"
COMPOSE = yaml.safe_load((CLUSTER / "docker" / "compose.yaml").read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]
RECIPE = (CLUSTER / "docker" / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")


def instructions(name: str) -> list[list[str]]:
    return [line.split()[1:] for line in RECIPE.splitlines() if line.startswith(f"{name} ")]


def sources() -> list[str]:
    """What the image takes from the checkout."""
    return [path for words in instructions("COPY") if not words[0].startswith("--") for path in words[:-1]]


# -- the image -------------------------------------------------------------------------------------------------------


def test_the_image_is_of_a_fixed_python_and_nobodys_root():
    bases = {words[0] for words in instructions("FROM")}
    assert len(bases) == 1
    assert re.fullmatch(r"python:3\.\d+-slim-[a-z]+", bases.pop())
    ((user,),) = instructions("USER")
    assert min(map(int, user.split(":"))) >= 1000
    assert RECIPE.index("USER") < RECIPE.index("CMD")


def test_the_image_takes_what_the_checkout_has_and_no_more():
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert rules[0] == "*"
    let_in = [rule[1:] for rule in rules if rule.startswith("!")]
    assert sorted(let_in) == sorted(sources())
    for path in let_in:
        assert (ROOT / path).exists()
    for never in ("certificates/ca-key.pem", "data/train.corpus", ".git/config", "out/page.html", "tests/conftest.py"):
        assert not any(never == path or never.startswith(f"{path}/") for path in let_in)
    assert any(fnmatch.fnmatch("bigkernel/x.pyc", rule.removeprefix("**/")) for rule in rules)


# -- compose ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_may_write_its_data_and_nothing_else(name):
    service = SERVICES[name]
    assert service["image"] == f"bigkernel:{bigkernel.__version__}"
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    keys, *data = [volume.rpartition("}")[2] for volume in service["volumes"] if ":" in volume]
    assert keys == ":/certificates:ro"
    assert data == ([] if name == "scheduler" else [":/data"])


def test_only_the_page_leaves_the_network_and_only_to_this_machine():
    assert {name: service["ports"] for name, service in SERVICES.items() if "ports" in service} == {
        "scheduler": ["127.0.0.1:8787:8787"]
    }
    assert all(service["networks"] == ["cluster"] for service in SERVICES.values())


def test_two_workers_keep_within_their_memory_and_the_driver_has_time_to_end():
    worker, driver = SERVICES["worker"], SERVICES["driver"]
    (limit,) = (word.partition("=")[2] for word in worker["command"] if word.startswith("--memory-limit="))
    container = parse_bytes(worker["mem_limit"].replace("g", "GiB"))
    assert 0.8 * container < parse_bytes(limit) < container - 2**27
    assert worker["deploy"]["replicas"] == 2
    assert int(driver["stop_grace_period"].removesuffix("s")) > settings().grace_seconds + 15
    assert driver["restart"].startswith("on-failure")


# -- the commands, run -----------------------------------------------------------------------------------------------


class Here:
    """Services of the compose file as processes of this machine: their words and variables, other places and ports."""

    def __init__(self, place: Path) -> None:
        self.place = place
        listened = ("8786", "8787", "8788", "8790", "8791")
        self.ports = dict(zip(listened, (str(free_port()) for _ in listened), strict=True))

    def told(self, word: str) -> str:
        for port, other in self.ports.items():
            word = re.sub(rf"(?<!\d){port}(?!\d)", other, word)
        word = re.sub(r"^:(\d+)$", r"127.0.0.1:\1", word).replace("//scheduler:", "//127.0.0.1:")
        return re.sub(r"(^|=)/(certificates|data|scratch)", rf"\1{self.place}/\2", word)

    def command(self, name: str) -> tuple[list[str], dict[str, str]]:
        program, *words = map(self.told, SERVICES[name]["command"])
        words += ["--host", "127.0.0.1"] if program == "dask" else []
        start = ["-m", "dask"] if program == "dask" else ["-c", "from bigkernel.cli import main; main()"]
        given = {key: self.told(value) for key, value in SERVICES[name].get("environment", {}).items()}
        # the image has cluster/dask.yaml in /etc/dask
        return [sys.executable, *start, *words], {**os.environ, **given, "DASK_ROOT_CONFIG": str(self.place / "etc")}

    @contextmanager
    def running(self, name: str) -> Iterator[subprocess.Popen[bytes]]:
        words, variables = self.command(name)
        with open(self.place / f"{name}.log", "w") as log:
            process = subprocess.Popen(words, env=variables, stdout=log, stderr=log, start_new_session=True)
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)

    def healthy(self) -> bool:
        with suppress(urllib.error.URLError, OSError):
            return urllib.request.urlopen(f"http://127.0.0.1:{self.ports['8787']}/health", timeout=3).status == 200
        return False

    def drive(self) -> subprocess.CompletedProcess[str]:
        words, variables = self.command("driver")
        return subprocess.run(words, env=variables, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
@pytest.mark.cluster
def test_the_commands_of_the_compose_file_fit_a_model_at_the_first_start_and_at_any_other(tmp_path, make_corpus, rng):
    for name in ("data", "scratch", "etc"):
        (tmp_path / name).mkdir()
    (tmp_path / "etc" / "dask.yaml").write_bytes((CLUSTER / "dask.yaml").read_bytes())
    make_certificates(tmp_path / "certificates")
    make_corpus(rng.standard_normal((1200, 4)), name="data/train.corpus", chunk_rows=100, y=rng.integers(0, 2, 1200))
    here = Here(tmp_path)
    model = tmp_path / "data" / "digits.model"
    with here.running("worker") as worker, here.running("scheduler") as scheduler:
        wait_until(here.healthy, 60, "a healthy scheduler")
        first = here.drive()
        assert first.returncode == 0, first.stderr + (tmp_path / "worker.log").read_text()
        bits = sums_of(model)
        again = here.drive()
        assert again.returncode == 0, again.stderr
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{here.ports['8787']}/info/main/workers.html", timeout=10)
        for port, path in (("8787", "bigkernel"), ("8788", "health")):
            assert urllib.request.urlopen(f"http://127.0.0.1:{here.ports[port]}/{path}", timeout=10).status == 200
        os.kill(scheduler.pid, signal.SIGKILL)
        assert worker.wait(30) is not None  # so that its container is started again and finds the next scheduler
    assert sums_of(model) == bits
    assert "resumed segments" in again.stdout
