"""A grid from one sweep.

splits : folds as functions of rows
scoring : scores as functions of sums, and the figures of a candidate on a fold
scorers : scores of scikit-learn that need all predictions
domain_scoring : scores of a target without labels
sweeps : kernels that share a sweep, and the candidates of each kernel
results : the table of results, the best candidate, and warnings about both
conjugate_gradients : penalties and folds of a kernel side by side
adapting : rounds of pseudo-labels that candidates share
judging : every candidate on every split, and the fit of the best one
planning : candidates, their sweeps and their cost, before a search runs
sweep_search : the estimator
"""

from bigkernel import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
