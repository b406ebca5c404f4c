"""Containers of other libraries: Dask frames stay lazy, masks are missing, columns that hold no numbers are refused."""

import datetime

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xarray
from distributed import Client
from numpy.testing import assert_allclose, assert_array_equal
from probes import local_cluster

from bigkernel import (
    SSSL,
    XNV,
    Gaussian,
    KernelRidge,
    KernelRidgeClassifier,
    LabelledRowsClassifier,
    SSSLClassifier,
    Standardizer,
    SweepSearchCV,
    TableEncoder,
    executing,
)
from bigkernel.engine.rows import DaskSource, as_rows
from bigkernel.errors import DataError

rng = np.random.default_rng(17)
N = 200
X = rng.normal(size=(N, 3))
y = X[:, 0] ** 2
FRAME = pd.DataFrame(X, columns=list("abc")).assign(y=y, label=(y > 1).astype("i8"), text="t")


@pytest.fixture
def stored(tmp_path):
    """Return a function that reads a lazy frame of four files, one of them empty."""
    for i, (a, b) in enumerate([(0, 70), (70, 70), (70, 101), (101, N)]):
        FRAME.iloc[a:b].to_parquet(tmp_path / f"part-{i}.parquet")
    return lambda: dd.read_parquet(tmp_path)


def model(kind=KernelRidge):
    return kind("rbf", n_landmarks=12, random_state=0)


def test_a_dask_frame_gives_the_model_of_its_values_and_columns(stored):
    frame = stored()
    lazy, expected = model().fit(frame[list("abc")], frame["y"]), model().fit(X, y)
    assert_array_equal(lazy.feature_names_in_, list("abc"))
    predicted = lazy.predict(frame[list("abc")])
    assert isinstance(predicted, da.Array)
    assert_allclose(predicted.compute(), expected.predict(X), atol=1e-9)
    assert_allclose(lazy.predict(FRAME[list("abc")]), expected.predict(X), atol=1e-9)
    assert_allclose(lazy.score(frame[list("abc")], frame["y"]), expected.score(X, y), atol=1e-9)
    classifier = model(KernelRidgeClassifier).fit(frame[list("abc")], frame["label"])
    assert_array_equal(
        classifier.predict(frame[list("abc")]).compute(), model(KernelRidgeClassifier).fit(X, FRAME["label"]).predict(X)
    )
    mapped = Standardizer().fit(frame[list("abc")]).transform(frame[list("abc")])
    assert_allclose(mapped.take(np.arange(N)), (X - X.mean(0)) / X.std(0), atol=1e-9)
    with pytest.raises(DataError, match="feature names should match"):
        lazy.predict(frame[list("acb")])


def test_the_fingerprint_of_a_frame_is_reproducible(stored):
    source = as_rows(stored()[list("abc")]).x
    assert isinstance(source, DaskSource)
    assert source.shape == (N, 3)
    assert source.fingerprint() == as_rows(stored()[list("abc")]).x.fingerprint()
    assert source.fingerprint() != as_rows(stored()[["a", "b", "y"]]).x.fingerprint()


def test_a_fit_to_a_dask_frame_can_be_resumed(stored, tmp_path):
    fits = []
    for resume in (False, True):
        with executing("threads", run=tmp_path / "run", resume=resume):
            fits.append(model().fit(stored()[list("abc")], stored()["y"]))
    assert fits[1].sweep_["resumed_segments"] == fits[1].sweep_["segments"]
    assert_array_equal(fits[0].dual_coef_, fits[1].dual_coef_)


REFUSED = {
    "text": (lambda f: f[["a", "text"]], r"X: column 'text': expected numbers, found str.*TableEncoder"),
    "missing values": (lambda f: f[["a", "b"]].astype({"b": "Float64"}).mask(f["a"] > 0), "NaN or infinity"),
    "no column": (lambda f: f[[]], "found rows of 0 features"),
    "names of two types": (lambda f: f[["a", "b"]].rename(columns={"a": 0}), r"X: .*\['int', 'str'\]"),
}


