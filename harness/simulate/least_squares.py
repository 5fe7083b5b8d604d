"""Least squares of relative errors without negative coefficients, and numbers as short as they are known."""

from __future__ import annotations

from itertools import combinations

import numpy as np


def least_squares(tiles: np.ndarray, milliseconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients >= 0 (milliseconds) and the relative errors of the fit.

    Every subset of the features is solved, and the best that has no negative coefficient is taken: exact, and with four
    features short. A feature that others determine is left out.

    Args:
        tiles: float64 ``[cells, features]``.
        milliseconds: float64 ``[cells]``.
    """
    relative = tiles / milliseconds[:, None]
    scale = np.linalg.norm(relative, axis=0)
    scale[scale == 0] = 1.0
    best: tuple[float, np.ndarray] | None = None
    for size in range(tiles.shape[1], 0, -1):
        for chosen in combinations(range(tiles.shape[1]), size):
            columns = list(chosen)
            if np.linalg.matrix_rank(tiles[:, columns] / np.abs(tiles[:, columns]).max(0)) < size:
                continue
            found = np.linalg.lstsq(relative[:, columns] / scale[columns], np.ones(len(tiles)), rcond=None)[0]
            if (found < 0).any():
                continue
            whole = np.zeros(tiles.shape[1])
            whole[columns] = found / scale[columns]
            error = float(np.square(relative @ whole - 1).sum())
            if best is None or error < best[0] - 1e-12:
                best = error, whole
    assert best is not None, "one feature alone always has a solution above zero"
    return best[1], relative @ best[1] - 1


def short(value: float) -> float:
    """Six digits: what files of rates hold."""
    return float(f"{value:.6g}")
