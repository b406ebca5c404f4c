"""bigkernel: kernel methods on data larger than memory, on a Dask cluster.

Rows stream through a feature map into additive statistics, in one sweep over the workers; the small m×m problems are
solved locally; the model streams back over the rows to predict.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bigkernel.execution import executing
from bigkernel.plan import plan
from bigkernel.sweep import sweep

if TYPE_CHECKING:
    from bigkernel.clusters import connect
    from bigkernel.corpus import Corpus, open_corpus
    from bigkernel.estimators import (
        DICA,
        JDA,
        SSSL,
        XNV,
        ARTLClassifier,
        KernelRidge,
        KernelRidgeClassifier,
        LinearRegression,
        MomentNormalizer,
        Nystroem,
        OrientationFeatures,
        RandomFourier,
        Rescaler,
        Ridge,
        SSSLClassifier,
        Standardizer,
        UnitNormalizer,
        XNVClassifier,
    )
    from bigkernel.kernels import Gaussian, Laplacian, Linear, Matern, Polynomial, Sigmoid
    from bigkernel.mercer import check_positive_definite
    from bigkernel.model import load_model, save_model
    from bigkernel.search import SweepSearchCV

__version__ = "0.1.0"
__all__ = [
    "DICA",
    "JDA",
    "SSSL",
    "XNV",
    "ARTLClassifier",
    "Corpus",
    "Gaussian",
    "KernelRidge",
    "KernelRidgeClassifier",
    "Laplacian",
    "Linear",
    "LinearRegression",
    "Matern",
    "MomentNormalizer",
    "Nystroem",
    "OrientationFeatures",
    "Polynomial",
    "RandomFourier",
    "Rescaler",
    "Ridge",
    "SSSLClassifier",
    "Sigmoid",
    "Standardizer",
    "SweepSearchCV",
    "UnitNormalizer",
    "XNVClassifier",
    "check_positive_definite",
    "connect",
    "executing",
    "load_model",
    "open_corpus",
    "plan",
    "save_model",
    "sweep",
]

# Loaded when first asked for: a worker imports this package too, and needs neither scikit-learn nor its 100 MB.
_HOMES = {
    "clusters": ("connect",),
    "corpus": ("Corpus", "open_corpus"),
    "estimators": (
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
    ),
    "kernels": ("Gaussian", "Laplacian", "Linear", "Matern", "Polynomial", "Sigmoid"),
    "mercer": ("check_positive_definite",),
    "model": ("load_model", "save_model"),
    "search": ("SweepSearchCV",),
}
_HOME = {name: f"bigkernel.{module}" for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'bigkernel' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
