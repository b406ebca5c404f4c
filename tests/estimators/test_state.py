"""The state of an estimator is one value: parameters are never written by fit, and nobody outside sets or reads it."""

import ast
import pickle
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

import bigkernel
from bigkernel import (
    DICA,
    JDA,
    SSSL,
    XNV,
    ARTLClassifier,
    ConvolutionalNystroem,
    Gaussian,
    KernelLogisticClassifier,
    KernelRidge,
    KernelRidgeClassifier,
    LinearRegression,
    MomentNormalizer,
    Nystroem,
    OrientationFeatures,
    Projector,
    RandomFourier,
    Rescaler,
    Ridge,
    RowUnion,
    SSSLClassifier,
    Standardizer,
    SweepSearchCV,
    UnitNormalizer,
    XNVClassifier,
    estimators,
)
from bigkernel.estimators.fit_state import ExactFit, IterativeFit, MomentFit

rng = np.random.default_rng(5)
N, D = 60, 4
X = rng.normal(size=(N, D))
Y = np.sin(X[:, 0])
LABELS = np.digitize(X[:, 0], [-0.5, 0.5])
PARTLY = np.where(np.arange(N) < 40, LABELS, -1)
DOMAINS = np.arange(N) % 3
DRAWN = {"n_landmarks": 12, "random_state": 0}
GIVEN = {"landmarks": X[:12].copy()}
SEARCH = SweepSearchCV(KernelRidge(Gaussian(1.4), **DRAWN), {"alpha": [0.1, 1.0]}, cv=3)

FITS = {
    "krr": (KernelRidge(Gaussian(1.4), **DRAWN), (Y,)),
    "krr exact": (KernelRidge(alpha="gcv"), (Y,)),
    "krr of given landmarks": (KernelRidge(**GIVEN), (Y,)),
    "krr of random features": (KernelRidge(landmarks="fourier", **DRAWN), (Y,)),
    "classifier": (KernelRidgeClassifier("laplacian", **DRAWN), (LABELS,)),
    "logistic": (KernelLogisticClassifier(Gaussian(1.4), **DRAWN), (LABELS,)),
    "sssl": (SSSL(n_components=5, **DRAWN), (Y,)),
    "sssl exact": (SSSLClassifier(n_components=5), (PARTLY,)),
    "xnv": (XNV(n_landmarks=8, random_state=0), (Y,)),
    "xnv of given landmarks": (XNVClassifier(**GIVEN), (PARTLY,)),
    "dica": (DICA(**DRAWN), (LABELS, DOMAINS)),
    "dica exact": (DICA(supervised=False), (None, DOMAINS)),
    "jda": (JDA(n_components=3, n_rounds=2, **DRAWN), (PARTLY,)),
    "jda of every row": (JDA(n_components=3, n_rounds=1), (PARTLY,)),
    "artl": (ARTLClassifier(n_rounds=1, **DRAWN), (PARTLY,)),
    "artl of every row": (ARTLClassifier(n_rounds=1), (PARTLY,)),
    "least squares": (LinearRegression(), (Y,)),
    "ridge": (Ridge(), (Y,)),
    "nystroem": (Nystroem(n_components=8, random_state=0), ()),
    "random features": (RandomFourier(n_components=8, random_state=0), ()),
    "rescaler": (Rescaler(0.5), ()),
    "unit norm": (UnitNormalizer(), ()),
    "standardizer": (Standardizer(), ()),
    "pose": (MomentNormalizer(image_shape=(2, 2)), ()),
    "strokes": (OrientationFeatures(), ()),
    "projector": (Projector(2), ()),
    "side by side": (RowUnion([("z", Standardizer()), ("norm", UnitNormalizer())]), ()),
    "patches": (ConvolutionalNystroem(patch_size=2, n_landmarks=3, random_state=0), ()),
    "search": (SEARCH, (Y,)),
}
every_fit = pytest.mark.parametrize("model, given", FITS.values(), ids=FITS)
legitimate = pytest.mark.filterwarnings("ignore::bigkernel.errors.RankDeficiencyWarning")
stateful = [name for name, (model, _) in FITS.items() if hasattr(model, "_fitted")]


