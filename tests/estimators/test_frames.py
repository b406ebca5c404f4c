"""Frames and arrays of other libraries as X: Dask frames stay lazy, invalid frames are refused with their columns."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray
from distributed import Client
from numpy.testing import assert_allclose, assert_array_equal

from bigkernel import KernelRidge, KernelRidgeClassifier, Standardizer, executing
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
    "text": (lambda f: f[["a", "text"]], r"a: float64, text: str"),
    "missing values": (lambda f: f[["a", "b"]].astype({"b": "Float64"}), r"b: Float64\).*astype\(\"float64\"\)"),
    "two dtypes": (lambda f: f[["a", "label"]], r"a: float64, label: int64\).*astype\(\"float64\"\)"),
    "no column": (lambda f: f[[]], r"found \(\)"),
    "names of two types": (lambda f: f[["a", "b"]].rename(columns={"a": 0}), r"X: .*\['int', 'str'\]"),
}


@pytest.mark.parametrize("choose, message", REFUSED.values(), ids=REFUSED)
def test_frames_that_are_no_matrix_are_refused_with_their_columns(stored, choose, message):
    with pytest.raises(DataError, match=message):
        model().fit(choose(stored()), stored()["y"])


SHUFFLED = (
    lambda f: f.sort_values("a"),
    lambda f: f.merge(f[["c"]].rename(columns={"c": "d"}), left_on="c", right_on="d"),
    lambda f: f.shuffle("b"),
)


def test_a_shuffled_frame_is_fitted_while_a_client_is_connected():
    frame = dd.from_pandas(FRAME[[*"abc", "y"]], npartitions=3)
    expected = KernelRidge("rbf", landmarks=X[:12]).fit(X, y).predict(X)
    with Client(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0"):
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
