"""The calibration of this machine: rates that were measured once (`bigkernel plan --calibrate`) and are kept.

They are in `bigkernel/calibration.json` of the user's cache directory ($XDG_CACHE_HOME or ~/.cache), sealed with a
SHA-256. One of other hardware or of other versions is not used; the host is told and not compared, for the home of a
cluster's user is the same on all of its machines.
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import bigkernel
from bigkernel.data.run_directory import make_directory, read_sealed, write_sealed
from bigkernel.engine.context import processors
from bigkernel.engine.schedule import spread
from bigkernel.errors import DataError
from bigkernel.forecast.time_model import Curve, Forecast, Rates, Stages, Work, flops_per_second
from bigkernel.forecast.time_model import forecast as forecast_of
from bigkernel.streaming.plan import Plan

FORMAT = 1
TOLERANCE_PERCENT = 25  # that a forecast is expected to be near the truth by, of a machine that does nothing else
_LIBRARIES = ("numpy", "scipy", "zarr", "dask", "distributed")
_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class Machine:
    """The hardware and versions that a calibration holds for.

    Attributes
    ----------
    processor : its model
    processors : that a process may use
    blas_threads : of the driver, as its environment asks; "": all
    versions : of bigkernel and of the libraries that do the work
    """

    processor: str
    processors: int
    blas_threads: str
    versions: Mapping[str, str]

    def difference(self, other: Machine) -> str:
        """The first field in which another machine differs, for people; "" where none does."""
        mine, theirs = ({**asdict(one), **one.versions} for one in (self, other))
        for name in ("processor", "processors", *sorted({*self.versions, *other.versions}), "blas_threads"):
            if mine.get(name) != theirs.get(name):
                named = "BLAS threads of the driver" if name == "blas_threads" else name
                return f"{named}: {mine.get(name) or 'all'}, now {theirs.get(name) or 'all'}"
        return ""


@dataclass(frozen=True)
class Calibration:
    """The rates of a machine, and where they come from.

    Attributes
    ----------
    machine : Machine
    rates : Rates
    host : where they were measured
    date : when, ISO 8601 with its time zone
    seconds : how long that took
    share : of the processors' time that was the measuring processes' own; less than 1 on a machine that did more
    """

    machine: Machine
    rates: Rates
    host: str
    date: str
    seconds: float = 0.0
    share: float = 1.0

    def forecast(self, plan: Plan, work: Work, *, workers: int, run: bool = False) -> Forecast:
        """Seconds of a fit on workers of this machine; see `bigkernel.forecast.time_model`."""
        ordered = replace(plan, segments=tuple(spread(plan.segments, workers)))  # as a cluster begins them
        return forecast_of(self.rates, ordered, work, workers=workers, run=run)

    def origin(self) -> dict[str, Any]:
        """Return its origin as plain data."""
        return {
            "host": self.host,
            "date": self.date,
            "seconds": self.seconds,
            "share": self.share,
            **asdict(self.machine),
        }

    def save(self) -> Path:
        """Store it in the user's cache directory, whole or not at all; the file.

        Raises
        ------
        DataError
            It cannot be written.
        """
        path = place()
        try:
            make_directory(path.parent)
            write_sealed(path, {"format": FORMAT, **asdict(self)})
        except (OSError, DataError) as error:
            raise DataError(
                f"{path}: the calibration cannot be written ({error}); XDG_CACHE_HOME names another place"
            ) from error
        return path


def place() -> Path:
    """The file that holds the calibration of this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bigkernel" / "calibration.json"


def this_machine() -> Machine:
    """The machine of this process."""
    threads = next((os.environ[name] for name in _THREADS if os.environ.get(name)), "")
    return Machine(_processor(), processors(), threads, dict(_versions()))


def now_here() -> tuple[str, str]:
    """Host, and date with its time zone."""
    from datetime import datetime

    return socket.gethostname(), datetime.now().astimezone().isoformat(timespec="seconds")


def load() -> Calibration | None:
    """The calibration that is stored for this machine, or None; never raises for what the file holds."""
    return look()[0]


def look(*, driver: bool = True) -> tuple[Calibration | None, str]:
    """The calibration that is stored for this machine; or None, and why, for people.

    `driver`: the solves of the driver are asked for too, which its BLAS threads decide. (Within `connect` they are not
    those of the environment.)
    """
    try:
        path = place()
        state = path.stat()
        found = _read(path, state.st_mtime_ns, state.st_size)
    except (OSError, RuntimeError):  # RuntimeError: nobody knows where home is
        return None, "this machine is not calibrated"
    if found is None:
        return None, f"{path} is damaged or of another format"
    here = this_machine()
    different = found.machine.difference(here if driver else replace(here, blas_threads=found.machine.blas_threads))
    if different:
        return (
            None,
            f"the calibration of {found.host}, {found.date[:10]}, is of another machine or version ({different})",
        )
    return found, ""


def rate_of(plan: Plan) -> float:
    """Flops a second of one worker on a sweep, as this machine was measured; 0.0 where it was not. Never raises."""
    try:
        found, _ = look(driver=False)
        if found is None or not plan.width or not plan.n_rows:
            return 0.0
        # the block of a kernel costs 2pd flops a row, that of the rows themselves d
        block = plan.flops / plan.n_rows - plan.width**2
        kernel = "gaussian" if block > plan.width * plan.n_features else ""
        return flops_per_second(found.rates, plan, plan.width, plan.dtype, kernel)
    except Exception:  # a figure beside the job, which is worth more
        return 0.0


@cache
def _read(path: Path, modified: int, size: int) -> Calibration | None:
    """The stored calibration; `modified` and `size` make another file another call."""
    try:
        stored = read_sealed(path)
        if stored.pop("format") != FORMAT:
            return None
        return Calibration(**{**stored, "machine": Machine(**stored["machine"]), "rates": _rates(stored["rates"])})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _rates(stored: Mapping[str, Any]) -> Rates:
    def curve(values: Mapping[str, Any]) -> Curve:
        return Curve(tuple(values["sizes"]), tuple(values["rates"]))

    def of_dtype(found: Mapping[str, Any]) -> Stages:
        curves = {name: curve(found[name]) for name in ("block", "features", "gram", "flush", "fresh", "exp")}
        return Stages(**{**found, **curves})

    stages = {dtype: of_dtype(found) for dtype, found in stored["stages"].items()}
    return Rates(**{**stored, "stages": stages, "core": tuple(stored["core"]), "solve": curve(stored["solve"])})


@cache
def _processor() -> str:
    """Model of the processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.lower().startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@cache
def _versions() -> tuple[tuple[str, str], ...]:
    return (("bigkernel", bigkernel.__version__), *((name, metadata.version(name)) for name in _LIBRARIES))
