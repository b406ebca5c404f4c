"""A finished job that is sent again with --resume has nothing to do; people see what they ask for."""

import json
import shutil

import numpy as np
import pytest

from bigkernel import KernelRidge, Standardizer, save_model, write_corpus
from bigkernel.cluster import connect

rng = np.random.default_rng(8)
X = rng.normal(size=(200, 5)).astype("f4")
LABELS = rng.integers(0, 3, 200)


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_corpus("c", X, LABELS, chunk_rows=50)
    return tmp_path


FIT = ["fit", "c", "m", "--landmarks", 20, "--sigma", 3, "--run", "r"]
JOBS = {
    "fit": (FIT, "m", "r"),
    "fit judged": ([*FIT, "--score", "c"], "m", "r"),
    "predict": (["predict", "m0", "c", "p", "--run", "r"], "p", "r"),
    "score": (["score", "m0", "c", "--run", "r"], None, "r"),
    "tune": (["tune", "c", "--landmarks", 20, "--sigma", "2,3", "--alpha", 1, "--folds", 3, "--out", "o"], "o", "o"),
}


@pytest.fixture(params=JOBS)
def job(request, run, work):
    """The words of a job that has finished, what it made, and what it printed as JSON."""
    words, made, place = JOBS[request.param]
    run("fit", "c", "m0", "--landmarks", 20, "--sigma", 3)
    return words, made, place, json.loads(run(*words, "--json").stdout)


def test_a_finished_job_is_not_done_again_and_starts_no_cluster(job, run, monkeypatch):
    words, made, place, told = job

    def refuse(*arguments, **options):
        raise AssertionError("a cluster was started")

    monkeypatch.setattr(connect, "connect", refuse)
    found = run(*words, "--resume", "--cluster", "local", "--json")
    assert found.stderr == f"already finished: {made or place}\n"
    assert json.loads(found.stdout) == told
    shown = run(*words, "--resume", "--cluster", "local")
    assert shown.stderr == f"already finished: {made or place}\n"
    assert "seconds" in shown.stdout
    assert "confusion" not in shown.stdout


def test_another_job_or_one_whose_product_is_gone_is_none_that_finished(job, run, work):
    words, made, place, _ = job
    before = run(*words, "--resume").stderr
    assert "already finished" in before
    if made is not None:  # the same words, but other rows
        kept = work / "kept"
        shutil.move("c", kept)
        write_corpus("c", X[::-1], LABELS, chunk_rows=50)
        assert "already" in (said := run(*words, "--resume", code=3).stderr)
        assert "already finished" not in said
        shutil.rmtree("c")
        shutil.move(kept, "c")
        product = work / (made if made != "o" else "o/best.model")
        product.unlink() if product.is_file() else shutil.rmtree(product)
    else:
        (work / place / "finished.json").write_text("[]")
    if place == "o":
        assert "holds the results of a search already" in run(*words, "--resume", code=3).stderr
    else:
        assert "already finished" not in run(*words, "--resume").stderr


@pytest.mark.parametrize("harm", ["damaged", "of another"])
def test_a_search_whose_model_is_not_the_one_it_made_has_not_finished(harm, run, work):
    words = JOBS["tune"][0]
    run(*words)
    assert "already finished" in run(*words, "--resume").stderr
    best = work / "o" / "best.model"
    if harm == "damaged":
        best.write_bytes(best.read_bytes()[:-1])
    else:
        run(*FIT)
        shutil.move("m", best)
    assert "already finished" not in run(*words, "--resume", code=3).stderr
    run(*words, "--resume", "--overwrite")
    assert "already finished" in run(*words, "--resume").stderr


def test_other_options_are_another_job(run, work):
    run(*FIT)
    assert "already exists" in run(*FIT, "--alpha", 2, "--resume", code=3).stderr
    assert "ResumeMismatch" in run(*FIT, "--seed", 5, "--resume", "--overwrite", code=5).stderr


def test_a_dry_run_of_a_search_is_a_line_a_sweep(run, work):
    words = [
        "tune",
        "c",
        "--landmarks",
        20,
        "--sigma",
        "2,3",
        "--alpha",
        "1,10",
        "--folds",
        3,
        "--out",
        "o",
        "--dry-run",
    ]
    lines = run(*words).stdout.splitlines()
    sweeps = json.loads(run(*words, "--json").stdout)["sweeps"]
    assert [line for line in lines if line.startswith("sweep ")] == [
        f"sweep {i}: {line.strip()}" for i, line in enumerate(sweeps, 1)
    ]
    assert len(sweeps) == 2
    assert not (work / "o").exists()


def test_info_of_a_model_is_what_people_ask_for_and_all_of_it_in_json(run, work):
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(Standardizer(), KernelRidge("rbf", gamma=0.5, alpha=0.1, n_landmarks=20, random_state=0))
    save_model(model.fit(X, X[:, 0]), "m")
    lines = dict(line.split("  ", 1) for line in run("info", "m").stdout.splitlines() if "  " in line)
    found = {name.strip(): value.strip() for name, value in lines.items()}
    assert found["steps"] == "Standardizer → KernelRidge"
    assert (found["features"], found["landmarks"], found["kernel"]) == ("5", "20, uniform", "gaussian, sigma=1")
    assert found["keeps its sums"] == "yes"
    assert {"coef0", "degree", "arrays", "max iter", "classes dtype"} & set(found) == set()
    assert "model.1.solution.coef (20, 1)" in json.loads(run("info", "m", "--json").stdout)["arrays"]
