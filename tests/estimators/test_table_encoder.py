"""TableEncoder takes tables of all kinds, equals scikit-learn's parts, and travels with the model."""

import datetime
from decimal import Decimal

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import bigkernel as bk
from bigkernel import TableEncoder
from bigkernel.data.table import cells_of
from bigkernel.engine.rows import as_rows
from bigkernel.errors import CategoriesWarning, ConfigError, DataError, ModelRejectedError
from bigkernel.models import file

N = 240


def absent(column, rng, share=0.1):
    return column.mask(rng.random(len(column)) < share)


@pytest.fixture
def table(rng):
    columns = {
        "length": absent(pd.Series(rng.normal(size=N)), rng),
        "count": absent(pd.Series(rng.integers(0, 9, N), dtype="Int64"), rng),
        "full": rng.integers(0, 9, N),
        "open": absent(pd.Series(rng.random(N) < 0.5, dtype="boolean"), rng),
        "carrier": absent(pd.Series(rng.choice(["UA", "AA", "é"], N, p=[0.6, 0.3, 0.1])), rng),
        "size": pd.Categorical(rng.choice(["s", "m"], N)),
        "tail": rng.geometric(0.08, N).astype(str),
        "when": absent(pd.Series(pd.Timestamp("2013-01-01") + pd.to_timedelta(rng.integers(0, 99, N), "h")), rng),
        "same": 1.0,
    }
    frame = pd.DataFrame(columns)
    return frame, np.where(frame["carrier"] == "UA", 2.0, 0.0) + frame["full"].to_numpy()


def regressor(*steps):
    return make_pipeline(*steps, bk.Standardizer(), bk.KernelRidge(n_landmarks=40, alpha=0.1, random_state=0))


def column(encoder, X, name):
    return encoder.transform(X)[:, encoder.get_feature_names_out().tolist().index(name)]


def test_numbers_equal_those_of_a_simple_imputer(table):
    numbers = table[0][["length", "count", "full", "open"]].astype("float64")
    oracle = SimpleImputer(strategy="median", add_indicator=True).fit(numbers)
    encoder = TableEncoder().fit(numbers)
    names = ["length", "length missing", "count", "count missing", "full", "open", "open missing"]
    assert encoder.get_feature_names_out().tolist() == names
    order = ["length", "count", "full", "open", "length missing", "count missing", "open missing"]
    for given in (numbers, numbers.iloc[::-1], numbers[:5] * np.nan):
        encoded = encoder.transform(given)[:, [names.index(name) for name in order]]
        assert_allclose(encoded, oracle.transform(given))
    assert_array_equal(TableEncoder().fit_transform(numbers.to_numpy()), encoder.transform(numbers))
    assert_array_equal(TableEncoder().fit_transform(table[0][[*numbers]]), encoder.transform(numbers))


def test_categories_equal_those_of_a_one_hot_encoder(table):
    text = table[0][["carrier", "size"]].astype(object).where(lambda frame: frame.notna(), None)
    oracle = OneHotEncoder(sparse_output=False, handle_unknown="ignore").fit(text)
    encoder = TableEncoder().fit(table[0][["carrier", "size"]])
    names = encoder.get_feature_names_out().tolist()
    counts = table[0]["carrier"].value_counts(dropna=False)
    assert names[:4] == [f"carrier={one}" if isinstance(one, str) else "carrier missing" for one in counts.index]
    order = ["carrier=AA", "carrier=UA", "carrier=é", "carrier missing", "size=m", "size=s"]
    seen = text.assign(carrier=text["carrier"].replace("AA", "new"))
    for given in (text, seen):
        assert_array_equal(encoder.transform(given)[:, [names.index(name) for name in order]], oracle.transform(given))


