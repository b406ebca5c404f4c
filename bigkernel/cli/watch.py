"""`bigkernel watch`: a job from another terminal."""

from __future__ import annotations

import sys
from contextlib import suppress

import click

from bigkernel.cli.said import say


@click.command()
@click.argument("place", metavar="ADDRESS_OR_RUN")
@click.option("--once", is_flag=True, help="Show one picture and end.")
@click.option("--json", "as_json", is_flag=True, help="Print states as JSON, one object a line, and nothing else.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    metavar="SECONDS",
    help="Between two looks  [1 on a terminal and with --json, 10 elsewhere].",
)
@click.option("--tls", type=click.Path(file_okay=False), help="Certificates made by `bigkernel certs`, for tls://.")
@click.pass_context
def watch(
    ctx: click.Context,
    place: str,
    once: bool,
    as_json: bool,
    interval: float | None,
    tls: str | None,
) -> None:
    """Follow a job from another terminal, until it ends.

    \b
    bigkernel watch job.run                      the directory of --run
    bigkernel watch tcp://127.0.0.1:8786         a scheduler
    bigkernel watch tls://host:8786 --tls DIR
    bigkernel watch cluster.yaml                 as --cluster takes it
    bigkernel watch job.run --once --json | jq .jobs[0].sweeps[0].left_seconds

    A run directory tells of its job also after the driver has died: what is kept, and the command to go on with. The
    map shows segments: # merged, + published, > running, a running again, x failed, . waiting. Where the output is no
    terminal, a line is printed for what has changed.

    Ends with 0 when the job has finished (or is running, with --once), 1 if it failed, 6 if it was lost (its driver
    died) or the scheduler does not answer, 75 if it was interrupted or the watching was (Ctrl-C; the job goes on).
    """
    from rich.console import Console

    from bigkernel.cli.follow import CODES, follow, shown, source_at

    with suppress(AttributeError):  # what the terminal cannot show becomes a question mark
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    console = Console()
    seconds = interval or (1.0 if as_json or console.is_terminal else 10.0)
    try:
        with source_at(place, tls) as source, shown(console, as_json=as_json, once=once) as show:
            code = follow(source, show, seconds, once=once)
    except KeyboardInterrupt:
        say("watching ended; the job goes on", err=True)
        code = CODES["interrupted"]
    ctx.exit(code)
