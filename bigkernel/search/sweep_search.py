"""Grid search from fold-wise statistics: the whole (α × s × folds) grid exact from one sweep, several bandwidths in it.

Peers fit every candidate on every fold. Here one sweep keeps the moments of every fold apart; training moments are the
total less a fold, and each candidate is a small solve. What depends on predictions (accuracy) takes one sweep more for
all candidates together.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_classifier
from sklearn.model_selection import ParameterGrid
from sklearn.pipeline import Pipeline
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

import bigkernel
from bigkernel.engine.rows import as_rows
from bigkernel.errors import ConfigError, Inaccurate
from bigkernel.estimators.base import RowsEstimator
from bigkernel.estimators.inputs import is_lazy
from bigkernel.monitor.events import Note
from bigkernel.monitor.scope import emit, part_of_job
from bigkernel.search.arrangement import Candidate, arrange
from bigkernel.search.planning import SearchPlan, planned
from bigkernel.search.refits import refit_each
from bigkernel.search.results import choose, table
from bigkernel.search.scoring import OF_CLASSES, Tested, chosen
from bigkernel.search.shared_sweeps import Work
from bigkernel.search.splits import partitions
from bigkernel.solvers.accuracy import PROMISE


def _gives_probabilities(search: Any) -> bool:
    """True where the best model, and before a fit the estimator, gives probabilities."""
    return hasattr(getattr(search, "best_estimator_", search.estimator), "predict_proba")


class SweepSearchCV(MetaEstimatorMixin, BaseEstimator):
    """Search over a grid by cross-validation, with scikit-learn's interface, from as few sweeps as possible.

    Parameters
    ----------
    estimator : KernelRidge, KernelRidgeClassifier, Ridge, LinearRegression, SSSL, SSSLClassifier
        Or a Pipeline that ends with one; its transforms are fitted once, on all rows.
    param_grid : dict or list of dicts
        As in GridSearchCV. `alpha`, `n_components` and `fit_intercept` cost no sweep; kernels of one kind share one,
        bandwidths included, as far as memory allows; other landmarks, dtypes or transforms take their own.
        With solver="cg" (or where "auto" takes it) the penalties and folds of a kernel descend side by side in the
        sweeps of one fit, and kernels one after the other.
    cv : int, float, "domains", array (n,) of folds, splitter, or iterable of (train, test)
        A number: scikit-learn's (stratified) folds for arrays in memory; folds by a hash of the row's number for lazy
        input. A share below 1: about so many of the rows are held out, once. Where there are groups (`groups`, or a
        corpus with a column of them) these stay together. −1 in an array: trained on by every fold. Only labelled rows
        are folded; in semi-supervised learning unlabelled ones shape the basis of every fold, as the tested ones do
        without their labels.
        Landmarks are drawn once, from all rows, the tested ones included.
    scoring : str, list of str or None
        "neg_mean_squared_error", "neg_root_mean_squared_error", "r2": from the statistics alone (for classes: of their
        one-hot targets). "accuracy", "balanced_accuracy", "neg_log_loss" (values of f cut to [0.001, 1] and divided by
        their sum): one more sweep for all candidates. None: "r2", or "accuracy" for classifiers. "neg_gcv": generalised
        cross-validation of the rows that were trained on. Scores are weighted where rows are.
    refit : bool or str
        Whether `best_estimator_` is made (no sweep, where its moments were kept; by "cg" from where its folds have
        ended), and by which of several scores.
    one_standard_error : bool
        Take the simplest candidate within one standard error of the best: of largest α, then of fewest components,
        then of widest kernel.
    random_state : int
        Seed of folds by hash.

    Attributes
    ----------
    cv_results_ : dict of arrays, the columns and ranks of GridSearchCV; `sem_test_…`, standard errors over splits; and
        `prediction_error`, how far the predictions of a candidate are from least squares in float64, relative to their
        norm (`solvers.accuracy`; NaN: not known, as of SSSL, linear and exact models). Kernels of candidates beyond
        a thousandth are swept again in better arithmetic; what stays beyond it is warned of (`Inaccurate`). Where
        conjugate gradients fit candidates, it is what `tol` leaves, and `converged` tells whose descents have come to
        their end on all splits: the others rank behind them, and are no choice unless all are like them.
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

    def __init__(
        self,
        estimator: Any,
        param_grid: Any,
        *,
        cv: Any = 5,
        scoring: Any = None,
        refit: bool | str = True,
        one_standard_error: bool = False,
        random_state: int = 0,
    ) -> None:
        self.estimator = estimator
        self.param_grid = param_grid
        self.cv = cv
        self.scoring = scoring
        self.refit = refit
        self.one_standard_error = one_standard_error
        self.random_state = random_state

    # -- what is to be done --------------------------------------------------------------------------------------------

    def plan(
        self, X: Any, y: Any = None, *, groups: Any = None, sample_weight: Any = None, sample_domain: Any = None
    ) -> SearchPlan:
        """Return the plan of `fit`, without running it (landmarks are drawn)."""
        prepared = self._prepare(X, y, groups, sample_weight, sample_domain)
        return self._plan(prepared)

    def _candidates(self) -> list[Candidate]:
        try:
            grid = list(ParameterGrid(self.param_grid))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"param_grid: {error}") from error
        if not grid:
            raise ConfigError("param_grid: it has no candidate")
        found = []
        for index, params in enumerate(grid):
            try:
                model = clone(self.estimator)
                model.set_params(**{key: clone(value, safe=False) for key, value in params.items()})
            except (ValueError, TypeError, AttributeError) as error:
                raise ConfigError(f"param_grid: {error}") from error
            last = model[-1] if isinstance(model, Pipeline) else model
            if not isinstance(last, RowsEstimator):
                raise ConfigError(f"estimator: expected one of bigkernel's that predict, found {type(last).__name__}")
            last.check_parameters()
            found.append(Candidate(index, params, model, last, last.penalty()))
        return found

    def _prepare(self, X: Any, y: Any, groups: Any, sample_weight: Any, sample_domain: Any) -> list[_Prepared]:
        everyone = self._candidates()
        classifier = is_classifier(everyone[0].last)
        if any(is_classifier(candidate.last) != classifier for candidate in everyone):
            raise ConfigError("param_grid: it holds classifiers and regressors, which no score compares")
        if isinstance(self.random_state, bool) or not isinstance(self.random_state, int | np.integer):
            raise ConfigError(f"random_state: expected an integer, the seed of the folds, found {self.random_state!r}")
        if not isinstance(self.refit, bool | str):
            raise ConfigError(f"refit: expected True, False or the name of a score, found {self.refit!r}")
        self._scores = chosen(self.scoring, classifier=classifier)
        named = self.refit if isinstance(self.refit, str) else None
        if self.refit and "score" not in self._scores and named not in self._scores:
            raise ConfigError(
                f"refit: with several scores it must name one of {', '.join(self._scores)}, found {self.refit!r}"
            )
        prefixes: dict[str, list[Candidate]] = {}
        for candidate in everyone:
            steps = candidate.model[:-1] if isinstance(candidate.model, Pipeline) else None
            key = repr([_described(step) for _, step in steps.steps]) if steps else ""
            prefixes.setdefault(f"{type(candidate.last).__name__}{candidate.last.exact}{key}", []).append(candidate)
        prepared: list[_Prepared] = []
        for members in prefixes.values():
            model = members[0].model
            steps = model[:-1] if isinstance(model, Pipeline) and len(model) > 1 else None
            inner = X if steps is None else steps.fit(X, y).transform(X)
            proto = clone(members[0].last)
            if any(member.penalty.fit_intercept for member in members):
                proto.set_params(fit_intercept=True)
            rows, targets, inputs = proto.training(inner, y, sample_weight)
            rows = as_rows(rows, domain=sample_domain, group=groups)
            labels = rows.column("y") if rows.in_memory or not isinstance(self.cv, int | float | None) else None
            labelled = None if labels is None else targets.labelled(labels, 0)
            if prepared:
                parts = prepared[0].work.partitions
            else:
                parts = partitions(self.cv, rows, labelled, classifier=classifier, seed=int(self.random_state))
            exact = proto.exact
            if exact and is_lazy(inner):
                raise ConfigError("estimator: without n_landmarks it is exact and needs its rows in memory")
            if exact and "neg_gcv" in self._scores.values():
                raise ConfigError(
                    "scoring: neg_gcv is read from statistics, which the exact form does not keep; set n_landmarks"
                )
            wide = any(name in OF_CLASSES for name in self._scores.values())
            sweeps = [] if exact else arrange(members, rows, targets, parts, counts=wide)
            if "neg_gcv" in self._scores.values() and any(member.choice for member in members):
                raise ConfigError(
                    "scoring: neg_gcv is read from moments, which conjugate gradients do not sum; take another score, "
                    "or solver='direct'"
                )
            prepared.append(_Prepared(members, steps, Work(rows, targets, inputs, parts, sweeps), inner, y))
        return prepared

    def _plan(self, prepared: list[_Prepared]) -> SearchPlan:
        wide = any(name in OF_CLASSES for name in self._scores.values())
        return planned([(one.members, one.work) for one in prepared], counts=wide)

    # -- fitting -------------------------------------------------------------------------------------------------------

    def fit(
        self, X: Any, y: Any = None, *, groups: Any = None, sample_weight: Any = None, sample_domain: Any = None
    ) -> Self:
        """Judge every candidate on every split of the rows X (n, d) with targets y, and refit the best on all rows.

        X and y as the estimator takes them; `groups` and `sample_domain` (n,) integers.

        Raises
        ------
        ConfigError
            An empty grid, an unknown parameter or score.
        DataError
            Folds that cannot be trained on or tested, or a score that is not finite.
        """
        start = time.perf_counter()
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)  # of a search before
        with part_of_job(f"{type(self).__name__}.fit"):
            self._search(X, y, groups, sample_weight, sample_domain)
        self.seconds_ = time.perf_counter() - start
        return self

    def _search(self, X: Any, y: Any, groups: Any, sample_weight: Any, sample_domain: Any) -> None:
        prepared = self._prepare(X, y, groups, sample_weight, sample_domain)
        self.plan_ = self._plan(prepared)
        emit(Note(str(self.plan_)))
        self.n_splits_ = self.plan_.splits
        tested: dict[tuple[int, int], Tested] = {}
        shares: dict[int, float] = {}
        for one in prepared:
            begun = time.perf_counter()
            work = one.work
            if work.sweeps:
                judged = work.run(list(self._scores.values()))
            else:
                inner = one.X.tocsr() if issparse(one.X) else np.asarray(one.X)
                judged = refit_each(one.members, inner, work.rows, work.targets, work.partitions)
            for candidate, split, found in judged:
                tested[candidate.index, split] = found
            for member in one.members:
                shares[member.index] = (time.perf_counter() - begun) / len(one.members)
        everyone = sorted((member for one in prepared for member in one.members), key=lambda member: member.index)
        self.multimetric_ = not isinstance(self.scoring, str | type(None))
        self.cv_results_ = table(everyone, tested, shares, self._scores, self.n_splits_)
        self._warn_of_errors(everyone, tested)
        self.scorer_ = dict(self._scores) if self.multimetric_ else self._scores["score"]
        inputs = prepared[0].work.inputs
        self.n_features_in_ = X.shape[1] if hasattr(X, "shape") else inputs.n_features
        if inputs.classes is not None:
            self.classes_ = inputs.classes
        if self.refit or not self.multimetric_:
            label = "score" if "score" in self._scores else str(self.refit)
            best = choose(self.cv_results_, label, everyone, one_standard_error=self.one_standard_error)
            self.best_index_, self.best_params_ = best, everyone[best].params
            self.best_score_ = float(self.cv_results_[f"mean_test_{label}"][best])
        if self.refit:
            begun = time.perf_counter()
            self.best_estimator_ = self._best(prepared, y, sample_weight)
            if hasattr(self.best_estimator_, "feature_names_in_"):
                self.feature_names_in_ = self.best_estimator_.feature_names_in_
            self.refit_time_ = time.perf_counter() - begun

    def _best(self, prepared: list[_Prepared], y: Any, sample_weight: Any) -> Any:
        for one in prepared:
            for candidate in one.members:
                if candidate.index != self.best_index_:
                    continue
                if one.work.sweeps:
                    one.work.fit(candidate)
                else:
                    candidate.last.fit(one.X, y, sample_weight)
                if not isinstance(candidate.model, Pipeline):
                    return candidate.last
                fitted = [] if one.steps is None else one.steps.steps
                return Pipeline([*fitted, (candidate.model.steps[-1][0], candidate.last)])
        raise AssertionError

    def _warn_of_errors(self, everyone: list[Candidate], tested: dict[tuple[int, int], Tested]) -> None:
        errors, off = self.cv_results_["prediction_error"], {i for (i, _), found in tested.items() if found.is_off}
        if off:
            warnings.warn(
                f"{len(off)} of {len(errors)} candidates may be judged wrongly: their predictions may differ from "
                f"least squares in float64 by more than {PROMISE:g} of their norm (cv_results_['prediction_error'], at "
                f"most {max(errors[i] for i in off):.1g}); take larger alphas, narrower kernels, or fewer landmarks or "
                "columns",
                Inaccurate,
                stacklevel=4,
            )
        if open_ := int((~self.cv_results_.get("converged", np.ones(1, bool))).sum()):
            lasts = [candidate.last for candidate in everyone if candidate.choice]
            warnings.warn(
                f"the conjugate gradients of {open_} of {len(errors)} candidates have not ended after "
                f"{max(last.max_iter for last in lasts)} steps (tol={min(last.tol for last in lasts):g} was asked; "
                "cv_results_['converged']), and they are no choice: take a larger max_iter, larger alphas, or "
                "solver='direct'",
                Inaccurate,
                stacklevel=4,
            )

    # -- the best model ------------------------------------------------------------------------------------------------

    def predict(self, X: Any) -> Any:
        """Predictions of the best model."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict(X)

    @available_if(lambda self: hasattr(self.estimator, "decision_function"))
    def decision_function(self, X: Any) -> Any:
        """Values of f of the best model."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.decision_function(X)

    @available_if(_gives_probabilities)
    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes, (n, c), of the best model."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict_proba(X)

    @available_if(_gives_probabilities)
    def predict_log_proba(self, X: Any) -> Any:
        """The logarithms of `predict_proba`."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict_log_proba(X)

    def score(self, X: Any, y: Any = None) -> float:
        """The best model's own score: accuracy or R²."""
        check_is_fitted(self, "best_estimator_")
        result: float = self.best_estimator_.score(X, y)
        return result

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": bigkernel._html_of(self)}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        sub = self.estimator.__sklearn_tags__()
        tags.estimator_type, tags.classifier_tags, tags.regressor_tags = (
            sub.estimator_type,
            sub.classifier_tags,
            sub.regressor_tags,
        )
        return tags


@dataclass(eq=False)
class _Prepared:
    """Candidates with the same transforms: their fitted steps, and the work that judges them."""

    members: list[Candidate]
    steps: Pipeline | None
    work: Work
    X: Any
    y: Any


def _described(step: Any) -> Any:
    """A step of a pipeline as text that is the same for equal steps."""
    if isinstance(step, str) or not hasattr(step, "get_params"):
        return step
    return type(step), sorted(step.get_params().items(), key=str)
