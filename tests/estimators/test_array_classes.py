"""Dask arrays of other classes and zarr arrays of other stores give what arrays in memory do, or are refused."""

import os
import subprocess
import sys
from importlib import import_module

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from numpy.testing import assert_allclose
from sklearn.pipeline import make_pipeline
from zarr.storage import FsspecStore, MemoryStore, ObjectStore, StorePath

from bigkernel import KernelRidge, KernelRidgeClassifier, Standardizer, SweepSearchCV, executing, write_corpus
from bigkernel.data.dask_arrays import as_dask_array
from bigkernel.engine.grid_store import GridWriter
from bigkernel.errors import ConfigError, DataError

X = np.random.default_rng(0).normal(size=(400, 3))
Y = np.sin(X[:, 0])
PLACES = {"y": np.arange(20.0), "x": np.arange(20.0)}
SEA = xr.Dataset({"a": (("y", "x"), X[:, 0].reshape(20, 20)), "b": (("y", "x"), X[:, 1].reshape(20, 20))}, PLACES)
HEAT = (SEA.a * SEA.b).rename("heat")


def check_class(made, tmp_path):
    """Fit, predict, transform, search, score and write arrays that the module `made` makes."""
    lazy, target = made.from_array(X, chunks=(100, 3)), made.from_array(Y, chunks=(100,))
    model = KernelRidge(n_landmarks=20, random_state=0)
    expected = KernelRidge(n_landmarks=20, random_state=0).fit(da_rows(X), Y).predict(X)
    assert_allclose(model.fit(lazy, target).predict(lazy).compute(), expected, atol=1e-10)
    pipeline = make_pipeline(Standardizer(), model).fit(lazy, target)
    assert pipeline.score(lazy, target) == pytest.approx(pipeline.score(X, Y))
    classes = KernelRidgeClassifier(n_landmarks=20, random_state=0).fit(lazy, (target > 0).astype(int))
    assert classes.score(lazy, (target > 0).astype(int)) == pytest.approx(classes.score(X, (Y > 0).astype(int)))
    assert SweepSearchCV(model, {"alpha": [0.1, 1.0]}, cv=2).fit(lazy, target).best_score_ > 0.5
    corpus = write_corpus(tmp_path / "c", lazy * 2, target)
    assert_allclose(corpus[:], 2 * X)
    sea = xr.Dataset({name: (("y", "x"), made.from_array(SEA[name].values, chunks=(5, 20))) for name in ("a", "b")})
    model = KernelRidge(n_landmarks=40, random_state=0)
    assert_allclose(model.fit(sea, HEAT).predict(sea).values, model.predict(SEA).values, atol=1e-10)


def da_rows(values):
    """A Dask array of dask's own class, with planning or without."""
    return as_dask_array(values).rechunk({0: 100})


def test_arrays_of_the_package_dask_array(tmp_path):
    made = import_module("dask_array")
    assert not isinstance(made.from_array(X), da.Array)
    check_class(made, tmp_path)


@pytest.mark.slow
def test_arrays_of_query_planning(tmp_path):
    code = (
        "import sys, pathlib, dask.array as da, test_array_classes as here\n"
        "from dask.array.core import Array\n"
        "assert da.Array is not Array\n"
        "here.check_class(da, pathlib.Path(sys.argv[1]))\n"
    )
    paths = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    planned = {**os.environ, "DASK_ARRAY__QUERY_PLANNING": "True", "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=planned, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def make_store(name, place):
    """Return a store for writing, and a function that makes it readable in other processes."""
    if name == "icechunk":
        icechunk = import_module("icechunk")
        repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(place)))
        session = repository.writable_session("main")
        return session.store, lambda: session.commit("rows") and repository.readonly_session("main").store
    if name == "obstore":
        store = ObjectStore(import_module("obstore.store").LocalStore(place, mkdir=True))
    else:
        wrapped = import_module("fsspec.implementations.asyn_wrapper").AsyncFileSystemWrapper
        files = import_module("fsspec.implementations.local").LocalFileSystem(auto_mkdir=True)
        store = FsspecStore(wrapped(files, asynchronous=True), path=str(place))
    return store, lambda: store


@pytest.mark.parametrize("name", ["obstore", "fsspec", "icechunk"])
def test_workers_read_any_store_and_xarray_writes_to_it(name, client, tmp_path):
    writable, publish = make_store(name, tmp_path / name)
    zarr.create_group(writable).create_array("x", data=X, chunks=(100, 3))
    plain = {"zarr_format": 3, "consolidated": False}
    SEA.chunk({"y": 5}).to_zarr(writable, group="sea", **plain)
    model = KernelRidge(n_landmarks=40, random_state=0).fit(SEA, HEAT)
    filled = model.predict(SEA)
    (filled * np.nan).to_zarr(writable, group="out", **plain)
    filled[5:10].to_zarr(writable, group="out", region="auto", **plain)
    store = publish()
    with executing(client):
        x = zarr.open_group(store, mode="r")["x"]
        expected = KernelRidge(n_landmarks=20, random_state=0).fit(da_rows(X), Y).predict(X)
        assert_allclose(KernelRidge(n_landmarks=20, random_state=0).fit(x, Y).predict(X), expected, atol=1e-10)
    with client.as_current():
        lazy = model.predict(xr.open_zarr(store, group="sea", consolidated=False))
        assert_allclose(lazy.compute().values, filled.values, atol=1e-10)
    written = xr.open_zarr(store, group="out", consolidated=False).heat.values
    assert_allclose(written[5:10], filled.values[5:10])
    assert np.isnan(written[:5]).all()


