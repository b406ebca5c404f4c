"""A SLURM of one node: job.sbatch and `kind: slurm` give the bits of this process, and requeued jobs resume."""

import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import dask
import numpy as np
import psutil
import pytest
from drivers import published, wait_until
from machines import CUT, fit, free_port

from bigkernel import connect, load_model, write_corpus
from bigkernel.cluster.certificates import make_certificates
from bigkernel.cluster.cluster_file import cluster_of
from bigkernel.cluster.launchers import _imported
from bigkernel.engine.preflight import wait_for_workers
from bigkernel.errors import ConfigError, StalledError

pytestmark = [pytest.mark.slurm, pytest.mark.cluster]
ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "cluster" / "slurm" / "job.sbatch"
DAEMONS = {name: shutil.which(name) or f"/usr/sbin/{name}" for name in ("munged", "slurmctld", "slurmd")}
CONFIGURATION = """ClusterName=bigkernel
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge.sock
CredType=cred/munge
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
MpiDefault=none
ReturnToService=2
KillWait=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=work Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def query(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=30, check=True, **options)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory, daemon):
    """A SLURM of one node with two processors, in its own directory and on its own ports."""
    if os.geteuid() != 0:
        pytest.skip("slurmd runs jobs as their users, which needs root")
    missing = [name for name, path in DAEMONS.items() if not Path(path).exists()]
    if missing or shutil.which("sbatch") is None:
        pytest.skip(f"not installed: {', '.join(missing) or 'sbatch'} (Debian: slurm-wlm munge)")
    place = tmp_path_factory.mktemp("slurm")
    place.chmod(0o755)
    for name in ("state", "spool"):
        place.joinpath(name).mkdir()
    place.joinpath("munge.key").write_bytes(os.urandom(1024))
    place.joinpath("munge.key").chmod(0o400)
    conf = place / "slurm.conf"
    ports = [free_port(), free_port()]
    conf.write_text(CONFIGURATION.format(host=socket.gethostname().split(".")[0], ports=ports, place=place))
    files = [f"--{name}={place}/munged.{name}" for name in ("pid-file", "log-file", "seed-file")]
    munge = daemon(
        DAEMONS["munged"], "-F", "-f", f"--socket={place}/munge.sock", f"--key-file={place}/munge.key", *files
    )
    munge.ready((place / "munge.sock").exists)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(conf))
        daemon(DAEMONS["slurmctld"], "-D", "-i", "-f", conf)
        node = daemon(DAEMONS["slurmd"], "-D", "-f", conf)
        node.ready(lambda: _state() == "idle")
        yield place
        subprocess.run(["scancel", "--user=root", "--full"], capture_output=True, timeout=30, check=False)
        wait_until(lambda: not query("squeue", "-h", "-o", "%i"), what="the end of all jobs")


def _state():
    done = subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    target = tmp_path_factory.mktemp("keys") / "tls"
    make_certificates(target)
    return target


@pytest.fixture
def submit(slurm, tls, tmp_path, monkeypatch):
    """Submit cluster/slurm/job.sbatch for a fit of a corpus; the number of the job."""
    for name, value in {
        **{"PYTHON": sys.executable, "CERTIFICATES": tls, "CONFIGURATION": ROOT / "cluster" / "dask.yaml"},
        **{"INTERFACE": "lo", "MEMORY_LIMIT": "1GiB", "SCRATCH": tmp_path, "OPENBLAS_NUM_THREADS": "1"},
    }.items():
        monkeypatch.setenv(name, str(value))

    def enter(corpus, segments):
        monkeypatch.setenv("DASK_BIGKERNEL__MIN_SEGMENTS", str(segments))
        model = [tmp_path / "a.model", "--landmarks", "80", "--sigma", "2", "--alpha", "0.001", "--json"]
        options = ["--parsable", "--ntasks=2", "--mem-per-cpu=0", "-o", tmp_path / "out"]
        return query("sbatch", *options, SCRIPT, tmp_path / "run", "fit", corpus, *model, cwd=tmp_path)

    yield enter
    subprocess.run(["scancel", "--user=root", "--full"], capture_output=True, timeout=30, check=False)


def ended(job):
    state = query("scontrol", "show", "job", job).partition("JobState=")[2].split()[0]
    return state in ("COMPLETED", "FAILED", "CANCELLED")


def steps(job):
    """Processes of slurmd for the steps of a job; they report the exit codes to slurmctld before they end."""
    return [p for p in psutil.process_iter(["cmdline"]) if f"slurmstepd: [{job}." in " ".join(p.info["cmdline"] or ())]


def log(tmp_path, slurm):
    files = [tmp_path / "out", *sorted(tmp_path.glob("run.slurm/*.log")), *sorted(slurm.glob("slurm*.log"))]
    return "\n".join(f"{path}: {path.read_text()[-3000:]}" for path in files if path.exists())


@pytest.mark.slow
@pytest.mark.timeout(480)
def test_a_requeued_job_resumes_and_gives_the_same_bits(slurm, submit, tmp_path):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(20_000, 16)).astype(np.float32)
    corpus = write_corpus(tmp_path / "long", X, np.sin(X[:, 0].astype(np.float64)), chunk_rows=1000)
    with dask.config.set({**CUT, "bigkernel.min-segments": 20}):
        expected = fit(corpus, "serial")
    job = submit(tmp_path / "long", 20)
    wait_until(lambda: published(tmp_path / "run") >= 2 or ended(job), what="two segments")
    assert steps(job), log(tmp_path, slurm)
    query("scontrol", "requeue", job)
    kept = published(tmp_path / "run")
    wait_until(lambda: "JobState=PENDING" in query("scontrol", "show", "job", job), what="the end of the first start")
    wait_until(lambda: _state() == "idle", what="the node")  # it is the last to know that the first start has ended
    # a late exit code of the first start would end the second one, and SLURM would wait two minutes
    wait_until(lambda: not steps(job), what="the processes of the first start")
    query("scontrol", "update", f"JobId={job}", "StartTime=now")
    wait_until(lambda: ended(job), 200, "the job")
    shown = query("scontrol", "show", "job", job)
    assert "JobState=COMPLETED" in shown, f"{shown}\n{log(tmp_path, slurm)}"
    assert "Restarts=1" in shown
    assert 2 <= kept < 20
    resumed = int((tmp_path / "out").read_text().rpartition('"resumed_segments": ')[2].split(",")[0])
    assert 2 <= resumed < 20
    model = load_model(tmp_path / "a.model")
    assert hashlib.sha256(model.dual_coef_.tobytes()).hexdigest() == expected
    assert not (tmp_path / "run.slurm" / "scheduler.json").exists()


@pytest.fixture
def two_jobs(tls, tmp_path):
    """A cluster of two jobs, with changes; their logs are in the directory of the test."""

    def make(**changes):
        keys = {
            **{"kind": "slurm", "partition": "work", "walltime": "00:10:00", "workers": 2, "memory-limit": "400MB"},
            **{"interface": "lo", "python": sys.executable, "directory": str(tmp_path)},
            **{"tls": str(tls), "dashboard": 0},
        }
        return cluster_of({**keys, **changes}, "here", tmp_path)

    _imported("dask_jobqueue", "slurm")  # it sets its defaults now, before the next line changes one
    with dask.config.set({"jobqueue.slurm.log-directory": str(tmp_path)}):
        yield make


@pytest.mark.slow
def test_workers_as_jobs_give_the_bits_of_this_process_and_are_replaced(slurm, two_jobs, rows, digest, monkeypatch):
    monkeypatch.setattr("bigkernel.cluster.launchers.LOST_SECONDS", 1)
    monkeypatch.setattr("bigkernel.cluster.launchers.REPLACE_SECONDS", 1)
    with connect(two_jobs()) as client:
        wait_for_workers(client, 2, 90)
        workers = client.scheduler_info(n_workers=-1)["workers"]
        assert {address.rpartition(":")[0] for address in workers} == {"tls://127.0.0.1"}
        assert {worker["nthreads"] for worker in workers.values()} == {1}
        assert len(query("squeue", "-h", "-o", "%i %j").splitlines()) == 2
        assert set(client.run(lambda: os.environ["OPENBLAS_NUM_THREADS"]).values()) == {"1"}
        assert fit(rows, client) == digest
        jobs = set(query("squeue", "-h", "-o", "%i").split())
        query("scancel", sorted(jobs)[0])  # as at the end of its walltime
        wait_until(lambda: len(set(query("squeue", "-h", "-o", "%i").split()) - jobs) == 1, what="another job")
        wait_for_workers(client, 2, 90)
    wait_until(lambda: not query("squeue", "-h", "-o", "%i"), what="the end of the jobs")


@pytest.mark.slow
def test_an_unknown_partition_is_named_before_a_job_is_submitted(slurm, two_jobs):
    with pytest.raises(ConfigError, match=r"SLURM rejected the jobs.*: invalid partition specified: nowhere"):  # noqa: SIM117
        with connect(two_jobs(partition="nowhere")):
            pass
    assert query("squeue", "-h", "-o", "%i") == ""


@pytest.mark.slow
def test_a_slurm_that_does_not_answer_is_an_error_in_bounded_time(slurm, two_jobs, monkeypatch, tmp_path):
    port = f"MessageTimeout=2\nSlurmctldPort={free_port()}"
    text = re.sub(r"SlurmctldPort=\d+", port, (slurm / "slurm.conf").read_text())
    (tmp_path / "slurm.conf").write_text(text)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    with dask.config.set({"bigkernel.stall-seconds": 3}), pytest.raises(StalledError, match=r"SLURM d.* not answer"):  # noqa: SIM117
        with connect(two_jobs()):
            pass
