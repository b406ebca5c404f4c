"""Fixtures of the tests of commands."""

import pytest


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Change to an empty directory, whose relative paths fit a terminal."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
