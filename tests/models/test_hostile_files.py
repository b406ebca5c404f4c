"""Damaged and hostile model files are refused quickly, with little memory, and no other file is opened."""

import copy
import sys
import time
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from forging import drop, forge, number, parts_of, put, reshaped
from numpy.testing import assert_array_equal
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, QuantileTransformer, StandardScaler

import bigkernel as bk
from bigkernel.errors import ModelRejectedError

rng = np.random.default_rng(5)
N, D, M = 60, 4, 8
X = rng.normal(size=(N, D))
Y = np.column_stack([X[:, 0], np.sin(X[:, 1])])
LABELS = rng.integers(0, 3, N)
SHIFTED = np.where(np.arange(N) < 30, np.digitize(X[:, 0], [-0.5, 0.5]), -1)
SMALL = {"n_landmarks": M, "random_state": 0}
SECONDS, GROWTH_BYTES = 1.0, 80e6
MUTATIONS = 2000
MODELS = {
    "classifier": (bk.KernelRidgeClassifier(bk.Gaussian(1.4), **SMALL), np.array(["één", "two", "tre"])[LABELS]),
    "regressor": (bk.KernelRidge(bk.Matern(2.0, nu=2.5), fit_intercept=True, **SMALL), Y[:, 0]),
    "exact": (bk.KernelRidge(bk.Gaussian(1.4)), Y),
    "sssl": (bk.SSSL(bk.Gaussian(1.4), 4, **SMALL), Y),
    "xnv": (bk.XNV(bk.Gaussian(1.4), **SMALL), Y),
    "artl": (bk.ARTLClassifier(bk.Gaussian(1.4), n_rounds=1, **SMALL), SHIFTED),
    "fourier": (bk.KernelRidge(bk.Gaussian(1.4), landmarks="fourier", **SMALL), Y),
    "pipeline": (make_pipeline(bk.Standardizer(), bk.UnitNormalizer(), bk.KernelRidge(bk.Polynomial(2), **SMALL)), Y),
    "ridge": (bk.Ridge(), Y),
    "leaves": (
        bk.PartitionedClassifier(bk.KernelRidgeClassifier(bk.Gaussian(1.4), **SMALL), 2, random_state=0),
        LABELS,
    ),
    "stages": (bk.ResidualRegressor([("trend", bk.Ridge()), ("rest", bk.KernelRidge(**SMALL))]), Y),
    "tabular": (bk.TabularRegressor(time_limit=0, random_state=0), Y),
    "kriging": (bk.Kriging(0.5, n_neighbors=40, random_state=0), Y),
    "domains": (bk.DICA(bk.Gaussian(1.4), 2, allow_single_domain=True, **SMALL), LABELS),
    "standardizer": (bk.Standardizer(), None),
    "random features": (bk.RandomFourier(bk.Gaussian(1.4), 7, random_state=0), None),
    "strokes": (bk.OrientationFeatures(), None),
    "StandardScaler": (make_pipeline(StandardScaler(), bk.Ridge()), Y),
    "PCA": (make_pipeline(PCA(3), bk.Ridge()), Y),
    "QuantileTransformer": (make_pipeline(QuantileTransformer(n_quantiles=20), bk.Ridge()), Y),
    "Normalizer": (make_pipeline(Normalizer(), bk.Ridge()), Y),
    "function": (make_pipeline(FunctionTransformer(np.arcsinh), bk.Ridge()), Y),
    "table": (make_pipeline(bk.TableEncoder(), bk.Ridge()), Y),
}
FUZZED = ("classifier", "regressor", "sssl", "pipeline", "ridge", "table", "leaves", "stages", "tabular")
pytestmark = pytest.mark.filterwarnings("ignore::bigkernel.errors.RankDeficiencyWarning")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Models of several kinds, by name, as bytes."""
    path, contents = tmp_path_factory.mktemp("saved") / "model", {}
    for name, (model, y) in MODELS.items():
        bk.save_model(model.fit(X, y), path, overwrite=True)
        contents[name] = path.read_bytes()
    return contents


@pytest.fixture
def path(saved, tmp_path):
    (tmp_path / "a.model").write_bytes(saved["classifier"])
    return tmp_path / "a.model"


def test_changed_and_truncated_files_are_refused(path, saved):
    content = saved["classifier"]
    bits = rng.integers(8, size=len(content))
    for place in (*range(40), *range(40, len(content), 7)):
        path.write_bytes(content[:place] + bytes([content[place] ^ (1 << bits[place])]) + content[place + 1 :])
        with pytest.raises(ModelRejectedError, match=r"a\.model"):
            bk.load_model(path)
    for wrong in (b"", content[:7], content[:-1], content[: len(content) // 2], content + b"\0"):
        path.write_bytes(wrong)
        for load in (bk.load_model, bk.Predictor.load):
            with pytest.raises(ModelRejectedError):
                load(path)
    path.write_bytes(content)
    assert_array_equal(bk.load_model(path).predict(X), MODELS["classifier"][0].predict(X))


# ---------------------------------------------------------------- forged by hand

LANDMARKS, COEF = "model.basis.landmarks", "model.solution.coef"
FIT = ("model", "fitted", "fields")
INPUTS, BASIS, SOLUTION = ((*FIT, name, "fields") for name in ("inputs", "basis", "solution"))
STEP = ("model", "steps", 0, 1)
OF_STEP = (*STEP, "fitted", "table")
NAN = float("nan")
LINEAR = {"kernel": "linear", "params": {}}


def overlapping(header, values, data):
    header[COEF]["data_offsets"] = header[LANDMARKS]["data_offsets"]


def of_format(name):
    return lambda header, values, data: header["__metadata__"].update(format=name)


def many(header, values, data):
    values["model"]["fitted"]["fields"] |= {f"a{i}": i for i in range(10**5)}


def unknown(header, values, data):
    header["extra"] = {"dtype": "F64", "shape": [1], "data_offsets": [len(data), len(data) + 8]}
    data += np.float64(1.0).tobytes()


def kernel(name, **params):
    return put(*BASIS, "kernel", {"kernel": name, "params": params})


FORGED = {
    "unknown class": ("classifier", put("model", "class", "os.system"), "unknown class"),
    "class that is a list": ("classifier", put("model", "class", ["Ridge"]), "."),
    "unknown kind": ("classifier", put("model", "fitted", "is", "Chunk"), "unknown part"),
    "another kind": ("classifier", put("model", "fitted", {"is": "UnitNorm", "fields": {}}), "expected a fit"),
    "solution of another kind": ("classifier", put(*FIT, "solution", {"table": {}}), "expected Solution"),
    "unknown field": ("classifier", put(*FIT, "evil", 1), "'evil' is unknown"),
    "missing field": ("classifier", drop(*SOLUTION, "rank"), "'rank' is unknown or missing"),
    "expansion that is text": ("leaves", put("predictor", "expansion", "x"), "expected an expansion"),
    "no expansion": ("stages", put("predictor", "expansion", None), "expected an expansion"),
    "other labels of leaves": ("leaves", put(*INPUTS, "classes", "labels", [5, 6, 7]), "expected other members"),
    "leaves of another number": ("leaves", put("model", "unfitted", "params", "n_leaves", 3), "expected other members"),
    "stages without a model": ("stages", put("model", "unfitted", "models", "estimators", 0, 1, {"class": "x"}), "'x'"),
    "missing model": ("classifier", drop("model"), "expected a file with a predictor and a model"),
    "unknown kernel": ("classifier", kernel("os"), "unknown kernel 'os'"),
    "kernel of unknown parameters": ("classifier", kernel("gaussian", sigma=1.0, evil=1), "."),
    "bandwidth below 0": ("classifier", kernel("gaussian", sigma=-1.0), "sigma"),
    "unresolved bandwidth": ("classifier", kernel("gaussian", sigma="scale"), "sigma"),
    "too few bandwidths": ("classifier", kernel("gaussian", sigma=[1.0, 2.0]), "sigma"),
    "unknown parameter": ("classifier", put("model", "params", "evil", 1), "evil"),
    "missing parameter": ("classifier", drop("model", "params", "alpha"), "alpha"),
    "parameter that is text": ("classifier", put("model", "params", "alpha", "1"), "alpha"),
    "another number of features": ("classifier", put(*INPUTS, "n_features", 5), "shape"),
    "features that are text": ("classifier", put(*INPUTS, "n_features", "4"), "expected int"),
    "too few classes": ("classifier", put(*INPUTS, "classes", "labels", ["a", "b"]), "labels"),
    "no classes": ("classifier", put(*INPUTS, "classes", None), "expected 3 class labels"),
    "unknown dtype": ("classifier", put(*BASIS, "dtype", "float16"), "float32 or float64"),
    "penalty that is text": ("classifier", put(*SOLUTION, "alpha", "0.3"), "alpha: expected float"),
    "another format": ("classifier", of_format("bigkernel model 9"), "expected 'bigkernel model 1'"),
    "an unused array": ("classifier", unknown, "unknown array 'extra'"),
    "a missing array": ("classifier", put(*SOLUTION, "coef", "array", "../../secret"), "secret"),
    "overlapping arrays": ("classifier", overlapping, "do not match"),
    "8 TB": ("classifier", reshaped(LANDMARKS, 10**6, 10**6), "do not match"),
    "a negative shape": ("classifier", reshaped(LANDMARKS, -M, -D), "do not match"),
    "an exchanged shape": ("classifier", reshaped(COEF, 3, M), "coefficients"),
    "another dtype": ("classifier", lambda h, v, d: h[COEF].update(dtype="I64"), "I64"),
    "NaN": ("classifier", number(COEF, NAN), "finite"),
    "infinite landmarks": ("classifier", number(LANDMARKS, np.inf), "finite"),
    "a hundred thousand fields": ("classifier", many, "."),
    "moments of other columns": ("classifier", reshaped("model.statistics.G", 1, M * M, 1), "statistics G"),
    "moments of other targets": ("classifier", reshaped("model.statistics.C", 1, 3, M), "statistics [Ct]"),
    "no moments": ("classifier", put(*FIT, "statistics", "table", {}), "rows"),
    "number for a bool": ("regressor", put(*SOLUTION, "with_intercept", 1), "with_intercept: expected bool"),
    "targets in one column": ("exact", put(*INPUTS, "flat", True), "unexpected type"),
    "frequencies beyond memory": ("fourier", put(*BASIS, "width", 10**12), "shape"),
    "a kernel without frequencies": ("fourier", put(*BASIS, "kernel", LINEAR), "x − z"),
    "pseudo-labels of other rows": ("artl", reshaped("model.pseudo_labels.sums", 3, M), "pseudo-labels"),
    "features beyond memory": ("random features", put("model", "params", "n_components", 10**12), "GB"),
    "an unsupported step": ("StandardScaler", put(*STEP, "class", "sklearn.FunctionTransformer"), "unknown class"),
    "an unknown value of a step": ("StandardScaler", put(*OF_STEP, "__class__", "x"), "unknown fitted"),
    "a missing value of a step": ("StandardScaler", drop(*OF_STEP, "mean_"), "mean_|unknown array"),
    "too few deviations": ("standardizer", reshaped("model.scale_", 2, 2), "expected scale_ of shape"),
    "too many means": ("pipeline", reshaped("model.0.mean_", 2, 2), "expected mean_ of shape|standardize"),
    "variances of a matrix": ("StandardScaler", reshaped("model.0.var_", 2, 2), "expected var_ of shape"),
    "directions of other rows": ("PCA", reshaped("model.0.components_", 3, 4), "expected .* of shape"),
    "quantiles": ("QuantileTransformer", reshaped("model.0.quantiles_", 20, 4), "expected quantiles_ of shape"),
    "a function that is none": ("function", put(*STEP, "params", "func", {"ufunc": "load"}), "function of NumPy"),
    "an unknown norm": ("Normalizer", put(*STEP, "params", "norm", "l7"), "norm"),
    "duplicate step names": ("pipeline", put("model", "steps", 1, 0, "standardizer"), "distinct step names"),
    "no steps": ("pipeline", put("model", "steps", []), "distinct step names"),
}
WATCHED = None


def watch(event, arguments):
    """Record opened files and executed code while `WATCHED` is a list."""
    running = ("pickle.find_class", "exec", "compile", "subprocess.Popen", "os.system", "os.exec", "socket.connect")
    if WATCHED is not None and (event in running or (event == "open" and not isinstance(arguments[0], int))):
        WATCHED.append(f"{event} {arguments[0]!s}" if arguments else event)


@pytest.fixture(scope="module")
def audited():
    """Install the audit hook, which Python cannot remove."""
    sys.addaudithook(watch)


@pytest.fixture(scope="module")
def warm():
    """Names of the models that were loaded before."""
    return set()


def status_bytes(name):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(name)


@pytest.mark.parametrize("of, change, message", FORGED.values(), ids=FORGED)
def test_a_hostile_model_is_refused_fast_without_memory_or_other_files(
    saved, tmp_path, audited, warm, of, change, message
):
    global WATCHED
    path = tmp_path / "a.model"
    path.write_bytes(saved[of])
    if of not in warm:  # imports modules
        bk.load_model(path)
        warm.add(of)
    forge(path, change)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    resident, start = status_bytes("VmRSS"), time.process_time()
    WATCHED = []
    try:
        with pytest.raises(ModelRejectedError, match=message) as caught:
            bk.load_model(path)
    finally:
        events, WATCHED = WATCHED, None
    assert time.process_time() - start < SECONDS
    assert status_bytes("VmHWM") - resident < GROWTH_BYTES
    inside = (f"open {path}", f"open {Path(sys.prefix)}", f"open {Path(sys.base_prefix)}", "open /proc/")
    assert [event for event in events if not event.startswith(inside)] == []
    assert str(caught.value).count(str(path)) == 1


def test_a_duplicate_name_is_refused(path):
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    text = content[8 : 8 + length].rstrip()[:-1] + b',"x":0,"x":0}'
    text = text[:26] + b"00000000" + text[34:]
    text = text[:26] + f"{zlib.crc32(text):08x}".encode() + text[34:]
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    with pytest.raises(ModelRejectedError, match="occurs twice"):
        bk.load_model(path)


def test_deep_nesting_and_long_headers_are_refused(path):
    *_, data = parts_of(path)
    for text in ("[" * 100_000, '{"a":' * 100_000, " " * 2**25):
        length = len(text)
        path.write_bytes(length.to_bytes(8, "little") + text.encode() + data)
        with pytest.raises(ModelRejectedError):
            bk.load_model(path)


# ---------------------------------------------------------------- random mutations

STRANGE = [
    *(None, True, False, 0, -1, 1, 2, 7, 1e-300, 1e300, -1e300, 10**30, -(10**30), NAN, float("inf")),
    *("", "scale", "given", "gaussian", "SSSL", "Ridge", "float16", "<f4", "../../x", "\x00", "1", "é" * 300),
    *([], {}, [[]], [0], [None], {"kernel": "gaussian"}, {"kernel": "linear", "params": {}}, ["a", 1, None]),
]


def places(value, path=()):
    """Yield the path of every value inside JSON."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items if len(path) < 30 else ():
        yield (*path, key)
        yield from places(item, (*path, key))


