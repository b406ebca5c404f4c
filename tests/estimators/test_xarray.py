"""Datasets of xarray: dimensions, coordinates, chunks, masks and names; predictions in memory, lazily, on disk."""

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from click.testing import CliRunner
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from zarr.storage import FsspecStore

import bigkernel as bk
from bigkernel.cli import main
from bigkernel.engine.rows import as_rows
from bigkernel.errors import ConfigError, DataError

rng = np.random.default_rng(20260101)
LAT, LON = np.linspace(-60, 60, 12), np.linspace(0, 345, 15)
TIME = np.array(["2020-01-01", "2020-02-01", "2020-03-01"], "M8[ns]")
SHAPE = (3, 12, 15)
SST = 20 + 5 * rng.normal(size=SHAPE)
SST[:, 3:5, 5:9] = np.nan
SEA = xr.Dataset(
    {"sst": (("time", "lat", "lon"), SST), "depth": (("lat", "lon"), rng.uniform(size=SHAPE[1:]))},
    coords={"time": TIME, "lat": LAT, "lon": LON, "area": (("lat", "lon"), rng.uniform(size=SHAPE[1:]))},
)
HOLES = rng.random(SHAPE) < 0.3
CHL = (2 * SEA.sst + SEA.depth).rename("chl").assign_attrs(units="mg m-3", history="made")
GIVEN = CHL.where(~HOLES)
WARM = xr.where(SEA.sst > 20, 1, 0).where(SEA.sst.notnull() & ~HOLES)
NAMED = xr.where(SEA.sst > 20, "warm", "cold").where(SEA.sst.notnull() & ~HOLES, "")
CHUNKS = {"time": 1, "lat": 5, "lon": 6}
RIDGE = bk.KernelRidge(bk.Gaussian(3.0), alpha=1e-3, n_landmarks=40, random_state=0)
CLASSES = bk.KernelRidgeClassifier(bk.Gaussian(3.0), n_landmarks=40, random_state=0, probability=True)
# of features of several scales, as they are
pytestmark = [
    pytest.mark.filterwarnings("ignore::bigkernel.errors.ColumnScaleWarning"),
    pytest.mark.filterwarnings("ignore::bigkernel.errors.RankDeficiencyWarning"),
]
SOUND = np.isfinite(SST)


def matrix(data=SEA):
    """The features of all cells in C order, (n, 2)."""
    sst = data.sst.transpose("time", "lat", "lon").values
    return np.column_stack([sst.ravel(), np.broadcast_to(data.depth.values, SHAPE).ravel()])


@pytest.mark.parametrize("chunks", [None, CHUNKS, {"lat": 5}], ids=["arrays", "chunks", "some chunks"])
def test_a_fit_and_its_predictions_are_those_of_the_cells(chunks):
    sea, chl = (SEA, GIVEN) if chunks is None else (SEA.chunk(chunks), GIVEN.chunk(chunks))
    landmarks = matrix()[SOUND.ravel()][:40]
    model = clone(RIDGE).set_params(landmarks=landmarks, n_landmarks=None).fit(sea, chl)
    used = (SOUND & ~HOLES).ravel()
    expected = clone(model).fit(matrix()[used], CHL.values.ravel()[used])
    filled = np.where(SOUND.ravel()[:, None], matrix(), 0)
    predicted = model.predict(sea)
    assert (predicted.dims, predicted.name, predicted.attrs) == (("time", "lat", "lon"), "chl", {"units": "mg m-3"})
    assert_array_equal(np.isfinite(predicted), SOUND)
    assert_allclose(predicted.values[SOUND], expected.predict(filled)[SOUND.ravel()], rtol=1e-6)
    assert (predicted.chunks is None) == (chunks is None)
    assert chunks is None or predicted.chunks == sea.sst.chunks
    xr.testing.assert_equal(predicted.drop_vars([]).coords.to_dataset(), SEA.coords.to_dataset())
    assert model.skipped_rows_ == (~SOUND).sum()
    assert list(model.feature_names_in_) == ["sst", "depth"]
    assert model.score(sea, chl) == pytest.approx(expected.score(matrix()[used], CHL.values.ravel()[used]), rel=1e-6)


