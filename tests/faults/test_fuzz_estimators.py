"""Random inputs of every estimator, `sweep` and the commands end in a correct result or a helpful error (F43).

Hypothesis samples the cases of `fuzz_cases`; `fuzz_oracles` checks the results. The profile `full` has 2,500 cases.
"""

import os
import shutil
import time
import warnings

import dask.array as da
import fuzz_cases
import numpy as np
import pytest
from click.testing import CliRunner
from fuzz_oracles import ENOUGH, INACCURATE, distance, kernel_least_squares, least_squares, require_known, require_named
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bigkernel import Gaussian, KernelRidge, KernelRidgeClassifier, Rescaler, executing, save_model, sweep, write_corpus
from bigkernel.cli import main
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.errors import AccuracyWarning, DataError
from bigkernel.kernels.feature_maps import IdentityMap
from bigkernel.statistics.moments import FeatureSums

EACH = 100 if settings().max_examples > 15 else 6  # cases of each of 24 estimators
REGRESSING = ("KernelRidge", "KernelRidge by conjugate gradients", "Ridge", "LinearRegression")
LAZY = ("dask", "zarr", "rows", "corpus")
SECONDS = 5.0  # limit of processor time of a case

fuzzed = settings(
    deadline=None, max_examples=EACH, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)


def in_memory(values):
    """Return the result of an estimator as an array."""
    if isinstance(values, Rows):
        return values.take(np.arange(len(values)))
    return values.compute(scheduler="sync") if isinstance(values, da.Array) else np.asarray(values)


def of_new(case, X, values):
    """Return the rows to predict."""
    if case.new == "ndarray":
        return values
    if case.new == "wide":
        return np.hstack([values, values])
    if case.new == "nan" and values.dtype.kind == "f":
        return values * np.nan
    if case.new == "flat" and values.shape[1]:
        return values[:, 0]
    if case.new == "none":
        return None
    return values[:0] if case.new == "empty" else X


def outcome(name, case, place):
    """Run and check a case; return "result" or "refusal"."""
    values = fuzz_cases.stored(case)
    y = fuzz_cases.targets(case, classes=name in fuzz_cases.CLASSIFYING)
    start = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model, result = fitted_and_predicted(name, case, values, y, place)
        except Exception as error:
            require_named(error)
            return "refusal"
    warned = require_known(caught)
    assert time.process_time() - start < SECONDS
    assert len(result) == (0 if case.new == "empty" else len(values)), result.shape
    valid = np.ones(len(result), bool)
    if case.kind in LAZY and case.new == "same" and values.dtype.kind == "f" and not hasattr(model, "predict"):
        valid = np.isfinite(values).all(axis=1)  # a lazy transform masks bad rows
    assert result.dtype.kind not in "fc" or np.isfinite(result[valid]).all(), (result.ravel()[:3], warned)
    confirm(name, case, model, values, y, result, warned)
    return "result"


def fitted_and_predicted(name, case, values, y, place):
    """Return a fitted model and its predictions or features."""
    X = fuzz_cases.corpus(place, values, y) if case.kind == "corpus" else fuzz_cases.contained(values, case.kind, y)
    model, n = fuzz_cases.ESTIMATORS[name](case), len(values)
    lazily = case.kind == "corpus" or isinstance(X, Rows)
    given = {} if lazily else {"y": y}
    if name in fuzz_cases.DOMAINED:
        given["sample_domain"] = np.arange(n) % 2
        if name != "DICA" and isinstance(given.get("y"), np.ndarray) and given["y"].dtype.kind in "iuf" and n:
            given["y"] = np.where(np.arange(len(y)).reshape(-1, *[1] * (y.ndim - 1)) % 2, -1, y)
    with executing("serial"):
        if case.entry == "partial_fit" and hasattr(model, "partial_fit"):
            model.partial_fit(X, **given)
            model.partial_fit(X, **given)
        elif case.entry == "weighted" and "sample_weight" in type(model).fit.__code__.co_varnames:
            model.fit(X, **given, sample_weight=weights(n))
        else:
            model.fit(X, **given)
        new = of_new(case, X, values)
        result = in_memory(model.predict(new) if hasattr(model, "predict") else model.transform(new))
        if hasattr(model, "score") and case.new == "same":
            assert np.isscalar(model.score(X, None if lazily else y))
    return model, result


