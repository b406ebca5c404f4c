"""Grid search from the statistics of folds: the exact grid of penalties, components and folds from one sweep.

Other libraries fit every candidate on every fold. Here one sweep keeps the moments of every fold apart; training
moments are the total less a fold, and each candidate is a small solve. Scores of predictions (accuracy) take one more
sweep for all candidates together. Several bandwidths may share a sweep. Tests: search/test_search.py.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import KW_ONLY, replace
from typing import Self, cast

import numpy as np
from sklearn import get_config
from sklearn.base import BaseEstimator, MetaEstimatorMixin, is_classifier
from sklearn.metrics import get_scorer, get_scorer_names
from sklearn.model_selection import ParameterGrid
from sklearn.utils import Tags, estimator_html_repr
from sklearn.utils.validation import check_is_fitted

from bigkernel.arrays import Array, ColumnLike, RowsLike
from bigkernel.errors import BestAtEdgeWarning, ConfigError
from bigkernel.estimators.base import available, lacking, parameters, shown
from bigkernel.estimators.callbacks import CallbackSupportMixin, calling_back
from bigkernel.estimators.evaluation import Model
from bigkernel.estimators.inputs.columns import is_lazy
from bigkernel.events.job import Figures, Note, emit, job
from bigkernel.html import columns, readable, table
from bigkernel.search.planning import Given, Prepared, SearchPlan, candidates_of, index_of_given, planned, prepare
from bigkernel.search.results import choose, cv_table, doubtful, edges, warn_of_errors
from bigkernel.search.scoring import Tested, chosen
from bigkernel.search.sweeps import Candidate

_BEST = 10  # candidates that a notebook shows


def _lacks_probabilities(search: SweepSearchCV) -> str:
    """Say why the best model, or the estimator before a fit, gives no probabilities, or return ""."""
    return lacking(getattr(search, "best_estimator_", search.estimator), "predict_proba")


def _lacks_decisions(search: SweepSearchCV) -> str:
    """Say why the estimator has no decision values, or return ""."""
    return lacking(search.estimator, "decision_function")


def html_of_search(search: SweepSearchCV) -> str:
    """Return a table of the best candidates of a search, and scikit-learn's diagram of the estimator."""
    diagram = str(estimator_html_repr(search)) if get_config()["display"] == "diagram" else ""
    results = getattr(search, "cv_results_", None)
    if results is None:
        return diagram
    label = next(iter(search.scorer_)) if search.multimetric_ else "score"
    figures: dict[str, object] = {"candidates": len(results["params"])}
    figures |= {"splits": search.n_splits_, "sweeps": search.plan_.count}
    if hasattr(search, "best_params_"):
        figures |= {"best": {name: str(value) for name, value in search.best_params_.items()}}
    names = list(dict.fromkeys(name for params in results["params"] for name in params))
    lines = [
        [
            *(readable(name, results["params"][i].get(name, "")) for name in names),
            f"{results[f'mean_test_{label}'][i]:.5g} ± {results[f'sem_test_{label}'][i]:.2g}",
        ]
        for i in np.argsort(results[f"rank_test_{label}"], kind="stable")[:_BEST]
    ]
    return table(type(search).__name__, figures) + columns([*names, label], lines) + diagram


