"""Examples in docstrings and on the pages run; the pages list every public name, and their links exist."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import page_blocks
import pytest

import bigkernel

ROOT = Path(__file__).parents[1]
TOP_PAGES = [ROOT / name for name in ("README.md", "SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md")]
PAGES = [*TOP_PAGES, *sorted((ROOT / "docs").rglob("*.md"))]

MODULES = sorted({"bigkernel", *(module.name for module in pkgutil.walk_packages(bigkernel.__path__, "bigkernel."))})
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def examples(name):
    if ">>>" not in Path(importlib.util.find_spec(name).origin).read_text(encoding="utf-8"):
        return []  # without an import, as every process collects all tests
    tests = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name), name)
    return [test for test in tests if test.examples]


CASES = [test for name in MODULES for test in examples(name)]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_examples_give_their_output(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed: list[str] = []
    result = doctest.DocTestRunner(optionflags=OPTIONS).run(case, out=printed.append)
    assert result.attempted > 0 or all(example.options.get(doctest.SKIP) for example in case.examples)
    assert not result.failed, "".join(printed)


def test_estimators_and_kernels_show_an_example():
    named = {case.name.rsplit(".", 1)[-1] for case in CASES}
    assert {"KernelRidge", "SSSL", "LinearRegression", "Ridge", "Gaussian"} <= named


def test_every_public_name_has_a_docstring():
    for name in bigkernel.__all__:
        value = getattr(bigkernel, name)
        assert len((value.__doc__ or "").split()) >= 2, name
        for method in ("fit", "predict", "partial_fit", "predict_to", "score", "transform"):
            function = vars(value).get(method) if isinstance(value, type) else None
            assert function is None or function.__doc__, (name, method)


def test_every_method_has_a_docstring_or_inherits_one():
    classes = {
        value
        for module in map(importlib.import_module, MODULES)
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__.startswith("bigkernel.")
    }
    protocols = [one for one in classes if getattr(one, "_is_protocol", False)]
    documented = {name for one in protocols for name in dir(one) if inspect.getdoc(getattr(one, name))}
    bare = [
        f"{one.__module__}.{one.__name__}.{name}"
        for one in classes
        for name, value in vars(one).items()
        if inspect.isfunction(value) and not name.startswith("_") and not one.__name__.startswith("_")
        if not inspect.getdoc(getattr(one, name)) and name not in documented
    ]
    assert not bare


@pytest.mark.slow
@pytest.mark.timeout(600)  # half a minute on a quiet machine
def test_the_blocks_of_every_page_run_in_order(tmp_path):
    pages = [str(page) for page in PAGES if page.name != "README.md"]  # .ci/wheel.sh runs it from an empty environment
    driver = [sys.executable, page_blocks.__file__, *pages]
    done = subprocess.run(driver, stdout=subprocess.PIPE, cwd=tmp_path, timeout=580, check=False)
    assert [f"{page}: {problem}" for page, problem in json.loads(done.stdout).items() if problem] == []


def test_every_block_is_run_or_gives_a_reason():
    for page, block in [(each, block) for each in PAGES for block in page_blocks.blocks_of(each)]:
        assert block.kind in ("python", "sh") or block.kind.startswith("{"), f"{page}:{block.line}: {block.kind!r}"
        if block.kind == "sh" and not block.reason:
            assert {command[0] for command in page_blocks.commands_of(block)} == {"bigkernel"}


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 180


@pytest.mark.parametrize("page", TOP_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_pages_outside_the_documentation_exist(page):
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)|(?:src|srcset)=\"([^\"]+)\"", page.read_text(encoding="utf-8"))
    assert [link for groups in links if not (ROOT / (link := "".join(groups))).exists()] == []


def test_the_reference_lists_every_public_name():
    listed = re.findall(r"^   (\w+)$", (ROOT / "docs" / "api" / "index.md").read_text(encoding="utf-8"), re.M)
    assert sorted(listed) == sorted(bigkernel.__all__)


def test_the_figures_of_the_readme_are_those_of_the_pages_with_their_commands():
    pages = "".join(
        (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("benchmarks.md", "choosing-features.md")
    )
    pages = pages.replace("`bench ", "`python -m pipelines bench ")  # as benchmarks.md writes it
    table = re.search(r"^\| two cores .*?\n\n", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)[0]
    lines = table.strip().splitlines()[2:]
    assert len(lines) == 3
    for line in lines:
        *cells, command = line.strip("| ").split(" | ")
        figures = re.findall(r"\d[\d,.]*\d|\d+", " ".join(cells))
        assert [figure for figure in figures if not re.search(rf"(?<![\d,.]){figure}(?![\d])", pages)] == []
        assert command.strip("`") in pages
