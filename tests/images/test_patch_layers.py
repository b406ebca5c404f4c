"""Kernel features of patches: equal to the oracle, the same bits from any chunks, and images that are refused."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
import zarr
from numpy.testing import assert_allclose, assert_array_equal
from reference_images import patch_features
from scipy import linalg
from threadpoolctl import threadpool_limits

from bigkernel import ConvolutionalNystroem, executing, load_model, save_model
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.errors import ConfigError, DataError
from bigkernel.images.patch_layers import PatchFeatures, PatchGrid, PatchLayer

N, SHAPE = 120, (9, 11)
COLOURED = (*SHAPE, 3)
N_PIXELS = 9 * 11


def pictures(n: int, *shape: int) -> np.ndarray:
    """Noise with common edges, (n, h·w·c)."""
    rng = np.random.default_rng(8)
    x = rng.uniform(size=(n, *shape)) ** 3
    x[:, shape[0] // 2 :] += rng.uniform(size=(n, 1, *shape[1:]))
    return x.reshape(n, -1)


X = pictures(N, *COLOURED)
LEARNT = {"patch_size": (3, 2), "n_landmarks": (9, 5), "subsampling": (2, 3), "sigma": (0.6, 0.4), "n_patches": 400}


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("shape, first", [((9, 11, 1), (3, 2, 6)), ((8, 8, 3), (4, 3, 11)), ((6, 13, 2), (2, 1, 3))])
@pytest.mark.parametrize("dtype, atol", [(np.float64, 1e-12), (np.float32, 2e-5)])
def test_features_of_patches_equal_the_oracle(rng, shape, first, count, dtype, atol):
    x, layers, described, image = pictures(3, *shape), [], [], shape
    for place, (patch, apart, m) in enumerate((first, (2, 2, 4))[:count]):
        grid = PatchGrid(*image, patch=patch, subsampling=apart, centred=not place)
        Z = rng.normal(size=(m, grid.width))
        Z /= np.linalg.norm(Z, axis=1, keepdims=True)
        core = np.exp(-((Z[:, None] - Z) ** 2).sum(axis=2) / (2 * 0.7**2)) + 0.1 * np.eye(m)
        W = np.real(linalg.inv(linalg.sqrtm(core)))
        layers.append(PatchLayer(grid, 0.7, Z, W))
        described.append({"patch": patch, "apart": apart, "sigma": 0.7, "Z": Z, "W": W, "centred": not place})
        image = (*grid.cells, m)
    x[2] = 0.3  # of no contrast
    row_map = PatchFeatures(tuple(layers))
    result = row_map.apply(x.astype(dtype))
    assert result.dtype == dtype
    assert result.shape == (3, row_map.width(x.shape[1]))
    expected = np.stack([patch_features(one.astype(dtype).astype(float).reshape(shape), described) for one in x])
    assert_allclose(result[:2], expected[:2], atol=atol)
    assert np.isfinite(result).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("patch", [2, 7])
def test_an_image_of_one_colour_has_no_features(dtype, patch):
    row_map = ConvolutionalNystroem(COLOURED, patch_size=patch, n_landmarks=5, random_state=0).fit(X)._row_map()
    colours = np.random.default_rng(1).uniform(-1, 1, size=(60, 3))  # their means over a patch are rounded
    assert not row_map.apply(np.tile(colours, N_PIXELS).astype(dtype)).any()
    faint = np.full((1, X.shape[1]), 0.7)
    faint[0, X.shape[1] // 2] += 1 / 255
    assert_allclose(np.linalg.norm(row_map.apply(faint.astype(dtype))), 1, rtol=1e-5)


def test_bits_do_not_depend_on_the_threads_of_blas():
    row_map = ConvolutionalNystroem(COLOURED, random_state=0, **LEARNT).fit(X)._row_map()
    for dtype in (np.float32, np.float64):
        with threadpool_limits(1, user_api="blas"):
            alone = row_map.apply(X.astype(dtype))
        with threadpool_limits(2, user_api="blas"):
            assert_array_equal(row_map.apply(X.astype(dtype)), alone)


@pytest.mark.usefixtures("small_steps")
def test_any_cut_and_executor_learn_the_same_bits(tmp_path):
    def learnt(given, executor="serial", **options):
        with executing(executor, **options):
            model = ConvolutionalNystroem(COLOURED, random_state=3, **LEARNT).fit(given)
        assert (model.landmarks_.shape, model.second_landmarks_.shape) == ((9, 27), (5, 36))
        return model

    whole = learnt(X)
    store = zarr.create_array(tmp_path / "x.zarr", chunks=(17, X.shape[1]), data=X)
    result = [learnt(da.from_array(X, chunks=(33, 50))), learnt(store, "threads"), learnt(as_rows(X), "threads")]
    result += [learnt(store, "threads", run=tmp_path / "run"), learnt(store, run=tmp_path / "run", resume=True)]
    for other in result:
        for name in ("landmarks_", "whitening_", "second_landmarks_", "second_whitening_"):
            assert_array_equal(getattr(other, name), getattr(whole, name))
    mapped = whole.transform(store)
    assert isinstance(mapped, Rows)
    block = mapped.read(0, N).load(slice(None), mapped.shape[1], np.float64)
    assert_array_equal(block, whole.transform(X))
    save_model(whole, tmp_path / "model")
    assert_array_equal(load_model(tmp_path / "model").transform(X), whole.transform(X))


def test_landmarks_are_directions_of_patches_and_whitening_is_of_their_kernel():
    model = ConvolutionalNystroem(COLOURED, patch_size=3, n_landmarks=9, sigma=0.6, random_state=0).fit(X)
    Z, W = model.landmarks_, model.whitening_
    assert_allclose(np.linalg.norm(Z, axis=1), 1, rtol=1e-12)
    assert_allclose(Z.reshape(9, 9, 3).mean(axis=1), 0, atol=1e-12)  # of centred patches
    core = np.exp(-((Z[:, None] - Z) ** 2).sum(axis=2) / (2 * 0.6**2)) + 1e-3 * np.eye(9)
    assert_allclose(W @ core @ W, np.eye(9), atol=1e-8)
    fewer = np.resize(X[:4, :9], (30, 9))  # patches of no more than four directions
    assert len(ConvolutionalNystroem(patch_size=3, n_landmarks=9, random_state=0).fit(fewer).landmarks_) == 4


def test_skipped_rows_do_not_count():
    bad = X.copy()
    bad[5] = np.nan
    model = ConvolutionalNystroem(COLOURED, random_state=0, **LEARNT).fit(as_rows(bad).skip_bad_rows())
    assert np.isfinite(model.landmarks_).all()
    blank = X.copy()
    blank[5] = 0
    assert_array_equal(
        model.landmarks_, ConvolutionalNystroem(COLOURED, random_state=0, **LEARNT).fit(blank).landmarks_
    )


@pytest.mark.parametrize(
    "options, error, text",
    [
        ({"patch_size": 10}, DataError, "patches of 10×10 pixels do not fit in images of 9×11"),
        ({"patch_size": (5, 4)}, DataError, "patches of 4×4 pixels do not fit in images of 2×2"),
        ({"image_shape": (9, 11)}, DataError, "9×11 pixels of 1 channels are 99 values, but rows have 297"),
        ({"image_shape": (297,)}, ConfigError, r"image_shape: expected \(height, width\) or"),
        ({"image_shape": None}, DataError, "rows of 297 features are not square images"),
        ({"sigma": (1, 2, 3)}, ConfigError, "sigma: expected one value, or one for each of at most 2 layers"),
        ({"patch_size": (3, 2.5)}, ConfigError, "patch_size: expected whole numbers above 0"),
        ({"sigma": (0.5, 0)}, ConfigError, "sigma: expected numbers above 0"),
        ({"sigma": -1.0}, ValueError, "'sigma' parameter of ConvolutionalNystroem"),
    ],
)
def test_invalid_parameters_are_refused_by_name(options, error, text):
    with pytest.raises(error, match=text):
        ConvolutionalNystroem(**{"image_shape": COLOURED, "patch_size": 3} | options).fit(X)


def test_images_without_contrast_are_refused_by_fit_and_give_zeros():
    with pytest.raises(DataError, match=r"all patches of 3×3 pixels in 120 rows are constant"):
        ConvolutionalNystroem(COLOURED, patch_size=3).fit(np.full_like(X, 0.1))
    model = ConvolutionalNystroem(COLOURED, patch_size=3, random_state=0).fit(X)
    # rounding is no contrast: what it leaves of the mean of equal pixels is not enlarged to length 1
    assert_array_equal(model.transform(np.zeros_like(X)), 0)
    assert np.isfinite(model.transform(np.full_like(X, 0.1))).all()
    with pytest.raises(ValueError, match=r"296 features.*297 features"):
        model.transform(X[:, :-1])
