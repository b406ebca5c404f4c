"""The most memory that reading a file takes, in a process where nothing else allocates."""

import json
import subprocess
import sys

_READ = """
import json, sys, tracemalloc
from bigkernel.data.readers import open_source, source

source.READ_BYTES = int(sys.argv[1])

def read(path):
    return sum(len(block[0]) for block in open_source(path).blocks())

def peak(path):
    tracemalloc.start()
    rows = read(path)
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return rows, found

read(sys.argv[2])  # loads modules
print(json.dumps([peak(path) for path in sys.argv[2:]]))
"""


def reading_peaks(*paths, read_bytes):
    """Return (rows, peak bytes) of each text file, read `read_bytes` at a time."""
    done = subprocess.run(
        [sys.executable, "-c", _READ, str(read_bytes), *map(str, paths)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return [(rows, peak) for rows, peak in json.loads(done.stdout)]
