"""The time of a job before it runs: rates that were measured on this machine, and the time they add up to."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
