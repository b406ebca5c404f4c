"""What the tests of commands share."""

import pytest


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, with names short enough for a terminal."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
