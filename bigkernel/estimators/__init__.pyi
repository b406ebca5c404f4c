"""The names of this package, and the module that each comes from."""

__all__: list[str]

from .alignment import CORAL as CORAL
from .alignment import SubspaceAlignment as SubspaceAlignment
from .artl import ARTLClassifier as ARTLClassifier
from .dica import DICA as DICA
from .image_transforms import MomentNormalizer as MomentNormalizer
from .image_transforms import OrientationFeatures as OrientationFeatures
from .importance import ImportanceWeights as ImportanceWeights
from .jda import JDA as JDA
from .labelled_rows import LabelledRowsClassifier as LabelledRowsClassifier
from .learned_metric import LearnedMetric as LearnedMetric
from .linear import LinearRegression as LinearRegression
from .linear import Ridge as Ridge
from .logistic import KernelLogisticClassifier as KernelLogisticClassifier
from .nystroem import Nystroem as Nystroem
from .partitioned import PartitionedClassifier as PartitionedClassifier
from .partitioned import PartitionedRegressor as PartitionedRegressor
from .random_fourier import RandomFourier as RandomFourier
from .residual import ResidualRegressor as ResidualRegressor
from .ridge import KernelRidge as KernelRidge
from .ridge import KernelRidgeClassifier as KernelRidgeClassifier
from .sssl import SSSL as SSSL
from .sssl import SSSLClassifier as SSSLClassifier
from .table_encoder import TableEncoder as TableEncoder
from .transforms import OnSphere as OnSphere
from .transforms import Periodic as Periodic
from .transforms import Projector as Projector
from .transforms import Rescaler as Rescaler
from .transforms import RowUnion as RowUnion
from .transforms import Standardizer as Standardizer
from .transforms import UnitNormalizer as UnitNormalizer
from .xnv import XNV as XNV
from .xnv import XNVClassifier as XNVClassifier
