"""The image and the compose file: restricted, of one version; the commands of the services fit a model here."""

import fnmatch
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
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
SERVICES = yaml.safe_load((CLUSTER / "docker" / "compose.yaml").read_text(encoding="utf-8"))["services"]
RECIPE = (CLUSTER / "docker" / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")


def instructions(name):
    return [line.split()[1:] for line in RECIPE.splitlines() if line.startswith(f"{name} ")]


# -- the image -------------------------------------------------------------------------------------------------------


def test_the_image_has_a_fixed_python_and_a_user_that_is_not_root():
    bases = {line[0] for line in instructions("FROM")}
    assert len(bases) == 1
    assert re.fullmatch(r"python:3\.\d+-slim-[a-z]+", bases.pop())
    ((user,),) = instructions("USER")
    assert min(map(int, user.split(":"))) >= 1000
    assert RECIPE.index("USER") < RECIPE.index("CMD")


def test_the_image_copies_existing_files_of_the_checkout_and_no_others():
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert rules[0] == "*"
    included = [rule[1:] for rule in rules if rule.startswith("!")]
    sources = [path for line in instructions("COPY") if not line[0].startswith("--") for path in line[:-1]]
    assert sorted(included) == sorted(sources)
    assert all((ROOT / path).exists() for path in included)
    for never in ("certificates/ca-key.pem", "data/train.corpus", ".git/config", "out/page.html", "tests/conftest.py"):
        assert not any(never == path or never.startswith(f"{path}/") for path in included)
    assert any(fnmatch.fnmatch("bigkernel/x.pyc", rule.removeprefix("**/")) for rule in rules)


# -- compose ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_can_write_its_data_and_nothing_else(name):
    service = SERVICES[name]
    assert service["image"] == f"bigkernel:{bigkernel.__version__}"
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    keys, *data = [volume.rpartition("}")[2] for volume in service["volumes"] if ":" in volume]
    assert keys == ":/certificates:ro"
    assert data == ([] if name == "scheduler" else [":/data"])


def test_the_page_alone_is_published_and_to_this_machine_alone():
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"scheduler": ["127.0.0.1:8787:8787"]}
    assert all(service["networks"] == ["cluster"] for service in SERVICES.values())


def test_workers_fit_into_their_memory_and_the_driver_has_time_to_stop():
    worker, driver = SERVICES["worker"], SERVICES["driver"]
    (limit,) = (word.partition("=")[2] for word in worker["command"] if word.startswith("--memory-limit="))
    container = parse_bytes(worker["mem_limit"].replace("g", "GiB"))
    assert 0.8 * container < parse_bytes(limit) < container - 2**27
    assert worker["deploy"]["replicas"] == 2
    assert int(driver["stop_grace_period"].removesuffix("s")) > settings().grace_seconds + 15
    assert driver["restart"].startswith("on-failure")


# -- the commands, run -----------------------------------------------------------------------------------------------


class Here:
    """Services of the compose file as processes of this machine, with other directories and ports."""

    def __init__(self, place):
        self.place = place
        listened = ("8786", "8787", "8788", "8790", "8791")
        self.ports = dict(zip(listened, (str(free_port()) for _ in listened), strict=True))

    def adapt(self, word):
        for port, other in self.ports.items():
            word = re.sub(rf"(?<!\d){port}(?!\d)", other, word)
        word = re.sub(r"^:(\d+)$", r"127.0.0.1:\1", word).replace("//scheduler:", "//127.0.0.1:")
        return re.sub(r"(^|=)/(certificates|data|scratch)", rf"\1{self.place}/\2", word)

    def command(self, name):
        program, *arguments = map(self.adapt, SERVICES[name]["command"])
        arguments += ["--host", "127.0.0.1"] if program == "dask" else []
        start = ["-m", "dask"] if program == "dask" else ["-c", "from bigkernel.cli import main; main()"]
        given = {key: self.adapt(value) for key, value in SERVICES[name].get("environment", {}).items()}
        # the image has cluster/dask.yaml in /etc/dask
        return [sys.executable, *start, *arguments], {
            **os.environ,
            **given,
            "DASK_ROOT_CONFIG": str(self.place / "etc"),
        }

    @contextmanager
    def running(self, name):
        command, variables = self.command(name)
        with open(self.place / f"{name}.log", "w") as log:
            process = subprocess.Popen(command, env=variables, stdout=log, stderr=log, start_new_session=True)
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)

    def healthy(self):
        with suppress(urllib.error.URLError, OSError):
            return urllib.request.urlopen(f"http://127.0.0.1:{self.ports['8787']}/health", timeout=3).status == 200
        return False

    def drive(self):
        command, variables = self.command("driver")
        return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
@pytest.mark.cluster
def test_the_commands_of_the_compose_file_fit_the_same_model_at_every_start(tmp_path, make_corpus, rng):
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
        assert worker.wait(30) is not None  # its container is restarted and connects to the next scheduler
    assert sums_of(model) == bits
    assert "resumed segments" in again.stdout
