"""Runs: a resumed job gives the same bits, another job is refused, and damaged results are computed again."""

import dataclasses
import json
import re
import shutil

import dask
import numpy as np
import pytest
import zarr
from drivers import leftovers
from numpy.testing import assert_array_equal
from probes import Sums, Touch, bits

import bigkernel
from bigkernel.config import settings
from bigkernel.data import atomic_write, check, zarr_arrays
from bigkernel.data.fingerprint import fingerprint
from bigkernel.data.run_directory import ArrayRef, Run, attach, detach, read_sealed, write_sealed
from bigkernel.engine.cards import HOST_CARD
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import identity, plan_sweep, sweep
from bigkernel.engine.tasks import SweepTask, merge, run_segment
from bigkernel.errors import DataError, ResumeMismatchError
from bigkernel.kernels.feature_maps import LandmarkMap
from bigkernel.kernels.functions import Gaussian, Matern
from bigkernel.statistics.moments import MomentStatistic, Targets
from bigkernel.streaming.plan import Receipt, merge_tree
from bigkernel.streaming.row_maps import Scale, Standardize

N, D = 110, 4
rng = np.random.default_rng(9)
X = rng.normal(size=(N, D)) * 10.0 ** rng.integers(-8, 8, (N, 1))  # the order of summation shows in the bits
Y = rng.integers(0, 3, N)
LANDMARKS = rng.normal(size=(5, D))

pytestmark = pytest.mark.usefixtures("small_steps")
SMALL_STEPS = {"bigkernel.chunk-bytes": 1024, "bigkernel.min-segments": 5, "bigkernel.block-rows": 16}


@pytest.fixture
def touch(tmp_path):
    return Touch(str(tmp_path / "touched"))


@pytest.fixture
def clean():
    """The digest of a sweep without a run."""
    return zarr_arrays.digest(sweep(as_rows(X), Sums(D), client="serial").total)


def test_a_finished_run_is_read_and_not_recomputed(tmp_path, touch, clean):
    first = sweep(as_rows(X), Sums(D, touch), client="serial", run=tmp_path / "run")
    computed = touch.starts()
    assert len(computed) == 5
    with pytest.raises(DataError, match=r"already holds a run; --resume \(in Python resume=True\) continues it; or"):
        sweep(as_rows(X), Sums(D, touch), client="serial", run=tmp_path / "run")
    with dask.config.set({"bigkernel.stall-seconds": 77, "bigkernel.retries": 0}):  # settings that change no bit
        again = sweep(as_rows(X), Sums(D, touch), client="serial", run=tmp_path / "run", resume=True)
    assert touch.starts() == computed
    assert bits(first) == bits(again) == clean
    assert not any(receipt.resumed for receipt in first.receipts)
    assert all(receipt.resumed for receipt in again.receipts)
    assert again.report()["resumed_segments"] == 5
    # one partial result is left, and a receipt for every node
    assert [path.name for path in (tmp_path / "run" / "partials").iterdir()] == ["3-0"]
    nodes = {f"0-{i}" for i in range(5)} | {node for node, _, _ in merge_tree(5)}
    assert {path.stem for path in (tmp_path / "run" / "receipts").iterdir()} == nodes
    receipt = Run(str(tmp_path / "run")).receipt("3-0")
    assert receipt is not None
    assert (receipt.start, receipt.stop, receipt.rows) == (0, N, N)


# ---------------------------------------------------------------- damage


def flip(file):
    content = file.read_bytes()
    file.write_bytes(bytes([content[0] ^ 4]) + content[1:])


def chunk_of(node):
    return next(file for file in sorted((node / "sum").rglob("*")) if file.is_file() and file.name != "zarr.json")


def rewrite(receipt, **changed):
    """Change entries of a receipt, and seal it again."""
    write_sealed(receipt, {**read_sealed(receipt), **changed})


