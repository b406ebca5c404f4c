"""What a job needs, computed before its rows are made."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bigkernel import open_corpus
from bigkernel.config import settings
from bigkernel.data.atomic_write import require_free
from bigkernel.data.corpus import CorpusInfo
from bigkernel.engine.rows import Rows, as_rows
from pipelines.corpus.choice import Record, search_rows
from pipelines.corpus.job import plan_of
from pipelines.corpus.settings import Settings
from pipelines.shared import digit_corpora
from pipelines.shared.blank import blank_rows

MNIST_SIZE = (60_000, 784)


def planned(job: Settings, run: Path) -> Record:
    """Return the needs of a job: rows, disk, flops and memory of a worker; nothing is made.

    The figures are for the fit to all rows in the last view; σ and α are chosen on `searched_rows` of them.
    """
    job.check()
    rows, corpus, originals = _rows(job)
    plan = plan_of(job, rows, corpus)
    corpus_bytes = 0 if originals is None else len(rows) * (rows.shape[1] + 16)
    run.parent.mkdir(parents=True, exist_ok=True)
    require_free(run.parent, corpus_bytes, "the corpus")
    return {
        "originals": originals,
        **plan.summary(),
        "views": list(job.views),
        "searched_rows": search_rows(job, len(rows), originals) if job.searches else 0,
        "worker_bytes": plan.worker_bytes(settings().worker_base_bytes),
        "corpus_bytes": corpus_bytes,
        "partial_bytes": plan.partial_bytes,
    }


def _rows(job: Settings) -> tuple[Rows, Any, int | None]:
    """Return the rows of a job, their description for transforms, and the number of their originals."""
    if job.corpus is not None:
        train = open_corpus(job.corpus)
        return as_rows(train), train, None
    n, d = MNIST_SIZE if job.data else (1797 - digit_corpora.TEST_ORIGINALS, 64)
    side = int(d**0.5)
    classes = tuple(range(10))
    info = CorpusInfo("digits", "", classes, (side, side), 255.0)
    return blank_rows(job.corpus_rows, d, classes), SimpleNamespace(info=info), n
