"""The generator that users call: NumPy's methods, for distributed arrays."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from distarray.comm import _backend, _memory, world
from distarray.core import BaseArray, device_of, normalize_dtype, normalize_shape
from distarray.errors import ArgumentError, ArgumentTypeError, DTypeError
from distarray.layout import Layout, Placement
from distarray.ops import asarray, build, target_layout
from distarray.random._blocks import fill_floats, fill_integers
from distarray.random._choice import Choices
from distarray.random._counts import integers_between
from distarray.random._distributions import Distributions
from distarray.random._multivariate import Multivariate
from distarray.random._parameters import (
    Condition,
    Parameter,
    check,
    common_shape,
    cut,
    draw_beside,
    read_float_dtype,
    read_integers,
)
from distarray.random._seeding import derive_key, normalize_seed
from distarray.random._streams import Fill, by_sampler, has_axes
from distarray.typing import Box, Buffer, Shape


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


class Generator(Distributions, Multivariate, Choices):
    """A source of random numbers with the methods of NumPy's, for distributed arrays.

    Every process makes its own generator from the same seed and draws the same arrays from it, in
    the same order. The value of an element depends on the seed, on how many draws came before,
    and on the element's linear index in the global array (row-major): never on the number of
    processes, the mesh or the placements. Nothing is sent, but for distributed parameters, for
    items that change places, and by `multivariate_normal`.

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
    The bits are those of `numpy.random.Philox` (Philox 4x64-10, Salmon et al., SC'11), under a key
    that is made of the seed in another way: not those of a generator of NumPy's with that seed.
    Normal values are made by the Box-Muller transform.

    Examples
    --------
    >>> import distarray as da
    >>> rng = da.random.default_rng(7)
    >>> print(rng.integers(0, 10, 3), rng.integers(0, 10, 3))
    [9 0 4] [8 7 1]
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
        [0.97806648 0.02766953 0.43754132]
        """
        found = read_float_dtype(dtype)
        return self._floats("uniform", 0.0, 1.0, size, found, mesh, placements)

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
        low, high : int or array of int
            Without `high`, from 0 to `low`.
        size, mesh, placements
            As for `random`. Without `size` the result has the shape to which the bounds broadcast;
            beside a distributed one, without `mesh` and `placements`, its layout.
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
        ShapeError
            If the bounds do not broadcast to `size`.

        Examples
        --------
        >>> import distarray as da
        >>> print(da.random.default_rng(7).integers(0, 10, 5))
        [9 0 4 9 1]
        """
        kind = normalize_dtype(dtype, np.int64)
        if kind.kind not in "biu" or not kind.isnative:
            raise DTypeError(f"dtype={kind} holds no integers; use an integer type or bool")
        least, most = _limits_of(kind)
        if any(map(np.ndim, [one for one in (low, high) if type(one) not in _PLAIN])):
            bounds = {"low": low} if high is None else {"low": low, "high": high}
            values = [read_integers(name, value) for name, value in bounds.items()]
            return self._integers_between(
                [0, *values][-2:],
                size,
                kind,
                least,
                most + (not endpoint),
                endpoint,
                mesh,
                placements,
            )
        first = _integer("low", low)
        first, last = (0, first) if high is None else (first, _integer("high", high))
        last -= not endpoint
        if first > last:
            raise ArgumentError(
                f"there is no integer from {first} to {last}, both included; low must be below "
                "high, or equal to it with endpoint=True"
            )
        if first < least or last > most:
            raise ArgumentError(
                f"integers from {first} to {last} do not fit {kind}, which holds {least} to "
                f"{most}; use another dtype or other bounds"
            )

        def fill(out: Buffer, key: tuple[int, int], call: int, shape: Shape, box: Box) -> None:
            fill_integers(out, key, call, shape, box, first, last - first + 1)

        return self._draw(fill, size, kind, mesh, placements)

    def _integers_between(
        self,
        values: Sequence[Any],
        size: Any,
        kind: np.dtype[Any],
        least: int,
        end: int,
        endpoint: bool,
        mesh: Any,
        placements: Sequence[Placement] | None,
    ) -> Any:
        """Return integers between bounds of which one at least is an array."""
        bounds = [Parameter("low", ""), Parameter("high", "")]
        condition = Condition(
            f"such that {kind} holds the integers from low to high, "
            + ("both included" if endpoint else "high not included; it must be above low"),
            lambda low, high: (
                (low >= least) & (high <= end) & (low <= high if endpoint else low < high)
            ),
        )
        fill = by_sampler(functools.partial(integers_between, endpoint))
        return self._sample(
            "integers", fill, bounds, values, condition, size, kind, mesh, placements, exact=True
        )

    def bytes(self, length: int) -> Any:
        """Return random bytes, the same on every process.

        Parameters
        ----------
        length : int
            How many.

        Raises
        ------
        ArgumentError
            If it is negative.

        Examples
        --------
        >>> import distarray as da
        >>> da.random.default_rng(7).bytes(3).hex()
        'fa0770'
        """
        count = _integer("length", length)
        if count < 0:
            raise ArgumentError(f"length={count} must be 0 or more")
        out = np.empty(count, np.uint8)
        fill_integers(out, self._known_key(), self._calls, (count,), ((0, count),), 0, 256)
        self._calls += 1
        return out.tobytes()

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
        [1 1 3] [2 4 8]
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
        return f"Generator(Philox4x64-10, seed={shown}{path}, draws={self._calls})"

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
        def fill(out: Buffer, key: tuple[int, int], call: int, shape: Shape, box: Box) -> None:
            fill_floats(out, kind, key, call, shape, box, loc, scale)

        return self._draw(fill, size, dtype, mesh, placements)

    def _sample(
        self,
        name: str,
        fill: Fill,
        parameters: Sequence[Parameter],
        values: Sequence[Any],
        condition: Condition | None,
        size: Any,
        dtype: Any,
        mesh: Any,
        placements: Sequence[Placement] | None,
        exact: bool = False,
    ) -> Any:
        """Return an array that ``fill`` makes of random numbers and parameters, item by item.

        Distributed parameters become floats, unless they are to be `exact`.
        """
        shape = common_shape(
            name,
            None if size is None else normalize_shape(size),
            [getattr(value, "shape", ()) for value in values],
        )
        if not any(isinstance(value, BaseArray) for value in values):
            check(parameters, values, condition)
            # One number, not an array without axes, where nothing asks for an array.
            wanted = None if size is None and not shape else shape
            return self._draw(fill, wanted, dtype, mesh, placements, values)

        def draw(shape: Shape, box: Box, device: Any, blocks: Sequence[Any]) -> Buffer:
            if exact:  # NumPy compares all integers as they are
                blocks = [_backend.to_host(x) if has_axes(x) else x for x in blocks]
            else:
                blocks = [x.astype(np.float64) if has_axes(x) else float(x) for x in blocks]
            check(parameters, blocks, condition)
            return self._block(fill, shape, box, dtype, device, blocks)

        self._known_key()
        result = draw_beside(name, draw, values, shape, dtype)
        self._calls += 1
        if mesh is None and placements is None:
            return result
        return asarray(result, mesh=mesh, placements=placements)

    def _draw(
        self,
        fill: Fill,
        size: Any,
        dtype: np.dtype[Any],
        mesh: Any,
        placements: Sequence[Placement] | None,
        parameters: Sequence[Any] = (),
        rows: Shape = (),
        layout: Layout | None = None,
    ) -> Any:
        """Return an array that ``fill`` makes block by block, under the next stream number.

        What can be wrong was found before: only a draw that succeeds counts, on every process.
        Each item of the size has as many axes more as `rows` has; parameters have no part in them,
        or all.
        """
        lead = () if size is None else normalize_shape(size)
        shape = (*lead, *rows)
        plain = not shape and size is None and mesh is None and placements is None
        if layout is None and not plain:
            layout = target_layout(shape, mesh, placements, None)
        device = None if layout is None else device_of(layout)
        self._known_key()

        def make(box: Box) -> Buffer:
            own = [cut(value, lead, box) for value in parameters] if parameters else ()
            return self._block(fill, shape, box, dtype, device, own)

        result = make(())[()] if layout is None else build(layout, dtype, make)
        self._calls += 1
        return result

    def _block(
        self,
        fill: Fill,
        shape: Shape,
        box: Box,
        dtype: np.dtype[Any],
        device: Any,
        parameters: Sequence[Any] = (),
    ) -> Buffer:
        """Return the block of a box, of the numbers of the present call."""
        block = _memory.empty(tuple([b - a for a, b in box]), dtype, device)
        fill(block, self._known_key(), self._calls, shape, box, *parameters)
        return block

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


_PLAIN = (int, type(None))


@functools.lru_cache(maxsize=32)  # which NumPy takes 1 us to find
def _limits_of(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the least and the greatest number that integers, or truth values, hold."""
    return (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))


def _integer(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise ArgumentTypeError(
            f"{name}={value!r} is not one integer; draw in several calls, or from one range and "
            "shift the values"
        ) from None
