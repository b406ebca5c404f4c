"""HTML for notebooks: figures, first rows and images; text is escaped."""

import base64
import html
import io
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.image import imread
from sklearn import config_context

from bigkernel import DICA, KernelRidge, Ridge, SweepSearchCV, UnitNormalizer, executing, write_corpus
from bigkernel.data.run_directory import Run
from bigkernel.engine.rows import as_rows

pytestmark = pytest.mark.filterwarnings("ignore::bigkernel.errors.BestAtEdgeWarning")  # grids are small
rng = np.random.default_rng(5)
IMAGES = rng.integers(0, 256, (30, 5, 6), dtype=np.uint8)
X = rng.normal(size=(60, 12))
HOSTILE = "<script>alert(1)</script>\x1b[2J\u202e"
TAGS = {"div", "table", "caption", "b", "tr", "th", "td", "figure", "img", "figcaption", "details", "summary"}


def shown(value):
    """Return the text of a fragment of HTML, in which every tag must be known and closed."""
    fragment, opened = value._repr_html_(), []
    for closes, tag, ends in re.findall(r"<(/?)(\w+)[^>]*?(/?)>", fragment):
        assert tag in TAGS
        if closes:
            assert opened.pop() == tag
        elif not ends and tag != "img":
            opened.append(tag)
    assert opened == []
    text = html.unescape(re.sub(r"<[^>]*>", " ", fragment))
    assert not {"\x1b", "\u202e"} & set(text)
    return text


@pytest.fixture
def digits(tmp_path):
    return write_corpus(tmp_path / "digits", IMAGES, np.arange(30) % 3, chunk_rows=7)


def test_first_rows_of_images_are_shown_as_images(digits):
    page = digits._repr_html_()
    found = [imread(io.BytesIO(base64.b64decode(data))) for data in re.findall(r"base64,([\w+/=]+)", page)]
    assert len(found) == 10
    for picture, image in zip(found, IMAGES.astype(float), strict=False):
        np.testing.assert_allclose(picture, (image - image.min()) / np.ptp(image), atol=1 / 255)
    assert re.findall(r"<figcaption>(.*?)<", page) == [str(i % 3) for i in range(10)]
    assert "30" in shown(digits)
    odd = replace(digits, info=replace(digits.info, image_shape=(-5, -6)))
    assert "can only specify" in shown(odd)
    assert as_rows(digits)._repr_html_().count("<img") == 10


def test_names_and_labels_are_escaped(tmp_path):
    labels = np.where(np.arange(60) % 2, HOSTILE, "plain")
    corpus = write_corpus(tmp_path / "<b>c", X, labels, name=HOSTILE)
    for value in (corpus, as_rows(corpus), UnitNormalizer().fit(corpus).transform(corpus)):
        text = shown(value)
        assert "<b>c" in text
    assert r"<script>alert(1)</script>\x1b[2J\u202e" in shown(corpus)
    assert "UnitNorm" in shown(UnitNormalizer().fit(corpus).transform(corpus))
    shutil.rmtree(corpus.path)
    assert "does not exist" in shown(corpus)


def test_plans_runs_and_reports_are_tables(tmp_path):
    corpus = write_corpus(tmp_path / "c", X, X[:, 0], chunk_rows=20)
    model = KernelRidge("rbf", n_landmarks=8, random_state=0)
    assert re.search(r"rows\s+60\s.*task bytes\s+[\d.]+ MB", shown(model.plan(as_rows(corpus))), re.S)
    with executing("threads", run=tmp_path / "run"):
        model.fit(corpus)
    assert re.search(r"moments\s+\d+", shown(Run(str(tmp_path / "run"))))
    text = shown(model.fit_report())
    assert re.search(r"KernelRidge\s.*landmarks\s+8\s.*diagnostics\s.*prediction error", text, re.S)
    assert "Ridge" in shown(Ridge().fit(X, X[:, 0]).fit_report())
    domains = DICA(n_components=2, n_landmarks=8, random_state=0).fit(X, X[:, 0] > 0, sample_domain=np.arange(60) % 2)
    assert re.search(r"distributional variance\s.*features", shown(domains.fit_report()), re.S)


def test_a_search_shows_its_best_candidates_and_its_estimator():
    grid = {"gamma": [0.1, 1.0], "alpha": [1e-3, 1.0, 1e3]}
    search = SweepSearchCV(KernelRidge("rbf", n_landmarks=8, random_state=0), grid, cv=3)
    assert "sk-" in search._repr_mimebundle_()["text/html"]
    bundle = search.fit(X, X[:, 0])._repr_mimebundle_()
    assert bundle["text/plain"].startswith("SweepSearchCV(")
    table, _, diagram = bundle["text/html"].partition("<style>")
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", table.rpartition("<tr><th")[2])
    assert cells[:2] == [f"{search.best_params_[name]:.4g}" for name in ("alpha", "gamma")]
    assert cells[2].startswith(f"{search.best_score_:.5g} ± ")
    assert len(cells) == 3 * 6
    assert "KernelRidge" in diagram
    with config_context(display="text"):
        assert search._repr_mimebundle_()["text/html"] == table


def test_the_plan_of_a_search_is_a_table_of_its_sweeps():
    grid = {"gamma": [0.1, 1.0], "alpha": [1e-3, 1.0, 1e3]}
    plan = SweepSearchCV(KernelRidge("rbf", n_landmarks=8, random_state=0), grid, cv=3).plan(X, X[:, 0])
    text = shown(plan)
    for expected in ("plan of a search", "candidates", *(line.strip() for line in plan.sweeps)):
        assert expected in text
