"""What is known of all candidates so far: their tests, what failed, and how long it took."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.exceptions import FitFailedWarning

from bigkernel.data.visible import visible
from bigkernel.errors import DataError
from bigkernel.search.arrangement import Candidate
from bigkernel.search.planning import SearchPlan
from bigkernel.search.preparation import Prepared
from bigkernel.search.refits import refit_each
from bigkernel.search.results import table
from bigkernel.search.scoring import Failures, Scoring, Tested


@dataclass(eq=False)
class Judged:
    """The candidates that were judged.

    Attributes
    ----------
    scoring : what they are judged by
    splits : how many
    error_score : of fits that fail, or "raise"
    verbose : how much is printed
    tested, failed : by numbers of candidate and split
    seconds : each candidate's share of the time
    """

    scoring: Scoring
    splits: int
    error_score: Any
    verbose: int = 0
    tested: dict[tuple[int, int], Tested] = field(default_factory=dict)
    failed: Failures = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)

    def announce(self, plan: SearchPlan) -> None:
        """Print what is to be done, where that is wanted."""
        if self.verbose > 0:
            fits = plan.candidates * plan.splits
            _tell(f"Fitting {plan.splits} folds for each of {plan.candidates} candidates, totalling {fits} fits")
            _tell(str(plan))

    def judge(self, one: Prepared) -> None:
        """Judge the candidates of one work."""
        begun, work = time.perf_counter(), one.work
        failed = None if self.error_score == "raise" else self.failed
        found: Iterable[tuple[Candidate, int, Tested]]
        if work.sweeps:
            found = work.run(self.scoring, failed)
        else:
            inner = one.X.tocsr() if issparse(one.X) else np.asarray(one.X)
            found = refit_each(
                one.members, inner, work.rows, work.targets, work.inputs, work.partitions, self.scoring, failed
            )  # fmt: skip
        for candidate, split, tested in found:
            self.tested[candidate.index, split] = tested
            self._say(candidate, split, tested)
        for member in one.members:
            self.seconds[member.index] = (time.perf_counter() - begun) / len(one.members)

    def _say(self, candidate: Candidate, split: int, tested: Tested) -> None:
        if self.verbose < 2:
            return
        words = ", ".join(f"{name}={value}" for name, value in candidate.params.items())
        if self.verbose > 2:
            words += "".join(f", {label}={self.scoring.of(label, tested):.3f}" for label in self.scoring.names)
        _tell(f"[CV {split + 1}/{self.splits}] END {words}")

    def table(self, everyone: Sequence[Candidate]) -> dict[str, Any]:
        """`cv_results_`.

        Raises
        ------
        DataError
            Every fit has failed, or a score is not finite and error_score is "raise".
        """
        total, raises = len(everyone) * self.splits, self.error_score == "raise"
        if self.failed and not self.tested:
            first = next(iter(self.failed.values()))
            raise DataError(f"all {total} fits failed, the first because of {type(first).__name__}: {first}") from first
        filled = None if raises else float(self.error_score)
        return table(everyone, self.tested, self.seconds, self.scoring, self.splits, filled)

    def warn_of_failures(self, total: int) -> None:
        """Say which of so many fits failed, and which scores could not be had of the others."""
        for label, name in self.scoring.names.items():
            values = [self.scoring.of(label, one) for one in self.tested.values() if one.n]
            if count := int((~np.isfinite(values)).sum()):
                warnings.warn(
                    f"{count} of {total} scores by {name} could not be had or are not finite, and are "
                    f"{self.error_score}; error_score='raise' tells why",
                    FitFailedWarning,
                    stacklevel=5,
                )
        if not self.failed:
            return
        kinds = {f"{type(error).__name__}: {error}" for error in self.failed.values()}
        warnings.warn(
            f"{len(self.failed)} of {total} fits failed, and their scores are {self.error_score}: "
            + "; ".join(sorted(kinds)),
            FitFailedWarning,
            stacklevel=5,
        )


def _tell(text: str) -> None:
    """Print a line or some, whose letters all show."""
    print(visible(text, lines=True), flush=True)