@pytest.mark.parametrize("choose, message", REFUSED.values(), ids=REFUSED)
def test_frames_that_are_no_matrix_are_refused_with_their_columns(stored, choose, message):
    with pytest.raises(DataError, match=message):
        model().fit(choose(stored()), stored()["y"])


def test_columns_of_a_dask_frame_may_have_several_dtypes(stored):
    frame = stored().astype({"b": "Float64"})
    source = as_rows(frame[["a", "b", "label"]]).x
    assert source.dtype == np.float64
    assert_array_equal(source.read(0, N), FRAME[["a", "b", "label"]])


SHUFFLED = (
    lambda f: f.sort_values("a"),
    lambda f: f.merge(f[["c"]].rename(columns={"c": "d"}), left_on="c", right_on="d"),
    lambda f: f.shuffle("b"),
)


def test_a_shuffled_frame_is_fitted_while_a_client_is_connected():
    frame = dd.from_pandas(FRAME[[*"abc", "y"]], npartitions=2)
    expected = KernelRidge("rbf", landmarks=X[:12]).fit(X, y).predict(X)
    with local_cluster(1, processes=False) as cluster, Client(cluster):
        for shuffled in SHUFFLED:
            fitted = KernelRidge("rbf", landmarks=X[:12]).fit(shuffled(frame)[list("abc")], shuffled(frame)["y"])
            assert_allclose(fitted.predict(FRAME[list("abc")]), expected, atol=1e-8)


def test_a_partition_of_another_size_is_refused(stored, tmp_path):
    rows = as_rows(stored()[list("abc")])
    FRAME.iloc[:5].to_parquet(tmp_path / "part-0.parquet")
    with pytest.raises(DataError, match=r"partition 0: expected \(70, 3\) values.*found \(5, 3\)"):
        rows.read(0, 10)


def test_a_matrix_of_xarray_is_read_as_its_array():
    lazy = xarray.DataArray(da.from_array(X, chunks=(60, 3)))
    fitted = model().fit(lazy, xarray.DataArray(y))
    assert_array_equal(fitted.dual_coef_, model().fit(da.from_array(X, chunks=(60, 3)), y).dual_coef_)
    assert isinstance(fitted.predict(lazy), da.Array)
    assert_allclose(model().fit(xarray.DataArray(X), y).predict(X), model().fit(X, y).predict(X))


HOLE = np.arange(N) == 3
LABELS = (y > 1).astype(int)
MASKED = np.ma.array(np.where(HOLE[:, None], -999.0, X), mask=np.repeat(HOLE[:, None], 3, axis=1))


def masked(values):
    return np.ma.array(np.where(HOLE, -9, values), mask=HOLE)


def lazy(values):
    return da.from_array(values, chunks=(70, 3)[: values.ndim], asarray=False)


REFUSED_MASKS = {
    "rows": (lambda: model().fit(MASKED, y), r"NaN.*not finite: \[3\]"),
    "rows of whole numbers": (lambda: model().fit(np.ma.array(X.astype(int), mask=MASKED.mask), y), r"\[3\]"),
    "lazy rows": (lambda: model().fit(lazy(MASKED), y), r"NaN or infinity, the first are \[3\]"),
    "targets": (lambda: model().fit(X, masked(y)), "1 of 200 rows have no target"),
    "labels": (lambda: model(KernelRidgeClassifier).fit(X, masked(LABELS)), "the first is row 3"),
    "lazy labels": (lambda: model(KernelRidgeClassifier).fit(lazy(X), lazy(masked(LABELS))), "rows without a label"),
    "weights": (lambda: model().fit(X, y, sample_weight=masked(np.ones(N))), "sample_weight .*NaN"),
    "domains": (lambda: model().fit(X, y, sample_domain=masked(LABELS)), "sample_domain: row 3 is missing"),
    "landmarks": (lambda: KernelRidge(landmarks=MASKED[:9]).fit(X, y), "landmarks: row 3 is not finite"),
    "predictions": (lambda: model().fit(X, y).predict(MASKED), r"not finite: \[3\]"),
    "lazy predictions": (lambda: model().fit(X, y).predict(lazy(MASKED)).compute(), "NaN or infinity"),
    "scores": (lambda: model().fit(X, y).score(X, masked(y)), "rows have no target"),
    "a search": (lambda: SweepSearchCV(model(), {"alpha": [0.1, 1.0]}).fit(MASKED, y), r"not finite: \[3\]"),
    "transforms": (lambda: Standardizer().fit(lazy(MASKED)), "row 3 contains NaN"),
}


