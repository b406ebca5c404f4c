"""Estimators in scikit-learn's manners, for rows of any size: NumPy, Dask and zarr arrays, corpora and Rows."""

from bigkernel.estimators.domains import DICA
from bigkernel.estimators.images import MomentNormalizer, OrientationFeatures
from bigkernel.estimators.linear import LinearRegression, Ridge
from bigkernel.estimators.nystroem import Nystroem
from bigkernel.estimators.random_fourier import RandomFourier
from bigkernel.estimators.ridge import KernelRidge, KernelRidgeClassifier
from bigkernel.estimators.sssl import SSSL, SSSLClassifier
from bigkernel.estimators.transforms import Rescaler, Standardizer, UnitNormalizer

__all__ = [
    "DICA",
    "SSSL",
    "KernelRidge",
    "KernelRidgeClassifier",
    "LinearRegression",
    "MomentNormalizer",
    "Nystroem",
    "OrientationFeatures",
    "RandomFourier",
    "Rescaler",
    "Ridge",
    "SSSLClassifier",
    "Standardizer",
    "UnitNormalizer",
]
