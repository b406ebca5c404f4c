"""The command `bigkernel plan`: the cost of a fit before it is run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bigkernel.cli.model_options import model_options
from bigkernel.cli.options import GroupedCommand, Where, bad_rows_option, cluster_options, execution, json_option, say
from bigkernel.errors import ConfigError
from bigkernel.monitor.terminal.figures import show

if TYPE_CHECKING:
    from bigkernel.engine.pilot import Estimate
    from bigkernel.engine.rows import Rows
    from bigkernel.streaming.plan import Plan

LEARNED_ROWS = 4096  # rows that transforms are fitted to before a pilot


@click.command(cls=GroupedCommand)
@click.argument("corpus", type=click.Path())
@model_options
@bad_rows_option
@click.option("--no-time", is_flag=True, help="Run nothing: estimate flops, bytes and memory only.")
@click.option(
    "--on-workers",
    type=click.IntRange(1),
    metavar="N",
    help="Estimate the time with N parallel tasks, each as fast as those here.",
)
@cluster_options
@json_option
def plan(
    corpus: str, on_bad_rows: str, no_time: bool, on_workers: int | None, where: Where, as_json: bool, **options: Any
) -> None:
    """Estimate the cost of fitting CORPUS: flops, bytes, memory of a worker, time.

    \b
    bigkernel plan train.corpus --landmarks 4000
    bigkernel plan train.corpus --landmarks 4000 --cluster local
    bigkernel plan train.corpus --landmarks 4000 --no-time

    A plan that needs more than the --memory-limit is refused, as the fit would be. A pilot estimates the time, without
    solves: the fit starts where --cluster says, and is abandoned after some thousand rows (or some --leaves).
    """
    from bigkernel.cli.describe import build, chosen_rows
    from bigkernel.config import settings
    from bigkernel.data.corpus import open_corpus
    from bigkernel.engine.cards import check_card, find_card
    from bigkernel.engine.pilot import pilot
    from bigkernel.engine.process import driver_blas
    from bigkernel.streaming.plan import Sharing

    limit, workers = where.limits()
    opened = open_corpus(corpus)
    model, rows = build(opened, options), chosen_rows(opened, on_bad_rows)
    *before, last = [step for _, step in getattr(model, "steps", [("", model)])]
    base, planned = settings().worker_base_bytes, transformed(before, rows)
    if not hasattr(last, "plan"):
        raise ConfigError(f"--method {options['method']}: has no plan, as it chooses a model; see --time-limit of fit")
    steps: Plan = last.plan(planned)
    sharing = Sharing(workers=workers)
    if limit is not None and (no_time or where.cluster == "threads"):  # otherwise the pilot asks the workers
        steps.check(limit, base, sharing)
    if where.cluster == "threads":
        check_card(steps, find_card(settings().device))
    figures = {
        **steps.summary(),
        **(last.plan_solver(planned) if hasattr(last, "plan_solver") else {}),
        "worker_bytes": steps.worker_bytes(base, sharing),
        "process_bytes": base,
        "driver_blas_threads": driver_blas().threads,
    }
    if not no_time:
        with execution(where, quiet=True):
            prepared = transformed(before, rows, learn=True)
            estimate = pilot(lambda: last.fit(prepared), flops=steps.flops, workers=on_workers)
        figures |= {**time_of(estimate), "not_timed": not_timed(before, last)}
        figures["worker_bytes"] = estimate.worker_bytes or figures["worker_bytes"]
    if not as_json:
        figures = {name: value for name, value in figures.items() if value not in (None, [])}
    show(figures, as_json=as_json, title=f"plan: {options['method']} on {corpus}")
    if not no_time and not as_json:
        what = "leaves" if options["leaves"] else "rows"
        solves = "with their solves" if options["leaves"] else "excluding solves"
        source = f"a pilot of {estimate.pilot_rows:,} {what} that took {estimate.pilot_seconds:.1f} s, {solves},"
        if not estimate.pilot_rows:
            source = "the fit itself, which has too few rows for a pilot,"
        say(f"time estimated from {source}\nand depending on other load on the machine")


def time_of(estimate: Estimate) -> dict[str, Any]:
    """Return an estimate as the figures of a plan."""
    return {
        "expected_seconds": estimate.seconds,
        "least_seconds": estimate.least,
        "most_seconds": estimate.most,
        "pilot_rows": estimate.pilot_rows or None,  # None: the job was run
        "pilot_seconds": estimate.pilot_seconds,
    }


def transformed(before: list[Any], rows: Rows, *, learn: bool = False) -> Rows:
    """Return the rows as transformed by these steps of a Pipeline.

    A step that learns by a sweep gives the most features it could return; with `learn` it is fitted to the first
    thousands of rows.
    """
    from sklearn.base import clone

    for step in before:
        learns = bool(getattr(step, "learns", ""))
        if learns and not learn:
            rows = step.widest(rows)
        else:
            rows = clone(step).fit(rows.window(0, min(LEARNED_ROWS, len(rows))) if learns else rows).transform(rows)
    return rows


def not_timed(before: list[Any], last: Any) -> list[str]:
    """Return the sweeps of a fit that neither its plan nor the pilot counts."""
    names = [f"sweep for {step.learns}" for step in before if getattr(step, "learns", "")]
    if rounds := getattr(last, "n_rounds", 0):
        names.append(f"at most {rounds} rounds of pseudo-labels")
    if getattr(last, "probability", False):
        names.append("sweep for calibrated probabilities")
    return names
