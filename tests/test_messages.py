"""Messages, as listed by docs/collect_messages.py, use the words of the field."""

import importlib.util
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "docs" / "collect_messages.py"
FORBIDDEN = (
    r"fore(told|tells?|see)|tells?|told|swept|bent|suited|adopt(s|ed)?|glances?|heard|anew|descents?|better arithmetic|"
    r"(is|are) made of|in the place of|in their place|(is|are) (asked|wanted|meant) |as many as of|of ours|"
    r"who (serves|meets)|sees|so many|judged?|so or so|equivoca\w+|mended?|what is (there|kept)|"
    r"all the same|much the same|comes? about|stands? (there )?twice|(was|were) asked|alone"
)


@pytest.fixture(scope="module")
def listed():
    spec = importlib.util.spec_from_file_location("collect_messages", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.messages()


def test_every_kind_of_message_is_listed(listed):
    kinds = {one.kind for one in listed}
    assert {"ConfigError", "DataError", "PlanTooLargeError", "Warnings", "Notes", "Other texts"} <= kinds
    assert len(listed) > 900


def test_no_message_uses_a_forbidden_word(listed):
    violations = [
        f"{one.module}:{one.line}: {match[0]}: {one.text}"
        for one in listed
        for match in re.finditer(rf"\b({FORBIDDEN})\b", re.sub(r"\{[^}]*\}", "…", one.text))
    ]
    assert not violations, "\n".join(violations)


def test_errors_neither_shout_nor_end_with_a_full_stop(listed):
    errors = [one for one in listed if one.kind.endswith("Error")]
    assert not [one for one in errors if one.text.endswith((".", "!")) and "…" not in one.text[-4:]]
