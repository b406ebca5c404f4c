"""The bandwidth from the median distance of landmarks."""

import numpy as np
from numpy.testing import assert_allclose

from bigkernel.kernels.bandwidths import MOST_POINTS, MedianGaussian, median_width
from bigkernel.kernels.functions import Gaussian

rng = np.random.default_rng(2)


def test_the_width_is_the_share_of_the_median_distance_over_all_pairs():
    Z = rng.normal(size=(31, 4))
    squares = [((a - b) ** 2).sum() for i, a in enumerate(Z) for b in Z[:i]]
    assert_allclose(median_width(Z), 0.7 * np.sqrt(np.median(squares)), rtol=1e-12)
    assert_allclose(median_width(10 * Z), 10 * median_width(Z), rtol=1e-12)


def test_repeated_landmarks_count_for_no_distance():
    Z = np.array([[0.0], [0.0], [0.0], [2.0]])
    assert_allclose(median_width(Z, share=1.0), 2.0)
    assert median_width(np.zeros((5, 2))) == median_width(np.zeros((1, 2))) == 1.0


def test_many_landmarks_are_thinned():
    Z = rng.normal(size=(3 * MOST_POINTS, 2))
    assert_allclose(median_width(Z), median_width(Z[: 2 * MOST_POINTS : 2]), rtol=0.05)


def test_resolved_it_is_a_plain_gaussian():
    Z = rng.normal(size=(9, 3))
    resolved = MedianGaussian().resolve(Z)
    assert type(resolved) is Gaussian
    assert resolved.sigma == median_width(Z)
