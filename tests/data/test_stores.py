"""Foreign zarr stores, on disk and over HTTP, are copied or refused."""

import functools
import os
import pickle
import sys
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler

import numpy as np
import pytest
import xarray as xr
import zarr
from sklearn.base import clone

from bigkernel import Gaussian, KernelRidge, SSSLClassifier, open_corpus, save_model, write_corpus
from bigkernel.data.cf import decoded
from bigkernel.data.ingest import ingest
from bigkernel.data.readers import open_source, stores
from bigkernel.engine.rows import as_rows
from bigkernel.errors import ChunkMissingError, ConfigError, DataError

X = np.random.default_rng(0).normal(size=(250, 6)).astype(np.float32)
Y = np.arange(250) % 5


@pytest.fixture
def store(tmp_path):
    """Write x and y as a group, with different chunks."""

    def write(path=None, *, x=X, y=Y, names=("x", "y"), chunks=(40, 4), shards=None, zarr_format=3, **store):
        path = str(tmp_path / "store.zarr") if path is None else path
        group = zarr.create_group(path, zarr_format=zarr_format, **store)
        tail = x.shape[2:]
        group.create_array(names[0], data=x, chunks=(*chunks, *tail), shards=shards)
        if y is not None:
            group.create_array(names[1], data=y, chunks=(70,))
        return path

    return write


@pytest.fixture
def served(tmp_path, serve):
    """A web server of the test's directory, which does not answer requests for paths that contain `hold`."""

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self):
            if self.server.hold is not None and self.server.hold in self.path:
                self.server.leave.wait(20)
                return
            super().do_GET()

        def log_message(self, *args):
            """Log nothing."""

    server = serve(functools.partial(Handler, directory=str(tmp_path)))
    server.hold = None
    return server


@pytest.mark.parametrize(
    "options", [{}, {"zarr_format": 2}, {"shards": (80, 8), "chunks": (20, 4)}, {"chunks": (250, 6)}]
)
def test_a_directory_of_any_chunks_is_copied(store, tmp_path, options):
    source = open_source(store(**options))
    assert (source.format, source.n_rows, source.n_features, source.dtype) == ("zarr", 250, 6, "float32")
    corpus = ingest(source, tmp_path / "c")
    assert np.array_equal(corpus.array("x")[:], X)
    assert np.array_equal(corpus.column("y"), Y)
    assert (corpus.info.name, corpus.info.classes) == ("store", (0, 1, 2, 3, 4))
    assert corpus.info.source == "store.zarr"


def test_arrays_are_given_by_name_or_as_a_single_array(store, tmp_path):
    path = store(names=("rows", "kinds"))
    assert open_source(path, x="rows", y="kinds").labelled
    assert not open_source(path, x="rows").labelled
    assert np.array_equal(np.concatenate([x for x, _ in open_source(path + "/rows").blocks()]), X)
    for options, expected in [
        ({}, "no array x or X or data in this group; pass x=NAME"),
        ({"x": "nope"}, "no array nope in this group"),
        ({"x": "rows", "y": "nope"}, "no array nope in this group; pass y=NAME"),
        ({"x": "kinds"}, r"kinds: expected numbers \(n, d\)"),
    ]:
        with pytest.raises(DataError, match=expected):
            open_source(path, **options)


def test_images_keep_their_shape_and_a_corpus_needs_the_name_of_its_matrix(store, tmp_path):
    images = np.arange(250 * 6, dtype=np.uint8).reshape(250, 3, 2)
    first = ingest(open_source(store(x=images, chunks=(50, 3))), tmp_path / "first")
    assert (first.info.image_shape, first.info.scale) == ((3, 2), 255.0)
    with pytest.raises(DataError, match=r"first: is a corpus, and its other columns .* would be lost.*--x x"):
        open_source(tmp_path / "first")
    again = ingest(open_source(tmp_path / "first", x="x"), tmp_path / "again")
    assert np.array_equal(again.array("x")[:], images.reshape(250, 6))
    assert again.columns == ("y",)


