"""Graphs of ONNX give what their predictor gives, from the model file alone, and say what they cannot hold."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

import bigkernel as bk
from bigkernel.errors import AccuracyWarning, ConfigError, DataError, PlanTooLargeError
from bigkernel.models import onnx_graph

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

rng = np.random.default_rng(1618)
D = 6
X = rng.uniform(-1, 1, size=(300, D)).astype(np.float32).astype(np.float64)
NEW = np.r_[X, rng.uniform(-1.2, 1.2, size=(60, D)).astype(np.float32)]  # landmarks are among them
Y = np.c_[np.sin(3 * X[:, 0]), X[:, 1] * X[:, 2]]
LABELS = np.array(["one", "three", "two"])[np.argsort(np.argsort(X[:, 0] + X[:, 1])) // 100]
SMALL = {"n_landmarks": 40, "alpha": 0.3, "random_state": 0}
WIDE = bk.Gaussian(1.0)
AXES = make_pipeline(bk.Standardizer(), bk.Projector(3, whiten=True))
WEIGHTS = {"one": 3.0, "three": 1.0, "two": 0.5}
MODELS = {
    "one target": (bk.KernelRidge(WIDE, **SMALL), Y[:, 0]),
    "several targets": (bk.KernelRidge(bk.Gaussian(np.linspace(1, 3, D)), **SMALL), Y),
    "matern 1/2": (bk.KernelRidge(bk.Matern(1.0, 0.5), **SMALL), Y),
    "matern 3/2": (bk.KernelRidge(bk.Matern(1.0, 1.5), **SMALL), Y),
    "matern 5/2": (bk.KernelRidge(bk.Matern(1.0, 2.5), **SMALL), Y),
    "laplacian": (bk.KernelRidge(bk.Laplacian(3.0), **SMALL), Y),
    "linear": (bk.KernelRidge(bk.Linear(), **SMALL), Y),
    "polynomial": (bk.KernelRidge(bk.Polynomial(2, 1.0, 0.5), **SMALL), Y),
    "sigmoid": (bk.KernelRidge(bk.Sigmoid(0.1, 0.2), **SMALL), Y),
    "least squares": (bk.LinearRegression(), Y),
    "scores": (bk.KernelRidgeClassifier(WIDE, **SMALL), LABELS),
    "probabilities": (bk.KernelRidgeClassifier(WIDE, probability=True, class_weight=WEIGHTS, **SMALL), LABELS),
    "two classes": (bk.KernelLogisticClassifier(WIDE, n_landmarks=40, random_state=0), X[:, 0] > 0),
    "numbers as classes": (bk.KernelRidgeClassifier(WIDE, **SMALL), np.where(X[:, 0] > 0, 2.0, 1e9 + 1)),
    "scaled rows": (
        make_pipeline(bk.Rescaler(3.0), bk.Standardizer(), bk.UnitNormalizer(), bk.KernelRidge(WIDE, **SMALL)),
        Y,
    ),
    "circles": (make_pipeline(bk.Periodic([1, 4], [0.5, 0.7]), bk.KernelRidge(WIDE, **SMALL)), Y),
    "sphere": (make_pipeline(bk.Rescaler(70.0), bk.OnSphere(3, 2, radius=2.0), bk.LinearRegression()), Y),
    "union": (
        make_pipeline(
            bk.RowUnion([("rows", bk.Rescaler(2.0)), ("axes", AXES)], transformer_weights={"axes": 0.5}),
            bk.KernelRidge(WIDE, **SMALL),
        ),
        Y,
    ),
    "whitened": (make_pipeline(bk.Nystroem(WIDE, n_components=9), bk.Ridge(alpha=1.0)), Y),
}
LEAF = bk.KernelRidge(WIDE, **SMALL)
LEAF_OF_CLASSES = bk.KernelRidgeClassifier(WIDE, probability=True, **SMALL)
BLOCKS = make_pipeline(bk.Standardizer(), bk.KernelRidge(bk.Laplacian(9.0), **SMALL))
MODELS |= {
    "sum": (bk.KernelRidge(bk.Gaussian(1.0) + 0.5 * bk.Linear() * bk.Matern(1.0, 1.5), **SMALL), Y),
    "columns": (bk.KernelRidge(bk.OnColumns(WIDE, [0, 1]) * bk.OnColumns(bk.Laplacian(3.0), [4, 2]), **SMALL), Y),
    "cosine": (bk.KernelRidge(bk.Pairwise("cosine"), **SMALL), Y),
    "leaves": (bk.PartitionedRegressor(LEAF, n_leaves=5, random_state=0), Y),
    "hard borders": (bk.PartitionedRegressor(BLOCKS, n_leaves=3, overlap=0.0, random_state=0), Y),
    "one leaf": (bk.PartitionedRegressor(LEAF, n_leaves=1, random_state=0), Y),
    "leaves of classes": (bk.PartitionedClassifier(LEAF_OF_CLASSES, n_leaves=3, random_state=0), LABELS),
    "stages": (bk.ResidualRegressor([("linear", bk.LinearRegression()), ("rest", LEAF)]), Y),
}
METHODS = {"variable": "predict", "label": "predict", "probabilities": "predict_proba", "scores": "decision_function"}
pytestmark = pytest.mark.filterwarnings("ignore::bigkernel.errors.RankDeficiencyWarning")


def session(graph):
    onnx.checker.check_model(graph, full_check=True)
    return onnxruntime.InferenceSession(graph.SerializeToString())


def card_of(graph):
    return {line.key: line.value for line in graph.metadata_props}


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("float64", 1e-12)])
@pytest.mark.parametrize("name", MODELS)
def test_a_graph_gives_what_its_predictor_gives(name, dtype, tolerance):
    model, target = MODELS[name]
    predictor = bk.Predictor.of(model.fit(X, target))
    run = session(bk.to_onnx(model, dtype=dtype))
    names = [output.name for output in run.get_outputs()]
    assert names == (["variable"] if predictor.classes is None else ["label", names[1]])
    for rows in (NEW.astype(dtype), NEW[:1].astype(dtype)):
        for output, found in zip(names, run.run(None, {"X": rows}), strict=True):
            expected = getattr(predictor, METHODS[output])(rows.astype(np.float64))
            if output == "label":
                assert found.tolist() == expected.tolist()
                continue
            width = predictor.expansion.width
            assert found.shape == (len(rows), width)
            if output == "scores" and width == 2:
                found = found[:, 1] - found[:, 0]
            scale = np.std(getattr(predictor, METHODS[output])(NEW), axis=0)
            assert (np.abs(found - expected.reshape(found.shape)) <= tolerance * scale).all()


def test_a_row_that_predict_refuses_gives_nan():
    model = make_pipeline(bk.Rescaler(60.0), bk.OnSphere(0, 1), bk.KernelRidge(bk.Laplacian(99.0), **SMALL))
    model.fit(X, Y)
    rows = X[:4].astype(np.float32)
    rows[0, 5], rows[1, 2], rows[2, 0] = np.nan, np.inf, 1.6  # 96 degrees north
    found = session(bk.to_onnx(model)).run(None, {"X": rows})[0]
    assert np.isnan(found).all(axis=1).tolist() == [True, True, True, False]


@pytest.mark.parametrize("name", ["leaves", "one leaf", "leaves of classes"])
def test_a_bad_row_changes_no_other_of_a_model_in_parts(name):
    model, targets = MODELS[name]
    model = clone(model).fit(X, targets)
    rows = X[:8].astype(np.float32)
    (*_, expected), rows[0, 1] = session(bk.to_onnx(model)).run(None, {"X": rows}), np.nan
    *_, found = session(bk.to_onnx(model)).run(None, {"X": rows})
    assert np.isnan(found[0]).all()
    np.testing.assert_array_equal(found[1:], expected[1:])


def test_zeros_and_extreme_rows_have_the_norm_of_their_predictor():
    model = make_pipeline(bk.UnitNormalizer(), bk.LinearRegression()).fit(X, Y)
    rows = (X[:3] * [[0], [1e-30], [1e30]]).astype(np.float32)
    found = session(bk.to_onnx(model)).run(None, {"X": rows})[0]
    np.testing.assert_allclose(found, bk.Predictor.of(model).predict(rows), rtol=1e-5)


def test_a_card_says_what_the_model_is():
    frame = pd.DataFrame(X, columns=list("abcdef"))
    graph = bk.to_onnx(bk.KernelRidgeClassifier(WIDE, **SMALL).fit(frame, LABELS))
    card = card_of(graph)
    rounding, error = float(card.pop("rounding")), float(card.pop("prediction_error"))
    assert 0 < rounding < 1e-5
    assert 0 < error < 1e-5
    assert card == {
        **{"estimator": "KernelRidgeClassifier", "kernel": "gaussian(sigma=1.0)", "landmarks": "40", "rows": "300"},
        **{"alpha": "0.3", "features": str(list("abcdef")), "classes": "['one', 'three', 'two']", "licence": ""},
    }
    assert (graph.producer_name, graph.producer_version) == ("bigkernel", bk.__version__)
    assert [(one.domain, one.version) for one in graph.opset_import] == [("", 18)]


TABLE = pd.DataFrame({"kind": ["a", "b"] * 150, "x": X[:, 0]})
REFUSED = {
    "TableEncoder": (make_pipeline(bk.TableEncoder(), bk.LinearRegression()), TABLE, Y),
    "moment-normalise": (make_pipeline(bk.MomentNormalizer(image_shape=(2, 3)), bk.LinearRegression()), X, Y),
    "mixture of labels": (bk.KernelRidgeClassifier(WIDE, **SMALL), X, LABELS.astype(object)),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_has_no_operators_is_refused_by_name(fault):
    model, rows, target = REFUSED[fault]
    predictor = bk.Predictor.of(model.fit(rows, target))
    if fault == "mixture of labels":
        predictor.expansion.classes[0] = 7
    with pytest.raises(ConfigError, match=f"{fault}.* has no operators of ONNX; "):
        bk.to_onnx(predictor)


def test_a_graph_beyond_the_limit_is_refused_with_its_size(monkeypatch):
    model = bk.KernelRidge(WIDE, n_landmarks=300).fit(X, Y)
    needed = len(bk.to_onnx(model).SerializeToString())
    monkeypatch.setattr(onnx_graph, "LIMIT_BYTES", 5000)
    with pytest.raises(PlanTooLargeError, match=r"takes [\d,]+ bytes, and a file of ONNX at most 5,000") as error:
        bk.to_onnx(model)
    named = int(str(error.value).split(" bytes")[0].split()[-1].replace(",", ""))
    assert needed <= named <= 1.3 * needed
    with pytest.raises(ConfigError, match="float16"):
        bk.to_onnx(None, dtype="float16")


def test_float32_that_moves_predictions_is_named_and_float64_serves():
    model = bk.KernelRidge(bk.Gaussian(8.0), alpha=1e-9, n_landmarks=40, random_state=0).fit(X, Y)
    with pytest.warns(AccuracyWarning, match=r"rounding to float32 moves predictions.*use dtype='float64'"):
        rounded = session(bk.to_onnx(model)).run(None, {"X": NEW.astype(np.float32)})[0]
    exact, graph = model.predict(NEW), bk.to_onnx(model, dtype="float64")
    assert np.abs(rounded - exact).max() > 1e-3 * exact.std()
    assert card_of(graph)["rounding"] == "0.0e+00"
    assert np.abs(session(graph).run(None, {"X": NEW})[0] - exact).max() < 1e-6 * exact.std()


WITHOUT = """
import sys
from bigkernel.cli import main
main(sys.argv[1:], standalone_mode=False)
assert not {"sklearn", "dask", "zarr", "onnxruntime"} & {*sys.modules}
"""


def test_a_model_file_is_exported_without_scikit_learn(tmp_path, run):
    model = bk.KernelRidge(bk.Matern(1.0, 0.5), **SMALL).fit(X, Y)
    file, out = tmp_path / "a.model", tmp_path / "new" / "a.onnx"
    bk.save_model(model, file, moments=False)
    command = [sys.executable, "-c", WITHOUT, "export", file, out, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    graph = onnx.load(out)
    assert json.loads(done.stdout) == card_of(graph)
    np.testing.assert_allclose(session(graph).run(None, {"X": NEW.astype("f4")})[0], model.predict(NEW), atol=1e-5)
    assert "already exists" in run("export", file, out, code=3).stderr
    assert run("export", file, out, "--overwrite", "--dtype", "float64").stdout.count("\n") > 5
    assert onnx.load(out).graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.DOUBLE
    content = bytearray(file.read_bytes())
    content[-9] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match="already exists"):
        bk.to_onnx(model, out)
    assert "CRC-32" in run("export", file, tmp_path / "b.onnx", code=7).stderr
    assert not (tmp_path / "b.onnx").exists()
