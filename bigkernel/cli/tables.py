"""What a notebook shows of a corpus, rows, a plan, a run, a fit report and a search: small tables and pictures.

`html_of` makes HTML of plain letters: whatever names, labels and messages hold goes through `visible` and is escaped.
What cannot be read any more (a corpus that was removed) is said in the table, for a cell that shows it shall not fail.
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from bigkernel.data.corpus import Corpus, open_corpus
from bigkernel.data.run_directory import Run
from bigkernel.data.run_status import command_of, survey
from bigkernel.data.visible import visible
from bigkernel.engine.rows import Rows
from bigkernel.engine.sources import ZarrSource
from bigkernel.errors import BigKernelError
from bigkernel.monitor.report.pixels import pack, png, unpack
from bigkernel.monitor.terminal.figures import readable
from bigkernel.streaming.plan import Plan

if TYPE_CHECKING:
    from bigkernel.search.planning import SearchPlan

_PICTURES, _ROWS, _COLUMNS = 10, 5, 8  # shown of a corpus
_BEST = 10  # candidates of a search
_MOST_LETTERS = 300  # of one cell
_STYLE = "border-collapse:collapse;font-size:90%"
_CELL = "text-align:left;padding:1px 8px 1px 0;vertical-align:top"
_PICTURE = "height:48px;image-rendering:pixelated;border:1px solid #8888"


def html_of(value: Any) -> str:
    """HTML of a corpus, rows, a plan, a run, the report of a fit, or a search by sweeps and its plan."""
    makers: dict[type, Callable[[Any], Markup]] = {Corpus: _corpus, Rows: _rows, Plan: _plan, Run: _run, dict: _report}
    make = next((maker for kind, maker in makers.items() if isinstance(value, kind)), _of_search)
    try:
        return str(Markup("<div>{}</div>").format(make(value)))
    except (BigKernelError, OSError, ValueError) as error:
        return str(Markup("<div>{}: {}</div>").format(type(value).__name__, _text(error)))


def _of_search(value: Any) -> Markup:
    from bigkernel.search.planning import SearchPlan  # which is there, or scikit-learn is not

    return _search_plan(value) if isinstance(value, SearchPlan) else _search(value)


def _search_plan(plan: SearchPlan) -> Markup:
    figures = {
        "candidates": plan.candidates,
        "splits": plan.splits,
        "sweeps": plan.count,
        "flops": plan.flops,
        "task_bytes": plan.task_bytes,
        "driver_bytes": plan.driver_bytes or None,
    }
    return named("plan of a search", figures) + columns(["its sweeps"], [[line.strip()] for line in plan.sweeps])


def _text(value: object) -> str:
    return visible(value, most=_MOST_LETTERS)


def named(title: str, figures: Mapping[str, Any]) -> Markup:
    """A table of two columns, with the units that the terminal shows; what is empty is left out."""
    lines = [
        Markup('<tr><th style="{0};opacity:.7;font-weight:normal">{1}</th><td style="{0}">{2}</td></tr>').format(
            _CELL, _text(name.replace("_", " ")), _text(readable(name, value))
        )
        for name, value in figures.items()
        if not isinstance(value, str | list | tuple | dict | None) or value
    ]
    return Markup(
        '<table style="{}"><caption style="text-align:left;white-space:nowrap"><b>{}</b></caption>{}</table>'
    ).format(_STYLE, _text(title), Markup("").join(lines))


def columns(header: Sequence[str], lines: Iterable[Sequence[Any]]) -> Markup:
    """A table with a header; a cell that is Markup stands as it is."""
    head = Markup("").join(Markup('<th style="{}">{}</th>').format(_CELL, _text(name)) for name in header)
    body = [
        Markup("<tr>{}</tr>").format(
            Markup("").join(
                Markup('<td style="{}">{}</td>').format(_CELL, cell if isinstance(cell, Markup) else _text(cell))
                for cell in line
            )
        )
        for line in lines
    ]
    return Markup('<table style="{}"><tr>{}</tr>{}</table>').format(_STYLE, head, Markup("").join(body))


def pictures(images: NDArray[Any], labels: Sequence[object]) -> Markup:
    """Grey pictures (k, h, w) side by side, each above its label, every one from its least to its largest value."""
    found = Markup("")
    for image, label in zip(unpack(pack(images)), labels, strict=False):
        data = base64.b64encode(png(image)).decode()
        found += Markup(
            '<figure style="display:inline-block;margin:4px;text-align:center"><img style="{}" alt="row" '
            'src="data:image/png;base64,{}"/><figcaption>{}</figcaption></figure>'
        ).format(_PICTURE, data, _text(label))
    return found


def _corpus(corpus: Corpus) -> Markup:
    info = corpus.info
    classes = [str(label) for label in info.classes]
    figures = {
        "path": corpus.path,
        "rows": corpus.n_rows,
        "features": corpus.n_features,
        "dtype": corpus.dtype,
        "columns": list(corpus.columns),
        "classes": f"{len(classes)}: {', '.join(classes[:12])}{', …' if len(classes) > 12 else ''}" if classes else "",
        "image_shape": list(info.image_shape or ()),
        "chunk_rows": corpus.chunk_rows,
        "source": info.source,
    }
    head = corpus.head(_PICTURES if info.image_shape else _ROWS)
    return named(f"corpus {info.name}", figures) + _first_rows(head, info.image_shape)


def _first_rows(head: Mapping[str, NDArray[Any]], image_shape: tuple[int, int] | None) -> Markup:
    """The first rows: as pictures above their labels where they are some, else as numbers."""
    x, beside = head["x"], {name: values for name, values in head.items() if name != "x"}
    if image_shape is not None and image_shape[0] * image_shape[1] == x.shape[1] and len(x):
        labels = beside.get("y", np.arange(len(x)))
        return pictures(x.reshape(len(x), *image_shape), [_number(label) for label in labels])
    shown = min(x.shape[1], _COLUMNS)
    more = ["…"] if shown < x.shape[1] else []
    header = ["row", *beside, *(f"x[{i}]" for i in range(shown)), *more]
    lines = [
        [i, *(_number(values[i]) for values in beside.values()), *map(_number, row[:shown]), *more]
        for i, row in enumerate(x)
    ]
    return columns(header, lines)


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)


def _rows(rows: Rows) -> Markup:
    figures = {
        "rows": len(rows),
        "features": rows.shape[1],
        "stored_as": f"{rows.dtype}, {rows.stored_width} features" if rows.row_maps else str(rows.dtype),
        "columns": list(rows.columns),
        "transforms": [type(row_map).__name__ for row_map in rows.row_maps],
        "read_from": type(rows.x.origin).__name__.removesuffix("Source"),
        "bad_rows": rows.bad_rows,
    }
    found = named(f"rows of {rows.name}", figures)
    origin = rows.x.origin
    if rows.x is origin and isinstance(origin, ZarrSource) and origin.path:
        corpus = open_corpus(origin.path)
        found += _first_rows(corpus.head(_PICTURES if corpus.info.image_shape else _ROWS), corpus.info.image_shape)
    return found


def _plan(plan: Plan) -> Markup:
    return named("plan of a sweep", plan.summary())


def _run(run: Run) -> Markup:
    lines = []
    for state in survey(run.path):
        changed = time.strftime("%Y-%m-%d %H:%M", time.localtime(state.changed))
        name, segments = os.path.relpath(state.path, run.path), f"{state.segments_done} of {state.segments}"
        lines.append([name, state.state, segments, f"{state.rows - state.rows_done:,}", changed, state.holder])
    header = ["sweep", "state", "segments", "rows left", "last change", "at work"]
    about = {"path": run.path, "command": " ".join(command_of(run.path))}
    return named("run", about) + columns(header, lines)


def _report(report: Mapping[str, Any]) -> Markup:
    nested = {name: value for name, value in report.items() if isinstance(value, Mapping) and name != "kernel"}
    plain = {
        name: value for name, value in report.items() if name not in (*nested, "estimator") and not _is_table(value)
    }
    found = named(str(report.get("estimator", "fit")), plain)
    for name, value in nested.items():
        if value:
            parts = named(name.replace("_", " "), value)
            found += Markup("<details><summary>{}</summary>{}</details>").format(_text(name.replace("_", " ")), parts)
    for name, value in report.items():
        if _is_table(value):
            header = list(value[0])
            lines = [[_number(line.get(key, "")) for key in header] for line in value]
            found += Markup("<div>{}</div>").format(_text(name)) + columns(header, lines)
    return found


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(line, Mapping) for line in value)


def _search(search: Any) -> Markup:
    """The best candidates of a search, its plan, and scikit-learn's picture of the estimator."""
    from sklearn import get_config
    from sklearn.utils import estimator_html_repr

    diagram = Markup(estimator_html_repr(search) if get_config()["display"] == "diagram" else "")
    results = getattr(search, "cv_results_", None)
    if results is None:
        return diagram
    label = next(iter(search.scorer_)) if search.multimetric_ else "score"
    figures = {"candidates": len(results["params"]), "splits": search.n_splits_, "sweeps": search.plan_.count}
    if hasattr(search, "best_params_"):
        figures |= {"best": {name: str(value) for name, value in search.best_params_.items()}}
    order = np.argsort(results[f"rank_test_{label}"], kind="stable")[:_BEST]
    names = list(dict.fromkeys(name for params in results["params"] for name in params))
    lines = []
    for i in order:
        params = results["params"][i]
        score, error = results[f"mean_test_{label}"][i], results[f"sem_test_{label}"][i]
        lines.append([*(_number(params.get(name, "")) for name in names), f"{score:.5g} ± {error:.2g}"])
    return named(type(search).__name__, figures) + columns([*names, label], lines) + diagram