def test_dimensions_in_any_order_and_parts_of_the_grid():
    model = clone(RIDGE).fit(SEA, GIVEN)
    whole = model.predict(SEA)
    xr.testing.assert_allclose(
        model.predict(SEA.transpose("lon", "time", "lat")), whole.transpose("lon", "time", "lat")
    )
    part = SEA.isel(time=[2], lat=slice(3, 9), lon=4)
    xr.testing.assert_allclose(model.predict(part), whole.isel(time=[2], lat=slice(3, 9), lon=4))
    xr.testing.assert_allclose(model.predict(SEA[["depth", "sst"]].chunk(CHUNKS)), whole)
    one = SEA.isel(time=0, lat=0).drop_vars("area")
    assert model.predict(one).dims == ("lon",)
    again = clone(RIDGE).fit(SEA, GIVEN.transpose("lon", "lat", "time")).predict(SEA)
    xr.testing.assert_allclose(again, whole)
    assert_allclose(clone(RIDGE).fit(SEA, GIVEN.values).predict(SEA), whole)  # an array of the shape of the grid


def test_deviations_and_several_targets_are_datasets():
    model = clone(RIDGE).fit(SEA, GIVEN)
    both = model.predict(SEA, return_std=True)
    assert list(both.data_vars) == ["chl", "chl_std"]
    model.__dict__.pop("feature_names_in_")
    mean, std = model.predict(matrix()[SOUND.ravel()], return_std=True)
    assert_allclose(both.chl.values[SOUND], mean, rtol=1e-9)
    assert_allclose(both.chl_std.values[SOUND], std, rtol=1e-9)
    two = clone(RIDGE).fit(SEA, xr.Dataset({"chl": GIVEN, "half": GIVEN / 2}))
    predicted = two.predict(SEA.chunk(CHUNKS))
    assert list(predicted.data_vars) == ["chl", "half"]
    assert predicted.chl.attrs == {"units": "mg m-3"}
    spread = two.predict(SEA.chunk(CHUNKS), return_std=True)
    assert list(spread.data_vars) == ["chl", "half", "chl_std", "half_std"]
    xr.testing.assert_allclose(spread[["chl", "half"]], predicted)
    xr.testing.assert_allclose(predicted.half * 2, predicted.chl.rename("half").compute(), rtol=1e-6)


@pytest.mark.parametrize("chunks", [None, CHUNKS], ids=["arrays", "chunks"])
@pytest.mark.parametrize("labels", [WARM, NAMED], ids=["numbers", "names"])
def test_classes_have_labels_and_probabilities(labels, chunks):
    sea = SEA if chunks is None else SEA.chunk(chunks)
    model = clone(CLASSES).fit(sea, labels)
    assert model.classes_.tolist() == ([0, 1] if labels is WARM else ["cold", "warm"])
    predicted, used = model.predict(sea).compute(), SOUND & ~HOLES
    assert (predicted.values[used] == labels.values[used]).mean() > 0.95
    missing = predicted.isnull() if labels is WARM else predicted == ""
    assert_array_equal(missing, ~SOUND)
    shares = model.predict_proba(sea).compute()
    assert shares.dims == ("time", "lat", "lon", "class")
    assert shares.coords["class"].values.tolist() == model.classes_.tolist()
    assert_allclose(shares.sum("class").values[SOUND], 1)
    assert model.decision_function(sea).shape == SHAPE
    assert model.score(sea, labels) == pytest.approx((predicted.values[used] == labels.values[used]).mean())
    assert clone(bk.SSSLClassifier(n_landmarks=20, random_state=0)).fit(sea, labels).score(sea, labels) > 0.9


