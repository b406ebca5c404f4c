"""Domain generalization: six domains of rotated and restyled MNIST digits, each left out in turn.

No row of the left-out domain takes part in a fit, nor in the choice of hyper-parameters: these are chosen once for each
left-out domain, by leaving out each of the others in turn (draw `seed`). Domains have different digits, 28×28 pixels,
rows of unit norm.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from bigkernel import DICA, KernelRidgeClassifier, SSSLClassifier
from bigkernel.arrays import Array
from pipelines.domains.data import Digits
from pipelines.domains.features import grey
from pipelines.domains.methods import Predict, Setting, kernel_of
from pipelines.domains.page import bright, one_of_each
from pipelines.shared import pictures
from pipelines.shared.deformed import turned
from pipelines.shared.experiments import Report, mean_and_error, plus_minus, show_seconds, steps, timed
from pipelines.shared.page import Column, Table

# degrees, pen and contrast of a domain
STYLES = {
    "0°": (0, 0.0, 1.0),
    "15°, thick": (15, 0.5, 1.0),
    "30°, thin": (30, -0.3, 1.0),
    "45°, pale": (45, 0.0, 0.8),
    "60°, thick": (60, 0.5, 1.0),
    "75°, thin": (75, -0.3, 1.0),
}


@dataclass(frozen=True)
class Domains:
    """Rows of some domains."""

    rows: Array  # (n, d), (n,) and (n,) positions in `STYLES`
    labels: Array
    domain: Array
    centres: Mapping[int, Array]  # landmarks (k, d) of each domain, by its position

    @property
    def landmarks(self) -> Array:
        """Landmarks of all its domains together, as many from each."""
        return np.concatenate([self.centres[g] for g in np.unique(self.domain)])

    def split(self, left_out: int) -> tuple[Domains, Domains]:
        """Return all other domains, and this one."""
        rest, this = (
            Domains(self.rows[mask], self.labels[mask], self.domain[mask], self.centres)
            for mask in (self.domain != left_out, self.domain == left_out)
        )
        return rest, this


def styled(mnist: Digits, rows: int, seed: int) -> list[Digits]:
    """Return `rows` digits in each style, none in two."""
    ids = np.random.default_rng(seed).permutation(len(mnist))[: rows * len(STYLES)]
    sets = []
    for (name, style), some in zip(STYLES.items(), np.array_split(ids, len(STYLES)), strict=True):
        digits = mnist.take(some)
        sets.append(Digits(name, turned(digits.images, *style), digits.labels))
    return sets


def draw_domains(mnist: Digits, rows: int, m: int, seed: int) -> tuple[Domains, float]:
    """Return the domains of a draw with m/(G − 1) landmarks each, and the seconds for those of G − 1 domains."""
    sets = styled(mnist, rows, seed)
    features = [grey(digits.images) for digits in sets]
    count = max(1, m // (len(sets) - 1))
    centres, seconds = timed(
        lambda: {g: KMeans(count, n_init=1, random_state=seed).fit(X).cluster_centers_ for g, X in enumerate(features)}
    )
    labels = np.concatenate([digits.labels for digits in sets])
    domain = np.repeat(np.arange(len(sets)), [len(X) for X in features])
    return Domains(np.concatenate(features), labels, domain, centres), seconds * (len(sets) - 1) / len(sets)


def pooled_krr(source: Domains, setting: Setting) -> Predict:
    """Fit ridge regression on landmarks, ignoring domains."""
    Z = source.landmarks
    model = KernelRidgeClassifier(kernel_of(Z, setting["width"]), setting["alpha"], landmarks=Z)
    return model.fit(source.rows, source.labels).predict


def pooled_sssl(source: Domains, setting: Setting) -> Predict:
    """Fit ridge regression on the leading eigenfunctions of all source rows, all of them labelled."""
    Z = source.landmarks
    kernel, s = kernel_of(Z, setting["width"]), int(setting["n_components"])
    model = SSSLClassifier(kernel, s, setting["alpha"], manifold=0, landmarks=Z)
    return model.fit(source.rows, source.labels).predict


def dica_krr(source: Domains, setting: Setting, supervised: bool = True) -> Predict:
    """Fit kernel ridge regression in components of DICA."""
    Z = source.landmarks
    given = {"alpha": setting["penalty"], "landmarks": Z, "supervised": supervised}
    model = DICA(kernel_of(Z, setting["width"]), int(setting["n_components"]), **given)
    model.fit(source.rows, source.labels, sample_domain=source.domain)
    centres = model.transform(Z)
    krr = KernelRidgeClassifier(kernel_of(centres, 1.0), setting["alpha"], landmarks=centres)
    krr.fit(model.transform(source.rows), source.labels)
    return lambda rows: np.asarray(krr.predict(model.transform(rows)))


@dataclass(frozen=True)
class Method:
    """A method and the values of its hyper-parameters, the smoothest first."""

    fit: Callable[[Domains, Setting], Predict]
    grid: Mapping[str, Sequence[float]]


METHODS = {
    "KRR": Method(pooled_krr, {"width": (0.7, 0.5), "alpha": (1.0, 0.1)}),
    "SSSL": Method(pooled_sssl, {"width": (0.5,), "n_components": (100, 200, 400), "alpha": (0.1,)}),
    "UDICA+KRR": Method(
        partial(dica_krr, supervised=False),
        {"width": (0.5,), "n_components": (50, 100), "penalty": (1.0, 0.01), "alpha": (0.1,)},
    ),
    "DICA+KRR": Method(dica_krr, {"width": (0.5,), "n_components": (9,), "penalty": (1.0, 0.01), "alpha": (1.0, 0.1)}),
}


def accuracy(method: Method, source: Domains, target: Domains, setting: Setting) -> float:
    """Return the accuracy in % on the target's rows."""
    return 100 * float(np.mean(method.fit(source, setting)(target.rows) == target.labels))


