"""Sparse corpora: written, opened, damaged, gone on with and fitted as dense ones are, and never dense on the way."""

import gzip
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.datasets import dump_svmlight_file
from sklearn.pipeline import make_pipeline
from zarr.storage import LocalStore

from bigkernel import (
    Gaussian,
    KernelRidge,
    KernelRidgeClassifier,
    Laplacian,
    Nystroem,
    Ridge,
    SSSLClassifier,
    SweepSearchCV,
    UnitNormalizer,
    executing,
    open_corpus,
    write_corpus,
)
from bigkernel.cli import main
from bigkernel.data import seals, zarr_arrays
from bigkernel.data.convert import ingest
from bigkernel.data.corpus import CorpusInfo, CorpusWriter
from bigkernel.data.readers import open_source
from bigkernel.engine.rows import as_rows
from bigkernel.errors import ChunkCorrupt, ChunkMissing, DataError

N, D, CHUNK_ROWS = 230, 300, 20
RNG = np.random.default_rng(4)
X = sparse.random_array((N, D), density=0.03, rng=RNG, format="csr", dtype=np.float32)
X.data = np.round(X.data * 64) / 16 - 2  # exact in text
DENSE = X.toarray()
LABELS = (DENSE[:, :40].sum(axis=1) > DENSE[:, 40:90].sum(axis=1)).astype(int)


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path / "sparse", X, LABELS, weight=np.linspace(1, 2, N), chunk_rows=CHUNK_ROWS)


@pytest.fixture
def dense(tmp_path):
    return write_corpus(tmp_path / "dense", DENSE, LABELS, weight=np.linspace(1, 2, N), chunk_rows=CHUNK_ROWS)


def content(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in Path(path).rglob("*") if file.is_file()}


def test_rows_come_back_as_they_were_written(tmp_path):
    rows = X.copy()
    rows.data[X.indptr[40] : X.indptr[61]] = 0  # a chunk without values
    rows.eliminate_zeros()
    corpus, dense = write_corpus(tmp_path / "c", rows, LABELS, chunk_rows=CHUNK_ROWS), rows.toarray()
    assert (corpus.shape, corpus.sparse, corpus.entries, corpus.dtype) == ((N, D), True, rows.nnz, "float32")
    for index in (slice(None), slice(19, 61), slice(200, 10, -1), slice(5, 200, 7), [229, 3, 3, 41], dense[:, 0] > 0):
        found = corpus[index]
        assert sparse.issparse(found)
        assert_array_equal(found.toarray(), dense[index])
    assert_array_equal(corpus[7], dense[7])
    assert_array_equal(np.asarray(corpus), dense)
    assert_array_equal(list(corpus), dense)
    assert_array_equal(corpus.head(3)["x"], dense[:3])
    assert {name for name, *_ in corpus.check()} == {"lengths", "indices", "values", "places", "y"}
    with pytest.raises(DataError, match="its rows are sparse"):
        _ = corpus.x
    lazy = as_rows(corpus)
    assert_array_equal(lazy.take(np.array([0, 45, 228])), dense[[0, 45, 228]])
    assert_array_equal(lazy.window(30, 90).read(15, 35).x.toarray(), dense[45:65])


def test_matrices_and_pieces_are_stored_sparse_where_that_is_less(tmp_path):
    full = sparse.csr_array(RNG.normal(size=(30, 90)))
    assert not write_corpus(tmp_path / "full", full).sparse
    assert not write_corpus(tmp_path / "narrow", X[:, :10]).sparse
    shuffled = X[:, ::-1][:, ::-1].tocsc().tocsr()
    pieces = iter([(shuffled[:50], LABELS[:50]), (DENSE[50:], LABELS[50:])])
    made = write_corpus(tmp_path / "pieces", pieces, chunk_rows=CHUNK_ROWS)
    assert_array_equal(made[:].toarray(), DENSE)
    copy = write_corpus(tmp_path / "copy", made, chunk_rows=7)
    assert_array_equal(copy[:].toarray(), DENSE)
    whole = CorpusInfo("bytes", sparse_features=D)
    with (
        pytest.raises(DataError, match=r"the value 0\.5 cannot be stored as uint8"),
        CorpusWriter(tmp_path / "bytes", n_features=D, dtype="u1", columns={}, info=whole) as writer,
    ):
        writer.append(x=sparse.csr_array(([0.5], ([0], [2])), shape=(1, D)))
    assert not (tmp_path / "bytes").exists()


