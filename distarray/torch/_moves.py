"""The differentiable bridge: from layout to layout forward, and the transpose of that backward.

A tensor is this rank's block of a global one. Its gradient is a block of the gradient of the global
tensor, with one liberty: where the tensor is ``Partial``, every rank's contribution has the same
gradient, so that the gradient is ``Replicate``; and where a replicated tensor is used differently
on each rank, as the input of a column-parallel layer is, the gradients of the uses are ``Partial``
and their sum is the gradient (`grad_placements` says so).

The backward pass of a move is a move again, and the backward pass of that is the first one: so
second derivatives need nothing of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from distarray.comm import DeviceMesh, Purpose
from distarray.errors import ArgumentError, DistArrayError, MismatchError
from distarray.layout import Layout, Partial, Placement, Replicate
from distarray.redistribute import (
    Handle,
    check_dtype,
    kept_partial,
    redistribute_async,
    redistribute_local,
    refuse,
    refuse_async,
)
from distarray.torch._buffers import buffer_of, check_travels, tensor_of, wire_dtype
from distarray.torch._compat import is_batched, version
from distarray.torch._layouts import (
    Parts,
    check_block,
    check_mesh,
    cut_beside,
    derived_of,
    derived_over,
    gradient_source,
    is_placed,
    keep_cuts,
    keep_over_others,
    layout_from,
    lines_known,
    own_placed,
    place,
)
from distarray.torch._opaque import disable_compile, refuse_transforms
from distarray.torch._routes import (
    Origin,
    Route,
    current,
    forget_failures,
    routes_between,
    to_parts,
)

_BETWEEN_RANKS = (
    "what ranks send each other (dt.redistribute, parallelized modules); call a copy of the module "
    "that is not parallelized"
)
_OF_A_TENSOR = Purpose(0, "of a tensor")  # where there is nothing more to agree on


class _Move(torch.autograd.Function):
    """Run one route, or wait for one that runs in the background; the gradient runs the other."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        there: Route,
        back: Route,
        origin: Origin | None,
        handle: Handle | None = None,
    ) -> torch.Tensor:
        ctx.routes = back, there, _reversed(origin)
        if handle is not None:
            return _arrived(handle.wait(), tensor, there)
        return _run(tensor, there, ctx.needs_input_grad[0], origin)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return _Move.apply(gradient, *ctx.routes), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_: None) -> torch.Tensor:  # type: ignore[override]
        back, there, origin = ctx.routes
        result: torch.Tensor = _Move.apply(tangent, there, back, _reversed(origin))
        return result


class PendingTensor:
    """A tensor that is on its way; the source must not change before it is there.

    Examples
    --------
    >>> def add():
    ...     mesh, parts, everywhere = da.default_mesh(), [da.Partial()], [da.Replicate()]
    ...     pending = dt.redistribute(torch.ones(2), mesh, parts, everywhere, async_op=True)
    ...     return pending.wait()
    >>> da.testing.simulate(2, add)
    [tensor([2., 2.]), tensor([2., 2.])]
    """

    def __init__(self, tensor: torch.Tensor, there: Route, back: Route) -> None:
        self._tensor = tensor
        self._routes = there, back
        self._differentiable = torch.is_grad_enabled()
        self._version = version(tensor)
        origin = self._origin = current()
        purpose = _purpose(there, _needs_gradient(tensor), origin)
        self._handle = redistribute_async(
            _source(tensor, there), there.src, there.dst, purpose=purpose
        )
        self._result: torch.Tensor | None = None

    def test(self) -> bool:
        """Tell whether `wait` would return at once."""
        return self._result is not None or self._handle.test()

    def wait(self) -> torch.Tensor:
        """Return the tensor, differentiable as if it had not been moved in the background.

        Raises
        ------
        ArgumentError
            The source has been changed while it was on its way.
        """
        if self._result is None:
            there, back = self._routes
            with torch.set_grad_enabled(self._differentiable):
                if there.is_still:
                    self._result = move(self._tensor, there, back)
                else:
                    back = way_back(self._tensor, there, back)
                    self._result = _moved(self._tensor, there, back, self._origin, self._handle)
            if version(self._tensor) != self._version:
                self._result = None
                raise ArgumentError(
                    f"the tensor that is on its way {there.src} -> {there.dst} was changed in "
                    "place before wait(): what arrived is neither the old nor the new one; wait "
                    "first, or redistribute a clone"
                )
        return self._result


