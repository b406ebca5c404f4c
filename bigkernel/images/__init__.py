"""Row maps for images of digits: poses and strokes."""

from bigkernel import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
