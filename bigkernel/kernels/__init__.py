"""From rows to a block of k(x, z): kernel functions, blocks, feature maps, landmarks."""

from bigkernel import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
