"""The names of this package, and the module that each comes from."""

from .planning import SearchPlan as SearchPlan
from .sweep_search import SweepSearchCV as SweepSearchCV
