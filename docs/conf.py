"""Sphinx settings: `python -m sphinx -W --keep-going -b html docs out/docs` builds the documentation."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import bigkernel

sys.path.insert(0, str(Path(__file__).parent))

project = "bigkernel"
author = "the bigkernel developers"
release = version = bigkernel.__version__
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "browser_math",
    "numpydoc",
    "myst_parser",
    "command_pages",
    "message_pages",
]
templates_path = ["_templates"]
nitpicky = True
language = "en"
smartquotes = False  # options begin with two hyphens
pygments_style = "friendly"
highlight_language = "text"

# Markdown
myst_enable_extensions = ["dollarmath", "amsmath", "deflist", "colon_fence", "attrs_block"]
myst_heading_anchors = 3
myst_links_external_new_tab = False
suppress_warnings = ["myst.header"]  # an included README begins at a level of its own

# the API reference
autosummary_generate = True
autodoc_typehints = "none"  # types and shapes stand in the text
autodoc_member_order = "bysource"
toc_object_entries_show_parents = "hide"
numpydoc_show_class_members = False  # the class template lists methods
numpydoc_attributes_as_param_list = True
numpydoc_validation_checks = {"GL06", "GL07", "GL09", "PR05"}  # unknown sections, their order, deprecations, types

# the page
html_math_renderer = "mathml"
html_theme = "pydata_sphinx_theme"
html_title = "bigkernel"
html_static_path = ["_static"]
html_css_files = ["bigkernel.css"]
html_show_sourcelink = False
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 4,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}
_PAGES_WITHOUT_SIDEBAR = ("index", "getting-started", "choosing-an-estimator", "command-line", "methods", "gallery")
html_sidebars: dict[str, list[str]] = {page: [] for page in _PAGES_WITHOUT_SIDEBAR}
copyright = "the bigkernel developers, BSD-3 licence"


# public methods that other packages of bigkernel call, and users do not
_INTERNAL = {
    *("adopt", "check_parameters", "given_kernel", "plan_solver", "read_search", "score_totals", "widest"),
    *("bind", "described", "fill", "finish", "fingerprint", "kinked", "leaves", "parts", "precomputed"),
    *("prepared_bytes", "resolve", "widths"),
}


def _is_left_out(app: Any, what: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
    """Leave out internal methods, and those that scikit-learn documents, such as `set_fit_request`."""
    function = inspect.unwrap(member.fget if isinstance(member, property) else member) if callable(member) else member
    module = getattr(function, "__module__", None) or "bigkernel"
    return True if what == "class" and (name in _INTERNAL or not module.startswith("bigkernel")) else None


def setup(app: Any) -> None:
    """Connect the filter of members to autodoc."""
    app.connect("autodoc-skip-member", _is_left_out)