def test_coordinates_are_features_by_name(tmp_path):
    steps = [bk.OnSphere(radius=6371), bk.Periodic("time", 365.25), clone(RIDGE).set_params(kernel="matern")]
    model = make_pipeline(*steps).fit(bk.cells(SEA, ["lat", "lon", "time", "depth"]), GIVEN)
    predicted = model.predict(SEA)
    assert predicted.dims == ("lat", "lon", "time")
    assert predicted.notnull().all()  # depth has no holes
    days = (TIME - np.datetime64("1970-01-01")) / np.timedelta64(1, "D")
    at = pd.DataFrame([[LAT[2], LON[3], days[1], float(SEA.depth[2, 3])]], columns=["lat", "lon", "time", "depth"])
    assert_allclose(model.predict(at), predicted.isel(time=1, lat=2, lon=3), rtol=1e-9)
    bk.save_model(model, tmp_path / "m")
    xr.testing.assert_identical(bk.load_model(tmp_path / "m").predict(SEA), predicted)
    assert_allclose(bk.Predictor.load(tmp_path / "m").predict(at), model.predict(at))


def test_latitudes_downwards_and_longitudes_from_180_west_are_the_same_places():
    model = make_pipeline(bk.OnSphere(), clone(RIDGE)).fit(bk.cells(SEA, ["lat", "lon", "sst"]), GIVEN)
    turned = SEA.assign_coords(lon=(SEA.lon + 180) % 360 - 180).sortby("lon").sortby("lat", ascending=False)
    again = model.predict(turned).assign_coords(lon=turned.lon % 360).sortby("lon").sortby("lat")
    xr.testing.assert_allclose(again, model.predict(SEA), rtol=1e-9)


@pytest.mark.parametrize("chunks", [None, CHUNKS], ids=["arrays", "chunks"])
def test_transforms_have_the_dimensions_of_the_grid(chunks):
    sea = SEA if chunks is None else SEA.chunk(chunks)
    places = bk.cells(sea, ["lat", "lon", "sst"])
    steps = make_pipeline(bk.OnSphere(), bk.Nystroem(n_components=5, random_state=0)).fit(places)
    turned, features = (model.transform(sea).to_dataarray() for model in (steps[0], steps))
    assert features.dims == ("time", "lat", "lon", "feature")
    assert (features.chunks is None) == (chunks is None)
    assert turned.feature.values.tolist() == ["sst", "on-sphere 0", "on-sphere 1", "on-sphere 2"]
    xr.testing.assert_equal(turned.drop_vars("feature").coords.to_dataset(), SEA.coords.to_dataset())
    by_cell = features.values
    assert_array_equal(np.isfinite(by_cell).all(axis=3), SOUND)
    at = [[LAT[2], LON[3], SST[1, 2, 3]], [LAT[9], LON[0], SST[2, 9, 0]]]
    at = pd.DataFrame(at, columns=["lat", "lon", "sst"])
    assert_allclose(by_cell[[1, 2], [2, 9], [3, 0]], steps.transform(at), rtol=1e-9)
    with pytest.raises(DataError, match="expected the cells of a Dataset"):
        as_rows(matrix()).to_dataarray()


MAP = SEA.drop_vars(["sst", "depth", "area"])
MAPS = {
    "coordinates alone": (MAP, None),
    "rows of coordinates": (None, None),
    "variables of other dimensions": (MAP.assign(depth=("station", np.ones(9))), None),
    "a chunked variable": (
        MAP.assign(depth=(("lat", "lon"), da.zeros((12, 15), chunks=(5, 4)))),
        ((5, 5, 2), (4, 4, 4, 3)),
    ),
    "a chunked coordinate": (MAP.assign_coords(area=("lat", da.zeros(12, chunks=5))), ((5, 5, 2), None)),
}


