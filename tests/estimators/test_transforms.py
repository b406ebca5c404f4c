"""Row transforms against scikit-learn and plain row maps, with every kind of input, alone and in pipelines."""

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from kinds import KINDS, of_kind, plain
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import config_context, preprocessing
from sklearn.base import clone
from sklearn.pipeline import Pipeline, make_pipeline
from threadpoolctl import threadpool_limits

import bigkernel as bk
from bigkernel.engine.rows import Rows
from bigkernel.errors import ConfigError, DataError
from bigkernel.streaming.images import MomentNormalise, Orientations
from bigkernel.streaming.row_maps import LinearMap

rng = np.random.default_rng(7)
N, D, SHAPE = 120, 4, (6, 9)
X = rng.normal(size=(N, D)) * [1, 10, 0.1, 3] + [0, 5, -2, 100]
X[3] = 0
LABELS = rng.integers(0, 3, N)
WEIGHT = rng.uniform(0, 2, N)
IMAGES = np.zeros((N, *SHAPE))
for place, label in enumerate(LABELS):
    IMAGES[place, 1 + label : 4 + label, 2:7] = 255 * rng.uniform(0.2, 1, (3, 5))
IMAGES[7] = 0
IMAGES = IMAGES.reshape(N, -1)


def mapped_by(function):
    """Return a transformer of scikit-learn that only applies a function."""
    return lambda A: preprocessing.FunctionTransformer(function).fit(A)


def axes(A):
    """Return principal axes (d, d) and deviations by a singular value decomposition."""
    _, values, axes = np.linalg.svd(A - A.mean(axis=0), full_matrices=False)
    return axes.T * np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)]), values / np.sqrt(len(A))


def whitened(A):
    """Return a transformer to the first three principal components, of variance 1."""
    (V, deviations), mean = axes(A), A.mean(axis=0)
    return mapped_by(lambda X: (X - mean) @ V[:, :3] / deviations[:3])(A)


def side_by_side(**weights):
    chain = make_pipeline(bk.UnitNormalizer(), bk.Projector(2))
    return bk.RowUnion(
        [("z", bk.Standardizer()), ("chain", chain), ("plain", bk.Rescaler(2.0))], transformer_weights=weights
    )


def alone(A):
    """Return a transformer that concatenates the transforms of `side_by_side`."""
    z, chain = bk.Standardizer().fit(A), make_pipeline(bk.UnitNormalizer(), bk.Projector(2)).fit(A)
    return mapped_by(lambda X: np.hstack([z.transform(X), 0.25 * chain.transform(X), -2.0 * X]))(A)


# ours, theirs, rows, and the tolerances in float64 and float32
TRANSFORMS = {
    "rescaler": (lambda: bk.Rescaler(0.25), mapped_by(lambda X: X * 0.25), X, 1e-12, 1e-5),
    "unit norm": (bk.UnitNormalizer, lambda A: preprocessing.Normalizer().fit(A), X, 1e-12, 1e-5),
    "standardizer": (bk.Standardizer, lambda A: preprocessing.StandardScaler().fit(A), X, 1e-12, 1e-5),
    "projector": (lambda: bk.Projector(3, whiten=True), whitened, X, 1e-12, 1e-5),
    "union": (lambda: side_by_side(chain=0.25, plain=-1.0), alone, X, 1e-12, 1e-5),
    "moments": (
        lambda: bk.MomentNormalizer(SHAPE), mapped_by(lambda X: MomentNormalise(*SHAPE).apply(X.copy())),
        IMAGES, 0, 1e-3,
    ),
    "orientations": (
        lambda: bk.OrientationFeatures(SHAPE), mapped_by(lambda X: Orientations(*SHAPE).apply(X.copy())),
        IMAGES, 0, 1e-3,
    ),
}  # fmt: skip
every_kind = pytest.mark.parametrize("kind", KINDS)
every_transform = pytest.mark.parametrize("ours, theirs, rows, exact, narrow", TRANSFORMS.values(), ids=TRANSFORMS)
of_images = pytest.mark.parametrize("ours", [bk.MomentNormalizer, bk.OrientationFeatures])

pytestmark = pytest.mark.usefixtures("small_steps")


