"""The names of this package, and the module that each comes from."""

from .kinds import Event as Event
from .kinds import Figures as Figures
from .kinds import Incident as Incident
from .kinds import JobEnded as JobEnded
from .kinds import JobStarted as JobStarted
from .kinds import Merged as Merged
from .kinds import Note as Note
from .kinds import Observer as Observer
from .kinds import Pulse as Pulse
from .kinds import Receipted as Receipted
from .kinds import SegmentDone as SegmentDone
from .kinds import Spent as Spent
from .kinds import Step as Step
from .kinds import SweepEnded as SweepEnded
from .kinds import SweepStarted as SweepStarted
from .scope import Scope as Scope
from .scope import emit as emit
from .scope import ending as ending
from .scope import job as job
from .scope import observe as observe
from .scope import part_of_job as part_of_job
from .scope import spent as spent
