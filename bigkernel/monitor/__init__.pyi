"""The names of this package, and the module that each comes from."""

from .events import Event as Event
from .events import Figures as Figures
from .events import Incident as Incident
from .events import JobEnded as JobEnded
from .events import JobStarted as JobStarted
from .events import Merged as Merged
from .events import Note as Note
from .events import Observer as Observer
from .events import Pulse as Pulse
from .events import Receipted as Receipted
from .events import SegmentDone as SegmentDone
from .events import Spent as Spent
from .events import Step as Step
from .events import SweepEnded as SweepEnded
from .events import SweepStarted as SweepStarted
from .scope import Scope as Scope
from .scope import emit as emit
from .scope import ending as ending
from .scope import job as job
from .scope import observe as observe
from .scope import part_of_job as part_of_job
from .scope import spent as spent