@pytest.fixture
def build(tmp_path, make_corpus):
    """Return a function that gives rows as one of the kinds of input, a corpus with labels."""

    def make(kind, X):
        labels = {"y": LABELS, "classes": (0, 1, 2)} if kind == "corpus" else {}
        return of_kind(kind, X, make_corpus, tmp_path, **labels)

    return make


@every_kind
@every_transform
def test_every_kind_of_input_is_mapped_as_by_scikit_learn(build, ours, theirs, rows, exact, narrow, kind):
    given = build(kind, rows)
    mapped = ours().fit(given).transform(given)
    expected = theirs(rows).transform(rows)
    assert mapped.shape == expected.shape
    assert_allclose(plain(mapped), expected, rtol=exact, atol=exact)
    assert isinstance(mapped, {"numpy": np.ndarray, "dask": da.Array}.get(kind, Rows))
    with config_context(transform_output="pandas"):  # of rows in memory alone
        framed = ours().fit_transform(given)
    assert type(framed) is (pd.DataFrame if kind == "numpy" else type(mapped))
    assert_array_equal(plain(framed), plain(mapped))


@every_transform
def test_a_row_is_mapped_independently_of_the_others(ours, theirs, rows, exact, narrow):
    order, model = rng.permutation(N), ours().fit(rows)
    assert_array_equal(model.transform(rows[order]), model.transform(rows)[order])
    assert_array_equal(model.transform(rows[5:6]), model.transform(rows)[5:6])


@pytest.mark.parametrize("dtype, expected", [(np.uint8, np.float32), (np.float32, np.float32), (int, np.float64)])
@every_transform
def test_results_are_floating_point_and_the_input_is_unchanged(ours, theirs, rows, exact, narrow, dtype, expected):
    rows = np.abs(rows).astype(dtype)
    before = rows.copy()
    mapped = ours().fit(rows).transform(rows)
    assert mapped.dtype == expected
    assert ours().fit(da.from_array(rows)).transform(da.from_array(rows)).dtype == expected
    assert_array_equal(rows, before)
    assert_allclose(mapped, theirs(rows.astype(float)).transform(rows.astype(float)), rtol=1e-4, atol=narrow)


@pytest.mark.parametrize("kind", ["numpy", "corpus"])
@every_transform
def test_another_number_of_features_is_refused(build, ours, theirs, rows, exact, narrow, kind):
    model, d = ours().fit(rows), rows.shape[1]
    with pytest.raises(ValueError, match=rf"{d - 1} features.*{d} features"):
        model.transform(build(kind, rows[:, :-1]))


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["", "weighted"])
@every_kind
def test_means_and_deviations_match_scikit_learn(build, kind, weight):
    ours = bk.Standardizer().fit(build(kind, X), sample_weight=weight)
    theirs = preprocessing.StandardScaler().fit(X, sample_weight=weight)
    assert_allclose(ours.mean_, theirs.mean_, rtol=1e-12 if weight is not None else 1e-13)
    assert_allclose(ours.scale_, theirs.scale_, rtol=1e-12)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1e6 + 0.1, -1e-3])
def test_a_constant_feature_is_centred_and_not_scaled(value):
    constant = np.column_stack([np.full(N, value), X])
    model = bk.Standardizer().fit(constant)
    assert model.scale_[0] == 1
    assert_allclose(model.transform(constant)[:, 0], 0, atol=1e-9)


APART = np.concatenate([rng.normal(size=(300, 2)), 1e4 + rng.normal(size=(300, 2))])


@pytest.mark.parametrize("rows, rtol", [(X + 1e3, 1e-8), (X + 1e6, 1e-8), (APART, 1e-12)], ids=["1e3", "1e6", "half"])
def test_an_offset_costs_no_digits_of_the_deviation(rows, rtol):
    assert_allclose(bk.Standardizer().fit(rows).scale_, rows.std(axis=0), rtol=rtol)


def test_a_dask_array_is_mapped_lazily():
    def refuse(block):
        raise AssertionError("computed")

    lazy = da.from_array(X, chunks=(30, D)).map_blocks(refuse, dtype=float, meta=np.empty((0, 0)))
    mapped = bk.UnitNormalizer().fit(lazy).transform(lazy)
    assert mapped.shape == X.shape
    assert mapped.chunks == lazy.chunks
    with pytest.raises(AssertionError, match="computed"):
        mapped.compute()


