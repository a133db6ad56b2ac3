"""Sequence-parallel modules: every rank computes some of the positions, with all parameters."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from distarray.comm import DeviceMesh
from distarray.errors import ArgumentTypeError, AxisError, LayoutError
from distarray.layout import Layout, Shard
from distarray.torch._layouts import cut_axes, hand_on, layout_from, own_placed, place, relabel
from distarray.torch._modules import state_of
from distarray.torch._moves import move
from distarray.torch._opaque import disable_compile
from distarray.torch._routes import routes_between
from distarray.torch.parallel._arrivals import find_placed, placements_over
from distarray.torch.parallel._forward_wrapper import extend
from distarray.torch.parallel._partition_rules import own_method
from distarray.torch.parallel._style import ParallelStyle, check_one_axis
from distarray.torch.parallel.layers._normalization import INSTANCE_NORMS, normalize, unbatched_ndim
from distarray.torch.training import drop


class SequenceParallel(ParallelStyle):
    """Run a module on this rank's shard of the sequence.

    For modules that work position by position: `LayerNorm`, `RMSNorm`, `Dropout` and its kin,
    activations, `Linear`, and single modules of your own. `GroupNorm` and `InstanceNorm` also work
    where the statistics run over the axis that is cut; these are merged, exactly, by one all-gather
    of three numbers for each group forward and one reduce-scatter of their gradients backward.

    Parameters are whole on every rank and need not be ones or zeros: all take those of one rank, or
    they are compared (``src_data_rank`` of `parallelize_module`). Their gradients are summed over
    the ranks in the backward pass: those of all modules that a call of the model runs together, in
    one all-reduce for every 25 MiB; those of each module by itself where the modules are called one
    by one, are in groups of `fully_shard`, or under `replicate`, which waits for them.

    Dropout masks follow from a key, drawn from torch's generator, and the index in the whole
    sequence: see `dropout`. Seeded alike, any number of ranks drops the same items.

    Parameters
    ----------
    sequence_dim
        Axis of the input that is cut, 1 by default; may count from the end. Blocks of any sizes,
        also empty ones, are taken. An input whose layout is known and different (the replicated
        output of `RowwiseParallel`, for instance) is brought there; any other is taken as a
        shard of the sequence already. The ranks tell each other the shapes of such shards, so that
        the layout of the output is known.
    use_local_output
        For compatibility: outputs are plain tensors always.

    Notes
    -----
    Where several column-parallel modules follow (query, key and value), let
    `PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())` of the module
    that holds them gather their input once. ``ColwiseParallel(input_layouts=Shard(1))`` on each
    gathers it for each.

    Examples
    --------
    >>> def shapes():
    ...     mesh = da.default_mesh()
    ...     norm = dt.parallelize_module(nn.LayerNorm(4), mesh, dt.SequenceParallel())
    ...     x = dt.distribute_tensor(torch.ones(2, 5, 4), mesh, [da.Shard(1)])
    ...     return [*norm(x).shape]
    >>> da.testing.simulate(2, shapes)
    [[2, 3, 4], [2, 2, 4]]
    """

    def __init__(self, *, sequence_dim: int = 1, use_local_output: bool = False) -> None:
        del use_local_output
        try:
            self.sequence_dim = operator.index(sequence_dim)
        except TypeError:
            raise ArgumentTypeError(f"sequence_dim={sequence_dim!r} must be an integer") from None

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> None:
        """Give all ranks the module's parameters, and hook it."""
        check_one_axis(mesh, "SequenceParallel")
        check_module(module)
        for name, _ in module.named_parameters(recurse=False):
            placed = state_of(module).placed.get(name)
            if placed is not None:
                raise LayoutError(
                    f"parameter {name!r} has a style already ({placed.layout}), and "
                    "SequenceParallel would add up its gradients once more; give the module one "
                    "style that distributes parameters"
                )
        self._keep_whole(module, mesh, summed=True)

        @disable_compile
        def run(module: nn.Module, forward: Any, *args: Any, **kwargs: Any) -> Any:
            x: Any = next(iter((*args, *kwargs.values())), None)
            if not isinstance(x, torch.Tensor):
                return forward(*args, **kwargs)
            if not -x.ndim <= self.sequence_dim < x.ndim:
                raise AxisError(
                    f"sequence_dim={self.sequence_dim}, but its input of shape {tuple(x.shape)} "
                    f"has {x.ndim} axes",
                    self.sequence_dim,
                    x.ndim,
                )
            merged = check_axis(module, self.sequence_dim % x.ndim, x.ndim)
            x, layout = self._shard(mesh, x)
            if merged is not None:
                output: Any = normalize(module, x, mesh, *merged)
            elif isinstance(module, DROPOUTS) and module.training and module.p > 0:
                output = drop(module, x, layout)
            else:
                if args:
                    args = (x, *args[1:])
                else:
                    kwargs[next(iter(kwargs))] = x
                output = forward(*args, **kwargs)
            return _place_output(output, x, layout) if isinstance(output, torch.Tensor) else output

        extend(module, arounds=run)

    def _shard(self, mesh: DeviceMesh, x: torch.Tensor) -> tuple[torch.Tensor, Layout]:
        """Return this rank's shard of an input, and its layout; collective if that is not known."""
        placed = find_placed(x, mesh)
        whole: Any = mesh if placed is None else placed.layout.mesh
        own = whole.axes_of(mesh)
        axis = self.sequence_dim % x.ndim
        if placed is None or own is None:
            return x, layout_from(x, mesh, [Shard(axis)])
        known = placed.layout
        wanted = known.replace(
            placements=[Shard(axis) if i in own else p for i, p in enumerate(known.placements)]
        )
        if wanted.placements == known.placements:
            return x, known
        if placed.parts:
            raise LayoutError(
                f"its input {known} has features of {len(placed.parts)} parts, each cut by itself, "
                f"and cannot be cut along axis {axis} instead; pass "
                f"output_layouts={Shard(axis)!r} to the style that it comes from"
            )
        return move(x, *routes_between(known, wanted)), wanted


