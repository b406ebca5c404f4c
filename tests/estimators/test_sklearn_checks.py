"""Every estimator keeps scikit-learn's contract: its own suite of checks, on each."""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from bigkernel import (
    DICA,
    JDA,
    SSSL,
    XNV,
    ARTLClassifier,
    KernelLogisticClassifier,
    KernelRidge,
    KernelRidgeClassifier,
    LinearRegression,
    Nystroem,
    Projector,
    RandomFourier,
    Rescaler,
    Ridge,
    RowUnion,
    SSSLClassifier,
    Standardizer,
    UnitNormalizer,
    XNVClassifier,
)
from bigkernel.engine.rows import as_rows
from bigkernel.estimators.fit_state import Training
from bigkernel.estimators.inputs import read_cells
from bigkernel.solvers.pseudo_labels import SourceTarget
from bigkernel.statistics.domain_cells import Cells

ESTIMATORS = [  # one a base class and form
    KernelRidge(n_landmarks=5, random_state=0),
    SSSLClassifier(n_landmarks=5, random_state=0),
    Nystroem(n_components=5, random_state=0),
    DICA(supervised=True, allow_single_domain=True, n_landmarks=5, random_state=0),
    KernelRidgeClassifier(n_landmarks=5, probability=True, random_state=0),
    Ridge(),
    Standardizer(),
]
VARIANTS = [
    KernelRidgeClassifier(),
    RandomFourier(random_state=0),
    XNV(n_landmarks=5, random_state=0),
    KernelLogisticClassifier(n_landmarks=5, random_state=0),
    Projector(2, whiten=True),
    SSSL(n_landmarks=5, random_state=0),
    SSSLClassifier(),
    XNVClassifier(n_landmarks=5, probability=True, random_state=0),
    DICA(supervised=False, allow_single_domain=True, random_state=0),
    LinearRegression(),
    Rescaler(2.0),
    UnitNormalizer(),
    RowUnion([("z", Standardizer()), ("norm", UnitNormalizer())]),
]


def expected_failures(estimator):
    """Checks that a documented promise of ours contradicts, each with the promise."""
    failures = {}
    if isinstance(estimator, SSSLClassifier | XNVClassifier):
        failures["check_classifiers_classes"] = "uses −1 as a class, which means unlabelled in semi-supervised learning"
    if getattr(estimator, "n_landmarks", None) is not None:
        failures["check_sample_weight_equivalence_on_dense_data"] = "repeated rows change the draw of landmarks"
        failures["check_regressors_train"] = "five landmarks do not fit ten features to R² > 0.5"
    if isinstance(estimator, KernelLogisticClassifier):
        failures["check_sample_weight_equivalence_on_dense_data"] = "landmarks are rows whatever their weight"
    if getattr(estimator, "probability", False):
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
    """Every row once with its label, once without."""

    def _read_fit(self, X, y, sample_domain, sample_weight):
        data = read_cells(self, X, y, sample_domain, sample_weight, fallback="labels")
        rows, cells = data.rows, data.targets
        chunk = rows.read(0, len(rows))
        label = cells.label(chunk)
        weight = None if chunk.weight is None else np.tile(chunk.weight, 2)
        twice = as_rows(np.vstack([chunk.x, chunk.x]), np.concatenate([label, np.full(len(label), -1)]), weight=weight)
        sides = SourceTarget(Cells(None, np.arange(cells.n_classes)), np.array([True, False]))
        return Training(twice, sides, data.inputs)


class ARTLClassifierOnItself(OnItself, ARTLClassifier):
    pass


class JDAOnItself(OnItself, JDA):
    pass


ADAPTED = [
    ARTLClassifierOnItself(n_landmarks=12, n_rounds=1, probability=True, random_state=0),
    JDAOnItself(n_rounds=1),
]


def expected_failures_of_adapted(estimator):
    """Checks that a documented promise of ours contradicts, each with the promise."""
    weighted = "landmarks are rows whatever their weight, and the width of the kernel is that of their distances"
    return {
        "check_classifiers_classes": "uses −1 as a class, which means unlabelled in semi-supervised learning",
        "check_sample_weight_equivalence_on_dense_data": weighted,
        "check_sample_weight_equivalence_on_sparse_data": weighted,
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::bigkernel.errors.RankDeficiencyWarning")
@pytest.mark.filterwarnings("ignore::bigkernel.errors.AccuracyWarning")
@pytest.mark.filterwarnings("ignore::bigkernel.errors.CollapsedLabelsWarning")
@parametrize_with_checks(ADAPTED, expected_failed_checks=expected_failures_of_adapted)
def test_adaptation_on_its_own_rows_keeps_the_contract_of_scikit_learn(estimator, check):
    check(estimator)
