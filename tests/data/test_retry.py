"""Errors that may pass are tried again so often and no oftener; all others are raised as they are."""

import pytest

from bigkernel.data import retry as module
from bigkernel.data.retry import retry


@pytest.fixture
def pauses(monkeypatch):
    found = []
    monkeypatch.setattr(module.time, "sleep", found.append)
    return found


@pytest.mark.parametrize("failures", [0, 1, 3])
def test_a_task_that_fails_no_oftener_than_allowed_gives_its_result(pauses, failures):
    attempts, told = [], []

    def task():
        attempts.append(1)
        if len(attempts) <= failures:
            raise OSError(len(attempts))
        return "done"

    passing = lambda error: isinstance(error, OSError)  # noqa: E731
    assert retry(task, times=3, passing=passing, failed=told.append, pause_seconds=1.0) == "done"
    assert [error.args for error in told] == [(i + 1,) for i in range(failures)]
    assert pauses == [1.0, 2.0, 2.0][:failures]


def test_the_last_error_is_raised_and_one_that_does_not_pass_at_once(pauses):
    attempts = []

    def task():
        attempts.append(1)
        raise OSError(len(attempts))

    with pytest.raises(OSError, match="3"):
        retry(task, times=2, passing=lambda error: True)
    with pytest.raises(OSError, match="4"):
        retry(task, times=2, passing=lambda error: False)
    assert len(attempts) == 4
    assert len(pauses) == 2
