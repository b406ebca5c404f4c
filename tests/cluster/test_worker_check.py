"""`bigkernel worker-check`: a line for every worker as soon as it has answered, in 80 columns."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from bigkernel.cli import main
from bigkernel.engine import preflight
from bigkernel.errors import ConfigError, Stalled

pytestmark = pytest.mark.cluster


@pytest.fixture
def check(client, make_corpus, tmp_path):
    """Run the command on the cluster of the tests."""
    path = make_corpus(np.ones((50, 4)), y=np.zeros(50)).path
    command = ["worker-check", path, "--run", str(tmp_path / "run"), "--cluster", client.scheduler.address]
    return lambda *more: CliRunner().invoke(main, [*command, *more])


def test_every_worker_has_its_line(check, client):
    addresses = sorted(client.scheduler_info(n_workers=-1)["workers"])
    shown = check()
    assert shown.exit_code == 0
    head, *lines = shown.stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [[address, "yes"] for address in addresses]
    assert all(len(line) <= 80 for line in [head, *lines])
    assert {line.index("yes") for line in lines} == {head.index("can")}
    told = json.loads(check("--json").stdout)["workers"]
    assert [(one["worker"], one["fit"]) for one in told] == [(address, True) for address in addresses]


def test_what_is_known_is_shown_before_the_next_worker_is_asked(check, client, monkeypatch):
    asked, (first, *_) = [], sorted(client.scheduler_info(n_workers=-1)["workers"])
    ask = preflight.ask

    def once(*args, workers):
        asked.extend(workers)
        if len(asked) > 1:
            raise Stalled("it does not answer")
        return {address: {**answer, "wrong": ["no disk"]} for address, answer in ask(*args, workers=workers).items()}

    monkeypatch.setattr(preflight, "ask", once)
    shown = check()
    _, line, problem = shown.stdout.splitlines()
    assert line.split()[:2] == [first, "no"]
    assert problem.strip() == "no disk"
    assert shown.exit_code == (Stalled if len(asked) > 1 else ConfigError).exit_code
