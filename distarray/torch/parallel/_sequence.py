"""Sequence-parallel modules: every rank computes some of the positions, with all parameters."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import nn

from distarray.comm import DeviceMesh
from distarray.errors import ArgumentTypeError, AxisError, LayoutError
from distarray.layout import Layout, Replicate, Shard
from distarray.torch import _moves
from distarray.torch._layouts import hand_on, is_placed, place
from distarray.torch._modules import map_inputs, state_of
from distarray.torch._opaque import untraced
from distarray.torch.following import cut_axes, relabelled
from distarray.torch.following._positions import DROPOUTS, Merged, check_axis, check_module
from distarray.torch.parallel._arrivals import found
from distarray.torch.parallel._forward_wrapper import around
from distarray.torch.parallel._style import ParallelStyle, one_axis
from distarray.torch.parallel._summed import with_summed_parameters
from distarray.torch.parallel.layers._normalization import normalized
from distarray.torch.training._dropout import drop


class SequenceParallel(ParallelStyle):
    """Run a module on this rank's share of the sequence.

    For modules that work position by position: `LayerNorm`, `RMSNorm`, `Dropout` and its kin,
    activations, `Linear`, and single modules of your own. `GroupNorm` and `InstanceNorm` also work
    where the statistics run over the axis that is cut; these are merged, exactly, by one all-gather
    of three numbers for each group forward and one reduce-scatter of their gradients backward.

    Parameters are whole on every rank and need not be ones or zeros: all take those of one rank, or
    they are compared (``src_data_rank`` of `parallelize_module`). Their gradients are summed over
    the ranks in the backward pass, those of one module together in one all-reduce.

    Dropout masks follow from a key, drawn from torch's generator, and the index in the whole
    sequence: see `dropout`. Seeded alike, any number of ranks drops the same items.

    Parameters
    ----------
    sequence_dim
        Axis of the input that is cut, 1 by default; may count from the end. Blocks of any sizes,
        also empty ones, are taken. An input whose layout is known and different (the replicated
        output of `RowwiseParallel`, for instance) is brought there; any other is taken as a
        share of the sequence already. The ranks tell each other the shapes of such shares, so that
        the layout of the output is known.
    use_local_output
        For compatibility: outputs are plain tensors always.

    Notes
    -----
    Where several column-parallel modules follow (query, key and value), let
    `PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())` of the module
    that holds them gather their input once. ``ColwiseParallel(input_layouts=Shard(1))`` on each
    gathers it for each.
    """

    def __init__(self, *, sequence_dim: int = 1, use_local_output: bool = False) -> None:
        del use_local_output
        try:
            self.sequence_dim = operator.index(sequence_dim)
        except TypeError:
            raise ArgumentTypeError(f"sequence_dim={sequence_dim!r} must be an integer") from None

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> None:
        """Give all ranks the module's parameters, and hook it."""
        one_axis(mesh, "SequenceParallel")
        check_module(module)
        names = [name for name, p in module.named_parameters(recurse=False) if p is not None]
        for name in names:
            placed = state_of(module).placed.get(name)
            if placed is not None:
                raise LayoutError(
                    f"parameter {name!r} has a style already ({placed.layout}), and "
                    "SequenceParallel would add up its gradients once more; give the module one "
                    "style that distributes parameters"
                )
        for name in names:
            self.distribute(module, name, mesh, [Replicate()])

        @untraced
        def run(module: nn.Module, forward: Any, *args: Any, **kwargs: Any) -> Any:
            x: Any = next(iter((*args, *kwargs.values())), None)
            if not isinstance(x, torch.Tensor):
                with with_summed_parameters(module, mesh):
                    return forward(*args, **kwargs)
            merged = self._merged(module, x)
            x = self._share(mesh, x)
            layout = self._layout(x, mesh)
            with with_summed_parameters(module, mesh):
                if merged is not None:
                    output: Any = normalized(module, x, mesh, *merged)
                elif isinstance(module, DROPOUTS) and module.training and module.p > 0:
                    output = drop(module, x, layout)
                else:
                    args, kwargs = map_inputs(args, kwargs, 1, lambda _: x)
                    output = forward(*args, **kwargs)
            return _placed(output, x, layout) if isinstance(output, torch.Tensor) else output

        around(module, run)

    def _merged(self, module: nn.Module, x: torch.Tensor) -> Merged | None:
        """Return how the module's statistics must be merged, or raise what is wrong."""
        if not -x.ndim <= self.sequence_dim < x.ndim:
            raise AxisError(
                f"sequence_dim={self.sequence_dim}, but its input of shape {tuple(x.shape)} has "
                f"{x.ndim} axes"
            )
        return check_axis(module, self.sequence_dim % x.ndim, x.ndim)

    def _share(self, mesh: DeviceMesh, x: torch.Tensor) -> torch.Tensor:
        """Return this rank's share of an input."""
        placed = found(x, mesh)
        own = None if placed is None else _axis_of(placed.layout, mesh)
        if placed is None or own is None:
            return x
        known = placed.layout
        axis = self.sequence_dim % x.ndim
        wanted = known.replace(
            placements=[Shard(axis) if i == own else p for i, p in enumerate(known.placements)]
        )
        if wanted.placements == known.placements:
            return x
        if placed.parts:
            raise LayoutError(
                f"its input {known} has features of {len(placed.parts)} parts, each cut by itself, "
                f"and cannot be cut along axis {axis} instead; pass "
                f"output_layouts={Shard(axis)!r} to the style that it comes from"
            )
        return _moves.moved(x, *_moves.legs_between(known, wanted))

    def _layout(self, x: torch.Tensor, mesh: DeviceMesh) -> Layout:
        """Return the layout of a share; collective where it is not known."""
        placed = found(x, mesh)
        if placed is not None and _axis_of(placed.layout, mesh) is not None:
            return placed.layout
        return _moves.layout_from(x, mesh, [Shard(self.sequence_dim % x.ndim)])


def _placed(output: torch.Tensor, x: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return an output, placed as the share that it was computed from, whatever its features."""
    hand_on(x, output)
    cut = cut_axes(layout)
    kept = all(output.shape[axis : axis + 1] == x.shape[axis : axis + 1] for axis in cut)
    if kept and not is_placed(output):
        place(output, relabelled(layout, {axis: axis for axis in cut}, output.shape))
    return output


def _axis_of(layout: Layout, mesh: DeviceMesh) -> int | None:
    """Return which axis of a layout's mesh a mesh is; None where it is none of them."""
    whole = layout.mesh
    axes = whole.axes_of(mesh) if isinstance(whole, DeviceMesh) else None
    return None if axes is None else axes[0]
