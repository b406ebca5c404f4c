"""The names of this package, and the module that each comes from."""

from .onnx_graph import to_onnx as to_onnx
from .predictor import Predictor as Predictor
