"""Sums over rows: additive moments, cells of domains, predictions, scores.

statistic : the base of what a sweep sums up
predictor : a fitted model for prediction
moments : sums of products
blend : predictors that are made of members
domain_cells : sums by domain and class
held_out : scores and values of models at held-out rows
products : sums for iterative solvers
qr : R instead of sums of products
scores : sums that score a fitted model
domain_scores : sums that judge models without labels of the target
"""

from bigkernel import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
