"""JDA, ARTLClassifier and SSSL's rounds on a cluster, and on the digits that the papers adapt to one another."""

import numpy as np
import pytest
from sklearn.cluster import KMeans

from bigkernel import ARTLClassifier, KernelRidgeClassifier
from pipelines.shared.experiments import digit_pair

rng = np.random.default_rng(23)
N, D = 300, 4
TRUTH = np.resize([0, 1, 2], N)
X = rng.normal(size=(N, D)) + 3 * np.eye(D)[TRUTH]
X[N // 2 :] += 0.5
Y = np.where(np.arange(N) < N // 2, TRUTH, -1)
ORDER = rng.permutation(N)


@pytest.fixture(scope="module")
def digits(data_dir):
    """Source, its labels, target, its labels, and k-means landmarks of both: USPS to MNIST, and back."""
    usps, usps_labels, mnist, mnist_labels = digit_pair(data_dir)
    centres = KMeans(150, n_init=1, max_iter=8, random_state=0).fit(np.vstack([usps, mnist])).cluster_centers_
    return [(usps, usps_labels, mnist, mnist_labels, centres), (mnist, mnist_labels, usps, usps_labels, centres)]


@pytest.mark.parametrize(("way", "promised"), [(0, 60.0), (1, 78.0)], ids=["USPS to MNIST", "MNIST to USPS"])
def test_digits_of_the_other_kind_are_read_twice_as_well_as_without_them(digits, way, promised):
    source, labels, target, truth, centres = digits[way]
    rows, partly = np.vstack([source, target]), np.concatenate([labels, np.full(len(target), -1)])
    model = ARTLClassifier(landmarks=centres, n_rounds=5).fit(rows, partly)
    plain = KernelRidgeClassifier(model.kernel_, alpha=0.1, landmarks=centres).fit(source, labels)
    adapted, alone = (100 * np.mean(m.predict(target) == truth) for m in (model, plain))
    assert adapted > promised
    assert adapted > alone + 15
    told = [entry["equivocation"] for entry in model.rounds_]
    assert told[-1] < told[0] / 2


@pytest.mark.slow
@pytest.mark.parametrize("draw", [0, 1])
def test_no_draw_of_the_default_landmarks_is_a_bad_one(digits, draw):
    source, labels, target, truth, _ = digits[1]
    rows, partly = np.vstack([source, target]), np.concatenate([labels, np.full(len(target), -1)])
    model = ARTLClassifier(n_landmarks=500, random_state=draw).fit(rows, partly)
    assert np.mean(model.predict(target) == truth) > 0.87  # of rows that are drawn uniformly 0.80 and 0.83
