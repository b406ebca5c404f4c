"""Examples in docstrings run, and give what they show."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import bigkernel

MODULES = sorted({"bigkernel", *(found.name for found in pkgutil.walk_packages(bigkernel.__path__, "bigkernel."))})
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def examples(name):
    found = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name), name)
    return [test for test in found if test.examples]


CASES = [test for name in MODULES for test in examples(name)]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_an_example_gives_what_it_shows(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed: list[str] = []
    result = doctest.DocTestRunner(optionflags=OPTIONS).run(case, out=printed.append)
    assert result.attempted > 0 or all(example.options.get(doctest.SKIP) for example in case.examples)
    assert not result.failed, "".join(printed)


def test_estimators_and_kernels_show_an_example():
    named = {case.name.rsplit(".", 1)[-1] for case in CASES}
    assert {"KernelRidge", "SSSL", "LinearRegression", "Ridge", "Gaussian"} <= named


@pytest.mark.parametrize("name", bigkernel.__all__)
def test_every_public_name_has_a_docstring_of_its_own(name):
    value = getattr(bigkernel, name)
    assert value.__doc__
    assert len(value.__doc__.split()) >= 2
    for method in ("fit", "predict", "partial_fit", "predict_to", "score", "transform"):
        function = vars(value).get(method) if isinstance(value, type) else None
        assert function is None or function.__doc__
