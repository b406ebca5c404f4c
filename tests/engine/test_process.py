"""A resumed run is solved with the BLAS threads of its first process; a warning says where that cannot be."""

import json
import os
import subprocess
import sys
from functools import partial

import pytest

from bigkernel import executing
from bigkernel.data.run_directory import read_sealed, write_sealed
from bigkernel.engine.process import DRIVER, driver_blas
from bigkernel.errors import DifferentBlasWarning
from bigkernel.monitor import report

FITS = """
import hashlib, json, sys
import dask.array as da
import numpy as np
from bigkernel import Gaussian, KernelRidge, SSSL, executing

run, resume = sys.argv[1], sys.argv[2] == "resume"
g = np.random.default_rng(0)
X = g.normal(size=(1500, 6))
y = np.sin(X).sum(axis=1)
rows = da.from_array(X, chunks=(500, 6))
models = {
    "direct": KernelRidge(Gaussian(sigma=3.0), alpha=1e-3, n_landmarks=400, random_state=0),
    "sssl": SSSL(Gaussian(sigma=3.0), n_components=50, alpha=1e-3, n_landmarks=400, random_state=0),
}
found = {}
for name, model in models.items():
    with executing("threads", run=f"{run}/{name}", resume=resume):
        model.fit(rows, da.from_array(y, chunks=500))
    report = model.fit_report()["sweep"]
    found[name] = [hashlib.sha256(model.dual_coef_.tobytes()).hexdigest(), report["driver_blas_threads"]]
print(json.dumps(found))
"""


def fitted(threads, run, resume=""):
    """Digests of coefficients and threads of their solves, by model, from a process with so many BLAS threads."""
    command = [sys.executable, "-c", FITS, str(run), resume]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": str(threads)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, timeout=200)
    assert "DifferentBlasWarning" not in done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_resumed_run_has_the_coefficients_of_the_first_with_another_number_of_threads(tmp_path):
    first, then = 2, 1
    begun = fitted(first, tmp_path)
    assert {threads for _, threads in begun.values()} == {first}
    assert fitted(then, tmp_path, "resume") == begun
    attempts = report.gather(tmp_path / "direct")["jobs"]
    assert attempts[0]["figures"]["driver"]["blas_threads"] == first
    (notes,) = [
        [event["text"] for event in attempt["events"] if "BLAS threads" in event["text"]]
        for attempt in sorted(attempts, key=lambda attempt: attempt["started"])[1:]
    ]
    assert notes[0].startswith(f"solving with {first} BLAS threads")
    assert notes[0].endswith(f"had {then})")


def test_another_library_or_number_of_threads_is_warned_of(tmp_path):
    resume = partial(executing, "serial", run=tmp_path, resume=True)
    with resume():
        pass
    recorded = read_sealed(tmp_path / DRIVER)
    assert recorded["threads"] == driver_blas().threads
    with resume():  # warnings are errors here
        assert driver_blas().threads == recorded["threads"]
    for changed, message in (({"libraries": "mkl 2026 Haswell"}, "mkl 2026 Haswell"), ({"threads": 0}, "with 0 BLAS")):
        write_sealed(tmp_path / DRIVER, {**recorded, **changed})
        with pytest.warns(DifferentBlasWarning, match=message), resume():
            pass
    (tmp_path / DRIVER).write_text("{")
    with pytest.warns(DifferentBlasWarning, match=r"driver.json cannot be read"), resume():
        pass
    assert read_sealed(tmp_path / DRIVER) == recorded
