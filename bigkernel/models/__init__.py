"""Fitted models for processes that have NumPy alone."""

from bigkernel import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