def test_a_store_is_copied_over_http(store, served, tmp_path):
    store()
    corpus = ingest(open_source(served.url + "/store.zarr"), tmp_path / "c")
    assert np.array_equal(corpus.array("x")[:], X)
    assert np.array_equal(corpus.column("y"), Y)
    assert corpus.info.source == f"{served.url}/store.zarr"


@pytest.mark.parametrize(
    "damage, over_http, kind, message",
    [
        (os.remove, False, ChunkMissingError, "chunk x/c/3/1 is missing"),
        (os.remove, True, ChunkMissingError, "chunk x/c/3/1 is missing"),
        (lambda chunk: os.truncate(chunk, 20), False, DataError, "cannot read rows 0:250"),
    ],
    ids=["missing", "missing over HTTP", "cut short"],
)
def test_a_missing_or_damaged_chunk_is_named_and_never_read_as_zeros(
    store, served, tmp_path, damage, over_http, kind, message
):
    path = store()
    damage(f"{path}/x/c/3/1")
    with pytest.raises(kind, match=f"store.zarr/x: {message}"):
        ingest(open_source(served.url + "/store.zarr" if over_http else path), tmp_path / "c")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("hold", ["zarr.json", "x/c/"])
def test_a_server_that_does_not_answer_is_refused_after_a_timeout(store, served, tmp_path, monkeypatch, hold):
    store()
    monkeypatch.setattr(stores, "READ_SECONDS", 0.2)
    served.hold = hold
    message = r"cannot read (its metadata|rows 0:250): the server cannot be reached or did not answer in time"
    with pytest.raises(DataError, match=message):
        ingest(open_source(served.url + "/store.zarr"), tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_url_or_directory_without_a_store_is_refused(served, tmp_path):
    for path, message in (
        (served.url + "/nothing.zarr", "expected a zarr array or group, found none"),
        (tmp_path / "nothing.zarr", "expected a folder for format 'zarr', found nothing"),
        ("http://127.0.0.1:1/a.zarr", "127.0.0.1:1/a.zarr: cannot read its metadata: the server cannot be reached"),
    ):
        with pytest.raises(DataError, match=message):
            open_source(path, format="zarr")


def test_users_and_passwords_in_a_url_are_never_shown(store, served, tmp_path, monkeypatch):
    store()
    secret = served.url.replace("http://", "http://zoe:secret@") + "/store.zarr?token=hush"
    assert stores.shown(secret) == served.url + "/store.zarr"
    bare = secret.partition("?")[0]
    for url in (secret, bare, bare.replace("store", "none"), "http://zoe:secret@127.0.0.1:1/x", "ftp://zoe:secret@h/x"):
        with pytest.raises((DataError, ConfigError)) as caught:
            ingest(open_source(url, y="nothing"), tmp_path / "c")
        assert not any(word in str(caught.value) for word in ("zoe", "secret", "hush"))
        assert caught.value.__cause__ is None


LISTED = "expected an address that begins with http, https, s3, memory"
FOREIGN = ("file:///tmp/x", "ftp://host/x", "simplecache::http://h/x", "http://a/b::http://user:secret@host/z")
URLS = {
    **dict.fromkeys((*FOREIGN, "github://a:b@/x"), (ConfigError, LISTED)),
    "http://host/rows.csv": (DataError, "format 'csv' can only be read from files; URLs are supported for zarr"),
}


@pytest.mark.parametrize("url", URLS)
def test_other_protocols_and_formats_are_refused_without_printing_a_password(url):
    kind, message = URLS[url]
    with pytest.raises(kind, match=message) as caught:
        open_source(url, format="csv" if url.endswith("csv") else "auto")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "most, message",
    [
        (40 * 24 - 1, "expected rows of a chunk of at most 959 bytes, found 6,000"),
        (5, r"store.zarr: .*zarr.json: expected at most 10 bytes, found [0-9,]+"),
    ],
)
def test_too_large_chunks_and_metadata_are_refused(store, monkeypatch, most, message):
    path = store()
    monkeypatch.setattr("bigkernel.data.readers.stores.MOST_CHUNK_BYTES", most)
    with pytest.raises(DataError, match=message):
        open_source(path)


