"""A search gives the same bits on every executor, keeps within its memory, and is resumed where it ended."""

import threading
from importlib import import_module

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from numpy.testing import assert_allclose, assert_array_equal
from peers import digest, split_scores
from threadpoolctl import threadpool_limits

import bigkernel as bk
from bigkernel.engine.context import executing
from bigkernel.errors import DataError, ResumeMismatchError
from bigkernel.estimators.fit.basis import BasisChoice
from bigkernel.events.job import SegmentDone, SweepStarted, observe
from bigkernel.search.planning import Given

rng = np.random.default_rng(168)
N, D, M = 230, 4, 12
X = rng.normal(size=(N, D)).astype("f4")
Z = X[:M].astype("f8") + 0.03
y = np.sin(X[:, 0]).astype("f8")
LABELS = rng.permutation(np.arange(N) % 3)
GROUPS, DOMAINS = np.arange(N) // 2, np.arange(N) % 4
PARTLY = np.where(DOMAINS == 3, -1, LABELS)
HIDDEN = np.where(np.arange(N) % 3, y, np.nan)
GRID = {"kernel": [bk.Gaussian(1.0), bk.Matern(2.0), bk.Gaussian(3.0), bk.Laplacian(0.4)], "alpha": [0.01, 1.0]}
ROUNDS = {"kernel": [bk.Gaussian(1.0), bk.Laplacian(0.4)], "alpha": [0.01, 1.0]}  # each is swept for in every round
SEARCHES = {
    "numbers": (bk.KernelRidge(landmarks=Z, fit_intercept=True), {"param_grid": GRID, "scoring": "r2", "cv": 2}, y),
    "classes, domains": (
        bk.KernelRidgeClassifier(landmarks=Z),
        {"param_grid": GRID, "scoring": ["accuracy", "neg_log_loss"], "cv": "domains", "refit": "accuracy"},
        LABELS,
    ),
    "a target domain": (
        bk.ARTLClassifier(landmarks=Z, n_rounds=2, sharpness=4.0),
        {"param_grid": ROUNDS, "scoring": ["accuracy", "neg_mean_squared_error"], "cv": 2, "refit": "accuracy"},
        PARTLY,
    ),
    "semi-supervised": (bk.SSSL(landmarks=Z, n_components=5), {"param_grid": GRID, "cv": 2}, HIDDEN),
}
every_search = pytest.mark.parametrize("model, options, target", SEARCHES.values(), ids=SEARCHES)

pytestmark = [
    pytest.mark.usefixtures("small_steps"),
    pytest.mark.filterwarnings("ignore::bigkernel.errors.BestAtEdgeWarning"),  # grids are small
    pytest.mark.filterwarnings("ignore::bigkernel.errors.CollapsedLabelsWarning"),  # labels mean nothing
]


def bits_of(search):
    """The scores, and the bits of the best model."""
    model = search.best_estimator_
    return digest(search), model.dual_coef_.tobytes(), np.asarray(model.intercept_).tobytes()


@every_search
def test_serial_and_threads_give_the_same_bits_from_every_source(model, options, target, make_corpus):
    columns = {"y": target, "group": GROUPS, "domain": DOMAINS}
    corpus = make_corpus(X, classes=(0, 1, 2) if target.dtype.kind == "i" else (), **columns)
    lazy = {name: da.from_array(values, chunks=25) for name, values in columns.items()}
    result = {}
    of_arrays = {"groups": GROUPS, "sample_domain": DOMAINS}
    of_dask = {"groups": lazy["group"], "sample_domain": lazy["domain"]}
    if isinstance(options.get("cv"), str):  # domains say by themselves which rows are tested together
        del of_arrays["groups"], of_dask["groups"]
    kinds = {
        "corpus": ((corpus,), {}),
        "dask": ((da.from_array(X, chunks=(25, D)), lazy["y"]), of_dask),
        "zarr": ((zarr.array(X, chunks=(25, D)), zarr.array(target, chunks=(25,))), of_arrays),
    }
    for executor, kind in (("serial", "corpus"), ("threads", "dask"), ("threads", "zarr")):
        given, more = kinds[kind]
        with executing(executor):
            result[kind] = bits_of(bk.SweepSearchCV(model, **options).fit(*given, **more))
    assert len(set(result.values())) == 1


@pytest.mark.cluster
@pytest.mark.parametrize("name", ["numbers", "a target domain"])
def test_workers_give_the_same_bits(name, make_corpus, client):
    model, options, target = SEARCHES[name]
    classes = (0, 1, 2) if target.dtype.kind == "i" else ()
    corpus = make_corpus(X, classes=classes, y=target, group=GROUPS, domain=DOMAINS)
    with executing("serial"):
        expected = bits_of(bk.SweepSearchCV(model, **options).fit(corpus))
    events = []
    with executing(client), observe(events.append):
        assert bits_of(bk.SweepSearchCV(model, **options).fit(corpus)) == expected
    assert {event.executor for event in events if isinstance(event, SweepStarted)} == {"dask"}


