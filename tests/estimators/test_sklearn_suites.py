"""scikit-learn's own tests of what our classes stand for, run with ours; what differs by intent is listed."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.slow
SUPPORT = Path(__file__).parents[1] / "support"
POSITIVE = "coefficients that may not be negative are no feature"
SOLVER = "there is one solver, for sparse rows too, and it does not iterate"
FREQUENCIES = "frequencies are functions of a seed; none is stored"
GRAPH = "SSSL has no graph and no iterations, and distributions by calibration alone"
SCORERS = "functions that give several scores, or warn of weights that they ignore"
MESSAGE = "the error is one of ours, in other words"
CHOICE = "a rule of choice reads cv_results_ after a search without refit"
TRAINED = "training scores are not kept"
OURS = "it searches over estimators of bigkernel"
# of each suite: how many tests pass at the least, and which (of one case, or all) may fail for what reason
SUITES = {
    "sklearn.tests.test_kernel_ridge": (10, {}),
    "sklearn.tests.test_kernel_approximation": (9, {
        FREQUENCIES: "rbf_sampler_fitted_attributes_dtype rbf_sampler_dtype_equivalence",
        "the width is in the kernel that was fitted, in no attribute": "rbf_sampler_gamma_scale",
        "the negative part of a kernel that is not positive definite is dropped": "nystroem_approximation",
        "polynomials of fractional degree are no kernels, and refused": "nystroem_poly_kernel_params",
        "a function takes no further arguments but by functools.partial": "nystroem_callable",
        "gamma, degree and coef0 are ignored where a kernel has none": "nystroem_precomputed_kernel",
        "landmarks need not be rows; no numbers of rows are kept": "nystroem_component_indices",
    }),
    "sklearn.linear_model.tests.test_base": (30, {
        POSITIVE:
        "raises_value_error_if_positive_and_sparse linear_regression_positive "
        "linear_regression_positive_multiple_outcome linear_regression_positive_vs_nonpositive "
        "linear_regression_positive_vs_nonpositive_when_positive",
        "rows are never written to, whatever copy_X says":
        "inplace_data_preprocessing[42-True-None] inplace_data_preprocessing[42-False-None]",
    }),
    "sklearn.linear_model.tests.test_ridge": (100, {
        "targets of one column have coefficients (1, d), as those of LinearRegression": "ridge_shapes_type",
        MESSAGE: "ridge_individual_penalties",
        "coefficients are float64, whatever the rows are": "dtype_match_cholesky dtype_match",
        SOLVER: "n_iter ridge_fit_intercept_sparse_error ridge_fit_intercept_sparse_sag lbfgs_solver_error",
        POSITIVE: "ridge_ground_truth_positive_test ridge_positive_error_test positive_ridge_loss",
    }),
    "sklearn.semi_supervised.tests.test_label_propagation": (40, {
        GRAPH:
        "distribution predict_proba label_spreading_closed_form label_propagation_closed_form "
        "label_propagation_build_graph_normalized convergence_speed convergence_warning "
        "label_propagation_non_zero_normalizer",
        "a kernel's function is given rows, and gives an array": "predict_sparse_callable_kernel",
    }),
    "sklearn.model_selection.tests.test_search": (17, {
        CHOICE: "refit_callable refit_callable_multi_metric refit_callable_invalid_type refit_callable_out_bound",
        TRAINED: "search_cv_results_rank_tie_breaking grid_search_cv_splits_consistency",
        "coefficients from sums of folds are those of a fit but for rounding": "grid_search_one_grid_point",
        "`score` is that of the best model": "grid_search_no_score grid_search_score_method",
        SCORERS:
        "callable_multimetric_confusion_matrix callable_multimetric_same_as_list_of_strings "
        "callable_multimetric_error_on_invalid_key unsupported_sample_weight_scorer",
        "metadata is not routed": "multi_metric_search_forwards_metadata score_rejects_params_with_no_routing_enabled",
        "classes are known without a refit": "classes__property",
        MESSAGE: "grid_search_bad_param_grid",
        "a kernel matrix may be a list of lists": "grid_search_precomputed_kernel",
        "columns of parameters are of objects": "grid_search_cv_results",
        "every fold is trained on all classes": "search_default_iid",
        "C=0 is no penalty": "search_cv_timing",
        "progress is told by the settings of bigkernel": "search_cv_verbose_3",
        OURS: "search_html_repr cv_results_dtype_issue_29074",
    }),
}  # fmt: skip


# of each suite: which tests fail beside those listed where a parameter has our default in the place of scikit-learn's.
# Too slow to run again: of the 118 of test_label_propagation none by gamma or alpha. Linear models have our defaults.


def failures(suite, folder):
    """Return the names of the tests of a suite that fail and of those that pass, and what was printed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), *filter(None, sys.path)])}
    report = folder / "report.xml"
    words = [sys.executable, "-m", "pytest", "-q", "-p", "sklearn_suites", "-p", "no:cacheprovider", "-c", os.devnull]
    done = subprocess.run(
        [*words, f"--junitxml={report}", "--pyargs", suite],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert report.exists(), done.stdout + done.stderr
    cases = {case.get("name"): {child.tag for child in case} for case in ElementTree.parse(report).iter("testcase")}
    failed = {name for name, marks in cases.items() if marks & {"failure", "error"}}
    passed = {name for name, marks in cases.items() if not marks & {"failure", "error", "skipped"}}
    return failed, passed, done.stdout[-5000:]


def unlisted(failed, listed):
    exempt = {f"test_{name}" for names in listed.values() for name in names.split()}
    return {name for name in failed if not {name, name.split("[")[0]} & exempt}


@pytest.mark.parametrize("suite", SUITES)
def test_scikit_learn_s_tests_pass_but_for_what_is_listed(suite, tmp_path):
    least, listed = SUITES[suite]
    failed, passed, printed = failures(suite, tmp_path)
    print(f"{suite}: {len(passed)} passed, {len(failed)} are exempt for {len(listed)} reasons")
    assert not unlisted(failed, listed), printed
    assert len(passed) >= 0.9 * least  # other versions have some more or fewer
