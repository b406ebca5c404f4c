"""The names of this package, and the module that each comes from."""

__all__: list[str]

from .adaptation.alignment import CORAL as CORAL
from .adaptation.alignment import SubspaceAlignment as SubspaceAlignment
from .adaptation.artl import ARTLClassifier as ARTLClassifier
from .adaptation.dica import DICA as DICA
from .adaptation.importance import ImportanceWeights as ImportanceWeights
from .adaptation.jda import JDA as JDA
from .adaptation.labelled_rows import LabelledRowsClassifier as LabelledRowsClassifier
from .linear import LinearRegression as LinearRegression
from .linear import Ridge as Ridge
from .logistic import KernelLogisticClassifier as KernelLogisticClassifier
from .ridge import KernelRidge as KernelRidge
from .ridge import KernelRidgeClassifier as KernelRidgeClassifier
from .sssl import SSSL as SSSL
from .sssl import SSSLClassifier as SSSLClassifier
from .tables.kriging import Kriging as Kriging
from .tables.learned_metric import LearnedMetric as LearnedMetric
from .tables.partitioned import PartitionedClassifier as PartitionedClassifier
from .tables.partitioned import PartitionedRegressor as PartitionedRegressor
from .tables.residual import ResidualRegressor as ResidualRegressor
from .tables.table_encoder import TableEncoder as TableEncoder
from .tables.tabular import TabularClassifier as TabularClassifier
from .tables.tabular import TabularRegressor as TabularRegressor
from .transforms.images import MomentNormalizer as MomentNormalizer
from .transforms.images import OrientationFeatures as OrientationFeatures
from .transforms.nystroem import Nystroem as Nystroem
from .transforms.random_fourier import RandomFourier as RandomFourier
from .transforms.rows import OnSphere as OnSphere
from .transforms.rows import Periodic as Periodic
from .transforms.rows import Projector as Projector
from .transforms.rows import Rescaler as Rescaler
from .transforms.rows import RowUnion as RowUnion
from .transforms.rows import Standardizer as Standardizer
from .transforms.rows import UnitNormalizer as UnitNormalizer
from .xnv import XNV as XNV
from .xnv import XNVClassifier as XNVClassifier