def _place_output(output: torch.Tensor, x: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return an output, placed as the shard that it was computed from, whatever its features.

    What follows of it over another mesh does not tell that it is such a shard.
    """
    hand_on(x, output)
    cut, known = cut_axes(layout), own_placed(output)
    kept = all(output.shape[axis : axis + 1] == x.shape[axis : axis + 1] for axis in cut)
    mesh: Any = layout.mesh
    if kept and (known is None or placements_over(known.layout, mesh) is None):
        place(output, relabel(layout, {axis: axis for axis in cut}, output.shape))
    return output


# --- positions ------------------------------------------------------------------------------------

DROPOUTS = (
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    *(nn.AlphaDropout, nn.FeatureAlphaDropout),
)


def check_module(module: nn.Module) -> None:
    """Raise unless a module may work along an axis position by position.

    Of torch's modules this is known; classes of the user's own are taken at their word, if no
    further modules are inside of them.
    """
    kind = _kind(module)
    if kind is None and next(module.children(), None) is not None:
        names = ", ".join(repr(name) for name, _ in module.named_children())
        raise ArgumentTypeError(
            f"SequenceParallel takes single modules, not a {type(module).__name__} that holds "
            f"others ({names}); name these in the plan instead"
        )
    if kind is None and type(module).__module__.startswith("torch.nn."):
        raise ArgumentTypeError(
            f"SequenceParallel takes modules that work position by position, which a "
            f"{type(module).__name__} does not, or is not known to; gather its input by "
            "dt.PrepareModuleInput, or derive a class of your own from it"
        )
    if isinstance(module, nn.Embedding) and (
        module.max_norm is not None or module.scale_grad_by_freq or module.sparse
    ):
        raise ArgumentTypeError(
            "an Embedding with max_norm, scale_grad_by_freq or sparse gradients needs all words "
            "of the batch; give it dt.RowwiseParallel"
        )
    if isinstance(module, INSTANCE_NORMS) and module.track_running_stats:
        raise ArgumentTypeError(
            f"a {type(module).__name__} with track_running_stats=True would keep statistics of "
            "this rank's items; gather its input by dt.PrepareModuleInput"
        )
    if isinstance(module, DROPOUTS) and own_method(module):
        raise ArgumentTypeError(
            f"{type(module).__name__} replaces the forward of torch's dropout, whose masks "
            "SequenceParallel makes; call dt.dropout in a module of your own instead"
        )


def check_axis(module: Any, axis: int, ndim: int) -> tuple[int, int] | None:
    """Return the last arguments of `normalize`, of which statistics of all ranks are merged.

    None where nothing is merged. Raise where the module works across the axis, and cannot do so if
    it is cut.
    """
    found = None
    if isinstance(module, nn.GroupNorm):
        found = 1, module.num_groups
    elif isinstance(module, INSTANCE_NORMS):
        found = 0 if ndim == unbatched_ndim(module) else 1, module.num_features
    if found is not None and axis > found[0]:
        if own_method(module):
            raise LayoutError(
                f"its input is cut along axis {axis}, of which {type(module).__name__} takes "
                "statistics in a forward of its own; gather the input by dt.PrepareModuleInput"
            )
        return found
    kind = _kind(module)
    across = () if kind is None else _ACROSS[kind](module, ndim)
    if axis in across:
        raise LayoutError(
            f"its input of {ndim} axes is cut along axis {axis}, across which {module} works; "
            "choose another sequence_dim, or gather the input by dt.PrepareModuleInput"
        )
    return None


def _kind(module: nn.Module) -> type[nn.Module] | None:
    return next((kind for kind in type(module).__mro__ if kind in _ACROSS), None)


def _along_dim(module: Any, ndim: int) -> tuple[int, ...]:
    return tuple(range(ndim)) if module.dim is None else (module.dim % ndim,)


_ACROSS: dict[type[nn.Module], Callable[[Any, int], tuple[int, ...]]] = {
    **dict.fromkeys(
        (
            *DROPOUTS, nn.Identity, nn.Embedding, nn.Threshold, nn.ReLU, nn.Hardtanh,
            nn.ReLU6, nn.Sigmoid, nn.Hardsigmoid, nn.Tanh, nn.SiLU, nn.Mish, nn.Hardswish, nn.ELU,
            nn.CELU, nn.SELU, nn.GELU, nn.Hardshrink, nn.LeakyReLU, nn.LogSigmoid, nn.Softplus,
            nn.Softshrink, nn.Softsign, nn.Tanhshrink,
        ),
        lambda _, __: (),
    ),
    nn.PReLU: lambda module, _: (1,) if module.num_parameters > 1 else (),
    **dict.fromkeys((nn.GLU, nn.Softmax, nn.Softmin, nn.LogSoftmax), _along_dim),
    **dict.fromkeys(
        (nn.LayerNorm, nn.RMSNorm),
        lambda module, ndim: tuple(range(ndim - len(module.normalized_shape), ndim)),
    ),
    nn.Linear: lambda _, ndim: (ndim - 1,),
    nn.GroupNorm: lambda _, __: (1,),
    **dict.fromkeys(
        INSTANCE_NORMS,
        lambda module, ndim: (ndim - unbatched_ndim(module),) if module.affine else (),
    ),
}  # fmt: skip
