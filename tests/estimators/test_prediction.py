"""Predictions of rows in memory: landmarks are prepared once per fit, and the fast input check changes nothing."""

import copy
import gc
import pickle
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from bigkernel import DICA, Gaussian, KernelRidge, KernelRidgeClassifier, Nystroem, UnitNormalizer
from bigkernel.estimators import base
from bigkernel.estimators.inputs import read as inputs
from bigkernel.estimators.transforms import rows as transforms
from bigkernel.kernels.algebra import Kernel

rng = np.random.default_rng(19)
X = rng.normal(size=(120, 4))
y = np.sin(X[:, 0]) + X[:, 1]
LABELS = np.array(["a", "b", "c"])[rng.integers(0, 3, len(X))]
GIVEN = {"n_landmarks": 15, "random_state": 0, "alpha": 0.1}
MODELS = {
    "regression": lambda: KernelRidge(Gaussian(1.5), **GIVEN).fit(X, y),
    "classes": lambda: KernelRidgeClassifier(Gaussian(1.5), dtype="float32", **GIVEN).fit(X, LABELS),
    "names": lambda: KernelRidge(Gaussian(1.5), **GIVEN).fit(pd.DataFrame(X, columns=list("abcd")), y),
    "unit norm": lambda: UnitNormalizer().fit(X),
    "whitened": lambda: Nystroem(Gaussian(1.5), n_components=10, random_state=0).fit(X),
    "components": lambda: DICA(Gaussian(1.5), n_components=2, n_landmarks=15, random_state=0).fit(
        X, LABELS, sample_domain=np.arange(len(X)) % 2
    ),
}


def use(model, rows=X):
    return model.predict(rows) if hasattr(model, "predict") else model.transform(rows)


@pytest.fixture
def prepared(monkeypatch):
    """Slow down the preparation of landmarks, and record it."""
    bound, bind = [], Kernel.bind

    def slow(self, Z, *args, **kwargs):
        bound.append(Z)
        time.sleep(0.02)
        return bind(self, Z, *args, **kwargs)

    monkeypatch.setattr(Kernel, "bind", slow)
    return bound


@pytest.mark.parametrize("kind", ["regression", "classes", "components", "whitened"])
def test_many_threads_prepare_landmarks_once_and_get_the_same_bits(kind, prepared):
    model = MODELS[kind]()
    expected = [use(copy.deepcopy(model), X[:count]) for count in (1, 7, 120)]
    start = threading.Barrier(8)
    prepared.clear()

    def ask(number):
        start.wait()
        return [use(model, X[: (1, 7, 120)[(number + step) % 3]]) for step in range(30)]

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, range(8)))
    assert len(prepared) == 1
    for number, predictions in enumerate(answers):
        for step, values in enumerate(predictions):
            assert_array_equal(values, expected[(number + step) % 3])


def test_prepared_landmarks_are_not_pickled_and_freed_with_the_model():
    model = MODELS["classes"]()
    gc.collect()  # frees what other tests left before counting
    before, kept = pickle.dumps(model), len(base._PREDICTORS)
    expected = model.decision_function(X)
    assert len(base._PREDICTORS) == kept + 1
    assert pickle.dumps(model) == before
    assert_array_equal(pickle.loads(before).decision_function(X), expected)
    del model
    gc.collect()
    assert len(base._PREDICTORS) == kept


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.fit(X[:60], y[:60]),
        lambda model: model.partial_fit(X + 1, y),
        lambda model: model.with_landmarks(5),
        lambda model: model.set_params(alpha=3.0).refit(),
    ],
)
def test_a_changed_fit_predicts_from_its_own_landmarks(change):
    model = MODELS["regression"]()
    before, std = model.predict(X), model.predict(X, return_std=True)[1]
    changed = change(model)
    actual, new_std = changed.predict(X), changed.predict(X, return_std=True)[1]
    fresh = pickle.loads(pickle.dumps(changed))
    assert_array_equal(actual, fresh.predict(X))
    assert_array_equal(new_std, fresh.predict(X, return_std=True)[1])
    assert np.abs(actual - before).max() > 1e-3
    assert np.abs(new_std - std).max() > 1e-6


ROWS = {
    "float64": X,
    "float32": X.astype(np.float32),
    "bytes": np.arange(24, dtype=np.uint8).reshape(6, 4),
    "every other": X[::2],
    "one row": X[:1],
    "a list": X[:2].tolist(),
    "a frame": pd.DataFrame(X, columns=list("abcd")),
    "no row": X[:0],
    "too wide": np.c_[X, X],
    "NaN": np.where(np.arange(4) == 2, np.nan, X),
    "infinities": np.where(np.arange(4) < 2, [np.inf, -np.inf, 0, 0], X),
    "text": np.full((2, 4), "a"),
    "complex": X + 1j,
}


def outcome(model, rows):
    """Return the values or the error, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            values = use(copy.deepcopy(model), rows)
            result = values.dtype, values.tobytes()
        except Exception as error:
            result = type(error), str(error)
    return *result, *(str(one.message) for one in caught)


@pytest.mark.parametrize("model", [make() for make in MODELS.values()], ids=MODELS)
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_the_fast_input_check_changes_no_value_and_no_error(model, rows, monkeypatch):
    quick = outcome(model, rows)
    for module in (base, inputs, transforms):
        monkeypatch.setattr(module, "is_sound", lambda *_: False)
    assert quick == outcome(model, rows)
