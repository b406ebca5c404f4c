"""Grid search from fold-wise statistics: the whole (α × s × folds) grid exact from one sweep, several bandwidths in it.

Peers fit every candidate on every fold. Here one sweep keeps the moments of every fold apart; training moments are the
total less a fold, and each candidate is a small solve. What depends on predictions (accuracy) takes one sweep more for
all candidates together.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, is_classifier
from sklearn.model_selection import ParameterGrid, ParameterSampler
from sklearn.pipeline import Pipeline

from bigkernel.errors import BestAtEdge, ConfigError
from bigkernel.events.kinds import Note
from bigkernel.events.scope import emit, part_of_job
from bigkernel.search.arrangement import Candidate
from bigkernel.search.axes import around, edges
from bigkernel.search.best_model import BestModel
from bigkernel.search.judging import Judged
from bigkernel.search.planning import SearchPlan, planned
from bigkernel.search.preparation import Given, Prepared, candidates_of, prepare
from bigkernel.search.results import choose, index_by, warn_of_errors
from bigkernel.search.scoring import chosen


class SweepSearchCV(BestModel, MetaEstimatorMixin, BaseEstimator):
    """Search over a grid by cross-validation, with scikit-learn's interface, from as few sweeps as possible.

    Parameters
    ----------
    estimator : KernelRidge, KernelRidgeClassifier, Ridge, LinearRegression, SSSL, SSSLClassifier, XNV, XNVClassifier,
        ARTLClassifier; or a Pipeline that ends with one, whose transforms are fitted once, on all rows.
    param_grid : dict or list of dicts
        As in GridSearchCV. `alpha`, `n_components` and `fit_intercept` cost no sweep; kernels of one kind share one,
        bandwidths included, as far as memory allows; other landmarks, dtypes, transforms or class weights, and every
        kernel of random features, take their own.
        With solver="cg" (or where "auto" takes it) the penalties and folds of a kernel descend side by side in the
        sweeps of one fit, and kernels one after the other. So do ARTLClassifier's: all its candidates and folds of a
        kernel share the sweep of moments and those of the rounds.
    cv : int, float, "domains", array (n,) of folds, splitter, or iterable of (train, test)
        A number: scikit-learn's (stratified) folds for arrays in memory; folds by a hash of the row's number for lazy
        input. A share below 1: about so many of the rows are held out, once. Where there are groups (`groups`, or a
        corpus with a column of them) these stay together. −1 in an array: trained on by every fold. Only labelled rows
        are folded; in semi-supervised learning unlabelled ones shape the basis of every fold, as the tested ones do
        without their labels.
        Landmarks are drawn once, from all rows, the tested ones included. For ARTLClassifier a split hides the labels
        of the rows that it tests, and domains without a label left are the target.
    scoring : str, function, list of str, dict or None
        "neg_mean_squared_error", "neg_root_mean_squared_error", "r2": from the statistics alone (for classes: of their
        one-hot targets). "accuracy", "balanced_accuracy", "neg_log_loss" (values of f cut to [0.001, 1] and divided by
        their sum): one more sweep for all candidates. None: "r2", or "accuracy" for classifiers. "neg_gcv": generalised
        cross-validation of the rows that were trained on. Other names are those of scikit-learn's scorers; these and
        functions (estimator, X, y) need the values of f at all held-out rows: one more sweep, or several where memory
        does not hold the values of all candidates (`PlanTooLarge` where it does not hold those of one). A function is
        shown a model that knows the tested rows alone, and X only where rows are in memory. A dict gives scores names.
        Scores are weighted where rows are, those of functions if they take `sample_weight`; where candidates differ in
        class_weight, by the weights of the rows without those of the classes ("balanced" is of all labelled rows).
    refit : bool, str or function
        Whether `best_estimator_` is made (no sweep, where its moments were kept; by "cg" from where its folds have
        ended), and by which of several scores. A function is given `cv_results_` and returns the index of the best.
    one_standard_error : bool
        Take the simplest candidate within one standard error of the best: of largest α, then of fewest components,
        then of widest kernel. Without it, the same holds for candidates whose scores are equal.
    random_state : int
        Seed of folds by hash.
    return_train_score : bool
        The scores of the training rows too; those of classes take about as many times longer as there are folds.
    error_score : "raise" or number
        What fits that fail, and scores that are not finite, count: np.nan as in GridSearchCV, where they rank last,
        with a `FitFailedWarning`. Kernels that share a sweep are then swept apart until one alone has failed. What is
        known to be wrong before the first sweep is refused all the same.
    verbose : int
        1: the plan is printed; 2: every candidate and split as it ends; 3: with its score.
    n_iter : int or None
        So many candidates are drawn at random, by `random_state`, as in RandomizedSearchCV: `param_grid` may then hold
        distributions (of scipy.stats) beside lists. Kernels that are drawn share sweeps as those of a grid do.
    refine : int, default 0
        Further rounds, each of a finer grid around the best candidate so far: half a step of the grid to both sides on
        each axis, a whole step where the best lies at an end. A round has at most 3^axes − 1 candidates, in sweeps of
        their own; landmarks and folds stay. Sizes (n_landmarks) and what is no number stay as they are in the best.

    Attributes
    ----------
    cv_results_ : dict of arrays, the columns and ranks of GridSearchCV; `sem_test_…`, standard errors over splits; and
        `prediction_error`, how far the predictions of a candidate are from least squares in float64, relative to their
        norm (`solvers.accuracy`; NaN: not known, as of linear and exact models). Kernels of candidates beyond
        a thousandth are swept again in better arithmetic; what stays beyond it is warned of (`Inaccurate`). Where
        conjugate gradients fit candidates, it is what `tol` leaves, and `converged` tells whose descents have come to
        their end on all splits: the others rank behind them, and are no choice unless all are like them.
    edges_ : list of Edge
        The ends of the grid at which the best score lies, of which `BestAtEdge` warns: of its numbers with at least
        three values, but for sizes (n_landmarks) and tolerances.
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
        refit: bool | str | Callable[[dict[str, Any]], int] = True,
        one_standard_error: bool = False,
        random_state: int = 0,
        return_train_score: bool = False,
        error_score: Any = "raise",
        verbose: int = 0,
        n_iter: int | None = None,
        refine: int = 0,
    ) -> None:
        self.estimator = estimator
        self.param_grid = param_grid
        self.cv = cv
        self.scoring = scoring
        self.refit = refit
        self.one_standard_error = one_standard_error
        self.random_state = random_state
        self.return_train_score = return_train_score
        self.error_score = error_score
        self.verbose = verbose
        self.n_iter = n_iter
        self.refine = refine

    # -- what is to be done --------------------------------------------------------------------------------------------

    def plan(
        self, X: Any, y: Any = None, *, groups: Any = None, sample_weight: Any = None, sample_domain: Any = None
    ) -> SearchPlan:
        """Return the plan of `fit`, without running it; transforms that learn are fitted, and landmarks drawn.

        Further rounds (`refine`) are planned about the middle of the grid, for the best is not known.
        """
        given = Given(X, y, groups, sample_weight, sample_domain)
        everyone, drawn = candidates_of(self.estimator, self._grid()), {}  # type: ignore[var-annotated]
        prepared = self._prepare(everyone, given, drawn=drawn)
        found = self._plan(prepared)
        for _ in range(self.refine):
            if not (more := self._further(everyone, len(everyone) // 2, given, prepared, drawn)):
                break
            found = found.with_more(self._plan(more, refit=False))
        return found

    def _grid(self) -> list[dict[str, Any]]:
        for name, value, least in (("n_iter", self.n_iter, 1), ("refine", self.refine, 0)):
            count = isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= least
            if not count and not (value is None and name == "n_iter"):
                raise ConfigError(f"{name}: expected a whole number of at least {least}, found {value!r}")
        try:
            if self.n_iter is None:
                grid = list(ParameterGrid(self.param_grid))
            else:
                grid = list(ParameterSampler(self.param_grid, int(self.n_iter), random_state=int(self.random_state)))
        except (TypeError, ValueError) as error:
            drawn = "; distributions are drawn from with n_iter" if self.n_iter is None and self._drawn() else ""
            raise ConfigError(f"param_grid: {error}{drawn}") from error
        if not grid:
            raise ConfigError("param_grid: it has no candidate")
        return grid

    def _drawn(self) -> set[str]:
        """The parameters that are given by distributions."""
        grids = self.param_grid if isinstance(self.param_grid, list | tuple) else [self.param_grid]
        each = [grid for grid in grids if isinstance(grid, Mapping)]
        return {name for grid in each for name, values in grid.items() if hasattr(values, "rvs")}

    def _prepare(self, everyone: list[Candidate], given: Given, **known: Any) -> list[Prepared]:
        classifier = is_classifier(everyone[0].last)
        if any(is_classifier(candidate.last) != classifier for candidate in everyone):
            raise ConfigError("param_grid: it holds classifiers and regressors, which no score compares")
        self._check(classifier=classifier)
        return prepare(everyone, given, cv=self.cv, seed=int(self.random_state), scoring=self._scoring, **known)

    def _check(self, *, classifier: bool) -> None:
        """Refuse settings that are none, and note the scores."""
        if isinstance(self.random_state, bool) or not isinstance(self.random_state, int | np.integer):
            raise ConfigError(f"random_state: expected an integer, the seed of the folds, found {self.random_state!r}")
        if not (isinstance(self.refit, bool | str) or callable(self.refit)):
            raise ConfigError(f"refit: expected True, False, the name of a score or a function, found {self.refit!r}")
        if callable(self.refit) and (self.refine or self.one_standard_error):
            raise ConfigError("refit: a function chooses by itself; leave out refine and one_standard_error")
        if self.error_score != "raise" and (isinstance(self.error_score, str) or not np.isscalar(self.error_score)):
            raise ConfigError(f"error_score: expected 'raise' or a number, found {self.error_score!r}")
        trained, raises = bool(self.return_train_score), self.error_score == "raise"
        self._scoring = chosen(self.scoring, classifier=classifier, trained=trained, raises=raises)
        several = "score" not in self._scoring.names
        if self.refine and several and not isinstance(self.refit, str):
            raise ConfigError("refine: with several scores refit must name the one around whose best to go on")
        named, names = self.refit if isinstance(self.refit, str) else None, self._scoring.names
        if self.refit and not callable(self.refit) and "score" not in names and named not in names:
            raise ConfigError(
                f"refit: with several scores it must name one of {', '.join(names)}, found {self.refit!r}"
            )

    def _plan(self, prepared: list[Prepared], *, refit: bool = True) -> SearchPlan:
        learned = [event for one in prepared for event in one.learned]
        work = [(one.members, one.work) for one in prepared]
        return planned(work, self._scoring, learned=learned, refit=refit and bool(self.refit))

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

        Warns
        -----
        BestAtEdge
            The best candidate lies at an end of the grid.
        """
        start = time.perf_counter()
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)  # of a search before
        with part_of_job(f"{type(self).__name__}.fit"):
            self._search(Given(X, y, groups, sample_weight, sample_domain))
        self.seconds_ = time.perf_counter() - start
        return self

    def _search(self, given: Given) -> None:
        everyone, drawn = candidates_of(self.estimator, self._grid()), {}  # type: ignore[var-annotated]
        prepared = self._prepare(everyone, given, drawn=drawn)
        self._require_refit(prepared)
        self.plan_ = self._plan(prepared)
        self.n_splits_ = self.plan_.splits
        judged = Judged(self._scoring, self.n_splits_, self.error_score, int(self.verbose))
        self._judge(prepared, judged, self.plan_)
        for _ in range(self.refine):
            best = choose(judged.table(everyone), self._label(), everyone, one_standard_error=False)
            if not (more := self._further(everyone, best, given, prepared, drawn)):
                break
            for one in prepared:
                one.work.forget_all_but(best)
            plan = self._plan(more, refit=False)
            self.plan_ = self.plan_.with_more(plan)
            self._judge(more, judged, plan)
        self._tell(everyone, prepared[0], judged, given.X)
        if self.refit:
            begun = time.perf_counter()
            self.best_estimator_ = self._best(prepared, given.y, given.sample_weight)
            if hasattr(self.best_estimator_, "feature_names_in_"):
                self.feature_names_in_ = self.best_estimator_.feature_names_in_
            self.refit_time_ = time.perf_counter() - begun

    def _further(
        self, everyone: list[Candidate], best: int, given: Given, prepared: list[Prepared], drawn: dict[Any, Any]
    ) -> list[Prepared]:
        """A finer grid around the best, which joins the candidates and what is prepared; nothing where it is empty."""
        finer = around([candidate.params for candidate in everyone], best)
        if not finer:
            return []
        more = self._prepare(candidates_of(self.estimator, finer, len(everyone)), given, before=prepared, drawn=drawn)
        prepared += more
        everyone += [candidate for one in more for candidate in one.members]
        everyone.sort(key=lambda candidate: candidate.index)
        return more

    def _require_refit(self, prepared: list[Prepared]) -> None:
        """Refuse a refit to all labels that leave no target to adapt to."""
        parts = [part.sides for one in prepared for part in one.work.partitions if part.sides is not None]
        if self.refit and not all(sides.has_both(sides.folds.count) for sides in parts):
            raise ConfigError(
                "refit: every domain has labelled rows, and a fit to all of them has nothing to adapt to; take "
                "refit=False, and fit best_params_ to rows whose target has no labels"
            )

    def _judge(self, prepared: list[Prepared], judged: Judged, plan: SearchPlan) -> None:
        """Judge the candidates of a round."""
        emit(Note(str(plan)))
        judged.announce(plan)
        for one in prepared:
            judged.judge(one)

    def _label(self) -> str:
        """Of the score that chooses."""
        return "score" if "score" in self._scoring.names else str(self.refit)

    def _tell(self, everyone: list[Candidate], prepared: Prepared, judged: Judged, X: Any) -> None:
        """Set the fitted attributes, but those of the best model."""
        self.multimetric_ = "score" not in self._scoring.names
        self.cv_results_ = judged.table(everyone)
        judged.warn_of_failures(len(everyone) * self.n_splits_)
        warn_of_errors(self.cv_results_, everyone, judged.tested)
        names, inputs = dict(self._scoring.names), prepared.work.inputs
        self.scorer_ = names if self.multimetric_ else names["score"]
        self.n_features_in_ = X.shape[1] if hasattr(X, "shape") else inputs.n_features
        if inputs.classes is not None:
            self.classes_ = inputs.classes
        if callable(self.refit):
            self.best_index_ = index_by(self.refit, self.cv_results_)
            self.best_params_ = everyone[self.best_index_].params
        elif self.refit or not self.multimetric_:
            label = self._label()
            best = choose(self.cv_results_, label, everyone, one_standard_error=self.one_standard_error)
            self.best_index_, self.best_params_ = best, everyone[best].params
            self.best_score_ = float(self.cv_results_[f"mean_test_{label}"][best])
            first = choose(self.cv_results_, label, everyone, one_standard_error=False)
            self._find_edges(first)

    def _find_edges(self, best: int) -> None:
        """Note the ends of the grid at which the best score lies, if there is one, with a warning."""
        known = np.isfinite(self.cv_results_[f"mean_test_{self._label()}"][best])
        self.edges_ = edges(self.cv_results_["params"], best, self._drawn()) if known else []
        if self.edges_:
            told = "; ".join(map(str, self.edges_))
            warnings.warn(f"the best candidate lies at an end of the grid: {told}", BestAtEdge, stacklevel=5)

    def _best(self, prepared: list[Prepared], y: Any, sample_weight: Any) -> Any:
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
