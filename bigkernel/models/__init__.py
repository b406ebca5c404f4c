"""Fitted models for processes that have NumPy alone.

file : one safetensors file
predictor : tables, rows and predictions
onnx_graph : graphs for other runtimes
"""

from bigkernel import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
