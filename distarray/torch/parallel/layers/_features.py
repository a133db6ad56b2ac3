"""Activations whose features are cut as a weight is cut along one of its axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from distarray.comm import DeviceMesh
from distarray.errors import LayoutError
from distarray.layout import Layout, Partial, Placement, Replicate, Shard
from distarray.redistribute import refuse
from distarray.torch import _shards
from distarray.torch._buffers import check_travels, wire_dtype
from distarray.torch._layouts import Placed, hand_on, layout_from, own_placed, place
from distarray.torch._modules import state_of
from distarray.torch._moves import move, routes
from distarray.torch._opaque import disable_compile
from distarray.torch._routes import forget_failures, routes_between
from distarray.torch.parallel._arrivals import check_arrival
from distarray.torch.parallel._gradient_sums import find_summed, use_apart
from distarray.torch.parallel._partition_rules import hook_arguments
from distarray.torch.parallel._slices import note_gathered

_R, _P = Replicate(), Partial()
_WHOLE = (_R,)


@dataclass(frozen=True, slots=True)
class Features:
    """How features are cut, over a mesh of one axis."""

    mesh: DeviceMesh
    size: int  # of all ranks
    boundaries: tuple[int, ...] | None = None  # of the ranks' blocks; None for the default split
    parts: tuple[int, ...] = ()  # as in `Placed`
    units: tuple[int, ...] = ()

    @classmethod
    def of(cls, placed: Placed, mesh: DeviceMesh) -> Features:
        """Return how the features are cut that belong to the axis of a weight that is cut."""
        layout = placed.layout
        (axis,) = (p.axis for p in layout.placements if type(p) is Shard)
        split = (layout.boundaries or {}).get(axis)
        return cls(mesh, layout.shape[axis], split, placed.parts, placed.units)

    @classmethod
    def in_units(cls, mesh: DeviceMesh, size: int, unit: int) -> Features:
        """Return how features are cut in whole units."""
        return cls(mesh, size, _shards.boundaries((size,), (unit,), mesh.size))

    @property
    def own(self) -> int:
        """How many features this rank has."""
        return self.layout((self.size,), 0).local_shape()[0]

    def layout(self, shape: Any, axis: int) -> Layout:
        """Return the layout of an activation of a full shape whose features are along ``axis``."""
        return _layout(self.mesh, Shard(axis), tuple(shape), self.boundaries)

    @disable_compile
    def take(self, x: torch.Tensor, given: Placement | None, axis: int) -> torch.Tensor:
        """Return this rank's shard of the features of an input, which arrives as ``given``."""
        check_travels(x)
        axis %= x.ndim
        wanted = Shard(axis)
        arriving = wanted if given is None else _resolved(given, x.ndim)
        placed = check_arrival(x, self.mesh, (arriving,), moves=arriving is not wanted)
        if arriving is wanted:
            if placed is not None:
                self._check_cut(placed, axis)
            if x.shape[axis] != self.own:
                message = (
                    f"the input has {x.shape[axis]} features on this rank along axis {axis}, where "
                    f"the weight takes {self.own} of {self._split()}: it must be cut as {wanted} "
                    "with the weight's split (unit= and parts= of the style that cut it say how); "
                    "or pass input_layouts= as it arrives, such as da.Replicate()"
                )
                # Tell the ranks whose input fits, and who go on to what comes next.
                partial = _layout(self.mesh, _P, (1,))
                forget_failures()
                refuse(partial, partial.replace(placements=[_R]), wire_dtype(x.dtype), message)
                raise LayoutError(message)
            return x
        src = layout_from(x, self.mesh, [arriving]) if placed is None else placed.layout
        if src.shape[axis] != self.size:
            raise LayoutError(
                f"the input {src} has {src.shape[axis]} features, where the weight takes "
                f"{self.size}"
            )
        if self.parts:
            x = _shards.order_by_ranks(x, self.parts, self.units, self.mesh.size, axis)
        return move(x, *routes_between(src, self.layout(src.shape, axis)))

    @disable_compile
    def leave(self, y: torch.Tensor, target: Placement | None, axis: int) -> torch.Tensor:
        """Return an output, of which this rank computed its features, as ``target`` has it."""
        axis %= y.ndim
        shape = list(y.shape)
        shape[axis] = self.size
        computed = self.layout(shape, axis)
        wanted = computed if target is None else _layout(self.mesh, target, tuple(shape))
        if wanted.placements == computed.placements:
            place(y, computed, self.parts, axis, self.units)  # whatever its boundaries
            return y
        y = move(y, *routes_between(computed, wanted))
        if self.parts:
            y = _shards.order_by_parts(y, self.parts, self.units, self.mesh.size, axis)
            place(y, wanted)
        return y

    def _check_cut(self, placed: Placed, axis: int) -> None:
        """Raise unless features that are cut are cut as the weight is: all ranks know alike."""
        layout = placed.layout
        same = layout is self.layout(layout.shape, axis)
        if same and (placed.parts, placed.units) == (self.parts, self.units):
            return
        offsets = layout.partition(axis).offsets
        theirs = Features(self.mesh, layout.shape[axis], offsets, placed.parts, placed.units)
        if theirs._order() != self._order():
            raise LayoutError(
                f"the input {layout} has {theirs._told()} along axis {axis}, "
                f"where the weight takes {self._told()}; give this style the "
                "parts= and unit= of the style that cut it (or that one the unit= of this one's "
                "groups), "
                "or pass output_layouts=da.Replicate() there and input_layouts=da.Replicate() here"
            )

    def _order(self) -> tuple[tuple[slice, ...], ...]:
        """Return which features each rank has, in the order in which it has them."""
        if self.parts:
            return _shards.order(self.parts, self.units, self.mesh.size)
        offsets = self.layout((self.size,), 0).partition(0).offsets
        return tuple((slice(*ends),) if ends[0] < ends[1] else () for ends in pairwise(offsets))

    def _told(self) -> str:
        parts = f" in parts {self.parts} of units {self.units}" if self.parts else ""
        return f"{self._split()}{parts}"

    def _split(self) -> str:
        lengths = (sum(one.stop - one.start for one in own) for own in self._order())
        return f"{self.size} ({', '.join(map(str, lengths))} by rank)"


