"""Which rows serve as landmarks: indices only, so that the rows may come from anywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.errors import DataError


def uniform(
    n_rows: int,
    n_landmarks: int,
    rng: np.random.RandomState,
    *,
    sound: Callable[[NDArray[np.int64]], NDArray[Any]] | None = None,
) -> NDArray[np.int64]:
    """Draw `n_landmarks` of `n_rows` row ids, without replacement, all equally likely; sorted (Williams & Seeger 2000).

    `sound` tells which of sorted row ids may serve, (k,) bool; None: all. Those that may not are replaced by further
    draws, and where too few may serve these are all that there are. `DataError` where none may, or rows are fewer.
    """
    require_count(n_rows, n_landmarks)
    chosen = _draw(n_rows, n_landmarks, rng)
    if sound is None:
        return chosen
    tried, kept = chosen, chosen[sound(chosen)]
    while len(kept) < n_landmarks:
        left = n_rows - len(tried)
        if not left and not len(kept):
            raise DataError(f"n_landmarks={n_landmarks}: only 0 of {n_rows} rows are without NaN or infinity")
        if not left:
            break
        # more each time: the number of draws grows with the logarithm of the rows, whatever share of them is bad
        places = _draw(left, min(left, len(tried)), rng)
        fresh = places + np.searchsorted(tried - np.arange(len(tried)), places, side="right")  # ids not tried before
        tried, fresh = np.sort(np.concatenate([tried, fresh])), fresh[sound(fresh)]
        missing = min(n_landmarks - len(kept), len(fresh))
        kept = np.concatenate([kept, fresh[_draw(len(fresh), missing, rng)] if missing else fresh])
    return np.sort(kept)


def _draw(n_rows: int, n_landmarks: int, rng: np.random.RandomState) -> NDArray[np.int64]:
    if n_rows <= 4 * n_landmarks:
        return np.sort(rng.permutation(n_rows)[:n_landmarks])
    # rejection: no permutation of all N in memory
    drawn: NDArray[np.int64] = np.empty(0, np.int64)
    while len(drawn) < n_landmarks:
        more = rng.randint(0, n_rows, size=2 * n_landmarks, dtype=np.int64)
        together = np.concatenate([drawn, more])
        _, first = np.unique(together, return_index=True)
        drawn = together[np.sort(first)]
    return np.sort(drawn[:n_landmarks])


def require_count(n_rows: int, n_landmarks: int) -> None:
    """Raise `DataError` unless 1 ≤ n_landmarks ≤ n_rows."""
    if not 1 <= n_landmarks <= n_rows:
        raise DataError(
            f"n_landmarks={n_landmarks}: expected from 1 to the number of rows to draw from, n_samples = {n_rows}"
        )


def given(landmarks: Any, n_features: int) -> NDArray[np.float64]:
    """Landmarks handed over as an array (m, d), checked and copied to float64."""
    array = np.array(landmarks, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != n_features or not len(array):
        raise DataError(f"landmarks: expected an array of shape (m, {n_features}), found {array.shape}")
    if not np.isfinite(array).all():
        raise DataError(f"landmarks: row {int(np.argmin(np.isfinite(array).all(axis=1)))} is not finite")
    return array