def test_some_rows_are_read_from_the_chunks_that_they_are_in(tmp_path, monkeypatch):
    rows = sparse.random_array((4000, 2000), density=0.05, rng=RNG, format="csr", dtype=np.float32)
    corpus, keys, get = as_rows(write_corpus(tmp_path / "c", rows, chunk_rows=400)), [], LocalStore.get

    async def counted(self, key, *arguments, **options):
        keys.append(key)
        return await get(self, key, *arguments, **options)

    monkeypatch.setattr(LocalStore, "get", counted)
    assert_array_equal(corpus.x.part(800, 1200).read(810, 812).toarray(), rows[810:812].toarray())
    read = [key for key in keys if "/c/" in key]
    assert len(read) == len(set(read)) <= 5  # one of lengths, one or two of indices and values
    assert corpus.row_bytes == pytest.approx(8 * rows.nnz / 4000, rel=0.05)


@pytest.mark.parametrize("name, damage", [("values", "flipped"), ("indices", "lost"), ("lengths", "swapped")])
def test_damage_has_a_name_for_check_and_for_a_fit(corpus, name, damage):
    model, rows = KernelRidge(n_landmarks=5, random_state=0), as_rows(corpus)
    chunk = Path(corpus.path, name, "c", "1")
    if damage == "flipped":
        bytes_ = chunk.read_bytes()
        chunk.write_bytes(bytes([bytes_[0] ^ 4]) + bytes_[1:])
    elif damage == "lost":
        chunk.unlink()
    else:
        chunk.write_bytes(chunk.with_name("0").read_bytes())
    with pytest.raises((ChunkCorrupt, ChunkMissing), match=f"{name}.*1|places"):
        model.fit(rows)
    with pytest.raises(DataError, match=name):
        list(corpus.check())
    result = CliRunner().invoke(main, ["check", corpus.path])
    assert result.exit_code == 3


@pytest.mark.parametrize("column, place", [(D, 0), (-1, 0), (0, 1)])
def test_columns_that_no_row_can_have_are_refused_and_not_computed_with(corpus, column, place):
    array = zarr_arrays.zarr.open_group(corpus.path, mode="r+")["indices"]
    values = array[:]
    values[place] = column
    array[:] = values
    seals.write(Path(corpus.path))  # as an attacker would
    with pytest.raises(ChunkCorrupt, match="columns that do not rise"):
        open_corpus(corpus.path)[:20]


def test_files_labels_and_splits_are_those_of_dense_rows_and_options_say_which_are_sparse(tmp_path):
    for name, rows in (("a", slice(0, 100)), ("b", slice(100, N))):
        with (gzip.open if name == "b" else open)(tmp_path / name, "wb") as file:
            dump_svmlight_file(X[rows], LABELS[rows], file, zero_based=False)
    words = ["ingest", tmp_path / "a", tmp_path / "b", "--features", D, "--split", "test=0.3", "--json"]
    for kind in ("--chunk-rows=40", "--sparse", "--dense"):
        result = CliRunner().invoke(main, [str(word) for word in [*words, kind, tmp_path / kind]])
        assert result.exit_code == 0, result.output
    for share in ("", "-test"):
        one, other = (open_corpus(f"{tmp_path / kind}{share}") for kind in ("--sparse", "--dense"))
        assert (one.sparse, other.sparse) == (True, False)
        assert_array_equal(np.asarray(one), np.asarray(other))
        for column in ("y", "domain"):
            assert_array_equal(one.column(column), other.column(column))
    unsplit = [open_corpus(f"{tmp_path / '--chunk-rows=40'}{share}") for share in ("", "-test")]
    assert (unsplit[0].sparse, unsplit[0].info.classes) == (True, (0, 1))
    found = np.concatenate([np.asarray(part) for part in unsplit])
    assert_array_equal(found[np.lexsort(found.T)], DENSE[np.lexsort(DENSE.T)])
    told = json.loads(CliRunner().invoke(main, ["info", str(tmp_path / "--sparse"), "--json"]).output)
    assert f"{one.n_features}" == str(told["features"])
    assert told["stored"].startswith("sparse, ")


def test_the_memory_of_an_ingest_does_not_grow_with_the_width_of_rows(tmp_path):
    (tmp_path / "wide.libsvm").write_text("".join(f"{i % 2} {i + 1}:1 16000000:2\n" for i in range(300)))
    ingest(open_source(tmp_path / "wide.libsvm"), tmp_path / "first", chunk_rows=50)  # what is made once
    tracemalloc.start()
    try:
        found = ingest(open_source(tmp_path / "wide.libsvm"), tmp_path / "c", chunk_rows=50)
        assert tracemalloc.get_traced_memory()[1] < 16_000_000  # a byte a feature: less than one dense row
    finally:
        tracemalloc.stop()
    assert found.entries == 600


