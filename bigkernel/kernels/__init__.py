"""From rows to a block of k(x, z): kernel functions, blocks, feature maps, landmarks.

on_device : operations on large matrices of a solve that a device does
blas : BLAS and LAPACK beyond SciPy's wrappers
threads : one thread of BLAS where blocks are computed side by side
algebra : the base class of kernels, and what is made of several
given : kernels that are computed elsewhere
functions : kernel functions by their equations
feature_maps : from blocks of rows to the columns whose moments are summed
landmarks : landmarks among rows, and a bandwidth from their distances
positive_definite : whether a kernel has a feature map
random_fourier : random Fourier features
kept_blocks : blocks that stay in memory for later sweeps
"""

from bigkernel import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