@pytest.mark.parametrize("use, message", REFUSED_MASKS.values(), ids=REFUSED_MASKS)
def test_masked_values_are_refused_like_nan(use, message):
    with pytest.raises(DataError, match=message):
        use()


@pytest.mark.parametrize("rows", [np.ma.asarray, lazy], ids=["memory", "lazy"])
def test_masked_targets_are_unlabelled(rows):
    holes = np.where(HOLE, np.nan, y)
    fitted, expected = (model(SSSL).fit(rows(X), rows(one)) for one in (masked(y), np.ma.array(holes)))
    assert_array_equal(fitted.predict(X), expected.predict(X))
    assert_array_equal(model(SSSLClassifier).fit(rows(X), rows(masked(LABELS))).classes_, [0, 1])


def test_masked_labels_are_left_out_and_masked_cells_of_a_table_are_missing():
    assert_array_equal(LabelledRowsClassifier(model(KernelRidgeClassifier)).fit(X, masked(LABELS)).classes_, [0, 1])
    assert model(SSSL).fit(X, y).score(X, masked(y)) == model(SSSL).fit(X, y).score(X, np.where(HOLE, np.nan, y))
    assert_array_equal(TableEncoder().fit(MASKED).transform(MASKED)[HOLE, 0], np.median(X[~HOLE, 0]))


def test_masked_arrays_without_a_masked_value_are_arrays():
    fitted = model().fit(np.ma.array(X), np.ma.array(y), sample_weight=np.ma.array(np.ones(N)))
    assert_array_equal(fitted.predict(np.ma.array(X)), model().fit(X, y, sample_weight=np.ones(N)).predict(X))


