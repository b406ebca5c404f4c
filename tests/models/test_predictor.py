"""Predictors: the numbers of their models from NumPy alone, and files that are read whole and safely, or not at all."""

import json
import pickle
import subprocess
import sys
import zlib

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import bigkernel as bk
from bigkernel.errors import ConfigError, DataError, ModelRejected
from bigkernel.kernels import landmark_slices

rng = np.random.default_rng(1919)
D = 9
X = rng.uniform(0.1, 1.0, size=(90, D))
Y = np.c_[np.sin(3 * X[:, 0]), X[:, 1] * X[:, 2]]
LABELS = np.array(["one", "three", "two"])[np.argsort(np.argsort(X[:, 0] + X[:, 1])) // 30]
DRAWN = {"n_landmarks": 12, "random_state": 0}
WIDE = bk.Gaussian(1.0)
KERNELS = [
    bk.Gaussian(np.linspace(1, 3, D)),
    bk.Matern(2.0, 0.5),
    bk.Laplacian(0.2),
    bk.Polynomial(3, 0.1, 1.0),
    bk.Gaussian(2.0) + 0.5 * bk.Linear() * bk.Matern(2.0, 2.5),
    bk.OnColumns(bk.Laplacian(0.2), [0, 3]) * bk.OnColumns(bk.Linear() + WIDE, [1, 2, 4]),
    bk.Pairwise("cosine"),
]
MODELS = {
    **{f"{kernel.name} {i}": (bk.KernelRidge(kernel, **DRAWN), Y) for i, kernel in enumerate(KERNELS)},
    "float32": (bk.KernelRidgeClassifier(WIDE, dtype="float32", **DRAWN), LABELS),
    "exact": (bk.KernelRidge(WIDE, fit_intercept=True), Y[:, 0]),
    "probabilities": (bk.KernelRidgeClassifier(WIDE, probability=True, **DRAWN), LABELS),
    "two classes": (bk.KernelLogisticClassifier(WIDE, **DRAWN), X[:, 0] > 0.5),
    "linear": (bk.LinearRegression(), Y),
    "a chain": (
        make_pipeline(bk.Rescaler(2.0), bk.Standardizer(), bk.UnitNormalizer(), bk.KernelRidge(WIDE, **DRAWN)),
        Y[:, 1],
    ),
    "whitened": (make_pipeline("passthrough", bk.Nystroem(WIDE, n_components=9), bk.LinearRegression()), Y),
    "learnt features": (
        make_pipeline(
            bk.RowUnion(
                [
                    ("patches", bk.ConvolutionalNystroem(patch_size=(2, 1), n_landmarks=(5, 4), subsampling=1)),
                    ("axes", make_pipeline(bk.Standardizer(), bk.Projector(4, whiten=True))),
                ],
                transformer_weights={"axes": 0.5},
            ),
            bk.Projector(n_components=6),
            bk.KernelRidge(WIDE, **DRAWN),
        ),
        Y,
    ),
    "poses": (make_pipeline(bk.MomentNormalizer(), bk.OrientationFeatures(), bk.XNVClassifier(**DRAWN)), LABELS),
}
pytestmark = pytest.mark.filterwarnings("ignore::bigkernel.errors.RankDeficient")


def stored(predictor, path):
    predictor.save(path)
    return bk.Predictor.load(path)


@pytest.fixture(scope="module")
def classifier():
    return bk.KernelRidgeClassifier(WIDE, probability=True, **DRAWN).fit(X, LABELS)


@pytest.fixture
def path(classifier, tmp_path):
    classifier.predictor().save(tmp_path / "a.predictor")
    return tmp_path / "a.predictor"


@pytest.mark.parametrize("model, target", MODELS.values(), ids=MODELS)
def test_a_predictor_and_its_file_give_the_bits_of_the_model(model, target, tmp_path):
    model.fit(X, target)
    made = bk.Predictor.of(model)
    for predictor in (made, stored(made, tmp_path / "p"), pickle.loads(pickle.dumps(made))):
        for rows in (X, X[:1], X.astype(np.float32), (100 * X).astype(np.uint8), (100 * X).astype(int), X[:2].tolist()):
            for method in ("predict", "decision_function", "predict_proba", "predict_log_proba"):
                if hasattr(model, method):
                    assert_array_equal(getattr(predictor, method)(rows), getattr(model, method)(rows), strict=True)


def test_many_landmarks_go_in_slices_as_in_the_model(tmp_path, monkeypatch):
    monkeypatch.setattr(landmark_slices, "SLICE_ROW_BYTES", 64)
    model = bk.KernelRidge(WIDE, **DRAWN).fit(X, Y)
    assert_array_equal(stored(model.predictor(), tmp_path / "p").predict(X), model.predict(X))


ALONE = """
import sys
known = {*sys.modules}

class Alone:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in {*sys.stdlib_module_names, "numpy", "bigkernel", "lazy_loader"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Alone())
import numpy as np
from bigkernel import Predictor

rows, wanted = np.load(sys.argv[1]), np.load(sys.argv[2])
for path, values in zip(sys.argv[3:], wanted):
    assert np.allclose(Predictor.load(path).predict(rows), values, rtol=1e-12, atol=1e-12), path
print(len(wanted), *sorted({name.split(".")[0] for name in {*sys.modules} - known} - sys.stdlib_module_names))
"""


def test_a_process_that_has_numpy_alone_gives_the_same_numbers(tmp_path):
    some = [(model, target) for model, target in MODELS.values() if target is Y]
    paths = [tmp_path / str(i) for i in range(len(some))]
    for path, (model, target) in zip(paths, some, strict=True):
        bk.Predictor.of(model.fit(X, target)).save(path)
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", np.stack([model.predict(X) for model, _ in some]))
    words = [sys.executable, "-c", ALONE, tmp_path / "x.npy", tmp_path / "y.npy", *paths]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(len(some)), "bigkernel", "lazy_loader", "numpy"]


