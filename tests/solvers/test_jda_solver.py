"""Limits of transfer components and joint distribution adaptation; test_jda.py has their n×n forms."""

import numpy as np
import reference

from bigkernel.solvers.adaptation import Aligned, components, slope
from bigkernel.solvers.pseudo_labels import PseudoLabels
from bigkernel.solvers.whitening import whiten
from bigkernel.statistics.moments import Moments

rng = np.random.default_rng(8)
N_S, N_T, D, MU = 26, 22, 6, 0.7
X = np.vstack([rng.normal(size=(N_S, D)), rng.normal(size=(N_T, D)) + 0.5])
LABEL = rng.integers(0, 3, N_S)
LABEL[:3] = 0, 1, 2
X[:N_S] += LABEL[:, None] * 0.5
K = reference.gaussian(X, X, 1.5)
WHITENING = whiten(K)
PREDICTED = rng.integers(0, 3, N_T)
PHI = WHITENING.reduce(K).T


def moments(Phi, Y):
    ones = np.ones(len(Phi))
    return Moments(float(len(Phi)), float(len(Phi)), Phi.T @ Phi, Phi.T @ Y, ones @ Phi, ones @ Y, ones @ Y**2)


ALIGNED = Aligned(moments(PHI[N_S:], np.zeros((N_T, 3))), moments(PHI[:N_S], np.eye(3)[LABEL]))


def pseudo_labels(labels, classes=3):
    Q = np.eye(classes)[labels]
    return PseudoLabels(PHI[N_S:].T @ Q, Q.sum(axis=0))


def test_a_class_that_one_side_lacks_has_no_difference():
    assert ALIGNED.classes_apart(pseudo_labels(np.where(PREDICTED == 2, 0, PREDICTED))).shape[1] == 2
    without = Moments(**{**ALIGNED.source.__dict__, "t": ALIGNED.source.t * [1, 0, 1]})
    assert Aligned(ALIGNED.target, without).classes_apart(pseudo_labels(PREDICTED)).shape[1] == 2


def test_the_slope_of_labels_is_zero_where_f_does_not_vary_on_the_target():
    assert slope(ALIGNED, np.zeros((PHI.shape[1], 3)), 5.0) == 0


def test_the_rank_bounds_the_components():
    values, W = components(ALIGNED, pseudo_labels(PREDICTED), 500, MU)
    assert len(values) == W.shape[1] <= N_S + N_T - 1
