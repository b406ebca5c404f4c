"""Adaptation regularization against its n×n form: rounds, weights, landmarks, pieces switched off."""

import numpy as np
import pytest
import reference
import reference_adaptation as dense
from numpy.testing import assert_allclose

from bigkernel.solvers.adaptation import Aligned, Strengths, adaptation_ridge, slope
from bigkernel.solvers.anchor_graph import laplacian
from bigkernel.solvers.pseudo_labels import PseudoLabels, soft_labels
from bigkernel.solvers.whitening import whiten
from bigkernel.statistics.moments import Moments

rng = np.random.default_rng(8)
N_S, N_T, D, M = 30, 24, 4, 16
LABEL = np.resize([0, 1, 2], N_S)
X = np.vstack([rng.normal(size=(N_S, D)) + LABEL[:, None], rng.normal(size=(N_T, D)) + rng.integers(0, 3, (N_T, 1))])
Z = X[:: len(X) // M][:M] + 0.01
WEIGHT = rng.uniform(0.2, 2, N_S + N_T)
B, CORE = reference.gaussian(X, Z, 1.6), reference.gaussian(Z, Z, 1.6)
WHITENING = whiten(CORE)
PHI = WHITENING.reduce(B.T).T
P = dense.anchors(X, Z, lambda x, z: reference.gaussian(x[None], z[None], 1.6)[0, 0], 3)
SETTINGS = {"mmd": 10.0, "manifold": 1.0, "alpha": 0.1, "balance": 0.3}


def problem(weight):
    def moments(Phi, Y, w):
        heavy = Phi * w[:, None]
        return Moments(float(len(Phi)), w.sum(), heavy.T @ Phi, heavy.T @ Y, w @ Phi, w @ Y, w @ Y**2)

    source = moments(PHI[:N_S], np.eye(3)[LABEL], weight[:N_S])
    target = moments(PHI[N_S:], np.zeros((N_T, 3)), weight[N_S:])
    A = WHITENING.reduce(((P * weight[:, None]).T @ B).T).T
    return Aligned(target, source), laplacian(source.G + target.G, A, weight @ P)


def run(weight, rounds, sharpness=4.0, **settings):
    aligned, L = problem(weight)
    strengths, labels, entropies = Strengths(**{**SETTINGS, **settings}), None, []
    for turn in range(rounds + 1):
        W = adaptation_ridge(aligned, L, labels, strengths)
        if turn < rounds:
            Q = soft_labels(PHI[N_S:] @ W, slope(aligned, W, sharpness))
            w = weight[N_S:]
            entropies.append(-(w @ (Q * np.log(Q)).sum(axis=1)) / w.sum())
            labels = PseudoLabels((PHI[N_S:] * w[:, None]).T @ Q, w @ Q, entropies[-1])
    return PHI @ W, entropies


@pytest.mark.parametrize("weight", [np.ones(N_S + N_T), WEIGHT], ids=["plain", "weighted"])
@pytest.mark.parametrize("rounds", [0, 5])
def test_values_and_entropies_are_those_of_the_dense_form(weight, rounds):
    values, entropies = run(weight, rounds)
    K = B @ np.linalg.pinv(CORE) @ B.T
    L = dense.laplacian(P, weight)
    expected, rounds_of_dense = dense.adapted(K, L, LABEL, weight, **SETTINGS, sharpness=4.0, rounds=rounds)
    assert_allclose(values, expected, atol=1e-8)
    assert_allclose(entropies, [entropy for _, entropy in rounds_of_dense], rtol=1e-8)


def test_the_slope_is_zero_where_f_does_not_vary_on_the_target():
    aligned, _ = problem(WEIGHT)
    assert slope(aligned, np.zeros((PHI.shape[1], 3)), 5.0) == 0