def cut_parameters(
    style: Any, module: nn.Module, mesh: DeviceMesh, axes: Mapping[str, int]
) -> Features:
    """Cut parameters along their axes, those that are there; return how the weight's is cut."""
    for name, axis in axes.items():
        if getattr(module, name, None) is not None:
            style.distribute(
                module, name, mesh, [Shard(axis)], parts=style.parts, unit=style.unit, axis=axis
            )
    return Features.of(state_of(module).placed["weight"], mesh)


@disable_compile
def gather_input(
    x: torch.Tensor,
    mesh: DeviceMesh,
    given: Placement = _R,
    name: str = "the input",
    *,
    casts: bool = False,
    gradients: Sequence[Placement] | None = (_P,),
) -> torch.Tensor:
    """Return an input, which arrives as ``given``, whole on every rank.

    Each computes something else of it: the gradients of all of them are added, at once with those
    of other uses of an input that `PrepareModuleInput` brought there. ``gradients`` is None for
    what has none, such as words. What autocast ``casts`` for the module is gathered cast.
    """
    if given is _R:
        check_arrival(x, mesh, _WHOLE, moves=False, name=name)
        prepared = use_apart(x, mesh) if gradients else None
        if prepared is not None:
            return prepared
        if not x.requires_grad and own_placed(x) is None:
            check_travels(x)
            x = x.view_as(x)  # what is declared of it holds for this use alone
        ways = routes(x, mesh, _WHOLE, _WHOLE, grad_placements=gradients)
    else:
        check_travels(x)
        placed = check_arrival(x, mesh, (_resolved(given, x.ndim),), name=name)
        if placed is not None:
            src = placed.layout
            dst = _layout(mesh, _R, src.shape)
            ways = routes_between(src, dst, gradients, x.requires_grad)
        else:
            ways = routes(x, mesh, [given], [_R], grad_placements=gradients)
    is_cut, kind = type(given) is Shard, x.device.type
    if is_cut and casts and x.dtype is torch.float32 and torch.is_autocast_enabled(kind):
        x = x.to(torch.get_autocast_dtype(kind))
    whole = move(x, *ways)
    if is_cut:
        note_gathered(whole, x, ways[0].src)
    return whole


