"""Every estimator passes the estimator checks of scikit-learn."""

import numpy as np
import pytest
from sklearn.base import TransformerMixin
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import _num_samples

import bigkernel
from bigkernel.engine.rows import as_rows
from bigkernel.estimators.inputs.read import read_cells
from bigkernel.estimators.inputs.training import Training
from bigkernel.solvers.pseudo_labels import SourceTarget
from bigkernel.statistics.domain_cells import Cells

ESTIMATORS = [  # one of each base class and form
    bigkernel.KernelRidge(n_landmarks=5, random_state=0),
    bigkernel.SSSLClassifier(n_landmarks=5, random_state=0),
    bigkernel.Nystroem(n_components=5, random_state=0),
    bigkernel.DICA(supervised=True, allow_single_domain=True, n_landmarks=5, random_state=0),
    bigkernel.KernelRidgeClassifier(n_landmarks=5, probability=True, random_state=0),
    bigkernel.Ridge(),
    bigkernel.Standardizer(),
]
VARIANTS = [
    bigkernel.KernelRidgeClassifier(),
    bigkernel.RandomFourier(random_state=0),
    bigkernel.XNV(n_landmarks=5, random_state=0),
    bigkernel.KernelLogisticClassifier(n_landmarks=5, random_state=0),
    bigkernel.Projector(2, whiten=True),
    bigkernel.SSSL(n_landmarks=5, random_state=0),
    bigkernel.SSSLClassifier(manifold=0),
    bigkernel.XNVClassifier(n_landmarks=5, probability=True, random_state=0),
    bigkernel.DICA(supervised=False, allow_single_domain=True, random_state=0),
    bigkernel.LinearRegression(),
    bigkernel.Rescaler(2.0),
    bigkernel.UnitNormalizer(),
    bigkernel.TableEncoder(),
    bigkernel.LearnedMetric(method="gradient", n_landmarks=8, max_iter=1, random_state=0),
    bigkernel.PartitionedRegressor(bigkernel.KernelRidge(alpha=0.1), 2, random_state=0),
    bigkernel.PartitionedClassifier(None, 2, random_state=0),
    bigkernel.ResidualRegressor([("trend", bigkernel.Ridge()), ("kernel", bigkernel.KernelRidge())]),
    bigkernel.TabularRegressor(time_limit=0, random_state=0),
    bigkernel.TabularClassifier(time_limit=0, random_state=0),
    bigkernel.Kriging(0.5, trend="constant", random_state=0),
    bigkernel.RowUnion([("z", bigkernel.Standardizer()), ("norm", bigkernel.UnitNormalizer())]),
]
SEMI_SUPERVISED = bigkernel.SSSLClassifier | bigkernel.XNVClassifier | bigkernel.ARTLClassifier


def expected_failures(estimator):
    """Return the checks that contradict a documented promise of ours, each with the promise."""
    failures = {}
    if isinstance(estimator, SEMI_SUPERVISED):
        failures["check_classifiers_classes"] = "uses −1 as a class, which means unlabelled in semi-supervised learning"
    if getattr(estimator, "n_landmarks", None) is not None:
        failures["check_sample_weight_equivalence_on_dense_data"] = "repeated rows change the choice of landmarks"
        failures["check_regressors_train"] = "five landmarks do not fit ten features to R² > 0.5"
    if isinstance(estimator, bigkernel.KernelLogisticClassifier | bigkernel.JDA):
        failures["check_sample_weight_equivalence_on_dense_data"] = "landmarks are rows of any weight"
    if isinstance(estimator, bigkernel.Kriging):
        for kind in ("dense", "sparse"):
            failures[f"check_sample_weight_equivalence_on_{kind}_data"] = "weights do not count in the variogram"
    if hasattr(estimator, "n_leaves"):
        failures["check_sample_weight_equivalence_on_dense_data"] = "rows are split by their number"
    if getattr(estimator, "probability", False) or hasattr(estimator, "time_limit"):
        failures["check_sample_weight_equivalence_on_dense_data"] = "a row and its copies are held out in other folds"
    same = failures.get("check_sample_weight_equivalence_on_dense_data")
    return failures | ({} if same is None else {"check_sample_weight_equivalence_on_sparse_data": same})


@pytest.mark.filterwarnings("ignore::bigkernel.errors.RankDeficiencyWarning")
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=expected_failures)
def test_estimator_keeps_the_contract_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::bigkernel.errors.RankDeficiencyWarning")
@parametrize_with_checks(VARIANTS, expected_failed_checks=expected_failures)
def test_variants_keep_the_contract_of_scikit_learn(estimator, check):
    check(estimator)


class OnItself:
    """Every row is both a labelled source row and an unlabelled target row."""

    def _read_fit(self, X, y, sample_domain, sample_weight):
        data = read_cells(self, X, y, sample_domain, sample_weight, fallback="labels")
        rows, cells = data.rows, data.targets
        chunk = rows.read(0, len(rows))
        label = cells.label(chunk)
        weight = None if chunk.weight is None else np.tile(chunk.weight, 2)
        twice = as_rows(np.vstack([chunk.x, chunk.x]), np.concatenate([label, np.full(len(label), -1)]), weight=weight)
        sides = SourceTarget(Cells(None, np.arange(cells.n_classes)), np.array([True, False]))
        return Training(twice, sides, data.inputs)


class ARTLClassifierOnItself(OnItself, bigkernel.ARTLClassifier):
    pass


class JDAOnItself(OnItself, bigkernel.JDA):
    pass


class HalfEach:
    """Every other row is of the source, also where rows are transformed again."""

    def fit(self, X, y=None):
        return super().fit(X, sample_domain=np.arange(_num_samples(X)) % 2 * 2 - 1)

    fit_transform = TransformerMixin.fit_transform


class CORALOfHalves(HalfEach, bigkernel.CORAL):
    pass


class SubspaceAlignmentOfHalves(HalfEach, bigkernel.SubspaceAlignment):
    pass


ADAPTED = [
    CORALOfHalves(),
    SubspaceAlignmentOfHalves(),
    ARTLClassifierOnItself(n_landmarks=12, n_rounds=1, probability=True, random_state=0),
    JDAOnItself(n_rounds=1),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::bigkernel.errors.RankDeficiencyWarning")
@pytest.mark.filterwarnings("ignore::bigkernel.errors.AccuracyWarning")
@pytest.mark.filterwarnings("ignore::bigkernel.errors.CollapsedLabelsWarning")
@parametrize_with_checks(ADAPTED, expected_failed_checks=expected_failures)
def test_adaptation_on_its_own_rows_keeps_the_contract_of_scikit_learn(estimator, check):
    check(estimator)