REFUSED = {
    "FourierMap": bk.KernelRidge(WIDE, landmarks="fourier", **DRAWN),
    "chi2": bk.KernelRidge(WIDE + bk.Pairwise("chi2"), **DRAWN),
    "'fourier'": make_pipeline(bk.RandomFourier(n_components=4, random_state=0), bk.LinearRegression()),
    "StandardScaler": make_pipeline(StandardScaler(), bk.LinearRegression()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_more_than_numpy_is_refused_by_name(name):
    with pytest.raises(ConfigError, match=name):
        bk.Predictor.of(REFUSED[name].fit(X, Y))


def test_what_a_model_has_not_is_said():
    numbers = bk.LinearRegression().fit(X, Y).predictor()
    with pytest.raises(ConfigError, match="predicts numbers"):
        numbers.decision_function(X)
    with pytest.raises(ConfigError, match="no probabilities"):
        numbers.predict_proba(X)


ROWS = {
    "NaN or infinity, the first are \\[1\\]": np.where(np.arange(90)[:, None] == 1, np.nan, X),
    "9 features, one at least, found shape \\(90, 8\\)": X[:, 1:],
    "found shape \\(0, 9\\)": X[:0],
    "sparse": sparse.csr_matrix(X),
    "matrix of numbers": np.full((1, D), "a"),
    "they are complex": X + 1j,
}


@pytest.mark.parametrize("message", ROWS)
def test_rows_that_do_not_do_are_refused(classifier, message):
    with pytest.raises(DataError, match=message):
        classifier.predictor().predict(ROWS[message])


def test_columns_of_a_frame_are_those_of_the_fit(tmp_path):
    frame = pd.DataFrame(X, columns=list("abcdefghi"))
    predictor = stored((model := bk.KernelRidge(WIDE, **DRAWN).fit(frame, Y)).predictor(), tmp_path / "p")
    assert_array_equal(predictor.predict(frame), model.predict(frame))
    with pytest.raises(DataError, match="columns of the fit, a, b, c"):
        predictor.predict(frame[frame.columns[::-1]])


def test_a_file_is_of_the_safetensors_format(classifier, path):
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    entry = header["expansion.features.landmarks"]
    assert entry["dtype"] == "F64"
    found = np.frombuffer(data[slice(*entry["data_offsets"])]).reshape(entry["shape"])
    assert_array_equal(found, classifier.landmarks_)
    assert all(isinstance(words, str) for words in header["__metadata__"].values())


def test_every_damaged_byte_and_every_cut_is_seen(path, classifier):
    content = path.read_bytes()
    for place in range(0, len(content), 5):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
        with pytest.raises(ModelRejected, match=r"a\.predictor"):
            bk.Predictor.load(path)
    for wrong in (b"", content[:7], content[:-1], content + b"\0"):
        path.write_bytes(wrong)
        with pytest.raises(ModelRejected):
            bk.Predictor.load(path)
    path.write_bytes(content)
    assert_array_equal(bk.Predictor.load(path).predict(X), classifier.predict(X))


def test_a_file_that_holds_or_asks_for_more_than_the_limit_is_refused(path):
    with pytest.raises(ModelRejected, match="limit of 100"):
        bk.Predictor.load(path, limit_bytes=100)
    bk.Predictor.load(path, limit_bytes=100_000)
    kernel = {"kernel": "linear", "params": {}}
    for _ in range(8):
        kernel = {"kernel": "sum", "params": {"k1": kernel, "k2": kernel}}
    forge(path, in_values(*OF_MAP, "kernel", value=kernel))
    with pytest.raises(ModelRejected, match="limit of 100,000"):
        bk.Predictor.load(path, limit_bytes=100_000)


def forge(path, change):
    """Change header, description and arrays as a forger would, with sums that are right."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + length]), bytearray(content[8 + length :])
    words = header["__metadata__"]
    about = json.loads(words["about"])
    change(header, about, data)
    for name in about["crc32"]:
        about["crc32"][name] = zlib.crc32(data[slice(*header[name]["data_offsets"])]) if name in header else 0
    del words["crc32"]
    words["about"] = json.dumps(about)
    words["crc32"] = str(zlib.crc32(json.dumps(header).encode()))
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)


def in_values(*keys, value):
    def change(header, about, data):
        part = about["values"]
        for key in keys[:-1]:
            part = part[key]
        part[keys[-1]] = value

    return change


OF_MAP, OF_EXPANSION = ("expansion", "parts", "features", "parts"), ("expansion", "parts")
FORGED = {
    "an unknown part": (in_values("expansion", "is", value="Chunk"), "unknown part"),
    "an unknown kernel": (in_values(*OF_MAP, "kernel", "kernel", value="os.system"), "unknown kernel"),
    "another number of features": (in_values("n_features", value=8), "expected 8 features"),
    "a missing value": (lambda h, about, d: about["values"].pop("flat"), "not those of a predictor"),
    "labels twice": (in_values(*OF_EXPANSION, "classes", "labels", value=["a", "a", "b"]), "different labels"),
    "lists as labels": (in_values(*OF_EXPANSION, "classes", "labels", value=[["a"] * 999] * 3), "<U. that are list"),
    "long labels": (in_values(*OF_EXPANSION, "classes", "dtype", value="<U99999999"), "3 labels"),
    "a long label": (in_values(*OF_EXPANSION, "classes", "labels", value=["a" * 9_000_000, "b", "c"]), "3 labels"),
    "other labels": (in_values(*OF_EXPANSION, "classes", "dtype", value="O"), "labels of object"),
    "another format": (lambda h, *_: h["__metadata__"].update(format="bigkernel predictor 9"), "this version reads"),
    "a larger array": (lambda h, *_: h["expansion.coef"].update(shape=[10**9, 10**9]), "do not fit"),
    "an exchanged shape": (lambda h, *_: h["expansion.coef"].update(shape=[3, 12]), "coefficients"),
    "an array for a vector": (lambda h, *_: h["expansion.intercept"].update(shape=[3, 1]), r"intercepts \(3, 1\)"),
    "a width without a square": (in_values(*OF_MAP, "kernel", "params", "sigma", value=1e-308), "finite sigma above 0"),
    "a width whose square is 0": (
        in_values(*OF_MAP, "kernel", "params", "sigma", value=1e-159),
        "not a sound predictor",
    ),
    "a width that is none yet": (in_values(*OF_MAP, "kernel", "params", "sigma", value="scale"), "expected numbers"),
    "an infinite value": (
        in_values(*OF_MAP, "kernel", value={"kernel": "polynomial", "params": {"gamma": 1.0, "coef0": 1e300}}),
        "not finite",
    ),
    "a number for yes": (in_values(*OF_EXPANSION, "logits", value=1), "Predictor.logits: expected bool, found 1"),
    "NaN": (lambda h, a, data: data.__setitem__(slice(0, 8), np.float64(np.nan).tobytes()), "finite"),
}


@pytest.mark.parametrize("change, message", FORGED.values(), ids=FORGED)
def test_a_forged_file_is_refused_in_words(path, change, message):
    forge(path, lambda *_: None)
    assert bk.Predictor.load(path).predict(X).shape == (90,)
    forge(path, change)
    with pytest.raises(ModelRejected, match=message):
        bk.Predictor.load(path)


PARTS = ("row_maps", 0, "parts")
FORGED_MAPS = {
    "directions of others": (in_values("row_maps", 1, "parts", "centre", "array", value=None), "not a sound predictor"),
    "a number too few": (in_values(*PARTS, "scales", value=[1.0]), "a number for each"),
    "words for numbers": (in_values(*PARTS, "scales", value=["a", "b"]), "scales: expected tuple"),
    "another image": (
        in_values(*PARTS, "chains", 0, 0, "parts", "layers", 0, "parts", "grid", "parts", "height", value=4),
        "expected rows of 4×3|each takes the cells",
    ),
    "a number too large": (in_values(*PARTS, "scales", value=[1.0, 10**400]), "scales: expected tuple"),
    "a number that is none": (in_values(*PARTS, "scales", value=[1.0, None]), "scales: expected tuple"),
    "a width of patches": (
        in_values(*PARTS, "chains", 0, 0, "parts", "layers", 0, "parts", "sigma", value=1e-160),
        "sigma",
    ),
    "a half step": (
        in_values(*PARTS, "chains", 0, 0, "parts", "layers", 0, "parts", "grid", "parts", "subsampling", value=1.5),
        "PatchGrid.subsampling: expected int",
    ),
    "labels for yes": (
        in_values(*PARTS, "chains", 0, 0, "parts", "unit_norm", value={"labels": [1, 2], "dtype": "<i8"}),
        "PatchFeatures.unit_norm: expected bool",
    ),
    "a chain that is none": (in_values(*PARTS, "chains", 1, value=7), "unknown array"),
}
FORGED_FEATURES = {
    "a width without a square": (
        in_values(
            "row_maps", 0, "parts", "predictor", "parts", "features", "parts", "kernel", "params", "sigma", value=1e-159
        ),
        "not a sound predictor",
    ),
    "an array for a vector": (
        lambda h, *_: h["row_maps.0.predictor.intercept"].update(shape=[9, 1]),
        r"intercepts \(9, 1\)",
    ),
    "a shift of another shape": (lambda h, *_: h["expansion.features.shift"].update(shape=[9, 1]), r"a shift \(9,\)"),
    "a landmark out of range": (
        lambda h, a, data: data.__setitem__(
            slice(at := h["row_maps.0.predictor.features.landmarks"]["data_offsets"][0], at + 8),
            np.float64(1e300).tobytes(),
        ),
        "not a sound predictor",
    ),
}


@pytest.mark.parametrize(
    "name, change, message",
    [("learnt features", *forged) for forged in FORGED_MAPS.values()]
    + [("whitened", *forged) for forged in FORGED_FEATURES.values()],
    ids=[*FORGED_MAPS, *FORGED_FEATURES],
)
def test_forged_transforms_are_refused_in_words(tmp_path, name, change, message):
    model, target = MODELS[name]
    bk.Predictor.of(model.fit(X, target)).save(tmp_path / "p")
    forge(tmp_path / "p", change)
    with pytest.raises(ModelRejected, match=message):
        bk.Predictor.load(tmp_path / "p")


def test_files_are_replaced_only_where_they_are_ours_and_it_is_asked(path, classifier, tmp_path):
    (tmp_path / "notes").write_text("mine")
    classifier.predictor().save(path, overwrite=True)
    for target, overwrite, said in ((path, False, "already exists"), (tmp_path / "notes", True, "predictor of ours")):
        with pytest.raises(DataError, match=said):
            classifier.predictor().save(target, overwrite=overwrite)
    with pytest.raises(DataError, match="notes"):
        classifier.predictor().save(tmp_path / "notes" / "b.predictor")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.predictor", "notes"]
    classifier.predictor().save(tmp_path / "new" / "folder" / "b.predictor")
    assert bk.Predictor.load(tmp_path / "new" / "folder" / "b.predictor").predict(X).shape == (90,)
    with pytest.raises(DataError, match="found a directory"):
        bk.Predictor.load(tmp_path)


def test_the_command_makes_the_file_of_a_model(run, tmp_path):
    chain = MODELS["a chain"][0].fit(X, Y[:, 1])
    bk.save_model(chain, tmp_path / "a.model")
    run("export", tmp_path / "a.model", file := tmp_path / "a.predictor")
    assert_array_equal(bk.Predictor.load(file).predict(X), chain.predict(X))
    run("export", tmp_path / "a.model", file, code=3)
    stated, loaded = json.loads(run("info", file, "--json").stdout), bk.Predictor.load(file)
    assert (stated["kind"], stated["features"]) == ("predictor", loaded.n_features)
    assert stated.get("landmarks") == getattr(getattr(loaded.expansion.features, "landmarks", None), "shape", [None])[0]
    assert stated["row_maps"] == [row_map.name for row_map in loaded.row_maps]
    assert stated.get("classes") == (None if loaded.classes is None else loaded.classes.tolist())
    assert stated["stored_bytes"] == file.stat().st_size
    checked = json.loads(run("check", file, "--json").stdout)
    assert checked["sound"]
    assert checked["bytes_read"] == file.stat().st_size
    content = file.read_bytes()
    for broken in (content[:-1], content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]):
        (damaged := tmp_path / "damaged.predictor").write_bytes(broken)
        for command in ("info", "check"):
            assert "damaged.predictor" in run(command, damaged, code=7).stderr
    found = json.loads(run("export", tmp_path / "a.model", file, "--overwrite", "--json").stdout)
    assert (found["features"], found["bytes"]) == (D, file.stat().st_size)
