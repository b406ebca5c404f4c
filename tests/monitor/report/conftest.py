"""What the tests of reports share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from page_reader import Reader, read

from bigkernel.monitor.report import write


@pytest.fixture
def reported() -> Callable[[Path], Reader]:
    """Write the report of a run, and read it."""

    def report(run: Path) -> Reader:
        page = write(run)
        assert page == run / "report.html"
        assert [file.name for file in run.iterdir() if file.name.endswith(".partial")] == []
        return read(page.read_text(encoding="utf-8"))

    return report