@disable_compile  # a graph of torch.compile ends where it is called
def redistribute(
    tensor: torch.Tensor,
    mesh: DeviceMesh,
    src_placements: Sequence[Placement],
    dst_placements: Sequence[Placement],
    *,
    shape: Sequence[int] | None = None,
    grad_placements: Sequence[Placement] | None = None,
    async_op: bool = False,
) -> Any:
    """Return this rank's block of a tensor under other placements (collective, differentiable).

    Parameters
    ----------
    tensor
        This rank's block, on every rank of the mesh.
    mesh
        Over whose axes the placements are.
    src_placements, dst_placements
        One per mesh axis, before and after.
    shape
        Of the global tensor. Without it the ranks tell each other the shapes of their blocks
        where an axis is sharded (which `CommLog` does not count): these may be of any sizes.
    grad_placements
        How the gradient of the result arrives in the backward pass: by default as the result is
        placed, with ``Replicate`` for ``Partial``. ``Partial`` in the place of ``Replicate`` says
        that each rank uses the result for something of its own: the gradients of all are added.
    async_op
        Return at once a handle with ``wait()`` (the tensor) and ``test()``. ``tensor`` must not
        change in between.

    Returns
    -------
    torch.Tensor
        Plain; `layout_of` knows its layout. Where nothing moves it is ``tensor`` itself, or (if the
        gradient moves, or it was known to be placed otherwise) shares its memory; otherwise its
        memory is its own.

    Raises
    ------
    LayoutError
        The block does not fit ``shape``, or the blocks of the ranks do not fit each other.
    DTypeError
        A tensor that requires a gradient is reduced by another operation than sum or average.
    MismatchError
        The ranks ask for different moves, or only some need a gradient that all must send back.

    Examples
    --------
    >>> def add():
    ...     parts = torch.arange(4.0)  # of each rank
    ...     return dt.redistribute(parts, da.default_mesh(), [da.Partial()], [da.Shard(0)])
    >>> da.testing.simulate(2, add)
    [tensor([0., 2.]), tensor([4., 6.])]
    """
    refuse_transforms(_BETWEEN_RANKS)
    there, back = routes(
        tensor, mesh, src_placements, dst_placements, shape, grad_placements, async_op
    )
    placed = own_placed(tensor) if there.is_still else None
    known = there.dst if placed is None else placed.layout
    if known.mesh is mesh and known.placements != there.dst.placements:
        tensor = tensor.view_as(tensor)  # such as a slice taken by hand
        place(tensor, there.dst)
    if async_op:
        return PendingTensor(tensor, there, back)
    return move(tensor, there, back)


def move(tensor: torch.Tensor, there: Route, back: Route) -> torch.Tensor:
    """Return a tensor moved by one route, whose gradient moves by the other."""
    if torch.compiler.is_dynamo_compiling():
        return _move_apart(tensor, there, back)
    if there.is_still and (back.is_still or not _needs_gradient(tensor)):
        if not is_placed(tensor):
            source = gradient_source(tensor)
            here = source is not None and source.layout.mesh is there.dst.mesh
            parts: Parts = source.partial_grad if source is not None and here else frozenset()
            before = derived_of(tensor)
            place(tensor, there.dst, partial_grad=parts)
            keep_over_others(tensor, before)
        return tensor
    back = way_back(tensor, there, back)
    refuse_transforms(_BETWEEN_RANKS)
    return _moved(tensor, there, back, current())


def way_back(tensor: torch.Tensor, there: Route, back: Route) -> Route:
    """Return the way of a gradient to a tensor, which perhaps adds up parts of it further back."""
    others = (one.source for one in derived_over.get(tensor) or ())
    for source in (gradient_source(tensor), *others):
        if source is not None and source.partial_grad:
            back = to_parts(there.src, back, source.layout, source.partial_grad)
    return back


def _moved(tensor: torch.Tensor, there: Route, back: Route, *how: Any) -> torch.Tensor:
    """Return a moved tensor, placed; it is known of what gradient each rank has a part."""
    result: torch.Tensor = _Move.apply(tensor, there, back, *how)
    place(result, there.dst, partial_grad=_partial_grad(there.dst, back.src))
    if _needs_gradient(tensor):
        keep_over_others(result, derived_of(tensor))
    keep_cuts(tensor, result, cut_beside(tensor, lines_known(there.dst)))
    return result