def pipeline(estimator):
    return Pipeline([("standard", bk.Standardizer()), ("unit", bk.UnitNormalizer()), ("model", estimator)])


def strokes(estimator):
    return make_pipeline(bk.MomentNormalizer(SHAPE, spread=0.3), bk.OrientationFeatures(SHAPE), estimator)


@pytest.mark.parametrize(
    "make, rows, tolerance",
    [(pipeline, X, 1e-10), (pipeline, X.astype(np.float32), 1e-5), (strokes, IMAGES, 1e-9)],
    ids=["float64", "float32", "images"],
)
def test_a_pipeline_predicts_the_same_from_every_kind_of_input(build, make, rows, tolerance):
    expected = None
    for kind in KINDS:
        model = make(bk.KernelRidge(bk.Gaussian(0.9), alpha=0.5, n_landmarks=12, random_state=0, dtype="float64"))
        given = build(kind, rows)
        values = model.fit(given, LABELS * 1.0).predict(given)
        assert isinstance(values, da.Array) == (kind not in ("numpy", "rows"))
        expected = np.asarray(values) if expected is None else expected
        assert_allclose(np.asarray(values), expected, atol=tolerance, err_msg=kind)
        framed = clone(model).set_output(transform="pandas").fit(given, LABELS * 1.0)
        for again in (given, rows):
            assert_allclose(np.asarray(framed.predict(again)), expected, atol=tolerance, err_msg=kind)
        assert [*framed[:-1].transform(rows)] == framed[:-1].get_feature_names_out().tolist()


def test_rows_that_are_not_finite_are_refused_with_their_number(build):
    bad = X.copy()
    bad[77, 1] = np.nan
    for kind in ("dask", "zarr", "corpus"):
        with pytest.raises(DataError, match="77"):
            bk.Standardizer().fit(build(kind, bad))
    with pytest.raises(DataError, match="weight"):
        bk.Standardizer().fit(build("dask", X), sample_weight=np.zeros(N))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(
    "transformer", [bk.Nystroem(n_components=5), bk.RandomFourier(n_components=6), bk.UnitNormalizer()]
)
def test_rows_that_are_not_finite_stay_so_in_lazy_arrays(transformer, bad):
    fitted, broken = transformer.fit(X), X.copy()
    broken[7, 1] = bad
    with np.errstate(invalid="ignore"):
        actual = fitted.transform(da.from_array(broken, chunks=(16, D))).compute(scheduler="synchronous")
    assert np.isnan(actual[7]).all()
    assert_allclose(np.delete(actual, 7, axis=0), np.delete(fitted.transform(X), 7, axis=0), atol=1e-12)


@pytest.mark.parametrize("offset", [0.0, 1e7])
def test_components_match_singular_vectors(rng, offset):
    A = rng.normal(size=(500, 6)) @ np.diag([9, 5, 3, 1, 0.1, 0.01]) @ np.linalg.qr(rng.normal(size=(6, 6)))[0] + offset
    V, deviations = axes(A)
    model = bk.Projector().fit(A)
    assert_allclose(model.components_, V.T, atol=1e-8 if not offset else 1e-4)
    assert_allclose(model.explained_variance_, deviations**2, rtol=1e-8 if not offset else 1e-4)
    assert_allclose(model.explained_variance_ratio_.sum(), 1)
    shares = np.cumsum(deviations**2) / (deviations**2).sum()
    for kept in range(1, 6):
        assert len(bk.Projector((shares[kept - 1] + shares[kept]) / 2).fit(A).components_) == kept + 1
    narrow = bk.Projector(4).fit_transform(A.astype(np.float32))
    assert narrow.dtype == np.float32
    assert_allclose(narrow, (A - A.mean(axis=0)) @ V[:, :4], atol=1e-4 if not offset else 20)


def test_directions_without_variance_are_dropped_and_constant_rows_refused():
    A = np.outer(np.arange(5.0), [3, 4, 0])
    model = bk.Projector(2, whiten=True).fit(A)
    assert_allclose(model.components_, [[0.6, 0.8, 0]], atol=1e-12)
    assert_allclose(model.transform(A)[:, 0], (np.arange(5) - 2) / np.sqrt(2), atol=1e-12)
    with pytest.raises(DataError, match=r"all rows are equal \(n_samples = 4\)"):
        bk.Projector().fit(np.ones((4, 3)))
    with pytest.raises(DataError, match="exceed the range of float64"):
        bk.Projector().fit(A * 1e200)
    with pytest.raises(ValueError, match="'n_components' parameter of Projector"):
        bk.Projector(1.5).fit(A)


