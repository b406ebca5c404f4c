"""The stages of `python -m pipelines corpus`: corpora, plan, choices, fits of growing numbers of rows, errors.

Rows are looked at in one or two ways (`Settings.views`): of unit norm, and through the transforms of the command. In
each, a fit begins with the first rows and `partial_fit` adds the rest in steps, so that the error against the number of
rows costs no sweep of its own; the error against the number of landmarks comes from the same statistics
(`with_landmarks`). Conjugate gradients, which keep no statistics, fit every step anew, and fewer landmarks once. Every
sweep publishes in the run directory, in the same order each time, so that the whole job is simply done again to go on
with it: what is finished is found and taken.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import numpy as np
from distributed import Client
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from bigkernel import save_model
from bigkernel.arrays import Array
from bigkernel.cli.transforms import steps as transform_steps
from bigkernel.config import settings
from bigkernel.engine.preflight import check_cluster
from bigkernel.engine.process import processors
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.engine.sweep import choose_executor
from bigkernel.estimators.evaluation import evaluate, limit_classes
from bigkernel.events.job import Figures, Note, Step, emit
from bigkernel.html import measured, size
from bigkernel.kernels.landmarks import uniform
from bigkernel.streaming.plan import Plan
from pipelines.corpus.choice import Choice, Record, choose, model_of, search_rows
from pipelines.corpus.material import Material, first_rows, gather, truth
from pipelines.corpus.settings import Settings
from pipelines.shared.digit_corpora import rows_at


@dataclass
class View:
    """A view of the rows, and its model."""

    name: str
    maps: Pipeline  # fitted row transforms
    choice: Choice  # of the model; its model is fitted step by step
    plan: Plan  # of a fit to all rows

    @property
    def pipeline(self) -> Pipeline:
        """Transforms and model, as they are saved."""
        model = self.choice.model
        return Pipeline([*self.maps.steps, (type(model).__name__.lower(), model)])


@dataclass
class Outcome:
    """Results of a job, for the page."""

    job: Settings
    material: Material
    landmarks: int
    # views of the rows; the last one's model is evaluated and saved
    views: list[View] = field(default_factory=list)
    # a record a fit: features, rows, seconds, GFLOP/s, alpha, peak memory, what was resumed
    fits: list[Record] = field(default_factory=list)
    # a record a view, a number of rows and of landmarks, with the error in % and its standard error
    errors: list[Record] = field(default_factory=list)
    verdict: Record = field(default_factory=dict)  # of the last model on the test digits, see `estimators.evaluation`
    workers: int = 0
    searched_rows: int = 0
    model: str = ""


def work(job: Settings, run: Path, *, quiet: bool) -> Outcome:
    """Run all stages on the current executor, which publishes in `run`."""
    material = gather(job, run, lambda rows, corpus: _require_room(plan_of(job, rows, corpus), rows), quiet=quiet)
    material.require_labels()
    first, train = first_rows(job, material), as_rows(material.train)
    ids = _landmark_rows(job, len(train))
    n_originals = None if material.originals is None else len(material.originals)
    searched = search_rows(job, len(train), n_originals)
    outcome = Outcome(job, material, len(ids), workers=_workers(train), searched_rows=searched)
    for name, texts in job.views.items():
        view = _view(job, material, name, texts, ids, searched)
        outcome.views.append(view)
        _fit(outcome, view, first)
    emit(Step("fits", len(outcome.fits), len(outcome.fits)))
    _finish(outcome, run)
    return outcome


def _landmark_rows(job: Settings, n_rows: int) -> Array:
    """Return the ids (m,) of the landmarks' rows in random order, so that any first ones are a random sample too."""
    emit(Note(f"landmarks: {min(job.landmarks, n_rows):,} of {n_rows:,} rows"))
    rng = np.random.RandomState(job.seed)
    return rng.permutation(uniform(n_rows, min(job.landmarks, n_rows), rng))


def _view(job: Settings, material: Material, name: str, texts: Sequence[str], ids: Array, searched_rows: int) -> View:
    """Fit the transforms, choose the settings and plan the fit, which may be refused."""
    train = material.train
    emit(Note(f"{name}: {', '.join(texts)}"))
    maps = Pipeline(transform_steps(texts, train)).fit(train)
    rows = maps.transform(train)
    choice = choose(job, rows, rows_at(rows, ids), searched_rows, train.n_features)
    choice.model.set_params(solver=choice.model.plan_solver(rows)["solver"])  # one for all steps
    plan = choice.model.plan(rows)
    _require_room(plan, rows)
    a_worker = plan.worker_bytes(settings().worker_base_bytes)
    emit(Note(f"plan: {measured(plan.flops, 'FLOP')}, {size(plan.bytes_read)} to read, a worker {size(a_worker)}"))
    return View(name, maps, choice, plan)


