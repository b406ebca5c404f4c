"""The scheduler's part without a cluster: what it takes for lost, failed or shown; and the post between the two."""

import asyncio
import threading
import time
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
        self.tasks, self.told = {}, []

    def log_event(self, topic, message):
        self.told.append((topic, message))


def key(node, kind="segment"):
    return f"bigkernel-{kind}-tok-{node}"


@pytest.fixture
def monitor():
    """Four segments of ten rows, all running."""
    found = Monitor()
    asyncio.run(found.start(FakeScheduler()))
    about = {"job": "j", "sweep": "tok"}
    started = {"what": "x", "executor": "dask", "run": "", "planned_bytes": 0}
    steps = {"plan": {"rows": 40, "flops": 40.0}, "stops": [10, 20, 30, 40]}
    told = [
        {"kind": "job_started", "job": "j", "title": "t", "run": "", "host": "h", "pid": 1, "driver": "Client-1"},
        {"kind": "sweep_started", **about, **started, **steps},
        {"kind": "listen", "sweep": "tok", "driver": "Client-1"},
        *({"kind": "running", **about, "node": f"0-{i}", "worker": "w", "rows": 0} for i in range(4)),
    ]
    found.log_event(TOPIC, {"messages": told})
    return found


def sweep_of(monitor):
    return monitor.board.jobs["j"].sweeps["tok"]


def done(monitor, node, kind="segment"):
    monitor.transition(key(node, kind), "processing", "memory")


def lose(monitor, under_way=(), held=()):
    tasks = {"processing-tasks": list(under_way), "lost-computed-tasks": list(held)}
    monitor.log_event("all", {"action": "remove-worker", "worker": "w", "stimulus_id": "cleanup", **tasks})


def test_a_worker_that_dies_at_a_merge_takes_no_segment_back(monitor):
    for i in range(4):
        done(monitor, f"0-{i}")
    done(monitor, "1-0", "merge")
    lose(monitor, under_way=[key("1-1", "merge")])
    assert "".join(sweep_of(monitor).states) == "mmpp"
    assert monitor.board.totals["rows"] == {"computed": 40}


def test_what_only_a_lost_worker_held_is_done_again(monitor):
    for i in range(4):
        done(monitor, f"0-{i}")
    done(monitor, "1-0", "merge")
    lose(monitor, held=[key("1-0", "merge"), key("0-3")])
    assert "".join(sweep_of(monitor).states) == "aapa"


def test_a_driver_is_told_of_every_lost_worker_and_of_merges(monitor):
    done(monitor, "1-0", "merge")
    lose(monitor, under_way=[key("0-2"), "somebody-else's"])
    told = monitor._scheduler.told
    assert {topic for topic, _ in told} == {"bigkernel-Client-1"}
    assert told[-2][1] == {"kind": "merged", "sweep": "tok", "node": "1-0"}
    lost = told[-1][1]
    assert (lost["kind"], lost["worker"], lost["under_way"]) == ("worker_lost", "w", [key("0-2"), "somebody-else's"])


def erred(monitor, name, blamed):
    monitor._scheduler.tasks[name] = SimpleNamespace(state="erred", exception_blame=SimpleNamespace(key=blamed))
    monitor.transition(name, "processing", "erred")


def test_one_failed_segment_is_shown_as_one(monitor):
    done(monitor, "0-0")
    for name in (key("0-1"), key("1-0", "merge"), key("2-0", "merge")):
        erred(monitor, name, key("0-1"))
    assert "".join(sweep_of(monitor).states) == "pfrr"


def test_a_segment_that_is_given_up_with_its_worker_stays_failed(monitor):
    erred(monitor, key("0-1"), key("0-1"))
    lose(monitor, under_way=[key("0-1"), key("0-2")])
    assert "".join(sweep_of(monitor).states) == "rfar"


def test_one_strange_message_costs_itself_alone(monitor, caplog):
    about = {"job": "j", "sweep": "tok"}
    batch = [{"kind": "segment", **about}, 7, {"kind": "pulse", **about, "node": "0-0", "rows": 5, "worker": "w"}]
    for _ in range(3):
        monitor.log_event(TOPIC, {"messages": batch})
    assert sweep_of(monitor).rows_under_way == 5
    assert len(caplog.records) == 1


