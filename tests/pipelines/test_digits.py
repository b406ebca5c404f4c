"""The digits experiment: its corpora, its held-out test digits and its table."""

import csv
import json

import numpy as np
import pytest
from pipeline_runs import require_page, results_of
from sklearn.kernel_ridge import KernelRidge
from sklearn.preprocessing import normalize

from bigkernel import open_corpus
from bigkernel.errors import DataError
from pipelines.shared.deformed import blocks
from pipelines.shared.digit_corpora import VARIATION, bundled, bundled_originals, choose_labelled
from pipelines.shared.page import Column, Page, Table


def test_test_digits_are_a_stratified_split_of_the_originals():
    from sklearn.datasets import load_digits

    train, train_labels, test, test_labels = bundled_originals(0)
    assert (len(train), len(test)) == (1200, 597)
    everything = np.concatenate([train, test]).reshape(1797, -1)
    stored = np.rint(load_digits().data * 255 / 16)
    order = lambda rows: rows[np.lexsort(rows.T)]  # noqa: E731
    np.testing.assert_array_equal(order(everything), order(stored))
    assert np.abs(np.bincount(test_labels) / 597 - np.bincount(train_labels) / 1200).max() < 0.002


def test_the_corpus_has_originals_and_copies_with_labels_and_groups_and_is_reused(tmp_path):
    images, labels, test_images, test_labels = bundled_originals(3)
    made = bundled(tmp_path, 1250, 3, keep=True)
    again = bundled(tmp_path, 1250, 3, keep=True)
    fresh = bundled(tmp_path, 1250, 3, keep=False)
    other = bundled(tmp_path, 1300, 3, keep=True)
    reseeded = bundled(tmp_path, 1300, 4, keep=True)
    bundled(tmp_path, 1300, 3, keep=False)
    assert [pair.kept for pair in (made, again, fresh, other, reseeded)] == [False, True, False, False, False]
    corpus = open_corpus(tmp_path / "train.corpus")
    group, x = np.arange(1300) % 1200, corpus.column("x")
    images = images.reshape(1200, 64)
    np.testing.assert_array_equal(x[:1200], images)
    rows = np.concatenate(list(blocks(images.reshape(-1, 8, 8), 1300, 3, VARIATION)))
    np.testing.assert_array_equal(x, rows.reshape(1300, 64))
    np.testing.assert_array_equal(corpus.column("group"), group)
    np.testing.assert_array_equal(corpus.column("y"), labels[group])
    np.testing.assert_array_equal(other.test.column("x"), test_images.reshape(597, 64))
    np.testing.assert_array_equal(other.test.column("y"), test_labels)


def test_labelled_rows_have_distinct_originals(rng):
    group = np.arange(300) % 30
    y = group % 3
    chosen = choose_labelled(y, group, 5, seed=1)
    assert np.bincount(y[chosen]).tolist() == [5, 5, 5]
    assert len(np.unique(group[chosen])) == 15
    assert (choose_labelled(y, group, 5, seed=2) != chosen).any()
    with pytest.raises(DataError, match="class 0: 10 different digits, fewer than the 11"):
        choose_labelled(y, group, 11, seed=1)


def test_a_page_escapes_text_and_needs_no_network():
    table = Table([Column("a", "<a>", left=True), Column("b", "b")], [{"a": "<script>", "b": None}])
    page = Page("<b>").text("1 < 2 & 93 %").facts({"<k>": "<v>"}).table(table, caption="<c>")
    text = page.figure(b"\x89PNG\r\n\x1a\n" + bytes(24), caption="<d>").html()
    for raw in ("<b>", "<script>", "<k>", "<v>", "<a>", "<c>", "<d>", "1 < 2"):
        assert raw not in text
    assert "93\u00a0%" in text
    assert "://" not in text
    assert "data:image/png;base64," in text


@pytest.mark.slow
@pytest.mark.cluster
def test_the_pipeline_prints_one_json_object_and_writes_its_report(tmp_path):
    results = results_of("digits", "--rows", 2000, "--landmarks", 150, "--workers", 1, "--out", tmp_path)
    assert json.loads((tmp_path / "results.json").read_text()) == results
    sssl, alone, every, strokes = results["results"]
    assert [fit["labels"] for fit in (sssl, alone, every, strokes)] == [50, 50, 2000, 2000]
    assert strokes["accuracy_percent"] > every["accuracy_percent"] - 2
    assert every["accuracy_percent"] > max(sssl["accuracy_percent"], alone["accuracy_percent"]) + 5
    # KRR on the labelled rows alone against scikit-learn's
    train, test = open_corpus(tmp_path / "train.corpus"), open_corpus(tmp_path / "test.corpus")
    ids, sigma = results["labelled_rows"], results["setting"]["krr_sigma"]
    x, y = normalize(train.column("x")[ids].astype(float)), train.column("y")[ids]
    krr = KernelRidge(kernel="rbf", gamma=1 / (2 * sigma**2), alpha=results["setting"]["krr_alpha"])
    values = krr.fit(x, np.eye(10)[y]).predict(normalize(test.column("x").astype(float)))
    assert 100 * np.mean(values.argmax(axis=1) == test.column("y")) == pytest.approx(alone["accuracy_percent"])
    with open(tmp_path / "table.csv", encoding="utf-8") as file:
        methods = [row["method"] for row in csv.DictReader(file)]
    assert methods == ["SSSL", "KRR, same labels", "KRR, all labels", "KRR, strokes"]
    assert require_page(tmp_path).count("<img") >= 5  # and one of misread digits, where there are some
