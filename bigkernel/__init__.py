"""bigkernel: kernel methods on data larger than memory, on a Dask cluster.

Rows stream through a feature map into additive statistics, in one sweep over the workers; the small m×m problems are
solved locally; the model streams back over the rows to predict.
"""

from bigkernel.clusters import connect
from bigkernel.corpus import Corpus, open_corpus
from bigkernel.estimators import (
    SSSL,
    KernelRidge,
    KernelRidgeClassifier,
    LinearRegression,
    Rescaler,
    Ridge,
    SSSLClassifier,
    Standardizer,
    UnitNormalizer,
)
from bigkernel.kernels import Gaussian, Laplacian, Linear, Matern, Polynomial, Sigmoid
from bigkernel.plan import plan
from bigkernel.sweep import executing, sweep

__version__ = "0.1.0"
__all__ = [
    "SSSL",
    "Corpus",
    "Gaussian",
    "KernelRidge",
    "KernelRidgeClassifier",
    "Laplacian",
    "Linear",
    "LinearRegression",
    "Matern",
    "Polynomial",
    "Rescaler",
    "Ridge",
    "SSSLClassifier",
    "Sigmoid",
    "Standardizer",
    "UnitNormalizer",
    "connect",
    "executing",
    "open_corpus",
    "plan",
    "sweep",
]
