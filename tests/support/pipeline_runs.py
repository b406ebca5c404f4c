"""Commands of `python -m pipelines`, in this process and on a terminal of eighty columns."""

import json

from click.testing import CliRunner

from pipelines.__main__ import main


def call(*arguments, code=0):
    """The result of a command, whose code is what was expected; what it prints fits the terminal, but for paths."""
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
    """Assert that nothing printed is cut or wider than a terminal; the lines."""
    assert "…" not in text
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    return lines


def results_of(*arguments):
    """The one JSON object that a command prints."""
    return json.loads(call(*arguments, "--json").stdout)


def require_page(out, pictures=None):
    """Assert that a page was left that needs no network, with as many pictures."""
    page = (out / "report.html").read_text()
    assert "http://" not in page
    assert "https://" not in page
    assert pictures is None or page.count("<img") == pictures
    return page