@pytest.mark.parametrize("places, chunks", MAPS.values(), ids=MAPS)
def test_maps_of_coordinates_are_predicted_block_by_block(places, chunks, tmp_path):
    model = make_pipeline(bk.OnSphere(), clone(RIDGE)).fit(bk.cells(SEA, ["lat", "lon"]), GIVEN.isel(time=0))
    with dask.config.set({"bigkernel.chunk-bytes": 1024}):
        places = bk.cells(MAP, ["lat", "lon"]) if places is None else places
        predicted = model.predict(places)
        bk.predict_to(model, places, tmp_path / "out")
    assert predicted.chunks is not None
    assert all(own in (None, found) for own, found in zip(chunks or (None, None), predicted.chunks, strict=True))
    stored = xr.open_zarr(tmp_path / "out").chl
    assert stored.chunks == predicted.chunks
    assert len(predicted.chunks[0]) * len(predicted.chunks[1]) > 1
    whole = model.predict(SEA[["sst", "lat", "lon"]].isel(time=0))
    assert whole.chunks is None  # as large as what is in memory
    assert_allclose(predicted, whole, rtol=1e-8)
    assert_allclose(stored, whole, rtol=1e-8)


def test_turned_columns_are_points_of_circles_and_spheres():
    X = np.array([[1.0, 90.0, 7.0, 6.0], [2.0, 0.0, 180.0, 18.0]])
    turned = make_pipeline(bk.OnSphere(1, 2, radius=2.0), bk.Periodic([1], 24)).fit_transform(X)
    assert_allclose(turned, [[1, 0, 0, 2, 0, 1], [2, -2, 0, 0, 0, -1]], atol=1e-15)
    lazy = bk.Periodic([3, 0], [24, 2]).fit_transform(da.from_array(X, chunks=(1, 4)))
    assert_allclose(lazy.compute()[:, 2:], [[0, 1, -1, 0], [0, -1, 1, 0]], atol=1e-15)
    periods = [[-1.0], [np.inf], [24, 2], [], ["day"], [[24.0]]]
    periodic = [bk.Periodic([0, 1], [24]), *(bk.Periodic(0, period) for period in periods)]
    for wrong in (bk.OnSphere("up"), bk.OnSphere(0, 9), *periodic):
        with pytest.raises(ConfigError, match=r"expected (columns among|a positive number, or one for each)"):
            wrong.fit(X)
    with pytest.raises(DataError, match="expected distinct columns"):
        bk.OnSphere(1, 1).fit_transform(X)
    model = make_pipeline(bk.OnSphere(0, 1), bk.KernelRidge(n_landmarks=2)).fit(X, X[:, 0])
    for swapped in (X[:, [2, 1, 0, 3]], da.from_array(X[:, [2, 1, 0, 3]], chunks=(1, 4))):
        with pytest.raises(DataError, match="expected latitudes from -90 to 90 degrees, found 180 in column 0"):
            np.asarray(model.predict(swapped))


def test_leaves_metrics_searches_and_domains_take_grids(tmp_path):
    sea = SEA.chunk(CHUNKS).map(lambda one: (one - one.mean()) / one.std())
    leaves = bk.PartitionedRegressor(clone(RIDGE), 2, posterior=True, random_state=0)
    metric = bk.LearnedMetric(method="gradient", n_landmarks=20, max_iter=2, random_state=0)
    model = make_pipeline(metric, leaves).fit(sea, GIVEN)
    predicted = model.predict(sea, return_std=True)
    assert list(predicted.data_vars) == ["chl", "chl_std"]
    assert_array_equal(np.isfinite(predicted.chl_std), SOUND)
    assert model.score(sea, GIVEN) > 0.9
    stages = bk.ResidualRegressor([("line", bk.Ridge()), ("rest", clone(RIDGE))]).fit(sea, GIVEN)
    assert stages.score(sea, GIVEN) > 0.9
    search = bk.SweepSearchCV(clone(RIDGE), {"alpha": [0.1, 1.0]}, cv=3).fit(sea, GIVEN)
    assert search.best_params_ == {"alpha": 0.1}
    assert search.predict(sea).dims == ("time", "lat", "lon")
    north = xr.where(SEA.lat > 0, 1, 0)
    moved = bk.DICA(n_components=2, n_landmarks=30, random_state=0).fit(sea, WARM, sample_domain=north)
    assert moved.domains_.tolist() == [0, 1]
    weighted = clone(RIDGE).fit(sea, GIVEN, sample_weight=1.0 + north)
    assert not np.allclose(weighted.dual_coef_, clone(RIDGE).fit(sea, GIVEN).dual_coef_)


