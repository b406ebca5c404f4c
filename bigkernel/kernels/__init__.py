"""From rows to a block of k(x, z): kernel functions, blocks, feature maps, landmarks."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
