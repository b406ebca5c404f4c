"""The state of an estimator is one value, and fit writes no parameter."""

import pickle
from copy import deepcopy

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

import bigkernel
from bigkernel import estimators
from bigkernel.estimators.fit.state import BlendFit, ExactFit, IterativeFit, KrigingFit, MomentFit

rng = np.random.default_rng(5)
N, D = 60, 4
X = rng.normal(size=(N, D))
Y = np.sin(X[:, 0])
LABELS = np.digitize(X[:, 0], [-0.5, 0.5])
PARTLY = np.where(np.arange(N) < 40, LABELS, -1)
DOMAINS = np.arange(N) % 3
# classes that are drawn at random have no means to compare
pytestmark = pytest.mark.filterwarnings("ignore::bigkernel.errors.DifferentClassesWarning")
SAMPLED = {"n_landmarks": 12, "random_state": 0}
GIVEN = {"landmarks": X[:12].copy()}
SEARCH = bigkernel.SweepSearchCV(bigkernel.KernelRidge(bigkernel.Gaussian(1.4), **SAMPLED), {"alpha": [0.1, 1.0]}, cv=3)

FITS = {
    "krr": (bigkernel.KernelRidge(bigkernel.Gaussian(1.4), **SAMPLED), (Y,)),
    "krr exact": (bigkernel.KernelRidge(alpha="gcv"), (Y,)),
    "krr by folds": (bigkernel.KernelRidge(alpha="cv", **SAMPLED), (Y,)),
    "krr of given landmarks": (bigkernel.KernelRidge(**GIVEN), (Y,)),
    "krr of random features": (bigkernel.KernelRidge(landmarks="fourier", **SAMPLED), (Y,)),
    "classifier": (bigkernel.KernelRidgeClassifier("laplacian", **SAMPLED), (LABELS,)),
    "logistic": (bigkernel.KernelLogisticClassifier(bigkernel.Gaussian(1.4), **SAMPLED), (LABELS,)),
    "metric": (bigkernel.LearnedMetric(method="gradient", n_landmarks=12, random_state=0), (Y,)),
    "leaves": (bigkernel.PartitionedRegressor(n_leaves=2, random_state=0), (Y,)),
    "leaves of classes": (bigkernel.PartitionedClassifier(n_leaves=2, random_state=0), (LABELS,)),
    "stages": (bigkernel.ResidualRegressor([("krr", bigkernel.KernelRidge(**SAMPLED))]), (Y,)),
    "table": (bigkernel.TabularRegressor(time_limit=0, random_state=0), (Y,)),
    "table of classes": (bigkernel.TabularClassifier(time_limit=0, random_state=0), (LABELS,)),
    "kriging": (bigkernel.Kriging(n_neighbors=40, random_state=0), (Y,)),
    "sssl": (bigkernel.SSSL(n_components=5, **SAMPLED), (Y,)),
    "sssl exact": (bigkernel.SSSLClassifier(n_components=5, manifold=0), (PARTLY,)),
    "sssl of a graph": (bigkernel.SSSLClassifier(n_components=5), (PARTLY,)),
    "xnv": (bigkernel.XNV(n_landmarks=8, random_state=0), (Y,)),
    "xnv of given landmarks": (bigkernel.XNVClassifier(**GIVEN), (PARTLY,)),
    "dica": (bigkernel.DICA(**SAMPLED), (LABELS, DOMAINS)),
    "dica exact": (bigkernel.DICA(supervised=False), (None, DOMAINS)),
    "jda": (bigkernel.JDA(n_components=3, n_rounds=2, **SAMPLED), (PARTLY,)),
    "jda of its own landmarks": (bigkernel.JDA(n_components=3, n_rounds=1), (PARTLY,)),
    "artl": (bigkernel.ARTLClassifier(n_rounds=1, **SAMPLED), (PARTLY,)),
    "artl of its own landmarks": (bigkernel.ARTLClassifier(n_rounds=1), (PARTLY,)),
    "least squares": (bigkernel.LinearRegression(), (Y,)),
    "ridge": (bigkernel.Ridge(), (Y,)),
    "nystroem": (bigkernel.Nystroem(n_components=8, random_state=0), ()),
    "importance": (bigkernel.ImportanceWeights(n_landmarks=8, random_state=0), (PARTLY,)),
    "random features": (bigkernel.RandomFourier(n_components=8, random_state=0), ()),
    "rescaler": (bigkernel.Rescaler(0.5), ()),
    "unit norm": (bigkernel.UnitNormalizer(), ()),
    "standardizer": (bigkernel.Standardizer(), ()),
    "pose": (bigkernel.MomentNormalizer(image_shape=(2, 2)), ()),
    "strokes": (bigkernel.OrientationFeatures(), ()),
    "sphere": (bigkernel.OnSphere(0, 1), ()),
    "periodic": (bigkernel.Periodic(0, 2.0), ()),
    "projector": (bigkernel.Projector(2), ()),
    "encoder": (bigkernel.TableEncoder(), ()),
    "correlations": (bigkernel.CORAL(), (PARTLY,)),
    "subspaces": (bigkernel.SubspaceAlignment(2), (PARTLY,)),
    "side by side": (bigkernel.RowUnion([("z", bigkernel.Standardizer()), ("norm", bigkernel.UnitNormalizer())]), ()),
    "labelled rows": (bigkernel.LabelledRowsClassifier(bigkernel.KernelRidgeClassifier()), (PARTLY,)),
    "search": (SEARCH, (Y,)),
}
every_fit = pytest.mark.parametrize("model, given", FITS.values(), ids=FITS)
ignore_rank_warnings = pytest.mark.filterwarnings("ignore::bigkernel.errors.RankDeficiencyWarning")
stateful = [name for name, (model, _) in FITS.items() if hasattr(model, "_fitted")]


