"""All errors that bigkernel raises on purpose, in one tree.

Each message says what was found, what was expected and what to do. `exit_code` is what the command line returns for it
(0 success, 1 any other error, 2 wrong usage, 75 interrupted but resumable).
"""

from __future__ import annotations


class BigKernelError(Exception):
    """Base class of all errors that bigkernel raises."""

    exit_code = 1


class DataError(BigKernelError, ValueError):
    """The rows, labels or files cannot be used; names the array and the row, line or byte."""

    exit_code = 3


class ChunkCorruptError(DataError):
    """A stored chunk does not decode or fails its checksum; names the array and the chunk."""


class ChunkMissingError(DataError):
    """A chunk that should be stored is missing; names the array and the chunk."""


class PlanTooLargeError(BigKernelError, ValueError):
    """The job does not fit in its memory; names landmarks, chunks or a dtype that would fit."""

    exit_code = 4


class ResumeMismatchError(BigKernelError):
    """The run on disk belongs to another job; names the field that differs."""

    exit_code = 5


class RunLockedError(BigKernelError):
    """Another running driver works in this run directory; names its host and process."""

    exit_code = 9


class StalledError(BigKernelError):
    """A bounded wait ran out, or the cluster was lost; names what was waited for and for how many seconds."""

    exit_code = 6


class TaskAbandonedError(StalledError):
    """A task was given up after ending several worker processes; names its rows and the workers' logs."""


class ModelRejectedError(BigKernelError, ValueError):
    """A model file is damaged, of an unknown format or not trusted."""

    exit_code = 7


class ConfigError(BigKernelError, ValueError):
    """A setting has an unknown key, a wrong type or a value out of range; names the key's path."""

    exit_code = 8


class RankDeficiencyWarning(UserWarning):
    """The m×m core is numerically rank deficient; the minimum-norm solution is returned.

    Names rank and m. Also raised if the rows give fewer landmarks than requested.
    """


class AccuracyWarning(UserWarning):
    """Predictions may differ from those of least squares in float64 by over 1e-3 of their norm; gives the error."""


class CollapsedLabelsWarning(UserWarning):
    """Pseudo-labels of the unlabelled rows became flat or of one class; an earlier round is kept."""


class DifferentClassesWarning(UserWarning):
    """The class means of the target, by its pseudo-labels, lie unlike those of the source: labels may be wrong."""


class OverlapWarning(UserWarning):
    """Rows of the source hardly overlap with those of the target, so that importance weights cannot be trusted."""


class DifferentBlasWarning(UserWarning):
    """The driver's BLAS differs from the one that began the run; names threads and libraries of both."""


class BestAtEdgeWarning(UserWarning):
    """The best candidate of a search lies at an end of its grid; names the parameter, the side and values to add."""


class PenaltyWarning(UserWarning):
    """Rows that are left out are predicted far better with a larger penalty than that of generalised cross-validation.

    It takes all rows to have the same leverage. Use ``alpha="cv"``.
    """


class MissingLabelWarning(UserWarning):
    """A class looks like a missing label: −1 beside several others without unlabelled rows, or a text such as ""."""


class ColumnScaleWarning(UserWarning):
    """One column of the rows has a far larger scale than the others, and decides their distances."""


class CategoriesWarning(UserWarning):
    """Nearly all texts of a column of a table are different, or not among the categories of the fit."""
