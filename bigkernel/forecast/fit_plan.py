"""The plan of a fit's sweep, and its time by the calibration of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table
from rich.text import Text
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from bigkernel.config import settings
from bigkernel.data.corpus import Corpus
from bigkernel.data.visible import visible
from bigkernel.engine.rows import Rows
from bigkernel.errors import ConfigError
from bigkernel.estimators import KernelRidge, KernelRidgeClassifier
from bigkernel.estimators.domain_base import DomainedTransformer
from bigkernel.estimators.kernel_basis import FOURIER
from bigkernel.estimators.pseudo_label_rounds import SidedEstimator
from bigkernel.forecast.calibration import TOLERANCE_PERCENT, Calibration
from bigkernel.forecast.time_model import Forecast, Work
from bigkernel.kernels.functions import as_kernel
from bigkernel.streaming.plan import Plan

_QUIET_SHARE = 0.9  # of the processors, at least, that a calibration had for itself
ADVICE = "`bigkernel plan --calibrate` measures this machine once; then the whole fit is forecast"


def plan_of(model: Any, rows: Rows) -> Plan:
    """The plan of the sweep that fits a model (or a Pipeline that ends in one) to rows.

    Where a projection is fitted before it, the arithmetic and bytes of both sweeps and the memory of the larger one.

    Raises
    ------
    ConfigError
        The model is exact: there is no sweep.
    """
    last = _last(model)
    for step in _before(model):
        if isinstance(step, DomainedTransformer):
            first, second = step.plan(rows), plan_of(last, step.widest(rows))
            larger = max(first, second, key=lambda plan: plan.task_bytes)
            return replace(larger, flops=first.flops + second.flops, bytes_read=first.bytes_read + second.bytes_read)
        rows = _transformed(step, rows)
    if not hasattr(last, "plan"):
        raise ConfigError(f"{type(last).__name__} has no sweep to plan")
    plan: Plan = last.plan(rows)
    return plan


def solver_of(model: Any, rows: Rows) -> dict[str, Any]:
    """How a model solves, where that is a choice: figures of `KernelRidge.plan_solver`; nothing behind a projection."""
    last, before = _last(model), _before(model)
    if not hasattr(last, "plan_solver") or any(isinstance(step, DomainedTransformer) for step in before):
        return {}
    for step in before:
        rows = _transformed(step, rows)
    figures: dict[str, Any] = last.plan_solver(rows)
    return figures


def _transformed(step: Any, rows: Rows) -> Rows:
    """Rows as a step of a Pipeline leaves them; one that learns by sweeps says what it would make of them at most."""
    widest: Rows = step.widest(rows) if getattr(step, "learns", "") else clone(step).fit(rows).transform(rows)
    return widest


def work_of(model: Any, plan: Plan, corpus: Corpus | None = None) -> Work:
    """Return what a forecast needs beyond the plan of a fit; `corpus` tells whether its files stay in memory."""
    steps = _before(model)
    projection = next((step for step in steps if isinstance(step, DomainedTransformer)), None)
    last = projection or _last(model)
    unknown = [f"the sweep of {step.learns}" for step in steps if getattr(step, "learns", "")]
    if isinstance(last, SidedEstimator) and last.n_rounds:
        unknown.append(f"the rounds of {type(last).__name__}, at most {last.n_rounds} sweeps of the target")
    choice = getattr(last, "landmarks", "uniform")
    if isinstance(choice, str) and choice not in ("uniform", *FOURIER):
        unknown.append(f"the choice of landmarks by {choice}")
    if projection is not None:
        unknown.append(f"the fit of {type(_last(model)).__name__} to the components")
    linear = not hasattr(last, "kernel")
    given = isinstance(last, KernelRidge | KernelRidgeClassifier) and last.alpha != "gcv"
    return Work(
        plan.width,
        plan.dtype,
        "" if linear else as_kernel(last.kernel, degree=last.degree, coef0=last.coef0).name,
        drawn=not linear and isinstance(last.landmarks, str),
        solved="krr" if given else "",
        groups=2 if last.unlabelled == "keep" else 1,
        block_rows=settings().block_rows,
        stored_bytes=0 if corpus is None else _beyond_memory(corpus, plan),
        unknown=tuple(unknown),
    )


def _before(model: Any) -> list[Any]:
    """The steps of a Pipeline before its last."""
    return [step for _, step in model.steps[:-1]] if isinstance(model, Pipeline) else []


def _last(model: Any) -> Any:
    return model[-1] if isinstance(model, Pipeline) else model


def _beyond_memory(corpus: Corpus, plan: Plan) -> int:
    """Bytes of the files with the rows where the system cannot keep them in memory; else 0."""
    most = psutil.virtual_memory().total / 2
    if plan.bytes_read < most:
        return 0
    stored = sum(file.stat().st_size for file in Path(corpus.path, "x").rglob("*") if file.is_file())
    return stored if stored > most else 0


def told(forecast: Forecast, calibration: Calibration) -> dict[str, Any]:
    """The forecast as the figures of a plan."""
    return {
        "sweep_seconds": forecast.sweep_seconds,
        "sweep_hours": None if forecast.sweep_seconds is None else forecast.sweep_seconds / 3600,
        "fit_seconds": forecast.fit_seconds,
        "stage_seconds": forecast.stage_seconds,
        "not_forecast": list(forecast.unknown),
        "calibration": calibration.origin(),
    }


def echo_stages(stage_seconds: Mapping[str, float]) -> None:
    """A table of the stages of a fit that fits 80 columns."""
    table = Table(title="seconds of all workers", title_justify="left", box=None, pad_edge=False)
    table.add_column("stage", style="dim", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("share %", justify="right", no_wrap=True)
    total = sum(stage_seconds.values())
    for stage, seconds in stage_seconds.items():
        table.add_row(Text(visible(stage)), f"{seconds:,.2f}", f"{100 * seconds / max(total, 1e-12):.1f}")
    Console().print(table)


def echo_origin(calibration: Calibration) -> None:
    """Print the origin of a forecast, and how far it is to be trusted."""
    machine = calibration.machine
    where = f"{calibration.host} ({machine.processors} × {machine.processor})"
    echo(
        f"calibrated {calibration.date[:10]} on {where}; expected within ±{TOLERANCE_PERCENT} % while the machine does "
        "nothing else"
    )
    if calibration.share < _QUIET_SHARE:
        echo(
            f"other programs had {1 - calibration.share:.0%} of its processors meanwhile; calibrate again when they "
            "have ended"
        )


def echo(text: str) -> None:
    """Print a sentence, broken where the terminal ends."""
    Console().print(Text(visible(text, lines=True)))


def rates_of(calibration: Calibration) -> dict[str, Any]:
    """The figures of a calibration for people and for JSON."""
    rates, machine = calibration.rates, calibration.machine
    figures: dict[str, Any] = {"host": calibration.host, "processor": machine.processor, "date": calibration.date}
    figures["processors"] = machine.processors
    figures["blas_threads_of_the_driver"] = machine.blas_threads or "all"
    for dtype, stages in rates.stages.items():
        for what, curve in (("block", stages.block), ("gram", stages.gram)):
            figures[f"{dtype}_{what}_gflops_per_second"] = {
                f"{m:.0f}": r / 1e9 for m, r in zip(curve.sizes, curve.rates, strict=True)
            }
    figures["exp_values_per_second"] = rates.stages["float32"].exp.rates[-1]
    figures["convert_values_per_second"] = rates.stages["float32"].convert
    for name in ("decode", "disk", "merge", "transfer", "publish", "retrieve"):
        figures[f"{name}_bytes_per_second"] = int(getattr(rates, name))
    figures["solve_seconds"] = {f"{m:.0f}": m**3 / r for m, r in zip(rates.solve.sizes, rates.solve.rates, strict=True)}
    figures |= {"sweep_start_seconds": rates.sweep_seconds, "task_seconds": rates.task_seconds}
    return {**figures, "calibration_seconds": calibration.seconds, "share_of_the_processors": calibration.share}
