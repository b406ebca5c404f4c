"""A pilot estimates the seconds of a job: by the clock of a test, on every executor, and leaves nothing behind."""

from dataclasses import replace

import numpy as np
import pytest
from distributed import Client

from bigkernel import KernelRidge, Standardizer, SweepSearchCV, executing
from bigkernel.engine import pilot as pilots
from bigkernel.engine.pilot import LONG_ROWS, MARGIN, Piece, extrapolate, pilot
from bigkernel.errors import DataError
from bigkernel.events.job import SweepStarted, observe

N = 20_000
X = np.random.default_rng(0).random((N, 4)).astype("float32")
Y = X[:, 0]


def model(count=20):
    return KernelRidge("gaussian", n_landmarks=count, random_state=0)


@pytest.fixture
def clock(monkeypatch):
    """Pieces take a second, and a second for every thousand rows, whatever they really take."""
    taken = []

    def timed(spec):
        taken.append(Piece(spec.plan.n_rows, 1 + spec.plan.n_rows / 1000))
        return taken[-1]

    monkeypatch.setattr(pilots, "_timed", timed)
    return taken


def test_the_range_contains_the_seconds_of_all_rows(clock):
    with executing("serial"):
        result = pilot(lambda: model().fit(X, Y))
    truth = 1 + N / 1000
    assert (result.least - result.before_seconds) * MARGIN == pytest.approx(truth, abs=0.5)
    assert result.least < truth < result.seconds < result.most < 3 * truth
    assert result.pilot_rows == sum(piece.rows for piece in clock)


def test_all_sweeps_of_a_job_are_counted_by_their_flops(clock):
    with executing("serial"):
        flops = model().plan(X, Y).flops
        one, three = (pilot(lambda: model().fit(X, Y), flops=k * flops) for k in (1, 3))
    assert three.most - three.before_seconds == pytest.approx(3 * (one.most - one.before_seconds), rel=0.2)


def test_pieces_end_where_all_rows_of_their_segments_are_swept(monkeypatch):
    swept = []
    monkeypatch.setattr(pilots, "_timed", lambda spec: swept.append(spec.plan) or Piece(spec.plan.n_rows, 1e-9))
    with executing("serial"):
        pilot(lambda: model().fit(X, Y))
    longest = max(s.stop - s.start for s in swept[-1].segments)
    assert [plan.n_rows for plan in swept[:2]] == [1024, 2048]
    assert swept[-1].n_rows <= N
    assert longest <= pilots._MOST_ROWS
    assert len(swept) < 12


def test_pieces_come_from_all_over_the_rows_and_within_their_segments(clock):
    with executing("serial"):
        plan = model().plan(X, Y)
    piece = pilots._piece(plan, 2, 700)
    assert [s.start for s in piece.segments] == [plan.segments[0].start, plan.segments[len(plan.segments) // 2].start]
    assert all(s.stop - s.start == 700 for s in piece.segments)
    assert piece.flops == pytest.approx(plan.flops * 1400 / N)


def planned(segments):
    plan = model().plan(X, Y)
    return replace(plan, segments=(plan.segments[0],) * segments)


@pytest.mark.parametrize(("segments", "workers", "rounds"), [(8, 2, 4), (8, 4, 2), (8, 8, 1), (9, 8, 2), (3, 8, 1)])
def test_more_workers_take_fewer_rounds(segments, workers, rounds):
    pieces = [Piece(1000, 1.0), Piece(2000, 2.0)]
    least, most = extrapolate(pieces, planned(segments), 2, workers)
    assert least == pytest.approx(most)
    assert most == pytest.approx(2 * N / 1000 * rounds / segments)


def test_noise_widens_the_range_and_keeps_its_ends_in_order():
    for before, last in ((1.0, 2.0), (1.0, 1.2), (1.5, 1.2), (0.1, 1.2)):
        least, most = extrapolate([Piece(1000, before), Piece(2000, last)], planned(8), 2, 2)
        assert 0 < least <= most == pytest.approx(last / 2000 * N)


def test_a_short_job_is_run_and_measured():
    done = []
    result = pilot(lambda: done.append(model().fit(X[:LONG_ROWS], Y[:LONG_ROWS])))
    assert done[0].n_features_in_ == 4
    assert result.least == result.seconds == result.most == result.pilot_seconds > 0


def test_errors_of_a_job_are_raised_as_without_a_pilot():
    with pytest.raises(DataError, match="NaN"):
        pilot(lambda: model().fit(np.where(np.arange(N)[:, None] == 3, np.nan, X), Y))


@pytest.mark.parametrize("executor", ["serial", "threads", "cluster"])
def test_nothing_stays_behind_on_any_executor(executor, request, tmp_path, make_corpus):
    corpus = make_corpus(X, y=Y, chunk_rows=1000)
    client = request.getfixturevalue("client") if executor == "cluster" else executor
    fitted, sweeps = model(), []
    with executing(client, run=tmp_path / "run"), observe(sweeps.append):
        result = pilot(lambda: fitted.fit(corpus))
    assert not hasattr(fitted, "dual_coef_")
    started = [event for event in sweeps if isinstance(event, SweepStarted)]
    assert {event.executor for event in started} == {"dask" if executor == "cluster" else executor}
    assert result.pilot_rows == sum(event.plan.n_rows for event in started if event.what == "pilot") <= 4 * N
    assert 0 < result.least <= result.seconds <= result.most
    assert not [path for path in (tmp_path / "run").rglob("*") if "partial" in path.name or path.name == "moments"]
    if isinstance(client, Client):
        assert not client.futures


def test_a_search_and_a_transform_have_pilots_too(clock):
    search = SweepSearchCV(model(), {"alpha": [0.1, 1.0]}, cv=2, random_state=0)
    with executing("serial"):
        for job in (lambda: search.fit(X, Y), lambda: Standardizer().fit(X)):
            assert pilot(job).least > 1
    assert not hasattr(search, "best_estimator_")