def choose(method: Method, source: Domains) -> dict[str, float]:
    """Choose the setting with the best mean accuracy over the source's domains, each left out in turn."""
    best: dict[str, float] = {}
    highest = -1.0
    for values in product(*method.grid.values()):
        setting = dict(zip(method.grid, values, strict=True))
        mean = statistics.fmean(accuracy(method, *source.split(g), setting) for g in np.unique(source.domain))
        if mean > highest:
            best, highest = setting, mean
    return best


@dataclass(frozen=True)
class Rotated:
    """Accuracies by method, left-out domain and draw, %; seconds of a fit with its landmarks; chosen settings."""

    accuracies: dict[str, list[list[float]]]
    seconds: dict[str, float]
    chosen: dict[str, list[dict[str, float]]]


def measure(mnist: Digits, rows: int, m: int, draws: Sequence[int], *, quiet: bool) -> Rotated:
    """Fit every method to all but one domain, for each domain and draw."""
    n = len(STYLES)
    accuracies: dict[str, list[list[float]]] = {name: [[] for _ in STYLES] for name in METHODS}
    times: dict[str, list[float]] = {name: [] for name in METHODS}
    chosen: dict[str, list[dict[str, float]]] = {name: [] for name in METHODS}
    with (
        steps("rotated digits", n * (len(draws) + 1), quiet=quiet) as after,
        threadpool_limits(limits=1, user_api="blas"),
    ):
        for number, draw in enumerate(draws):
            domains, spent = draw_domains(mnist, rows, m, draw)
            for g in range(n):
                source, target = domains.split(g)
                for name, method in METHODS.items() if number == 0 else ():
                    chosen[name].append(choose(method, source))
                if number == 0:
                    after()
                for name, method in METHODS.items():
                    share, seconds = timed(accuracy, method, source, target, chosen[name][g])
                    accuracies[name][g].append(share)
                    times[name].append(seconds + spent)
                after()
    return Rotated(accuracies, {name: statistics.median(some) for name, some in times.items()}, chosen)


def show(report: Report, results: Rotated, sets: Sequence[Digits], rows: int, m: int) -> None:
    """Show the table, the pictures and the sentence."""
    names = list(STYLES)
    records = []
    over_domains = {name: np.mean(values, axis=0).tolist() for name, values in results.accuracies.items()}
    for g, left_out in enumerate([*names, "mean"]):
        line: dict[str, Any] = {"left_out": left_out}
        for name in METHODS:
            values = results.accuracies[name][g] if g < len(names) else over_domains[name]
            line[name], line[f"{name}_error"] = mean_and_error(values)
        records.append(line)
    records.append({"left_out": "fit s", **{name: results.seconds[name] for name in METHODS}})

    def cell(name: str) -> Callable[[Mapping[str, Any]], str]:
        def text(line: Mapping[str, Any]) -> str:
            if line["left_out"] == "fit s":
                return show_seconds(line[name])
            return plus_minus(name, ".1f", "_error")(line)

        return text

    columns = [Column("left_out", "left out", left=True), *(Column(name, f"{name} %", cell(name)) for name in METHODS)]
    columns += [Column(f"{name}_error", f"{name} ±", hidden=True) for name in METHODS]
    report.table(
        "rotated",
        "Rotated and restyled digits, one domain left out",
        Table(columns, records),
        caption=f"Accuracy on the left-out domain, no image of which was seen. {len(names)} domains of {rows:,} MNIST "
        f"digits, no digit in two; {m} landmarks, k-means centres, as many of each source domain; mean ± standard "
        "error over draws of digits and landmarks. Hyper-parameters by leaving out one source domain in turn. Fit s: "
        "median seconds with landmarks and the prediction.",
    )
    report.tell(sentence(over_domains))
    shown = np.stack([bright(digits.images[one_of_each(digits.labels)]) for digits in sets])
    report.figure(
        "domains",
        pictures.contact_sheet,
        {"": shown},
        names,
        caption="A digit of each class of every domain: turned by 0 to 75°, with thicker or thinner strokes, or paler.",
    )


def sentence(over_domains: Mapping[str, Sequence[float]]) -> str:
    """Compare the other methods with pooled KRR, draw by draw."""
    sentences = []
    for name in list(METHODS)[1:]:
        gains = np.subtract(over_domains[name], over_domains["KRR"])
        gain, error = mean_and_error(gains.tolist())
        more = "more" if gain > 0 else "less"
        sentences.append(f"{name} {abs(gain):.1f} points {more}" + (f" (standard error {error:.1f})" if error else ""))
    return f"Over all domains, beside KRR on the pooled rows: {', '.join(sentences)}."
