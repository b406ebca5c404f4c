"""From a CSV file to a table of predictions: names of columns and classes, kinds of targets, bad rows, scores."""

import json
import os
import re
import shutil
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from sklearn.metrics import balanced_accuracy_score, mean_absolute_error, r2_score, root_mean_squared_error
from sklearn.pipeline import make_pipeline

from bigkernel import (
    KernelRidge,
    Predictor,
    Ridge,
    TableEncoder,
    load_model,
    normal_scores,
    open_corpus,
    predict_to,
    save_model,
    write_corpus,
)
from bigkernel.engine.rows import as_rows
from bigkernel.errors import ConfigError, DataError

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
def colours(run, tmp_path_factory):
    """Write flowers.csv with text labels, its corpus and a model with probabilities, once for all tests."""
    kept = tmp_path_factory.getbasetemp() / "flowers"
    if not kept.exists():
        write_csv("flowers.csv", {"width": X[:, 0], "height": X[:, 1], "age": X[:, 2], "colour": COLOURS})
        run("ingest", "flowers.csv", "flowers", "--chunk-rows", 64)
        run("fit", "flowers", "flowers.model", "--landmarks", 30, "--probability", "--class-weight", "balanced")
        shutil.copytree(".", kept)
    shutil.copytree(kept, ".", dirs_exist_ok=True)
    return load_model("flowers.model")


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


def test_python_writes_the_same_tables(run, colours):
    run("predict", "flowers.model", "flowers", "p.csv", "--probability", "--decision")
    corpus = open_corpus("flowers")
    names = predict_to(colours, corpus, Path("q.csv"), probability=True, decision=True)
    assert Path("q.csv").read_bytes() == Path("p.csv").read_bytes()
    assert names == pyarrow.csv.read_csv("q.csv").column_names
    frame = pd.DataFrame(X, columns=["width", "height", "age"])
    assert colours.predict_to(frame, "q.PARQUET") == ["row", "prediction"]
    assert pd.read_parquet("q.PARQUET")["prediction"].tolist() == colours.predict(frame).tolist()
    with pytest.raises(DataError, match="already exists"):
        colours.predict_to(corpus, "q.csv")
    with pytest.raises(ConfigError, match=r"probability: expected a path that ends in \.csv"):
        colours.predict_to(corpus, "q", probability=True)
    numbers = KernelRidge(n_landmarks=9, alpha=1.0, random_state=0).fit(X, X[:, 0])
    with pytest.raises(ConfigError, match="probability: KernelRidge gives none"):
        numbers.predict_to(corpus, "r.csv", probability=True)
    assert numbers.predict_to(X, "r.csv", return_std=True) == ["row", "prediction", "std"]
    assert not Path(".r.csv.predictions.partial").exists()


@pytest.mark.parametrize("name", ["prediction", "std", "decision_red", "probability_blue", "m/s", "manifest"])
def test_the_column_of_ids_is_not_called_like_an_output(run, colours, name):
    write_csv("named.csv", {"width": X[:, 0], "height": X[:, 1], "age": X[:, 2], name: range(N)})
    ingest = ("ingest", "named.csv", "named", "--id-column", name, "--target", "none")
    late = name in ("decision_red", "probability_blue")  # names that the model determines
    run(*ingest, code=0 if late else 3)
    for command in [("predict", "flowers.model", "named", out) for out in ("p.csv", "p")] if late else [ingest]:
        said = run(*command, code=3).stderr
        assert f"'{name}' {'cannot' if name in ('m/s', 'manifest') else 'would'} be the name of" in said
    assert not Path("p").exists()


def test_a_table_that_fails_leaves_nothing_and_other_files_are_not_replaced(run, colours, monkeypatch):
    before = sorted(os.listdir())
    refused = run("predict", "flowers.model", "flowers", "flowers.csv", "--overwrite", code=3).stderr
    assert "expected a table of predictions to replace" in refused
    assert "--probability needs" in run("predict", "flowers.model", "flowers", "p", "--probability", code=2).stderr
    with monkeypatch.context() as patched:  # an interruption at the second chunk
        patched.setattr(
            "bigkernel.data.prediction_table.named_labels", Mock(side_effect=[COLOURS[:64], KeyboardInterrupt])
        )
        run("predict", "flowers.model", "flowers", "p.csv", code=75)
    assert sorted(os.listdir()) == before
    Path(".p.csv.0.partial").touch()  # left by a process that was killed
    run("predict", "flowers.model", "flowers", "p.csv")
    run("predict", "flowers.model", "flowers", "p.csv", "--overwrite")
    assert sorted(os.listdir()) == sorted([*before, "p.csv"])


