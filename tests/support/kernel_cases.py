"""Kernels for tests of methods; `reference.of_kernel` gives the dense oracle of each."""

import warnings

import numpy as np
import pytest

from bigkernel import Gaussian, Laplacian, Linear, Matern, Polynomial, Sigmoid
from bigkernel.errors import RankDeficiencyWarning

KERNELS = {
    "gaussian": Gaussian(1.4),
    "gaussian of four lengths": Gaussian(np.array([0.8, 1.0, 1.5, 2.0])),
    "laplacian": Laplacian(gamma=0.3),
    "matern 1/2": Matern(2.0, nu=0.5),
    "matern 3/2": Matern(2.0, nu=1.5),
    "matern 5/2": Matern(2.0, nu=2.5),
    "linear": Linear(),
    "polynomial": Polynomial(2, 0.4, 1.5),
    "sigmoid": Sigmoid(0.05, 0.2),
}
POSITIVE = {name: kernel for name, kernel in KERNELS.items() if kernel.positive}
# the linear kernel of four features has rank 4, and the sigmoid is not positive definite: both warn
ignore_rank_warnings = pytest.mark.filterwarnings("ignore::bigkernel.errors.RankDeficiencyWarning")


def quietly(function, *args, **options):
    """Return the result of a solve whose core is known to be deficient."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankDeficiencyWarning)
        return function(*args, **options)