def test_every_public_estimator_is_fitted_here():
    assert {type(model).__name__ for model, _ in FITS.values()} == {*estimators.__all__, "SweepSearchCV"}


@legitimate
@every_fit
def test_fit_writes_no_parameter(model, given):
    kind, written = type(model), []
    model = clone(model)
    before = model.get_params(deep=False)

    def spy(self, name, value):
        if self is model:
            written.append(name)
        object.__setattr__(self, name, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "__setattr__", spy, raising=False)
        model.fit(X, *given)
    after = model.get_params(deep=False)
    assert written
    assert not set(written) & set(before)
    assert all(after[name] is value for name, value in before.items())


@legitimate
@pytest.mark.parametrize("name", stateful)
def test_the_state_of_an_estimator_is_one_value(name):
    model, given = FITS[name]
    model = clone(model).fit(X, *given)
    assert set(vars(model)) - set(model.get_params()) == {"n_features_in_", "_fitted"}
    kind = IterativeFit if name == "logistic" else ExactFit if "exact" in name else MomentFit
    assert isinstance(model._fitted, kind) or name == "nystroem"
    for attribute in ("landmarks_", "dual_coef_", "coef_", "statistics_"):
        if hasattr(model, attribute):
            with pytest.raises(AttributeError, match=r"."):
                setattr(model, attribute, None)


@legitimate
@pytest.mark.parametrize("name", stateful)
def test_a_fit_is_seen_copied_pickled_and_not_cloned(name):
    model, given = FITS[name]
    model = clone(model)
    with pytest.raises(NotFittedError):
        check_is_fitted(model)
    assert not hasattr(model, "rank_")
    assert not hasattr(model, "alpha_")
    use = "predict" if hasattr(model, "predict") else "transform"
    wanted = getattr(model.fit(X, *given), use)(X)
    for other in (deepcopy(model), pickle.loads(pickle.dumps(model))):
        check_is_fitted(other)
        assert_array_equal(getattr(other, use)(X), wanted)
    with pytest.raises(NotFittedError):
        check_is_fitted(clone(model))


def test_a_fit_that_fails_leaves_the_fit_before():
    model = KernelRidge(Gaussian(1.4), **DRAWN).fit(X, Y)
    wanted, state = model.predict(X), model._fitted
    with pytest.raises(bigkernel.errors.DataError, match="landmarks: expected"):
        model.set_params(landmarks=X[:5, :1]).fit(X, Y)
    assert model._fitted is state
    assert_array_equal(model.predict(X), wanted)


PRIVATE = {
    name
    for path in Path(estimators.__file__).parent.glob("*.py")
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, ast.ClassDef)
    for part in ast.walk(node)
    for name in (
        [part.name]
        if isinstance(part, ast.FunctionDef)
        else [part.attr]
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "self"
        else []
    )
    if name.startswith("_") and not name.startswith("__")
}
OUTSIDE = [
    path for package in ("search", "cli") for path in sorted((Path(bigkernel.__file__).parent / package).rglob("*.py"))
]


def trespasses(source):
    """Private attributes of estimators that are read or set, fitted attributes that are set, and every setattr."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
            fitted = node.attr.endswith("_") and not node.attr.startswith("_")
            if node.attr in PRIVATE or (fitted and isinstance(node.ctx, ast.Store)):
                yield f"{node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
            yield f"{node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_nobody_outside_touches_what_is_private_to_estimators(path):
    assert not list(trespasses(path.read_text()))


def test_a_trespass_is_seen():
    assert {"_fitted", "_method", "_read_fit"} <= PRIVATE
    source = "last._fitted = 1\nlast.shift_ = 2\nlast._method()\nsetattr(last, 'alpha', 1)\nself._fitted\nlast.alpha_\n"
    assert sorted(text.split(":")[0] for text in trespasses(source)) == ["1", "2", "3", "4"]
