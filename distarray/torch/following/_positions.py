"""Which axes of its input a module works along position by position, and which it works across."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

from distarray.errors import ArgumentTypeError, LayoutError
from distarray.torch.parallel._forwards import own_method

DROPOUTS = (
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    *(nn.AlphaDropout, nn.FeatureAlphaDropout),
)
_UNBATCHED = {nn.InstanceNorm1d: 2, nn.InstanceNorm2d: 3, nn.InstanceNorm3d: 4}
_INSTANCE = tuple(_UNBATCHED)


def unbatched_ndim(module: nn.Module) -> int:
    """Return how many axes an input of an instance normalisation has that lacks the batch."""
    return next(ndim for kind, ndim in _UNBATCHED.items() if isinstance(module, kind))


class Merged(NamedTuple):
    """A normalisation whose statistics are those of all ranks; see `_statistics.normalized`."""

    channels: int
    groups: int


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
    if isinstance(module, _INSTANCE) and module.track_running_stats:
        raise ArgumentTypeError(
            f"a {type(module).__name__} with track_running_stats=True would keep statistics of "
            "this rank's items; gather its input by dt.PrepareModuleInput"
        )
    if isinstance(module, DROPOUTS) and own_method(module):
        raise ArgumentTypeError(
            f"{type(module).__name__} replaces the forward of torch's dropout, whose masks "
            "SequenceParallel makes; call dt.dropout in a module of your own instead"
        )


def check_axis(module: nn.Module, axis: int, ndim: int) -> Merged | None:
    """Return how statistics must be merged if the input is cut along an axis, None if not at all.

    Parameters
    ----------
    axis
        0 or more.
    ndim
        Of the input.

    Raises
    ------
    LayoutError
        The module works across the axis, and cannot do so if it is cut.
    """
    found = _channels(module, ndim)
    if found is not None and axis > found.channels:
        _check_stock(module, axis)
        return found
    kind = _kind(module)
    across = () if kind is None else _ACROSS[kind](module, ndim)
    if axis in across:
        raise LayoutError(
            f"its input of {ndim} axes is cut along axis {axis}, across which {module} works; "
            "choose another sequence_dim, or gather the input by dt.PrepareModuleInput"
        )
    return None


def _check_stock(module: Any, axis: int) -> None:
    if own_method(module):
        raise LayoutError(
            f"its input is cut along axis {axis}, of which {type(module).__name__} takes "
            "statistics in a forward of its own; gather the input by dt.PrepareModuleInput"
        )


def _channels(module: Any, ndim: int) -> Merged | None:
    if isinstance(module, nn.GroupNorm):
        return Merged(1, module.num_groups)
    if isinstance(module, _INSTANCE):
        channels = 0 if ndim == unbatched_ndim(module) else 1
        return Merged(channels, module.num_features)
    return None


def _kind(module: nn.Module) -> type[nn.Module] | None:
    return next((kind for kind in type(module).__mro__ if kind in _ACROSS), None)


def _along_dim(module: Any, ndim: int) -> tuple[int, ...]:
    return tuple(range(ndim)) if module.dim is None else (module.dim % ndim,)


def _normalized_shape(module: Any, ndim: int) -> tuple[int, ...]:
    return tuple(range(ndim - len(module.normalized_shape), ndim))


def _instance_channels(module: Any, ndim: int) -> tuple[int, ...]:
    return (ndim - unbatched_ndim(module),) if module.affine else ()


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
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm), _normalized_shape),
    nn.Linear: lambda _, ndim: (ndim - 1,),
    nn.GroupNorm: lambda _, __: (1,),
    **dict.fromkeys(_INSTANCE, _instance_channels),
}  # fmt: skip
