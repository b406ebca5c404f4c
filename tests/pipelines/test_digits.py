"""The digits pipeline: rows are a pure function of seed and index, test digits were held out, the table is right."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console
from scipy.ndimage import map_coordinates
from sklearn.kernel_ridge import KernelRidge
from sklearn.preprocessing import normalize

from bigkernel import executing, open_corpus
from bigkernel.errors import DataError
from bigkernel.report.page import Column, Page, Table
from pipelines import digit_corpora
from pipelines.__main__ import main
from pipelines.digit_corpora import Deformed, _bilinear, bundled, bundled_originals
from pipelines.digits import choose_labelled
from pipelines.digits_page import COLUMNS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def source() -> Deformed:
    return Deformed(bundled_originals(0)[0], n_rows=6000, chunk_rows=1000, seed=7)


def test_a_deformed_row_depends_on_seed_and_row_alone(source: Deformed) -> None:
    whole = source.read(0, 6000)
    for start, stop in ((0, 1), (1199, 1203), (4095, 4098), (5999, 6000)):
        np.testing.assert_array_equal(source.read(start, stop), whole[start:stop])
    other = Deformed(source.originals, 6000, 1000, seed=8)
    assert (other.read(0, 100) != whole[:100]).any(axis=1).all()


def test_a_row_is_a_noisy_copy_of_its_original(source: Deformed, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SHIFT_PIXELS", "ROTATION_DEGREES"):
        monkeypatch.setattr(digit_corpora, name, 0.0)
    grey = Deformed(np.full((3, 8, 8), 128, np.uint8), 900, 900)
    assert grey.read(0, 900).std() == pytest.approx(digit_corpora.NOISE, rel=0.02)
    monkeypatch.setattr(digit_corpora, "NOISE", 0.0)
    np.testing.assert_array_equal(
        source.read(1000, 1400), source.originals.reshape(1200, 64)[np.arange(1000, 1400) % 1200]
    )


def test_bilinear_equals_scipy_and_looks_at_one_image_a_row(rng: np.random.Generator) -> None:
    images = rng.integers(0, 256, (5, 8, 7)).astype(np.uint8)
    which, v, h = rng.integers(0, 5, 40), rng.uniform(-3, 10, (40, 6)), rng.uniform(-3, 9, (40, 6))
    found = _bilinear(images, which, v, h)
    for i in range(40):
        expected = map_coordinates(images[which[i]].astype(float), [v[i], h[i]], order=1, mode="grid-constant")
        np.testing.assert_allclose(found[i], expected, atol=1e-3)
    order = rng.permutation(40)
    np.testing.assert_array_equal(_bilinear(images, which[order], v[order], h[order]), found[order])


def test_test_digits_are_originals_held_out_in_proportion() -> None:
    from sklearn.datasets import load_digits

    train, train_labels, test, test_labels = bundled_originals(0)
    assert (len(train), len(test)) == (1200, 597)
    everything = np.concatenate([train, test]).reshape(1797, -1)
    stored = np.rint(load_digits().data * 255 / 16)
    order = lambda rows: rows[np.lexsort(rows.T)]  # noqa: E731
    np.testing.assert_array_equal(order(everything), order(stored))
    assert np.abs(np.bincount(test_labels) / 597 - np.bincount(train_labels) / 1200).max() < 0.002


def test_the_corpus_is_the_source_with_labels_and_groups_and_is_kept(tmp_path: Path) -> None:
    images, labels, test_images, test_labels = bundled_originals(3)
    with executing("serial"):
        made = bundled(tmp_path, 2500, 3, keep=True)
        again = bundled(tmp_path, 2500, 3, keep=True)
        fresh = bundled(tmp_path, 2500, 3, keep=False)
        other = bundled(tmp_path, 2600, 3, keep=True)
    assert [pair.kept for pair in (made, again, fresh, other)] == [False, True, False, False]
    corpus = open_corpus(tmp_path / "train.corpus")
    group = np.arange(2600) % 1200
    np.testing.assert_array_equal(corpus.column("x"), Deformed(images, 2600, 2600, 3).read(0, 2600))
    np.testing.assert_array_equal(corpus.column("group"), group)
    np.testing.assert_array_equal(corpus.column("y"), labels[group])
    np.testing.assert_array_equal(other.test.column("x"), test_images.reshape(597, 64))
    np.testing.assert_array_equal(other.test.column("y"), test_labels)


def test_labelled_rows_are_of_distinct_originals(rng: np.random.Generator) -> None:
    group = np.arange(300) % 30
    y = group % 3
    chosen = choose_labelled(y, group, 5, seed=1)
    assert np.bincount(y[chosen]).tolist() == [5, 5, 5]
    assert len(np.unique(group[chosen])) == 15
    assert (choose_labelled(y, group, 5, seed=2) != chosen).any()
    with pytest.raises(DataError, match="class 0: 10 different digits, fewer than the 11"):
        choose_labelled(y, group, 11, seed=1)


def test_help_teaches_without_importing_a_pipeline() -> None:
    code = (
        "import sys; from pipelines.__main__ import main; main(['--help'], standalone_mode=False); "
        "print({'numpy', 'distributed', 'matplotlib', 'bigkernel'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "digits" in done.stdout
    assert done.stdout.strip().endswith("set()")


def test_the_widest_table_fits_eighty_columns() -> None:
    record = {
        "method": "KRR, same labels",
        "labels": 9_999_999,
        "rows": 9_999_999,
        "accuracy_percent": 10.0,
        "error_percent": 90.0,
        "standard_error_percent": 10.0,
        "fit_seconds": 9999.9,
        "gflops_per_second": 9999.0,
        "peak_bytes": 9.999e9,
    }
    out = io.StringIO()
    Table(COLUMNS, [record]).print(Console(file=out, width=80))
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    assert "90.00 ± 10.00" in lines[2]
    assert "…" not in out.getvalue()
    assert max(map(len, lines)) <= 80


def test_a_page_escapes_text_and_needs_no_network() -> None:
    table = Table([Column("a", "<a>", left=True), Column("b", "b")], [{"a": "<script>", "b": None}])
    page = Page("<b>").text("1 < 2 & 93 %").facts({"<k>": "<v>"}).table(table, caption="<c>")
    text = page.figure(b"\x89PNG\r\n\x1a\n" + bytes(24), caption="<d>").html()
    for raw in ("<b>", "<script>", "<k>", "<v>", "<a>", "<c>", "<d>", "1 < 2"):
        assert raw not in text
    assert "93\u00a0%" in text
    assert "://" not in text
    assert "data:image/png;base64," in text


@pytest.mark.cluster
def test_the_pipeline_prints_one_json_object_and_writes_its_report(tmp_path: Path) -> None:
    options = ["--rows", "2000", "--landmarks", "150", "--workers", "1", "--out", str(tmp_path), "--json"]
    done = CliRunner().invoke(main, ["digits", *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    results = json.loads(done.stdout)
    assert json.loads((tmp_path / "results.json").read_text()) == results
    sssl, alone, every = results["results"]
    assert [sssl["labels"], alone["labels"], every["labels"]] == [50, 50, 2000]
    assert every["accuracy_percent"] > max(sssl["accuracy_percent"], alone["accuracy_percent"]) + 5
    # KRR on the labelled rows alone against scikit-learn's
    train, test = open_corpus(tmp_path / "train.corpus"), open_corpus(tmp_path / "test.corpus")
    ids, sigma = results["labelled_rows"], results["setting"]["krr_sigma"]
    x, y = normalize(train.column("x")[ids].astype(float)), train.column("y")[ids]
    krr = KernelRidge(kernel="rbf", gamma=1 / (2 * sigma**2), alpha=results["setting"]["krr_alpha"])
    values = krr.fit(x, np.eye(10)[y]).predict(normalize(test.column("x").astype(float)))
    assert 100 * np.mean(values.argmax(axis=1) == test.column("y")) == pytest.approx(alone["accuracy_percent"])
    with open(tmp_path / "table.csv", encoding="utf-8") as file:
        assert [row["method"] for row in csv.DictReader(file)] == ["SSSL", "KRR, same labels", "KRR, all labels"]
    page = (tmp_path / "report.html").read_text()
    assert page.count("<img") == 7
    assert 'src="http' not in page