@lru_cache(maxsize=4096)
def _partial_grad(layout: Layout, gradient: Layout) -> Parts:
    return frozenset(
        (i, g.op)
        for i, (p, g) in enumerate(zip(layout.placements, gradient.placements, strict=True))
        if type(p) is Replicate and type(g) is Partial
    )


def routes(
    tensor: torch.Tensor,
    mesh: DeviceMesh,
    src_placements: Sequence[Placement],
    dst_placements: Sequence[Placement],
    shape: Sequence[int] | None = None,
    grad_placements: Sequence[Placement] | None = None,
    background: bool = False,
) -> tuple[Route, Route]:
    """Return the ways of a tensor and of its gradient, checked; collective without ``shape``."""
    if torch.compiler.is_dynamo_compiling():
        found: tuple[Route, Route] = _routes_apart(
            tensor, mesh, src_placements, dst_placements, shape, grad_placements, background
        )
        return found
    check_mesh(mesh)
    check_travels(tensor)
    if shape is None:
        src = layout_from(tensor, mesh, src_placements)
    else:
        src = Layout(mesh, src_placements, shape)
    dst = Layout(mesh, dst_placements, src.shape)
    if src.placements == dst.placements:
        dst = src  # whatever the blocks' sizes are, they stay
    return _routes_of(tensor, src, dst, grad_placements, background)


def _routes_of(
    tensor: torch.Tensor,
    src: Layout,
    dst: Layout,
    grad_placements: Sequence[Placement] | None = None,
    background: bool = False,
) -> tuple[Route, Route]:
    try:
        check_block(tuple(tensor.shape), src)
        return routes_between(src, dst, grad_placements, _needs_gradient(tensor))
    except DistArrayError as error:
        # Only this rank may know it: the others must not wait for it.
        forget_failures()
        (refuse_async if background else refuse)(src, dst, wire_dtype(tensor.dtype), str(error))
        raise


def reduce_partial(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return a tensor, whose blocks may have any sizes, with ``Replicate`` for ``Partial``."""
    return move(tensor, *_routes_of(tensor, layout, layout.without_partial()))


# Outside of compiled code the check costs less than a wrapper.
_move_apart: Any = disable_compile(move)
_routes_apart: Any = disable_compile(routes)


def _needs_gradient(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()


# --- running -------------------------------------------------------------------------------------


def _reversed(origin: Origin | None) -> Origin | None:
    return None if origin is None else origin.reversed


def _purpose(route: Route, requires_grad: bool, origin: Origin | None) -> Purpose:
    """Return what the ranks must agree on before values leave."""
    purpose = route.purpose if requires_grad and route.purpose is not None else _OF_A_TENSOR
    return purpose if origin is None else origin.join(purpose)


def _run(
    tensor: torch.Tensor, route: Route, requires_grad: bool, origin: Origin | None
) -> torch.Tensor:
    if route.src is route.dst:
        return _arrived(None, tensor, route)
    purpose = _purpose(route, requires_grad, origin)
    source = _source(tensor, route)
    try:
        found = redistribute_local(source, route.src, route.dst, purpose=purpose)
    except MismatchError:
        forget_failures()
        raise
    if origin is not None and origin.failures:
        forget_failures()
    return _arrived(found, tensor, route)


def _source(tensor: torch.Tensor, route: Route) -> Any:
    """Return the buffer to move: bfloat16 becomes float32 where a Partial is made of something."""
    if is_batched(tensor):
        raise ArgumentError(
            "is_grads_batched=True and vectorize=True cannot look into what ranks send each other "
            "(dt.redistribute, parallelized modules); take one gradient after the other"
        )
    if tensor.dtype is torch.bfloat16 and _creates_partial(route.src, route.dst):
        tensor = tensor.detach().float()
    source = buffer_of(tensor)
    _check_dtype(route.src, route.dst, source.dtype)
    return source


@lru_cache(maxsize=4096)
def _creates_partial(src: Layout, dst: Layout) -> bool:
    return not set(kept_partial(src, dst)).issuperset(dst.partial_axes)


_check_dtype = lru_cache(maxsize=4096)(check_dtype)


def _arrived(buffer: Any, tensor: torch.Tensor, route: Route) -> torch.Tensor:
    if route.src is route.dst:
        result = tensor.view_as(tensor)
    else:
        result = tensor_of(buffer)
        if result.dtype is not tensor.dtype and tensor.is_floating_point():
            result = result.to(tensor.dtype)
    return result if route.scale == 1 else result * route.scale
