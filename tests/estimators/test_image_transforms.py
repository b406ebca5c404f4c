"""Moment normalisation and oriented strokes as transformers: alike on every kind of input, named, refused, saved.

scikit-learn's own suite of checks is no use here: its data are no images (10 features, 3, 1).
"""

import dask.array as da
import numpy as np
import pytest
import zarr
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline

from bigkernel import Gaussian, KernelRidgeClassifier, MomentNormalizer, OrientationFeatures, load_model, save_model
from bigkernel.data.corpus import CorpusInfo, CorpusWriter, open_corpus
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.errors import ConfigError, DataError
from bigkernel.images.pose_and_strokes import MomentNormalise, Orientations

N, SHAPE = 90, (6, 9)
D = SHAPE[0] * SHAPE[1]
rng = np.random.default_rng(5)
LABELS = np.arange(N) % 3
X = np.zeros((N, *SHAPE))
for place, label in enumerate(LABELS):
    X[place, 1 + label : 4 + label, 2:7] = rng.uniform(0.2, 1, (3, 5))
X[7] = 0
X = X.reshape(N, D)
KINDS = ["numpy", "dask", "zarr", "corpus", "rows"]
TRANSFORMS = {
    "moments": (MomentNormalizer, MomentNormalise(*SHAPE)),
    "orientations": (OrientationFeatures, Orientations(*SHAPE)),
}
every_transform = pytest.mark.parametrize("ours, row_map", TRANSFORMS.values(), ids=TRANSFORMS)

pytestmark = pytest.mark.usefixtures("small_steps")


@pytest.fixture
def build(tmp_path):
    """The images as one of the kinds of input."""

    def make(kind):
        if kind == "dask":
            return da.from_array(X, chunks=(33, 20))
        if kind == "zarr":
            return zarr.create_array(tmp_path / "x.zarr", chunks=(17, D), overwrite=True, data=X)
        if kind == "corpus":
            info = CorpusInfo("images", classes=(0, 1, 2), image_shape=SHAPE)
            with CorpusWriter(
                tmp_path / "c", n_features=D, dtype=X.dtype, columns={"y": np.int64}, info=info, overwrite=True
            ) as writer:
                writer.append(x=X, y=LABELS)
            return open_corpus(tmp_path / "c")
        return as_rows(X) if kind == "rows" else X

    return make


def plain(X):
    """What a transform gave, as a NumPy array."""
    return X.read(0, len(X)).load(slice(None), X.shape[1], np.float64) if isinstance(X, Rows) else np.asarray(X)


@pytest.mark.parametrize("kind", KINDS)
@every_transform
def test_every_kind_of_input_is_mapped_to_the_same_bits(build, ours, row_map, kind):
    given = build(kind)
    mapped = ours(image_shape=SHAPE).fit(given).transform(given)
    assert mapped.shape == (N, row_map.width(D))
    assert_array_equal(plain(mapped), row_map.apply(X.copy()))
    assert isinstance(mapped, {"numpy": np.ndarray, "dask": da.Array}.get(kind, Rows))


@every_transform
def test_a_corpus_says_the_shape_of_its_images(build, ours, row_map):
    model = ours().fit(build("corpus"))
    assert (model.image_height_, model.image_width_) == SHAPE
    assert_array_equal(model.transform(X), row_map.apply(X.copy()))


@every_transform
def test_images_are_squares_where_nobody_says_otherwise(ours, row_map):
    model = ours().fit(X[:, :49])
    assert (model.image_height_, model.image_width_) == (7, 7)
    with pytest.raises(DataError, match="rows of 54 features are no square images; give image_shape"):
        ours().fit(X)


@every_transform
def test_a_shape_that_does_not_fit_is_refused(ours, row_map):
    with pytest.raises(DataError, match="image_shape 5×9 is 45 pixels, but rows have 54"):
        ours(image_shape=(5, 9)).fit(X)
    for shape in ((54,), (6, 9, 1), (0, 54), (-6, -9), (5.4, 10)):
        with pytest.raises(ConfigError, match=r"image_shape: expected \(height, width\) in pixels"):
            ours(image_shape=shape).fit(X)
    model = ours(image_shape=SHAPE).fit(X)
    with pytest.raises(ValueError, match=r"45 features.*54 features"):
        model.transform(X[:, :45])
    with pytest.raises(NotFittedError):
        ours().transform(X)


@pytest.mark.parametrize(
    "dtype, expected", [(np.uint8, np.float32), (np.float32, np.float32), (np.float64, np.float64)]
)
@every_transform
def test_results_are_floating_point_and_the_input_stays_as_it_was(ours, row_map, dtype, expected):
    images = (255 * X).astype(dtype)
    before = images.copy()
    mapped = ours(image_shape=SHAPE).fit_transform(images)
    assert mapped.dtype == expected
    assert_array_equal(images, before)
    assert_allclose(mapped, row_map.apply(before.astype(np.float64)), atol=1e-3)


@every_transform
def test_a_transformer_keeps_the_manners_of_scikit_learn(ours, row_map):
    model = clone(ours(image_shape=SHAPE)).fit(X)
    assert model.n_features_in_ == D
    names = model.get_feature_names_out()
    assert len(set(names)) == row_map.width(D)
    framed = model.set_output(transform="default").transform(X)
    assert_array_equal(framed, model.transform(X))
    assert ours(**model.get_params()).get_params() == model.get_params()


@pytest.mark.parametrize(
    "options", [{"spread": 0}, {"spread": 2.0}, {"breadth": -0.1}, {"aspect": 1.5}, {"aspect": "x"}]
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=f"'{next(iter(options))}' parameter of MomentNormalizer"):
        MomentNormalizer(image_shape=SHAPE, **options).fit(X)


def test_a_pipeline_learns_from_a_corpus_what_it_learns_from_the_array(build):
    def pipeline():
        model = KernelRidgeClassifier(Gaussian(0.5), alpha=0.1, n_landmarks=20, random_state=0, dtype="float64")
        return make_pipeline(MomentNormalizer(SHAPE, spread=0.3), OrientationFeatures(SHAPE), model)

    from_array = pipeline().fit(X, LABELS)
    from_corpus = pipeline().fit(build("corpus"))
    assert_allclose(from_corpus.decision_function(X), from_array.decision_function(X), atol=1e-9)


def test_a_saved_pipeline_gives_the_same_images_again(tmp_path):
    model = make_pipeline(MomentNormalizer(SHAPE, spread=0.3), OrientationFeatures(SHAPE)).fit(X)
    squares = make_pipeline(MomentNormalizer()).fit(X[:, :49])
    for place, (fitted, rows) in enumerate(((model, X), (squares, X[:, :49]))):
        save_model(fitted, tmp_path / str(place))
        again = load_model(tmp_path / str(place))
        assert_array_equal(again.transform(rows), fitted.transform(rows))
        save_model(again, tmp_path / f"{place} again")
        assert_array_equal(load_model(tmp_path / f"{place} again").transform(rows), fitted.transform(rows))
