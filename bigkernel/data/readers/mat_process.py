"""`scipy.io` over MATLAB variables, in a process of its own with bounded memory.

`mat` runs this file as a program, with a task and a number of bytes of memory: some damaged bytes crash `scipy.io` (a
segmentation fault, scipy 1.17), which then ends this process alone. Standard input is the 128-byte header of a file and
then, to "describe", the first `LOOK_BYTES` of each variable, answered by a line of JSON each; to "load", one
variable, answered by its values in the format of `numpy.save`.
"""

from __future__ import annotations

import io
import json
import resource
import sys
import warnings
from typing import Any, BinaryIO, Literal

import numpy as np

HEADER_BYTES = 128
LOOK_BYTES = 2**12  # more than the flags, dimensions and name of a variable take


def _limit(memory_bytes: int) -> None:
    """Bound the address space that this process may take beyond what it has."""
    with open("/proc/self/statm") as pages:
        wanted = int(pages.read().split()[0]) * resource.getpagesize() + memory_bytes
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _describe(content: bytes) -> dict[str, Any]:
    import scipy.io  # late here and below: `mat` needs the constants alone

    try:
        ((name, shape, kind),) = scipy.io.whosmat(io.BytesIO(content))
    except Exception as error:  # whatever scipy.io raises over damage
        return {"error": f"{error} ({type(error).__name__})"}
    return {"name": name, "shape": list(map(int, shape)), "kind": kind}


def answer(task: str, content: bytes, out: BinaryIO) -> None:
    """Write the answer to a task; exits with a line that says what is wrong with a variable to load."""
    if task == "describe":
        order: Literal["little", "big"] = "little" if content[126:128] == b"IM" else "big"
        start = HEADER_BYTES
        while start < len(content):
            stop = start + min(LOOK_BYTES, 8 + int.from_bytes(content[start + 4 : start + 8], order))
            out.write(json.dumps(_describe(content[:HEADER_BYTES] + content[start:stop])).encode() + b"\n")
            out.flush()
            start = stop
        return
    import scipy.io

    try:
        (values,) = (found for name, found in scipy.io.loadmat(io.BytesIO(content)).items() if name[:2] != "__")
        np.save(out, values, allow_pickle=False)
    except MemoryError:
        sys.exit("it asks for more memory than its values can take")
    except Exception as error:
        sys.exit(f"{error} ({type(error).__name__})")


if __name__ == "__main__":
    import scipy.io  # noqa: F401 - before memory is limited

    warnings.simplefilter("error")  # what scipy.io cannot read it replaces by a text, and warns
    if sys.platform == "linux":
        _limit(int(sys.argv[2]))
    answer(sys.argv[1], sys.stdin.buffer.read(), sys.stdout.buffer)