@parameters
class SweepSearchCV(CallbackSupportMixin, MetaEstimatorMixin, BaseEstimator):
    """Search over a grid by cross-validation, with scikit-learn's interface, from as few sweeps as possible.

    Parameters
    ----------
    estimator : estimator, Pipeline or TransformedTargetRegressor
        KernelRidge, KernelRidgeClassifier, Ridge, LinearRegression, SSSL, SSSLClassifier, XNV, XNVClassifier or
        ARTLClassifier, each with landmarks; or a Pipeline that ends with one, whose transforms are fitted once, on all
        rows; or a TransformedTargetRegressor by functions, around either or as the last step, whose scores are on the
        original scale. A classifier may be in a LabelledRowsClassifier. Exact forms (without n_landmarks) share no
        sweep; use GridSearchCV for them.
    param_grid : dict or list of dicts
        As in GridSearchCV. `alpha`, `n_components` and `fit_intercept` need no sweep of their own; kernels of one type
        share a sweep, bandwidths included, as far as memory allows; other landmarks, dtypes, transforms or class
        weights, and every kernel of random features, need their own. With solver="cg" (or where "auto" chooses it) all
        penalties and folds of a kernel share the sweeps of one fit, kernel by kernel. The same holds for
        ARTLClassifier, whose candidates and folds of a kernel share the sweeps of moments and rounds.
    cv : int, float, "domains", array (n,) of folds, splitter, iterable of (train, test), or `Folds`
        int: scikit-learn's (stratified) folds for arrays in memory; folds by a hash of the row number for lazy input.
        float below 1: one split with about this share of the rows held out. Groups (`groups`, or a column of a corpus)
        stay together. −1 in an array: the row is in every training set. Only labelled rows are folded; in
        semi-supervised learning unlabelled rows, and test rows without their labels, contribute to every fold. 0: no
        folds, all rows are training rows, for scoring="neg_gcv".
        Landmarks are chosen once, from all rows including test rows. For ARTLClassifier a split hides the labels of its
        test rows, and domains left without a label are the target. `streaming.folds.Folds`: a value with `count` and
        `of(chunk)`, which gives the fold of each row on the workers, also for rows that do not fit in memory.
    scoring : str, function, list of str, dict or None
        "neg_mean_squared_error", "neg_root_mean_squared_error", "r2": from the statistics alone (for classes, of their
        one-hot targets). "accuracy", "balanced_accuracy", "neg_log_loss" (values of f clipped to [0.001, 1] and divided
        by their sum): one more sweep for all candidates. None: "r2", or "accuracy" for classifiers. "neg_gcv":
        generalised cross-validation of the training rows, except with conjugate gradients, transformed targets or
        several penalties (XNV, or an array for `alpha`). Other names are those of scikit-learn's scorers; these and
        functions (estimator, X, y) need the values of f at all held-out rows: one more sweep, or several if memory does
        not hold the values of all candidates (`PlanTooLargeError` if it does not hold those of one). A function gets a
        model that predicts only the test rows, and X only if rows are in memory. A dict maps names to scores. Scores
        use `sample_weight`, those of functions if they take it, but not class_weight, which squared errors then take
        the sweep of predictions for; "neg_gcv" alone includes it. "balanced" refers to all labelled rows.
        "mutual-information" and "importance-weighted" try the estimator as it is too, and keep it without a clear gain.
    refit : bool or str
        Whether to fit `best_estimator_` (without a sweep if its moments were kept; by "cg" starting at the solutions of
        its folds), and the score to choose it by if there are several.
    one_standard_error : bool
        Whether to choose the simplest candidate within one standard error of the best: the largest α, then the fewest
        components, then the widest kernel. Equal scores are resolved in the same way.
    random_state : int
        Seed of folds by hash.
    verbose : int, default 0
        As in `KernelRidge`; those of the candidates are not used.

    Attributes
    ----------
    cv_results_ : dict of arrays
        The columns and ranks of GridSearchCV; `sem_test_…`, standard errors over splits; and `prediction_error`, the
        estimated distance of a candidate's predictions from least squares in float64, relative to their norm
        (`solvers.ridge`, `solvers.accuracy`; NaN: unknown). Kernels with an error above a thousandth are swept again in
        the next precision, by squared errors only those that may be the best; errors that remain for these raise an
        `AccuracyWarning`. For conjugate gradients it is the error that
        `tol` leaves, and `converged` tells which candidates reached `tol` on all splits; the others rank behind them
        and are chosen only if none did.
    edges_ : list of Edge
        The ends of the grid at which the best score lies, as in `BestAtEdgeWarning`, for numeric parameters with at
        least three values other than sizes (n_landmarks) and tolerances.
    best_index_, best_params_, best_score_, best_estimator_, n_splits_, refit_time_, classes_, n_features_in_
    plan_ : SearchPlan

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import KernelRidge, SweepSearchCV
    >>> X = np.linspace(0, 6, 200)[:, None]
    >>> grid = {"gamma": [1.0, 3.0], "alpha": [1e-6, 1e-3, 1.0]}
    >>> search = SweepSearchCV(KernelRidge("rbf", n_landmarks=12, random_state=0), grid).fit(X, np.sin(X[:, 0]))
    >>> search.best_params_["alpha"] < 1
    True
    """

    estimator: BaseEstimator
    param_grid: object
    _: KW_ONLY
    cv: object = 5
    scoring: object = None
    refit: bool | str = True
    one_standard_error: bool = False
    random_state: int = 0
    verbose: int = 0

    # -- planning ------------------------------------------------------------------------------------------------------

    def plan(
        self,
        X: RowsLike,
        y: ColumnLike = None,
        *,
        groups: ColumnLike = None,
        sample_weight: ColumnLike = None,
        sample_domain: ColumnLike = None,
    ) -> SearchPlan:
        """Return the plan of `fit` without running it; transforms are fitted, and landmarks chosen."""
        return self._plan(self._prepare(Given(X, y, groups, sample_weight, sample_domain)))

    def _prepare(self, given: Given) -> list[Prepared]:
        try:
            grid = list(ParameterGrid(self.param_grid))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"param_grid: {error}") from error
        if not grid:
            raise ConfigError("param_grid: expected at least one candidate, found none")
        self._check_settings()
        # an estimator for each point of the grid, and the scores that all of them get
        everyone = candidates_of(self.estimator, grid)
        classifier = is_classifier(everyone[0].last)
        if any(is_classifier(candidate.last) != classifier for candidate in everyone):
            raise ConfigError("param_grid: expected only classifiers or only regressors, found both")
        scoring = chosen(self.scoring, classifier=classifier, by_values=any(one.wrapper for one in everyone))
        # which are compared with the estimator as it is
        self._given = index_of_given(self.estimator, grid, everyone) if scoring.of_domains else None
        weighted = any(one.solve_settings.weighting for one in everyone)
        self._scoring = replace(scoring, weighted=weighted, one_standard_error=self.one_standard_error)
        self._check_refit()
        # scores of decision values may order candidates otherwise than what the best model predicts
        of_labels = self._scoring.weighted and self._scoring.of_labels
        if (scoring.loss or of_labels) and any(getattr(one.last, "probability", False) for one in everyone):
            what = "neg_log_loss is that of decision values cut to the range of probabilities, not of calibrated ones"
            if not scoring.loss:
                what = "labels are by decision values, and with class_weight may differ from those of predict"
            advice = "compare the best few by cross_val_score of scikit-learn"
            text = f"scoring: {what}, and may order candidates differently; {advice}"
            warnings.warn(text, UserWarning, stacklevel=4)
        held_out = {*scoring.names.values()} != {"neg_gcv"}
        if held_out and any(one.solve_settings.weighting and one.method.semi_supervised for one in everyone):
            warnings.warn(
                "class_weight: held-out rows lose their labels but keep the weights of their classes, so scores may be "
                "too high; score the best model on other rows",
                UserWarning,
                stacklevel=4,
            )
        return prepare(everyone, given, cv=self.cv, seed=int(self.random_state), scoring=self._scoring)

    def _check_settings(self) -> None:
        if isinstance(self.random_state, bool) or not isinstance(self.random_state, int | np.integer):
            raise ConfigError(f"random_state: expected an integer, the seed of the folds, found {self.random_state!r}")
        if not isinstance(self.refit, bool | str):
            raise ConfigError(f"refit: expected True, False or the name of a score, found {self.refit!r}")

    def _check_refit(self) -> None:
        """Raise `ConfigError` unless `refit` names one of several scores."""
        names = self._scoring.names
        if self.refit and "score" not in names and self.refit not in names:
            raise ConfigError(
                f"refit: with several scores it must name one of {', '.join(names)}, found {self.refit!r}"
            )

    def _plan(self, prepared: list[Prepared]) -> SearchPlan:
        learned = [event for one in prepared for event in one.learned]
        work = [(one.members, one.work) for one in prepared]
        return planned(work, self._scoring, learned=learned, refit=bool(self.refit))

    # -- fitting -------------------------------------------------------------------------------------------------------

    def fit(
        self,
        X: RowsLike,
        y: ColumnLike = None,
        *,
        groups: ColumnLike = None,
        sample_weight: ColumnLike = None,
        sample_domain: ColumnLike = None,
    ) -> Self:
        """Evaluate every candidate on every split of the rows X (n, d) with targets y, and refit the best on all rows.

        X and y are those of the estimator; `groups` and `sample_domain` are (n,) integers or names.

        Raises
        ------
        ConfigError
            The grid is empty, or a parameter or score is unknown.
        DataError
            A fold lacks training or test rows, or a score is not finite.

        Warns
        -----
        BestAtEdgeWarning
            The best candidate lies at an end of the grid.
        """
        start = time.perf_counter()
        # attributes of an earlier search would mix with those of this one
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        with job(f"{type(self).__name__}.fit"), shown(self.verbose), calling_back(self, X, y):
            self._search(Given(X, y, groups, sample_weight, sample_domain))
        self.seconds_ = time.perf_counter() - start
        return self

    def _search(self, given: Given) -> None:
        prepared = self._prepare(given)
        self._require_refit(prepared)
        # the plan is told before the first sweep
        self.plan_ = self._plan(prepared)
        self.n_splits_ = self.plan_.splits
        emit(Note(str(self.plan_)))
        learned = [event for one in prepared for event in one.learned]  # which have ended
        ended = {"begun": len(learned), "flops_done": sum(event.plan.flops for event in learned)}
        emit(Figures("sweeps", {"count": self.plan_.count, "flops": self.plan_.flops, **ended}))
        # every candidate on every split
        tested: dict[tuple[int, int], Tested] = {}
        seconds: dict[int, float] = {}
        for one in prepared:
            begun = time.perf_counter()
            for candidate, split, figures in one.work.run(self._scoring):
                tested[candidate.index, split] = figures
            share = (time.perf_counter() - begun) / len(one.members)
            seconds |= dict.fromkeys((member.index for member in one.members), share)
        everyone = sorted((c for one in prepared for c in one.members), key=lambda candidate: candidate.index)
        # the table, the best of it, and warnings where its numbers may be off
        self.cv_results_ = cv_table(everyone, tested, seconds, self._scoring, self.n_splits_)
        self._describe(prepared[0], given.X)
        if self.refit or not self.multimetric_:
            self._choose(everyone)
        ends, best = getattr(self, "edges_", []), getattr(self, "best_index_", None)
        warn_of_errors(self.cv_results_, everyone, tested, ends, best)
        # the best candidate on all rows
        if self.refit:
            begun = time.perf_counter()
            self.best_estimator_ = self._best(prepared)
            if hasattr(self.best_estimator_, "feature_names_in_"):
                self.feature_names_in_ = self.best_estimator_.feature_names_in_
            self.refit_time_ = time.perf_counter() - begun

    def _require_refit(self, prepared: list[Prepared]) -> None:
        """Raise `ConfigError` for a refit to all labels where these leave no target to adapt to."""
        splits = [some.sides for one in prepared for some in one.work.partitions if some.sides is not None]
        if self.refit and not all(sides.has_both(sides.folds.count) for sides in splits):
            raise ConfigError(
                "refit: every domain has labelled rows, so that a refit has no target; set refit=False, and fit "
                "best_params_ on rows with an unlabelled target"
            )

    def _describe(self, prepared: Prepared, X: RowsLike) -> None:
        """Set the attributes of the rows and scores."""
        self.multimetric_ = "score" not in self._scoring.names
        names, inputs = dict(self._scoring.names), prepared.work.data.inputs
        self.scorer_ = names if self.multimetric_ else names["score"]
        self.n_features_in_ = X.shape[1] if hasattr(X, "shape") else inputs.n_features
        if inputs.classes is not None:
            self.classes_ = inputs.classes

    def _choose(self, everyone: list[Candidate]) -> None:
        """Set the attributes of the best candidate; warn where it lies at an end of the grid."""
        results, label = self.cv_results_, str(self.refit) if self.multimetric_ else "score"
        given = self._given if self._scoring.names[label] in self._scoring.of_domains else None
        best = choose(results, label, everyone, one_standard_error=self.one_standard_error, given=given)
        self.best_index_, self.best_params_ = best, everyone[best].params
        self.best_score_ = float(results[f"mean_test_{label}"][best])
        first = choose(results, label, everyone, one_standard_error=False, given=given)
        inexact = bool(doubtful(results)[first])
        self.edges_ = edges([candidate.params for candidate in everyone], first, inexact=inexact)
        if self.edges_:
            ends = "; ".join(map(str, self.edges_))
            warnings.warn(f"the best candidate lies at an edge of the grid: {ends}", BestAtEdgeWarning, stacklevel=4)

    def _best(self, prepared: list[Prepared]) -> Model:
        """Fit the best candidate to all rows."""
        pairs = ((one, member) for one in prepared for member in one.members)
        one, candidate = next(pair for pair in pairs if pair[1].index == self.best_index_)
        one.work.fit(candidate)
        return cast(Model, one.fitted(candidate))

    # -- predictions of the best model ---------------------------------------------------------------------------------

    def predict(self, X: RowsLike) -> Array:
        """Predict by the best model."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict(X)

    @available(_lacks_decisions)
    def decision_function(self, X: RowsLike) -> Array:
        """Compute the values of f of the best model."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.decision_function(X)

    @available(_lacks_probabilities)
    def predict_proba(self, X: RowsLike) -> Array:
        """Predict probabilities of the classes, (n, c), by the best model."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict_proba(X)

    @available(_lacks_probabilities)
    def predict_log_proba(self, X: RowsLike) -> Array:
        """Predict log-probabilities of the classes, (n, c), by the best model."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict_log_proba(X)

    def score(self, X: RowsLike, y: ColumnLike = None) -> float:
        """Return the score of the best model by the score that chose it, if scikit-learn has it and X is in memory.

        Otherwise, and for log-loss, the accuracy or R².
        """
        check_is_fitted(self, "best_estimator_")
        name = self.scorer_[str(self.refit)] if isinstance(self.scorer_, dict) else self.scorer_
        by_estimator = is_lazy(X) or name in ("accuracy", "r2", "neg_log_loss") or name not in get_scorer_names()
        model = self.best_estimator_
        return float(model.score(X, y) if by_estimator else get_scorer(name)(model, X, y))

    def _repr_mimebundle_(self, **kwargs: object) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": html_of_search(self)}

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        sub = self.estimator.__sklearn_tags__()
        tags.estimator_type, tags.classifier_tags = sub.estimator_type, sub.classifier_tags
        tags.regressor_tags = sub.regressor_tags
        return tags
