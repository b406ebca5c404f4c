"""Scores of models on a target without labels: one sweep for the candidates of a kernel, and one for all.

    "importance-weighted"   accuracy on held-out rows of the source, weighted by the ratio w of the densities of target
                            and source (Sugiyama, Krauledat & Müller, JMLR 2007); w by uLSIF (`ImportanceWeights`)
    "mutual-information"    of rows and classes on the target, H(mean of Q) − mean of H(Q): certain predictions of all
                            classes (Bridle, Heading & MacKay, NIPS 1992; Musgrave, Belongie & Lim, 2022). Q =
                            softmax(3f/τ), τ the spread of f on a sample, so that the scale of f does not count

The target consists of the unlabelled rows of domains below 0; if there are none, of domains without a labelled row;
without domains, of all unlabelled rows. Shapes: n rows, K kernels, F folds, k candidates per kernel.
Tests: search/test_domain_scores.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from sklearn.utils import check_array
from sklearn.utils.metadata_routing import MetadataRequest
from sklearn.utils.validation import check_consistent_length

from bigkernel.arrays import Array, ColumnLike, RowsLike
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.engine.sweep import sweep
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators.adaptation.importance import fit_ratio
from bigkernel.estimators.evaluation import Model
from bigkernel.estimators.inputs.classes import no_label, plain_labels
from bigkernel.search.scoring import OF_DOMAINS
from bigkernel.statistics.domain_scores import (
    DomainScores,
    entropies,
    source_sums,
    target_domains,
    target_rows,
    target_sums,
)
from bigkernel.statistics.moments import Targets
from bigkernel.statistics.predictor import Predictor
from bigkernel.streaming.chunk import DTYPES, Chunk
from bigkernel.streaming.folds import hash_ids
from bigkernel.streaming.plan import Accumulator

SAMPLE_ROWS = 2000  # of the target, for the spread of f
_SAMPLE_NUMBERS = 2**26  # most values of f at the sample
_SLOPE = 3.0  # of soft predictions, as in the first round of ARTL
_SEED = 13


@dataclass(frozen=True, eq=False)
class Domains:
    """What the scores need besides the models."""

    target: Array | None  # its domains; None without domains, where all unlabelled rows belong to it
    ratio: Predictor | None  # of the densities; None where no score needs it
    sample: Chunk  # rows of the target with their labels missing, transformed

    @classmethod
    def of(cls, rows: Rows, targets: Targets, names: set[str]) -> Domains:
        """Find the target among the rows, sample it, and fit the ratio of the densities if a score needs it.

        Raises
        ------
        DataError
            There is no unlabelled row of a target, or no labelled one of a source.
        """
        labels, domain = rows.column("y"), rows.column("domain")
        assert labels is not None
        weight = rows.column("weight")
        weight = np.ones(len(rows)) if weight is None else np.asarray(weight, np.float64)
        labelled = targets.labelled(labels, 0)
        target, inside = _find_target(labelled, domain, weight)
        ids = np.flatnonzero(inside)
        if rows.bad_rows == "skip":
            ids = ids[rows.sound(ids)]
        ids = _sample(ids)
        weighted = "importance-weighted" in names
        ratio = fit_ratio(rows, inside, weight * (inside | labelled)) if weighted else None
        return cls(target, ratio, Chunk(rows.take(ids), weight=weight[ids]))

    def scores(self, scores: DomainScores, rows: Rows, names: set[str]) -> dict[str, Array]:
        """Return the requested scores of all candidates, by name, (K, F, k) each."""
        slopes = _slopes(*self._sampled(scores)) if "mutual-information" in names else None
        statistic = replace(scores, domains=self.target, ratio=self.ratio, slopes=slopes)
        total = sweep(rows, statistic, what="domain scores").total
        return {name: _FORMULAS[name](total) for name in names}

    def _sampled(self, scores: DomainScores) -> tuple[Array, Array]:
        """Return the values of all models at rows of the sample, (K, F, rows, k, c), and the weights of these rows.

        Of very many candidates, fewer rows.
        """
        (K, F, _, wide), c = scores.weights.shape, scores.targets.width
        count = min(len(self.sample), max(100, _SAMPLE_NUMBERS // (K * F * wide)))
        ids = np.linspace(0, len(self.sample) - 1, count).astype(np.int64)
        out = np.empty((K, F, count, wide))
        for fold in range(F):
            for block, kernel, values in scores.values_of(self.sample, fold, ids):
                out[kernel, fold, np.searchsorted(ids, block)] = values
        assert self.sample.weight is not None
        return out.reshape(K, F, count, -1, c), self.sample.weight[ids]


@dataclass(eq=False)
class DomainScorer:
    """Score a classifier on a target without labels in searches of scikit-learn, as `SweepSearchCV(scoring=name)` does.

    A test set in memory needs rows of the target, and labelled rows of the source. `sample_domain` is requested by
    metadata routing; domains below 0 are the target or, if there are none, those without a label. Without domains, rows
    without a label (−1 or NaN) are. f is `predict_proba` where there is one, else `decision_function`, which for two
    classes gives (1 − f)/2 and (1 + f)/2. Around a classifier that takes −1 for a class, put `LabelledRowsClassifier`.

    Parameters
    ----------
    name : "mutual-information" or "importance-weighted"
    """

    name: str

    def __post_init__(self) -> None:
        if self.name not in _FORMULAS:
            raise ConfigError(f"name: expected {' or '.join(_FORMULAS)}, found {self.name!r}")
        self._request = MetadataRequest(owner=type(self).__name__)
        self.set_score_request(sample_domain=True)

    def set_score_request(self, *, sample_domain: bool | str | None) -> Self:
        """Set whether `sample_domain` is requested, or under which name."""
        self._request.score.add_request(param="sample_domain", alias=sample_domain)
        return self

    def get_metadata_routing(self) -> MetadataRequest:
        """Return the request for `sample_domain`."""
        return self._request

    def __call__(self, estimator: Model, X: RowsLike, y: ColumnLike, sample_domain: ColumnLike = None) -> float:
        """Return the score of a fitted classifier, larger is better; `DataError` for rows that it cannot judge."""
        # which rows are the target, and whether labels of the others are those of the fit
        labels, classes = plain_labels(y), np.asarray(estimator.classes_)
        labelled, weight = ~no_label(labels), np.ones(len(labels))
        domain = None if sample_domain is None else np.asarray(sample_domain)
        check_consistent_length(X, labels, domain)
        _, inside = _find_target(labelled, domain, weight)
        if no_label(classes).any() or not np.isin(labels[labelled], classes).all():
            raise DataError(
                f"y: expected labels of the fit, found {np.unique(labels[labelled]).tolist()} after a fit to "
                f"{classes.tolist()}; if −1 was taken for a class there, fit LabelledRowsClassifier(…)"
            )
        # f of all classes, (n, c)
        given = estimator.predict_proba(X) if hasattr(estimator, "predict_proba") else estimator.decision_function(X)
        values = np.asarray(given, np.float64)
        if values.ndim == 1:
            values = np.column_stack([1 - values, 1 + values]) / 2
        # Σ w ω [right] over Σ w ω on the source, or the sums of Q and of its entropy on the target
        if self.name == "importance-weighted":
            rows = as_rows(check_array(X, accept_sparse="csr", dtype=DTYPES))
            ids, ratio = np.flatnonzero(labelled), fit_ratio(rows, inside, weight * (inside | labelled))
            omega = np.maximum(ratio.values(Chunk(rows.take(ids)))[:, 0], 0)
            truth = np.searchsorted(classes, labels[ids])
            total = source_sums(values[ids, None], truth, weight[ids], omega)
        else:
            ids = _sample(np.flatnonzero(inside))
            slopes = _slopes(values[None, None, ids, None], weight[ids])[0, 0]
            total = target_sums(values[inside, None], weight[inside], slopes)
        # of one kernel, fold and candidate
        score = _FORMULAS[self.name]({name: np.asarray(sums)[None, None] for name, sums in total.items()})
        return float(score.item())


def _find_target(labelled: Array, domain: Array | None, weight: Array) -> tuple[Array | None, Array]:
    """Return the domains of the target, if there are domains, and which rows it has; see `Domains.of`."""
    domains = None if domain is None else target_domains(domain, labelled)
    inside = target_rows(labelled, domain, domains) & (weight > 0)
    if not inside.any() or not labelled.any():
        raise DataError(
            f"scoring: expected labelled rows of a source and unlabelled rows of a target (−1), found "
            f"{np.count_nonzero(labelled)} and {np.count_nonzero(inside)}; mask the labels of the target with −1, or "
            "give it a domain below 0"
        )
    return domains, inside


def _sample(ids: Array) -> Array:
    """Return some of the rows of the target, sorted."""
    return np.sort(ids[np.argsort(hash_ids(ids, _SEED), kind="stable")[:SAMPLE_ROWS]])


def _slopes(values: Array, weight: Array) -> Array:
    """Return 3/τ of each model, (K, F, k), from values (K, F, r, k, c) at rows of these weights (r,)."""
    mean = np.average(values, axis=2, weights=weight)[:, :, None]
    spread = np.sqrt(np.average(((values - mean) ** 2).sum(axis=4), axis=2, weights=weight))
    return np.asarray(_SLOPE / np.maximum(spread, 1e-300))


def _mutual_information(total: Accumulator) -> Array:
    n = np.maximum(total["target"], 1e-300)[..., None]
    return np.asarray(entropies(total["soft"] / n[..., None]) - total["entropy"] / n)


_FORMULAS: dict[str, Callable[[Accumulator], Array]] = {
    "mutual-information": _mutual_information,
    "importance-weighted": lambda total: total["right"] / np.maximum(total["omega"], 1e-300)[..., None],
}
assert set(_FORMULAS) == set(OF_DOMAINS)
