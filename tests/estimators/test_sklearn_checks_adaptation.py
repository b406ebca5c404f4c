"""scikit-learn's checks on estimators that need a target: adapted to the rows they are trained on."""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from bigkernel import JDA, ARTLClassifier
from bigkernel.engine.rows import as_rows
from bigkernel.solvers.pseudo_labels import Sides
from bigkernel.statistics.domain_cells import Cells


class OnItself:
    """Every row once with its label, once without."""

    def _read_fit(self, X, y, sample_domain, sample_weight):
        rows, cells, inputs = self._read(X, y, sample_domain, sample_weight, fallback="labels")
        chunk = rows.read(0, len(rows))
        label = cells.label(chunk)
        weight = None if chunk.weight is None else np.tile(chunk.weight, 2)
        twice = as_rows(np.vstack([chunk.x, chunk.x]), np.concatenate([label, np.full(len(label), -1)]), weight=weight)
        return twice, Sides(Cells(None, np.arange(cells.n_classes)), np.array([True, False])), inputs


class ARTLClassifierOnItself(OnItself, ARTLClassifier):
    pass


class JDAOnItself(OnItself, JDA):
    pass


ESTIMATORS = [
    ARTLClassifierOnItself(n_rounds=2),
    ARTLClassifierOnItself(n_landmarks=12, n_rounds=1, random_state=0),
    ARTLClassifierOnItself(n_landmarks=12, n_rounds=1, probability=True, random_state=0),
    JDAOnItself(n_rounds=1),
]


def expected_failures(estimator):
    """Checks that a documented promise of ours contradicts, each with the promise."""
    weighted = "landmarks are rows whatever their weight, and the width of the kernel is that of their distances"
    return {
        "check_classifiers_classes": "uses −1 as a class, which means unlabelled in semi-supervised learning",
        "check_sample_weight_equivalence_on_dense_data": weighted,
        "check_sample_weight_equivalence_on_sparse_data": weighted,
    }


@pytest.mark.filterwarnings("ignore::bigkernel.errors.RankDeficient")
@pytest.mark.filterwarnings("ignore::bigkernel.errors.Inaccurate")
@pytest.mark.filterwarnings("ignore::bigkernel.errors.PseudoLabelsCollapsed")
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=expected_failures)
def test_estimator_keeps_the_contract_of_scikit_learn(estimator, check):
    check(estimator)
