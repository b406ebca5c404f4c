"""scikit-learn's own tests of what our classes stand for, run with ours; what differs by intent is listed."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.slow
SUPPORT = Path(__file__).parents[1] / "support"
SUITES = {
    "sklearn.tests.test_kernel_ridge": (10, {}),
    "sklearn.tests.test_kernel_approximation": (
        70,
        {
            "test_rbf_sampler_fitted_attributes_dtype[float64]": "frequencies are functions of a seed; none is stored",
            "test_rbf_sampler_dtype_equivalence": "frequencies are functions of a seed; none is stored",
            "test_rbf_sampler_gamma_scale": "the width is in the kernel that was fitted, in no attribute",
            "test_nystroem_approximation": "the negative part of a kernel that is not positive definite is dropped",
            "test_nystroem_poly_kernel_params": "polynomials of fractional degree are no kernels, and refused",
            "test_nystroem_callable": "keyword arguments of a function are those of `Pairwise`",
            "test_nystroem_precomputed_kernel": "gamma, degree and coef0 are ignored where a kernel has none",
            "test_nystroem_component_indices": "landmarks need not be rows; no numbers of rows are kept",
        },
    ),
}


@pytest.mark.parametrize("suite", SUITES)
def test_scikit_learn_s_tests_pass_but_for_what_is_listed(suite, tmp_path):
    least, listed = SUITES[suite]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), *filter(None, sys.path)])}
    report = tmp_path / "report.xml"
    words = [sys.executable, "-m", "pytest", "-q", "-p", "sklearn_suites", "-p", "no:cacheprovider", "-c", os.devnull]
    done = subprocess.run(
        [*words, f"--junitxml={report}", "--pyargs", suite],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert report.exists(), done.stdout + done.stderr
    cases = {case.get("name"): {child.tag for child in case} for case in ElementTree.parse(report).iter("testcase")}
    failed = {name for name, marks in cases.items() if marks & {"failure", "error"}}
    passed = [name for name, marks in cases.items() if not marks & {"failure", "error", "skipped"}]
    assert failed <= set(listed), done.stdout[-5000:]
    assert len(passed) >= least - len(listed) // 2  # other versions have some more or fewer
