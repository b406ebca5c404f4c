"""Settings of a job, and its views of the rows."""

from dataclasses import dataclass
from math import inf
from pathlib import Path

from bigkernel.errors import ConfigError

DEFAULT_ROWS = 200_000
LANDMARK_SHARE = 5  # least rows of the first fit for each landmark
PLAIN = ("unit-norm",)
# widths of Gaussian kernels on 28×28 and 8×8 digits of unit norm, without a search
SIGMA, SMALL_SIGMA = 0.5, 0.35


@dataclass(frozen=True)
class Settings:
    """Settings of a job; see the options of `pipelines.corpus.command`."""

    data: Path | None
    corpus: Path | None
    test: Path | None
    rows: int | None
    landmarks: int
    transforms: tuple[str, ...]
    plain: bool
    sigma: tuple[float, ...] | None
    alpha: tuple[float | str, ...] | None  # numbers, or "gcv" alone
    solver: str
    search_rows: int | None
    steps: int
    strength: float
    seed: int

    def check(self) -> None:
        """Raise `ConfigError` for settings that contradict one another."""
        if (self.corpus is None) != (self.test is None):
            raise ConfigError("--corpus and --test go together: the rows to fit, and true test rows that are not in it")
        if self.corpus is not None and self.data is not None:
            raise ConfigError("--corpus is fitted as it is, --data holds originals to deform: give one of them")
        if self.search_rows is not None and not self.searches:
            raise ConfigError(f"--search-rows {self.search_rows}: give several --sigma or --alpha to choose among")
        if not all(0 < sigma < inf for sigma in self.sigma or ()):
            raise ConfigError(f"--sigma: expected numbers above 0, found {self.sigma}")
        numbers = (1.0,) if self.alpha in (None, ("gcv",)) else self.alpha
        if not all(isinstance(one, float) and 0 <= one < inf for one in numbers or ()):
            raise ConfigError(f"--alpha: expected gcv or numbers of at least 0, found {self.alpha}")

    @property
    def corpus_rows(self) -> int:
        """Number of rows of the corpus that is made."""
        return self.rows or DEFAULT_ROWS

    @property
    def views(self) -> dict[str, tuple[str, ...]]:
        """Transforms by view: those of --transform last, rows of unit norm before them for comparison."""
        if not self.transforms or self.transforms == PLAIN:
            return {"unit norm": PLAIN}
        features = {"features": self.transforms}
        return {"unit norm": PLAIN, **features} if self.plain else features

    @property
    def searches(self) -> bool:
        """Whether σ and α are chosen among several on training rows."""
        if self.transforms and (self.sigma is None or self.alpha is None):
            return True
        return len(self.alpha or ()) > 1 or len(self.sigma or ()) > 1

    def width_for(self, n_features: int) -> float:
        """Return the width σ used without a search, for rows stored with so many features."""
        if self.sigma:
            return self.sigma[0]
        return SMALL_SIGMA if n_features < 256 else SIGMA

    @property
    def penalty(self) -> float | str:
        """The penalty used without a search."""
        return self.alpha[0] if self.alpha else "gcv"