def test_missing_s3fs_is_refused_with_the_package_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(ConfigError, match=r"s3: s3fs is not installed: pip install .*s3"):
        open_source("s3://bucket/x.zarr")


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_the_command_predicts_a_dataset_at_a_url(served, tmp_path, run):
    sea = xr.Dataset({"a": (("y", "x"), np.random.default_rng(0).normal(size=(20, 30)))})
    model = KernelRidge(Gaussian(0.3), n_landmarks=8, random_state=0).fit(sea, (sea.a**2).rename("b"))
    save_model(model, tmp_path / "model")
    sea.chunk({"y": 7}).to_zarr(tmp_path / "sea.zarr", zarr_format=3)
    run("predict", tmp_path / "model", f"{served.url}/sea.zarr", tmp_path / "out.zarr")
    xr.testing.assert_allclose(xr.open_zarr(tmp_path / "out.zarr").b.load(), model.predict(sea), rtol=1e-9)
    secret = served.url.replace("http://", "http://zoe:secret@")
    refused = run("predict", tmp_path / "model", f"{secret}/none.zarr", tmp_path / "other", code=3)
    assert "none.zarr" in refused.stderr
    assert "secret" not in refused.output


HOLED = np.where(np.arange(1500).reshape(250, 6) == 32, np.nan, X.astype(np.float64))
PACKINGS = {
    "scale": {"dtype": "int16", "scale_factor": 0.001, "_FillValue": -9999},
    "offset": {"dtype": "uint8", "scale_factor": 0.05, "add_offset": -5.0, "_FillValue": 255},
    "four bytes": {"dtype": "int32", "scale_factor": 1e-6, "_FillValue": -(2**31) + 1},
    "floats": {"dtype": "float32", "_FillValue": 1e20, "missing_value": 1e20},
    "scaled floats": {"dtype": "float32", "scale_factor": 0.5, "_FillValue": -9999.0},
    "unsigned": {"dtype": "int8", "_Unsigned": "true", "scale_factor": 0.05, "add_offset": -5.0, "_FillValue": -1},
    "another order of bytes": {"dtype": ">i2", "scale_factor": -0.001, "missing_value": -32767},
}


def packed(path, form=3, packing=PACKINGS["scale"], x=HOLED):
    """Let xarray write x, y = 5 + x₀, weights and classes, packed; return the group of the arrays."""
    columns = {"y": 5 + X[:, 0], "w": 1 + np.abs(X[:, 1]), "c": np.where(np.arange(250) == 7, np.nan, X[:, 0] > 0)}
    data = xr.Dataset({"x": (("s", "f"), x), **{name: ("s", values) for name, values in columns.items()}})
    scale = PACKINGS["scale"]
    packings = {"x": packing, "y": scale | {"add_offset": 5.0}, "w": scale, "c": {"dtype": "int8", "_FillValue": -9}}
    data.to_zarr(path, zarr_format=form, encoding=packings, consolidated=False)
    return zarr.open(path, mode="r")


@pytest.mark.parametrize("form", [2, 3])
@pytest.mark.parametrize("packing", PACKINGS.values(), ids=PACKINGS)
def test_packed_arrays_are_read_as_xarray_decodes_them(packing, form, tmp_path):
    array = packed(tmp_path / "x.zarr", form, packing)["x"]
    expected = xr.open_zarr(tmp_path / "x.zarr", consolidated=False).x.values
    source = as_rows(array).x
    assert np.isnan(expected).sum() == 1
    assert source.dtype == expected.dtype
    np.testing.assert_array_equal(source.read(0, 250), expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(source)).read(3, 9), expected[3:9])
    assert source.fingerprint() != replace(source, foreign=array).fingerprint()
    raw = xr.open_zarr(tmp_path / "x.zarr", consolidated=False, mask_and_scale=False).x
    if raw.dtype.kind == "f" and "scale_factor" in raw.attrs:
        with pytest.raises(DataError, match=r"x: .* may be scaled already"):
            as_rows(raw)
    else:
        for values in (raw, raw.load()):
            np.testing.assert_array_equal(as_rows(values).read(0, 250).x, expected)
    plain = xr.open_zarr(tmp_path / "x.zarr", consolidated=False).x
    assert decoded(plain) is plain