def test_names_of_columns_are_kept_in_corpus_and_model_and_checked(run, colours):
    names = ["width", "height", "age"]
    shown = json.loads(run("info", "flowers", "--json").stdout)
    assert (shown["feature_names"], shown["target"]) == (names, "colour")
    assert json.loads(run("info", "flowers.model", "--json").stdout)["feature_names"] == names
    assert colours.feature_names_in_.tolist() == names
    write_csv("others.csv", {"width": X[:, 0], "rooms": X[:, 1], "age": X[:, 2], "colour": COLOURS})
    run("ingest", "others.csv", "others")
    message = "found no 'height'"
    for command in (
        ["predict", "flowers.model", "others", "p.csv"],
        ["score", "flowers.model", "others"],
        ["fit", "flowers", "m", "--score", "others"],
        ["ingest", "flowers.csv", "others.csv", "both"],
    ):
        assert message in run(*command, code=3).stderr
    # rows without names are taken as they are
    np.savez("plain.npz", x=X, y=COLOURS)
    run("ingest", "plain.npz", "plain")
    run("predict", "flowers.model", "plain", "p.csv")


def test_commands_match_columns_by_name_and_ignore_others_and_python_refuses_another_order(run, colours):
    table = {"age": X[:, 2], "width": X[:, 0], "price": X[:, 1] ** 2, "height": X[:, 1], "colour": COLOURS}
    write_csv("other.csv", table)
    run("ingest", "other.csv", "other")
    run("predict", "flowers.model", "flowers", "p.csv")
    said = run("predict", "flowers.model", "other", "q.csv").stderr
    assert "other: ignored columns that the model does not have: price" in said
    assert Path("p.csv").read_bytes() == Path("q.csv").read_bytes()
    shown = [json.loads(run("score", "flowers.model", name, "--json").stdout) for name in ("flowers", "other")]
    assert shown[0]["confusion"] == shown[1]["confusion"]
    run("fit", "flowers", "m", "--transform", "standardize", "--landmarks", 9, "--score", "other")
    with pytest.raises(DataError, match="found the columns of the fit and 'price'"):
        colours.predict(open_corpus("other"))
    with pytest.raises(DataError, match="found the columns of the fit in another order"):
        colours.predict(write_corpus("c", pd.DataFrame(X[:, ::-1], columns=["age", "height", "width"])))


def test_leaves_are_fitted_planned_and_described(run, colours):
    options = ("--leaves", 2, "--landmarks", 9, "--sigma", 1, "--alpha", "gcv", "--transform", "metric:max-iter=1")
    shown = json.loads(run("fit", "flowers", "m", *options, "--json").stdout)
    assert shown["leaves"] == 2
    assert shown["leaf_rows"]["most"] >= shown["leaf_rows"]["least"] > 0
    assert load_model("m").n_leaves == 2
    planned = json.loads(run("plan", "flowers", *options, "--json").stdout)
    assert (planned["rows"], planned["segments"]) == (len(X), 2)
    assert "PartitionedClassifier" in run("info", "m").stdout
    run("predict", "m", "flowers", "p.csv")


def test_a_table_needs_no_settings(run, colours):
    shown = json.loads(run("fit", "flowers", "m", "--method", "tabular", "--time-limit", 0, "--json").stdout)
    assert (shown["chosen"], shown["ended"]) == ("Gaussian", "time_limit")
    assert [line["candidate"] for line in shown["candidates"]] == ["Gaussian"]
    run("score", "m", "flowers")
    for option, value in (("--landmarks", 7), ("--sigma", 3), ("--leaves", 2), ("--posterior", None)):
        given = (option,) if value is None else (option, value)
        assert f"{option}: " in run("fit", "flowers", "m2", "--method", "tabular", *given, code=8).stderr
    assert "has no plan" in run("plan", "flowers", "--method", "tabular", "--no-time", code=8).stderr
    assert "no parameter to tune" in run("tune", "flowers", "--method", "tabular", "--out", "t", code=8).stderr


