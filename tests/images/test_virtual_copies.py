"""Virtual copies and styled domains: the same from every kind of input, in any part, on any executor."""

from __future__ import annotations

import pickle
from itertools import pairwise
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from bigkernel import KernelRidgeClassifier, UnitNormalizer, executing
from bigkernel.data.corpus import CorpusInfo, CorpusWriter, open_corpus
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.engine.sources import DaskSource, NumpySource
from bigkernel.engine.sweep import sweep
from bigkernel.errors import ConfigError, DataError
from bigkernel.images.image_sources import Chosen, Repeated, RowNumbers
from bigkernel.images.pose_and_strokes import MomentNormalise, Orientations
from bigkernel.images.restyle import Restyling, Style, Styling
from bigkernel.images.virtual_copies import restyle, styled_domains, virtual_copies
from bigkernel.kernels.feature_maps import IdentityMap
from bigkernel.statistics.moments import MomentStatistic, Targets
from bigkernel.streaming.row_maps import MapCost, UnitNorm

N, SIDE, COPIES = 60, 8, 3
rng = np.random.default_rng(8)
X = np.zeros((N, SIDE, SIDE), np.uint8)
X[:, 2:6, 2:6] = rng.integers(0, 256, (N, 4, 4))
X = X.reshape(N, -1)
Y = np.where(np.arange(N) % 4 == 0, np.arange(N) % 3, -1)
LABELLED = np.flatnonzero(Y >= 0)
COLUMNS = {"y": Y, "weight": np.linspace(0.5, 2, N), "domain": np.arange(N) % 2, "group": 100 + np.arange(N) // 2}
STYLES = (Style(), Style(rotation=30.0, thickness=0.5), Style(contrast=0.6))
KINDS = ["numpy", "dask", "zarr", "corpus", "rows"]
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The images and their columns as every kind of input that carries columns, or as Rows of it."""
    path = tmp_path_factory.mktemp("images")
    kinds = {name: values.dtype for name, values in COLUMNS.items()}
    info = CorpusInfo("images", classes=(0, 1, 2), image_shape=(SIDE, SIDE), scale=255.0)
    with CorpusWriter(path / "c", n_features=SIDE**2, dtype=X.dtype, columns=kinds, info=info, chunk_rows=25) as writer:
        writer.append(x=X, **COLUMNS)
    stored = zarr.create_array(path / "x.zarr", chunks=(17, SIDE**2), data=X)
    lazy = {name: da.from_array(values, chunks=13) for name, values in COLUMNS.items()}
    return {
        "numpy": as_rows(X, **COLUMNS),
        "dask": as_rows(da.from_array(X, chunks=(13, SIDE**2)), **lazy),
        "zarr": as_rows(stored, **COLUMNS),
        "corpus": open_corpus(path / "c"),
        "rows": as_rows(open_corpus(path / "c")),
    }


def content(rows: Rows, start: int = 0, stop: int | None = None) -> dict[str, np.ndarray]:
    chunk = rows.read(start, len(rows) if stop is None else stop)
    return {name: getattr(chunk, name) for name in ("x", *COLUMNS)}


@every_kind
@pytest.mark.parametrize("only", ["all", "labelled"])
def test_rows_come_first_and_then_their_copies_with_all_columns(inputs, kind, only):
    chosen = np.arange(N) if only == "all" else LABELLED
    rows = virtual_copies(inputs[kind], copies=COPIES, seed=4, only=only)
    original = np.concatenate([np.arange(N), *[chosen] * COPIES])
    found = content(rows)
    assert rows.shape == (len(original), SIDE**2)
    assert_array_equal(found["x"][:N], X)
    assert_array_equal(found["x"][N:], Restyling(SIDE, SIDE, seed=4).copies(X[original[N:]], N))
    for name in ("y", "domain", "group"):
        assert_array_equal(found[name], COLUMNS[name][original])
    share = np.where(np.isin(original, chosen), 1 / (COPIES + 1), 1)
    assert_allclose(found["weight"], COLUMNS["weight"][original] * share, rtol=1e-15)
    assert found["weight"].sum() == pytest.approx(COLUMNS["weight"].sum())


def test_without_weights_and_groups_images_weigh_one_and_groups_are_their_numbers():
    rows = virtual_copies(X, copies=1, only=[3, 50])
    assert rows.column("group").tolist() == [*range(N), 3, 50]
    assert_array_equal(rows.column("weight"), [0.5 if i in (3, 50) else 1 for i in range(N)] + [0.5] * 2)
    assert rows.column("y") is None
    assert_array_equal(virtual_copies(X, copies=0).read(0, N).x, X)


@settings(max_examples=5)
@given(cuts=st.lists(st.integers(0, N * (COPIES + 1)), max_size=5), only=st.sampled_from(["all", "labelled"]))
def test_any_part_of_any_kind_travels_and_gives_the_same_rows(inputs, cuts, only):
    for kind in ("numpy", "dask", "corpus"):
        rows = virtual_copies(inputs[kind], copies=COPIES, only=only)
        whole, bounds = content(rows), sorted({0, *(cut for cut in cuts if cut < len(rows)), len(rows)})
        pieces = [content(pickle.loads(pickle.dumps(rows.part(a, b))), a, b) for a, b in pairwise(bounds)]
        for name, values in whole.items():
            assert_array_equal(np.concatenate([piece[name] for piece in pieces]), values)


def test_a_part_takes_along_no_more_originals_than_it_needs():
    ids = np.arange(0, N, 2)
    repeated = Repeated(NumpySource(np.arange(N)), N, N + 2 * len(ids), Chosen(ids, len(ids)))
    for start, stop, first, last in ((10, 20, 10, 20), (N + 5, N + 8, 10, 15), (N + 30, N + 32, 0, 3)):
        part = repeated.part(start, stop)
        assert (part.source.offset, len(part.source.values)) == (first, last - first)
        assert len(part.chosen.ids) == (last - first + 1) // 2
        assert_array_equal(part.read(start, stop), repeated.read(start, stop))
    lazy = Repeated(DaskSource(da.arange(N, chunks=5)), N, 3 * N)
    assert len(lazy.part(N + 7, N + 9).source.array.__dask_graph__()) < 5


def test_chosen_rows_far_apart_are_read_without_all_that_lies_between():
    class Counting(RowNumbers):
        def read(self, start: int, stop: int) -> np.ndarray:
            longest.append(stop - start)
            return super().read(start, stop)

    longest: list[int] = []
    ids = np.array([0, 3, 500_000, 999_999])
    source = Repeated(Counting(10**6), 10**6, 10**6 + 4, Chosen(ids, 4))
    assert_array_equal(source.read(10**6, 10**6 + 4), ids)
    assert max(longest) <= 4


def test_arrays_in_memory_are_the_rows():
    y = np.where(Y < 0, np.nan, Y)
    found, labels, weight = restyle(X.astype(float), y, copies=2, seed=3, only="labelled")
    rows = virtual_copies(X.astype(float), y, copies=2, seed=3, only="labelled")
    assert_array_equal(found, rows.read(0, len(rows)).x)
    assert_array_equal(labels, rows.column("y"))
    assert_array_equal(weight, rows.column("weight"))
    assert len(found) == N + 2 * len(LABELLED)
    assert restyle(X, copies=1)[1] is None
    assert_array_equal(restyle(X, copies=0)[2], np.ones(N))


@pytest.mark.parametrize("missing", [-1, np.nan])
def test_rows_without_a_label_are_told_alike_in_any_type(missing):
    plain = virtual_copies(X, Y, copies=1, only="labelled")
    for dtype in (np.float32, np.float64) if np.isnan(missing) else (np.int8, np.int64, np.float32, np.float64):
        rows = virtual_copies(X, np.where(Y < 0, missing, Y).astype(dtype), copies=1, only="labelled")
        assert_array_equal(rows.column("weight"), plain.column("weight"))
        assert_array_equal(rows.column("group"), plain.column("group"))


def test_row_maps_see_the_copies_as_they_see_the_images(inputs):
    plain = virtual_copies(inputs["corpus"], copies=1)
    mapped = virtual_copies(as_rows(inputs["corpus"]).map(UnitNorm()).map(Orientations(SIDE, SIDE)), copies=1)
    expected = plain.map(UnitNorm()).map(Orientations(SIDE, SIDE))
    assert mapped.shape == (2 * N, 512)
    assert_array_equal(mapped.take(np.arange(2 * N)), expected.take(np.arange(2 * N)))


def test_a_fit_to_virtual_copies_is_the_fit_to_the_arrays(inputs):
    model = KernelRidgeClassifier(n_landmarks=20, random_state=0, alpha=0.1, dtype="float64", gamma=1.0)
    rows = virtual_copies(inputs["corpus"], copies=COPIES, only="labelled")
    x, y, weight = restyle(X, Y, copies=COPIES, only="labelled")
    own = COLUMNS["weight"][np.concatenate([np.arange(N), *[LABELLED] * COPIES])]
    unit = UnitNormalizer().fit(rows)
    model.fit(unit.transform(rows))
    labelled = y >= 0
    arrays = KernelRidgeClassifier(**{**model.get_params(), "landmarks": model.landmarks_, "random_state": None})
    arrays.fit(unit.transform(x)[labelled], y[labelled], sample_weight=(weight * own)[labelled])
    seen = unit.transform(x)
    assert_allclose(model.decision_function(seen), arrays.decision_function(seen), rtol=1e-7, atol=1e-7)


def swept(rows: Rows) -> dict[str, np.ndarray]:
    mapped = rows.map(MomentNormalise(SIDE, SIDE))
    return sweep(mapped, MomentStatistic(IdentityMap(np.zeros(SIDE**2)), Targets(1)), what="m").total


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("make", [lambda X: virtual_copies(X, copies=2), lambda X: styled_domains(X, STYLES)])
def test_threads_give_the_same_bits(inputs, make):
    for kind in ("numpy", "corpus"):
        totals = []
        for executor in ("serial", "threads"):
            with executing(executor):
                totals.append(swept(make(inputs[kind])))
        for name, values in totals[0].items():
            assert_array_equal(totals[1][name], values)


@pytest.mark.cluster
@pytest.mark.usefixtures("small_steps")
def test_worker_processes_give_the_same_bits(client: Client, inputs):
    for rows in (virtual_copies(inputs["corpus"], copies=2, only="labelled"), styled_domains(inputs["zarr"], STYLES)):
        totals = []
        for executor in ("serial", client):
            with executing(executor):
                totals.append(swept(rows))
        for name, values in totals[0].items():
            assert_array_equal(totals[1][name], values)


@pytest.mark.cluster
def test_rows_that_a_cluster_holds_are_refused(client: Client):
    held = client.persist(da.from_array(X, chunks=(13, SIDE**2)))
    for make in (virtual_copies, lambda X: styled_domains(X, STYLES)):
        with pytest.raises(
            DataError, match=r"X: a Dask array that is persisted on a cluster; give the array as it was"
        ):
            make(held)


@every_kind
def test_each_row_is_drawn_in_the_style_of_its_domain(inputs, kind):
    rows = styled_domains(inputs[kind], STYLES, seed=6)
    styling = Styling(SIDE, SIDE, STYLES, 6)
    found = content(rows)
    assert_array_equal(found["domain"], styling.domains(0, N))
    assert_array_equal(found["x"], styling.images(X, 0))
    assert_array_equal(found["y"], Y)
    part = rows.part(20, 33)
    assert_array_equal(part.read(20, 33).x, found["x"][20:33])
    assert_array_equal(part.read(20, 33).domain, found["domain"][20:33])


def test_what_it_costs_to_make_rows_is_told(inputs):
    restyling, styling = Restyling(SIDE, SIDE), Styling(SIDE, SIDE, STYLES)
    domains = styled_domains(inputs["corpus"], STYLES)
    both = virtual_copies(domains, copies=1)
    assert inputs["rows"].x.cost() == MapCost()
    assert domains.x.cost() == domains.window(3, 9).x.cost()
    assert domains.x.cost() == MapCost(styling.flops_per_row, 0, styling.work_bytes)
    assert both.x.cost().flops_per_row == restyling.flops_per_row + styling.flops_per_row
    assert both.x.cost().fixed_bytes == max(restyling.work_bytes, styling.work_bytes)


def test_rows_made_otherwise_are_told_apart(inputs):
    X = inputs["corpus"]
    made = [
        virtual_copies(X),
        virtual_copies(X, seed=1),
        virtual_copies(X, copies=4),
        virtual_copies(X, only="labelled"),
        virtual_copies(X, only=LABELLED[:-1]),
        virtual_copies(X, restyling=Restyling(SIDE, SIDE, shear=0.1)),
        styled_domains(X, STYLES),
        styled_domains(X, STYLES[:2]),
        styled_domains(X, STYLES, seed=1),
    ]
    assert len({rows.x.fingerprint() for rows in made}) == len(made)
    assert len({rows.columns["weight"].fingerprint() for rows in made[:6]}) >= 4
    assert virtual_copies(X).x.fingerprint() == made[0].x.fingerprint()
    assert len({rows.columns["domain"].fingerprint() for rows in made[6:]}) == 3


def test_what_cannot_be_copied_is_refused_with_its_reason(inputs):
    with pytest.raises(ConfigError, match="copies: expected at least 0, found -1"):
        virtual_copies(X, copies=-1)
    with pytest.raises(ConfigError, match="only: expected all, labelled, or row ids, found 'some'"):
        virtual_copies(X, only="some")
    with pytest.raises(DataError, match="only labelled rows are to be copied, and there are no labels"):
        virtual_copies(X, only="labelled")
    with pytest.raises(DataError, match="and no row has a label"):
        virtual_copies(X, np.full(N, -1), only="labelled")
    for only in ([], [0.5], [[1]], np.zeros(3, bool)):
        with pytest.raises(DataError, match="only: expected row ids"):
            virtual_copies(X, only=only)
    for only in ([1, 1], [-1], [N]):
        with pytest.raises(DataError, match="only: expected different row ids of 0 … 59"):
            virtual_copies(X, only=only)
    with pytest.raises(DataError, match="rows of 50 features are no square images"):
        virtual_copies(X[:, :50])
    with pytest.raises(DataError, match="image_shape 4×9 is 36 pixels, but rows have 64"):
        styled_domains(X, STYLES, image_shape=(4, 9))
    with pytest.raises(DataError, match="restyling: is for images of 4×16 pixels, found 8×8"):
        virtual_copies(X, restyling=Restyling(4, 16))
    bad = X.astype(float)
    bad[7, 3] = np.nan
    with pytest.raises(DataError, match="row 7 has a pixel that is not finite"):
        virtual_copies(bad)
    assert virtual_copies(as_rows(bad).skip_bad_rows(), copies=1).x.deformation.high == X.max()
    with pytest.raises(DataError, match="expected pixels that are numbers, found dtype bool"):
        virtual_copies(X > 0)


def test_pixels_keep_the_range_of_the_images():
    rows = virtual_copies(X / 51.0 - 2)
    made = rows.read(0, len(rows)).x
    assert (made.min(), made.max()) == (-2.0, X.max() / 51.0 - 2)
