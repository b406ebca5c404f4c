"""DICA and UDICA: the dense form, missing labels, and invalid domains and labels."""

from dataclasses import replace

import dask.array as da
import numpy as np
import pytest
import reference
import reference_domains
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from bigkernel import DICA, JDA, Gaussian, Linear
from bigkernel.engine.rows import as_rows
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators.inputs.columns import cell_counts, distinct
from bigkernel.statistics.domain_cells import Cells

rng = np.random.default_rng(20130617)
N, D, M, SIGMA = 150, 3, 14, 2.0
DOMAIN, LABELS = rng.choice([2, 5, 11], N), rng.integers(0, 4, N)
X = rng.normal(size=(N, D)) + 0.15 * DOMAIN[:, None] + (LABELS[:, None] == [1, 2, 3])
NEW, Z = rng.normal(size=(21, D)), X[rng.permutation(N)[:M]]
CODES = np.where(rng.random(N) < 0.3, -1, LABELS)
COUNT = rng.integers(0, 4, N)  # weights that repeat rows
GIVEN = {"kernel": Gaussian(SIGMA), "n_components": 3, "alpha": 0.1, "epsilon": 1e-3}
LANDMARKS = {**GIVEN, "landmarks": Z}
CASES = {
    "unsupervised": None,
    "all": LABELS,
    "some": CODES,
    "none in one domain": np.where(DOMAIN == 5, -1, LABELS),
    "in one domain alone": np.where(DOMAIN == 5, LABELS, -1),
    "a class in one domain alone": np.where((LABELS == 2) & (DOMAIN != 11), -1, LABELS),
}
FORMS = pytest.mark.parametrize("form", [GIVEN, LANDMARKS], ids=["exact", "landmarks"])

pytestmark = pytest.mark.usefixtures("small_steps")


def dense(form, labels, rows=NEW, invariance=1.0, of=slice(None)):
    """Return the paper's components of new rows, with the exact kernel or that of the landmarks, from some rows."""
    K, of_new = reference.gaussian(X[of], X[of], SIGMA), reference.gaussian(rows, X[of], SIGMA)
    if "landmarks" in form:
        inverse = np.linalg.inv(reference.gaussian(Z, Z, SIGMA))
        block = reference.gaussian(X[of], Z, SIGMA)
        K, of_new = block @ inverse @ block.T, reference.gaussian(rows, Z, SIGMA) @ inverse @ block.T
    given = {"labels": None if labels is None else labels[of], "epsilon": 1e-3, "invariance": invariance}
    _, values, B = reference_domains.components(K, DOMAIN[of], 0.1, 3, **given)
    return reference_domains.project(K, of_new, B), values


def assert_components(model, expected, rows=NEW, atol=1e-8):
    assert_allclose(reference_domains.up_to_sign(model.transform(rows), expected), expected, atol=atol)


@FORMS
@pytest.mark.parametrize("invariance", [1.0, 200.0])
@pytest.mark.parametrize("labels", CASES.values(), ids=CASES)
def test_components_of_new_rows_match_the_paper(labels, invariance, form):
    model = DICA(**form, supervised=labels is not None, invariance=invariance)
    model.fit(X, labels, sample_domain=DOMAIN)
    expected, values = dense(form, labels, invariance=invariance)
    assert_components(model, expected)
    assert_allclose(model.eigenvalues_, values, rtol=1e-8)
    assert_array_equal(model.domains_, [2, 5, 11])
    at = model.kernel_(form.get("landmarks", X)) @ model.dual_coef_
    assert (at[np.abs(at).argmax(axis=0), range(3)] > 0).all()


@FORMS
@pytest.mark.parametrize("labels", [None, CASES["none in one domain"]], ids=["UDICA", "DICA"])
def test_a_row_of_weight_w_is_w_rows(labels, form):
    model = DICA(**form, supervised=labels is not None).fit(X, labels, DOMAIN, sample_weight=COUNT)
    expected, values = dense(form, labels, of=np.repeat(np.arange(N), COUNT))
    assert_allclose(model.eigenvalues_, values, rtol=1e-8)
    assert_components(model, expected)


@FORMS
@pytest.mark.filterwarnings("ignore::bigkernel.errors.RankDeficiencyWarning")  # of the linear kernel
def test_dica_has_one_component_less_than_classes_and_udica_as_many_as_the_kernel_has_dimensions(form):
    assert DICA(**form).set_params(n_components=50).fit(X, LABELS, DOMAIN).n_components_ == 3
    model = DICA(**form, supervised=False).set_params(n_components=50, kernel=Linear())
    assert model.fit(X, None, DOMAIN).n_components_ == D


