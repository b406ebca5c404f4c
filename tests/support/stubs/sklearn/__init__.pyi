"""Types of the classes of scikit-learn that ours extend, which mypy would take for Any; all else of it stays Any."""

from _typeshed import Incomplete

def __getattr__(name: str) -> Incomplete: ...
