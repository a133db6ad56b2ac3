"""Halos: blocks inside larger ones, whose edges have copies of the neighbours' items (ghost cells).

One exchange fills or renews edges: each process takes from every block that its own meet, over
corners as well, the box that they have in common. So nothing travels twice, and no axis waits for
another. In a node the boxes are read where they lie.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distarray.comm import _memory, copy_box
from distarray.core import (
    BaseArray,
    check_device,
    check_distributed,
    check_flag,
    move,
    new_array,
    plain_buffer,
    reduce_partial,
)
from distarray.errors import DistArrayError, DTypeError, ShapeError
from distarray.layout import Layout
from distarray.ops import (
    Exchange,
    HaloPlan,
    HaloSpec,
    fill_in,
    fill_views,
    plan_halo,
    read_halo,
    refuse_exchange,
    run_exchange,
    target_views,
)
from distarray.redistribute import run_in_background, run_now
from distarray.typing import Buffer


class Halo:
    """A block of an array inside a larger one, with the edges of its neighbours around it.

    Attributes
    ----------
    block : array
        The larger one, NumPy's or CuPy's; it stays the same one, to be read and written.
    interior : tuple of slice
        Where the block itself, this process's, lies in it.
    array : DistArray
        The distributed array whose blocks are these interiors. It looks at their memory.
    """

    def __init__(
        self, block: Buffer, layout: Layout, found: HaloPlan | None, spec: HaloSpec
    ) -> None:
        self.block = block
        self.interior = (slice(None),) * layout.ndim if found is None else found.interior
        self.array = new_array(block[self.interior or ...], layout)
        self._exchange = None if found is None else found.again.exchange
        if found is not None:  # views are made once, as halos are renewed often
            self._targets = target_views(found.again.exchange, block)
            self._fills = fill_views(found.again.fills, block, spec.constants)

    def __repr__(self) -> str:
        return f"Halo({self.array.layout})"

    def update(self, x: Any = None, *, async_op: bool = False) -> Any:
        """Renew the edges from the neighbours' interiors (collective).

        Parameters
        ----------
        x : DistArray or array, optional
            New values, which are copied into the interior first: a distributed array of this
            shape, or a plain array of the shape of the interior. Without it the interior is taken
            as the program has left it.
        async_op : bool
            Return at once a handle with `wait()` (the halo) and `test()`. Until it is there the
            program may read the interior, and write neither into it nor into the edges.

        Returns
        -------
        Halo
            This one, or the handle.

        Raises
        ------
        ShapeError
            If `x` has another shape.
        DTypeError
            If its dtype does not cast to that of the halo.
        MismatchError
            If `x` is wrong on another process.
        """
        exchange, async_op = self._exchange, check_flag("halo", "async_op", async_op)
        if x is not None:
            try:
                self._take(x)
            except DistArrayError as error:
                if exchange is not None:  # a plain array may be wrong on this process alone
                    _refuse(exchange, str(error), async_op)
                raise
        if not async_op:
            return self if exchange is None else self._renew(exchange)
        if exchange is None:
            return run_now(lambda _: self)
        return _in_background(exchange, self._renew)

    def _take(self, x: Any) -> None:
        layout = self.array._layout
        if isinstance(x, BaseArray):
            if x.shape != layout.shape:
                raise ShapeError(
                    f"update of a halo of shape {layout.shape} with an array of shape {x.shape}; "
                    "they must be equal"
                )
            block = move("halo", x._local, x._layout, layout)
        else:
            block = plain_buffer(x, "halo", layout.mesh.device)
            check_device(block, layout.mesh, "halo")
        if block.shape != self.array._local.shape:
            raise ShapeError(
                f"update of a halo with a block of shape {block.shape}, where the interior has "
                f"{self.array._local.shape}; pass block[halo.interior], or nothing"
            )
        if not np.can_cast(block.dtype, self.block.dtype, "same_kind"):
            raise DTypeError(
                f"update of a halo of {self.block.dtype} with {block.dtype}; convert with astype"
            )
        copy_box(self.array._local, block)

    def _renew(self, exchange: Exchange) -> Halo:
        run_exchange(exchange, self.block, self.block, self._targets)
        fill_in(self._fills)
        return self

    def _begin(self, exchange: Exchange, block: Buffer) -> Halo:
        run_exchange(exchange, block, self.block)
        fill_in(self._fills)
        return self


def _refuse(exchange: Exchange, reason: str, async_op: bool) -> None:
    if async_op:
        _in_background(exchange, lambda found: refuse_exchange(found, reason)).wait()
    else:
        refuse_exchange(exchange, reason)


def _in_background(exchange: Exchange, run: Callable[[Exchange], Any]) -> Any:
    """Begin an exchange on a communicator of its own, and return its handle."""
    one, communicator = exchange, exchange.communicator
    if communicator.size > 1:
        apart = communicator.background()
        one = Exchange(apart, one.receives, one.sends, one.what, one.source)
    return run_in_background(lambda _: run(one))


def halo(x: Any, width: Any, boundary: Any = None, *, async_op: bool = False) -> Any:
    """Return this process's block with the edges of its neighbours around it (collective).

    Parameters
    ----------
    x : DistArray
        Of any placements; a Partial array is reduced first.
    width : int, pair, sequence or dict
        How many items, as `numpy.pad` reads its widths: a number, a pair for before and after, a
        pair for each axis, or a dict of numbers and pairs by axis. They may reach over several
        blocks.
    boundary : str, number, sequence or dict, optional
        What lies past the ends of the array: "periodic" (or "wrap"), "reflect", "symmetric" or
        "edge" as in `numpy.pad`; a number, or "constant" for 0; None for nothing, so that blocks
        there have less around them. One for all axes, one for each, or a dict by axis.
    async_op : bool
        Return at once a handle with `wait()` (the halo) and `test()`. Until it is there `x` must
        not change; `x.to_local()` may be read.

    Returns
    -------
    Halo
        With `block`, the array with edges, `interior`, the slices of the process's own items in
        it, `array`, a distributed array of the interiors, and `update()`, which renews the edges.

    Raises
    ------
    ArgumentError
        If a width is negative, there is no such boundary, or an axis has no items to extend it by.
    ArgumentTypeError
        If `x` is not distributed, or a width is no integer.
    MismatchError
        If the processes ask for different halos.

    Notes
    -----
    Distribution: one exchange, in which each process receives the items around its block and
    nothing else; axes that are cut by no mesh axis, and axes without width, send nothing. Empty
    blocks have edges as well. Peak memory: the block with edges; between nodes also the edges,
    packed. `update` copies nothing but edges.

    In a loop make one halo, write into its interior and renew the edges::

        u = da.halo(x, 1, "edge")
        for _ in range(steps):
            b = u.block
            b[u.interior] += rate * (b[:-2, 1:-1] + b[2:, 1:-1] + ... - 4 * b[1:-1, 1:-1])
            u.update()
        x = u.array

    Examples
    --------
    >>> import distarray as da
    >>> u = da.halo(da.arange(4), 1, "periodic")  # on one process
    >>> print(u.block, u.block[u.interior])
    [3 0 1 2 3 0] [0 1 2 3]
    >>> u.block[u.interior] *= 10
    >>> print(u.update().block)
    [30  0 10 20 30  0]
    """
    layout = check_distributed("halo", x)._layout.without_partial()
    async_op = check_flag("halo", "async_op", async_op)
    spec = read_halo("halo", width, boundary, layout, x.dtype)
    if x._layout.has_partial:
        x = reduce_partial("halo", x)
    block, mesh = x._local, layout.mesh
    if mesh.coordinate is None:
        outside = Halo(_memory.empty(block.shape, x.dtype, mesh.device), layout, None, spec)
        return run_now(lambda _: outside) if async_op else outside
    found = plan_halo("halo", layout, spec, x.dtype)
    made = Halo(_memory.empty(found.first.shape, x.dtype, mesh.device), layout, found, spec)
    if not async_op:
        return made._begin(found.first.exchange, block)
    return _in_background(found.first.exchange, lambda exchange: made._begin(exchange, block))