DAMAGE = {  # of the partial result of a segment, and of its receipt
    "bit of a chunk": lambda partial, receipt: flip(chunk_of(partial)),
    "truncated chunk": lambda partial, receipt: chunk_of(partial).write_bytes(b"\0" * 7),
    "zeroed chunk": lambda partial, receipt: chunk_of(partial).write_bytes(bytes(chunk_of(partial).stat().st_size)),
    "deleted chunk": lambda partial, receipt: chunk_of(partial).unlink(),
    "chunk of another": lambda partial, receipt: shutil.copy(chunk_of(partial.with_name("0-3")), chunk_of(partial)),
    "truncated metadata": lambda partial, receipt: (partial / "sum" / "zarr.json").write_text("{"),
    "deleted metadata": lambda partial, receipt: (partial / "zarr.json").unlink(),
    "deleted receipt": lambda partial, receipt: receipt.unlink(),
    "empty receipt": lambda partial, receipt: receipt.write_text(""),
    "receipt of another kind": lambda partial, receipt: receipt.write_text("[1, 2]"),
    "receipt of another segment": lambda partial, receipt: shutil.copy(receipt.with_name("0-3.json"), receipt),
    "text for a number": lambda partial, receipt: rewrite(receipt, elapsed="long"),
    "text for a time of a stage": lambda partial, receipt: rewrite(receipt, seconds={"read": "long"}),
    "number that is none": lambda partial, receipt: rewrite(receipt, ended=float("nan")),
    "name of another segment": lambda partial, receipt: rewrite(receipt, node="0-3"),
    "directory for a receipt": lambda partial, receipt: [receipt.unlink(), (receipt / "inside").mkdir(parents=True)],
    "directory for a chunk": lambda partial, receipt: [place := chunk_of(partial), place.unlink(), place.mkdir()],
    "file for a partial": lambda partial, receipt: [shutil.rmtree(partial), partial.write_text("")],
    "link to nowhere for a receipt": lambda partial, receipt: [receipt.unlink(), receipt.symlink_to("nowhere")],
}


def publish_segments(rows, statistic, path):
    """Publish all segments of a run, and merge none."""
    store = Run(str(path))
    steps = plan_sweep(rows, statistic)
    store.begin(identity(rows, statistic, steps, HOST_CARD), resume=False)
    job = SweepTask(statistic, settings().block_rows, store)
    return job, [run_segment(job, rows, segment) for segment in steps.segments]


@pytest.mark.parametrize("damage", list(DAMAGE))
def test_a_damaged_segment_is_recomputed(tmp_path, touch, clean, damage):
    rows, statistic = as_rows(X), Sums(D, touch)
    publish_segments(rows, statistic, tmp_path / "run")
    before = touch.starts()
    DAMAGE[damage](tmp_path / "run" / "partials" / "0-2", tmp_path / "run" / "receipts" / "0-2.json")
    resumed = sweep(rows, statistic, client="serial", run=tmp_path / "run", resume=True)
    assert bits(resumed) == clean
    assert sorted(touch.starts()) == sorted([*before, 44])
    assert [receipt.resumed for receipt in resumed.receipts] == [True, True, False, True, True]
    assert leftovers(tmp_path / "run") == []


def test_a_damaged_merge_is_recomputed_from_its_segments(tmp_path, touch, clean):
    rows, statistic = as_rows(X), Sums(D, touch)
    job, partials = publish_segments(rows, statistic, tmp_path / "run")
    merge(job, "1-1", partials[2], partials[3])
    flip(chunk_of(tmp_path / "run" / "partials" / "1-1"))
    before = touch.starts()
    resumed = sweep(rows, statistic, client="serial", run=tmp_path / "run", resume=True)
    assert bits(resumed) == clean
    assert resumed.report()["damaged_partials"] == 1
    assert touch.starts() == sorted([*before, 44, 66])


