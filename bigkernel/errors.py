"""Every error that bigkernel raises on purpose, in one tree.

Each message says what was found, what was expected and what to do. `exit_code` is what the command line returns for it
(0 success, 1 an error that is not ours, 2 wrong usage, 75 interrupted but resumable).
"""

from __future__ import annotations


class BigKernelError(Exception):
    """Root of the tree: `except BigKernelError` catches whatever bigkernel reports."""

    exit_code = 1


class DataError(BigKernelError, ValueError):
    """The rows, labels or files given cannot be used; names the array and the row, line or byte."""

    exit_code = 3


class ChunkCorruptError(DataError):
    """A stored chunk does not decode or fails its checksum; names the array and the chunk."""


class ChunkMissingError(DataError):
    """A chunk that should be stored is not there; names the array and the chunk."""


class PlanTooLargeError(BigKernelError, ValueError):
    """The job cannot fit in the memory that it was given; says which landmarks, chunk or dtype would."""

    exit_code = 4


class ResumeMismatchError(BigKernelError):
    """The run on disk belongs to another job; names the field that differs."""

    exit_code = 5


class RunLockedError(BigKernelError):
    """Another driver, alive, works in this run directory; names its host and process."""

    exit_code = 9


class StalledError(BigKernelError):
    """A bounded wait ran out, or the cluster was lost; carries what was waited for and for how many seconds."""

    exit_code = 6


class TaskAbandonedError(StalledError):
    """A task ended one worker process after another and was given up; names its rows and what the workers said."""


class ModelRejectedError(BigKernelError, ValueError):
    """A model file is damaged, of an unknown format or not to be trusted."""

    exit_code = 7


class ConfigError(BigKernelError, ValueError):
    """A setting has an unknown key, a wrong type or a value out of range; names the key's path."""

    exit_code = 8


class RankDeficiencyWarning(UserWarning):
    """The m×m core has less than full numerical rank: the answer is the minimum-norm one. Names rank and m.

    Or the rows give fewer landmarks than were asked for.
    """


class AccuracyWarning(UserWarning):
    """Predictions may differ from those of least squares in float64 by more than 1e-3 of their norm; names how far."""


class CollapsedLabelsWarning(UserWarning):
    """The labels that adaptation gives unlabelled rows became flat, or one class took all: an earlier round is kept."""


class DifferentBlasWarning(UserWarning):
    """The driver cannot solve with the BLAS that a run began with; names threads and libraries, then and now."""


class BestAtEdgeWarning(UserWarning):
    """The best candidate of a search lies at an end of its grid; names the parameter, the side and what to add."""
