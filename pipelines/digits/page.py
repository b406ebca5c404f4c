"""The report page of `python -m pipelines digits`, and its table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigkernel import Corpus
from bigkernel.arrays import Array
from pipelines.shared import pictures
from pipelines.shared.digit_corpora import Digits, images_at
from pipelines.shared.experiments import Report
from pipelines.shared.page import MISSING, Column, Table


@dataclass(frozen=True)
class Fit:
    """A fitted method on the test digits: table record, predictions, the sweep's report and the model."""

    record: dict[str, Any]
    predicted: Array
    sweep: dict[str, Any]
    model: Any


def _seconds(record: Mapping[str, Any]) -> str:
    seconds = record["fit_seconds"]
    return "< 0.01" if seconds < 0.01 else f"{seconds:.2f}" if seconds < 100 else f"{seconds:.1f}"


COLUMNS = (
    Column("method", "method", left=True),
    Column("labels", "labels", ","),
    Column("rows", "rows", ","),
    Column("accuracy_percent", "acc. %", ".2f"),
    Column("error_percent", "error %", lambda r: f"{r['error_percent']:.2f} ± {r['standard_error_percent']:.2f}"),
    Column("standard_error_percent", "± %", hidden=True),
    Column("fit_seconds", "fit s", _seconds),
    Column("predict_seconds", "predict s", hidden=True),
    Column("gflops_per_second", "GFLOP/s", ".0f"),
    Column("peak_bytes", "peak MB", lambda r: f"{r['peak_bytes'] / 1e6:,.0f}" if r["peak_bytes"] else MISSING),
)


def show(report: Report, digits: Digits, labelled: Array, fits: list[Fit], originals: Any) -> None:
    """Print the table and fill the page; `originals` are the undeformed training images, or None for MNIST."""
    train, test = digits.train, digits.test
    truth = test.column("y")
    shared = f" (those of {len(originals):,} originals, which their copies share)" if originals is not None else ""
    labels, percent = fits[0].record["labels"], [f"{fit.record['accuracy_percent']:.1f} %" for fit in fits]
    right, right_alone = fits[0].predicted == truth, fits[1].predicted == truth
    gained, lost = int(np.sum(right & ~right_alone)), int(np.sum(right_alone & ~right))
    report.page.text(
        f"With {labels} labels, SSSL is right on {percent[0]} of {len(test):,} test digits. Kernel ridge regression "
        f"(KRR) on the same labelled rows alone is right on {percent[1]}, and with all {len(train):,} labels{shared} "
        f"on {percent[2]}; with oriented strokes instead of pixels on {percent[3]}.",
        f"Of the errors of KRR on the same labels, SSSL corrects {gained:,}; it makes {lost:,} that KRR does not.",
    )
    report.table(
        "table",
        f"Four fits, {len(labelled):,} of {len(train):,} rows labelled",
        Table(COLUMNS, [fit.record for fit in fits]),
        caption="± is the binomial standard error of the test set. Another choice of labelled rows changes the first "
        "two errors by about 3 percentage points. Fit seconds count everything from landmarks to solve; peak MB is the "
        "highest resident memory of a worker process, – where the fit needs no sweep.",
    )
    report.page.heading("The digits")
    _training_digits(report, train, labelled, originals)
    report.page.heading("Predictions of SSSL")
    _predicted_digits(report, test, truth, fits[0].predicted)


def _training_digits(report: Report, train: Corpus, labelled: Array, originals: Any) -> None:
    y = train.column("y")
    if originals is not None:
        # one original of each class, from the first rows, and its first copies in the corpus
        first = np.array([int(np.argmax(y == label)) for label in train.info.classes])
        rounds = [first + len(originals) * k for k in range(4) if first.max() + len(originals) * k < len(train)]
        report.figure(
            "copies",
            pictures.contact_sheet,
            {"": images_at(train, np.stack(rounds))},
            ["original", *(f"copy {k + 1}" for k in range(len(rounds) - 1))],
            caption="Training originals, and rows of the corpus made from them by smooth random distortions. Test "
            "digits are originals that were held out before.",
        )
    columns = np.stack([labelled[y[labelled] == label] for label in train.info.classes], axis=1)[:8]
    report.figure(
        "labelled",
        pictures.contact_sheet,
        {"": images_at(train, columns)},
        [str(k + 1) for k in range(len(columns))],
        caption="The labelled rows, one column per class: the only labels that SSSL and the second fit use.",
    )


def _predicted_digits(report: Report, test: Corpus, truth: Array, predicted: Array) -> None:
    sampled = np.random.RandomState(0).permutation(len(truth))[:40]
    wrong = np.flatnonzero(predicted != truth)
    some = wrong[np.linspace(0, len(wrong) - 1, min(40, len(wrong))).astype(int)]
    shown = {
        "predicted": (
            sampled,
            "Test digits drawn at random, under their prediction. Wrong ones are framed, the true label in brackets.",
        ),
        "wrong": (some, f"{len(some)} of the {len(wrong):,} wrong ones."),
    }
    for name, (ids, caption) in shown.items():
        if len(ids):
            given = images_at(test, ids), predicted[ids], truth[ids]
            report.figure(name, pictures.predictions, *given, caption=caption)
    classes = test.info.classes
    counts = np.array([[np.sum((truth == a) & (predicted == b)) for b in classes] for a in classes])
    report.figure("confusion", pictures.confusion, counts, classes, caption="Test digits by true and predicted label.")
