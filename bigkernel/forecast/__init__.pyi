"""The names of this package, and the module that each comes from."""

from .time_model import Curve as Curve
from .time_model import Forecast as Forecast
from .time_model import Rates as Rates
from .time_model import Stages as Stages
from .time_model import Work as Work
from .time_model import flops_per_second as flops_per_second
from .time_model import forecast as forecast
from .time_model import fresh_bytes as fresh_bytes
from .time_model import row_seconds as row_seconds
