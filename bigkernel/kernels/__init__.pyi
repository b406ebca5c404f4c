"""The names of this package, and the module that each comes from."""

from .algebra import Kernel as Kernel
from .functions import KERNELS as KERNELS
from .functions import Gaussian as Gaussian
from .functions import Laplacian as Laplacian
from .functions import Linear as Linear
from .functions import Matern as Matern
from .functions import Polynomial as Polynomial
from .functions import Sigmoid as Sigmoid
from .functions import as_kernel as as_kernel
