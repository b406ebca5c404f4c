"""`python -m pipelines chaos`: the same fit again and again while its processes are killed and frozen at random.

The model of every round must be that of an undisturbed fit to the last bit, whatever happened meanwhile. This process
only watches and sends signals: drivers and workers are processes of their own (`driver`).
"""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path

import click
import dask
import numpy as np

from bigkernel.errors import BigKernelError
from pipelines.chaos import page
from pipelines.chaos.driver import TTL_SECONDS, Fit, clear, differences
from pipelines.chaos.round import Log, Record, Round
from pipelines.shared import digit_corpora
from pipelines.shared.experiments import Report, json_option, out_option, seed_option


def fit_undisturbed(fit: Fit, directory: Path, log: Log) -> Record:
    """The model that all others must equal, below `directory`."""
    record = Round(fit, directory, "undisturbed", log, None, 0.0).run()
    if not record.trouble:
        record.identical = True
        log("round", f"undisturbed: {record.seconds:.1f} s, {record.segments} segments", record=asdict(record))
    return record


def fit_disturbed(
    fit: Fit, directory: Path, number: int, log: Log, rng: np.random.Generator, every: float, model: Path
) -> Record:
    """A round, and whether its model is that at `model`; what it leaves is removed if all is well."""
    record = Round(fit, directory, str(number), log, rng, every).run()
    if not record.trouble:
        try:
            changed = differences(model, directory / "fitted.model")
        except BigKernelError as error:
            changed = [str(error)]
        record.identical = not changed
        if changed:
            record.trouble = f"the model is not the undisturbed one: {', '.join(changed)}"
        else:
            for part in ("run", "scratch"):
                shutil.rmtree(directory / part, ignore_errors=True)
            (directory / "fitted.model").unlink(missing_ok=True)
    verdict = f"NOT AS IT SHOULD BE: {record.trouble}" if record.trouble else "model identical"
    log("round", f"{number}: {record.seconds:.1f} s, {record.again} segments again; {verdict}", record=asdict(record))
    return record


def corpus_to_fit(out: Path, rows: int, segments: int, landmarks: int, workers: int, seed: int) -> Fit:
    """The fit of a corpus of deformed digits, made or found below `out`, in about so many segments."""
    with dask.config.set({"bigkernel.chunk-bytes": max(1024, 64 * -(-rows // segments))}):
        train = digit_corpora.bundled(out / f"corpus-{segments}", rows, seed, keep=True).train
    return Fit(Path(train.path), landmarks, workers, train.chunk_rows, -(-len(train) // train.chunk_rows), seed)


def all_rounds(fit: Fit, directory: Path, log: Log, seed: int, every: float, minutes: float) -> list[Record]:
    """The undisturbed fit, then rounds until the minutes are over and one had all signals, or one is in trouble."""
    clear(directory)
    records = [fit_undisturbed(fit, directory / "undisturbed", log)]
    model = directory / "undisturbed" / "fitted.model"
    rng, deadline = np.random.default_rng(seed), log.seconds() + 60 * minutes
    while not records[0].trouble:
        number = len(records)
        records.append(fit_disturbed(fit, directory / str(number), number, log, rng, every, model))
        done = any(record.complete or record.trouble for record in records[1:])
        if log.seconds() >= deadline and done:
            break
    return records


def signals(every: float) -> dict[str, str]:
    """Return the signals and their receivers, for the foot of the page."""
    workers = f"every {every:g} s in the mean; a frozen one is given up after {TTL_SECONDS} s"
    return {"signals to workers": workers, "signals to drivers": "3 SIGKILL and 1 SIGTERM a round"}


@click.command()
@click.option("--minutes", type=click.FloatRange(0, 10_000), default=5.0, show_default=True, help="Begin rounds for.")
@click.option("--rows", type=click.IntRange(2400), default=1_000_000, show_default=True, help="Deformed digits to fit.")
@click.option("--landmarks", type=click.IntRange(10), default=1000, show_default=True, help="m.")
@click.option("--segments", type=click.IntRange(12, 1000), default=60, show_default=True, help="Tasks to cut it into.")
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Processes of each driver.")
@click.option(
    "--every",
    type=click.FloatRange(1, 600),
    default=5.0,
    show_default=True,
    help="Mean seconds between signals to workers.",
)
@seed_option
@out_option("chaos", "Directory for report.html, log.jsonl, CSV and PNG.")
@json_option
@click.pass_context
def chaos(
    ctx: click.Context,
    minutes: float,
    rows: int,
    landmarks: int,
    segments: int,
    workers: int,
    every: float,
    seed: int,
    out: Path,
    as_json: bool,
) -> None:
    """Kill and freeze the processes of a fit at random, and ask for the same model.

    \b
    1. A corpus of --rows deformed digits is made, and fitted once undisturbed:
       `bigkernel fit … --cluster local --run DIR`, a process of its own.
    2. Rounds of the same fit, each in a fresh run directory. All the while one
       of its workers is killed (SIGKILL) or frozen (SIGSTOP). At four moments
       the driver itself is ended: three times by SIGKILL, once by SIGTERM; the
       next driver starts with --resume. Workers that are frozen when their
       driver dies go on later, sometimes beside the next driver's.
    3. After each round: are all arrays of the model the undisturbed ones (by
       SHA-256)? Was no finished segment computed again, none lost, and at most
       one for each worker begun again after a driver's death? Are all
       processes, half-written files and locks gone? Did SIGTERM give 75?

    No round begins when --minutes are over; the last one is finished, and there is at least one that had all of this.
    Every wait is bounded: a fit that hangs is killed and counts as a failure. --seed fixes the moments and victims that
    are drawn, not what the machine does meanwhile.

    Ends with 0 if every promise was kept, otherwise with 1.

    \b
    python -m pipelines chaos --minutes 5
    python -m pipelines chaos --minutes 60 --every 2 --seed 7
    python -m pipelines chaos --minutes 0 --rows 100000 --landmarks 500
    python -m pipelines chaos --json | jq '.rounds[] | {name, identical}'

    \b
    In --out: report.html (opens offline), log.jsonl (a line for every signal,
    exit and line that a driver printed), results.json, rounds.csv,
    timeline.png, the corpus; rounds/ with what each driver printed, and with
    the run directory of a round that failed.
    """
    out = out.absolute()  # drivers stand elsewhere
    size = f"{rows:,} rows, {landmarks:,} landmarks, {workers} workers"
    report = Report(out, "Killed, frozen, identical", size, quiet=as_json)
    log = Log(out / "log.jsonl", report.say)
    fit = corpus_to_fit(out, rows, segments, landmarks, workers, seed)
    log("corpus", f"corpus of {rows:,} rows in {fit.segments} segments; rounds begin for {minutes:g} minutes")
    records = all_rounds(fit, out / "rounds", log, seed, every, minutes)
    failed = [record for record in records if record.trouble]
    log("end", f"{len(failed)} of {len(records) - 1} rounds failed" if failed else "every promise was kept")
    page.show(report, records, log.seconds())
    facts = {"job": f"{size}, {fit.segments} segments", **signals(every), "seed": seed}
    report.finish(facts, identical=not failed, records=[asdict(record) for record in records])
    if failed:
        ctx.exit(1)