def test_a_driver_that_is_gone_has_lost_its_job(monitor):
    monitor.log_event(TOPIC, {"messages": [{"kind": "note", "job": "j", "text": "x", "driver": "Client-1"}]})
    monitor.remove_client(None, "Client-2")
    assert monitor.board.jobs["j"].state == "running"
    monitor.remove_client(None, "Client-1")
    assert monitor.board.jobs["j"].state == "lost"
    assert not monitor._drivers


# ---------------------------------------------------------------- the driver's post


class FakeClient:
    """What `Relay` uses of a client: an event loop, and a scheduler that takes its time or fails."""

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
    found = FakeClient()
    yield found
    found.stop()


@pytest.fixture
def unhurried(monkeypatch):
    """Pauses and waits that a slow machine is not taken for."""
    monkeypatch.setattr("bigkernel.events.sinks._EVERY_SECONDS", 60)
    monkeypatch.setattr("bigkernel.events.sinks._FLUSH_SECONDS", 60)


def test_messages_arrive_in_order_and_the_end_of_a_job_waits_for_no_pause(client, unhurried):
    relay = Relay(client, Scope())
    relay(JobStarted("x"))
    wait_until(lambda: client.batches)  # the sender pauses
    for i in range(50):
        relay(Note(str(i)))
    start = time.perf_counter()
    relay.close()
    assert time.perf_counter() - start < 30
    assert [message.get("text") for batch in client.batches for message in batch] == [None, *map(str, range(50))]


def test_the_scheduler_knows_who_listens_before_anything_can_happen(client, unhurried):
    client.seconds = 0.1
    leave = listen(client, "a sweep", print)
    assert client.batches == [[{"kind": "listen", "sweep": "a sweep", "driver": client.id}]]
    leave()


def test_sweeps_that_begin_at_once_share_what_hears_for_them(client, monkeypatch):
    made, subscribe = [], client.subscribe_topic

    def slowly(topic, handler):
        made.append(handler)
        time.sleep(0.1)
        subscribe(topic, handler)

    monkeypatch.setattr(client, "subscribe_topic", slowly)
    threads = [threading.Thread(target=listen, args=(client, name, print)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(made) == 1
    assert set(made[0].__self__.listeners) == {"a", "b"}


def test_what_a_slow_scheduler_did_not_take_is_sent_again(client):
    client.failures = 2
    relay = Relay(client, Scope())
    relay(JobStarted("x"))
    relay(Note("y"))
    relay.close()
    wait_until(lambda: len(client.kinds) >= 2)
    assert client.kinds == ["job_started", "note"]


def test_a_cluster_that_is_gone_holds_up_no_job(client, unhurried):
    client.status = "closed"
    relay = Relay(client, Scope())
    relay(Note("x"))
    start = time.perf_counter()
    relay.close()
    assert time.perf_counter() - start < 30
    assert client.batches == []


def test_figures_stay_off_the_scheduler_and_merges_travel_only_where_it_does_not_know_them(client):
    steps = plan((0, 10, 20), 3, 4, Footprint(1.0, 8, 8))
    relay = Relay(client, Scope())
    for executor in ("dask", "threads"):
        relay(SweepStarted("x", executor, steps))
        relay(Merged("1-0"))
        relay(Figures("score", {"images": "…"}))
    relay.close()
    assert client.kinds == ["sweep_started", "sweep_started", "merged"]


def test_a_page_may_be_polled_while_a_long_search_runs():
    board = Monitor().board
    told = list(messages(20, 2, job="j", finished=True))
    start, *middle = [(message, now) for message, now in told if message["kind"] != "job_ended"]
    board.apply(*start)
    for i in range(40):
        for message, now in middle:
            board.apply({**message, "sweep": f"s{i}"}, now)
    (job,) = board.snapshot(now)["jobs"]
    assert len(job["sweeps"]) <= 12
    assert board.totals["sweeps"] == {"finished": 40}