def test_many_categories_are_places_by_frequency(table):
    frame = table[0][["tail"]]
    counts = frame["tail"].value_counts()
    encoder = TableEncoder().fit(frame)
    names = encoder.get_feature_names_out().tolist()
    assert names == ["tail", *(f"tail={label}" for label in encoder.columns_[0].labels[:16])]
    places = encoder.transform(frame)[:, 0]
    frequency = counts[frame["tail"]].to_numpy()
    assert (np.diff(frequency[np.argsort(places)]) <= 0).all()
    assert len(np.unique(places)) == len(counts) == places.max() + 1
    assert_array_equal(encoder.transform(frame)[:, 1:], places[:, None] == np.arange(16))
    assert encoder.transform(pd.DataFrame({"tail": ["never"]})).ravel().tolist() == [len(counts) - 1] + [0] * 16
    assert TableEncoder(max_categories=len(counts)).fit_transform(frame).shape == (N, len(counts))


def test_times_are_seconds_and_equal_columns_are_left_out(table):
    frame = table[0][["when", "same", "length"]].assign(empty=None, word="a")
    encoder = TableEncoder().fit(frame)
    assert encoder.get_feature_names_out().tolist() == ["when", "when missing", "length", "length missing"]
    seconds = frame["when"].fillna(frame["when"].median()).map(pd.Timestamp.timestamp)
    assert_allclose(column(encoder, frame, "when"), seconds)
    zoned = frame.assign(when=frame["when"].dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"))
    assert_array_equal(encoder.transform(zoned), encoder.transform(frame))
    passed = pd.DataFrame({"passed": pd.to_timedelta([1, 90], "m")})
    assert TableEncoder().fit_transform(passed).tolist() == [[60], [5400]]


def test_objects_are_numbers_only_if_all_are():
    objects = pd.DataFrame({"a": [1, None, Decimal("2.5"), True], "b": [1, "x", 2.5, np.nan]}, dtype=object)
    encoder = TableEncoder().fit(objects)
    assert column(encoder, objects, "a").tolist() == [1, 1, 2.5, 1]
    later = pd.DataFrame({"a": [np.nan, 3], "b": [1, 7]}, dtype=object)  # mixed in the fit
    assert column(encoder, later, "b=1").tolist() == [1, 0]
    assert column(encoder, pd.DataFrame({"a": [None, None], "b": [np.nan, np.nan]}), "b missing").tolist() == [1, 1]


def test_what_the_fit_has_not_seen_missing_is_the_median_and_what_it_has_not_seen_at_all_is_left_out(table):
    encoder = TableEncoder().fit(table[0][["full"]].assign(empty=None))
    later = pd.DataFrame({"full": [np.nan], "empty": ["text"]})
    assert encoder.transform(later).tolist() == [[table[0]["full"].median()]]


def test_every_kind_of_table_gives_the_same_numbers(table):
    frame = table[0]
    expected = TableEncoder().fit_transform(frame)
    assert np.isfinite(expected).all()
    for kind in (frame.convert_dtypes(), frame.convert_dtypes(dtype_backend="pyarrow"), pa.Table.from_pandas(frame)):
        encoder = TableEncoder().fit(kind)
        assert_array_equal(encoder.transform(kind), expected)
        assert_array_equal(encoder.transform(frame), expected)
        assert encoder.feature_names_in_.tolist() == [*frame]
    days = pa.table({"day": [datetime.date(1970, 1, 2), datetime.date(1970, 1, 3)]})
    assert TableEncoder().fit_transform(days).ravel().tolist() == [86400, 2 * 86400]
    encoded = pa.table({"carrier": pa.array(frame["carrier"]).dictionary_encode()})
    assert_array_equal(TableEncoder().fit_transform(encoded), TableEncoder().fit_transform(frame[["carrier"]]))


def test_polars_frames_give_the_same_numbers(table):
    frame = pytest.importorskip("polars").from_pandas(table[0])
    assert_array_equal(TableEncoder().fit_transform(frame), TableEncoder().fit_transform(table[0]))


def test_a_table_of_arrow_names_pandas_where_it_is_missing():
    class Table:  # pyarrow keeps a pandas that it has loaded
        def to_pandas(self, **_):
            raise ModuleNotFoundError("No module named 'pandas'")

    with pytest.raises(ConfigError, match=r"Arrow.*No module named 'pandas'\): pip install pandas pyarrow"):
        cells_of(Table(), ("a",))


def test_a_dask_frame_is_encoded_lazily_as_in_memory(table):
    frame, y = table
    other = frame[100:].assign(size=frame["size"][100:].cat.set_categories(["s", "m", "l"]))
    lazy = dd.from_map(lambda part: part, [frame[:100], frame[100:100], other], meta=frame[:0])
    encoder = TableEncoder().set_output(transform="pandas").fit(lazy)  # frames of rows in memory alone
    encoded, expected = encoder.transform(lazy), TableEncoder().fit_transform(frame)
    assert isinstance(encoded, da.Array)
    assert encoded.chunks == ((100, 140), (expected.shape[1],))
    assert_array_equal(encoded, expected)
    assert as_rows(encoded).x.fingerprint() == as_rows(TableEncoder().fit(lazy).transform(lazy)).x.fingerprint()
    model = regressor(TableEncoder()).fit(lazy, y)
    assert_allclose(model.predict(lazy), regressor(TableEncoder()).fit(frame, y).predict(frame), atol=1e-9)


def test_no_partition_of_a_dask_frame_is_loaded_by_transform(table):
    encoder, read = TableEncoder().fit(table[0]), []

    def load(i):
        read.append(i)
        return table[0][40 * i : 40 * i + 40]

    lazy = encoder.transform(dd.from_map(load, range(6), meta=table[0][:0]))
    read.clear()  # the pass that counts rows
    lazy[:30].compute(scheduler="synchronous")
    assert read == [0]


def test_a_fit_to_a_large_dask_frame_learns_from_a_sample(monkeypatch):
    monkeypatch.setattr("bigkernel.estimators.tables.table_encoder.SAMPLE_ROWS", 20)
    x = np.arange(1000.0)
    encoder = TableEncoder().fit(dd.from_pandas(pd.DataFrame({"x": x}), npartitions=10))
    assert encoder.columns_[0].median == np.median(x[::50])


def test_a_model_is_stored_with_its_encoder(table, tmp_path):
    frame, y = table
    model = regressor(TableEncoder(max_categories=8)).fit(frame, y)
    bk.save_model(model, tmp_path / "model")
    loaded = bk.load_model(tmp_path / "model")
    assert_array_equal(loaded.predict(frame), model.predict(frame))
    assert_array_equal(loaded[:-1].get_feature_names_out(), model[:-1].get_feature_names_out())
    assert_array_equal(loaded.feature_names_in_, [*frame])
    bk.save_model(model, tmp_path / "small", moments=False)
    predictor = bk.Predictor.load(tmp_path / "small")
    columns = {name: frame[name].to_numpy() for name in frame}
    records = np.rec.fromarrays([*columns.values()], names=[*columns])
    backwards = dict(reversed([*columns.items(), ("another", np.zeros(1))]))
    for kind in (frame, frame.to_numpy(object), pa.Table.from_pandas(frame), columns, backwards, records):
        assert_array_equal(predictor.predict(kind), model.predict(frame))
    lists = {name: frame[name].tolist() for name in frame}
    assert_array_equal(predictor.predict(lists), model.predict(frame))
    for wrong, message in (
        ({**columns, "full": np.zeros(3)}, "columns of one length"),
        ({name: columns[name] for name in list(columns)[1:]}, "found no 'length'"),
        (frame.to_numpy(object)[:, 1:], "rows of 9 columns"),
        (frame[:0], "at least one row"),
    ):
        with pytest.raises(DataError, match=message):
            predictor.predict(wrong)


DAY, HOUR = datetime.date(2013, 1, 2), datetime.datetime(2013, 1, 2, 5)
# the column of the fit, later cells, and the name of the category that they are of
SAME = {
    "whole numbers beside a gap": (pd.Categorical([1, 2, 3, 3]), pd.Series([1.0, np.nan]), "x=1"),
    "numbers of other types": (pd.Categorical([1.0, 2.5, 3, 3]), np.array([1, 3], np.int8), "x=1"),
    "a Decimal": (pd.Categorical([1, 2, 3]), np.array([Decimal("1.0"), None], object), "x=1"),
    "flags beside a gap": (pd.Categorical([True, False, False]), pd.Series([True, None], dtype=object), "x=True"),
    "flags as numbers": (pd.Categorical([True, False, False]), pd.Series([1.0, np.nan]), "x=True"),
    "mixed": (np.array(["1", 1, 1, "x"], object), np.array(["1", 2.0], object), "x=1 (2)"),
    "a number among text": (np.array(["1", 1, 1, "x"], object), np.array([1.0, 2.0], object), "x=1"),
    "text with blanks": (pd.Categorical(["a", "b"]), pd.Series([" a", "c"]), "x=a"),
    "NumPy's text": (pd.Categorical(["a", "b"]), np.array(["a", "c"]), "x=a"),
    "days": (pd.Categorical(pd.to_datetime([DAY, HOUR])), np.array(["2013-01-02", "2013-01-03"]), "x=2013-01-02"),
    "hours": (pd.Categorical([DAY, HOUR]), np.array([HOUR, None], "M8[ns]"), "x=2013-01-02T05:00:00"),
    "durations": (pd.Categorical(pd.to_timedelta([60, 90], "s")), np.array([60, None], "m8[s]"), "x=0:01:00"),
    "intervals": (pd.cut(pd.Series([1, 8]), [0, 5, 9]), pd.cut(pd.Series([2, np.nan]), [0, 5, 9]), "x=(0, 5]"),
}


@pytest.mark.parametrize("fitted, later, name", SAME.values(), ids=SAME)
def test_categories_are_compared_as_values(tmp_path, fitted, later, name):
    encoder = TableEncoder().fit(pd.DataFrame({"x": fitted}))
    bk.save_model(encoder, tmp_path / "model")
    for one in (encoder, bk.load_model(tmp_path / "model")):
        assert column(one, pd.DataFrame({"x": later}), name).tolist() == [1, 0]


TIMES = {
    "days": (["2013-01-02", None, "2013-01-05"], [15707 * 86400, 15708.5 * 86400, 15710 * 86400]),
    "hours": (["1970-01-01 05:00", "1970-01-01T06:30:15.5Z"], [18000, 23415.5]),
    "zones": (["1970-01-01 05:00+02:00", "1970-01-01T06:30-0100"], [10800, 27000]),
    "times of day": (["05:00", "23:59:59"], [18000, 86399]),
    "objects": ([DAY, pd.Timestamp(HOUR)], [15707 * 86400, 15707 * 86400 + 18000]),
    "mixed with text": ([DAY, "2013-01-03"], [15707 * 86400, 15708 * 86400]),
}


@pytest.mark.parametrize("cells, seconds", TIMES.values(), ids=TIMES)
def test_times_in_text_are_seconds(cells, seconds):
    frame = pd.DataFrame({"x": pd.Series(cells, dtype=object)})
    encoder = TableEncoder().fit(frame)
    assert column(encoder, frame, "x").tolist() == seconds
    with pytest.raises(DataError, match=r"'x': expected values of the kind .*, found .*, such as 'soon'"):
        encoder.transform(pd.DataFrame({"x": ["soon"]}))


@pytest.mark.parametrize(
    "texts", [["2013-02-31", "2013-03-01"], ["12345", "12346"], ["2013", "2014"], ["T05:00", "T06"]]
)
def test_other_texts_are_categories(texts):
    assert TableEncoder().fit(pd.DataFrame({"x": texts})).columns_[0].kind == "category"


def test_names_of_columns_are_not_repeated():
    frame = pd.DataFrame({"a": ["x", "y", None], "a=x": [1.0, 2.0, 5.0], "a missing": [0, 1, 4]})
    names = TableEncoder().fit(frame).get_feature_names_out().tolist()
    assert names == ["a missing", "a=x", "a=y", "a=x (2)", "a missing (2)"]
    assert TableEncoder().set_output(transform="pandas").fit_transform(frame)["a=x (2)"].tolist() == [1, 2, 5]


def test_columns_of_ids_and_of_unknown_categories_are_warned_of():
    ids = pd.DataFrame({"id": [f"name {i}" for i in range(40)], "k": ["a", "b"] * 20})
    with pytest.warns(CategoriesWarning, match="column 'id': nearly all of 40 texts are different"):
        encoder = TableEncoder().fit(ids)
    with pytest.warns(CategoriesWarning, match="column 'k': nearly no value is one of the 2 categories") as warned:
        encoder.transform(ids.assign(k="c"))
    assert len(warned) == 1
    encoder.transform(ids[:10].assign(k="c"))  # too few to say


DAMAGES = {
    "a label that is a list": lambda fit: fit["columns_"][4]["fields"].update(labels=[[1]]),
    "an unknown kind": lambda fit: fit["columns_"][4]["fields"].update(kind="word"),
    "a column less": lambda fit: fit["columns_"].pop(),
    "a median that is no number": lambda fit: fit["columns_"][0]["fields"].update(median="1"),
    "labels that are no list": lambda fit: fit["columns_"][4]["fields"].update(labels="UA"),
    "no columns": lambda fit: fit.pop("columns_"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_refused(table, tmp_path, monkeypatch, damage):
    encoder, write = TableEncoder().fit(table[0]), file.write

    def damaged(path, values, arrays, **options):
        damage(values["model"]["fitted"]["table"])
        write(path, values, arrays, **options)

    monkeypatch.setattr("bigkernel.estimators.persistence.write", damaged)
    bk.save_model(encoder, tmp_path / "model")
    with pytest.raises(ModelRejectedError):
        bk.load_model(tmp_path / "model")


def test_searches_leaves_and_named_output_take_tables(table):
    frame, y = table
    grid = {"tableencoder__max_categories": [2, 8], "kernelridge__alpha": [0.1, 10.0]}
    for search in (GridSearchCV, bk.SweepSearchCV):
        assert search(regressor(TableEncoder()), grid, cv=3).fit(frame, y).best_score_ > 0.7
    leaves = bk.PartitionedRegressor(bk.KernelRidge(alpha=0.1), 2, random_state=0)
    assert make_pipeline(TableEncoder(), bk.Standardizer(), leaves).fit(frame, y).score(frame, y) > 0.9
    named = TableEncoder().set_output(transform="pandas").fit_transform(frame)
    assert [*named] == TableEncoder().fit(frame).get_feature_names_out().tolist()


REFUSED = {
    "a list": (pd.DataFrame({"a": [[1], [2]]}), "column 'a': expected numbers, text, categories or times, found list"),
    "infinity": (pd.DataFrame({"a": [1.0, np.inf]}), "column 'a': found infinity"),
    "equal rows": (pd.DataFrame({"a": [1, 1], "b": ["x", "x"]}), "all rows are equal"),
    "a series": (pd.Series([1.0, 2.0]), "2-dimensional"),
    "a Dask array": (da.ones((4, 2)), "expected a frame, or an array in memory, found Array"),
}


@pytest.mark.parametrize("given, message", REFUSED.values(), ids=REFUSED)
def test_tables_that_cannot_be_encoded_are_refused(given, message):
    with pytest.raises(DataError, match=message):
        TableEncoder().fit(given)


def test_columns_of_another_kind_or_name_are_refused(table):
    frame = table[0]
    encoder = TableEncoder().fit(frame)
    with pytest.raises(DataError, match="column 'length': expected values of the kind number, as in the fit, found c"):
        encoder.transform(frame.assign(length="long"))
    with pytest.raises(DataError, match=r"column 'carrier': expected values of the kind category.*found number"):
        encoder.transform(frame.assign(carrier=1))
    for wrong in (frame.rename(columns={"full": "empty"}), frame.drop(columns="full"), frame[frame.columns[::-1]]):
        with pytest.raises(DataError, match="feature names should match"):
            encoder.transform(wrong)
    with pytest.raises(DataError, match="X has 1 features, but TableEncoder is expecting 2"):
        TableEncoder().fit(np.eye(2)).transform(np.eye(2)[:, :1])