def test_names_pass_through_transforms_and_searches_and_come_from_frames(run, colours):
    learned = []
    for name in ("m1", "m2"):
        run(
            "fit",
            "flowers",
            name,
            *("--transform", "standardize", "--transform", "metric"),
            "--landmarks",
            9,
            "--sigma",
            1,
        )
        learned.append(load_model(name)[1].weights_.tolist())
    assert learned[0] == learned[1]
    run("tune", "flowers", "--transform", "standardize", "--landmarks", 9, "--alpha", "0.1,1", "--out", "t")
    assert load_model("t/best.model").feature_names_in_.tolist() == ["width", "height", "age"]
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    for source in (frame, pa.Table.from_pandas(frame)):
        assert write_corpus("c", source, COLOURS, overwrite=True).info.feature_names == ("a", "b", "c")
    assert write_corpus("d", open_corpus("c")).info.feature_names == ("a", "b", "c")
    assert write_corpus("e", pd.DataFrame(X)).info.feature_names == ()
    with pytest.raises(DataError, match="columns of the fit, found no 'width', 'height', 'age'"):
        colours.predict(open_corpus("c"))


@pytest.mark.parametrize(
    ("values", "kind", "other"),
    [
        (np.arange(N) % 27 + 3, "whole numbers", "classes"),  # rings of a shell
        (np.arange(N) % 10, "10 classes", "numbers"),
        (np.arange(N) % 7 + 3, "7 classes", "numbers"),  # grades of wine
        (X[:, 0], "numbers", None),
        (COLOURS, "2 classes", None),
    ],
)
def test_the_kind_of_labels_is_announced_with_the_option_that_changes_it(run, values, kind, other):
    write_csv("t.csv", {"a": X[:, 0], "y": values})
    advice = f" (change it by --labels-are {other})" if other else ""
    assert re.search(rf"labels are +{re.escape(kind + advice)} *\n", run("ingest", "t.csv", "c").stdout)
    assert (open_corpus("c").info.classes != ()) == kind.endswith("classes")
    assert open_corpus("c").info.classes == write_corpus("d", X, values).info.classes
    if other:
        assert "change it" not in run("ingest", "t.csv", "c", "--labels-are", other, "--overwrite").stdout
        assert (open_corpus("c").info.classes != ()) == (other == "classes")


def test_a_fit_ends_with_its_score_and_score_has_the_usual_figures(run, colours):
    write_csv("numbers.csv", {"a": X[:, 0], "b": X[:, 1], "y": X[:, 0] ** 2 + X[:, 2] / 9})
    run("ingest", "numbers.csv", "numbers", "--split", "test=0.4")
    held_out = run("fit", "numbers", "m", "--landmarks", 20, "--score", "numbers-test").stdout
    scored = json.loads(run("score", "m", "numbers-test", "--json").stdout)
    assert held_out.splitlines()[-1] == f"held-out R² {scored['r2']:.4g} on {scored['rows']} rows of numbers-test"
    test, model = open_corpus("numbers-test"), load_model("m")
    y, f = test.column("y"), np.asarray(model.predict(test))
    expected = {"r2": r2_score(y, f), "rmse": root_mean_squared_error(y, f), "mae": mean_absolute_error(y, f)}
    assert {name: scored[name] for name in expected} == pytest.approx(expected)
    alone = json.loads(run("fit", "numbers", "alone", "--landmarks", 20, "--json").stdout)
    y, f = open_corpus("numbers").column("y"), np.asarray(model.predict(open_corpus("numbers")))
    assert alone["training_r2"] == pytest.approx(r2_score(y, f))
    text = run("fit", "numbers", "alone", "--landmarks", 20, "--overwrite").stdout
    assert text.endswith("no rows were held out; fit with --score CORPUS, or\nbigkernel score alone CORPUS\n")
    for options in (("--noise-variance", 0.3), ("--leaves", 2, "--posterior")):
        run("fit", "numbers", "n", "--landmarks", 9, *options, "--overwrite")
        run("predict", "n", "numbers", "p.csv", "--std", "--overwrite")
        written = np.genfromtxt("p.csv", delimiter=",", names=True)
        np.testing.assert_allclose(written["std"], load_model("n").predict(open_corpus("numbers"), return_std=True)[1])
        scored = json.loads(run("score", "n", "numbers", "--std", "--json").stdout)
        expected = normal_scores(load_model("n"), open_corpus("numbers"), y)
        expected = {name.removeprefix("neg_"): abs(value) for name, value in expected.items()}
        assert {name: scored[name] for name in expected} == pytest.approx(expected)
    scored = json.loads(run("score", "flowers.model", "flowers", "--json").stdout)
    balanced = balanced_accuracy_score(COLOURS, np.asarray(colours.predict(open_corpus("flowers"))))
    assert scored["balanced_accuracy_percent"] == pytest.approx(100 * balanced)


