"""An excerpt of the rows foretells the arithmetic of a sweep: its cost, its errors, and bits that stay the same."""

from __future__ import annotations

import html
import warnings

import dask.array as da
import numpy as np
import pytest
from click.testing import CliRunner
from numpy.testing import assert_array_equal
from sklearn.base import clone

from bigkernel import SSSL, XNV, Gaussian, KernelRidge, SweepSearchCV, executing, write_corpus
from bigkernel.cli import main
from bigkernel.errors import BestAtEdge, DataError
from bigkernel.estimators import arithmetic
from bigkernel.events.kinds import Note, SweepStarted
from bigkernel.events.scope import observe
from bigkernel.search import previews
from bigkernel.solvers.accuracy import ENOUGH

N, M = 24_576, 60  # the fewest rows that have an excerpt
rng = np.random.default_rng(7)
X = rng.normal(size=(N, 4)).astype(np.float32)
Y = np.sin(2 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.normal(size=N)
LABELLED = np.where(rng.random(N) < 0.5, Y, np.nan)
COARSE = {"kernel": Gaussian(2.0), "alpha": 1e-6, "landmarks": X[:M]}
FINE = {"kernel": Gaussian(1.3), "alpha": 100.0, "landmarks": X[:M]}


@pytest.fixture(autouse=True)
def small_jobs_too(monkeypatch):
    """Few columns make quick tests, and a job that no excerpt would pay for."""
    monkeypatch.setattr(arithmetic, "_PREVIEW_FLOPS", 0)


def fitted(model, *given, **execution):
    """The model and the rows of its sweeps, in order."""
    swept = []

    def note(event):
        if isinstance(event, SweepStarted):
            swept.append((event.what, event.plan.n_rows))

    with executing(execution.pop("client", "serial"), **execution), observe(note), warnings.catch_warnings():
        warnings.simplefilter("ignore", BestAtEdge)
        return model.fit(*given), swept


def without_excerpts(monkeypatch):
    for module in (arithmetic, previews):
        monkeypatch.setattr(module, "preview_rows", lambda rows, width: 0)


@pytest.mark.parametrize("model", [KernelRidge(), SSSL(n_components=20), XNV()], ids=["ridge", "SSSL", "XNV"])
def test_rows_that_need_better_arithmetic_are_swept_in_it_once_to_the_same_bits(model, monkeypatch):
    given = (X, Y if isinstance(model, KernelRidge) else LABELLED)
    found, swept = fitted(model.set_params(**COARSE), *given)
    assert swept == [("preview", 2048), ("moments", N)]
    report = found.fit_report()
    assert "as 2,048 rows foretell: swept with" in report["sweep"]["foretold"]
    assert not report["sweep"]["swept_again"]
    without_excerpts(monkeypatch)
    twice, swept = fitted(clone(model), *given)
    assert swept == [("moments", N), ("moments", N)]
    assert_array_equal(found.dual_coef_, twice.dual_coef_)


def test_rows_that_do_in_float32_are_swept_in_it():
    found, swept = fitted(KernelRidge(**FINE), X, Y)
    assert swept == [("preview", 2048), ("moments", N)]
    assert found.fit_report()["sums"] == "float32"
    assert found.fit_report()["sweep"]["foretold"] == ""


@pytest.mark.parametrize(
    "model, rows",
    [
        (KernelRidge(**COARSE), X[:-1]),
        (KernelRidge(**{**COARSE, "kernel": Gaussian(0.3)}), X),
        (KernelRidge(**COARSE), X.astype(np.float64)),
        (KernelRidge(**COARSE, dtype="float64"), X),
    ],
    ids=["few rows", "a core of small condition", "rows in float64", "blocks in float64"],
)
def test_no_excerpt_is_swept_where_it_would_not_pay(model, rows):
    _, swept = fitted(model, rows, Y[: len(rows)])
    assert {what for what, _ in swept} == {"moments"}


def test_no_excerpt_is_swept_before_a_small_job(monkeypatch):
    monkeypatch.setattr(arithmetic, "_PREVIEW_FLOPS", N * M**2 + 1)
    _, swept = fitted(KernelRidge(**COARSE), X, Y)
    assert {what for what, _ in swept} == {"moments"}


def test_an_excerpt_that_errs_costs_a_sweep_and_nothing_else(monkeypatch):
    wanted, _ = fitted(KernelRidge(**COARSE), X, Y)
    real = arithmetic.as_all_rows
    monkeypatch.setattr(arithmetic, "as_all_rows", lambda total, times: {**real(total, times), "E": 0 * total["E"]})
    found, swept = fitted(KernelRidge(**COARSE), X, Y)
    assert swept == [("preview", 2048), ("moments", N), ("moments", N)]
    assert_array_equal(found.dual_coef_, wanted.dual_coef_)


@pytest.mark.parametrize("executor", ["threads", pytest.param("dask", marks=pytest.mark.cluster)])
def test_any_executor_is_foretold_the_same(executor, request, tmp_path):
    corpus = write_corpus(tmp_path / "a.corpus", X, Y)
    wanted, swept = fitted(KernelRidge(**COARSE), corpus)
    other = request.getfixturevalue("client") if executor == "dask" else executor
    found, others = fitted(KernelRidge(**COARSE), corpus, client=other)
    assert swept == others == [("preview", 2048), ("moments", N)]
    assert_array_equal(found.dual_coef_, wanted.dual_coef_)
    assert found.fit_report()["sweep"]["foretold"] == wanted.fit_report()["sweep"]["foretold"]


def test_a_resumption_reads_the_excerpt_back_and_goes_the_same_way(tmp_path):
    found = [fitted(KernelRidge(**COARSE), X, Y, run=tmp_path / "run", resume=resume)[0] for resume in (False, True)]
    assert {"preview", "moments"} == {child.name for child in (tmp_path / "run").iterdir() if child.is_dir()}
    assert found[1].sweep_["resumed_segments"] == found[1].sweep_["segments"]
    assert_array_equal(found[0].dual_coef_, found[1].dual_coef_)


def test_a_bad_row_of_an_excerpt_is_named_by_its_own_number():
    bad = X.copy()
    bad[N // 2 + 3] = np.nan  # in a piece of the excerpt
    with pytest.raises(DataError, match=str(N // 2 + 3)):
        fitted(KernelRidge(**COARSE), da.from_array(bad, chunks=(5000, 4)), Y)


def test_labels_that_an_excerpt_misses_leave_the_choice_to_the_sweep():
    y = np.full(N, np.nan)
    y[300:1300] = Y[300:1300]  # behind the first piece, before the second
    model = SSSL(n_components=20).set_params(**COARSE)
    found, swept = fitted(model, X, y)
    assert swept[0] == ("preview", 2048)
    assert found.certificates_["prediction_error"] <= ENOUGH


def test_kernels_of_a_search_are_swept_in_the_arithmetic_that_an_excerpt_foretells(monkeypatch):
    grid = {"kernel": [Gaussian(sigma) for sigma in (0.3, 2.0)], "alpha": [1e-6, 1e-2, 1.0]}
    options = {"cv": np.arange(N) % 3, "scoring": "neg_mean_squared_error", "refit": False}
    notes = []
    with observe(lambda event: notes.append(event.text) if isinstance(event, Note) else None):
        search, swept = fitted(SweepSearchCV(KernelRidge(landmarks=X[:M]), grid, **options), X, Y)
    assert swept == [("preview", 2048), ("tune", N), ("tune", N)]
    assert not any("swept again" in note for note in notes)
    assert "1 of 2 kernels are swept in better arithmetic from the first, as 2,048 rows foretell" in notes
    without_excerpts(monkeypatch)
    plain, swept = fitted(SweepSearchCV(KernelRidge(landmarks=X[:M]), grid, **options), X, Y)
    assert swept == [("tune", N), ("tune", N)]
    assert (search.cv_results_["prediction_error"] <= ENOUGH).all()
    # of the wider kernel one begins with sums in float64, the other goes on to blocks in float64
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], plain.cv_results_["mean_test_score"], rtol=1e-4)


def test_plans_and_pages_tell_of_it(tmp_path):
    model = KernelRidge(**COARSE)
    assert model.plan(X, Y).preview_rows == 2048
    assert model.plan(X, Y).summary()["preview_rows"] == 2048
    assert "preview_rows" not in model.plan(X[:-1], Y[:-1]).summary()
    search = SweepSearchCV(KernelRidge(landmarks=X[:M]), {"alpha": [0.1, 1.0]}, cv=3)
    assert "after 2,048 rows where cores leave doubt of the arithmetic" in str(search.plan(X, Y))
    write_corpus(tmp_path / "a.corpus", X, Y)
    run = ["--sigma", "2.0", "--alpha", "1e-6", "--landmarks", str(M), "--run", str(tmp_path / "run")]
    done = CliRunner().invoke(main, ["fit", str(tmp_path / "a.corpus"), str(tmp_path / "a.model"), *run])
    assert done.exit_code == 0, done.output
    assert "2,048 rows foretell" in html.unescape((tmp_path / "run" / "report.html").read_text())