def _fit(outcome: Outcome, view: View, first: int) -> None:
    """Fit to growing numbers of rows, and evaluate every step with several numbers of landmarks."""
    job, material, model = outcome.job, outcome.material, view.choice.model
    rows = view.maps.transform(material.train)
    mapped, (known, true) = view.maps.transform(material.test), truth(material.test)
    ends = growing(first, len(rows), job.steps)
    counts = growing(max(10, outcome.landmarks // 16), outcome.landmarks, job.steps)
    done, expected = len(outcome.fits), len(ends) * len(job.views)
    for number, (start, stop) in enumerate(pairwise((0, *ends))):
        emit(Step("fits", done + number, expected))
        new = f", {stop - start:,} of them new" if start else ""
        emit(Note(f"fit {done + number + 1} of {expected}: {view.name}, {stop:,} rows{new}"))
        begun = time.perf_counter()
        if start and hasattr(model, "partial_fit"):
            model.partial_fit(rows.window(start, stop))
        else:
            model.fit(rows.window(0, stop))
        outcome.fits.append({"features": view.name, **_fitted(model, stop, time.perf_counter() - begun)})
        for count in counts:
            fewer = _fewer(job, view, rows.window(0, stop), count, last=stop == len(rows))
            if fewer is None:
                continue
            wrong = float(np.mean(_predicted(fewer, mapped)[known] != true))
            record = {"features": view.name, "rows": stop, "landmarks": count, "alpha": fewer.alpha_}
            error_se = 100 * float(np.sqrt(wrong * (1 - wrong) / len(true)))
            outcome.errors.append({**record, "error": 100 * wrong, "error_se": error_se})


def _fewer(job: Settings, view: View, rows: Rows, count: int, *, last: bool) -> Any:
    """Return the model on `count` of its landmarks; None where that needs a fit of its own, except for all rows."""
    model = view.choice.model
    if count == len(model.landmarks):
        return model
    if hasattr(model, "partial_fit"):  # it keeps statistics
        return model.with_landmarks(count)
    if not last:
        return None
    small = model_of(job, view.choice.sigma, view.choice.alpha, model.landmarks[:count])
    return small.fit(rows)


def _finish(outcome: Outcome, run: Path) -> None:
    """Save the last model, and evaluate it."""
    material, view = outcome.material, outcome.views[-1]
    train, test, model = material.train, material.test, view.choice.model
    outcome.model = str(run / "model")
    emit(Figures("fit", {**model.fit_report(), "corpus": train.path, "model": outcome.model, "seed": outcome.job.seed}))
    save_model(view.pipeline, outcome.model, overwrite=True)
    outcome.verdict = evaluate(view.pipeline, test, as_rows(test), of="held-out", pictures=False)
    emit(Figures("score", limit_classes(outcome.verdict)))


def _predicted(model: Any, rows: Rows) -> Array:
    # a model travels with the tasks that predict; Dask warns above 10 MB
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GiB"}):
        return np.asarray(model.predict(rows))


def growing(first: int, last: int, count: int) -> list[int]:
    """Return at most `count` whole numbers from `first` to `last` in about equal ratios; for one, `last`."""
    if count == 1 or first >= last:
        return [last]
    numbers = np.rint(np.geomspace(first, last, count)).astype(np.int64)
    return [int(number) for number in np.unique(np.clip(numbers, first, last))]


def plan_of(job: Settings, rows: Rows, corpus: Any) -> Plan:
    """Return the plan of a fit to rows in the last view, at the largest width that its transforms can give."""
    mapped = rows
    for _, step in transform_steps(list(job.views.values())[-1], corpus):
        mapped = step.widest(mapped) if step.learns else clone(step).fit(mapped).transform(mapped)
    plan: Plan = model_of(job, job.width_for(rows.x.shape[1]), job.penalty).plan(mapped)
    return plan


def _require_room(plan: Plan, rows: Rows) -> None:
    """Refuse a cluster that cannot do the fit: memory, versions, or input that a worker cannot read."""
    executor = choose_executor(rows)
    if isinstance(executor, Client):
        check_cluster(executor, rows, plan, settings())


def _workers(rows: Rows) -> int:
    executor = choose_executor(rows)
    return len(executor.ncores()) if isinstance(executor, Client) else processors() if executor == "threads" else 1


def _fitted(model: Any, stop: int, seconds: float) -> Record:
    """Return the record of a fit from the report of its sweep."""
    swept = model.sweep_
    return {
        "rows": stop,
        "new_rows": swept["rows"],
        "alpha": model.alpha_,
        "fit_seconds": seconds,
        "sweep_seconds": swept["seconds"],
        "gflops_per_second": swept["gflops_per_second"],
        "peak_bytes": swept["peak_bytes"],
        "executor": swept["executor"],
        "segments": swept["segments"],
        "resumed_segments": swept["resumed_segments"],
        "stage_seconds": swept["stage_seconds"],
        "incidents": swept["incidents"],
    }


def steps_of(outcome: Outcome) -> Iterator[tuple[Record, Record]]:
    """Return each fit with the error of its model with all landmarks."""
    whole = {
        (record["features"], record["rows"]): record
        for record in outcome.errors
        if record["landmarks"] == outcome.landmarks
    }
    for fit in outcome.fits:
        yield fit, whole[fit["features"], fit["rows"]]