def test_bad_rows_are_refused_by_row_and_column_or_left_out_and_counted(run):
    columns = {name: X[:, j].astype(object) for j, name in enumerate("abc")} | {"y": COLOURS.astype(object)}
    columns["b"][7], columns["a"][20], columns["c"][90], columns["y"][120] = "", "n/k", "inf", "?"
    write_csv("t.csv", columns)
    refused = run("ingest", "t.csv", "c", code=3).stderr
    assert all(text in refused for text in ("column 'a': row 20 (from 0)", "'n/k'", "--on-bad-rows skip", "--drop"))
    with open("t.csv", "a") as file:
        file.write("1,2,3\n")  # a cell is missing
    shown = json.loads(run("ingest", "t.csv", "c", "--on-bad-rows", "skip", "--json").stdout)
    assert (shown["skipped_rows"], shown["rows"]) == (5, N - 4)
    assert sorted(shown["first_skipped"]) == sorted(f"t.csv row {i}" for i in (7, 20, 90, 120, 200))
    good = np.delete(np.arange(N), [7, 20, 90, 120])
    np.testing.assert_array_equal(open_corpus("c")[:], X[good])
    assert open_corpus("c").head(N)["y"].tolist() == COLOURS[good].tolist()
    run("ingest", "t.csv", "t.csv", "d", "--on-bad-rows", "skip")
    assert open_corpus("d").column("row").tolist() == [*good, *(good + N + 1)]


@pytest.mark.parametrize("kind", [str, int])
def test_rows_keep_their_ids_from_a_table_to_its_predictions(run, colours, kind):
    ids = [kind(f"{'P' * (kind is str)}{i}") for i in np.random.default_rng(0).permutation(N)]
    table = pd.DataFrame({"width": X[:, 0], "height": X[:, 1], "age": X[:, 2], "who": ids, "colour": COLOURS})
    pyarrow.parquet.write_table(pa.Table.from_pandas(table), "t.parquet")
    table.assign(height=table["height"].where(table.index != 5)).to_csv("t.csv", index=False)
    lines = Path("t.csv").read_text().splitlines(keepends=True)
    # data rows 49 and 90 have other cells; the empty line is none
    Path("t.csv").write_text("".join([*lines[:50], "1,2\n", "\n", *lines[50:90], "1,2,3,4,5,6\n", *lines[90:]]))
    expected = pd.Series(colours.predict(table.drop(columns=["who", "colour"])), ids)
    for file, shifts in (("t.csv", (49, 89)), ("t.parquet", ())):
        run("ingest", file, "t", "--id-column", "who", "--split", "test=0.5", "--on-bad-rows", "skip", "--overwrite")
        test = open_corpus("t-test")
        for out in ("p.csv", "p.parquet"):
            run("predict", "flowers.model", "t-test", out, "--overwrite")
            predicted = getattr(pd, f"read_{out[2:]}")(out).set_index("who")
            assert 60 < len(predicted) < 140
            pd.testing.assert_series_equal(predicted["prediction"], expected[predicted.index], check_names=False)
        places = table.set_index("who").index.get_indexer(predicted.index)
        assert test.column("row").tolist() == (places + sum(places >= shift for shift in shifts)).tolist()
        copy = write_corpus("copy", as_rows(test).window(3, 20), overwrite=True)
        store = colours.predict_to(write_corpus("again", copy, overwrite=True), "p", overwrite=True)
        assert store["who"][:].tolist() == predicted.index.tolist()[3:20]
    assert f"{N} repeated ids" in run("ingest", "t.parquet", "t.parquet", "d", "--id-column", "who").stdout
    run("ingest", "t.parquet", "t", "--drop", "who", "--split", "test=0.5", "--overwrite")
    run("predict", "flowers.model", "t-test", "q.csv")
    assert pd.read_csv("q.csv")["row"].tolist() == places.tolist()


