"""`python -m pipelines domains`: digits of one set, recognised after learning from another.

Two parts, each with its tables and pictures on one page: the USPS–MNIST pair of Long et al. in both directions beside
the published figures (`pair`), and domain generalization over rotated and restyled digits (`rotated`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from pipelines.domains import choice, page, rotated, tables
from pipelines.domains.data import MNIST_ROWS, USPS_ROWS, Digits, mnist_digits, the_pair
from pipelines.domains.features import BARE, TABLES, restyled, tasks_of
from pipelines.domains.pair import Chosen, Fits, choose, fit_all, grid_size
from pipelines.shared.experiments import Report, options, steps

EXPERIMENTS = ("pair", "rotated", "choice", "whole", "tables")
DIRECTIONS = ("USPS → MNIST", "MNIST → USPS")


@dataclass(frozen=True)
class Size:
    """Sizes of all experiments."""

    repeats: int  # draws are seed … seed + repeats − 1
    seed: int
    m: int  # landmarks
    rows: tuple[int, int] = (USPS_ROWS, MNIST_ROWS)  # of USPS and of MNIST
    domain_rows: int = 1_000  # of a domain of the rotated digits
    values: int | None = None  # most values of each hyper-parameter; None: all

    @property
    def draws(self) -> range:
        """Numbers of the draws, used as seeds."""
        return range(self.seed, self.seed + self.repeats)

    @property
    def quick(self) -> Size:
        """Small sizes, to check that everything runs."""
        few, m = min(self.repeats, 2), min(self.m, 60)
        return replace(self, repeats=few, m=m, rows=(300, 300), domain_rows=100, values=1)


def on_the_pair(report: Report, data: Path, size: Size, *, quiet: bool) -> dict[str, Any]:
    """Write all tables of the pair, the open problem and the examples."""
    sets = cut(the_pair(data, size.seed), size)
    page.examples(report, sets, [restyled(digits, size.seed) for digits in sets], size.seed)
    records: dict[str, Any] = {}
    fits: dict[str, Fits] = {}
    for table, described in TABLES.items():
        fits[table] = fit_all(sets, table, size.draws, size.m, what=described.title, quiet=quiet)
        records[table] = page.methods_table(
            report,
            f"pair_{table}",
            f"{described.title}: the papers' practice",
            fits[table],
            DIRECTIONS,
            published=table == BARE,
            caption=page.practice_caption(table, size.m, len(size.draws)),
        )
    page.open_problem(report, sets, fits[BARE], size.m)
    for table in TABLES:
        without_target_labels(report, sets, table, size, quiet=quiet)
    return records


def without_target_labels(report: Report, sets: tuple[Digits, Digits], table: str, size: Size, *, quiet: bool) -> None:
    """Write the table of the same features with hyper-parameters chosen on the source."""
    chosen: list[dict[str, Chosen]] = []
    with steps(f"{TABLES[table].title}: choice", 2 * grid_size(size.values), quiet=quiet) as after:
        for task in tasks_of(sets, table, size.seed):
            chosen.append(choose(task, size.m, size.seed, size.values, after))
    settings = {key: [of_direction[key].setting for of_direction in chosen] for key in chosen[0]}
    what = f"{TABLES[table].title}: as chosen"
    fits = fit_all(sets, table, size.draws, size.m, settings=settings, what=what, quiet=quiet)
    page.methods_table(
        report,
        f"pair_{table}_chosen",
        f"{TABLES[table].title}: chosen on the source alone",
        fits,
        DIRECTIONS,
        chosen=chosen,
        caption=page.chosen_caption(table),
    )


def on_rotated_digits(report: Report, data: Path, size: Size, *, quiet: bool) -> None:
    """Run domain generalization over six domains."""
    mnist = mnist_digits(data)
    results = rotated.measure(mnist, size.domain_rows, size.m, size.draws, quiet=quiet)
    rotated.show(report, results, rotated.styled(mnist, size.domain_rows, size.seed), size.domain_rows, size.m)


def without_labels(report: Report, data: Path, size: Size, *, quiet: bool) -> dict[str, Any]:
    """Compare what scores without labels of the target choose."""
    sets = cut(the_pair(data, size.seed), size)
    return choice.compare(report, sets, data, size.domain_rows, size.m, size.seed, quiet=quiet)


def on_whole_sets(report: Report, data: Path, size: Size, *, quiet: bool) -> dict[str, Any]:
    """Run the protocol of SKADA-Bench; as many splits as `--repeats`, with 1,000 landmarks at least."""
    few = size.values is not None
    m, rows = (size.m, 600) if few else (max(size.m, 1_000), None)
    return {"accuracy": choice.whole_sets(report, data, size.draws, m, rows=rows, quiet=quiet)}


def on_tables(report: Report, data: Path, size: Size, *, quiet: bool) -> dict[str, float]:
    """Compare what scores without labels of the target choose on tables of scikit-learn."""
    return tables.compare(report, 100 if size.values else 600, min(size.m, 150), size.seed, quiet=quiet)


def cut(sets: tuple[Digits, Digits], size: Size) -> tuple[Digits, Digits]:
    """Return the first rows of either set."""
    first, second = (digits.take(slice(0, rows)) for digits, rows in zip(sets, size.rows, strict=True))
    return first, second


@click.command()
@options("domains", repeats=10, repeats_help="Draws of landmarks and copies.")
@click.option(
    "--landmarks", "m", type=click.IntRange(20), default=400, show_default=True, help="Landmarks of all methods."
)
@click.option(
    "--experiment",
    "experiments",
    type=click.Choice([*EXPERIMENTS, "all"]),
    multiple=True,
    default=EXPERIMENTS[:2],
    show_default=True,
    help="May be given more than once.",
)
@click.option(
    "--quick", is_flag=True, help="Use few digits, two draws and few landmarks, to check that everything runs."
)
def domains(
    data: Path, repeats: int, seed: int, out: Path, as_json: bool, m: int, experiments: tuple[str, ...], quick: bool
) -> None:
    """Recognise digits of one set after learning from another (domain adaptation).

    \b
    pair     USPS and MNIST in both directions with m landmarks, ten draws: methods
             that use no target image (1-NN, KRR, UDICA, DICA) and methods that use
             its images and no label (SSSL, XNV, TCA, JDA, ARTL), in three tables of
             separate features: bare vectors, beside the published figures; with
             virtual copies; moments and orientations. Each with the papers'
             practice, and with hyper-parameters chosen on the source alone.
             The open problem: a method on m landmarks against exact SSSL.
    rotated  Six domains of rotated and restyled MNIST digits, one left out in turn.
    choice   Settings of ARTL chosen without labels of the target, by each score of a
             search, on twelve pairs of domains.
    whole    All of USPS and MNIST, a fifth of the target held out: settings of ARTL
             chosen without its labels (about three minutes a split).
    tables   Settings of ARTL chosen without labels of the target, on five tables of
             scikit-learn, each made four pairs of domains.

    pair needs digits16_USPS_1800.mat and digits16_MNIST_2000.mat in --data; rotated MNIST's training files; choice
    both; whole zip.train.gz and MNIST's.

    \b
    python -m pipelines domains --experiment pair
    python -m pipelines domains --quick --out /tmp/few
    python -m pipelines domains --experiment all --json | jq '.open_problem'
    """
    size = Size(repeats, seed, m)
    size = size.quick if quick else size
    selected = EXPERIMENTS if "all" in experiments else experiments
    report = Report(out, "From one set of digits to another", page.subtitle(selected), quiet=as_json)
    page.introduction(report)
    run: Mapping[str, Callable[..., Any]] = {
        "pair": on_the_pair,
        "rotated": on_rotated_digits,
        "choice": without_labels,
        "whole": on_whole_sets,
        "tables": on_tables,
    }
    for experiment in EXPERIMENTS:
        if experiment in selected:
            run[experiment](report, data, size, quiet=as_json)
    report.finish(page.facts(size.draws, size.m), size=asdict(size))
