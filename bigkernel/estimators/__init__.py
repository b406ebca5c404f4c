"""Estimators in scikit-learn's manners, for rows of any size: NumPy, Dask and zarr arrays, corpora and Rows."""

from bigkernel.estimators.artl import ARTLClassifier
from bigkernel.estimators.dica import DICA
from bigkernel.estimators.image_transforms import MomentNormalizer, OrientationFeatures
from bigkernel.estimators.jda import JDA
from bigkernel.estimators.linear import LinearRegression, Ridge
from bigkernel.estimators.nystroem import Nystroem
from bigkernel.estimators.random_fourier import RandomFourier
from bigkernel.estimators.ridge import KernelRidge, KernelRidgeClassifier
from bigkernel.estimators.sssl import SSSL, SSSLClassifier
from bigkernel.estimators.transforms import Rescaler, Standardizer, UnitNormalizer
from bigkernel.estimators.xnv import XNV, XNVClassifier

__all__: list[str] = [
    "DICA",
    "JDA",
    "SSSL",
    "XNV",
    "ARTLClassifier",
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
    "XNVClassifier",
]
