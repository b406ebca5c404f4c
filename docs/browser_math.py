"""Equations as MathML, which browsers draw themselves: the pages need no script and no network."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml


def _mathml(text: str, *, as_block: bool = False) -> str:
    return tex2mathml(text, as_block=as_block).replace(">‖<", ' stretchy="false">‖<')  # with an exponent it would sink


def _inline(writer: Any, node: nodes.math) -> None:
    writer.body.append(_mathml(node.astext()))
    raise nodes.SkipNode


def _block(writer: Any, node: nodes.math_block) -> None:
    writer.body.append(_mathml(node.astext(), as_block=True))
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Register the way equations are written."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True}