def at(value, path):
    for key in path:
        value = value[key]
    return value


def mutate(header, values, data, rng):
    """Exchange, remove, repeat, retype or inflate values of the description or of the header, or change numbers."""
    draw = rng.random()
    if draw < 0.1:
        name = sorted(set(header) - {"__metadata__"})[int(rng.integers(len(header) - 1))]
        count = int(np.prod(header[name]["shape"]))
        number(name, [0.0, 1e300, -1e300, 1e-300, NAN][int(rng.integers(5))], int(rng.integers(count)))(header, 0, data)
        return
    target = {name: entry for name, entry in header.items() if name != "__metadata__"} if draw < 0.2 else values
    for _ in range(int(rng.integers(1, 4))):
        every = list(places(target))
        path, other = (every[int(rng.integers(len(every)))] for _ in range(2))
        holder, kind = at(target, path[:-1]), int(rng.integers(6))
        if kind == 0:
            del holder[path[-1]]
        elif kind == 1:
            holder[path[-1]] = copy.deepcopy(at(target, other)) if path[-1] in holder or isinstance(holder, list) else 0
        elif kind == 2:
            holder[path[-1]] = STRANGE[int(rng.integers(len(STRANGE)))]
        elif kind == 3 and isinstance(holder, dict):
            holder[f"extra{int(rng.integers(9))}"] = holder[path[-1]]
        elif kind == 4 and isinstance(holder[path[-1]], int | float):
            holder[path[-1]] = holder[path[-1]] * [10**9, -1, 0.5, 1e200, 1e-200][int(rng.integers(5))]
        elif isinstance(holder[path[-1]], list):
            holder[path[-1]] = holder[path[-1]] * int(rng.integers(2, 5))


@pytest.mark.parametrize("trials", [MUTATIONS // 10, pytest.param(MUTATIONS, marks=pytest.mark.slow)])
def test_mutated_models_with_valid_checksums_are_loaded_or_refused(saved, path, trials):
    wrong, refused, slowest = [], 0, 0.0  # in seconds of processor time, which a busy machine does not stretch
    for trial in range(trials):
        name = FUZZED[trial % len(FUZZED)]
        path.write_bytes(saved[name])
        try:
            forge(path, lambda *contents, trial=trial: mutate(*contents, np.random.default_rng(trial)))
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError):  # no longer a file
            continue
        start = time.process_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                bk.load_model(path)
        except ModelRejectedError:
            refused += 1
        except Exception as error:
            wrong.append(f"{trial} {name}: {error!r}")
        slowest = max(slowest, time.process_time() - start)
    assert wrong == [], "\n".join(wrong[:60])
    assert slowest < SECONDS
    # mutations of unused parameters are harmless
    assert refused > trials * 0.4
