"""`bigkernel plan`: what a fit would cost, before it is run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bigkernel.cli.model_options import model_options
from bigkernel.cli.options import Where, bad_rows_option, cluster_options, execution, json_option, say
from bigkernel.errors import ConfigError
from bigkernel.monitor.terminal.figures import show

if TYPE_CHECKING:
    from bigkernel.engine.pilot import Estimate
    from bigkernel.engine.rows import Rows
    from bigkernel.streaming.plan import Plan

LEARNED_ROWS = 4096  # that transforms before a pilot learn from


@click.command()
@click.argument("corpus", type=click.Path())
@model_options
@bad_rows_option
@click.option("--no-time", is_flag=True, help="Run nothing: tell flops, bytes and memory alone.")
@click.option(
    "--on-workers",
    type=click.IntRange(1),
    metavar="N",
    help="Tell the time with N tasks at once, each as fast as those here.",
)
@cluster_options
@json_option
def plan(
    corpus: str, on_bad_rows: str, no_time: bool, on_workers: int | None, where: Where, as_json: bool, **options: Any
) -> None:
    """Tell what fitting CORPUS would cost: flops, bytes, memory of a worker, time.

    \b
    bigkernel plan train.corpus --landmarks 4000
    bigkernel plan train.corpus --landmarks 4000 --cluster local
    bigkernel plan train.corpus --landmarks 4000 --no-time

    The time is that of a pilot: the fit is begun where --cluster says, sweeps some thousands of its rows, and is given
    up after some seconds. It is told with a range; solves come on top. Nothing is written.
    """
    from bigkernel.cli.describe import build, chosen_rows
    from bigkernel.config import settings
    from bigkernel.data.corpus import open_corpus
    from bigkernel.engine.pilot import pilot
    from bigkernel.engine.process import driver_blas

    opened = open_corpus(corpus)
    model, rows = build(opened, options), chosen_rows(opened, on_bad_rows)
    last, base = _last(model), settings().worker_base_bytes
    if not hasattr(last, "plan"):
        raise ConfigError(f"{type(last).__name__} has no sweep to plan")
    planned = transformed(model, rows)
    steps: Plan = last.plan(planned)
    figures = {
        **steps.summary(),
        **(last.plan_solver(planned) if hasattr(last, "plan_solver") else {}),
        "worker_bytes": steps.worker_bytes(base),
        "of_it_process_bytes": base,
        "blas_threads_of_the_driver": driver_blas().threads,
    }
    if not no_time:
        with execution(where, quiet=True):
            prepared = transformed(model, rows, learn=True)
            estimate = pilot(lambda: last.fit(prepared), flops=steps.flops, workers=on_workers)
        figures |= {**time_of(estimate), "not_timed": not_timed(model)}
    shown = figures if as_json else {name: value for name, value in figures.items() if value not in (None, [])}
    show(shown, as_json=as_json, title=f"plan: {options['method']} on {corpus}")
    if not no_time and not as_json:
        swept, seconds = estimate.pilot_rows, estimate.pilot_seconds
        say(f"time from a pilot of {swept:,} rows that took {seconds:.1f} s; solves come on top,")
        say("and other load on the machine changes it")


def time_of(estimate: Estimate) -> dict[str, Any]:
    """Return an estimate as the figures of a plan."""
    bounds = {"expected": estimate.seconds, "least": estimate.least, "most": estimate.most}
    pilot = {"pilot_rows": estimate.pilot_rows, "pilot_seconds": estimate.pilot_seconds}
    return {f"{name}_seconds": seconds for name, seconds in bounds.items()} | pilot


def transformed(model: Any, rows: Rows, *, learn: bool = False) -> Rows:
    """Return the rows as the steps of a Pipeline before its last leave them.

    A step that learns by a sweep of its own says what it would make of the rows at most; with `learn` it is fitted to
    the first thousands of them.
    """
    from sklearn.base import clone

    for step in _before(model):
        learns = bool(getattr(step, "learns", ""))
        if learns and not learn:
            rows = step.widest(rows)
        else:
            rows = clone(step).fit(rows.window(0, min(LEARNED_ROWS, len(rows))) if learns else rows).transform(rows)
    return rows


def not_timed(model: Any) -> list[str]:
    """Name the sweeps of a fit that neither its plan nor the pilot counts."""
    last = _last(model)
    found = [f"the sweep of {step.learns}" for step in _before(model) if getattr(step, "learns", "")]
    if rounds := getattr(last, "n_rounds", 0):
        found.append(f"at most {rounds} rounds of pseudo-labels")
    if getattr(last, "probability", False):
        found.append("the sweep that calibrates probabilities")
    return found


def _before(model: Any) -> list[Any]:
    """The steps of a Pipeline before its last."""
    return [step for _, step in model.steps[:-1]] if hasattr(model, "steps") else []


def _last(model: Any) -> Any:
    return model[-1] if hasattr(model, "steps") else model