@pytest.mark.parametrize("nothing", [None, float("nan")])
@pytest.mark.parametrize("names", [["a", "b", "c", "d"], [0, 1, 2, 3]])
def test_object_labels_may_be_missing(names, nothing):
    labels = np.array([nothing if code == -1 else names[code] for code in CODES], object)
    model = DICA(**LANDMARKS).fit(X, labels, DOMAIN)
    assert_array_equal(model.classes_, names)
    assert_components(model, dense(LANDMARKS, CODES)[0])


@FORMS
@pytest.mark.parametrize("labels", [None, CODES], ids=["UDICA", "DICA"])
def test_the_distributional_variance_is_that_of_the_rows(labels, form):
    model = DICA(**form, supervised=labels is not None).fit(X, labels, DOMAIN)
    Z, K = model.transform(X), reference.gaussian(X, X, SIGMA)
    if "landmarks" in form:
        block = reference.gaussian(X, form["landmarks"], SIGMA)
        K = block @ np.linalg.solve(reference.gaussian(*[form["landmarks"]] * 2, SIGMA), block.T)
    H = reference_domains.centring(N)
    expected = {
        "features": np.trace(K @ reference_domains.coefficients(DOMAIN)),
        "components": reference_domains.distributional_variance(Z, DOMAIN),
    }
    expected["features_share"] = expected["features"] / (np.trace(H @ K @ H) / N)
    expected["components_share"] = expected["components"] / Z.var(axis=0).sum()
    assert model.distributional_variance_ == pytest.approx(expected, rel=1e-8)


def test_the_distributional_variance_falls_with_invariance():
    reports = [DICA(**LANDMARKS, invariance=delta).fit(X, LABELS, DOMAIN).fit_report() for delta in (1, 100)]
    shares = [report["distributional_variance"]["components_share"] for report in reports]
    assert shares[1] < 0.5 * shares[0]
    assert (reports[0]["domains"], reports[0]["components"], reports[0]["rows"]) == (3, 3, N)


def test_a_supervised_fit_can_be_refitted_unsupervised_and_not_the_reverse():
    model = DICA(**LANDMARKS).fit(X, LABELS, DOMAIN).set_params(supervised=False).refit()
    assert_components(model, dense(LANDMARKS, None)[0])
    unsupervised = DICA(**LANDMARKS, supervised=False).fit(X, LABELS, DOMAIN).set_params(supervised=True)
    with pytest.raises(ConfigError, match="computed without labels"):
        unsupervised.refit()


def test_random_features_can_replace_landmarks():
    given = {**GIVEN, "n_landmarks": 500, "landmarks": "orthogonal-fourier", "random_state": 0}
    actual, expected = DICA(**given).fit(X, LABELS, DOMAIN).transform(NEW), dense(GIVEN, LABELS)[0]
    actual = reference_domains.up_to_sign(actual, expected)
    assert np.corrcoef(actual[:, 0], expected[:, 0])[0, 1] > 0.98


@FORMS
def test_a_single_domain_is_refused_unless_allowed(form):
    with pytest.raises(DataError, match=r"expects several domains, found 1: \[7\]; .* allow_single_domain=True"):
        DICA(**form).fit(X, LABELS, np.full(N, 7))
    with pytest.raises(DataError, match=r"found 1: \[5\]"):  # the others have weight 0
        DICA(**form).fit(X, LABELS, DOMAIN, sample_weight=(DOMAIN == 5) * 1.0)
    allowed = DICA(**form, allow_single_domain=True)
    one = allowed.fit(X, LABELS, np.full(N, 7)).dual_coef_
    assert_allclose(allowed.fit(X, LABELS).dual_coef_, one, atol=1e-12)
    assert allowed.distributional_variance_["features"] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    "domain, message",
    [
        (None, "DICA needs the domain of every row; pass sample_domain"),
        (DOMAIN[:-1], "domain: expected 150 values, one per row, found shape"),
        (np.where(np.arange(N) == 4, np.nan, DOMAIN), "sample_domain: row 4 has the domain nan; expected integers"),
        (np.where(np.arange(N) == 6, 1.5, DOMAIN), "sample_domain: row 6 has the domain 1.5; expected integers"),
        (np.where(np.arange(N) == 4, None, "a"), "sample_domain: row 4 is missing; expected one in every row"),
        (np.array([8, *"a" * (N - 1)], object), "sample_domain: expected only text or only integers, found both"),
        (np.column_stack([DOMAIN, DOMAIN]), r"sample_domain: expected one domain per row, found shape \(150, 2\)"),
    ],
)
def test_invalid_domains_are_refused(domain, message):
    with pytest.raises(DataError, match=message):
        DICA(**LANDMARKS).fit(X, LABELS, domain)


