"""The names of this package, and the module that each comes from."""

from .pose_and_strokes import MomentNormalise as MomentNormalise
from .pose_and_strokes import Orientations as Orientations