def test_a_feature_that_is_called_like_an_id_and_a_table_without_its_target_are_named(run):
    for name, expected in (("grid", False), ("userId", True), ("id", True)):
        write_csv("t.csv", {name: range(N), "a": X[:, 0], "y": X[:, 1]})
        advice = f"keep it as the id: --id-column {name}, or leave it out: --drop {name}"
        assert (advice in run("ingest", "t.csv", "c", "--overwrite").stdout) == expected
    run("fit", "c", "m", "--landmarks", 9)
    write_csv("u.csv", {"id": range(N), "a": X[:, 0]})
    assert "no column 'y' for the target" in run("ingest", "u.csv", "u", "--target", "y", code=3).stderr
    run("ingest", "u.csv", "u")
    for command in ("predict m u p.csv", "ingest t.csv u.csv b", "fit c n --score u"):
        assert "--target none" in run(*command.split(), code=3).stderr


def test_bad_rows_of_parquet_and_arrays_are_left_out(run):
    values = np.where(np.arange(N) == 3, np.nan, X[:, 1])
    whole = pa.array([None, *range(1, N)], pa.int16())
    pyarrow.parquet.write_table(pa.table({"a": whole, "b": values, "y": COLOURS}), "t.parquet")
    np.savez("t.npz", x=np.column_stack([X[:, 0], values]), y=X[:, 0])
    assert "column 'a': missing value" in run("ingest", "t.parquet", "c", code=3).stderr
    for source, rows in (("t.parquet", [0, 3]), ("t.npz", [3])):
        shown = json.loads(run("ingest", source, "c", "--on-bad-rows", "skip", "--json", "--overwrite").stdout)
        assert shown["first_skipped"] == [f"{source} row {row}" for row in rows]
        np.testing.assert_array_equal(open_corpus("c")[:][:, 1], np.delete(values, rows))


def test_columns_are_dropped_by_name_or_number(run):
    write_csv("t.csv", {"id": COLOURS, "a": X[:, 0], "note": COLOURS, "y": X[:, 1]})
    assert "text: 'id', 'note';" in run("ingest", "t.csv", "c", "--on-bad-rows", "skip", code=3).stderr
    run("ingest", "t.csv", "c", "--drop", "id", "--drop", 2)
    assert (open_corpus("c").info.feature_names, open_corpus("c").info.target) == (("a",), "y")
    run("ingest", "t.csv", "d", "--drop", "id", "--drop", "y")  # the last that is left is the target
    assert open_corpus("d").info.target == "note"
    assert "found no column 'b' for --drop" in run("ingest", "t.csv", "e", "--drop", "b", code=3).stderr
    both = run("ingest", "t.csv", "e", "--drop", "y", "--target", "y", code=3).stderr
    assert "'y' is to be left out (--drop), and is the target" in both


@pytest.mark.filterwarnings("always::UserWarning")
def test_a_column_of_another_scale_is_named_with_the_option_that_helps_before_its_consequences(run):
    write_csv("t.csv", {"rooms": X[:, 0], "population": 1e4 * X[:, 1] + 3e4, "age": X[:, 2], "y": X[:, 0]})
    run("ingest", "t.csv", "c")
    first = run("fit", "c", "m", "--landmarks", 20).stderr.splitlines()[0]
    assert re.search(r"columns differ.* column 'population' has.*--transform standardize", first)
    assert "columns differ" not in run("fit", "c", "n", "--landmarks", 20, "--transform", "standardize").stderr


