"""The memory of a call, as Python traces it."""

import tracemalloc


def traced(call, *args):
    """Return the result of a call and the most memory that it held meanwhile, in bytes."""
    tracemalloc.start()
    try:
        return call(*args), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
