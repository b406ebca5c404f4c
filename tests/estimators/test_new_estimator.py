"""The example of DESIGN.md is a complete estimator: it is executed and compared with dense kernel PCA."""

import inspect
import re
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from reference_domains import up_to_sign
from sklearn.base import clone

import bigkernel
from bigkernel import Gaussian, KernelRidge, estimators
from bigkernel.estimators import persistence
from bigkernel.estimators.fit import fit as fitting
from bigkernel.estimators.fit.method import Method

DESIGN = Path(bigkernel.__file__).with_name("DESIGN.md").read_text()
rng = np.random.default_rng(8)
X = rng.normal(size=(90, 3))
NEW = rng.normal(size=(20, 3))
WEIGHT = rng.uniform(0.5, 2, 90)
KERNEL = Gaussian(1.5)
MOST_MEMBERS = 20  # of a method: fields, traits and functions that a new estimator may define


@pytest.fixture(scope="module")
def example():
    """Return the text of the block under "A new estimator", and the class that it defines."""
    (text,) = re.findall(r"## A new estimator\n.*?```python\n(.*?)```", DESIGN, re.S)
    namespace = {"__name__": "kernel_pca"}
    exec(text, namespace)
    return text, namespace["KernelPCA"]


def dense(weight, new, count):
    """Return eigenvalues and components of new rows of kernel PCA by the centred n×n matrix."""
    w = np.ones(len(X)) if weight is None else weight
    centre = np.eye(len(X)) - np.outer(np.ones(len(X)), w / w.sum())
    K, root = centre @ KERNEL(X) @ centre.T, np.sqrt(w)
    values, U = np.linalg.eigh(root[:, None] * K * root)
    values, U = values[::-1][:count], U[:, ::-1][:, :count]
    of_new = (KERNEL(new, X) - w @ KERNEL(X) / w.sum()) @ centre.T
    return values, of_new @ (root[:, None] * U) / np.sqrt(values)


def test_the_example_is_short(example):
    assert len(example[0].splitlines()) <= 41


def test_a_method_has_few_members():
    members = {name for name in {*vars(Method), *Method.__annotations__} if not name.startswith("_")}
    assert len(members) <= MOST_MEMBERS, sorted(members)


@pytest.mark.parametrize("name", estimators.__all__)
def test_editors_and_mypy_find_the_parameters_of_an_estimator(name):
    kind = getattr(bigkernel, name)
    annotated = {one for base in kind.__mro__ for one in vars(base).get("__annotations__", {})}
    assert set(kind._get_param_names()) <= annotated


def test_the_design_shows_the_source_of_the_fit():
    shown = [inspect.getsource(one) for one in (fitting.fit, fitting.fit_sums)]
    assert all(source in DESIGN for source in shown)
    assert sum(len(source.splitlines()) for source in shown) <= 60


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["", "weighted"])
def test_with_every_row_a_landmark_it_is_dense_kernel_pca(example, weight):
    model = example[1](KERNEL, 4, landmarks=X, n_landmarks=None).fit(X, sample_weight=weight)
    values, z = dense(weight, NEW, 4)
    assert_allclose(model.eigenvalues_, values, rtol=1e-9)
    assert_allclose(up_to_sign(model.transform(NEW), z), z, atol=1e-7)


def test_components_of_few_landmarks_are_those_of_their_kernel(example):
    model = example[1](KERNEL, 3, n_landmarks=15, random_state=0).fit(X)
    z = model.transform(X)
    assert_allclose(z.mean(axis=0), 0, atol=1e-12)
    assert_allclose(z.T @ z, np.diag(model.eigenvalues_), atol=1e-8)


def test_the_example_streams_refits_and_can_be_saved(example, tmp_path, monkeypatch):
    kind = example[1]
    model = kind(KERNEL, 3, n_landmarks=15, random_state=0).fit(X)
    lazy = clone(model).fit(da.from_array(X, chunks=(30, 3)))
    assert_allclose(np.abs(lazy.transform(NEW)), np.abs(model.transform(NEW)), atol=1e-9)
    assert model.set_params(n_components=2).refit().transform(NEW).shape == (20, 2)
    known = persistence._class_of
    monkeypatch.setattr(persistence, "_class_of", lambda name: kind if name == "KernelPCA" else known(name))
    persistence.save_model(model, tmp_path / "model")
    loaded = persistence.load_model(tmp_path / "model")
    assert_array_equal(loaded.transform(NEW), model.transform(NEW))
    assert_array_equal(loaded.refit().eigenvalues_, model.eigenvalues_)


def test_components_are_features_of_another_model(example):
    features = example[1](KERNEL, 30, landmarks=X[:40], n_landmarks=None).fit(X)
    model = KernelRidge("linear", alpha=1e-6, fit_intercept=True).fit(features.transform(X), np.sin(X[:, 0]))
    assert model.score(features.transform(X), np.sin(X[:, 0])) > 0.98
