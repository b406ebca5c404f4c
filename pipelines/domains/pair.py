"""Two sets of digits in both directions: all methods over several draws, with hyper-parameters chosen on the source."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from sklearn.model_selection import StratifiedGroupKFold
from threadpoolctl import threadpool_limits

from pipelines.domains.data import Digits, Task
from pipelines.domains.features import COPIES, tasks_of
from pipelines.domains.methods import METHODS, Draws, Fit, Method, Setting, guarded
from pipelines.shared.experiments import steps

N_FOLDS = 3
TIMED = 3  # repeats of deterministic fits
Fits = dict[str, list[list[Fit]]]  # by the key of a method: for each direction, one fit for each draw


@dataclass(frozen=True)
class Chosen:
    """Hyper-parameters chosen by cross-validation on the source, and their accuracy there, %."""

    setting: Setting
    accuracy: float


def fit_all(
    sets: tuple[Digits, Digits],
    table: str,
    draws: Sequence[int],
    m: int,
    *,
    settings: Mapping[str, Sequence[Setting]] | None = None,
    what: str,
    quiet: bool,
) -> Fits:
    """Fit every method in both directions to every draw; deterministic ones a few times, for their timing."""
    fits: Fits = {}
    same = table != COPIES
    with steps(what, 2 * len(draws), quiet=quiet) as after, threadpool_limits(limits=1, user_api="blas"):
        for number, draw in enumerate(draws):
            for direction, task in enumerate(tasks_of(sets, table, draw)):
                fitter = Draws(task, m)
                for key, method in METHODS.items():
                    again = same and not method.landmarks and number >= TIMED
                    if method.takes(task) and (settings is None or key in settings) and not again:
                        setting = None if settings is None else settings[key][direction]
                        fits.setdefault(key, [[], []])[direction].append(fitter.fit(method, draw, setting))
                after()
    return fits


def grid_of(method: Method, most: int | None) -> list[dict[str, float]]:
    """Return all settings of a method's grid, with at most so many values of each hyper-parameter."""
    values = product(*(some[:most] for some in method.grid.values()))
    return [{**method.setting, **dict(zip(method.grid, some, strict=True))} for some in values] if method.grid else []


def choose(task: Task, m: int, seed: int, most: int | None, after: Callable[[], None]) -> dict[str, Chosen]:
    """Choose from every grid the setting most accurate on held-out digits of the source; the first of equals.

    Held-out digits, with all their copies, are no part of the fit; those of the target are, unlabelled, where a method
    knows them. Landmarks are of draw `seed`.
    """
    draws, chosen = Draws(task, m), {}
    splitter = StratifiedGroupKFold(N_FOLDS, shuffle=True, random_state=seed)
    splits = list(splitter.split(task.source, task.labels, task.digit))
    for key, method in METHODS.items():
        if not method.takes(task) or not method.grid:
            continue
        best = Chosen(method.setting, -1.0)
        for setting in grid_of(method, most):
            share = held_out_accuracy(method, draws, setting, splits, seed)
            if share > best.accuracy:
                best = Chosen(setting, share)
            after()
        chosen[key] = best
    return chosen


def held_out_accuracy(
    method: Method, draws: Draws, setting: Setting, splits: Sequence[tuple[np.ndarray, np.ndarray]], seed: int
) -> float:
    """Return the accuracy in % on the held-out rows of the source."""
    task, right = draws.task, 0
    Z = draws.landmarks(method.knows, seed)[0] if method.landmarks else np.empty((0, 0))
    for train, held_out in splits:
        with guarded():
            predict = method.fit(task.labelled(train), Z, setting)
        right += int(np.sum(predict(task.source[held_out]) == task.labels[held_out]))
    return 100 * right / len(task.labels)


def grid_size(most: int | None) -> int:
    """Return the number of settings in all grids."""
    return sum(len(grid_of(method, most)) for method in METHODS.values())