def test_kernels_that_do_not_fit_together_take_several_sweeps_and_score_the_same():
    wide = rng.normal(size=(200, D))
    model = bk.KernelRidge(landmarks=wide, dtype="float32")
    grid = {"kernel": [bk.Gaussian(sigma) for sigma in np.geomspace(0.2, 0.5, 12)], "alpha": [0.1, 1.0]}
    roomy = bk.SweepSearchCV(model, grid, cv=4).fit(X, y)
    assert len(roomy.plan_.sweeps) == 1
    tight = {"bigkernel.memory-limit-bytes": 100_000_000, "bigkernel.worker-base-bytes": 0}
    with dask.config.set(tight):
        search = bk.SweepSearchCV(model, grid, cv=4)
        plan = search.plan(X, y)
        assert len(plan.sweeps) == 2
        assert plan.task_bytes <= 100_000_000 < roomy.plan_.task_bytes
        events = []
        with observe(events.append):
            search.fit(X, y)
    assert [event.what for event in events if isinstance(event, SweepStarted)] == ["tune", "tune"]
    for event in events:
        if isinstance(event, SweepStarted):
            assert event.plan.task_bytes <= 100_000_000
    # the kernels of a family share the argument of its narrowest, so that float32 rounds it otherwise
    assert_allclose(split_scores(search), split_scores(roomy), atol=1e-4)
    assert search.best_index_ == roomy.best_index_


def test_moments_that_do_not_fit_are_not_kept_and_swept_again_for_the_refit():
    model = bk.KernelRidge(bk.Gaussian(1.0), landmarks=Z)
    expected = bk.SweepSearchCV(model, {"alpha": [0.1, 1.0]}, cv=4).fit(X, y)
    events = []
    with pytest.MonkeyPatch.context() as patch, observe(events.append):
        patch.setattr(
            "bigkernel.search.sweeps.settings",
            lambda: type("", (), {"memory_limit_bytes": 100, "worker_base_bytes": 0}),
        )
        search = bk.SweepSearchCV(model, {"alpha": [0.1, 1.0]}, cv=4).fit(X, y)
    assert [event.what for event in events if isinstance(event, SweepStarted)] == ["tune", "moments"]
    assert_allclose(search.predict(X), expected.predict(X), atol=1e-5)


@pytest.mark.parametrize("arrays, sums, whitenings", [(1, 1, 0), (4, 4, 0), (6, 4, 2), (8, 4, 4)])
def test_whitenings_are_kept_as_far_as_they_fit_beside_the_sums_of_all_kernels(monkeypatch, arrays, sums, whitenings):
    limits = type("", (), {"memory_limit_bytes": arrays * 8 * M**2, "worker_base_bytes": 0})
    monkeypatch.setattr("bigkernel.search.sweeps.settings", lambda: limits)
    search = bk.SweepSearchCV(bk.KernelRidge(landmarks=Z), GRID, cv=4)
    (prepared,) = search._prepare(Given(X, y))
    kernels = prepared.work.data.kernels
    assert sum(kernel.white is not None for kernel in kernels) == min(arrays, 4)  # float32 is judged by them
    assert len(list(prepared.work.run(search._scoring))) == 4 * 8
    assert sum(kernel.sums is not None for kernel in kernels) == sums
    assert sum(kernel.white is not None for kernel in kernels) == whitenings


@pytest.mark.parametrize("seed", [0, np.random.RandomState(1), None])
def test_the_refit_has_the_landmarks_of_the_scores(seed):
    fold = np.arange(N) % 4  # no sweep sees all rows, so that no moments are kept
    pairs = [(np.flatnonzero((fold != i) & (fold != 3)), np.flatnonzero(fold == i)) for i in range(3)]
    choose, sampled = BasisChoice.choose, []

    def basis(self, rows, **options):
        chosen = choose(self, rows, **options)
        sampled.append(chosen.landmarks)
        return chosen

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BasisChoice, "choose", basis)
        model = bk.KernelRidge(bk.Gaussian(1.0), n_landmarks=9, random_state=seed)
        search = bk.SweepSearchCV(model, {"alpha": [0.1]}, cv=pairs).fit(X, y)
    assert_array_equal(search.best_estimator_.landmarks_, sampled[0])
    alone = bk.KernelRidge(bk.Gaussian(1.0), landmarks=sampled[0], **search.best_params_).fit(X, y)
    assert_allclose(search.predict(X), alone.predict(X), atol=1e-5)


class EndedError(Exception):
    """Stands for the end of the process."""


def ended_after(patch, segments):
    """The sweeps of this process end after so many segments."""
    engine, done = import_module("bigkernel.engine.executor"), []
    run = engine.run_segment

    def counted(*args):
        if len(done) == segments:
            raise EndedError
        done.append(1)
        return run(*args)

    patch.setattr(engine, "run_segment", counted)


