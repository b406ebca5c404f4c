"""A machine whose rates are round numbers: what forecasts are computed from by hand."""

from __future__ import annotations

from bigkernel.forecast.calibration import Calibration, Machine, this_machine
from bigkernel.forecast.time_model import Curve, Rates, Stages


def flat(rate: float) -> Curve:
    return Curve((1.0,), (rate,))


STAGES = Stages(
    block=flat(2e9),
    features=Curve((2.0, 200.0), (0.25, 1.0)),
    gram=flat(1e9),
    flush=flat(1e8),
    fresh=flat(1e9),
    exp=flat(1e8),
    kernels={"gaussian": 1.0, "matern": 0.5},
    convert=1e8,
    targets=1e6,
)
RATES = Rates(
    stages={"float32": STAGES},
    decode=1e8,
    take=4e8,
    disk=1e9,
    prepare=1e7,
    merge=1e9,
    transfer=5e8,
    home=2.5e8,
    publish=1e8,
    publish_seconds=0.01,
    retrieve=2e8,
    sweep_seconds=0.5,
    task_seconds=0.02,
    core=(1e-8, 1e-10),
    solve=flat(1e10),
)


def calibrated(rates: Rates = RATES, machine: Machine | None = None) -> Calibration:
    return Calibration(machine or this_machine(), rates, "node1", "2026-11-21T20:00:00+00:00", 18.0)
