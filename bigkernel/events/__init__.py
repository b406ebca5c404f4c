"""A job's news and its listeners: events and scopes; the state, transport and views made of them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
