"""Draw the pictures of docs/benchmarks.md from its tables: `python -m pipelines.bench.pictures`."""

from pathlib import Path

from pipelines.shared.charts import Curve, curves
from pipelines.shared.pictures import LIGHT, Paper, bare, drawing

DOCS = Path(__file__).parents[2] / "docs"
# the beginnings of the tables' first lines
PEERS, MNIST = ("| 100,000 rows, m", "| 60,000 rows, m"), "| rows | m | σ, λ |"


def rows_of(page: str, head: str) -> list[list[str]]:
    """Return the cells of the table whose first line begins with `head`, with that line."""
    first, _, *rest = page[page.index(head) :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in (first, *rest)]


def number(cell: str) -> float:
    """Return the first number of a cell, without its standard error."""
    return float(cell.split()[0].replace(",", ""))


def peers(page: str, paper: Paper = LIGHT) -> bytes:
    """Draw seconds of fits as bars, one chart for each table."""
    with drawing(6.4, 3.4, paper) as (figure, png):
        for ax, head in zip(figure.subplots(len(PEERS), 1), PEERS, strict=True):
            (title, *_), *table = rows_of(page, head)
            bars = ax.barh([cells[0] for cells in table], [number(cells[1]) for cells in table], color=paper.bar)
            ax.bar_label(bars, fmt="%.3g", padding=3)
            ax.invert_yaxis()
            ax.margins(x=0.1)
            ax.set_title(title, loc="left")
            bare(ax, paper)
        ax.set_xlabel("seconds of a fit")
    return png.getvalue()


def mnist(page: str, paper: Paper = LIGHT) -> bytes:
    """Draw the test error against landmarks, for the originals and for larger corpora."""
    _, *table = rows_of(page, MNIST)
    points = [(rows, number(m), number(error)) for rows, m, _, _, error, *_ in table]
    shown = []
    for rows in dict.fromkeys(rows for rows, *_ in points):
        best = {m: min(e for r, n, e in points if (r, n) == (rows, m)) for r, m, _ in points if r == rows}
        shown.append(Curve(f"{rows} rows", list(best), list(best.values())))
    ticks = sorted({m for _, m, _ in points})
    labels = {"x_label": "landmarks m", "y_label": "error on the test digits, %"}
    return curves(shown, x_log=True, x_ticks=ticks, y_range=(0, 4), paper=paper, **labels)


def main() -> None:
    """Write both pictures into docs/gallery."""
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    (DOCS / "gallery" / "bench-peers.png").write_bytes(peers(page))
    (DOCS / "gallery" / "bench-mnist.png").write_bytes(mnist(page))


if __name__ == "__main__":
    main()
