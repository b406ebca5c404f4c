"""The maps pipeline on small grids: errors and bands beside peers, pictures, stores of predictions."""

import numpy as np
import pytest
import xarray as xr
from pipeline_runs import call, require_page, results_of

from pipelines.maps import command as maps

LAT, LON = np.linspace(-87, 87, 30), np.arange(0.0, 360, 9)
HEIGHT = np.cos(np.deg2rad(LAT))[:, None] * (1 + np.sin(np.deg2rad(2 * LON)))
SMALL = ("--rows", 200, "--landmarks", 30, "--leaves", 2)


def give(monkeypatch, target):
    """Let every name be a small grid of these targets, and a block take a nanosecond."""
    level = ("lat", np.zeros(len(LAT)))
    grid = xr.Dataset({"target": (("lat", "lon"), target)}, {"lat": LAT, "lon": LON, "level": level})
    monkeypatch.setattr(maps, "grid_of", lambda name: grid)
    monkeypatch.setattr(maps, "block_nanoseconds", lambda d, m: 1.0)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", ["relief", "ocean"])
def test_a_map_is_compared_at_cells_without_data(name, tmp_path, monkeypatch):
    give(monkeypatch, np.where(HEIGHT > 1.9, np.nan, HEIGHT))
    results = results_of("maps", name, *SMALL, "--out", tmp_path)
    everywhere, there, local, process = results["maps"]
    assert everywhere["cells"] == there["cells"] == local["cells"] == int((HEIGHT <= 1.9).sum()) - 200
    assert max(one["error"] for one in results["maps"]) < 0.1
    assert 0.7 < everywhere["cover"] <= 1
    assert 0.7 < process["cover"] <= 1
    require_page(tmp_path, pictures=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["land", "scenes"])
def test_a_grid_is_predicted_to_a_store(name, tmp_path, monkeypatch):
    give(monkeypatch, HEIGHT > 1)
    monkeypatch.setattr(maps, "SIDE", 100)
    call("maps", name, *SMALL, "--scenes", 2, "--out", tmp_path)
    (figures,) = results_of("maps", name, *SMALL, "--scenes", 2, "--out", tmp_path)["maps"]
    stored = xr.open_zarr(tmp_path / "predicted.zarr")["prediction"]
    assert figures["cells"] == stored.size == (HEIGHT.size if name == "land" else 2 * 100 * 100)
    if name == "land":
        assert figures["error"] < 0.2
    else:
        np.testing.assert_allclose(float(figures["ratio"]), 1 / figures["each"], atol=0.01)
        call("maps", name, *SMALL, "--scenes", 3, "--out", tmp_path, code=3)
