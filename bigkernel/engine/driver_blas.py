"""The BLAS of the driver: the last bits of what it solves depend on its number of threads, so a run records both.

Sweeps take one BLAS thread everywhere; solves take those of the driver. Whoever goes on with a run, on more or fewer
processors, solves with as many threads as the process that began it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from threadpoolctl import threadpool_info, threadpool_limits

from bigkernel.data.atomic_write import clear_orphans
from bigkernel.data.run_directory import read_sealed, write_sealed
from bigkernel.engine.telemetry import blas_threads
from bigkernel.errors import DifferentBlas

NAME = "driver.json"


@dataclass(frozen=True)
class DriverBlas:
    """BLAS of a process that solves."""

    threads: int  # the most that one of its libraries has; 0 where threadpoolctl knows none
    libraries: str  # their names, versions and the processor that they compute for

    def __str__(self) -> str:
        return f"{self.threads} BLAS threads ({self.libraries or 'an unknown library'})"


def driver_blas() -> DriverBlas:
    """BLAS of this process, NumPy's and SciPy's."""
    import scipy.linalg  # noqa: F401  late, for a worker does without; its library is found and limited once it is loaded

    found = {
        f"{pool['internal_api']} {pool['version']} {pool.get('architecture', '')}".strip()
        for pool in threadpool_info()
        if pool["user_api"] == "blas"
    }
    return DriverBlas(max(blas_threads().values(), default=0), ", ".join(sorted(found)))


@contextmanager
def solving_as_begun(run: Path) -> Iterator[tuple[DriverBlas, DriverBlas]]:
    """Solve inside the block with the number of BLAS threads that began the run, which a new run records.

    Gives BLAS as recorded, and as this process had it before; warns (`DifferentBlas`) where the number cannot be had
    here, or the library is another one.
    """
    path, before = run / NAME, driver_blas()
    clear_orphans(path)
    begun = _recorded(path)
    if begun is None:
        begun = before
        write_sealed(path, asdict(begun))
    with threadpool_limits(limits=begun.threads or None, user_api="blas"):
        now = driver_blas()
        if now != begun:
            warnings.warn(
                f"{run}: began with {begun} and goes on with {now}: coefficients may differ in their last bits; resume "
                "where the run began, or start a new one",
                DifferentBlas,
                stacklevel=4,
            )
        yield begun, before


def _recorded(path: Path) -> DriverBlas | None:
    """Return what a run has recorded; None where it has not."""
    if not path.exists():
        return None
    try:
        found = read_sealed(path)
        return DriverBlas(int(found["threads"]), str(found["libraries"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        warnings.warn(
            f"{path} cannot be read ({error}): with how many BLAS threads the run began is not known, and coefficients "
            "may differ in their last bits; those of this process are recorded",
            DifferentBlas,
            stacklevel=5,
        )
        return None
