"""Foreign zarr stores, on disk and over HTTP, are copied or refused."""

import functools
import os
import sys
from http.server import SimpleHTTPRequestHandler

import numpy as np
import pytest
import xarray as xr
import zarr

from bigkernel import Gaussian, KernelRidge, save_model
from bigkernel.data.ingest import ingest
from bigkernel.data.readers import open_source, stores
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
