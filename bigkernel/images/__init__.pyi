"""The names of this package, and the module that each comes from."""

from .patch_layers import PatchFeatures as PatchFeatures
from .patch_layers import PatchGrid as PatchGrid
from .patch_layers import PatchLayer as PatchLayer
from .pose_and_strokes import MomentNormalise as MomentNormalise
from .pose_and_strokes import Orientations as Orientations
