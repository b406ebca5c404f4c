"""The names of this package, and the module that each comes from."""

from .moments import FeatureSums as FeatureSums
from .moments import Moments as Moments
from .moments import MomentStatistic as MomentStatistic
from .moments import Targets as Targets
from .moments import require_weights as require_weights
from .moments import select_columns as select_columns
from .moments import uncentre as uncentre
from .moments import unshift_targets as unshift_targets
from .statistic import Statistic as Statistic
from .statistic import add as add
