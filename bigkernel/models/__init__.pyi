"""The names of this package, and the module that each comes from."""

from .predictor import Predictor as Predictor
