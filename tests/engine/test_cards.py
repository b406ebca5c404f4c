"""Devices: what is refused, what a sweep needs of one, and what a run says about it."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, replace
from types import ModuleType, SimpleNamespace

import dask
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from bigkernel import Gaussian, KernelRidge, Pairwise, Predictor, UnitNormalizer, executing, save_model
from bigkernel.config import settings
from bigkernel.engine import cards, sweep
from bigkernel.engine.cards import Card, check_card, common_card, find_card, needed_bytes
from bigkernel.engine.preflight import cards_of
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import device_here, plan_sweep
from bigkernel.errors import ConfigError, PlanTooLargeError, ResumeMismatchError
from bigkernel.events.job import Note, SegmentDone, observe
from bigkernel.kernels.feature_maps import LandmarkMap
from bigkernel.monitor.report import gather
from bigkernel.statistics.moments import MomentStatistic, Targets
from bigkernel.streaming.devices import HOST, device_of

GPU = Card("cuda", "H100", "GPU-1", "torch 2.8.0, CUDA 12.8", total=80 * 10**9, free=79 * 10**9)


@pytest.fixture
def torch(monkeypatch):
    """A made library of arrays, with a GPU; what tests change of it is undone."""
    module = ModuleType("array_api_compat.torch")
    of_card = SimpleNamespace(name="H100", uuid="GPU-1")
    module.cuda = SimpleNamespace(
        is_available=lambda: True,
        current_device=lambda: 0,
        mem_get_info=lambda place: (79 * 10**9, 80 * 10**9),
        memory_reserved=lambda place: 10**8,
        memory_allocated=lambda place: 10**7,
        get_device_properties=lambda place: of_card,
    )
    module.version = SimpleNamespace(cuda="12.8")
    module.device = lambda *name: name
    module.get_float32_matmul_precision = lambda: "highest"
    package = ModuleType("array_api_compat")
    package.torch = module
    monkeypatch.setitem(sys.modules, "array_api_compat", package)
    monkeypatch.setitem(sys.modules, "array_api_compat.torch", module)
    device_of.cache_clear()
    yield module
    device_of.cache_clear()


def small(n=60):
    X = np.random.default_rng(0).normal(size=(n, 3))
    return X, X.sum(axis=1)


def ridge(**given):
    return KernelRidge(Gaussian(2.0), alpha=0.1, n_landmarks=5, random_state=0, **given)


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_gpu_that_can_be_used_is_described(torch, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    card = find_card("cuda")
    assert (card.device, card.model, card.uuid, card.wrong) == ("cuda", "H100", "GPU-1", "")
    assert (card.total, card.free) == (80 * 10**9, 79 * 10**9 + 10**8 - 10**7)
    assert str(card).startswith("cuda, H100")
    assert "CUDA 12.8" in str(card)
    assert find_card("auto") == card
    assert cards.os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_a_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "array_api_compat.torch", None)
    device_of.cache_clear()
    with (
        pytest.raises(ConfigError, match=r"device 'cuda': .* is not installed; pip install 'bigkernel\[gpu\]'"),
        executing("serial", device="cuda"),
    ):
        pass
    assert settings().device == "cpu"  # again, after the block


def test_no_gpu_names_the_cuda_of_the_build_and_auto_takes_processors(torch):
    torch.cuda.is_available = lambda: False
    assert "finds no GPU (CUDA of the build: 12.8); see `nvidia-smi`" in find_card("cuda").wrong
    notes = []
    with (
        observe(lambda event: notes.append(event.text) if isinstance(event, Note) else None),
        executing("serial", device="auto"),
    ):
        report = ridge().fit(*small()).fit_report()["sweep"]
    assert report["device"] == "cpu"
    assert "device 'auto': cpu" in notes


@pytest.mark.parametrize("name", ["CUBLAS_EMULATE_DOUBLE_PRECISION", "NVIDIA_TF32_OVERRIDE"])
def test_products_that_a_variable_rounds_are_refused_by_its_name(torch, monkeypatch, name):
    monkeypatch.setenv(name, "0")
    assert find_card("cuda").wrong == ""
    monkeypatch.setenv(name, "1")
    assert f"moments need exact products, and {name} rounds them" in find_card("cuda").wrong
    assert find_card("auto").device == "cpu"


def test_tf32_is_refused(torch):
    torch.get_float32_matmul_precision = lambda: "high"
    assert 'torch.set_float32_matmul_precision other than "highest" rounds' in find_card("cuda").wrong


@pytest.mark.parametrize("setting", [True, False])
def test_an_unknown_name_is_refused(setting):
    given = {} if setting else {"device": "gpu"}
    with (
        dask.config.set({"bigkernel.device": "gpu" if setting else "cpu"}),
        pytest.raises(ConfigError, match="device: expected one of cpu, cuda, auto, found 'gpu'"),
        executing("serial", **given),
    ):
        pass


@pytest.mark.parametrize(
    "kernel", [lambda x, z: float(x @ z), "cosine", Gaussian(1.0) + Pairwise("chi2"), 2.0 * Pairwise("chi2")]
)
def test_kernels_of_the_host_are_refused_by_their_name(kernel, monkeypatch):
    monkeypatch.setattr(sweep, "find_card", lambda name: GPU)
    monkeypatch.setattr(sweep, "device_of", lambda name: HOST)
    X, y = small()
    model = KernelRidge(kernel, alpha=0.1, n_landmarks=5, random_state=0)
    with (
        pytest.raises(ConfigError, match=r"device 'cuda': the .* kernel is computed on the host; use device='cpu'"),
        executing(device="cuda"),
    ):
        model.fit(np.abs(X), y)


def test_workers_need_a_gpu_each_of_one_kind():
    other = replace(GPU, uuid="GPU-2", free=70 * 10**9)
    assert common_card("cuda", {"a": GPU, "b": other}) is other  # the one with least memory
    none = Card("cuda", wrong="PyTorch finds no GPU")
    with pytest.raises(ConfigError, match="worker b: PyTorch finds no GPU"):
        common_card("cuda", {"a": GPU, "b": none})
    with pytest.raises(ConfigError, match=r"workers a and b have the same GPU \(H100, GPU-1\).*CUDA_VISIBLE_DEVICES"):
        common_card("cuda", {"a": GPU, "b": GPU})
    with pytest.raises(ConfigError, match=r"worker a has cuda, H100, .*, and b has cuda, A100, .*one kind of GPU"):
        common_card("cuda", {"a": GPU, "b": replace(other, model="A100")})
    assert common_card("auto", {"a": GPU, "b": none}).device == "cpu"
    assert common_card("auto", {"a": GPU, "b": other}).device == "cuda"


@dataclass
class Cluster:
    """What preflight asks of a client."""

    cards: dict
    threads: int = 1

    def scheduler_info(self, **_):
        return {"workers": {"a": {"status": "running"}}}

    def run(self, function, name, **_):
        assert (function, name) == (find_card, "cuda")
        return self.cards

    def ncores(self):
        return dict.fromkeys(self.cards, self.threads)


def test_workers_are_asked_for_their_gpu_and_for_one_task_at_a_time():
    config = settings(device="cuda")
    assert cards_of(Cluster({"a": GPU}), config) is GPU
    with pytest.raises(ConfigError, match=r"worker a runs 4 tasks at once.*--nthreads 1"):
        cards_of(Cluster({"a": GPU}, threads=4), config)
    assert cards_of(Cluster({"a": RuntimeError("of another version")}), config).device == "cuda"
    auto = settings(device="auto")
    assert cards_of(Cluster({"a": Card("cuda", wrong="none")}, threads=4), auto).device == "cpu"


# -- what a sweep needs ------------------------------------------------------------------------------------------------


def planned(m, n=300_000, d=20, device="cuda", **given):
    rows = as_rows(np.broadcast_to(np.zeros((1, d), np.float32), (n, d)), y=np.zeros(n))
    features = LandmarkMap(Gaussian(1.0), np.zeros((m, d)), np.dtype("f4"))
    return plan_sweep(rows, MomentStatistic(features, Targets(1), **given), settings(device=device))


@pytest.mark.parametrize("sums", ["f4", "f8"])
@pytest.mark.parametrize("m", [500, 3_000, 8_000, 100_000])
def test_blocks_follow_from_the_width_and_the_memory_from_arithmetic(m, sums):
    steps, d = planned(m, sums=np.dtype(sums)), 20
    # 512 MB of Φ, with some columns beside it, and its copy in float64 for such sums
    of_row = (4 if sums == "f4" else 12) * m
    rows = min(65_536, max(2_048, 2**29 // of_row))
    assert 0.95 * rows <= steps.block_rows <= rows
    b, p = min(steps.block_rows, steps.chunk_rows), 1 + 1
    expected = m * (d + 2) * 4 + of_row * b  # landmarks; Φ
    expected += 8 * (m * m + m * p) + m * m + steps.chunk_bytes  # G, C and s; a panel; rows
    # the core, G + αK and its factor; BᵀB of some rows
    expected += (24 * m * m if m >= 4000 else 8 * m * m) + 1_500_000_000
    assert steps.device_bytes == pytest.approx(expected, rel=0.01)
    assert steps.summary()["device_bytes"] == steps.device_bytes
    assert len(steps.segments) == 1
    # main memory holds no block
    assert steps.work_bytes < planned(m, device="cpu", sums=np.dtype(sums)).work_bytes + 8 * m * 32


def test_the_plan_is_what_pytorch_allocates():
    pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile

    X, m = np.random.default_rng(0).normal(size=(5_000, 20)).astype(np.float32), 1_200
    rows, features = as_rows(X, y=X[:, 0]), LandmarkMap(Gaussian(3.0), X[:m].astype(float), np.dtype("f4"))
    statistic = MomentStatistic(features, Targets(1), sums=np.dtype("f8"))
    with executing("serial", device="torch"):
        expected = plan_sweep(rows, statistic).device_bytes - cards.CONTEXT_BYTES
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            sweep.sweep(rows, statistic)
    events = [one for one in profiled.profiler.kineto_results.events() if one.name() == "[memory]"]
    peak = np.cumsum([one.nbytes() for one in events]).max()
    assert 0.9 * expected < peak < 1.05 * expected


def test_a_plan_for_processors_and_settings_of_the_user_stay():
    steps = planned(500, device="cpu")
    assert (steps.device_bytes, steps.block_rows) == (0, 2048)
    assert "device_bytes" not in steps.summary()
    with dask.config.set({"bigkernel.block-rows": 1000, "bigkernel.segment-rows": 50_000}):
        steps = planned(500)
    assert steps.block_rows == 1000
    assert len(steps.segments) == 4


@pytest.mark.parametrize("gigabytes", [3, 12, 80])
def test_what_does_not_fit_is_refused_with_the_landmarks_that_would(gigabytes):
    card = replace(GPU, free=gigabytes * 10**9)
    check_card(planned(1_000), card)
    steps = planned(60_000)
    with pytest.raises(PlanTooLargeError, match=f"which has {gigabytes}.0 of 80.0 GB free") as refused:
        check_card(steps, card)
    most = int(re.search(r"of the landmarks, ([\d,]+),", str(refused.value))[1].replace(",", ""))
    assert planned(most).device_bytes <= card.free
    assert planned(most + 1_500).device_bytes > card.free
    assert needed_bytes(steps) == steps.device_bytes


def test_a_sweep_that_does_not_fit_is_refused_before_its_first_row(monkeypatch):
    monkeypatch.setattr(sweep, "find_card", lambda name: replace(GPU, free=10**9))
    monkeypatch.setattr(sweep, "device_of", lambda name: HOST)
    with pytest.raises(PlanTooLargeError, match=r"a sweep needs 1\.5 GB of H100"), executing(device="cuda"):
        ridge().fit(*small())


# -- runs --------------------------------------------------------------------------------------------------------------


def test_a_run_names_its_device_and_resumes_on_no_other(monkeypatch, tmp_path):
    X, y = small()
    model = ridge()
    of_host = Card("cpu", "H100", versions="torch 2.8.0, CUDA 12.8")
    monkeypatch.setattr(sweep, "find_card", lambda name: of_host)
    with executing("serial", run=tmp_path / "run"):
        model.fit(X, y)
    assert model.fit_report()["sweep"]["device"] == "cpu, H100, torch 2.8.0, CUDA 12.8"
    (of_run,) = [one for one in gather(tmp_path / "run")["run"]["sweeps"] if one["name"] == "moments"]
    assert of_run["settings"]["device"] == str(of_host)
    monkeypatch.setattr(sweep, "find_card", lambda name: replace(of_host, versions="torch 2.9.0, CUDA 13.0"))
    with (
        pytest.raises(
            ResumeMismatchError, match=r"device was cpu, H100, torch 2.8.0.*, now it is cpu, H100, torch 2.9.0"
        ),
        executing("serial", run=tmp_path / "run", resume=True),
    ):
        ridge().fit(X, y)


def test_a_device_without_memory_ends_in_a_named_error_and_its_run_resumes(monkeypatch, tmp_path):
    class OutOfMemoryError(RuntimeError):
        """As PyTorch and CuPy name it."""

    monkeypatch.setitem(dask.config.config["bigkernel"], "block-rows", 100)
    X, y = small(400)
    whole = ridge().fit(X, y)
    blocks, update = [], MomentStatistic.update

    def third(self, total, chunk):
        blocks.append(chunk.start)
        if len(blocks) == 3:
            raise OutOfMemoryError("tried to allocate 3 GiB")
        update(self, total, chunk)

    monkeypatch.setattr(MomentStatistic, "update", third)
    with (
        pytest.raises(PlanTooLargeError, match=r"rows 200:300: device 'cpu' has no memory left: .*3 GiB; use fewer"),
        executing("serial", run=tmp_path / "run"),
    ):
        ridge().fit(X, y)
    done = []
    with (
        observe(lambda event: done.append(event) if isinstance(event, SegmentDone) else None),
        executing("serial", run=tmp_path / "run", resume=True),
    ):
        again = ridge().fit(X, y)
    assert [one.receipt.resumed for one in done] == [True, True, False, False]
    assert_array_equal(again.dual_coef_, whole.dual_coef_)


def test_a_solve_without_memory_on_the_device_ends_in_a_named_error(monkeypatch):
    def solve(*_, **__):
        raise type("OutOfMemoryError", (RuntimeError,), {})("tried to allocate 3 GiB")

    monkeypatch.setattr("bigkernel.estimators.ridge.RidgeMethod.solve", solve)
    with pytest.raises(PlanTooLargeError, match="KernelRidge: the solve: device 'cpu' has no memory left: tried to"):
        ridge().fit(*small())


def test_a_task_has_the_memory_of_its_plan_and_the_driver_all_of_it_again(monkeypatch):
    limits = []
    made = SimpleNamespace(limit=limits.append, total_bytes=80, held_bytes=5)
    monkeypatch.setattr(cards, "device_of", lambda name: made)
    with pytest.raises(KeyError), cards.limited("cuda", 7, "rows"):
        raise KeyError
    assert limits == [5 + 7, 80]  # beside arrays that the process has there already


def test_a_receipt_has_the_device_and_its_peak(monkeypatch):
    report = ridge().fit(*small()).fit_report()["sweep"]
    assert (report["device"], report["device_peak_bytes"]) == ("cpu", 0)
    receipts = []
    with observe(lambda event: receipts.append(event.receipt) if isinstance(event, SegmentDone) else None):
        ridge().fit(*small())
    assert {receipt.device for receipt in receipts} == {"cpu"}
    kept = replace(receipts[0], device="cuda", device_peak_bytes=7)
    assert type(kept).of_json(json.loads(json.dumps(kept.to_json()))) == kept
    with pytest.raises(ValueError, match="whole numbers"):
        type(kept).of_json({**kept.to_json(), "device_peak_bytes": -1})


def test_the_driver_solves_on_its_processors_where_only_workers_have_a_gpu(monkeypatch):
    monkeypatch.setattr(sweep, "find_card", lambda name: Card(name, wrong="PyTorch finds no GPU"))
    with executing(device="cuda"):
        assert device_here().name == "cpu"


# -- arrays and models -------------------------------------------------------------------------------------------------


class OnGpu:
    """An array of CuPy, which does not become one of NumPy by itself."""

    def __init__(self, values):
        self.values, self.shape, self.ndim, self.dtype = values, values.shape, values.ndim, values.dtype

    def __dlpack_device__(self):
        return (2, 0)

    def __len__(self):
        return len(self.values)

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def get(self):
        return self.values


def test_arrays_of_a_gpu_are_copied_and_the_answer_is_of_numpy():
    X, y = small()
    notes = []
    with observe(lambda event: notes.append(event.text) if isinstance(event, Note) else None):
        model = ridge().fit(OnGpu(X), OnGpu(y), sample_weight=OnGpu(np.ones(len(y))))
    assert any("X: copied from the GPU to main memory" in note for note in notes)
    assert_array_equal(model.dual_coef_, ridge().fit(X, y, sample_weight=np.ones(len(y))).dual_coef_)
    predicted = model.predict(OnGpu(X))
    assert type(predicted) is np.ndarray
    assert_array_equal(predicted, model.predict(X))
    assert_array_equal(Predictor.of(model).predict(OnGpu(X)), predicted)


def test_tensors_of_pytorch_are_taken():
    torch = pytest.importorskip("torch")
    X, y = small()
    model = ridge().fit(torch.tensor(X, requires_grad=True), torch.tensor(y))
    assert_array_equal(model.dual_coef_, ridge().fit(X, y).dual_coef_)


def test_a_predictor_computes_on_a_device_that_its_file_does_not_know(tmp_path):
    pytest.importorskip("array_api_strict")
    X, y = small()
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(UnitNormalizer(), ridge(dtype="float64")).fit(X, y)
    save_model(model, tmp_path / "one.model")
    on_device = Predictor.load(tmp_path / "one.model", device="strict")
    assert (on_device.device, Predictor.load(tmp_path / "one.model").device) == ("strict", "cpu")
    np.testing.assert_allclose(on_device.predict(X), model.predict(X), rtol=1e-12)
    with pytest.raises(ConfigError, match="device: expected one of"):
        Predictor.of(model, device="gpu")
