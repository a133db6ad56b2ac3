"""The generator that users call: NumPy's methods, for distributed arrays."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distarray.comm import _backend, _memory, world
from distarray.core import device_of, normalize_dtype, normalize_shape
from distarray.errors import ArgumentError, ArgumentTypeError, DTypeError
from distarray.layout import Placement
from distarray.ops import build, target_layout
from distarray.random._blocks import fill_floats, fill_integers
from distarray.random._distributions import INTEGERS, Distributions, read_scalar
from distarray.random._seeding import derive_key, normalize_seed
from distarray.typing import Box, Buffer, Shape

_Fill = Callable[[Buffer, tuple[int, int], int, Shape, Box], None]

_DOUBLE = np.dtype(np.float64)
_PIECE = 1 << 16
"""Items that a formula takes at a time: what lies between its steps stays in the cache."""


def default_rng(seed: Any = None) -> Generator:
    """Return a generator of random numbers.

    Parameters
    ----------
    seed : int, sequence of int, Generator or None
        Integers of any size, 0 or more. A generator is returned as it is. None: a seed that
        process 0 finds and sends to all others at the first draw, which is collective then.

    Returns
    -------
    Generator

    Raises
    ------
    ArgumentTypeError
        If the seed is something else.
    ArgumentError
        If an integer is negative.

    Examples
    --------
    >>> import distarray as da
    >>> rng = da.random.default_rng(42)
    >>> x = rng.standard_normal((1000, 3))
    """
    return seed if isinstance(seed, Generator) else Generator(seed)


class Generator(Distributions):
    """A source of random numbers with the methods of NumPy's, for distributed arrays.

    Every process makes its own generator from the same seed and draws the same arrays from it, in
    the same order. The value of an element depends on the seed, on how many draws came before,
    and on the element's linear index in the global array (row-major): never on the number of
    processes, the mesh or the placements. Nothing is sent.

    Integers are exactly those of every platform. Uniform, normal and exponential floats are
    computed in IEEE double precision without library functions, so that they are as well, and so is
    what follows from them by arithmetic and square roots (`rayleigh`, `triangular`). The other
    distributions take NumPy's logarithms and powers, whose last bits may differ between processors.

    Parameters
    ----------
    seed : int, sequence of int or None
        See `default_rng`.

    Notes
    -----
    The numbers come from Philox 4x32-10 (Salmon et al., SC'11) and are not those of NumPy's
    generators. Normal values are made by the Box-Muller transform.

    Examples
    --------
    >>> import distarray as da
    >>> rng = da.random.default_rng(7)
    >>> print(rng.integers(0, 10, 3), rng.integers(0, 10, 3))
    [3 7 2] [2 8 4]
    """

    __slots__ = ("_calls", "_children", "_entropy", "_key", "_path")

    def __init__(self, seed: Any = None) -> None:
        self._entropy = normalize_seed(seed)
        self._path: tuple[int, ...] = ()
        self._key: tuple[int, int] | None = None
        self._calls = 0
        self._children = 0

    def random(
        self,
        size: Any = None,
        dtype: Any = np.float64,
        *,
        mesh: Any = None,
        placements: Sequence[Placement] | None = None,
    ) -> Any:
        """Draw floats from [0, 1), uniformly.

        Parameters
        ----------
        size : int or sequence of int, optional
            Global shape. Default: one number, the same on every process, as a scalar (a 0-d array
            where `mesh` or `placements` are given).
        dtype : data type
            float64, in steps of 2**-53, or float32, in steps of 2**-24.
        mesh : DeviceMesh, optional
            Default: the default mesh.
        placements : sequence of Placement, optional
            One per mesh axis. Default: the first mesh axis shards axis 0, the others replicate.

        Returns
        -------
        DistArray or scalar

        Raises
        ------
        DTypeError
            If `dtype` is another one.
        ShapeError
            If a size is negative.
        PlacementError
            If the placements do not fit the mesh or the shape.

        Examples
        --------
        >>> import distarray as da
        >>> print(da.random.default_rng(7).random(3))
        [0.35330364 0.79120817 0.22402163]
        """
        return self._floats("uniform", 0.0, 1.0, size, dtype, mesh, placements)

    def uniform(
        self,
        low: Any = 0.0,
        high: Any = 1.0,
        size: Any = None,
        *,
        dtype: Any = np.float64,
        mesh: Any = None,
        placements: Sequence[Placement] | None = None,
    ) -> Any:
        """Draw floats from [low, high), uniformly; rounding can reach `high`.

        Parameters
        ----------
        low, high : float
            Scalars, `low` not above `high`.
        size, dtype, mesh, placements
            As for `random`.

        Raises
        ------
        ArgumentError
            If the interval is empty or infinite.

        Examples
        --------
        >>> import distarray as da
        >>> print(da.random.default_rng(7).uniform(-1.0, 1.0, 3))
        [-0.29339273  0.58241635 -0.55195674]
        """
        low, high = read_scalar("low", low), read_scalar("high", high)
        if not (low <= high and math.isfinite(high - low)):
            raise ArgumentError(
                f"low={low!r}, high={high!r} is no interval: low must not be above high, and "
                "high - low must be finite"
            )
        return self._floats("uniform", low, high - low, size, dtype, mesh, placements)

    def standard_normal(
        self,
        size: Any = None,
        dtype: Any = np.float64,
        *,
        mesh: Any = None,
        placements: Sequence[Placement] | None = None,
    ) -> Any:
        """Draw floats from the normal distribution of mean 0 and variance 1.

        Parameters
        ----------
        size, dtype, mesh, placements
            As for `random`; float32 values are the float64 ones, rounded.

        Examples
        --------
        >>> import distarray as da
        >>> print(da.random.default_rng(7).standard_normal(3))
        [ 0.36933529 -1.39443405  1.41725473]
        """
        return self._floats("normal", 0.0, 1.0, size, dtype, mesh, placements)

    def normal(
        self,
        loc: Any = 0.0,
        scale: Any = 1.0,
        size: Any = None,
        *,
        dtype: Any = np.float64,
        mesh: Any = None,
        placements: Sequence[Placement] | None = None,
    ) -> Any:
        """Draw floats from a normal distribution.

        Parameters
        ----------
        loc, scale : float
            Mean and standard deviation, scalars.
        size, dtype, mesh, placements
            As for `random`; float32 values are the float64 ones, rounded.

        Raises
        ------
        ArgumentError
            If `scale` is negative.

        Examples
        --------
        >>> import distarray as da
        >>> print(da.random.default_rng(7).normal(5.0, 2.0, 3))
        [5.73867058 2.21113191 7.83450946]
        """
        loc, scale = read_scalar("loc", loc), read_scalar("scale", scale)
        if not scale >= 0:
            raise ArgumentError(f"scale={scale!r} is a standard deviation and must be 0 or more")
        return self._floats("normal", loc, scale, size, dtype, mesh, placements)

    def integers(
        self,
        low: Any,
        high: Any = None,
        size: Any = None,
        dtype: Any = np.int64,
        endpoint: bool = False,
        *,
        mesh: Any = None,
        placements: Sequence[Placement] | None = None,
    ) -> Any:
        """Draw integers from [low, high), each exactly as likely as the others.

        Parameters
        ----------
        low, high : int
            Scalars. Without `high`, from 0 to `low`.
        size, mesh, placements
            As for `random`.
        dtype : data type
            An integer type or bool.
        endpoint : bool
            Take `high` among the values.

        Raises
        ------
        DTypeError
            If `dtype` is no integer type.
        ArgumentError
            If there is no such integer, or one that the dtype cannot hold.

        Examples
        --------
        >>> import distarray as da
        >>> print(da.random.default_rng(7).integers(0, 10, 5))
        [3 7 2 0 3]
        """
        first, last = (
            (0, _integer("low", low))
            if high is None
            else (_integer("low", low), _integer("high", high))
        )
        last -= not endpoint
        kind = normalize_dtype(dtype, np.int64)
        if kind.kind not in "biu" or not kind.isnative:
            raise DTypeError(f"dtype={kind} holds no integers; use an integer type or bool")
        if first > last:
            raise ArgumentError(
                f"there is no integer from {first} to {last}, both included; low must be below "
                "high, or equal to it with endpoint=True"
            )
        least, most = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
        if first < least or last > most:
            raise ArgumentError(
                f"integers from {first} to {last} do not fit {kind}, which holds {least} to "
                f"{most}; use another dtype or other bounds"
            )

        def fill(out: Buffer, key: tuple[int, int], call: int, shape: Shape, box: Box) -> None:
            fill_integers(out, key, call, shape, box, first, last - first + 1)

        return self._draw(fill, size, kind, mesh, placements)

    def spawn(self, n_children: int) -> list[Generator]:
        """Return new generators that are independent of this one and of each other.

        Each process gets the same ones. Drawing from them does not change this generator.

        Parameters
        ----------
        n_children : int
            How many; calling again gives further ones.

        Examples
        --------
        >>> import distarray as da
        >>> children = da.random.default_rng(7).spawn(2)
        >>> print(*(child.integers(0, 10, 3) for child in children))
        [5 6 7] [2 9 4]
        """
        count = _integer("n_children", n_children)
        if count < 0:
            raise ArgumentError(f"n_children={count} must be 0 or more")
        entropy = self._known_entropy()
        children = []
        for _ in range(count):
            child = Generator(entropy)
            child._path = (*self._path, self._children)
            self._children += 1
            children.append(child)
        return children

    def __repr__(self) -> str:
        seed = self._entropy
        shown = seed[0] if seed is not None and len(seed) == 1 else seed
        path = f", spawned={self._path}" if self._path else ""
        return f"Generator(Philox4x32-10, seed={shown}{path}, draws={self._calls})"

    def _floats(
        self,
        kind: str,
        loc: float,
        scale: float,
        size: Any,
        dtype: Any,
        mesh: Any,
        placements: Sequence[Placement] | None,
    ) -> Any:
        found = _check_floats(dtype)

        def fill(out: Buffer, key: tuple[int, int], call: int, shape: Shape, box: Box) -> None:
            fill_floats(out, kind, key, call, shape, box, loc, scale)

        return self._draw(fill, size, found, mesh, placements)

    def _made(
        self,
        kind: str,
        formula: Callable[[Buffer], Buffer],
        size: Any,
        dtype: Any,
        mesh: Any,
        placements: Sequence[Placement] | None,
    ) -> Any:
        """Return an array of what a formula makes of float64 numbers of a kind, item by item."""
        found = dtype if dtype is INTEGERS else _check_floats(dtype)

        def fill(out: Buffer, key: tuple[int, int], call: int, shape: Shape, box: Box) -> None:
            same = out.dtype == _DOUBLE
            numbers = out if same else _memory.empty(out.shape, _DOUBLE, _backend.device_of(out))
            fill_floats(numbers, kind, key, call, shape, box)
            flat, given = out.reshape(-1), numbers.reshape(-1)
            for start in range(0, flat.size, _PIECE):
                part = slice(start, start + _PIECE)
                flat[part] = formula(given[part])

        return self._draw(fill, size, found, mesh, placements)

    def _draw(
        self,
        fill: _Fill,
        size: Any,
        dtype: np.dtype[Any],
        mesh: Any,
        placements: Sequence[Placement] | None,
    ) -> Any:
        """Return an array that ``fill`` makes block by block, under the next stream number.

        What can be wrong was found before: only a draw that succeeds counts, on every process.
        """
        shape = () if size is None else normalize_shape(size)
        plain = size is None and mesh is None and placements is None
        layout = None if plain else target_layout(shape, mesh, placements, None)
        key = self._known_key()
        call = self._calls
        self._calls += 1

        device = None if layout is None else device_of(layout)

        def make(box: Box) -> Buffer:
            block = _memory.empty(tuple(b - a for a, b in box), dtype, device)
            fill(block, key, call, shape, box)
            return block

        return make(())[()] if layout is None else build(layout, dtype, make)

    def _known_key(self) -> tuple[int, int]:
        if self._key is None:
            self._key = derive_key(self._known_entropy(), self._path)
        return self._key

    def _known_entropy(self) -> tuple[int, ...]:
        if self._entropy is None:
            import secrets

            everyone = world()
            found = secrets.randbits(128) if everyone.rank == 0 else None
            self._entropy = (everyone.broadcast_object(found, root=0),)
        return self._entropy


def _check_floats(dtype: Any) -> np.dtype[Any]:
    found = normalize_dtype(dtype)
    if found not in (np.float64, np.float32):
        raise DTypeError(f"dtype={found} cannot be drawn; use float64 or float32 and astype")
    return found


def _integer(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise ArgumentTypeError(
            f"{name}={value!r} is not one integer; draw in several calls, or from one range and "
            "shift the values"
        ) from None
