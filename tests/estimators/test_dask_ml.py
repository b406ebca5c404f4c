"""Inside Dask-ML: what docs/dask-ml.md says works beyond its blocks, and what it says fails, with the same words."""

import io
import re
from pathlib import Path

import dask.array as da
import joblib
import numpy as np
import pytest
from dask_ml import metrics, model_selection, wrappers
from numpy.testing import assert_array_equal
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_html_repr

import bigkernel as bk

PAGE = (Path(__file__).parents[2] / "docs" / "dask-ml.md").read_text(encoding="utf-8")
X = np.random.default_rng(0).normal(size=(90, 3))
y, LABELS = np.sin(X[:, 0]), (X[:, 0] > 0).astype(int)
ROWS, TARGETS, CLASSES = (da.from_array(values, chunks=30) for values in (X, y, LABELS))
RIDGE = bk.KernelRidge(bk.Gaussian(1.5), alpha=0.01, n_landmarks=20, random_state=0)
MAP = bk.Nystroem(bk.Gaussian(1.5), 10, random_state=0)


def searched(grid, **settings):
    return model_selection.GridSearchCV(RIDGE, grid, **settings).fit(ROWS, TARGETS)


FAILING = {
    "own `KFold`": lambda: searched({"alpha": [0.1]}, cv=model_selection.KFold(3)),
    "as kernels": lambda: searched({"kernel": [bk.Gaussian(1.0), bk.Gaussian(2.0)]}, cv=3),
    "of a Pipeline": lambda: wrappers.Incremental(make_pipeline(bk.Standardizer(), RIDGE)).fit(ROWS, TARGETS),
    "r2_score": lambda: metrics.r2_score(TARGETS, RIDGE.fit(ROWS, TARGETS).predict(ROWS)),
    "log_loss": lambda: metrics.log_loss(CLASSES, da.stack([1.0 - CLASSES, 1.0 * CLASSES], axis=1)),
}


@pytest.mark.parametrize("which", FAILING)
def test_what_the_page_says_of_dask_ml_still_fails_with_these_words(which):
    (words,) = re.findall(rf"^\|[^|]*{re.escape(which)}[^|]*\| `([^|]*)` \|", PAGE, re.M)
    with pytest.raises((AttributeError, TypeError, ValueError), match=re.escape(words)):
        FAILING[which]()


def test_wrapped_transformers_give_frames_and_lazy_rows_stay_numbers():
    wrapped = wrappers.ParallelPostFit(MAP).fit(X)
    assert_array_equal(wrapped.transform(ROWS).compute(), MAP.fit(X).transform(X))
    framed = wrappers.ParallelPostFit(bk.Nystroem(**MAP.get_params(deep=False)).set_output(transform="pandas")).fit(X)
    assert framed.transform(X).columns.tolist() == MAP.get_feature_names_out().tolist()


def test_searches_take_parameters_of_kernels():
    search = searched({"kernel__sigma": [0.01, 1.5]}, cv=3)
    assert search.best_params_ == {"kernel__sigma": 1.5}
    assert search.best_estimator_.kernel.sigma == 1.5


@pytest.mark.parametrize("wrapper", [wrappers.ParallelPostFit, wrappers.Incremental])
def test_wrappers_are_drawn_and_stored_by_joblib(wrapper):
    model, store = wrapper(RIDGE).fit(ROWS, TARGETS), io.BytesIO()
    assert "KernelRidge" in estimator_html_repr(model)
    joblib.dump(model, store)
    store.seek(0)
    assert_array_equal(joblib.load(store).predict(ROWS).compute(), model.predict(ROWS).compute())


STORED = {
    "ridge": RIDGE,
    "chain": make_pipeline(bk.Standardizer(), bk.KernelRidge(bk.Gaussian(1.5), n_landmarks=20, random_state=0)),
    "leaves": bk.PartitionedRegressor(RIDGE, 2, random_state=0),
    "fourier": bk.KernelRidge(bk.Gaussian(1.5), landmarks="fourier", n_landmarks=20, random_state=0),
    "logistic": bk.KernelLogisticClassifier(bk.Gaussian(1.5), n_landmarks=20, random_state=0),
    "sssl": bk.SSSLClassifier(bk.Gaussian(1.5), n_landmarks=20, random_state=0),
}


@pytest.mark.parametrize("name", STORED)
def test_skops_names_our_types_alone_and_keeps_predictions(name):
    skops = pytest.importorskip("skops.io")
    model = STORED[name].fit(X, LABELS)
    stored = skops.dumps(model)
    types = skops.get_untrusted_types(data=stored)
    assert {each.split(".")[0] for each in types if each != "numpy.dtype"} == {"bigkernel"}
    with pytest.raises(TypeError, match="Untrusted types"):
        skops.loads(stored)
    assert_array_equal(skops.loads(stored, trusted=types).predict(X), model.predict(X))