def made(**variables):
    return xr.Dataset(variables)


X1 = ("obs", rng.normal(size=40))
SHAPES = {
    "one dimension": (made(a=X1, b=("obs", rng.normal(size=40))), None),
    "one variable": (made(a=("obs", rng.normal(size=40))), None),
    "numbers of every kind": (made(a=("obs", np.arange(40, dtype=np.int16)), b=("obs", np.arange(40) % 2 == 0)), None),
    "float32": (made(a=("obs", rng.normal(size=40).astype(np.float32))), None),
    "dates": (made(a=("obs", np.arange("2020-01-01", "2020-02-10", dtype="M8[D]").astype("M8[ns]"))), None),
    "no coordinates": (SEA.drop_vars(["lat", "lon", "time", "area"]), None),
    "a scalar coordinate": (SEA.isel(time=0), None),
    "a scalar variable": (SEA.assign(level=3.0), None),
    "an array of bands": (SEA.to_dataarray("band"), None),
    "an array of variables, last": (SEA.to_dataarray().transpose("lat", "lon", "time", "variable"), None),
    "bands without names": (xr.DataArray(rng.normal(size=(2, 12, 15)), dims=("band", "y", "x")), None),
    "a matrix of samples": (xr.DataArray(rng.normal(size=(40, 3)), dims=("sample", "feature")), None),
    "irregular chunks": (SEA.chunk({"lat": (1, 4, 7)}), None),
    "variables of other chunks": (SEA.chunk(CHUNKS).assign(depth=SEA.depth.chunk({"lat": 2})), None),
    "a stacked index": (SEA.stack(place=("lat", "lon")), None),
    "no variable": (xr.Dataset(coords={"lat": LAT}), "expected a variable"),
    "text": (SEA.assign(name=("lat", list("abcdefghijkl"))), "name: expected numbers, dates"),
    "spans of time": (SEA.assign(age=("time", TIME - TIME[0])), None),
    "numbers alone": (xr.Dataset({"a": 1.0}), "expected variables over some dimension"),
    "an array of no features": (SEA.sst, "expected one of"),
    "numbers that netCDF writes for missing ones": (
        SEA.assign(depth=SEA.depth.where(SEA.lat > 0, 9.969209968386869e36).astype(np.float32)),
        "depth: found infinite values, or 9.97e36, which netCDF",
    ),
    "infinite numbers": (SEA.assign(sst=SEA.sst.where(SEA.lat > 0, np.inf)), "sst: found infinite values"),
    "objects": (SEA.assign(sst=SEA.sst.astype(object)), r"sst: .* found dtype object; .*astype\(float\)"),
    "complex numbers": (SEA.assign(wave=("lat", np.ones(12) * 1j)), "wave: expected numbers, dates"),
}


@pytest.mark.parametrize("data, refused", SHAPES.values(), ids=SHAPES)
def test_shapes_of_datasets_work_or_are_refused_by_name(data, refused):
    ridge = bk.Ridge()
    if refused:
        with pytest.raises(DataError, match=refused):
            ridge.fit(data, SEA.sst)
        return
    if isinstance(data, xr.Dataset):
        first = data[next(iter(data.data_vars))]
    else:
        along = next(dim for dim in data.dims if dim in ("variable", "feature", "band"))
        first = data.isel({along: 0}, drop=True)
    target = 3 * (first - first.min()) / np.timedelta64(1, "D") if first.dtype.kind == "M" else 3.0 * first
    predicted = ridge.set_params(alpha=1e-6).fit(data, target.rename("y")).predict(data)
    assert predicted.name == "y"
    assert set(predicted.dims) == set(target.dims)
    xr.testing.assert_allclose(
        predicted.transpose(*target.dims).drop_vars(predicted.coords), target.drop_vars(target.coords), atol=1e-3
    )


