"""Parts of a page: pictures, timelines, charts; against their pixels, their places and their sizes."""

import io
import re
from itertools import pairwise

import numpy as np
import pytest
from bigkernel.monitor.report.measured import _PLAN
from bigkernel.monitor.report.pixels import MOST_BYTES, MOST_IMAGES, pack, png, unpack
from bigkernel.monitor.report.timeline import Axis, Bar, lanes_of, short_names, timeline
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread
from numpy.testing import assert_array_equal
from page_reader import read

from bigkernel.monitor.palette import DARK, LIGHT, STAGES, properties
from bigkernel.monitor.report import drawings
from pipelines.shared.page import Column, Page, Table

CHANCE = np.random.default_rng(4)


@given(st.integers(1, 40), st.integers(1, 40))
def test_a_picture_reads_back_to_its_pixels(h, w):
    image = CHANCE.integers(0, 256, (h, w)).astype(np.uint8)
    assert_array_equal(np.rint(imread(io.BytesIO(png(image)), format="png") * 255), image)


def test_images_are_packed_with_their_full_range():
    images = CHANCE.normal(size=(3, 5, 4))
    images[1] = 7.0
    found = unpack(pack(images))
    low, high = images.min(axis=(1, 2), keepdims=True), images.max(axis=(1, 2), keepdims=True)
    assert_array_equal(found[[0, 2]], np.rint((255 * (images - low) / np.maximum(high - low, 1e-9))[[0, 2]]))
    assert (found[1] == 0).all()


@given(st.integers(1, 60), st.integers(1, 300), st.integers(1, 300))
def test_packed_images_never_take_more_than_their_limit(k, h, w):
    packed = pack(np.ones((k, h, w)))
    assert sum(len(text) for text in packed["data"]) <= MOST_BYTES
    assert len(packed["data"]) == min(k, MOST_IMAGES)
    assert unpack(packed).shape == (min(k, MOST_IMAGES), *packed["shape"])


def test_large_images_become_means_of_squares():
    images = CHANCE.random((40, 56, 56))
    found = unpack(pack(images)).astype(float)
    means = images.reshape(40, 28, 2, 28, 2).mean(axis=(2, 4))
    low, high = means.min(axis=(1, 2), keepdims=True), means.max(axis=(1, 2), keepdims=True)
    assert_array_equal(found, np.rint(255 * (means - low) / (high - low)))


@pytest.mark.parametrize(
    "packed",
    [{}, {"shape": [2], "data": []}, {"shape": [2, 2], "data": ["AA=="]}, {"shape": [-1, 2], "data": []}, {"shape": 1}],
    ids=str,
)
def test_what_is_no_packed_image_is_refused(packed):
    with pytest.raises(ValueError, match=r"expected packed images|images of|unpack"):
        unpack(packed)


spans = st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e4)), min_size=1, max_size=30)


@given(spans)
def test_places_along_the_axis_never_fall_and_stay_on_it(intervals):
    axis = Axis.over([(start, start + length) for start, length in intervals])
    moments = sorted(time for start, length in intervals for time in (start, start + length))
    places = [axis.at(moment) for moment in moments]
    assert all(a <= b + 1e-9 for a, b in pairwise(places))
    assert min(places) >= 0
    assert max(places) <= 100 + 1e-6
    assert len(axis.ticks()) <= 14


def test_a_long_pause_is_short_and_told():
    axis = Axis.over([(0, 100), (90_000, 90_100)])
    assert [seconds for *_, seconds in axis.pauses()] == [89_900]
    assert axis.at(100) == pytest.approx(48)
    assert axis.at(90_000) == pytest.approx(52)
    assert [text for _, text in axis.ticks()] == ["0", "1 min", "2 min", "3 min"]


def test_work_of_one_worker_that_overlaps_stands_in_rows_of_its_own():
    bars = [Bar(0, 10, "a"), Bar(5, 12, "a"), Bar(10, 20, "a"), Bar(0, 1, "b")]
    lanes = dict(lanes_of(bars))
    assert {worker: len(rows) for worker, rows in lanes.items()} == {"a": 2, "b": 1}
    assert [bar.start for bar in lanes["a"][0]] == [0, 10]


