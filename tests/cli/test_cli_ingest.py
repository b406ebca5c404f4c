"""`bigkernel ingest`: formats, several sources, splits and invalid input."""

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from test_cli import idx

from bigkernel.data.corpus import open_corpus

PIXELS = np.random.default_rng(0).integers(0, 256, (40, 4, 3), np.uint8)
LABELS = (np.arange(40) % 4).astype(np.uint8)


pytestmark = pytest.mark.usefixtures("here")


def write_all():
    """Write the same images and labels in every format, and return the names of the sources."""
    rows, labels = PIXELS.reshape(40, 12).astype(np.float32), LABELS.astype(np.int64)
    idx(Path("images-idx3-ubyte"), PIXELS)
    idx(Path("labels-idx1-ubyte"), LABELS)
    np.savez("rows.npz", x=rows, y=labels)
    pq.write_table(pa.table({**{f"p{i}": column for i, column in enumerate(rows.T)}, "y": labels}), "rows.parquet")
    group = zarr.create_group("rows.zarr")
    group.create_array("x", data=rows, chunks=(7, 12))
    group.create_array("y", data=labels, chunks=(9,))
    with open("rows.svm", "w") as svm, open("rows.csv", "w") as table:
        for row, label in zip(rows, labels, strict=True):
            svm.write(f"{label} " + " ".join(f"{i}:{value:g}" for i, value in enumerate(row, 1) if value) + "\n")
            table.write(",".join(f"{value:g}" for value in row) + f",{label}\n")
    return ["images-idx3-ubyte", "rows.npz", "rows.parquet", "rows.zarr", "rows.svm", "rows.csv"]


def test_every_format_gives_the_same_arrays(run):
    sources = write_all()
    for number, source in enumerate(sources):
        run("ingest", source, f"{number}.corpus", "--dtype", "float32", "--chunk-rows", 16, "--json")
    corpora = [open_corpus(f"{number}.corpus") for number in range(len(sources))]
    x, y = (corpora[0].array(name)[:] for name in "xy")
    for source, corpus in zip(sources, corpora, strict=True):
        assert np.array_equal(corpus.array("x")[:], x), source
        assert np.array_equal(corpus.column("y"), y), source


def test_groups_of_a_table_stay_together(run, tmp_path):
    (tmp_path / "t.csv").write_text("x,who,y\n" + "".join(f"{row},{row // 4},{row % 2}\n" for row in range(200)))
    split = ("--split", "test=0.3", "--split-by", "group", "--group-column", "who")
    run("ingest", "t.csv", "c", *split)
    sides = [set(open_corpus(name).column("group").tolist()) for name in ("c", "c-test")]
    assert sides[0].isdisjoint(sides[1])
    assert sides[0] | sides[1] == set(range(50))


def test_one_label_file_for_each_source(run):
    idx(Path("a"), PIXELS)
    idx(Path("b"), LABELS)
    run("ingest", "a", "a", "c", "--labels", "b", "--labels", "b")
    assert open_corpus("c").columns == ("y", "domain")
    run("ingest", "a", "a", "d", "--labels", "none")
    assert open_corpus("d").columns == ("domain",)
    result = run("ingest", "a", "a", "a", "e", "--labels", "b", "--labels", "b", code=2)
    assert "one file for each of 3 sources, or none, found 2" in result.stderr
    assert not os.path.exists("e")


@pytest.mark.parametrize(
    ("options", "code", "expected"),
    [
        (["--split", "test"], 8, "split: expected NAME=SHARE, such as test=0.1, found 'test'"),
        (["--split", "test=0.1", "--split", "test=0.2"], 8, "split: 'test' is given twice"),
        (["--split", "test=2"], 8, "expected a share of the rows between 0 and 1"),
        (["--split-by", "group"], 2, "--split-by needs --split"),
        (["--target", "y"], 8, "target: unknown option of format 'npz', which has x, y"),
    ],
)
def test_invalid_options_are_refused_and_nothing_is_written(run, options, code, expected):
    np.savez("a.npz", x=np.ones((4, 2)), y=[0, 1, 2, 3])
    assert expected in run("ingest", "a.npz", "c", *options, code=code).stderr
    assert os.listdir() == ["a.npz"]


def test_what_was_chosen_in_reading_is_noted(run):
    rows = "".join(f"{row % 2};{row / 7:.3f};1\n".replace(".", ",") for row in range(40))
    Path("t.csv").write_text(f"label;p;flag\n{rows}")
    shown = run("ingest", "t.csv", "c").stdout
    assert "the target is 'label'; --target names another column" in shown
    assert "decimals have a comma" in shown
    assert "all rows have one label" in run("ingest", "t.csv", "c", "--overwrite", "--target", "flag").stdout
    told = json.loads(run("ingest", "t.csv", "c", "--overwrite", "--json", "--header", "yes", "--decimal", ",").stdout)
    assert told["notes"] == ["the target is 'label'; --target names another column"]