def test_lazy_columns_are_read_in_pieces():
    sizes = []

    class Watched(type(as_rows(X).x)):
        def read(self, start, stop):
            sizes.append(stop - start)
            return super().read(start, stop)

    rows = as_rows(X, y=CODES, domain=DOMAIN)
    for name, values in (("y", CODES), ("domain", DOMAIN)):
        watched = replace(rows, columns={**rows.columns, name: Watched(values)})
        assert_array_equal(distinct(watched, name), np.unique(values))
    assert max(sizes) < N / 2
    with pytest.raises(DataError, match="domain: expected at most 4,096 different values for domains, found more"):
        distinct(as_rows(np.zeros((5000, 1)), domain=np.arange(5000)), "domain")
    with pytest.raises(DataError, match=r"sample_domain: row 77 has the domain 0\.5; expected integers"):
        DICA(**LANDMARKS).fit(da.from_array(X), LABELS, da.from_array(np.where(np.arange(N) == 77, 0.5, DOMAIN)))


@FORMS
@pytest.mark.parametrize(
    "labels, message",
    [
        (None, "requires y to be passed, but the target y is None"),
        (LABELS[:-1], "y: .*inconsistent numbers of samples"),
        (np.full(N, -1), "at least 2 classes; the data contains no label"),
        (np.where(LABELS == 1, 1, -1), "only one class, 1"),
        (np.linspace(0, 1, N), "y: Unknown label type"),
        (np.array(["a", 3, None] * 50, object), "y: row 1 has the label 3; expected only text or only numbers"),
    ],
)
def test_invalid_labels_are_refused(form, labels, message):
    with pytest.raises(DataError, match=message):
        DICA(**form).fit(X, labels, DOMAIN)


@pytest.mark.parametrize("model", [DICA(), DICA(supervised=False), JDA()], ids=["DICA", "UDICA", "JDA"])
@pytest.mark.parametrize("form", [{}, {"landmarks": np.ones((1, D))}], ids=["exact", "landmarks"])
@pytest.mark.filterwarnings("ignore::bigkernel.errors.RankDeficiencyWarning")
def test_constant_rows_are_refused(model, form):
    labels = np.where(DOMAIN == 2, -1, LABELS) if isinstance(model, JDA) else LABELS
    reason = "as the rows do not differ" if isinstance(model, JDA) else ".*n_samples = 150"
    with pytest.raises(DataError, match=f"found no component, {reason}"):
        clone(model).set_params(kernel=Gaussian(SIGMA), **form).fit(np.ones((N, D)), labels, DOMAIN)


@pytest.mark.parametrize(
    "kind, change",
    [
        *((DICA, {name: value}) for name, value in (("alpha", 0.0), ("alpha", -1.0), ("epsilon", -0.1))),
        *((DICA, {"invariance": -1.0}), (JDA, {"alpha": 0.0}), (JDA, {"label_alpha": -1.0})),
    ],
)
def test_invalid_penalties_are_refused(kind, change):
    with pytest.raises(ValueError, match=next(iter(change)).removeprefix("label_")):
        kind(kernel=Gaussian(SIGMA), landmarks=Z, **change).fit(X, np.where(DOMAIN == 2, -1, LABELS), DOMAIN)


def test_cells_are_counted_from_the_columns_and_an_unknown_label_is_refused_with_its_row(make_corpus):
    corpus, cells = make_corpus(X, y=CODES, domain=DOMAIN, classes=(0, 1, 2, 3)), Cells(np.unique(DOMAIN), np.arange(4))
    expected = [[np.sum((g == DOMAIN) & (c == CODES)) for c in (0, 1, 2, 3, -1)] for g in (2, 5, 11)]
    assert_array_equal(cell_counts(as_rows(corpus), cells), expected)
    with pytest.raises(DataError, match="y: row 40 has the label 9"):
        cell_counts(as_rows(X, y=np.where(np.arange(N) == 40, 9, LABELS), domain=DOMAIN), cells)