def test_names_of_workers_lose_what_all_share():
    assert short_names(["tcp://10.0.0.1:40", "tcp://10.0.0.1:41"]) == {
        "tcp://10.0.0.1:40": ":40",
        "tcp://10.0.0.1:41": ":41",
    }
    assert short_names(["tcp://a:1", "tcp://b:1"])["tcp://b:1"] == "b:1"
    assert len(short_names(["x" * 100, "y:1"])["x" * 100]) == 22


def test_a_timeline_of_very_many_segments_stays_small():
    bars = [Bar(i / 10, i / 10 + 1, f"w{i % 10}", text=f"segment {i}") for i in range(50_000)]
    drawing = timeline(bars, Axis.over((bar.start, bar.stop) for bar in bars))
    assert len(drawing) < 1_000_000
    widths = [float(width) for width in re.findall(r'width="([\d.]+)%" height="1\d', drawing)]
    assert sum(widths) == pytest.approx(1000, rel=0.02)  # ten workers that were busy all the time


def test_a_timeline_of_more_rows_than_fit_shows_some_of_every_worker():
    bars = [Bar(0, 1, f"<{i % 20}>") for i in range(1000)]
    drawing = timeline(bars, Axis.over([(0, 1)]))
    assert "240 of 1,000 rows" in drawing
    assert "<0>" not in drawing


def test_stages_keep_their_colours_and_their_shares():
    drawing = drawings.shares({"gram": 5.0, "block": 3.0, "odd": 2.0})
    assert re.findall(r"flex:([\d.]+)", drawing) == ["0.50000", "0.30000", "0.20000"]
    assert re.findall(r"--at:var\(--(\S+)\)", drawing) == 2 * ["stage-gram", "stage-block", "stage-other"]
    assert re.findall(r'title="gram: ([^"]+)"', drawing) == 2 * [STAGES["gram"].meaning]
    assert drawings.shares({"gram": 0.0}) == ""


def test_every_colour_of_a_drawing_is_one_of_the_palette_and_no_two_stages_share_theirs():
    page = Page("").svg(drawings.shares(dict.fromkeys([*STAGES, "odd"], 1.0))).html()
    for style in (LIGHT, DARK):
        assert properties(style) in page
        assert len({style[f"stage-{name}"] for name in STAGES}) == len(STAGES)
    used = set(re.findall(r"var\(--([\w-]+)[,)]", page)) - {"page", "card", "wrong", "right", "off", "at", "v"}
    assert used <= set(LIGHT) == set(DARK)


def test_the_rate_is_drawn_with_its_unit_and_what_was_calibrated():
    axis = Axis.over([(100, 110)])
    drawing = drawings.rate([(100, [(5.0, 4e10), (10.0, 8e10)])], axis, 1e11)
    assert "calibrated: 100 GFLOP/s" in drawing
    assert "50 GFLOP/s" in drawing
    heights = [float(height) for height in re.findall(r'class="c0".*? height="([\d.]+)"', drawing)]
    assert heights[1] / heights[0] == pytest.approx(2, rel=0.01)
    assert drawings.rate([], axis, 0.0) == ""


def test_memory_above_what_was_announced_has_another_colour():
    drawing = drawings.memory({"a": 300, "b": 100}, 200, {})
    assert re.findall(r'<i class="(\w*)"', drawing) == ["above", ""]
    assert "more workers" in drawings.memory({str(i): 5 for i in range(40)}, 0, {})


@pytest.mark.parametrize(("classes", "drawn"), [(2, "<table"), (20, "<table"), (21, "<svg"), (64, "<svg"), (65, "")])
def test_a_confusion_matrix_has_numbers_while_they_can_be_read(classes, drawn):
    counts = np.ones((classes, classes))
    drawing = drawings.confusion(counts, [f"<{i}>" for i in range(classes)])
    assert drawn in drawing
    assert bool(drawing) == bool(drawn)
    assert "<0>" not in drawing