def test_every_public_estimator_is_fitted_here():
    assert {type(model).__name__ for model, _ in FITS.values()} == {*estimators.__all__, "SweepSearchCV"}


@ignore_rank_warnings
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


@ignore_rank_warnings
@pytest.mark.parametrize("name", stateful)
def test_the_state_of_an_estimator_is_one_value(name):
    model, given = FITS[name]
    model = clone(model).fit(X, *given)
    assert set(vars(model)) - set(model.get_params()) == {"n_features_in_", "_fitted"}
    kinds = {
        "logistic": IterativeFit,
        "leaves": BlendFit,
        "leaves of classes": BlendFit,
        "stages": BlendFit,
        "kriging": KrigingFit,
    }
    kind = kinds.get(name, ExactFit if "exact" in name else MomentFit)
    assert isinstance(model._fitted, kind) or name in ("nystroem", "importance")
    for attribute in ("landmarks_", "dual_coef_", "coef_", "statistics_"):
        if hasattr(model, attribute):
            with pytest.raises(AttributeError, match=r"."):
                setattr(model, attribute, None)


@ignore_rank_warnings
@pytest.mark.parametrize("name", stateful)
def test_a_fit_is_copied_and_pickled_and_not_cloned(name):
    model, given = FITS[name]
    model = clone(model)
    with pytest.raises(NotFittedError):
        check_is_fitted(model)
    assert not hasattr(model, "rank_")
    assert not hasattr(model, "alpha_")
    use = "predict" if hasattr(model, "predict") else "transform"
    expected = getattr(model.fit(X, *given), use)(X)
    for other in (deepcopy(model), pickle.loads(pickle.dumps(model))):
        check_is_fitted(other)
        assert_array_equal(getattr(other, use)(X), expected)
    with pytest.raises(NotFittedError):
        check_is_fitted(clone(model))


def test_a_failed_fit_keeps_the_last_fit():
    model = bigkernel.KernelRidge(bigkernel.Gaussian(1.4), **SAMPLED).fit(X, Y)
    expected, state = model.predict(X), model._fitted
    with pytest.raises(bigkernel.errors.DataError, match="landmarks: expected"):
        model.set_params(landmarks=X[:5, :1]).fit(X, Y)
    assert model._fitted is state
    assert_array_equal(model.predict(X), expected)
