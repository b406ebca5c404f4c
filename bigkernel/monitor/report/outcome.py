"""The outcome of a job: the quality of its model, and the certificates of its solve.

Both are read from the figures that the job left in the journal: "score" (see `estimators.evaluation`), "fit" (an
estimator's `fit_report`) and "tune" (`records`: a mapping for each of the best candidates, with `score`, `rank` and
`standard_error`; `score`: its name; `candidates`, `folds`: how many there were; `name`: of the job; `edges`: what its
grid lacks). They may be of any version, so that every value is looked at before it is shown. The pictures of a
search, for light and dark screens, lie in its run (`PICTURES`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.monitor.format import plainly
from bigkernel.monitor.report import drawings
from bigkernel.monitor.report.facts import Facts
from bigkernel.monitor.report.page import MISSING, Column, Page, Table
from bigkernel.monitor.report.pixels import unpack
from bigkernel.solvers import residuals

PICTURES = ("search.png", "search-dark.png")
_MOST_PICTURE_BYTES = 2**22
_MOST_CONFUSED = 12
_MOST_CANDIDATES = 20
_JUDGED = {
    "training": "Judged on {count:,.0f} of the labelled rows that the model was fitted to: not an estimate of its "
    "error on new rows. With --score CORPUS a fit is judged on held-out rows.",
    "held-out": "Judged on the {count:,.0f} labelled rows of {source}, which the fit was not given.",
    "scored": "Scored on the {count:,.0f} labelled rows of {source}.",
}
# what certificates mean; the first ones are residual ratios
_RATIOS = {
    "whitening": "residual of the factorisation of the core",
    "solution": "residual of the solve",
    "eigen": "residual of the eigenpairs",
    "orthogonality": "orthogonality of the eigenvectors",
    "eigenfunctions": "residual of the eigenfunctions",
    "eigenfunctions_orthogonality": "orthogonality of the eigenfunctions",
}
_FIGURES = {
    "prediction_error": "predictions are right to (relative to their norm)",
    "error_of_sums": "of that, by rounding of the moments, or of the QR factorisation of the rows",
    "error_of_solve": "of that, by rounding of the solve",
    "error_of_blocks": "of that, by rounding of kernel values",
    "excess": "the objective is above its least value by at most (as a share of it)",
    "iterations": "steps of conjugate gradients",
    "jitter": "jitter of the preconditioner (relative to its largest entry)",
    "core_condition": "condition number of the core",
    "solved_condition": "condition number of the solved matrix",
    "effective_dof": "effective degrees of freedom",
    "rounding": "rounding of the moments: how far their eigenvalues reach below 0",
    "duplicate_landmarks": "landmarks that repeat another",
    "constant_features": "features that do not vary among the landmarks",
}


def _number(values: Mapping[str, Any], name: str) -> float | None:
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _score(facts: Facts) -> Mapping[str, Any]:
    found: Mapping[str, Any] = facts.outcome.get("score", {})
    return found


def tiles(facts: Facts) -> list[tuple[str, str]]:
    """The figures of the score for the head of the page."""
    score = _score(facts)
    of = {"training": "training rows", "held-out": "held-out rows"}.get(str(score.get("of")), "labelled rows")
    best = next(iter(_candidates(facts)), None)
    if best is not None:
        spread = _number(best, "standard_error")
        of = f"best {facts.outcome['tune'].get('score', 'score')} by cross-validation"
        return [(f"{best['score']:.4f}", of + (f", ± {spread:.2g}" if spread is not None else ""))]
    error, spread = _number(score, "error_percent"), _number(score, "standard_error_percent")
    if error is not None:
        return [(f"{error:.2f} %", f"error on {of}" + (f", ± {spread:.2g} %" if spread is not None else ""))]
    r2, mse = _number(score, "r2"), _number(score, "mse")
    found = [(f"{r2:.4f}", f"R² on {of}")] if r2 is not None else []
    return found + ([(f"{mse:.4g}", f"mean squared error on {of}")] if mse is not None else [])


def results(page: Page, facts: Facts) -> None:
    """Add the model's quality: error, confusion and worst rows of a classifier; error and residuals of a regressor.

    Of a search, its best candidates.
    """
    score = _score(facts)
    if _candidates(facts):
        _search(page, facts)
    count = _number(score, "rows")
    if count is None:
        return
    page.heading("What came out")
    source = str(score.get("corpus", ""))
    page.text(_JUDGED.get(str(score.get("of")), _JUDGED["scored"]).format(count=count, source=source or "a corpus"))
    classes = score.get("classes")
    loss, brier, off = (_number(score, name) for name in ("log_loss", "brier", "calibration_error"))
    if loss is not None and brier is not None and off is not None:
        page.text(
            f"Of its probabilities the log-loss is {loss:.4f} nats, the Brier score {brier:.4f}; they differ from how "
            f"often they come true by {off:.2%} on average."
        )
    if isinstance(classes, list):
        _confusion(page, score, classes)
        _worst(page, score)
    else:
        _residuals(page, score)


def _candidates(facts: Facts) -> list[Mapping[str, Any]]:
    """The candidates of a search that have a score, the best first."""
    records = facts.outcome.get("tune", {}).get("records")
    if not isinstance(records, list):
        return []
    sound = [each for each in records if isinstance(each, Mapping) and _number(each, "score") is not None]
    return sorted(sound, key=lambda each: _number(each, "rank") or 0.0)[:_MOST_CANDIDATES]


def _value(name: str, record: Mapping[str, Any]) -> str:
    value = record.get(name)
    return f"{value:.4g}" if isinstance(value, float) else plainly(value)


def name_of(facts: Facts) -> str:
    """What the job is called: the search by what was searched, else the run by its directory."""
    name = facts.outcome.get("tune", {}).get("name")
    return name if isinstance(name, str) and name else os.path.basename(os.path.abspath(facts.run))


def _pictures(facts: Facts) -> list[bytes]:
    """The pictures of a search that its run holds."""
    found = []
    for path in (Path(facts.run, name) for name in PICTURES):
        with suppress(OSError):
            if path.stat().st_size <= _MOST_PICTURE_BYTES and (data := path.read_bytes()).startswith(
                b"\x89PNG\r\n\x1a\n"
            ):
                found.append(data)
    return found if len(found) == len(PICTURES) else []


def _search(page: Page, facts: Facts) -> None:
    shown, search = _candidates(facts), facts.outcome["tune"]
    names = [name for name in shown[0] if name not in ("score", "standard_error", "rank", "chosen")]
    columns = [Column(name, name.replace("_", " "), partial(_value, name)) for name in names]
    columns += [
        Column("score", str(search.get("score", "score")), lambda r: f"{r['score']:.5f}"),
        Column("standard_error", "±", partial(_value, "standard_error")),
    ]
    if any(record.get("chosen") for record in shown):
        columns.append(Column("chosen", "", lambda r: "chosen" if r.get("chosen") else "", left=True))
    count, folds = _number(search, "candidates"), _number(search, "folds")
    told = f" of {count:,.0f} candidates" if count is not None else ""
    told += f", means over {folds:,.0f} folds, ± their standard error" if folds is not None else ""
    caption = f"The best {len(shown)}{told}." if len(shown) > 1 else f"The best{told}."
    found = search.get("edges")
    page.heading("What came out")
    for edge in found if isinstance(found, list) else []:
        page.state("open", f"The best lies at an end of the grid. {plainly(edge)}")
    if pictures := _pictures(facts):
        page.figure(*pictures, caption="Scores over bandwidth and penalty.", alt="heat map of the scores of the search")
    page.table(Table(columns, shown), caption=caption)


def _matrix(values: Any, width: int) -> NDArray[np.float64] | None:
    try:
        matrix = np.array(values, np.float64)
    except (TypeError, ValueError):
        return None
    return matrix if matrix.shape == (width, width) and np.isfinite(matrix).all() and (matrix >= 0).all() else None


def _confusion(page: Page, score: Mapping[str, Any], classes: list[Any]) -> None:
    counts = _matrix(score.get("confusion"), len(classes))
    pairs = score.get("confused")
    if counts is not None:
        drawing = drawings.confusion(counts, classes)
        if drawing:
            page.subheading("Confusion").svg(drawing, caption="Rows by true class (down) and predicted class (across).")
            wrong = counts - np.diag(np.diag(counts))
            order = np.argsort(-wrong, axis=None, kind="stable")[:_MOST_CONFUSED]
            places = [divmod(int(place), len(classes)) for place in order]
            pairs = [[classes[i], classes[j], wrong[i, j]] for i, j in places if wrong[i, j] > 0]
    if isinstance(pairs, list) and pairs and (counts is None or len(classes) > 20):
        records = [{"true": a, "guess": b, "rows": n} for a, b, n in pairs[:_MOST_CONFUSED]]
        page.table(Table(_PAIRS, records), caption="Classes that are taken for another most often.")


_PAIRS = (
    Column("true", "true class", lambda r: str(r["true"]), left=True),
    Column("guess", "predicted", lambda r: str(r["guess"]), left=True),
    Column("rows", "rows", ",.0f"),
)


def _worst(page: Page, score: Mapping[str, Any]) -> None:
    worst = score.get("worst")
    if not isinstance(worst, Mapping):
        return
    keys = ("row", "true", "predicted", "margin")
    records = [dict(zip(keys, values, strict=True)) for values in zip(*(worst[key] for key in keys), strict=True)]
    wrong = sum(record["true"] != record["predicted"] for record in records)
    if not records:
        return
    page.subheading("Worst-classified rows")
    caption = (
        f"The {len(records)} rows with the least margin: f of the true class less the largest other f. "
        f"{'All' if wrong == len(records) else f'{wrong:,}'} of them are classified wrongly."
    )
    try:
        images = unpack(worst["images"]) if "images" in worst else None
    except ValueError:
        images = None
    if images is None:
        page.table(Table(_WORST, records), caption=caption)
        return
    captions = [
        (f"{r['true']} → {r['predicted']}", f"{_signed(r['margin'])}\nrow {r['row']:,}", r["true"] != r["predicted"])
        for r in records[: len(images)]
    ]
    caption += " Below each: true → predicted class, margin, row."
    page.svg(drawings.digits(images, captions), caption=caption)


def _signed(margin: Any) -> str:
    return MISSING if margin is None else f"{margin:+.2f}".replace("-", "−")


_WORST = (
    Column("row", "row", ","),
    Column("true", "true class", lambda r: str(r["true"]), left=True),
    Column("predicted", "predicted", lambda r: str(r["predicted"]), left=True),
    Column("margin", "margin", lambda r: _signed(r["margin"])),
)


def _residuals(page: Page, score: Mapping[str, Any]) -> None:
    shown = {"mean squared error": _number(score, "mse"), "R²": _number(score, "r2")}
    page.facts({name: f"{value:.6g}" for name, value in shown.items() if value is not None})
    try:
        counts = np.array(score.get("residuals") or [], np.float64)
    except (TypeError, ValueError):
        return
    unit = _number(score, "residual_unit")
    if counts.ndim != 1 or not len(counts) or not np.isfinite(counts).all():
        return
    drawing = drawings.residuals(counts, "training RMSE")
    if drawing:
        of = f" ({unit:.4g})" if unit is not None else ""
        caption = (
            f"Residuals (target − prediction) in units of the root mean squared training error{of}; the outer bars "
            "hold what lies beyond. Dashed: a normal distribution of that spread."
        )
        page.subheading("Residuals").svg(drawing, caption=caption)


def certificates(page: Page, facts: Facts) -> None:
    """Residuals of the solve in units of rounding, conditions, counts."""
    found = facts.outcome.get("fit", {}).get("certificates")
    if not isinstance(found, Mapping) or not found:
        return
    records = []
    for name in sorted(found, key=lambda name: ([*_RATIOS, *_FIGURES].index(name) if name in _KNOWN else 99, name)):
        value = _number(found, name)
        limit = residuals.LIMIT if name in _RATIOS else None
        verdict = "" if limit is None or value is None else "within rounding" if value <= limit else "above rounding"
        meaning = _KNOWN.get(name, name.replace("_", " "))
        records.append({"meaning": meaning, "value": value, "limit": limit, "verdict": verdict})
    page.heading("Certificates of the numbers")
    high = [record["meaning"] for record in records if record["verdict"] == "above rounding"]
    if high:
        page.state("bad", f"Do not trust this fit: {', '.join(high)} exceeds rounding.")
    page.table(
        Table(_CERTIFICATES, records),
        caption="Residuals are in units of the rounding error of a stable method, which leaves about 1 or less.",
    )


def descent(page: Page, facts: Facts) -> None:
    """How conjugate gradients came down, where the fit was by them."""
    swept = facts.outcome.get("fit", {}).get("sweep")
    if not isinstance(swept, Mapping) or not isinstance(swept.get("excess_by_step"), list):
        return
    steps = {str(number): value for number, value in enumerate(swept["excess_by_step"], 1)}
    shares = [_number(steps, name) for name in steps]
    drawing = drawings.descent([share for share in shares if share is not None and share > 0], _number(swept, "tol"))
    if drawing:
        caption = "Bound of what the objective is above its least value after each step, as a share of it"
        wanted = "; the dashed line is the tolerance." if _number(swept, "tol") else "."
        page.heading("Steps of conjugate gradients").svg(drawing, caption=caption + wanted)


_KNOWN = {**_RATIOS, **_FIGURES}
_CERTIFICATES = (
    Column("meaning", "certificate", left=True, long=True),
    Column("value", "value", lambda r: MISSING if r["value"] is None else _readable(r["value"])),
    Column("limit", "at most", lambda r: "" if r["limit"] is None else f"{r['limit']:g}"),
    Column("verdict", "", left=True, marked=lambda r: r["verdict"] == "above rounding"),
)


def _readable(value: float) -> str:
    if value == int(value) and abs(value) < 1e9:
        return f"{value:,.0f}"
    if 1e3 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value:.3g}" if 1e-3 <= abs(value) < 1e6 else f"{value:.2e}"
