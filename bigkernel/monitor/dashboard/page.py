"""The page `/bigkernel` of the scheduler's dashboard: what the jobs of this scheduler do, renewed every second.

Drawings are Bokeh's (`page_map`, `page_figures`). Texts are plain data (`page_facts`) that the script of the page shows
as text. `page.html` extends Dask's own template, so that menu and statics are Dask's. A part that fails says so in its
place, and is logged once for each open page; the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from bokeh.document import Document
from bokeh.models import ColumnDataSource, CustomJS
from distributed import Scheduler
from distributed.dashboard.components.scheduler import env

from bigkernel.data.visible import all_visible, log_of
from bigkernel.events.plugin import state_of
from bigkernel.monitor.dashboard.page_drawing import Part, State
from bigkernel.monitor.dashboard.page_facts import chosen, detail_facts, jobs_facts, log_facts, title
from bigkernel.monitor.dashboard.page_figures import Memory, Rate, Stages
from bigkernel.monitor.dashboard.page_map import RowMap
from bigkernel.monitor.palette import DARK, LIGHT, properties

EVERY_MILLISECONDS = 1000
_log = log_of(__name__)
_NOTHING: dict[str, Any] = {"jobs": [], "workers": {}}


class Facts:
    """Texts of one part, carried to the browser by the tags of an empty source; sent when they have changed."""

    def __init__(self, name: str, make: Callable[[State, State, State | None], Any]) -> None:
        self.name = name
        self.carrier = ColumnDataSource(name=f"facts-{name}")
        self._make = make
        self.carrier.js_on_change("tags", CustomJS(code=f"bigkernel.show({name!r}, cb_obj.tags[0])"))

    def update(self, state: State, job: State, sweep: State | None) -> None:
        """Send the texts about this sweep of this job, if they are others than before."""
        facts = all_visible(self._make(state, job, sweep))
        if self.carrier.tags != [facts]:
            self.carrier.tags = [facts]


class Page:
    """One open page.

    Parameters
    ----------
    read : gives the state (`plugin.state_of`)
    address : of the scheduler, for whoever has no job yet

    Attributes
    ----------
    parts : what is renewed, each of which may fail alone
    """

    def __init__(self, read: Callable[[], Mapping[str, Any] | None], address: str) -> None:
        self._read = read
        self._wanted: list[str] = []  # job and sweep that somebody chose; empty: the newest running ones
        self._figures = (RowMap(), Rate(), Stages(), Memory())
        self._jobs = Facts("jobs", lambda state, job, sweep: jobs_facts(state, self._wanted, address))
        self._texts = (
            Facts("detail", lambda state, job, sweep: detail_facts(state, job, sweep) if job else {"sweep": ""}),
            Facts("log", lambda state, job, sweep: log_facts(job) if job else []),
        )
        self.parts: list[Part] = [self._jobs, *self._texts, *self._figures]
        self._failed: list[str] = []
        self._reported: set[str] = set()
        self._failures = Facts("failed", lambda state, job, sweep: list(self._failed))
        self._document: Document | None = None
        self._shown: tuple[State | None, State | None] = (None, None)
        self._choice = ColumnDataSource(name="choice")
        self._choice.on_change("tags", self._choose)

    def attach(self, document: Document, variables: Mapping[str, Any]) -> None:
        """Put the parts into a document of Dask's dashboard."""
        carriers = [facts.carrier for facts in (self._jobs, *self._texts, self._failures)]
        self._figures[0].root.tags = [*carriers, self._choice]  # what no root refers to is in no document
        for part in self._figures:
            document.add_root(part.root)
        paints = [[model.id, name, role] for part in self._figures for model, name, role in part.paints]
        start = CustomJS(args={"choice": self._choice, "paints": paints}, code="bigkernel.start(choice, paints)")
        document.js_on_event("document_ready", start)
        self._document = document
        document.title = title(*self._shown)
        document.template = env.from_string(_template())
        document.template_variables.update(variables)

    def update(self) -> None:
        """Renew every part; what fails is named on the page, and logged once."""
        failed: list[str] = []
        state: Mapping[str, Any] = _NOTHING
        try:
            state = self._read() or _NOTHING
            job, sweep = chosen(state, self._wanted)
        except Exception as error:
            job, sweep, failed = None, None, [self._fail("state", error)]
        for part in self.parts:
            try:
                if job is not None or isinstance(part, Facts):
                    part.update(state, job or {}, sweep)
            except Exception as error:
                failed.append(self._fail(part.name, error))
        self._failed, self._shown = failed, (job, sweep)
        self._failures.update(state, {}, None)
        if self._document is not None and self._document.title != title(job, sweep):
            self._document.title = title(job, sweep)

    def _fail(self, name: str, error: Exception) -> str:
        if name not in self._reported:
            self._reported.add(name)
            _log.warning("the part %s of the page failed: %s", name, type(error).__name__, exc_info=error)
        return name

    def _choose(self, attr: str, old: Any, new: Any) -> None:
        """Take the job and the sweep that somebody clicked at; [] follows the newest again."""
        self._wanted = [str(name) for name in new][:2]
        self.update()


def document(scheduler: Scheduler, variables: Mapping[str, Any], doc: Document) -> None:
    """Make the page in a document that somebody has just opened; Dask's signature of a page."""
    page = Page(lambda: state_of(scheduler), str(scheduler.address))
    page.update()
    page.attach(doc, variables)
    doc.add_periodic_callback(page.update, EVERY_MILLISECONDS)


@cache
def _template() -> str:
    """The template of the page with its style and its script inside: no route serves files of ours."""
    here = Path(__file__).parent
    text = (here / "page.html").read_text(encoding="utf-8")
    for name in ("page.css", "page.js"):
        text = text.replace(f"/* {name} */", (here / name).read_text(encoding="utf-8"))
    return text.replace("/* light */", properties(LIGHT)).replace("/* dark */", properties(DARK))