MODEL = KernelRidge(n_landmarks=40, random_state=0)
BLOCKS = SEA.chunk({"y": 5, "x": 10})


@pytest.mark.parametrize("name", ["obstore", "fsspec", "icechunk", "memory"])
def test_predictions_in_any_store_are_those_on_disk(name, tmp_path):
    model = MODEL.fit(SEA, HEAT)
    if name == "memory":
        store, publish = MemoryStore(), None
    else:
        store, publish = make_store(name, tmp_path / name)
    place = StorePath(store, "maps/heat")
    zarr.create_group(place / "other")
    with pytest.raises(DataError, match=r"expected an empty place, .* found maps/heat/other/zarr\.json"):
        model.predict_to(BLOCKS, place)
    with pytest.raises(DataError, match=r"expected an empty place, .* found maps/heat/other/zarr\.json"):
        model.predict_to(BLOCKS, place, overwrite=True)
    place = StorePath(store, "map")
    for _ in range(2):
        model.predict_to(BLOCKS, tmp_path / "disk", return_std=True, overwrite=True)
        model.predict_to(BLOCKS, place, return_std=True, overwrite=True)
    with pytest.raises(
        DataError, match="expected an empty place, or predictions and overwrite=True, found predictions"
    ):
        model.predict_to(BLOCKS, place)
    rows = MODEL.fit(X, Y).predict_to(da_rows(X), StorePath(store, "rows"))
    assert_allclose(rows["prediction"][:], MODEL.predict(X))
    readable = publish() if publish else store
    map_there = xr.open_zarr(readable, group="map", consolidated=False)
    xr.testing.assert_identical(map_there, xr.open_zarr(tmp_path / "disk"))


@pytest.mark.parametrize("lost", [False, True])
def test_no_reader_finds_predictions_in_a_store_before_all_are_there(lost, tmp_path, monkeypatch):
    model, store, update, written = MODEL.fit(SEA, HEAT), MemoryStore(), GridWriter.update, []

    def until_stopped(self, total, chunk):
        with pytest.raises(FileNotFoundError):
            zarr.open_group(store, mode="r")
        if len(written) == 5:
            written.clear()
            raise OSError("stopped")
        written.append(chunk.start)
        update(self, total, chunk)

    monkeypatch.setattr(GridWriter, "update", until_stopped)
    with dask.config.set({"bigkernel.chunk-bytes": 1024, "bigkernel.min-segments": 8, "bigkernel.retries": 0}):
        with executing("serial"), pytest.raises(DataError, match="stopped"):
            model.predict_to(BLOCKS, store)
        with executing("serial", run=tmp_path / "run"), pytest.raises(DataError, match="stopped"):
            model.predict_to(BLOCKS, store, overwrite=True)
        with pytest.raises(DataError, match="found unfinished predictions"):
            model.predict_to(BLOCKS, store)
        if lost:
            del store._store_dict["heat/c/0/0"]
        with executing("serial", run=tmp_path / "run", resume=True):
            if lost:
                monkeypatch.undo()
            model.predict_to(BLOCKS, store)
    assert lost or written == [250, 300, 350]
    xr.testing.assert_allclose(xr.open_zarr(store).heat, model.predict(SEA), rtol=1e-12)


def test_places_that_cannot_hold_predictions_are_refused():
    model = MODEL.fit(SEA, HEAT)
    read_only, once = MemoryStore(read_only=True), {"max_retries": 0}
    nowhere = import_module("obstore.store").HTTPStore("https://127.0.0.1:9", retry_config=once)
    for target, error, message in (
        (read_only, ConfigError, "expected a store whose objects can be written and removed"),
        ("gs://bucket/out", ConfigError, "expected an address that begins with"),
        ("memory://out/p.csv", ConfigError, "found the name of a table"),
        (ObjectStore(nowhere), DataError, "cannot read its objects: GenericError"),
    ):
        with pytest.raises(error, match=message):
            model.predict_to(BLOCKS, target)
    foreign = MemoryStore()
    zarr.create_array(foreign, name="manifest/of-others", shape=(3,), dtype="f8")
    del foreign._store_dict["zarr.json"]
    with pytest.raises(DataError, match="expected an empty place"):
        model.predict_to(BLOCKS, foreign, overwrite=True)


def test_stores_that_workers_cannot_open_are_refused(client, tmp_path):
    model = KernelRidge(n_landmarks=20, random_state=0)
    memory = FsspecStore.from_url("memory://rows-of-this-process")
    for store, message in (
        (memory, "expected the same data on all workers"),
        (ObjectStore(import_module("obstore.store").MemoryStore()), "other processes"),
    ):
        x = zarr.create_group(store).create_array("x", data=X, chunks=(100, 3))
        assert_allclose(model.fit(x, Y).predict(X), model.fit(da_rows(X), Y).predict(X))
        with executing(client), pytest.raises(DataError, match=message):
            model.fit(x, Y)
    of_process = ObjectStore(import_module("obstore.store").MemoryStore())
    with executing(client), pytest.raises(DataError, match="cannot be sent to workers; take a store of files"):
        model.predict_to(da_rows(X), of_process)
    store, _ = make_store("obstore", tmp_path / "out")
    with executing(client):
        assert_allclose(model.predict_to(da_rows(X), store)["prediction"][:], model.predict(X), atol=1e-10)


def test_codecs_of_driver_and_workers_must_be_alike(client):
    elsewhere = zarr.config.set({"codec_pipeline.path": "somewhere.Else"})
    refused = pytest.raises(ConfigError, match=r"codec_pipeline\.path of zarr .*, expected somewhere\.Else")
    with elsewhere, executing(client), refused:
        KernelRidge(n_landmarks=20).fit(da_rows(X), Y)
