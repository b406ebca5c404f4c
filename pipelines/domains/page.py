"""Tables, pictures and sentences of `python -m pipelines domains`, from the results of its fits."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigkernel import MomentNormalizer
from bigkernel.arrays import Array
from pipelines.domains.data import Digits
from pipelines.domains.features import BARE, COPIES, TABLES
from pipelines.domains.methods import METHODS, N_CLASSES, SOURCE, TARGET, Fit
from pipelines.domains.pair import Chosen, Fits
from pipelines.domains.pictures import Bar, accuracy_panels
from pipelines.shared import pictures
from pipelines.shared.experiments import Report, mean_and_error, plus_minus, show_seconds
from pipelines.shared.page import MISSING, Column, Table

KINDS = ("no target images", "target images, no labels", "the same, exact (N×N)")
PUBLISHED_BEST = ("MEDA", 72.1, 89.5)
EXACT, ANSWER = "sssl-exact", "artl"  # the two sides of the open problem


def record(key: str, fits: Sequence[Sequence[Fit]]) -> dict[str, Any]:
    """Return a line of a table: accuracies with their errors, median seconds and published figures."""
    method, line = METHODS[key], {"method": METHODS[key].name, "key": key, "knows": METHODS[key].knows}
    for name, of_direction, place in zip(("forth", "back"), fits, (0, 1), strict=True):
        line[name], line[f"{name}_error"] = mean_and_error([fit.accuracy for fit in of_direction])
        line[f"{name}_seconds"] = statistics.median(fit.seconds for fit in of_direction)
        line[f"{name}_collapsed"] = sum(fit.collapsed for fit in of_direction)
        line[f"{name}_published"] = method.published[place] if method.published else None
    return line


def kind_of(key: str) -> str:
    """Return the kind of a method: the images that it sees, and exact or not."""
    method = METHODS[key]
    return KINDS[0] if method.knows == SOURCE else KINDS[1 if method.most_rows is None else 2]


def _pair(name: str, show: Any) -> Any:
    def text(line: Mapping[str, Any]) -> str:
        values = line[f"forth_{name}"], line[f"back_{name}"]
        return MISSING if values[0] is None else " / ".join(map(show, values))

    return text


def columns(directions: tuple[str, str], *, published: bool, chosen: bool) -> list[Column]:
    """Return the columns of a table over methods."""
    forth, back = directions
    shown = [
        Column("method", "method", left=True),
        Column("knows", "sees", lambda line: "target" if line["knows"] == TARGET else "source", left=True),
        Column("forth", f"{forth} %", plus_minus("forth", ".1f", "_error")),
        Column("back", f"{back} %", plus_minus("back", ".1f", "_error")),
        Column("seconds", "fit s", _pair("seconds", show_seconds)),
    ]
    if published:
        shown.append(Column("published", "published", _pair("published", "{:.1f}".format)))
    hidden = ["key", "forth_error", "back_error", "forth_seconds", "back_seconds", "forth_published", "back_published"]
    hidden += ["forth_collapsed", "back_collapsed"]
    if chosen:
        hidden += ["forth_chosen", "back_chosen", "forth_cv", "back_cv"]
    return shown + [Column(name, name, hidden=True) for name in hidden]


def methods_table(
    report: Report,
    name: str,
    heading: str,
    fits: Fits,
    directions: tuple[str, str],
    *,
    caption: str,
    published: bool = False,
    chosen: Sequence[Mapping[str, Chosen]] | None = None,
) -> list[dict[str, Any]]:
    """Write a table over methods and the picture of its accuracies."""
    records = [record(key, of_method) for key, of_method in fits.items()]
    for line in records if chosen else ():
        for place, of_direction in zip(("forth", "back"), chosen or (), strict=True):
            choice = of_direction.get(line["key"])
            line[f"{place}_chosen"] = setting_text(choice.setting) if choice else None
            line[f"{place}_cv"] = choice.accuracy if choice else None
    table = Table(columns(directions, published=published, chosen=chosen is not None), records)
    report.table(name, heading, table, caption=caption)
    bars = [
        Bar(
            line["method"],
            kind_of(line["key"]),
            [line["forth"], line["back"]],
            [line["forth_error"] or 0.0, line["back_error"] or 0.0],
            [line["forth_published"], line["back_published"]] if published else [None, None],
        )
        for line in records
    ]
    report.figure(
        f"{name}_bars",
        accuracy_panels,
        bars,
        directions,
        KINDS,
        caption="Accuracy on the target, mean ± one standard error over the draws."
        + (" Orange: published on the same vectors." if published else ""),
    )
    return records


def setting_text(setting: Mapping[str, float]) -> str:
    """Return names and values of a setting as text."""
    return ", ".join(f"{name} {value:g}" for name, value in setting.items())


def examples(report: Report, sets: Sequence[Digits], restyled: Sequence[Digits], seed: int) -> None:
    """Draw a digit of each class: as it is, restyled, and after moment normalisation."""
    rows: dict[str, Array] = {}
    for digits, copies in zip(sets, restyled, strict=True):
        rng = np.random.default_rng(seed)
        ids = np.array([rng.choice(np.flatnonzero(digits.labels == label)) for label in range(N_CLASSES)])
        upright = MomentNormalizer(image_shape=digits.images.shape[1:])
        shown = digits.images[ids]
        rows[digits.name] = shown
        rows[f"restyled {digits.name}"] = copies.images[ids]
        rows[f"upright {digits.name}"] = upright.fit_transform(shown.reshape(len(shown), -1)).reshape(shown.shape)
    report.figure(
        "examples",
        pictures.contact_sheet,
        {"": np.stack([bright(images) for images in rows.values()])},
        list(rows),
        caption="A digit of each class of either set; a virtual copy of it, whose size, slant, rotation, place and "
        "thickness were drawn at random; and the digit itself with the moments of its ink brought to those of any "
        "other. Every image is scaled to its brightest pixel.",
    )


def one_of_each(labels: Array) -> Array:
    """Return the first row of each class, or the first row of all for a missing class."""
    return np.array([np.argmax(labels == label) for label in range(N_CLASSES)])


def bright(images: Array) -> Array:
    """Return images (n, h, w) with their brightest pixel at 255."""
    scaled: Array = 255 * images / np.maximum(images.max(axis=(-2, -1), keepdims=True), 1e-300)
    return scaled


@dataclass(frozen=True)
class Verdict:
    """Comparison of SSSL_N with the answer in one direction."""

    direction: str
    exact: float  # accuracy on the target, %; the mean for the answer
    answer: float
    draws_error: float  # standard error of the difference over the draws, points
    images_error: float  # standard error of the difference over the target images, paired, points
    exact_seconds: float  # medians, including the choice of landmarks
    answer_seconds: float

    @property
    def difference(self) -> float:
        """Gain in accuracy of the answer, points."""
        return self.answer - self.exact

    @property
    def errors(self) -> float:
        """Difference divided by the larger of its two standard errors."""
        return self.difference / max(self.draws_error, self.images_error, 1e-300)

    @property
    def holds(self) -> bool:
        """Whether the answer is faster, and more accurate by over two standard errors."""
        return self.errors > 2 and self.answer_seconds < self.exact_seconds


def verdict(direction: str, exact: Sequence[Fit], answer: Sequence[Fit], labels: Array) -> Verdict:
    """Compare fits to the same task; `labels` (k,) of its target."""
    right = np.stack([fit.predicted == labels for fit in answer]).mean(axis=0)
    gain = right - np.stack([fit.predicted == labels for fit in exact]).mean(axis=0)
    ours, error = mean_and_error([fit.accuracy for fit in answer])
    theirs, their_error = mean_and_error([fit.accuracy for fit in exact])
    return Verdict(
        direction,
        theirs,
        ours,
        float(np.hypot(error or 0.0, their_error or 0.0)),
        100 * float(gain.std(ddof=1)) / len(gain) ** 0.5,
        statistics.median(fit.seconds for fit in exact),
        statistics.median(fit.seconds for fit in answer),
    )


def open_problem(report: Report, sets: tuple[Digits, Digits], fits: Fits, m: int) -> None:
    """Write the table and the sentences on SSSL_N and the answer to the open problem."""
    verdicts = [
        verdict(f"{source.name} → {target.name}", exact, answer, target.labels)
        for (source, target), exact, answer in zip((sets, sets[::-1]), fits[EXACT], fits[ANSWER], strict=True)
    ]
    records = [
        {
            **vars(verdict),
            "difference": verdict.difference,
            "errors": verdict.errors,
            "ratio": verdict.exact_seconds / verdict.answer_seconds,
        }
        for verdict in verdicts
    ]
    shown = [
        Column("direction", "direction", left=True),
        Column("exact", "SSSL_N %", ".1f"),
        Column("answer", f"{METHODS[ANSWER].name} %", ".1f"),
        Column("difference", "gain", "+.1f"),
        Column("draws_error", "± draws", ".1f"),
        Column("images_error", "± images", ".1f"),
        Column("exact_seconds", "SSSL_N s", lambda line: show_seconds(line["exact_seconds"])),
        Column("answer_seconds", f"{METHODS[ANSWER].name} s", lambda line: show_seconds(line["answer_seconds"])),
        Column("errors", "in errors", hidden=True),
        Column("ratio", "times as fast", hidden=True),
    ]
    report.table(
        "open_problem",
        "The open problem: faster and more accurate than SSSL_N",
        Table(shown, records),
        caption=f"On bare vectors, in this run. SSSL_N is exact, with s, σ and λ as printed; {METHODS[ANSWER].name} "
        f"has {m} landmarks. Gain: points of accuracy on the target; its standard error over the draws of landmarks, "
        "and, paired, over the images of the target. Seconds are medians of a fit, landmarks included.",
    )
    report.tell(*(sentence(verdict, m) for verdict in verdicts))


def sentence(v: Verdict, m: int) -> str:
    """Describe the numbers of one direction."""
    ratio = v.exact_seconds / v.answer_seconds
    speed = f"{ratio:.1f} times as fast" if ratio >= 1 else f"{1 / ratio:.1f} times as slow"
    more = "more" if v.difference > 0 else "less"
    return (
        f"{v.direction}: with {m} landmarks {METHODS[ANSWER].name} recognises {abs(v.difference):.1f} points "
        f"{more} than SSSL_N ({v.answer:.1f} and {v.exact:.1f} %), {abs(v.errors):.1f} standard errors, "
        f"and is {speed} with the cost of its landmarks. "
        + (
            "That answers the open problem: a semi-supervised method on m landmarks, faster and more accurate."
            if v.holds
            else "That does not answer the open problem, which asks for both."
        )
    )


def subtitle(experiments: Sequence[str]) -> str:
    """Return the subtitle of the page."""
    titles = {
        "pair": "USPS and MNIST",
        "rotated": "rotated digits",
        "choice": "settings without labels",
        "whole": "whole sets",
        "tables": "tables",
    }
    return "Domain generalization and adaptation with m landmarks: " + ", ".join(titles[name] for name in experiments)


def introduction(report: Report) -> None:
    """Say what is compared."""
    report.page.text(
        "A model learns from labelled digits of one set, the source, and is asked for those of another, the target. "
        "Two questions are kept apart. Without any image of the target (domain generalization proper) a method has the "
        "source only. With the images of the target known and their labels not (adaptation, transductive), it may fit "
        "itself to them. Labels of the target are used to measure accuracy and for nothing else, but for this: “the "
        "papers' practice” means hyper-parameters that we, as the authors of the papers did, found by looking at "
        "accuracies on this very pair. They are one setting for both directions and all features. The tables “chosen "
        "on the source alone” know no label of the target at all."
    )


def practice_caption(table: str, m: int, draws: int) -> str:
    """Return the caption of a table with the settings of `METHODS`."""
    text = (
        f"{TABLES[table].text} {m} landmarks, k-means centres of the source, or of the rows of both sets; mean ± "
        f"standard error over {draws} draws; methods without ± do not depend on the draw. Fit s: median seconds of a "
        "fit forth / back, landmarks included."
    )
    if table == BARE:
        name, forth, back = PUBLISHED_BEST
        text += (
            " Published (Long et al. 2013, 2014; Wang et al. 2018): the best of the papers on these vectors is "
            f"{name} with {forth} / {back} %. DICA and UDICA need several source domains, and one bare set is one."
        )
    if table == COPIES:
        text += " Domains of DICA and UDICA are the kinds of restyled copies. SSSL_N is left out: N×N for all copies."
    return text


def chosen_caption(table: str) -> str:
    """Return the caption of a table with settings chosen by cross-validation."""
    return (
        f"{TABLES[table].text} Each method's hyper-parameters by 3-fold cross-validation over digits of the source, "
        "copies of a digit in one fold; separately for either direction. CSV: what was chosen, and its accuracy on "
        "held-out digits. Labels of the source tell what fits the source, and little of what carries over."
    )


def facts(draws: range, m: int) -> dict[str, str]:
    """Return the settings at the foot of the page."""
    settings = {key: setting_text(method.setting) for key, method in METHODS.items() if method.setting}
    return {
        "draws": f"{len(draws)}, seeds {draws.start} to {draws.stop - 1}; {m} landmarks; float64",
        **{METHODS[key].name: text for key, text in settings.items()},
    }