def test_a_confusion_matrix_without_an_error_is_drawn():
    read(Page("").svg(drawing := drawings.confusion(np.diag([3.0, 4.0]), [0, 1])).html())
    cells = re.findall(r'<td class="(\w+)" style="--v:([\d.]+)">(\d+)</td>', drawing)
    assert cells == [("hit", "0.50", "3"), ("none", "0.00", "0"), ("none", "0.00", "0"), ("hit", "0.50", "4")]


def test_residuals_are_drawn_in_proportion():
    counts = np.zeros(40)
    counts[[19, 20]] = 10, 40
    drawing = drawings.residuals(counts, "RMSE")
    heights = [float(height) for height in re.findall(r'class="c0".*? height="([\d.]+)"', drawing)]
    assert heights[20] / heights[19] == pytest.approx(4, rel=0.01)
    assert drawings.residuals(np.zeros(40), "RMSE") == ""


def test_every_part_of_a_page_is_well_formed_and_escaped():
    evil = "<script>1</script>\"'&"
    image = png(CHANCE.integers(0, 256, (200, 200)).astype(np.uint8))  # longer than any text that is shown
    table = Table([Column("a", evil, left=True, long=True), Column("b", "b")], [{"a": evil, "b": None}])
    page = Page(evil, evil).heading(evil).subheading(evil).text(evil, "").state("bad", evil, evil).command(evil)
    page.tiles([(evil, evil)]).facts({evil: evil}).folded(evil, {evil: evil}).table(table, caption=evil)
    page.figure(image, image, caption=evil).svg(drawings.legend([(1, evil)]), caption=evil)
    page.svg(drawings.digits(np.zeros((1, 3, 3), np.uint8), [(evil, evil, True)]))
    reader = read(page.html())
    assert reader.tags.count("script") == 0
    assert reader.text.count("<script>1</script>") == 24


def test_a_page_of_several_headings_begins_with_links_to_them():
    page = Page("One").heading("What came out").add(Page("").heading("What was run").heading("What came out"))
    reader = read(page.html())
    assert reader.headings == ["What came out", "What was run", "What came out"]
    assert len(reader.links) == len(set(reader.links)) == 3
    assert read(Page("One").heading("What came out").html()).links == []


@pytest.mark.parametrize(
    "changed, marked",
    [
        ({}, []),
        ({"rows_done": 99}, ["rows_done"]),
        ({"bytes_read": 1300}, ["bytes_read"]),
        ({"peak_bytes": 2001}, ["peak_bytes"]),
        ({"seconds": 12.6, "flops_per_second": 7.9e9}, ["seconds", "flops_per_second"]),
        ({"seconds": 12.4, "flops_per_second": 8.1e9, "peak_bytes": 1}, []),
        ({"rows_done": 50, "seconds": 99.0, "state": "interrupted"}, []),
        ({"announced_bytes": None, "predicted_seconds": None, "peak_bytes": None}, []),
    ],
)
def test_what_deviates_from_the_plan_is_marked(changed, marked):
    planned = {"rows": 100, "segments": 4, "planned_flops": 1e11, "planned_bytes_read": 800, "announced_bytes": 2000}
    measured = {"rows_done": 100, "segments_done": 4, "computed_flops": 1e11, "bytes_read": 800, "peak_bytes": 1999}
    rates = {"predicted_seconds": 10.0, "seconds": 10.0, "calibrated_flops_per_second": 1e10, "flops_per_second": 1e10}
    record = {"sweep": "moments", "state": "finished", **planned, **measured, **rates, **changed}
    assert [column.key for column in _PLAN if column.marked(record)] == marked
    notes = {column.key: column.note(record) for column in _PLAN}
    assert notes["rows_done"] == ("" if record["rows_done"] == 100 else "of 100")
    html = Page("").table(Table(_PLAN, [record])).html()
    assert html.count(' off"') == len(marked)


def test_a_drawing_that_no_template_made_is_shown_as_text():
    reader = read(Page("").svg("<svg onload='x()'><script>1</script></svg>").html())
    assert "svg" not in reader.tags
    assert "<script>1</script>" in reader.text
