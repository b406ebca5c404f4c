"""A test that reaches its time limit names what took it: its phases, its sweeps, and the processes it waits for."""

import signal
import time
from collections import deque

import psutil
import pytest

from bigkernel.events.job import observe

_LATEST = 12  # events, as many as a few steps of a job have
_WIDEST = 200  # characters of an event or of a command line
_events = deque(maxlen=_LATEST)  # with the time of each
_phases = {}  # when each of this test began


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Note the latest events of all jobs of the test."""
    del item
    _events.clear()
    _phases.clear()
    with observe(lambda event: _events.append((time.monotonic(), event))):
        return (yield)


def _begin(phase):
    @pytest.hookimpl(tryfirst=True)
    def begin(item):
        _phases[phase] = time.monotonic()

    return begin


pytest_runtest_setup, pytest_runtest_call, pytest_runtest_teardown = map(_begin, ("setup", "call", "teardown"))


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item, settings):
    """Add a section to the report of a test before its limit fails it, while its processes still run."""
    result = yield
    fail = signal.getsignal(signal.SIGALRM)
    if settings.method == "signal" and callable(fail):

        def explain_and_fail(number, frame):
            __tracebackhide__ = True
            item.add_report_section(list(_phases)[-1] if _phases else "setup", "what took it", what_took_it())
            fail(number, frame)

        signal.signal(signal.SIGALRM, explain_and_fail)
    return result


def what_took_it():
    """Return lines of text: seconds of each phase, the latest events and how long ago, and all child processes."""
    now = time.monotonic()
    ends = [*list(_phases.values())[1:], now]
    lines = [f"{phase}: {end - begun:.1f} s" for (phase, begun), end in zip(_phases.items(), ends, strict=True)]
    lines += [f"{now - at:.1f} s ago: {event!s:.{_WIDEST}}" for at, event in _events] or ["no event of a job"]
    for child in psutil.Process().children(recursive=True):
        try:
            spent, age, command = sum(child.cpu_times()[:2]), time.time() - child.create_time(), child.cmdline()
            lines.append(
                f"process {child.pid}, {spent:.1f} s of processor in {age:.0f} s: {' '.join(command):.{_WIDEST}}"
            )
        except psutil.Error:  # it has ended
            continue
    return "\n".join(lines)
