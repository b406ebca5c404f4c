"""The public names, and the module that each comes from."""

__version__: str

from .cli.plots import plot_band as plot_band
from .cli.plots import plot_confusion as plot_confusion
from .cli.plots import plot_landmarks as plot_landmarks
from .cli.plots import plot_learning_curve as plot_learning_curve
from .cli.plots import plot_search as plot_search
from .cluster.connect import connect as connect
from .data.corpus import Corpus as Corpus
from .data.corpus import open_corpus as open_corpus
from .data.write_corpus import write_corpus as write_corpus
from .engine.context import executing as executing
from .engine.sweep import sweep as sweep
from .estimators import DICA as DICA
from .estimators import JDA as JDA
from .estimators import SSSL as SSSL
from .estimators import XNV as XNV
from .estimators import ARTLClassifier as ARTLClassifier
from .estimators import ConvolutionalNystroem as ConvolutionalNystroem
from .estimators import KernelLogisticClassifier as KernelLogisticClassifier
from .estimators import KernelRidge as KernelRidge
from .estimators import KernelRidgeClassifier as KernelRidgeClassifier
from .estimators import LinearRegression as LinearRegression
from .estimators import MomentNormalizer as MomentNormalizer
from .estimators import Nystroem as Nystroem
from .estimators import OrientationFeatures as OrientationFeatures
from .estimators import Projector as Projector
from .estimators import RandomFourier as RandomFourier
from .estimators import Rescaler as Rescaler
from .estimators import Ridge as Ridge
from .estimators import RowUnion as RowUnion
from .estimators import SSSLClassifier as SSSLClassifier
from .estimators import Standardizer as Standardizer
from .estimators import UnitNormalizer as UnitNormalizer
from .estimators import XNVClassifier as XNVClassifier
from .kernels.algebra import OnColumns as OnColumns
from .kernels.algebra import Product as Product
from .kernels.algebra import Scaled as Scaled
from .kernels.algebra import Sum as Sum
from .kernels.functions import Gaussian as Gaussian
from .kernels.functions import Laplacian as Laplacian
from .kernels.functions import Linear as Linear
from .kernels.functions import Matern as Matern
from .kernels.functions import Polynomial as Polynomial
from .kernels.functions import Sigmoid as Sigmoid
from .kernels.given import Pairwise as Pairwise
from .kernels.positive_definite import check_positive_definite as check_positive_definite
from .models.persistence import load_model as load_model
from .models.persistence import save_model as save_model
from .models.predictor import Predictor as Predictor
from .search.sweep_search import SweepSearchCV as SweepSearchCV
from .streaming.plan import plan as plan

def _expected_rate(steps: object) -> float: ...
def _html_of(value: object) -> str: ...
