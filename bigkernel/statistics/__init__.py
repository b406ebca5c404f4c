"""Sums over rows: additive moments, cells of domains, predictions, scores."""

from bigkernel import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