@disable_compile
def sum_output(
    y: torch.Tensor,
    mesh: DeviceMesh,
    target: Placement,
    bias: torch.Tensor | None = None,
    axis: int = -1,
) -> torch.Tensor:
    """Return the sum of what all ranks computed, placed as it leaves, and of a whole bias.

    The axis is that of the output's features, counted from its end.
    """
    shape = tuple(y.shape)
    ways = routes_between(_layout(mesh, _P, shape), _layout(mesh, target, shape))
    y = move(y, *ways)
    return y if bias is None else hand_on(y, y + _bias_to_add(bias, mesh, target, axis, y))


def _bias_to_add(
    bias: torch.Tensor, mesh: DeviceMesh, target: Placement, axis: int, y: torch.Tensor
) -> torch.Tensor:
    """Return what of a bias to add to an output that has left.

    Of an output whose ranks' parts are still to be added, a rank's is a part of the bias.
    """
    shape = tuple(bias.shape)
    whole = _layout(mesh, _R, shape)
    leaving = _resolved(target, y.ndim)
    if type(leaving) is Shard and leaving.axis != axis % y.ndim:
        # Each rank adds it to other items: the gradients of all of them are added.
        summed = find_summed(bias, mesh)
        bias = move(bias, *routes_between(whole, whole, [_P])) if summed is None else summed
    else:
        leaving = Shard(0) if type(leaving) is Shard else leaving
        ways = routes_between(whole, _layout(mesh, leaving, shape), None, bias.requires_grad)
        bias = move(bias, *ways)
    return bias.to(y.dtype).reshape(-1, *[1] * (-1 - axis))  # another one under autocast


def _resolved(given: Placement, ndim: int) -> Placement:
    """Return a placement with its axis counted from the first."""
    return Shard(given.axis % ndim) if type(given) is Shard and given.axis < 0 else given


@lru_cache(maxsize=4096)
def _layout(
    mesh: DeviceMesh,
    placed: Placement,
    shape: tuple[int, ...],
    boundaries: tuple[int, ...] | None = None,
) -> Layout:
    """Return a layout over a mesh of one axis; those of activations come again in every step."""
    if boundaries is None or type(placed) is not Shard:
        return Layout(mesh, [placed], shape)
    return Layout(mesh, [placed], shape, boundaries={placed.axis: boundaries})


# --- ranks with nothing of a weight ---------------------------------------------------------------
# Convolutions and bilinear forms refuse weights without channels, or mistake the shape of what
# comes out. So these compute with one channel of zeros, and leave it out. The parameter stays
# empty, and its gradient is.


def fill_empty(
    style: Any,
    module: nn.Module,
    parameters: Mapping[str, int],
    *,
    inputs: int | None = None,
    outputs: int | None = None,
    name: str = "input",
    width: int = 1,
) -> None:
    """Let a module run whose parameters are empty along an axis: ``parameters`` says which of each.

    ``inputs`` and ``outputs`` are the axes, from the end, of the features of the first input (of
    this ``name``) and of the output, where these are empty as well; one channel of zeros takes
    ``width`` features of the input. Call this after the hooks that bring inputs here, and before
    those that take outputs away.
    """

    def pad(module: nn.Module) -> dict[str, torch.Tensor | None]:
        found: dict[str, torch.Tensor | None] = {}
        for key, axis in parameters.items():
            parameter = getattr(module, key)
            if parameter is not None:
                found[key] = _one_more(parameter, axis, 1)
        return found

    style.substitute(module, pad)
    if inputs is not None:
        hook_arguments(module, {name: lambda _, x: _one_more(x, inputs, width)})
    if outputs is not None:
        axis = outputs
        style.on_output(module, lambda _, y: y.narrow(axis, 0, 0))


def _one_more(x: torch.Tensor, axis: int, width: int) -> torch.Tensor:
    """Return a tensor with zeros after its end along an axis."""
    return functional.pad(x, (0, 0) * (x.ndim - 1 - axis % x.ndim) + (0, width))