def weights(n):
    return 1.0 + np.arange(n) % 3


def confirm(name, case, model, values, y, result, warned):
    """Compare predictions with a dense reference, unless a warning says that they are inaccurate."""
    if name in fuzz_cases.CLASSIFYING and name not in ("JDA", "DICA"):
        assert set(result.tolist()) <= set(model.classes_.tolist())
    if name in fuzz_cases.PROBABLE and case.new in ("same", "ndarray"):
        named = fuzz_cases.contained(values, "frame") if case.kind == "frame" else values
        probabilities = in_memory(model.predict_proba(named))
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-9)
        logs = getattr(model._fitted.calibration, "log_weights", None)  # of class weights, for labels alone
        probabilities = probabilities if logs is None else probabilities * np.exp(logs)
        agreement = (model.classes_[probabilities.argmax(axis=1)] == result).mean()
        assert agreement > 0.99 or np.ptp(np.sort(probabilities)[:, -2:]) < 1e-9
    if warned & set(INACCURATE) or case.new not in ("same", "ndarray"):
        return
    X, weight = np.asarray(values, np.float64), np.ones(len(values))
    if case.entry == "weighted":
        weight = weights(len(values))
    elif case.entry == "partial_fit" and hasattr(model, "partial_fit"):
        weight = 2 * weight
    Y = np.asarray(y, np.float64) if name in REGRESSING else np.zeros(len(values))
    weight = np.where(np.isfinite(Y.reshape(len(Y), -1)).all(axis=1), weight, 0)
    Y = np.where(np.isfinite(Y), Y, 0)
    if name in ("KernelRidge", "KernelRidge by conjugate gradients"):
        if case.look in ("far", "offset") and model.kernel_.name in ("linear", "polynomial"):
            return  # products of such rows differ by little more than rounding
        expected = kernel_least_squares(model, X, Y, weight, X)
    elif name in ("Ridge", "LinearRegression"):
        expected = least_squares(X, Y, model.alpha_, weight, intercept=model.fit_intercept)
    else:
        return
    if expected is not None:  # least squares may leave predictions of rows without a label undetermined
        result, expected, Y = (np.reshape(each, expected.shape)[weight > 0] for each in (result, expected, Y))
        negligible = 1e-30 * np.abs(Y).max(initial=0)
        if np.abs(expected).max(initial=0) <= negligible:  # below the resolution of float32
            assert np.abs(result).max(initial=0) <= negligible
            return
        error, limit = distance(result.reshape(expected.shape), expected), ENOUGH
        if "conjugate" in name:  # converged to `tol`, with the stated error
            assert model.diagnostics_["excess"] <= fuzz_cases.CG_TOL
            limit += model.diagnostics_["prediction_error"]
        assert error < limit, (f"{error:.1e}", warned)