LANDMARKS = {"n_landmarks": 20, "random_state": 0, "alpha": 1e-3}
FITS = {
    "uniform": bk.KernelRidge(**LANDMARKS),
    "k-means": bk.KernelRidge(landmarks="k-means", **LANDMARKS),
    "rpcholesky": bk.KernelRidge(landmarks="rpcholesky", **LANDMARKS),
    "fourier": bk.KernelRidge(landmarks="fourier", **LANDMARKS),
    "every row": bk.KernelRidge(n_landmarks=None, alpha=1.0),
    "semi-supervised": bk.SSSL(n_landmarks=20, n_components=5, random_state=0),
    "a metric": make_pipeline(
        bk.LearnedMetric(method="gradient", n_landmarks=20, max_iter=2, random_state=0), bk.KernelRidge(**LANDMARKS)
    ),
}


@pytest.mark.parametrize("model", FITS.values(), ids=FITS)
def test_a_fit_does_not_depend_on_chunks(model):
    scaled = SEA.assign(sst=(SEA.sst - 20) / 5)
    whole = clone(model).fit(scaled, GIVEN).predict(scaled)
    for chunks in (CHUNKS, {"time": 3, "lat": 1, "lon": 4}, {"lat": (1, 4, 7)}):
        again = clone(model).fit(scaled.chunk(chunks), GIVEN.chunk(chunks)).predict(scaled)
        xr.testing.assert_allclose(again, whole, rtol=1e-6)


def test_labels_may_be_objects():
    named = NAMED.astype(object)
    assert bk.KernelRidgeClassifier(n_landmarks=9, random_state=0).fit(SEA, named).classes_.tolist() == ["cold", "warm"]


def test_targets_of_another_grid_are_refused():
    for wrong, message in (
        (GIVEN.isel(lat=slice(3)), "found 3 cells of 'lat', expected 12"),
        (GIVEN.assign_coords(lat=LAT + 1), "the coordinates of 'lat' differ"),
        (GIVEN.rename(lat="y"), "found the dimension 'y'"),
        (GIVEN.values.ravel()[:50], "expected 540 values"),
    ):
        with pytest.raises(DataError, match=message):
            clone(RIDGE).fit(SEA, wrong)
    with pytest.raises(DataError, match="expected the variable 'depth', found sst"):
        clone(RIDGE).fit(SEA, GIVEN).predict(SEA[["sst"]].drop_vars("area"))


@pytest.mark.parametrize("chunks", [None, {}], ids=["arrays", "chunks"])
def test_a_dataset_opened_without_decoding_gives_the_fit_of_the_decoded_one(chunks, tmp_path):
    packing = {"dtype": "int16", "scale_factor": 0.01, "_FillValue": -9999}
    packings = {"sst": packing, "chl": packing | {"add_offset": 10.0}, "lat": packing}
    SEA.assign(chl=GIVEN).drop_encoding().to_zarr(tmp_path / "sea.zarr", encoding=packings, consolidated=False)
    options = {"consolidated": False, "chunks": chunks}
    usual, raw = (xr.open_zarr(tmp_path / "sea.zarr", mask_and_scale=scaled, **options) for scaled in (True, False))
    expected = clone(RIDGE).fit(usual[["sst", "depth"]], usual.chl)
    model = clone(RIDGE).fit(raw[["sst", "depth"]], raw.chl)
    assert model.skipped_rows_ == expected.skipped_rows_ > 0
    assert_allclose(model.predict(raw), expected.predict(usual), rtol=1e-6)
    assert model.score(raw[["sst", "depth"]], raw.chl) == pytest.approx(
        expected.score(usual[["sst", "depth"]], usual.chl)
    )
    if chunks is not None:
        bk.predict_to(model, raw, tmp_path / "filled.zarr")
        assert_array_equal(xr.open_zarr(tmp_path / "filled.zarr").lat, usual.lat)


