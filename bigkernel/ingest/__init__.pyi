"""The names of this package, and the module that each comes from."""

from .convert import ingest as ingest
