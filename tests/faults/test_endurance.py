"""Long runs: processes killed at random moments, and a thousand fits in one process."""

import json
import signal

import numpy as np
import pytest
from drivers import HELD, SEGMENTS, SLOW, alive, leftovers, published, same_model, wait_until

from bigkernel.data.run_directory import survey


@pytest.mark.endurance
@pytest.mark.cluster
@pytest.mark.parametrize("seed", range(3))
def test_f54_drivers_and_workers_killed_at_random_moments_cost_no_bit(fault_corpus, undisturbed, start, tmp_path, seed):
    rng, run = np.random.default_rng(seed), tmp_path / "run"
    command = ["fit", fault_corpus.path, "a.model", "--landmarks", "300", "--seed", "1", "--run", "run"]
    command += ["--cluster", "local", "--workers", "2", "--dashboard-port", "0"]
    counts = np.sort(rng.choice(np.arange(2, SEGMENTS - 3), 3, replace=False))
    killed = 0
    for count, death in zip(counts, rng.permutation([signal.SIGKILL, signal.SIGTERM, signal.SIGKILL]), strict=True):
        driver = start([*command, *(["--resume"] if run.exists() else [])], **HELD)
        before = published(run)
        driver.until(lambda before=before: published(run) > before, "a segment")
        workers = driver.workers()
        workers[rng.integers(len(workers))].kill()
        killed += 1
        driver.until(lambda count=count: published(run) >= count, f"{count} segments")
        finished = {path.name for path in run.glob("moments/receipts/0-*.json")}
        workers = driver.workers()
        driver.process.send_signal(int(death))
        assert driver.wait() == {signal.SIGKILL: -9, signal.SIGTERM: 75}[signal.Signals(int(death))], driver.errors()
        wait_until(lambda workers=workers: not any(map(alive, workers)), what="workers that end with their driver")
        assert finished <= {path.name for path in run.glob("moments/receipts/0-*.json")}
    last = start([*command, "--resume"], **SLOW)
    assert last.wait() == 0, last.errors()
    assert same_model(tmp_path / "a.model", undisturbed)
    assert leftovers(tmp_path) == []
    (state,) = survey(run)
    assert (state.state, state.segments_done) == ("finished", SEGMENTS)
    repeats = sum(len(path.read_text().splitlines()) - 1 for path in run.rglob("starts/0-*"))
    assert repeats <= 2 * (killed + len(counts))  # at most the segments that ran when a process died


# bytes a fit; a scheduler in the same process logs every transition
@pytest.mark.parametrize(
    "where, fits, kills, most",
    [
        pytest.param("serial", 60, 6, 40_000, marks=pytest.mark.slow),
        pytest.param("dask", 60, 0, 300_000, marks=[pytest.mark.slow, pytest.mark.cluster]),
        pytest.param("serial", 1000, 100, 20_000, marks=pytest.mark.endurance),
    ],
)
def test_f40_many_fits_some_of_them_killed_do_not_leak(start, where, fits, kills, most):
    code = f"import many_fits\nif __name__ == '__main__': many_fits.main({where!r}, {fits}, {kills})"
    driver = start(code, TMPDIR=".")
    assert driver.wait(230) == 0, driver.errors()
    report = json.loads(driver.out.read_text())
    assert report["wrong"] == 0
    memory, files, threads, strays = np.array(report["marks"]).T
    half = len(memory) // 2  # until then caches and pools fill
    slope = np.polyfit(np.arange(half) * report["every"], memory[-half:], 1)[0]
    assert slope < most, f"{slope / 1e3:.0f} kB a fit; {memory[0] / 1e6:.0f} to {memory[-1] / 1e6:.0f} MB"
    for counted in (files, threads, strays):
        assert counted[half:].max() <= counted[:half].max() + (where == "dask")
