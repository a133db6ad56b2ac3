"""Choices at random: each process finds the numbers of its rows, which then move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from distarray.core import BaseArray, check_flag, normalize_shape
from distarray.errors import ArgumentError, ArgumentTypeError, ShapeError
from distarray.layout import Placement
from distarray.ops import argsort, asarray, searchsorted, take, target_layout
from distarray.random._shuffling import Shuffling, lay_out, read_array, read_count
from distarray.typing import Shape

_UNITS: Final = 2.0**62
"""Into so many units the weights of a choice are cut, of which int64 holds the sums."""
_SCALE: Final = 2.0**600
"""Times this all probabilities above 0, the least double too, have quotients that are finite."""
_TOLERANCE: Final = np.finfo(np.float64).eps ** 0.5
"""How near to 1 NumPy wants the sum of the weights."""


class Choices(Shuffling):
    """Methods of `Generator` that permute and choose."""

    __slots__ = ()

    integers: Callable[..., Any]
    standard_exponential: Callable[..., Any]

    def choice(
        self,
        a: Any,
        size: Any = None,
        replace: bool = True,
        p: Any = None,
        axis: int = 0,
        shuffle: bool = True,
        *,
        mesh: Any = None,
        placements: Sequence[Placement] | None = None,
    ) -> Any:
        """Choose numbers below `a`, or parts of an array along an axis.

        Parameters
        ----------
        a : int, DistArray or array_like
            A plain array must be the same on every process.
        size : int or sequence of int, optional
            How many, in place of `axis`. Default: one.
        replace : bool
            Whether one may be chosen several times.
        p : array_like or DistArray, optional
            The probability of each, which are cut into units of 2**-62; default: all the same.
        axis : int
            Along which parts are chosen.
        shuffle : bool
            Taken for NumPy's sake: what is chosen is in random order in any case.
        mesh, placements
            As for `random`; beside a DistArray its mesh without them.

        Returns
        -------
        DistArray or scalar

        Raises
        ------
        ArgumentError
            If there are not as many to choose from, or `p` are no probabilities.
        ShapeError
            If `p` does not have one for each.
        AxisError
            If there is no such axis.

        Notes
        -----
        Distribution: nothing is sent to find what is chosen without `p`; then rows come from their
        owners as in `take`. Without replacement the first of a permutation are taken, of which no
        other one is computed. With `p` sums of units are searched, which have the same bits on any
        number of processes; without replacement each gets an exponential number over its
        probability, and the least ones are chosen (P. S. Efraimidis and P. G. Spirakis, Inf.
        Process. Lett. 97 (2006)): all of `p` is sorted.

        Examples
        --------
        >>> import distarray as da
        >>> rng = da.random.default_rng(7)
        >>> print(rng.choice(10, 5), rng.choice(10, 5, replace=False))
        [9 0 4 9 1] [2 5 4 7 3]
        >>> print(rng.choice(da.asarray([1.5, 2.5, 3.5]), 4, p=[0.2, 0.8, 0.0]))
        [2.5 2.5 2.5 2.5]
        """
        check_flag("choice", "shuffle", shuffle)
        replace = check_flag("choice", "replace", replace)
        shape = None if size is None else normalize_shape(size)
        of_numbers = not isinstance(a, BaseArray) and not np.ndim(a)
        if of_numbers:
            count = read_count("choice", "a", a)
        else:
            a, axis = read_array("choice", a, axis)
            count = a.shape[axis]
        wanted = prod(shape or ())
        if wanted and not count:
            raise ArgumentError(f"choice of size={size} among 0: there must be at least one")
        if not replace and wanted > count:
            raise ArgumentError(
                f"choice(replace=False) of size={size} among {count}: at most these can be chosen; "
                "pass replace=True for more"
            )
        if mesh is None:
            near = (a,) if size is None else (a, p)  # one number lies nowhere
            mesh = next((x._layout.mesh for x in near if isinstance(x, BaseArray)), None)
        where = {"mesh": mesh, "placements": placements if of_numbers else None}
        if p is not None:
            found = self._weighted(count, p, shape, replace or wanted < 2, where)
        elif replace or not wanted:
            found = self.integers(max(count, 1), size=shape, **where)
        else:
            found = self._places(count, shape, **where)
        if of_numbers:
            return found
        if isinstance(found, BaseArray) or isinstance(a, BaseArray):
            return lay_out(take(a, found, axis), mesh, placements)
        return np.take(a, found, axis)

    def _weighted(
        self, count: int, p: Any, shape: Shape | None, replace: bool, where: dict[str, Any]
    ) -> Any:
        """Return numbers below `count`, each as often as its weight says."""
        p = _weights(p)
        if p.shape != (count,):
            raise ShapeError(f"choice(p=) has shape {p.shape} and must have {(count,)}")
        total = float(p.sum())
        least = float(p.min()) if count else 0.0
        if not (least >= 0 and abs(total - 1) <= _TOLERANCE):
            raise ArgumentError(
                f"choice(p=) has a sum of {total!r} and {least!r} as its least item; "
                "probabilities are 0 or more, and their sum is 1: pass p / p.sum()"
            )
        if replace:
            ends = np.cumsum((p * _UNITS).astype(np.int64))
            drawn = self.integers(int(ends[-1]), size=shape, **where)
            found: Any = searchsorted(ends, drawn, "right")
            if not isinstance(drawn, BaseArray):
                return np.int64(int(found))
            return _of_layout(found, drawn.shape, where)
        wanted, able = prod(shape or ()), int((p > 0).sum())
        if wanted > able:
            raise ArgumentError(
                f"choice(replace=False, p=...) of {wanted}: only {able} have a probability above 0"
            )
        layout = p._layout if isinstance(p, BaseArray) else None
        keys = self.standard_exponential(
            count,
            mesh=layout.mesh if layout else where["mesh"],
            placements=layout.without_partial().placements if layout else None,
        )
        with np.errstate(divide="ignore", invalid="ignore"):  # those that cannot be chosen are last
            order = argsort(keys / (p * _SCALE))
        return _of_layout(order[:wanted].reshape(shape), shape, where)


def _weights(p: Any) -> Any:
    of_array: Any = p
    try:
        if isinstance(p, BaseArray):
            return of_array.astype(np.float64)
        return np.asarray(p, np.float64)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"choice(p={p!r}) are no real numbers") from None


def _of_layout(x: Any, shape: Any, where: dict[str, Any]) -> Any:
    """Return an array in the layout that arguments ask for, or the default one."""
    layout = target_layout(shape, where["mesh"], where["placements"], None)
    return asarray(x, mesh=layout.mesh, placements=layout.placements)