@pytest.mark.parametrize("d, r", [(301, 37), (784, 300), (300, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_product_gives_a_row_the_same_bits_in_any_chunk(rng, d, r, dtype):
    row_map = LinearMap(rng.normal(size=d), rng.normal(size=(d, r)))
    A = rng.normal(size=(700, d)).astype(dtype)
    with threadpool_limits(1, user_api="blas"):  # as in a sweep
        whole = row_map.apply(A.copy())
        pieces = [row_map.apply(piece) for piece in np.split(A, [1, 18, 300, 651])]
        assert_array_equal(np.concatenate(pieces), whole)
        assert_array_equal(row_map.apply(A[::-1].copy()), whole[::-1])
        A[5] = np.nan
        assert_array_equal(np.delete(row_map.apply(A), 5, axis=0), np.delete(whole, 5, axis=0))
    A[5] = 0
    exact = (A - row_map.centre) @ row_map.weights
    error = np.linalg.norm(row_map.apply(A) - exact, axis=1) / np.linalg.norm(exact, axis=1).max()
    assert error.max() < 100 * np.finfo(dtype).eps


@pytest.mark.filterwarnings("ignore::bigkernel.errors.ColumnScaleWarning")  # of the plain columns beside z
def test_unions_can_be_searched_and_refuse_invalid_transforms():
    model = make_pipeline(side_by_side(z=0.5), bk.KernelRidge(n_landmarks=20, random_state=0))
    weights = [{"z": 0.5}, {"z": 0.1}]
    grid = {"rowunion__transformer_weights": weights, "rowunion__chain__projector__n_components": [1, 2]}
    search = bk.SweepSearchCV(model, {**grid, "kernelridge__alpha": [0.1, 1.0]}, cv=2).fit(X, LABELS.astype(float))
    assert len(search.cv_results_["params"]) == 8
    for given, text in (
        ([], r"expected a list of \(name, transformer\)"),
        ([("a", bk.Rescaler()), ("a", bk.Rescaler())], "expected distinct names"),
        ([("a", preprocessing.Normalizer())], "a: expected a row transform of bigkernel .*, found Normalizer"),
    ):
        with pytest.raises(ConfigError, match=text):
            bk.RowUnion(given).fit(X)
    with pytest.raises(ConfigError, match="'b' is not a name in transformer_list"):
        bk.RowUnion([("a", bk.Rescaler())], transformer_weights={"b": 1}).fit(X)
    with pytest.raises(ConfigError, match="a: expected a finite number, found nan"):
        bk.RowUnion([("a", bk.Rescaler())], transformer_weights={"a": np.nan}).fit(X)


@of_images
def test_the_image_shape_comes_from_the_corpus(ours, tmp_path):
    model = ours().fit(bk.write_corpus(tmp_path / "c", IMAGES, LABELS, image_shape=SHAPE))
    assert (model.image_height_, model.image_width_) == SHAPE
    assert_array_equal(model.transform(IMAGES), ours(SHAPE).fit(IMAGES).transform(IMAGES))


@of_images
def test_images_are_square_by_default(ours, tmp_path):
    model = ours().fit(IMAGES[:, :49])
    assert (model.image_height_, model.image_width_) == (7, 7)
    bk.save_model(model, tmp_path / "m")
    assert_array_equal(bk.load_model(tmp_path / "m").transform(IMAGES[:, :49]), model.transform(IMAGES[:, :49]))
    with pytest.raises(DataError, match="rows of 54 features are not square images; set image_shape"):
        ours().fit(IMAGES)


@of_images
def test_an_invalid_image_shape_is_refused(ours):
    with pytest.raises(DataError, match="image_shape: 5×9 pixels are 45 values, but rows have 54"):
        ours(image_shape=(5, 9)).fit(IMAGES)
    for shape in ((54,), (6, 9, 1), (0, 54), (-6, -9), (5.4, 10)):
        with pytest.raises(ConfigError, match=r"image_shape: expected \(height, width\) in pixels"):
            ours(image_shape=shape).fit(IMAGES)