def test_an_ingest_that_dies_at_any_chunk_is_gone_on_with_to_the_same_bytes(tmp_path, monkeypatch):
    class Crash(Exception):
        pass

    dump_svmlight_file(X[:110], LABELS[:110], str(tmp_path / "rows.libsvm"), zero_based=False)
    put, state = LocalStore.set, {"done": 0, "fail": None}

    async def counted(self, key, value, *arguments, **options):
        if not key.endswith("zarr.json") and "partials" not in str(self.root):
            if state["done"] == state["fail"]:
                raise Crash
            state["done"] += 1
        await put(self, key, value, *arguments, **options)

    def write(to, **options):
        source = open_source(tmp_path / "rows.libsvm", features=D)
        return ingest(source, tmp_path / to, chunk_rows=CHUNK_ROWS, name="rows", **options)

    monkeypatch.setattr(LocalStore, "set", counted)
    write("undisturbed")
    expected, total = content(tmp_path / "undisturbed"), state["done"]
    for k in range(0, total, 3):
        state.update(done=0, fail=k)
        with pytest.raises(Crash):
            write(f"c{k}", run=tmp_path / f"run{k}")
        state.update(done=0, fail=None)
        write(f"c{k}", run=tmp_path / f"run{k}", resume=True)
        assert content(tmp_path / f"c{k}") == expected, k
        assert state["done"] <= total - k + 4, k  # the chunk of rows that was cut is written again


MODELS = {
    "regression": KernelRidge(Gaussian(1.0), alpha=0.1, n_landmarks=30, random_state=0),
    "classes": KernelRidgeClassifier(Laplacian(0.1), alpha=0.1, n_landmarks=30, random_state=0),
    "random features": KernelRidgeClassifier(Gaussian(1.0), landmarks="fourier", n_landmarks=30, random_state=0),
    "semi-supervised": SSSLClassifier(Gaussian(1.0), n_landmarks=30, random_state=0),
    "by descent": KernelRidgeClassifier(Gaussian(1.0), n_landmarks=30, solver="cg", random_state=0),
    "linear": Ridge(alpha=0.1),
    "a pipeline": make_pipeline(
        UnitNormalizer(), Nystroem(Gaussian(1.0), n_components=30, random_state=0), Ridge(alpha=0.1)
    ),
    "a search": SweepSearchCV(
        KernelRidgeClassifier(n_landmarks=30, random_state=0),
        {"kernel": [Gaussian(1.0), Gaussian(2.0)], "alpha": [0.1, 1.0]},
        cv=3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models_of_sparse_and_of_dense_corpora_are_the_same_to_rounding(corpus, dense, name):
    model = MODELS[name]
    values = getattr(model, "decision_function", model.predict)
    found, score = np.asarray(model.fit(corpus) and values(corpus)), model.score(corpus)
    in_memory = np.asarray(values(X))
    expected, its_score = np.asarray(model.fit(dense) and values(dense)), model.score(dense)
    assert_allclose(found, expected, atol=2e-4)
    assert_allclose(in_memory, found, atol=2e-6)
    assert score == pytest.approx(its_score, abs=1e-4)


def test_every_executor_gives_the_same_bits_and_predictions_are_written(corpus, client, tmp_path):
    models = []
    for number, executor in enumerate(("serial", "threads", client)):
        with executing(executor):
            models.append(KernelRidge(Gaussian(1.0), alpha=0.1, n_landmarks=30, random_state=0).fit(corpus))
            written = models[-1].predict_to(corpus, tmp_path / f"p{number}")["prediction"][:]
        assert_array_equal(written, models[0].predict(corpus).compute())
        assert_array_equal(models[-1].dual_coef_, models[0].dual_coef_)
    assert models[0].sweep_["bytes_read"] == int(as_rows(corpus).row_bytes * N)


def test_bad_rows_are_refused_or_skipped(tmp_path):
    bad = X.copy()
    bad.data[bad.indptr[3]] = np.nan
    rows = as_rows(bad, LABELS)
    model = KernelRidge(Gaussian(1.0), n_landmarks=20, random_state=0)
    with pytest.raises(DataError, match=r"the first are \[3\]"):
        model.fit(rows)
    assert model.fit(rows.skip_bad_rows()).skipped_rows_ == 1
    with pytest.raises(DataError, match=r"the first are \[3\]"):
        write_corpus(tmp_path / "c", bad)


def test_a_fit_that_is_killed_is_gone_on_with_to_the_same_bits(tmp_path):
    support = Path(__file__).parents[1] / "support"
    root = os.pathsep.join([str(support.parents[1]), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, str(support / "killed_commands.py"), str(tmp_path / "jobs"), "sparse-fit=3"]
    done = subprocess.run(
        words, env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True, timeout=120, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])["sparse-fit"]
    assert (found["tried"], found["wrong"]) == (3, {})