REGRESSIONS = (
    fuzz_cases.Case(power=-700),  # squares of rows vanish
    fuzz_cases.Case(power=700, look="constant column"),
    fuzz_cases.Case(target="huge"),
    fuzz_cases.Case(target="huge", landmarks=None, intercept=True),
    fuzz_cases.Case(target="tiny", dtype="u1", intercept=True),  # zeros in float32
    fuzz_cases.Case(alpha=1e-300, dtype="i8", kernel="laplacian"),
    fuzz_cases.Case(alpha=1e300, dtype="i1", entry="weighted"),
    fuzz_cases.Case(alpha=float("nan")),
    fuzz_cases.Case(alpha=float("inf"), kind="dask"),
    fuzz_cases.Case(kind="rows", target="two"),
    fuzz_cases.Case(kind="dask", target="inf"),
    fuzz_cases.Case(kind="dask", shape=(5, 0)),
    fuzz_cases.Case(kind="corpus", target="object"),
    fuzz_cases.Case(kind="corpus", dtype="object"),
    fuzz_cases.Case(dtype="f4", power=120, kernel="sigmoid", alpha=1e-300),
    fuzz_cases.Case(dtype="f4", power=120),  # whose squares leave float32
    *(fuzz_cases.Case(shape=(7, 1), alpha=0.0, width=30.0, seed=seed) for seed in (3, 6, 8)),  # directions lost in sums
    fuzz_cases.Case(
        dtype="i1", shape=(7, 1), width=30.0, intercept=True, seed=2
    ),  # float32 blocks of nearly equal values
    fuzz_cases.Case(dtype="i8", look="one odd row", seed=7),  # landmarks that coincide under the kernel
    fuzz_cases.Case(power=40, kernel="linear", seed=1),
    fuzz_cases.Case(power=1000, look="duplicates", shape=(1, 3)),
    fuzz_cases.Case(kind="zarr", look="one odd row", alpha=1e300),
)


@pytest.mark.parametrize("name", fuzz_cases.ESTIMATORS)
@fuzzed
@given(case=fuzz_cases.CASES)
def test_random_inputs_end_in_a_correct_result_or_a_helpful_error(name, case, tmp_path):
    assert outcome(name, case, tmp_path) in ("result", "refusal")


@pytest.mark.parametrize("index, name", list(enumerate(fuzz_cases.ESTIMATORS)), ids=fuzz_cases.ESTIMATORS)
def test_earlier_failures_do_not_recur(index, name, tmp_path):
    """All cases with every estimator in the profile `full`, every third case otherwise."""
    step = 1 if EACH > 50 else 3
    for case in REGRESSIONS[index % step :: step]:
        assert outcome(name, case, tmp_path) in ("result", "refusal")


@fuzzed
@given(case=fuzz_cases.CASES)
def test_sums_of_any_rows_are_those_of_numpy_or_refused(case):
    values = fuzz_cases.stored(case)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            rows = as_rows(fuzz_cases.contained(values, case.kind))
            total = sweep(rows, FeatureSums(IdentityMap(np.zeros(rows.shape[1]))), client="serial").total
        except Exception as error:
            require_named(error)
            return
    require_known(caught)
    X = np.asarray(values, np.float64)
    with np.errstate(all="ignore"):
        s, q, size = X.sum(axis=0), (X**2).sum(axis=0), np.abs(X).sum(axis=0)
    assert total["n"] == len(X)
    if np.isfinite(q).all():
        assert (np.abs(total["s"] - s) <= 1e-12 * size).all()
        assert (np.abs(total["q"] - q) <= 1e-12 * q).all()


# ---------------------------------------------------------------- commands