TIMES = pd.date_range("2020", periods=N)
ODD = {
    "text": np.where(LABELS, "x", "y"),
    "times": TIMES,
    "times of a zone": TIMES.tz_localize("Europe/Berlin"),
    "durations": TIMES - TIMES[0],
    "dates": [datetime.date(2020, 1, 1)] * N,
    "times of day": [datetime.time(5)] * N,
    "categories": pd.Categorical(LABELS),
    "periods": TIMES.to_period("D"),
    "numbers and text": [1.0, "a"] * (N // 2),
}
NOT_OF_ARROW = ("categories", "periods", "numbers and text")
TABLES = {
    "pandas": lambda frame: frame,
    "arrow": pa.Table.from_pandas,
    "dask": lambda frame: dd.from_pandas(frame, npartitions=2),
    "polars": lambda frame: pytest.importorskip("polars").from_arrow(pa.Table.from_pandas(frame)),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("table", ["pandas", "arrow", "polars"])
def test_columns_of_other_values_are_named_with_their_remedy(kind, table):
    frame = pd.DataFrame({"a": X[:, 0], "when": ODD[kind]})
    given = frame if kind in NOT_OF_ARROW else TABLES[table](frame)
    with pytest.raises(DataError, match=r"X: column 'when': expected numbers, found.*TableEncoder"):
        model().fit(given, y)


def test_times_in_arrays_and_text_as_targets_are_refused():
    times = TIMES.to_numpy()
    for rows in (times[:, None], np.array([[datetime.date(2020, 1, 1), 1.0]] * N, object)):
        with pytest.raises(DataError, match=r"X: expected numbers, found times.*TableEncoder"):
            model().fit(rows, y)
    with pytest.raises(DataError, match="y: expected numbers, found times"):
        model().fit(X, times)
    with pytest.raises(DataError, match="y: expected numbers, found text"):
        model().fit(X, FRAME["text"].to_numpy("U"))


LARGE = 2**60 + np.arange(3 * N).reshape(N, 3)
LARGE_ROWS = {
    "array": LARGE,
    "unsigned": LARGE.astype(np.uint64),
    "objects": LARGE.astype(object),
    "frame beside floats": pd.DataFrame({"u": X[:, 0], "k": LARGE[:, 0]}),
    "nullable": pd.DataFrame({"u": X[:, 0], "k": pd.array([None, *LARGE[1:, 0]], dtype="Int64")}),
    "arrow": pa.table({"u": X[:, 0], "k": pa.array([None, *LARGE[1:, 0].tolist()])}),
    "dask": da.from_array(LARGE, chunks=(70, 3)),
}


@pytest.mark.parametrize("kind", LARGE_ROWS)
def test_whole_numbers_that_float64_rounds_are_refused(kind):
    with pytest.raises(DataError, match=r"(column '?[0k]'?.*|rows \d+ to.*)2\*\*53"):
        model().fit(LARGE_ROWS[kind], y)


LARGE_USES = {
    "targets": lambda: model().fit(X, LARGE[:, 0]),
    "lazy targets": lambda: model().fit(lazy(X), lazy(LARGE[:, 0])),
    "landmarks": lambda: KernelRidge(landmarks=LARGE[:9]).fit(X, y),
    "predictions": lambda: model().fit(X, y).predict(LARGE),
    "lazy predictions": lambda: model().fit(X, y).predict(lazy(LARGE)).compute(),
    "lazy transforms": lambda: Standardizer().fit(X).transform(lazy(LARGE)).compute(),
}


@pytest.mark.parametrize("use", LARGE_USES.values(), ids=LARGE_USES)
def test_large_targets_landmarks_and_new_rows_are_refused(use):
    with pytest.raises(DataError, match=r"2\*\*53"):
        use()


def test_large_whole_numbers_may_be_classes():
    assert_array_equal(model(KernelRidgeClassifier).fit(X, 2**60 + LABELS).classes_, [2**60, 2**60 + 1])


@pytest.mark.parametrize("kind", TABLES)
def test_landmarks_in_a_table_are_matched_by_name(kind):
    frame = FRAME[list("abc")]
    turned, other = (TABLES[kind](one[:12]) for one in (frame[list("cba")], frame.rename(columns={"a": "z"})))
    for estimator in (KernelRidge, SSSL, XNV):
        fitted, expected = (estimator(Gaussian(2.0), landmarks=some).fit(frame, y) for some in (turned, X[:12]))
        assert_array_equal(fitted.landmarks_, expected.landmarks_)
    few = KernelRidge(Gaussian(2.0), landmarks=turned).fit(frame, y).with_landmarks(5)
    assert_array_equal(few.landmarks_, few.landmarks)
    assert np.isin(few.landmarks_[:, 0], X[:12, 0]).all()
    with pytest.raises(DataError, match=r"landmarks: expected the columns of the fit, .*'a', 'b', 'c'; found 'z'"):
        KernelRidge(landmarks=other).fit(dd.from_pandas(frame, npartitions=2), y)


def test_a_list_of_tables_or_pairs_is_no_matrix():
    for given in ([FRAME[list("abc")]] * 2, [(X, y), (X, y)], (X, y), [da.from_array(X)] * 2):
        with pytest.raises(DataError, match=r"X: found a (list|tuple) of tables, arrays or pairs"):
            model().fit(given, y)


@pytest.mark.parametrize(
    "given", [np.zeros(N, "f8,f8"), iter(X), {"a": X[:, 0]}.items()], ids=["fields", "iterator", "items"]
)
def test_what_is_no_array_is_refused_by_what_it_is(given):
    with pytest.raises(DataError, match="X: expected numbers in an array or a frame, found"):
        model().fit(given, y)