def test_every_entry_decodes_packed_arrays(tmp_path):
    group = packed(tmp_path / "x.zarr", x=X.astype(np.float64))
    data = xr.open_zarr(tmp_path / "x.zarr", consolidated=False).load()
    x, y, w, c = (data[name].values for name in "xywc")
    ridge = KernelRidge(Gaussian(sigma=1.0), landmarks=group["x"], n_landmarks=None, alpha=0.1)
    expected = KernelRidge(Gaussian(sigma=1.0), landmarks=x, n_landmarks=None, alpha=0.1).fit(x, y, sample_weight=w)
    raw = xr.open_zarr(tmp_path / "x.zarr", consolidated=False, mask_and_scale=False)
    for rows, targets, weights in (
        (group["x"], group["y"], group["w"]),
        (x, group["y"], group["w"]),
        (raw.x, raw.y, raw.w),
        (x, raw.y.load(), raw.w.load()),
    ):
        model = ridge.fit(rows, targets, sample_weight=weights)
        np.testing.assert_allclose(np.asarray(model.predict(rows)), expected.predict(x), rtol=1e-6)
        assert model.score(rows, targets, weights) == pytest.approx(expected.score(x, y, w), rel=1e-6)
    corpus = write_corpus(tmp_path / "x.corpus", group["x"], group["y"], weight=group["w"])
    np.testing.assert_array_equal(corpus[:], x)
    np.testing.assert_array_equal(corpus.column("weight")[:], w)
    ingest([open_source(str(tmp_path / "x.zarr"))], tmp_path / "y.corpus")
    np.testing.assert_array_equal(open_corpus(tmp_path / "y.corpus").column("y")[:], y)
    learner = SSSLClassifier(n_landmarks=20, n_components=5, random_state=0)
    one, other = clone(learner).fit(x, group["c"]), clone(learner).fit(x, c)
    np.testing.assert_array_equal(one.classes_, [0, 1])
    np.testing.assert_array_equal(one.predict(x), other.predict(x))


RANGES = {
    "stored": ({"valid_range": [-100, 150], "scale_factor": 0.1}, lambda raw: (raw < -100) | (raw > 150)),
    "in units": ({"valid_max": 15.0, "scale_factor": 0.1}, lambda raw: raw > 150),
    "turned": ({"valid_min": 10.0, "valid_max": 15.0, "scale_factor": -0.1}, lambda raw: (raw > -100) | (raw < -150)),
    "half": ({"valid_min": -10}, lambda raw: raw < -10),
    "raster": ({"nodata": -9}, lambda raw: raw == -9),
    "two": ({"missing_value": [-9, 9], "scale_factor": 1.0}, lambda raw: abs(raw) == 9),
    "unsigned": ({"valid_range": [0, -2], "_Unsigned": "true"}, lambda raw: raw == -1),
    "plain": ({"scale_factor": 1.0, "add_offset": 0.0, "units": "K"}, None),
    "bands": ({"scales": [1.0, 2.0]}, "scales"),
    "text": ({"scale_factor": "much", "valid_min": 0}, "scale_factor.*much"),
}


@pytest.mark.parametrize(("attributes", "missing"), RANGES.values(), ids=RANGES)
def test_ranges_and_rasters_and_attributes_that_are_not_understood(attributes, missing):
    raw = np.arange(-200, 200, dtype=np.int16).reshape(-1, 4)
    array = zarr.create_array({}, data=raw, attributes=attributes)
    if isinstance(missing, str):
        with pytest.raises(DataError, match=f"cannot be decoded by its attributes .*{missing}"):
            as_rows(array)
        return
    found = as_rows(array).x.read(0, 100)
    if missing is None:
        assert found.dtype == raw.dtype
    else:
        np.testing.assert_array_equal(np.isnan(found), missing(raw))
    scaled = (raw.astype("u2") if "_Unsigned" in attributes else raw) * attributes.get("scale_factor", 1)
    np.testing.assert_allclose(found[~np.isnan(found)], scaled[~np.isnan(found)], rtol=1e-6)