def test_the_digest_of_a_partial_result_is_checked(tmp_path):
    store = Run(str(tmp_path / "run"))
    store.begin({"a": "1"}, resume=False)
    values = {"sum": X[0].copy(), "empty": np.zeros((2, 0))}
    receipt = store.publish(Receipt("0-0", 0, 1), values)
    assert receipt.digest == zarr_arrays.digest(values)
    back = store.partial("0-0", receipt.digest)
    assert_array_equal(back["sum"], values["sum"])
    assert back["empty"].shape == (2, 0)
    with pytest.raises(DataError, match=r"partials/0-0: expected digest 000.* as in the receipt"):
        store.partial("0-0", "0" * 64)
    assert store.finished("0-0") == dataclasses.replace(receipt, resumed=True)
    assert store.finished("0-1") is None
    store.discard("0-0", "never there")
    assert store.finished("0-0") is None


# ---------------------------------------------------------------- another job


def moments(landmarks=LANDMARKS, kernel=None, dtype="f8", classes=(0, 1, 2), unlabelled="drop"):
    features = LandmarkMap(kernel or Gaussian(1.0), landmarks, np.dtype(dtype))
    return MomentStatistic(features, Targets(len(classes), np.array(classes)), unlabelled)


def changed(values, at=0):
    values = values.copy()
    values[at] += 1
    return values


OTHER_JOBS = {
    "rows": lambda: (as_rows(changed(X), Y), moments()),
    "rows, another dtype": lambda: (as_rows(X.astype("f4"), Y), moments()),
    "columns.y": lambda: (as_rows(X, (Y + 1) % 3), moments()),
    "columns.weight": lambda: (as_rows(X, Y, weight=np.ones(N)), moments()),
    "row_maps": lambda: (as_rows(X, Y).map(Scale(2.0)), moments()),
    "row_maps, others": lambda: (as_rows(X, Y).map(Standardize(np.ones(D), np.ones(D))), moments()),
    "statistic.features.kernel.sigma": lambda: (as_rows(X, Y), moments(kernel=Gaussian(1.0 + 1e-15))),
    "statistic.features.kernel": lambda: (as_rows(X, Y), moments(kernel=Matern(1.0))),
    "statistic.features.landmarks": lambda: (as_rows(X, Y), moments(changed(LANDMARKS))),
    "statistic.features.dtype": lambda: (as_rows(X, Y), moments(dtype="f4")),
    "statistic.targets.classes": lambda: (as_rows(X, Y), moments(classes=(0, 1, 2, 3))),
    "statistic.unlabelled": lambda: (as_rows(X, Y), moments(unlabelled="keep")),
}


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """The finished run of `moments()`, which no test changes."""
    path = tmp_path_factory.mktemp("finished") / "run"
    with dask.config.set(SMALL_STEPS):
        sweep(as_rows(X, Y), moments(), client="serial", run=path)
    return path


@pytest.mark.parametrize("name", list(OTHER_JOBS))
def test_another_job_is_refused_with_the_changed_field(finished_run, name):
    before = {path: path.stat().st_mtime_ns for path in finished_run.rglob("*")}
    rows, statistic = OTHER_JOBS[name]()
    with pytest.raises(ResumeMismatchError, match=r"job: [\w.]+ (was '?\w+.* now it is '?\w+|has other)") as caught:
        sweep(rows, statistic, client="serial", run=finished_run, resume=True)
    field = name.split(",")[0]
    assert re.search(rf"job: {field} (was|has other values than before \(float64 \()", str(caught.value))
    assert {path: path.stat().st_mtime_ns for path in finished_run.rglob("*")} == before


@pytest.mark.parametrize("package", [np, zarr, dask, bigkernel], ids=lambda package: package.__name__)
def test_another_version_of_a_package_is_refused(finished_run, monkeypatch, package):
    monkeypatch.setattr(package, "__version__", "99.9")
    with pytest.raises(ResumeMismatchError, match=rf"versions was .* now it is .*{package.__name__} 99.9"):
        sweep(as_rows(X, Y), moments(), client="serial", run=finished_run, resume=True)


