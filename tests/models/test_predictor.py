"""Predictors give the numbers of their models with NumPy alone, and refuse damaged files."""

import json
import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from forging import forge, parts_of, put
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import bigkernel as bk
from bigkernel.errors import ConfigError, DataError, ModelRejectedError
from bigkernel.kernels import feature_maps

rng = np.random.default_rng(1919)
D = 9
X = rng.uniform(0.1, 1.0, size=(90, D))
Y = np.c_[np.sin(3 * X[:, 0]), X[:, 1] * X[:, 2]]
LABELS = np.array(["one", "three", "two"])[np.argsort(np.argsort(X[:, 0] + X[:, 1])) // 30]
SMALL = {"n_landmarks": 12, "random_state": 0}
WIDE = bk.Gaussian(1.0)
KERNELS = [
    bk.Gaussian(np.linspace(1, 3, D)),
    bk.Matern(2.0, 0.5),
    bk.Laplacian(gamma=0.2),
    bk.Polynomial(3, 0.1, 1.0),
    bk.Gaussian(2.0) + 0.5 * bk.Linear() * bk.Matern(2.0, 2.5),
    bk.OnColumns(bk.Laplacian(gamma=0.2), [0, 3]) * bk.OnColumns(bk.Linear() + WIDE, [1, 2, 4]),
    bk.Pairwise("cosine"),
]
AXES = make_pipeline(bk.Standardizer(), bk.Projector(4, whiten=True))
MODELS = {
    **{f"{kernel.name} {i}": (bk.KernelRidge(kernel, **SMALL), Y) for i, kernel in enumerate(KERNELS)},
    "float32": (bk.KernelRidgeClassifier(WIDE, dtype="float32", **SMALL), LABELS),
    "exact": (bk.KernelRidge(WIDE, fit_intercept=True), Y[:, 0]),
    "probabilities": (bk.KernelRidgeClassifier(WIDE, probability=True, **SMALL), LABELS),
    "two classes": (bk.KernelLogisticClassifier(WIDE, **SMALL), X[:, 0] > 0.5),
    "linear": (bk.LinearRegression(), Y),
    "pipeline": (
        make_pipeline(bk.Rescaler(2.0), bk.Standardizer(), bk.UnitNormalizer(), bk.KernelRidge(WIDE, **SMALL)),
        Y[:, 1],
    ),
    "whitened": (make_pipeline("passthrough", bk.Nystroem(WIDE, n_components=9), bk.LinearRegression()), Y),
    "union": (
        make_pipeline(
            bk.RowUnion([("strokes", bk.OrientationFeatures()), ("axes", AXES)], transformer_weights={"axes": 0.5}),
            bk.Projector(n_components=6),
            bk.KernelRidge(WIDE, **SMALL),
        ),
        Y,
    ),
    "poses": (make_pipeline(bk.MomentNormalizer(), bk.OrientationFeatures(), bk.XNVClassifier(**SMALL)), LABELS),
}
pytestmark = pytest.mark.filterwarnings("ignore::bigkernel.errors.RankDeficiencyWarning")


def stored(model, path):
    bk.save_model(model, path, overwrite=True)
    return bk.Predictor.load(path)


@pytest.fixture(scope="module")
def classifier():
    return bk.KernelRidgeClassifier(WIDE, probability=True, **SMALL).fit(X, LABELS)


@pytest.fixture
def path(classifier, tmp_path):
    bk.save_model(classifier, tmp_path / "a.model")
    return tmp_path / "a.model"


@pytest.mark.parametrize("model, target", MODELS.values(), ids=MODELS)
def test_a_predictor_gives_the_bits_of_the_model(model, target, tmp_path):
    model.fit(X, target)
    made = bk.Predictor.of(model)
    for predictor in (made, stored(model, tmp_path / "p"), pickle.loads(pickle.dumps(made))):
        for rows in (X, X[:1], X.astype(np.float32), (100 * X).astype(np.uint8), (100 * X).astype(int), X[:2].tolist()):
            for method in ("predict", "decision_function", "predict_proba", "predict_log_proba"):
                if hasattr(model, method):
                    assert_array_equal(getattr(predictor, method)(rows), getattr(model, method)(rows), strict=True)


def test_landmarks_are_evaluated_in_slices_as_in_the_model(tmp_path, monkeypatch):
    monkeypatch.setattr(feature_maps, "SLICE_ROW_BYTES", 64)
    model = bk.KernelRidge(WIDE, **SMALL).fit(X, Y)
    assert_array_equal(stored(model, tmp_path / "p").predict(X), model.predict(X))


ALONE = """
import json, sys
known = {*sys.modules}

class Alone:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in {*sys.stdlib_module_names, "numpy", "bigkernel"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Alone())
import numpy as np
from bigkernel import Predictor

rows, expected = np.load(sys.argv[1]), np.load(sys.argv[2])
path, columns, values = json.loads(sys.argv[3])
assert np.allclose(Predictor.load(path).predict(columns), values, rtol=1e-12, atol=1e-12)
for path, values in zip(sys.argv[4:], expected):
    assert np.allclose(Predictor.load(path).predict(rows), values, rtol=1e-12, atol=1e-12), path
print(len(expected), *sorted({name.split(".")[0] for name in {*sys.modules} - known} - sys.stdlib_module_names))
"""


def test_a_process_with_numpy_alone_gives_the_same_numbers(tmp_path):
    some = [(model, target) for model, target in MODELS.values() if target is Y]
    paths = [tmp_path / str(i) for i in range(len(some))]
    for path, (model, target) in zip(paths, some, strict=True):
        bk.save_model(model.fit(X, target), path)
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", np.stack([model.predict(X) for model, _ in some]))
    texts = {"kind": ["a", "b", None] * 30, "day": [f"2013-01-{1 + i % 28:02}" for i in range(90)]}
    table = pd.DataFrame({**texts, "x": [None, *X[1:, 0]]})
    of_table = make_pipeline(bk.TableEncoder(), bk.Standardizer(), bk.KernelRidge(**SMALL)).fit(table, Y)
    bk.save_model(of_table, tmp_path / "table")
    columns = {name: [None if value != value else value for value in table[name]] for name in table}
    given = json.dumps([str(tmp_path / "table"), columns, of_table.predict(table).tolist()])
    command = [sys.executable, "-c", ALONE, tmp_path / "x.npy", tmp_path / "y.npy", given, *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(len(some)), "bigkernel", "numpy"]


REFUSED = {
    "FourierMap": bk.KernelRidge(WIDE, landmarks="fourier", **SMALL),
    "chi2": bk.KernelRidge(WIDE + bk.Pairwise("chi2"), **SMALL),
    "'fourier'": make_pipeline(bk.RandomFourier(n_components=4, random_state=0), bk.LinearRegression()),
    "StandardScaler": make_pipeline(StandardScaler(), bk.LinearRegression()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_need_more_than_numpy_are_refused_by_name(name, tmp_path):
    with pytest.raises(ConfigError, match=name):
        bk.Predictor.of(REFUSED[name].fit(X, Y))
    with pytest.raises(ConfigError, match=name):
        stored(REFUSED[name], tmp_path / "p")


def test_a_graph_without_onnx_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match=r'to_onnx needs onnx .*: pip install "bigkernel\[onnx\]"'):
        bk.to_onnx(bk.LinearRegression().fit(X, Y))


def test_a_file_says_what_its_fit_was(tmp_path):
    for solver, rows in (("direct", 90), ("cg", 90), (None, 90)):
        way = {"n_landmarks": None, "random_state": 0} if solver is None else {**SMALL, "solver": solver}
        fit = dict(stored(bk.KernelRidge(WIDE, alpha=0.5, **way).fit(X, Y[:, 0]), tmp_path / "p").fit)
        assert 0 <= fit.pop("prediction_error") < 0.02
        assert fit == {"estimator": "KernelRidge", "rows": rows, "alpha": 0.5}


def test_missing_methods_are_refused():
    numbers = bk.Predictor.of(bk.LinearRegression().fit(X, Y))
    with pytest.raises(ConfigError, match="found a regressor"):
        numbers.decision_function(X)
    with pytest.raises(ConfigError, match="without probabilities"):
        numbers.predict_proba(X)


ROWS = {
    "NaN or infinity, the first are \\[1\\]": np.where(np.arange(90)[:, None] == 1, np.nan, X),
    "at least one row of 9 features, found shape \\(90, 8\\)": X[:, 1:],
    "found shape \\(0, 9\\)": X[:0],
    "sparse": sparse.csr_matrix(X),
    "matrix of numbers": np.full((1, D), "a"),
    "found complex": X + 1j,
}


@pytest.mark.parametrize("message", ROWS)
def test_invalid_rows_are_refused(classifier, message):
    with pytest.raises(DataError, match=message):
        bk.Predictor.of(classifier).predict(ROWS[message])


def test_columns_of_a_frame_must_be_those_of_the_fit(tmp_path):
    frame = pd.DataFrame(X, columns=list("abcdefghi"))
    predictor = stored(model := bk.KernelRidge(WIDE, **SMALL).fit(frame, Y), tmp_path / "p")
    assert_array_equal(predictor.predict(frame), model.predict(frame))
    assert_array_equal(predictor.predict(frame[frame.columns[::-1]]), model.predict(frame))
    with pytest.raises(DataError, match=r"columns of the fit, with the names 'a', 'b'.*found 'z', 'b'"):
        predictor.predict(frame.rename(columns={"a": "z"}))


def test_a_file_has_the_safetensors_format(classifier, path):
    header, _, data = parts_of(path)
    entry = header["model.basis.landmarks"]
    assert entry["dtype"] == "F64"
    landmarks = np.frombuffer(data[slice(*entry["data_offsets"])]).reshape(entry["shape"])
    assert_array_equal(landmarks, classifier.landmarks_)
    assert all(isinstance(text, str) for text in header["__metadata__"].values())


def test_a_sound_file_is_read_without_printing_what_it_holds(path, classifier, monkeypatch):
    printed = []
    monkeypatch.setattr(type(WIDE), "__repr__", lambda self: printed.append(self) or "")
    loaded = bk.load_model(path)
    assert printed == []
    assert_array_equal(loaded.predict(X), classifier.predict(X))


def test_moments_are_not_read(path, classifier):
    header, _, data = parts_of(path)
    content = bytearray(path.read_bytes())
    first, end = header["model.statistics.G"]["data_offsets"]
    start = len(content) - len(data)
    content[start + first : start + end] = bytes(end - first)
    path.write_bytes(content)
    assert_array_equal(bk.Predictor.load(path).predict(X), classifier.predict(X))
    with pytest.raises(ModelRejectedError, match=r"model\.statistics\.G: CRC-32 differs"):
        bk.load_model(path)


def test_a_file_beyond_the_memory_limit_is_refused(path):
    with pytest.raises(ModelRejectedError, match="limit of 100"):
        bk.Predictor.load(path, limit_bytes=100)
    bk.Predictor.load(path, limit_bytes=100_000)
    kernel = {"kernel": "linear", "params": {}}
    for _ in range(8):
        kernel = {"kernel": "sum", "params": {"k1": kernel, "k2": kernel}}
    forge(path, put("predictor", *OF_MAP, "kernel", kernel))
    with pytest.raises(ModelRejectedError, match="limit of 100,000"):
        bk.Predictor.load(path, limit_bytes=100_000)


OF_EXPANSION = ("expansion", "fields")
OF_MAP = (*OF_EXPANSION, "features", "fields")
ROW_MAP = ("row_maps", 0, "fields")
OF_STROKES = (*ROW_MAP, "chains", 0, 0, "fields")
WIDTH = ("kernel", "params", "sigma")
FORGED = {
    "duplicate labels": ("", (*OF_EXPANSION, "classes", "labels", ["a", "a", "b"]), "distinct labels"),
    "lists as labels": ("", (*OF_EXPANSION, "classes", "labels", [["a"] * 999] * 3), "<U. that are list"),
    "long labels": ("", (*OF_EXPANSION, "classes", "dtype", "<U99999999"), "3 labels"),
    "other labels": ("", (*OF_EXPANSION, "classes", "dtype", "f2"), "labels of float16"),
    "unknown kind": ("", ("expansion", "is", "Chunk"), "unknown part"),
    "unresolved width": ("", (*OF_MAP, *WIDTH, "scale"), "expected numeric"),
    "number for a bool": ("", (*OF_EXPANSION, "logits", 1), "Predictor.logits: expected bool, found 1"),
    "too few numbers": ("union", (*ROW_MAP, "scales", [1.0]), "a number for each"),
    "another image": ("union", (*OF_STROKES, "height", 4), "expected rows of 4×3 = 12 pixels"),
    "fraction": ("union", (*OF_STROKES, "cells", 1.5), "Orientations.cells: expected int"),
}


@pytest.mark.parametrize("name, keys, message", FORGED.values(), ids=FORGED)
def test_a_forged_predictor_is_refused_with_its_fault(path, tmp_path, name, keys, message):
    if name:
        model, target = MODELS[name]
        stored(model.fit(X, target), path)
    forge(path, lambda *_: None)
    assert bk.Predictor.load(path).predict(X).shape[0] == 90
    forge(path, put("predictor", *keys))
    with pytest.raises(ModelRejectedError, match=message):
        bk.Predictor.load(path)
