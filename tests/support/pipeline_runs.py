"""Commands of `python -m pipelines`, in this process, 80 columns wide."""

import json

from click.testing import CliRunner

from pipelines.__main__ import main


def call(*arguments, code=0):
    """Return the result of a command; assert its exit code, and that its output fits 80 columns apart from paths."""
    arguments = [str(word) for word in arguments]
    result = CliRunner().invoke(main, arguments, env={"COLUMNS": "80"})
    assert result.exit_code == code, (result.exit_code, result.output, result.exception)
    if not code and not {"--json", "--help"} & set(arguments):
        paths = sorted((word for word in arguments if word.startswith("/")), key=len, reverse=True)
        printed = result.stdout
        for path in paths:
            printed = printed.replace(path, "")
        fits_eighty_columns(printed)
    return result


def fits_eighty_columns(text):
    """Assert that a text is not cut or wider than 80 columns; return its lines."""
    assert "…" not in text
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    return lines


def results_of(*arguments):
    """Return the JSON object that a command prints."""
    return json.loads(call(*arguments, "--json").stdout)


def require_page(out, pictures=None):
    """Assert that a page needs no network and has this number of pictures; return it."""
    page = (out / "report.html").read_text()
    assert "http://" not in page
    assert "https://" not in page
    assert pictures is None or page.count("<img") == pictures
    return page
