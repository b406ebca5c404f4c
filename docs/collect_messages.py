"""Every message of the package, from its source: errors by class, warnings, notes and other texts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parent.parent / "bigkernel"
KINDS = {"Note": "Notes", "note": "Notes", "warn": "Warnings", "warning": "Warnings", "require": "ModelRejectedError"}


class Message(NamedTuple):
    """A text that a user may read; `kind` is the class of an error, "Warnings", "Notes" or "Other texts"."""

    kind: str
    module: str
    line: int
    text: str


def messages(root: Path = PACKAGE) -> list[Message]:
    """Collect the messages of all modules under `root`, by kind, module and line."""
    found = [one for path in sorted(root.rglob("*.py")) for one in _of_module(path, path.relative_to(root.parent))]
    order = {"Warnings": 1, "Notes": 2, "Other texts": 3}
    return sorted(found, key=lambda one: (order.get(one.kind, 0), one.kind, one.module, one.line))


def _of_module(path: Path, name: Path) -> Iterator[Message]:
    tree, module = ast.parse(path.read_text()), ".".join(name.with_suffix("").parts)
    kinds: dict[ast.AST, str] = {}
    assigned = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = getattr(node.func, "id", getattr(node.func, "attr", ""))
            kind = called if called.endswith("Error") else KINDS.get(called)
            for argument in node.args if kind else ():
                value = assigned.get(argument.id, argument) if isinstance(argument, ast.Name) else argument
                kinds.update(dict.fromkeys(_texts(value), kind))
    for text in _texts(tree):
        shown = _shown(text).strip()
        if len(shown.split()) > (1 if text in kinds else 2):
            yield Message(kinds.get(text, "Other texts"), module, text.lineno, shown)


def _texts(node: ast.AST) -> Iterator[ast.Constant | ast.JoinedStr]:
    """Yield the string literals in a node, without docstrings."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        yield node
    elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        for child in ast.iter_child_nodes(node):
            yield from _texts(child)


def _shown(text: ast.Constant | ast.JoinedStr) -> str:
    """Return a literal with the names of its placeholders, or … for longer expressions."""
    if isinstance(text, ast.Constant):
        return str(text.value)
    return "".join(_placeholder(part) for part in text.values)


def _placeholder(part: ast.expr) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    value = part.value if isinstance(part, ast.FormattedValue) else part
    return f"{{{ast.unparse(value)}}}" if isinstance(value, ast.Name | ast.Attribute) else "…"