@pytest.mark.parametrize("chunks", [None, CHUNKS], ids=["arrays", "chunks"])
def test_predictions_on_disk_are_a_dataset(chunks, tmp_path):
    sea = (SEA if chunks is None else SEA.chunk(chunks)).assign_coords(station=("lat", [f"s{i}" for i in range(12)]))
    sea = sea.assign_coords(
        lead=("time", TIME - TIME[0]), land=("lat", LAT > 0), made=np.datetime64("2020-01-01T01:30")
    )
    model = make_pipeline(bk.Standardizer(), clone(RIDGE)).fit(sea, GIVEN)
    bk.predict_to(model, sea, tmp_path / "out.zarr", return_std=True)
    stored = xr.open_zarr(tmp_path / "out.zarr").load()
    assert {*stored.data_vars} == {"chl", "chl_std"}
    assert stored.chl.dims == ("time", "lat", "lon")
    more = ("station", "lead", "land", "made")
    xr.testing.assert_allclose(stored.chl.drop_vars(more), model.predict(SEA), rtol=1e-9)
    for name in ("time", *more):
        assert_array_equal(stored[name], sea[name])
    assert stored.chl.attrs == {"units": "mg m-3"}
    assert (stored.chl_std.values[SOUND] > 0).all()
    labels = make_pipeline(bk.Standardizer(), clone(CLASSES)).fit(sea, NAMED)
    bk.predict_to(labels, sea, tmp_path / "classes.zarr", decision=True)
    stored = xr.open_zarr(tmp_path / "classes.zarr").load()
    assert_array_equal(stored[NAMED.name or "prediction"], labels.predict(SEA))
    assert stored.decision.dims == ("time", "lat", "lon", "class")
    with pytest.raises(DataError, match="expected chunks of equal size along every dimension"):
        bk.predict_to(model, SEA.chunk({"lat": (1, 4, 7)}), tmp_path / "irregular.zarr")


@pytest.mark.parametrize("name", ["lat", "area", "decision", "m/s", "manifest", "..", "__y", "n" * 300])
def test_a_target_has_a_name_that_its_predictions_can_have(name, tmp_path):
    model = make_pipeline(bk.Standardizer(), clone(RIDGE)).fit(SEA, GIVEN.drop_vars("area").rename(name))
    on_disk = "would be the name of two outputs" if name in ("lat", "area", "decision") else "cannot be the name of"
    with pytest.raises(DataError, match=f"^'{name}' {on_disk}"):
        bk.predict_to(model, SEA, tmp_path / "out", decision=True)
    assert not list(tmp_path.iterdir())
    if name in SEA.coords:
        assert model.predict(SEA).name == name
        with pytest.raises(DataError, match=f"^'{name}' {on_disk}"):
            model.predict(SEA, return_std=True)
    else:
        assert list(model.predict(SEA, return_std=True).data_vars) == [name, f"{name}_std"]


def test_names_of_several_outputs_differ(tmp_path):
    two = clone(RIDGE).fit(SEA, xr.Dataset({"a": GIVEN, "a_std": -GIVEN}))
    assert list(two.predict(SEA).data_vars) == ["a", "a_std"]
    turned = SEA.rename(lat="class")
    labels = clone(CLASSES).fit(turned, WARM.rename(lat="class"))
    assert labels.predict(turned).dims == ("time", "class", "lon")
    for use, name in (
        (lambda: two.predict(SEA, return_std=True), "a_std"),
        (lambda: two.predict_to(SEA, tmp_path / "out", return_std=True), "a_std"),
        (lambda: labels.predict_proba(turned), "class"),
        (lambda: labels.predict_to(turned, tmp_path / "out", decision=True), "class"),
        (lambda: two.predict_to(SEA.assign_coords({"m/s": ("lat", LAT)}), tmp_path / "out"), "m/s"),
    ):
        with pytest.raises(DataError, match=f"^'{name}' (would|cannot) be the name of"):
            use()
    assert not list(tmp_path.iterdir())


