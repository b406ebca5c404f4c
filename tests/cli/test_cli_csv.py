"""From a CSV file to a table of predictions: names of columns and classes, kinds of targets, bad rows, scores."""

import json
import os

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from bigkernel import load_model, open_corpus

rng = np.random.default_rng(3)
N = 200
X = rng.normal(size=(N, 3)).round(4)
COLOURS = np.where(X[:, 0] > 0, "red", "blue")

pytestmark = pytest.mark.usefixtures("here")


def write_csv(name, columns):
    """Write columns by name as a CSV file."""
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    with open(name, "w") as file:
        file.write("\n".join(lines) + "\n")


@pytest.fixture
def colours(run):
    """Write flowers.csv with text labels, its corpus and a model with probabilities."""
    write_csv("flowers.csv", {"width": X[:, 0], "height": X[:, 1], "age": X[:, 2], "colour": COLOURS})
    run("ingest", "flowers.csv", "flowers", "--chunk-rows", 64)
    run("fit", "flowers", "flowers.model", "--landmarks", 30, "--probability")
    return load_model("flowers.model")


# ---------------------------------------------------------------- tables of predictions


def test_predictions_are_a_table_with_names_of_classes(run, colours):
    shown = json.loads(run("predict", "flowers.model", "flowers", "p.csv", "--probability", "--json").stdout)
    run("predict", "flowers.model", "flowers", "p.parquet", "--probability", "--decision")
    table, wide = pyarrow.csv.read_csv("p.csv"), pyarrow.parquet.read_table("p.parquet")
    assert shown["columns"] == table.column_names == ["row", "prediction", "probability_blue", "probability_red"]
    assert wide.column_names == [*table.column_names[:2], "decision_blue", "decision_red", *table.column_names[2:]]
    corpus = open_corpus("flowers")
    for read in (table, wide):
        assert read["row"].to_pylist() == list(range(N))
        assert read["prediction"].to_pylist() == np.asarray(colours.predict(corpus)).tolist()
        found = np.column_stack([read["probability_blue"], read["probability_red"]])
        np.testing.assert_allclose(found, np.asarray(colours.predict_proba(corpus)), atol=1e-12)


def test_a_table_that_fails_leaves_nothing_and_other_files_are_not_replaced(run, colours, monkeypatch):
    before = sorted(os.listdir())
    refused = run("predict", "flowers.model", "flowers", "flowers.csv", "--overwrite", code=3).stderr
    assert "expected a table of predictions to replace" in refused
    assert "--probability needs" in run("predict", "flowers.model", "flowers", "p", "--probability", code=2).stderr
    later = iter([lambda y: y])  # the second chunk finds none

    def interrupt(y, classes):
        if (first := next(later, None)) is None:
            raise KeyboardInterrupt
        return first(y)

    with monkeypatch.context() as patched:
        patched.setattr("bigkernel.data.prediction_table.named_labels", interrupt)
        run("predict", "flowers.model", "flowers", "p.csv", code=75)
    assert sorted(os.listdir()) == before
    run("predict", "flowers.model", "flowers", "p.csv")
    run("predict", "flowers.model", "flowers", "p.csv", "--overwrite")
