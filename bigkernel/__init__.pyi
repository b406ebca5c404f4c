"""The public names, and the module that each comes from."""

from collections.abc import Callable

from .cluster.connect import connect as connect
from .data.corpus import Corpus as Corpus
from .data.corpus import open_corpus as open_corpus
from .data.write_corpus import write_corpus as write_corpus
from .engine.context import executing as executing
from .engine.rows import cells as cells
from .engine.sweep import sweep as sweep
from .estimators import CORAL as CORAL
from .estimators import DICA as DICA
from .estimators import JDA as JDA
from .estimators import SSSL as SSSL
from .estimators import XNV as XNV
from .estimators import ARTLClassifier as ARTLClassifier
from .estimators import ImportanceWeights as ImportanceWeights
from .estimators import KernelLogisticClassifier as KernelLogisticClassifier
from .estimators import KernelRidge as KernelRidge
from .estimators import KernelRidgeClassifier as KernelRidgeClassifier
from .estimators import Kriging as Kriging
from .estimators import LabelledRowsClassifier as LabelledRowsClassifier
from .estimators import LearnedMetric as LearnedMetric
from .estimators import LinearRegression as LinearRegression
from .estimators import MomentNormalizer as MomentNormalizer
from .estimators import Nystroem as Nystroem
from .estimators import OnSphere as OnSphere
from .estimators import OrientationFeatures as OrientationFeatures
from .estimators import PartitionedClassifier as PartitionedClassifier
from .estimators import PartitionedRegressor as PartitionedRegressor
from .estimators import Periodic as Periodic
from .estimators import Projector as Projector
from .estimators import RandomFourier as RandomFourier
from .estimators import Rescaler as Rescaler
from .estimators import ResidualRegressor as ResidualRegressor
from .estimators import Ridge as Ridge
from .estimators import RowUnion as RowUnion
from .estimators import SSSLClassifier as SSSLClassifier
from .estimators import Standardizer as Standardizer
from .estimators import SubspaceAlignment as SubspaceAlignment
from .estimators import TableEncoder as TableEncoder
from .estimators import TabularClassifier as TabularClassifier
from .estimators import TabularRegressor as TabularRegressor
from .estimators import UnitNormalizer as UnitNormalizer
from .estimators import XNVClassifier as XNVClassifier
from .estimators.evaluation import predict_to as predict_to
from .estimators.persistence import load_model as load_model
from .estimators.persistence import save_model as save_model
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
from .models.onnx_graph import to_onnx as to_onnx
from .models.predictor import Predictor as Predictor
from .search.domain_scoring import DomainScorer as DomainScorer
from .search.splits import SpatialKFold as SpatialKFold
from .search.sweep_search import SweepSearchCV as SweepSearchCV
from .statistics.scores import normal_scores as normal_scores

__version__: str

def attach(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]: ...