def test_a_table_of_text_and_dates_is_trained_on_and_predicted(run):
    hours = pd.Timestamp("2013-01-01") + pd.to_timedelta(rng.integers(0, 9000, N), "h")
    kind = np.where(X[:, 1] > 1, None, COLOURS)
    table = pd.DataFrame({"id": np.arange(N), "kind": kind, "when": hours.astype(str), "age": X[:, 2]})
    table = table.assign(late="", y=X[:, 0] + hours.hour)
    table.loc[::9, "age"] = np.nan
    table.loc[N - 1, "late"] = "A1"  # text beyond the first lines
    table.to_csv("all.csv", index=False)
    assert "--encode" in run("ingest", "all.csv", "all", code=3).output
    run("ingest", "all.csv", "all", "--encode", "--id-column", "id", "--split", "test=0.3", "--chunk-rows", 40)
    names = ["kind=blue", "kind=red", "kind missing", "when", "age", "age missing", "late missing", "late=A1"]
    assert sorted(open_corpus("all").info.feature_names) == sorted(names)
    run("fit", "all", "m", "--transform", "standardize", "--landmarks", 30, "--score", "all-test")
    scored = json.loads(run("score", "m", "all-test", "--json").stdout)
    new = table[["when", "age", "late", "kind", "id"]].assign(more="x")
    new.to_csv("new.csv", index=False)
    run("predict", "m", "new.csv", "p.csv", "--id-column", "id")
    predicted = pd.read_csv("p.csv")
    model = load_model("m")
    expected = model.predict(pd.read_csv("new.csv")[model.feature_names_in_])
    np.testing.assert_allclose(predicted["prediction"], expected, rtol=1e-6)
    assert predicted["id"].tolist() == list(range(N))
    test = pd.read_csv("p.csv").set_index("id").loc[open_corpus("all-test").column("id"), "prediction"]
    assert scored["r2"] == pytest.approx(r2_score(table["y"][test.index], test), rel=1e-6)
    columns = {name: pd.read_csv("new.csv")[name].to_numpy() for name in new}
    np.testing.assert_allclose(Predictor.load("m").predict(columns), expected, rtol=1e-9)
    run("ingest", "new.csv", "new", "--encode-as", "m", "--target", "none")
    run("predict", "m", "new", "q.csv")
    assert pd.read_csv("q.csv")["prediction"].tolist() == predicted["prediction"].tolist()
    new.drop(columns="id").to_csv("comma.csv.bz2", sep=":", decimal=",")
    assert "decimals have a comma" in run("predict", "m", "comma.csv.bz2", "s.csv", "--delimiter", ":").stderr
    assert pd.read_csv("s.csv")["prediction"].tolist() == predicted["prediction"].tolist()
    assert not [name for name in os.listdir() if name.startswith(".")]
    run("ingest", "all.csv", "other", "--encode", "--drop", "late")
    assert "--encode-as" in run("predict", "m", "other", "r.csv", code=3).output
    assert "--encode-as" in run("fit", "other", "n", "--score", "all-test", code=3).output
    new.drop(columns="when").to_csv("new.csv", index=False)
    assert "found no 'when'" in run("predict", "m", "new.csv", "r.csv", code=3).output


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_a_table_is_fitted_predicted_and_scored_without_a_corpus_or_a_method(run, kind):
    hours = pd.Timestamp("2013-01-01") + pd.to_timedelta(rng.integers(0, 9000, N), "h")
    table = pd.DataFrame({"id": np.arange(N), "y": X[:, 0] + (COLOURS == "red"), "kind": COLOURS, "when": hours})
    table = table.assign(age=np.where(np.arange(N) % 9, X[:, 2], np.nan))
    table["y"] = table["y"] if kind == "numbers" else np.where(table["y"] > 1, 2, 1)
    table.loc[5, "y"] = np.nan
    table[:150].to_csv("train.csv", index=False)
    os.mkdir("test")
    table[150:].to_parquet("test/part.parquet", index=False)
    fitted = run("fit", "train.csv", "m", "--target", "y", "--drop", "id", "--time-limit", 0)
    other = {"numbers": "classes", "classes": "numbers"}[kind]
    found = {"numbers": "numbers", "classes": "2 classes"}[kind]
    assert f"'y' has {found}; for {other} --labels-are {other}" in fitted.stderr
    assert "1 rows without a label" in fitted.stderr
    assert {"numbers": "R² 0.", "classes": "accuracy "}[kind] in fitted.stdout.splitlines()[-3]
    model = load_model("m")
    assert [*model.feature_names_in_] == ["kind", "when", "age"]
    run("predict", "m", "test", "p.csv", "--id-column", "id")
    scored = json.loads(run("score", "m", "test", "--json").stdout)
    again = json.loads(run("fit", "train.csv", "m", "--score", "test", "--drop", "id", "--target", 1, "--seed", 0,
                           "--time-limit", 0, "--overwrite", "--json", "--labels-are", kind).stdout)  # fmt: skip
    predicted = pd.read_csv("p.csv")
    assert predicted["id"].tolist() == [*range(150, N)]
    for figure, expected in (
        ("r2", r2_score(table["y"][150:], predicted["prediction"])) if kind == "numbers" else
        ("accuracy_percent", 100 * (table["y"][150:] == predicted["prediction"].to_numpy()).mean()),
    ):  # fmt: skip
        assert scored[figure] == pytest.approx(expected, rel=1e-6)
        assert again[f"held_out_{figure}"] == pytest.approx(expected, rel=1e-6)
    assert not [name for name in os.listdir() if name.startswith(".")]