NUMBERS = ("0", "-1", "1", "3", "1e-300", "1e300", "nan", "inf", "-inf", "1e999")
VALUES = (*NUMBERS, "ten", "", "0.5,", "1:2", "½", "a\x1b[2J")
OPTIONS = (
    *("--alpha", "--sigma", "--landmarks", "--kernel", "--gamma", "--degree", "--components", "--transform", "--seed"),
    *("--dtype", "--solver", "--method", "--landmark-choice", "--cluster", "--on-bad-rows", "--nonsense"),
)
PLACES = ("data.corpus", "numbers.corpus", "a.model", "none", "text", "", ".", "data.corpus/x", "a\nb", "é" * 90)
COMMANDS = ("fit", "plan", "predict", "score", "info", "check", "report", "tune", "ingest")
CODES = {0, 2, 3, 4, 5, 7, 8, 9}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A corpus of classes, one of numbers and a model."""
    folder = tmp_path_factory.mktemp("commands")
    rng = np.random.default_rng(3)
    X = rng.normal(size=(40, 3))
    write_corpus(folder / "data.corpus", X, np.arange(40) % 2)
    write_corpus(folder / "numbers.corpus", X, X[:, 0])
    (folder / "text").write_text("no numbers\n")
    save_model(KernelRidgeClassifier(n_landmarks=5, random_state=0).fit(X, np.arange(40) % 2), folder / "a.model")
    return folder


@settings(fuzzed, max_examples=max(6, EACH // 4))
@given(
    command=st.sampled_from(COMMANDS),
    where=st.lists(st.sampled_from(PLACES), max_size=3),
    options=st.lists(st.tuples(st.sampled_from(OPTIONS), st.sampled_from(VALUES)), max_size=3),
)
def test_random_arguments_of_a_command_end_in_a_result_or_a_message(places, monkeypatch, command, where, options):
    monkeypatch.chdir(places)
    monkeypatch.setattr(os, "environ", {**os.environ, "COLUMNS": "80"})
    arguments = [command, *(str(each) for each in where), *(word for option in options for word in option)]
    result = CliRunner().invoke(main, arguments)
    made = {path.name for path in places.iterdir()} - {"data.corpus", "numbers.corpus", "text", "a.model"}
    for name in made:
        path = places / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert result.exit_code in CODES, (arguments, result.exit_code, result.output[-300:], repr(result.exception))
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    assert result.exit_code == 0 or len(result.stderr.strip()) > 10, arguments
    assert "\x1b" not in result.output, arguments


# ---------------------------------------------------------------- failures that need more than a case


def test_targets_far_from_zero_keep_their_digits_in_float32_sums():
    X = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)
    y = np.sin(X[:, 0].astype(np.float64))
    far, near = (
        KernelRidge(n_landmarks=20, alpha=1e-2, fit_intercept=True, random_state=0).fit(X, y + offset)
        for offset in (1e8, 0.0)
    )
    assert far.dtype_ == near.dtype_ == "float32"
    assert distance(far.predict(X) - 1e8, near.predict(X)) < ENOUGH


def test_a_direction_dropped_by_the_solve_is_warned_of():
    X = np.random.default_rng(0).normal(size=(12, 3))
    y = np.random.default_rng(100).normal(size=12)
    model = KernelRidge(Gaussian(1000.0), alpha=0.0, fit_intercept=False, n_landmarks=5, random_state=0).fit(X, y)
    assert model.diagnostics_["prediction_error"] < 1e-3  # by a QR factorisation, which drops none
    with pytest.warns(AccuracyWarning, match="rounding error of the solve"):
        model.partial_fit(X, y)  # by moments
    assert model.diagnostics_["prediction_error"] > 0.1


@pytest.mark.parametrize(
    "case, message",
    [
        (fuzz_cases.Case(power=-700), "X: squares of its values exceed the range of float64; scale the rows"),
        (fuzz_cases.Case(target="huge"), "y: squares of its values exceed the range of float64; scale the targets"),
        (fuzz_cases.Case(target="tiny"), "y: the largest target is .*too small for float32 sums; scale the targets"),
        (fuzz_cases.Case(kind="dask", shape=(5, 0)), "X: found rows of 0 features; expected at least one"),
    ],
)
def test_values_out_of_range_are_refused(case, message):
    model, X, y = (
        fuzz_cases.ESTIMATORS["Ridge"](case),
        fuzz_cases.contained(fuzz_cases.stored(case), case.kind),
        fuzz_cases.targets(case, classes=False),
    )
    with pytest.raises(DataError, match=message), executing("serial"):
        model.fit(X, y)


@pytest.mark.parametrize("factor", [np.nan, np.inf, 1e300])
def test_a_factor_that_moves_rows_out_of_range_is_refused(factor):
    with pytest.raises(ValueError, match=r"factor|X: row 0 exceeds the range of float32 after the transform; scale"):
        Rescaler(factor).fit_transform(np.ones((2, 2), np.float32))
