"""The monitor of a scheduler and the messages of a driver to it, both without a cluster."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from drivers import wait_until
from simulated import messages

from bigkernel.events.job import TOPIC, Figures, JobStarted, Merged, Note, Scope, SweepStarted
from bigkernel.events.plugin import Monitor
from bigkernel.events.sinks import Relay, listen
from bigkernel.streaming.plan import Footprint, plan


class FakeScheduler:
    """What `Monitor` uses of a scheduler."""

    def __init__(self):
        self.tasks, self.logged = {}, []

    def log_event(self, topic, message):
        self.logged.append((topic, message))


def key(node, kind="segment"):
    return f"bigkernel-{kind}-tok-{node}"


@pytest.fixture
def monitor():
    """A monitor of four running segments of ten rows."""
    started = Monitor()
    asyncio.run(started.start(FakeScheduler()))
    common = {"job": "j", "sweep": "tok"}
    sweep = {"what": "x", "executor": "dask", "run": "", "planned_bytes": 0, "stops": [10, 20, 30, 40]}
    messages = [
        {"kind": "job_started", "job": "j", "title": "t", "run": "", "host": "h", "pid": 1, "driver": "Client-1"},
        {"kind": "sweep_started", **common, **sweep, "plan": {"rows": 40, "flops": 40.0}},
        {"kind": "listen", "sweep": "tok", "driver": "Client-1"},
        *({"kind": "running", **common, "node": f"0-{i}", "worker": "w", "rows": 0} for i in range(4)),
    ]
    started.log_event(TOPIC, {"messages": messages})
    return started


def sweep_of(monitor):
    return monitor.board.jobs["j"].sweeps["tok"]


def states(monitor):
    return "".join(sweep_of(monitor).states)


def done(monitor, node, kind="segment"):
    monitor.transition(key(node, kind), "processing", "memory")


def lose_worker(monitor, running=(), results=()):
    tasks = {"processing-tasks": list(running), "lost-computed-tasks": list(results)}
    monitor.log_event("all", {"action": "remove-worker", "worker": "w", "stimulus_id": "cleanup", **tasks})


def test_a_worker_lost_at_a_merge_costs_no_segment(monitor):
    for i in range(4):
        done(monitor, f"0-{i}")
    done(monitor, "1-0", "merge")
    lose_worker(monitor, running=[key("1-1", "merge")])
    assert states(monitor) == "mmpp"
    assert monitor.board.totals["rows"] == {"computed": 40}


def test_results_of_a_lost_worker_are_computed_again(monitor):
    for i in range(4):
        done(monitor, f"0-{i}")
    done(monitor, "1-0", "merge")
    lose_worker(monitor, results=[key("1-0", "merge"), key("0-3")])
    assert states(monitor) == "aapa"


def test_a_driver_receives_lost_workers_and_merges(monitor):
    tasks = [key("0-2"), "another client's"]
    done(monitor, "1-0", "merge")
    lose_worker(monitor, running=tasks)
    logged = monitor._scheduler.logged
    assert {topic for topic, _ in logged} == {"bigkernel-Client-1"}
    (_, merged), (_, lost) = logged[-2:]
    assert merged == {"kind": "merged", "sweep": "tok", "node": "1-0"}
    assert (lost["kind"], lost["worker"], lost["under_way"]) == ("worker_lost", "w", tasks)


def fail(monitor, name, blamed):
    monitor._scheduler.tasks[name] = SimpleNamespace(state="erred", exception_blame=SimpleNamespace(key=blamed))
    monitor.transition(name, "processing", "erred")


def test_merges_of_a_failed_segment_are_not_failed_segments(monitor):
    done(monitor, "0-0")
    for name in (key("0-1"), key("1-0", "merge"), key("2-0", "merge")):
        fail(monitor, name, key("0-1"))
    assert states(monitor) == "pfrr"


def test_a_failed_segment_of_a_lost_worker_stays_failed(monitor):
    fail(monitor, key("0-1"), key("0-1"))
    lose_worker(monitor, running=[key("0-1"), key("0-2")])
    assert states(monitor) == "rfar"


def test_a_malformed_message_is_logged_once_and_others_are_applied(monitor, caplog):
    common = {"job": "j", "sweep": "tok"}
    batch = [{"kind": "segment", **common}, 7, {"kind": "pulse", **common, "node": "0-0", "rows": 5, "worker": "w"}]
    for _ in range(3):
        monitor.log_event(TOPIC, {"messages": batch})
    assert sweep_of(monitor).rows_under_way == 5
    assert len(caplog.records) == 1


def test_a_job_is_lost_with_its_driver(monitor):
    monitor.log_event(TOPIC, {"messages": [{"kind": "note", "job": "j", "text": "x", "driver": "Client-1"}]})
    monitor.remove_client(None, "Client-2")
    assert monitor.board.jobs["j"].state == "running"
    monitor.remove_client(None, "Client-1")
    assert monitor.board.jobs["j"].state == "lost"
    assert not monitor._drivers


# ---------------------------------------------------------------- messages of the driver


class FakeClient:
    """What `Relay` uses of a client: an event loop, and a scheduler that is slow or fails."""

    def __init__(self, seconds=0.001, failures=0):
        self.id, self.status, self.scheduler, self.batches = "Client-1", "running", self, []
        self.seconds, self.failures = seconds, failures
        self.loop, self._loop = self, asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def add_callback(self, function):
        def call():
            result = function()
            if asyncio.iscoroutine(result):
                self._task = self._loop.create_task(result)

        self._loop.call_soon_threadsafe(call)

    def subscribe_topic(self, topic, handler):
        self.topic = topic

    async def log_event(self, topic, msg):
        await asyncio.sleep(self.seconds)
        if self.failures:
            self.failures -= 1
            raise OSError("slow")
        self.batches.append(msg["messages"])

    @property
    def kinds(self):
        return [message["kind"] for batch in self.batches for message in batch]

    def stop(self):
        self.status = "closed"
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()


@pytest.fixture
def client():
    started = FakeClient()
    yield started
    started.stop()


@pytest.fixture
def long_waits(monkeypatch):
    """Pauses and waits so long that even a slow machine does not reach them."""
    monkeypatch.setattr("bigkernel.events.sinks._EVERY_SECONDS", 60)
    monkeypatch.setattr("bigkernel.events.sinks._FLUSH_SECONDS", 60)


def test_messages_arrive_in_order_and_the_end_of_a_job_interrupts_the_pause(client, long_waits):
    relay = Relay(client, Scope())
    relay(JobStarted("x"))
    wait_until(lambda: client.batches)  # the sender pauses
    for i in range(50):
        relay(Note(str(i)))
    start = time.perf_counter()
    relay.close()
    assert time.perf_counter() - start < 30
    assert [message.get("text") for batch in client.batches for message in batch] == [None, *map(str, range(50))]


def test_listen_returns_after_the_scheduler_has_registered_the_listener(client, long_waits):
    client.seconds = 0.1
    leave = listen(client, "a sweep", print)
    assert client.batches == [[{"kind": "listen", "sweep": "a sweep", "driver": client.id}]]
    leave()


def test_sweeps_that_start_at_the_same_time_share_one_subscription(client, monkeypatch):
    handlers, subscribe = [], client.subscribe_topic

    def slow_subscribe(topic, handler):
        handlers.append(handler)
        time.sleep(0.1)
        subscribe(topic, handler)

    monkeypatch.setattr(client, "subscribe_topic", slow_subscribe)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda name: listen(client, name, print), "ab"))
    assert len(handlers) == 1
    assert set(handlers[0].__self__.listeners) == {"a", "b"}


def test_messages_that_the_scheduler_refused_are_sent_again(client):
    client.failures = 2
    relay = Relay(client, Scope())
    relay(JobStarted("x"))
    relay(Note("y"))
    relay.close()
    wait_until(lambda: len(client.kinds) >= 2)
    assert client.kinds == ["job_started", "note"]


def test_a_closed_client_delays_no_job(client, long_waits):
    client.status = "closed"
    relay = Relay(client, Scope())
    relay(Note("x"))
    start = time.perf_counter()
    relay.close()
    assert time.perf_counter() - start < 30
    assert client.batches == []


def test_the_scheduler_gets_no_figures_and_merges_of_threads_alone(client):
    steps = plan((0, 10, 20), 3, 4, Footprint(1.0, 8, 8))
    relay = Relay(client, Scope())
    for executor in ("dask", "threads"):
        relay(SweepStarted("x", executor, steps))
        relay(Merged("1-0"))
        relay(Figures("score", {"images": "…"}))
    relay.close()
    assert client.kinds == ["sweep_started", "sweep_started", "merged"]


def test_the_board_keeps_few_sweeps_of_a_long_search():
    board = Monitor().board
    first, *others = messages(20, 2, job="j", finished=True)
    board.apply(*first)
    for i in range(40):
        for message, now in others:
            if message["kind"] != "job_ended":
                board.apply({**message, "sweep": f"s{i}"}, now)
    (job,) = board.snapshot(now)["jobs"]
    assert len(job["sweeps"]) <= 12
    assert board.totals["sweeps"] == {"finished": 40}