def test_options_of_tables_are_refused_for_a_corpus_and_tables_for_a_model_of_numbers(run, colours):
    for command in (
        *("fit flowers n --target x", "fit flowers n --labels-are classes"),
        *("predict flowers.model flowers p.csv --id-column x", "score flowers.model flowers --decimal ,"),
    ):
        assert "is of tables" in run(*command.split(), code=2).stderr
    for command in ("predict flowers.model flowers.csv p.csv", "score flowers.model flowers.csv"):
        assert "begins with no TableEncoder" in run(*command.split(), code=3).stderr
    assert "or pass another --method" in run("fit", "flowers.csv", "n", "--landmarks", 20, code=8).stderr
    fitted = run("fit", "flowers.csv", "n", "--method", "krr", "--landmarks", 20)
    assert "the target is 'colour'; --target names another column" in fitted.stderr
    assert type(load_model("n")[-1]).__name__ == "KernelRidgeClassifier"
    write_csv("t.csv", {"width": X[:, 0], "height": X[:, 1], "age": X[:, 2]})
    assert "no column 'colour' for the target" in run("score", "n", "t.csv", code=3).stderr


def test_categories_of_numbers_are_known_in_text(run):
    table = pd.DataFrame({"k": pd.Categorical([1, 2, 3, 3] * 20), "x": np.arange(80.0)})
    model = make_pipeline(TableEncoder(), Ridge()).fit(table, table["k"].astype(float))
    save_model(model, "m")
    table.assign(k=["1.0", "2", "", "3"] * 20).to_csv("new.csv", index=False)
    run("predict", "m", "new.csv", "p.csv")
    expected = model.predict(table.assign(k=[1.0, 2.0, np.nan, 3.0] * 20))
    np.testing.assert_allclose(pd.read_csv("p.csv")["prediction"], expected, atol=1e-9)


def test_text_that_spreadsheets_run_begins_with_an_apostrophe(run):
    ids = np.array(["=1+1", "-2.5", "+49 1", "@x", "a"] * 20)
    corpus = write_corpus("c", X[:100], np.where(X[:100, 0] > 0, "=cmd", "plain"), ids=ids)
    assert corpus.column("id").tolist() == ids.tolist()
    run("fit", "c", "m", "--landmarks", 10)
    run("predict", "m", "c", "p.csv")
    written = pd.read_csv("p.csv", dtype=str)
    assert written["id"].tolist()[:5] == ["'=1+1", "-2.5", "'+49 1", "'@x", "a"]
    assert set(written["prediction"]) == {"'=cmd", "plain"}
    run("predict", "m", "c", "raw.csv", "--raw-text")
    assert pd.read_csv("raw.csv", dtype=str)["id"].tolist() == ids.tolist()
    with pytest.raises(DataError, match="whole numbers or text as ids"):
        write_corpus("d", X, ids=X[:, 0])
    assert write_corpus("e", X, ids=range(N)).column("id").tolist() == list(range(N))
