"""The base of parallel styles, which distribute parameters and hook what goes in and out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from distarray.comm import DeviceMesh
from distarray.errors import ArgumentError
from distarray.layout import Layout, Placement, Replicate
from distarray.torch import _modules
from distarray.torch.parallel import _parameters
from distarray.torch.parallel._forward_wrapper import extend
from distarray.torch.parallel._gradient_sums import sum_gradients_of


class ParallelStyle(ABC):
    """How one module runs on a mesh; `parallelize_module` applies it.

    A style of one's own says in `apply` which parameters are cut and what moves before and after
    ``forward``, by the methods below. A style holds no state of a module: one object may be applied
    to many.

    Examples
    --------
    >>> class GatheredOutput(dt.ParallelStyle):
    ...     def apply(self, module, mesh):
    ...         self.distribute(module, "weight", mesh, [da.Shard(0)])
    ...         whole, features, added = [da.Replicate()], [da.Shard(-1)], [da.Partial()]
    ...         self.on_input(module, lambda module, args, kwargs: ((dt.redistribute(
    ...             args[0], mesh, whole, whole, grad_placements=added),), kwargs))
    ...         self.on_output(module, lambda module, y: dt.redistribute(y, mesh, features, whole))
    >>> def shapes():
    ...     layer = nn.Linear(4, 6, bias=False)
    ...     dt.parallelize_module(layer, da.default_mesh(), GatheredOutput())
    ...     return [*layer.weight.shape], [*layer(torch.ones(2, 4)).shape]
    >>> da.testing.simulate(2, shapes)
    [([3, 4], [2, 6]), ([3, 4], [2, 6])]
    """

    @abstractmethod
    def apply(self, module: nn.Module, mesh: DeviceMesh) -> None:
        """Distribute and hook one module, on every rank of the mesh.

        Everything that can be wrong with the module raises here, before anything is sent.
        """

    @staticmethod
    def distribute(
        module: nn.Module,
        name: str,
        mesh: DeviceMesh,
        placements: Sequence[Placement],
        *,
        parts: Sequence[int] = (),
        unit: int | Sequence[int] = 1,
        axis: int = 0,
    ) -> Layout:
        """Turn a parameter into this rank's block of it; see `distribute_parameter`."""
        with _modules.locate_errors(module):
            return _parameters.distribute_parameter(
                module, name, mesh, placements, parts=parts, unit=unit, axis=axis
            )

    @staticmethod
    def on_input(
        module: nn.Module, function: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any]
    ) -> None:
        """Call ``function(module, args, kwargs)`` before forward; it returns both anew."""
        extend(module, inputs=function)

    @staticmethod
    def on_output(module: nn.Module, function: Callable[[nn.Module, Any], Any]) -> None:
        """Call ``function(module, output)`` after forward: it returns the new output."""
        extend(module, outputs=function)

    @staticmethod
    def substitute(
        module: nn.Module, values: Callable[[nn.Module], Mapping[str, torch.Tensor | None]]
    ) -> None:
        """Let forward see ``values(module)`` in the place of parameters of these names."""
        extend(module, values=values)

    def _keep_whole(self, module: nn.Module, mesh: DeviceMesh, *, summed: bool) -> None:
        """Give all ranks a module's own parameters; if ``summed``, add up the ranks' gradients."""
        for name, _ in module.named_parameters(recurse=False):
            self.distribute(module, name, mesh, [Replicate()])
            if summed:
                _modules.state_of(module).summed[name] = mesh
        if summed:
            self.substitute(module, lambda module: sum_gradients_of(module, mesh))


def check_one_axis(mesh: DeviceMesh, style: str) -> None:
    """Raise unless a mesh has one axis only."""
    if mesh.ndim != 1:
        raise ArgumentError(
            f"{style} works on one mesh axis, not on {mesh}; pass a sub-mesh such as "
            f"mesh[{mesh.axis_names[-1]!r}]"
        )


def twin_of_style(value: object) -> str:
    """Return the end of a message about a style that is torch's, which names ours; else ""."""
    for kind in type(value).__mro__:
        if kind.__module__.startswith("torch.distributed"):
            break
    else:
        return ""
    name = type(value).__name__
    if kind is not type(value):
        return f" ({name} derives from torch's {kind.__name__}; derive it from dt.{kind.__name__})"
    return f" (this {name} is torch's; take dt.{name}, with da.Shard and da.Replicate as layouts)"