def test_a_damaged_map_is_named_and_lost_blocks_are_not_read_as_zeros(tmp_path):
    check, path = lambda *more: CliRunner().invoke(main, ["check", str(path), *more]), tmp_path / "out"
    sea = SEA.chunk(CHUNKS).assign_coords(station=("lat", [f"s{i}" for i in range(12)]), month=("time", [1, 2, 3]))
    classes = xr.where(GIVEN > 40, "warm", "cold").where(GIVEN.notnull(), "")
    for model in (clone(RIDGE).fit(sea, GIVEN), clone(CLASSES).fit(sea, classes.rename("chl"))):
        more = {"decision": True} if model.predict(sea).dtype.kind in "UT" else {"return_std": True}
        model.predict_to(sea, path, overwrite=True, **more)
        assert check().exit_code == 0, check().output
        assert "chl (3, 12, 15)" in CliRunner().invoke(main, ["info", str(path)]).output
        lost = path / "chl" / "c" / "1" / "0" / "2"
        content = lost.read_bytes()
        lost.write_bytes(content[:20] + bytes([content[20] ^ 1]) + content[21:])
        shown = check()
        assert shown.exit_code == 3
        assert "chl: rows 1:2 cannot be decoded" in shown.output
        lost.unlink()
        shown = check()
        assert shown.exit_code == 3
        assert "the first is c/1/0/2" in shown.output
        read = xr.open_zarr(path).load().chl[1, :5, 12:]
        assert (read == "").all() if more == {"decision": True} else read.isnull().all()
        (path / "month" / "c" / "0").unlink()
        assert xr.open_zarr(path).month.values.tolist() == [-1, -1, -1]


def test_a_run_that_was_interrupted_continues_with_the_blocks_on_disk(tmp_path, monkeypatch):
    from bigkernel.engine.grid_store import GridWriter

    sea, model = SEA.chunk(CHUNKS), make_pipeline(bk.Standardizer(), clone(RIDGE)).fit(SEA, GIVEN)
    bk.predict_to(model, sea, tmp_path / "whole.zarr")
    written, update = [], GridWriter.update

    def stop(self, total, chunk):
        if len(written) == 5:
            raise OSError("stopped")
        update(self, total, chunk)
        written.append(chunk.start)

    with dask.config.set({"bigkernel.chunk-bytes": 1024, "bigkernel.min-segments": 18, "bigkernel.retries": 0}):
        with monkeypatch.context() as patched, bk.executing("serial", run=tmp_path / "run"):
            patched.setattr(GridWriter, "update", stop)
            with pytest.raises(Exception, match="stopped"):
                bk.predict_to(model, sea, tmp_path / "out.zarr")
        assert not (tmp_path / "out.zarr").exists()
        with bk.executing("serial", run=tmp_path / "run", resume=True):
            bk.predict_to(model, sea, tmp_path / "out.zarr")
    whole, resumed = (xr.open_zarr(tmp_path / name).chl for name in ("whole.zarr", "out.zarr"))
    xr.testing.assert_allclose(whole, resumed, rtol=1e-12)


def test_the_command_predicts_a_dataset(tmp_path):
    model = make_pipeline(bk.Standardizer(), clone(RIDGE)).fit(SEA, GIVEN)
    bk.save_model(model, tmp_path / "m")
    SEA.chunk(CHUNKS).to_zarr(tmp_path / "sea.zarr", zarr_format=3, consolidated=False)
    command = ["predict", str(tmp_path / "m"), str(tmp_path / "sea.zarr"), str(tmp_path / "out.zarr"), "--std"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    stored = xr.open_zarr(tmp_path / "out.zarr").load()
    xr.testing.assert_allclose(stored.chl, model.predict(SEA), rtol=1e-9)
    address = "memory://filled-by-the-command"
    result = CliRunner().invoke(main, [*command[:3], address, "--std"])
    assert result.exit_code == 0, result.output
    xr.testing.assert_identical(xr.open_zarr(FsspecStore.from_url(address)).load(), stored)
    table = CliRunner().invoke(main, [*command[:3], str(tmp_path / "out.csv")])
    assert table.exit_code == 2
    assert "needs a corpus" in table.output


def test_rows_of_a_grid_travel_without_its_coordinates():
    rows = as_rows(SEA.chunk(CHUNKS))
    assert rows.grid is not None
    assert rows.restrict(0, 10).grid is None
    assert rows.shape == (540, 2)