@pytest.mark.parametrize("segments", [3, 7], ids=["in the moments", "in the counts"])
def test_a_search_that_was_ended_is_resumed_with_the_same_bits(segments, make_corpus, tmp_path):
    corpus = make_corpus(X, classes=(0, 1, 2), y=LABELS, domain=DOMAINS)
    model, options, _ = SEARCHES["classes, domains"]
    grid = {"kernel": [bk.Gaussian(1.0), bk.Matern(2.0)], "alpha": [0.01, 1.0]}
    search = bk.SweepSearchCV(model, **{**options, "param_grid": grid})
    with executing("serial"):
        expected = bits_of(search.fit(corpus))
    with pytest.MonkeyPatch.context() as patch, executing("serial", run=tmp_path / "run"):
        ended_after(patch, segments)
        with pytest.raises(EndedError):
            search.fit(corpus)
    events = []
    with executing("threads", run=tmp_path / "run", resume=True), observe(events.append):
        assert bits_of(search.fit(corpus)) == expected
    receipts = [event.receipt for event in events if isinstance(event, SegmentDone)]
    assert sum(receipt.rows for receipt in receipts) == 2 * N  # moments and counts
    assert sum(receipt.rows for receipt in receipts if receipt.resumed) >= segments * 25
    assert sorted(path.name for path in (tmp_path / "run").iterdir() if path.is_dir()) == ["scores", "tune"]


def test_a_finished_search_is_read_back_and_another_one_is_refused(make_corpus, tmp_path):
    corpus = make_corpus(X, y=y, group=GROUPS)
    search = bk.SweepSearchCV(bk.KernelRidge(bk.Gaussian(1.0), landmarks=Z), {"alpha": [0.1, 1.0]}, cv=3)
    with executing("serial", run=tmp_path / "run"):
        first = bits_of(search.fit(corpus))
    with executing("serial", run=tmp_path / "run"), pytest.raises(DataError, match="already holds a run"):
        search.fit(corpus)
    with pytest.MonkeyPatch.context() as patch, executing("serial", run=tmp_path / "run", resume=True):
        ended_after(patch, 0)
        assert bits_of(search.fit(corpus)) == first
        # other penalties need no other sweep
        more = search.set_params(param_grid={"alpha": [0.1, 1.0, 10.0]})
    with executing("serial", run=tmp_path / "run", resume=True):
        assert_array_equal(split_scores(more.fit(corpus))[:2], split_scores(search)[:2])
    for change in ({"cv": 4}, {"random_state": 1}, {"cv": np.arange(N) % 3}, {"estimator__kernel": bk.Linear()},
                   {"estimator__landmarks": Z[:-1]}):  # fmt: skip
        other = bk.SweepSearchCV(bk.KernelRidge(bk.Gaussian(1.0), landmarks=Z), {"alpha": [0.1, 1.0]}, cv=3).set_params(
            **change
        )
        with executing("serial", run=tmp_path / "run", resume=True), pytest.raises(ResumeMismatchError):
            other.fit(corpus)


def test_the_number_of_cores_of_the_driver_costs_no_resume(make_corpus, tmp_path):
    n, m = 400, 300
    rows = rng.normal(size=(n, D))
    with dask.config.set({"bigkernel.block-rows": 512}):
        corpus = make_corpus(rows, classes=(0, 1, 2), y=np.arange(n) % 3, chunk_rows=200)
        model = bk.KernelRidgeClassifier(bk.Gaussian(0.3), landmarks=rows[:m])
        search = bk.SweepSearchCV(model, {"alpha": [0.01, 1.0]}, cv=np.arange(n) // 3 % 2)
        with threadpool_limits(2, user_api="blas"), executing("serial", run=tmp_path / "run"):
            first = split_scores(search.fit(corpus))
        with threadpool_limits(1, user_api="blas"), executing("serial", run=tmp_path / "run", resume=True):
            assert_array_equal(split_scores(search.fit(corpus)), first)


@pytest.mark.parametrize("error", [KeyboardInterrupt, DataError])
def test_an_error_of_one_kernel_cancels_the_folds_of_the_others(error, monkeypatch):
    under_way, cancelled, begun = threading.Event(), threading.Event(), []

    def fold(number):
        begun.append(number)
        cancelled.wait(20)

    def solve(sums, pool):
        if sums.members[0].index == 0:
            under_way.wait(20)
            raise error("no more")
        folds = [pool.submit(fold, number) for number in range(8)]
        folds[-1].add_done_callback(lambda _: cancelled.set())
        under_way.set()
        return [one.result() for one in folds]

    before, sweeps = set(threading.enumerate()), import_module("bigkernel.search.sweeps")
    monkeypatch.setattr(sweeps, "solve_folds", solve)
    monkeypatch.setattr(sweeps, "processors", lambda: 2)
    with pytest.raises(error, match="no more"):
        bk.SweepSearchCV(bk.KernelRidge(landmarks=Z), {"kernel": [bk.Gaussian(1.0), bk.Gaussian(2.0)]}, cv=2).fit(X, y)
    assert len(begun) <= 2  # threads of the folds
    assert set(threading.enumerate()) <= before