def test_another_corpus_under_the_same_path_is_refused(tmp_path, make_corpus):
    noise = np.random.default_rng(0).integers(0, 256, (2, N, D), dtype=np.uint8)  # both of one size on disk
    sweep(as_rows(make_corpus(noise[0])), Sums(D), client="serial", run=tmp_path / "run")
    shutil.rmtree(tmp_path / "corpus")
    with pytest.raises(ResumeMismatchError, match="rows was"):
        sweep(as_rows(make_corpus(noise[1])), Sums(D), client="serial", run=tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"job": null}', b'{"job": 3}', b'{"job": []}', b"\xff\xfe"]
)
def test_an_unreadable_manifest_is_refused(finished_run, tmp_path, content):
    shutil.copytree(finished_run, tmp_path / "run")
    (tmp_path / "run" / "manifest.json").write_bytes(content)
    with pytest.raises(ResumeMismatchError, match="run"):
        sweep(as_rows(X, Y), moments(), client="serial", run=tmp_path / "run", resume=True)


# ---------------------------------------------------------------- large arrays of a job


def test_large_arrays_are_stored_by_digest(tmp_path):
    store = Run(str(tmp_path / "run"))
    store.begin({}, resume=False)
    large, small = np.random.default_rng(0).normal(size=(3000, 4)), np.ones(3)
    statistic = MomentStatistic(LandmarkMap(Gaussian(small[:1].repeat(4)), large), Targets(3, np.arange(3)))
    detached = detach(statistic, store)
    assert detached.features.landmarks == ArrayRef(zarr_arrays.digest({"values": large}))
    assert_array_equal(detached.features.kernel.sigma, np.ones(4))
    assert statistic.features.landmarks is large
    assert [path.name for path in (tmp_path / "run" / "arrays").iterdir()] == [zarr_arrays.digest({"values": large})]
    attached = attach(detached, store.path)
    assert_array_equal(attached.features.landmarks, large)
    assert fingerprint(attached) == fingerprint(statistic)
    assert detach(statistic, store).features.landmarks == detached.features.landmarks
    in_tuple = detach(Targets(1, classes=(large.ravel(), 3)), store)
    assert isinstance(in_tuple.classes[0], ArrayRef)
    assert_array_equal(attach(in_tuple, store.path).classes[0], large.ravel())


def test_a_changed_array_of_a_job_is_refused(tmp_path):
    store = Run(str(tmp_path / "run"))
    store.begin({}, resume=False)
    reference = store.keep(np.arange(10.0))
    folder = tmp_path / "run" / "arrays" / reference.digest
    zarr_arrays.publish(folder, "array", {"values": np.arange(10.0) + 1}, {}, overwrite=True)
    with pytest.raises(DataError, match="does not match this digest"):
        attach(reference, store.path)


def test_a_fingerprint_depends_on_content_alone():
    a = moments()
    assert fingerprint(a) == fingerprint(moments(LANDMARKS.copy(), Gaussian(1.0)))
    variants = [
        a, moments(kernel=Matern(1.0)), moments(changed(LANDMARKS)), 1, 1.0, "1", None, True, [1, [2, 3]], [[1, 2], 3],
        [1, 2, 3], {"a": 1}, {"b": 1}, {"a": "1"}, np.arange(3), np.arange(3.0), (), [()], Scale(2.0), Scale(3.0),
    ]  # fmt: skip
    assert len({fingerprint(value) for value in variants}) == len(variants)
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint((1, 2)) == fingerprint([1, 2])


def test_a_json_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.json"
    atomic_write.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        atomic_write.write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_a_json_file_is_synchronised_before_it_is_renamed(tmp_path, synchronised):
    atomic_write.write_json(tmp_path / "a.json", {"a": 1})
    assert synchronised.before_renames == [{(tmp_path / "a.json").stat().st_ino}]


def test_an_array_without_dimensions_is_checked(tmp_path):
    array = zarr.create_array(tmp_path / "a", shape=(), dtype="f8")
    array[...] = 3.0
    (checked,) = check.check_chunks(array, "a", lambda *_: "")
    assert not checked.damage
