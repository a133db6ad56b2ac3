"""Orthonormal bases of Krylov spaces: rows of one block, each new one orthogonal to those before.

Classical Gram-Schmidt finds the products with all rows in one reduction, together with that of the
vector with itself, from which the length of the rest follows (Pythagoras). It is repeated only
where most of the vector was subtracted, so that digits were lost: the criterion of Daniel, Gragg,
Kaufman and Stewart, "Reorthogonalization and stable algorithms for updating the Gram-Schmidt QR
factorization" (1976).
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from distarray.comm import _backend
from distarray.linalg.iterative._vectors import Space, is_finite
from distarray.typing import Buffer

_REPEATED_BELOW: Final = 0.5
"""Of the square of a length: what must be left without a repetition, as the authors advise."""
_ROUNDING_UNITS: Final = 10
"""Times the precision: of a vector what may be left by rounding alone."""


class Basis:
    """Room for a number of vectors of a space.

    Attributes
    ----------
    rows : array
        Their blocks.
    """

    def __init__(self, space: Space, count: int) -> None:
        self.space = space
        self.rows = space.empty(count)

    def start(self, vector: Buffer, size: float) -> None:
        """Make a vector of this size the first one."""
        self.space.combine([(self.rows[0], 0, ((1 / size, vector),))])

    def extend(self, count: int, vector: Buffer) -> tuple[list[Any], float]:
        """Put what of a vector is orthogonal to the first `count` ones behind them, normalized.

        Returns
        -------
        list, float
            The coefficients of those, and the size of the rest: 0 where it is rounding alone, NaN
            where the vector is not finite; then the row is not to be used.
        """
        row = self.rows[count]
        self.space.combine([(row, 0, ((1, vector),))])
        total = np.zeros(count, self.space.wide)
        sums = self._pass(count, None, 1, True)
        first = None
        while True:
            *found, square = self.space.add_up(sums)
            if not is_finite(*found, square):
                return total.tolist(), math.nan
            total += found
            first = square.real if first is None else first
            rest = square.real - sum(one.real**2 + one.imag**2 for one in found)
            if rest <= (_ROUNDING_UNITS * self.space.eps) ** 2 * first:
                return total.tolist(), 0.0
            size = math.sqrt(rest)
            if rest >= _REPEATED_BELOW * square.real:
                self._pass(count, found, 1 / size, False)
                return total.tolist(), size
            sums = self._pass(count, found, 1, True)

    def _pass(self, count: int, subtracted: Any, factor: float, projects: bool) -> list[Any]:
        """Subtract rows from that behind them, scale it, and return parts of its products."""
        space, row = self.space, self.rows[count]
        sums: Any = np.zeros(count + 1, space.wide)
        device = _backend.device_of(row)
        if subtracted is not None:
            subtracted = _backend.asarray(np.array(subtracted, space.dtype), device)
        with np.errstate(all="ignore"):
            for tile in space.tiles(count + 2):
                piece, before = row[tile], self.rows[:count, tile]
                if subtracted is not None:
                    piece -= subtracted @ before
                if factor != 1:
                    piece *= factor
                if projects:
                    sums[:count] += space.project(before, piece)
                    sums[count] += space.project(piece[None], piece)[0]
        return list(sums)

    def subtract(self, places: slice, coefficients: Any) -> None:
        """Subtract from some rows combinations of those before, one for each column of a matrix."""
        weights = self._weights(np.transpose(coefficients))
        with np.errstate(all="ignore"):
            for tile in self.space.tiles(sum(weights.shape)):
                self.rows[places, tile] -= weights @ self.rows[: weights.shape[1], tile]

    def combine(self, coefficients: Any, target: Buffer) -> None:
        """Put the sum of the first rows, times coefficients, into a block."""
        weights = self._weights(coefficients)
        for tile in self.space.tiles(len(weights) + 1):
            target[tile] = weights @ self.rows[: len(weights), tile]

    def replace(self, coefficients: Any) -> None:
        """Put combinations of rows, one for each column of a matrix, in the place of the first."""
        weights = self._weights(np.transpose(coefficients))
        count, rows = weights.shape
        for tile in self.space.tiles(rows + count):
            self.rows[:count, tile] = weights @ self.rows[:rows, tile]

    def _weights(self, coefficients: Any) -> Buffer:
        found = np.array(coefficients, self.space.dtype, order="C")
        return _backend.asarray(found, _backend.device_of(self.rows))
