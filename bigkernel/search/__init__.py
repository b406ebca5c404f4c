"""A grid of kernels, penalties and folds from one sweep."""

from bigkernel import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
