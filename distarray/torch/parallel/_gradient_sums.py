"""Gradients that ranks add up: of replicated inputs and parameters that each uses in its own way.

Query, key and value projections that are cut by columns each need the same input, whole. Alone,
each adds up its gradient over the ranks. Where the input was prepared here, their gradients are
first added on each rank, and then go back together, straight to where the input came from: one
reduce-scatter for an input that had been gathered.

Beside the prepared tensor there is a handle, a second output of the same move without values. Uses
that differ by rank send their gradients to the handle, all other uses (a residual connection, a
module that is not parallel) to the tensor, by autograd's own bookkeeping. Both arrive at the
source, so that no gradient is reduced twice or not at all, whatever the tensor is used for.

What the tensor itself receives is then not its whole gradient. So where somebody could see that, in
``torch.autograd.grad``, by a hook on the tensor or by ``retain_grad``, uses reduce their gradients
at once and send them to the tensor after all. (Hooks on its ``grad_fn`` are not noticed.)
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence, Sized
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from distarray.comm import DeviceMesh
from distarray.layout import Layout, Partial, Replicate
from distarray.torch._backward import awaited, is_for_all_leaves, make_anchor
from distarray.torch._compat import hooks_of, is_transforming, parameters_of, version
from distarray.torch._layouts import TensorMap, note_whole, place, whole_over
from distarray.torch._modules import state_of
from distarray.torch._moves import move, way_back
from distarray.torch._opaque import disable_compile, refuse_transforms, skip_compile
from distarray.torch._routes import Route, moving_for, routes_between


@dataclass(frozen=True, slots=True)
class _Joint:
    """What is beside a prepared tensor: the handle, and how to notice who looks at it."""

    layout: Layout
    handle: torch.Tensor
    anchor: torch.Tensor
    tensor: weakref.ref[torch.Tensor]
    version: int
    hooks: Sized

    def is_unseen(self) -> bool:
        """Whether nobody can tell in this backward pass what the tensor receives."""
        if not is_for_all_leaves(self.anchor):
            return False
        tensor = self.tensor()
        return not len(self.hooks) and (tensor is None or not tensor.retains_grad)


_joints: TensorMap[_Joint] = TensorMap()


class _Handle(torch.autograd.Function):
    """Return a tensor without values; its gradient is moved to the source."""

    @staticmethod
    def forward(
        ctx: Any,
        source: torch.Tensor,
        _: torch.Tensor,
        shape: torch.Size,
        there: Route,
        back: Route,
    ) -> torch.Tensor:
        ctx.routes = back, there
        return source.new_zeros(1).as_strided(shape, (0,) * len(shape))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return move(gradient, *ctx.routes), None, None, None, None


class _Use(torch.autograd.Function):
    """Return a prepared tensor as it is; its gradients, which differ by rank, go to the handle."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, _: torch.Tensor, joint: _Joint) -> torch.Tensor:
        ctx.joint = joint
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        joint = ctx.joint
        if joint.is_unseen():
            return None, gradient, None
        whole = joint.layout
        apart = whole.replace(placements=[Partial()])
        return move(gradient, *routes_between(apart, whole)), None, None


def prepare_input(tensor: torch.Tensor, there: Route, back: Route) -> torch.Tensor:
    """Return a tensor moved to where it is replicated on a mesh of one axis.

    Column-parallel modules that use the result itself reduce their gradients together.
    """
    result = move(tensor, there, back)
    if not result.requires_grad or not torch.is_grad_enabled():
        return result
    if result is tensor:
        result = move(tensor.view_as(tensor), there, back)
    _, together = routes_between(there.src, there.dst, [Partial()])
    together = way_back(tensor, there, together)
    anchor = make_anchor()
    handle = _Handle.apply(tensor, anchor, result.shape, there, together)
    result.register_hook(lambda _: None).remove()  # so that there is a dictionary of hooks to watch
    hooks: Sized = hooks_of(result)
    joint = _Joint(there.dst, handle, anchor, weakref.ref(result), version(result), hooks)
    _joints.set(result, joint)
    return result


def use_apart(tensor: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor | None:
    """Return a prepared tensor for a use that differs by rank; None for any other tensor."""
    joint = _joints.get(tensor)
    if joint is None or joint.layout.mesh is not mesh or joint.version != version(tensor):
        return None
    if not tensor.requires_grad or not torch.is_grad_enabled():
        return tensor
    result: torch.Tensor = _Use.apply(tensor, joint.handle, joint)
    return result


# --- parameters -----------------------------------------------------------------------------------
# Within one call of the outermost parallelized module there is one node for all such parameters, or
# for as many as fit into a bucket: autograd comes to it when all their gradients are there.

BUCKET_BYTES = 25 << 20
"""As many as `replicate` has in a bucket."""

_R, _P = Replicate(), Partial()
_standing_in: TensorMap[bool] = TensorMap()
"""Tensors that stand for parameters, in calls that may call their module again."""
_StandIns = dict[tuple[int, DeviceMesh], tuple[torch.Tensor, torch.Tensor]]
_stand_ins: ContextVar[_StandIns | None] = ContextVar("what stands for parameters", default=None)


class _Summed(torch.autograd.Function):
    """Return tensors as they are; their gradients are added up over the ranks, all in one."""

    @staticmethod
    def forward(ctx: Any, mesh: DeviceMesh, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.mesh = mesh
        ctx.set_materialize_grads(False)
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:  # type: ignore[override]
        there = [i for i, gradient in enumerate(gradients) if gradient is not None]
        totals: list[Any] = list(gradients)
        # Modules that a pass has left out may differ between ranks, and be of one size.
        with moving_for(f"gradients {there} of {len(gradients)} replicated parameters"):
            for i, total in zip(there, _totals(ctx.mesh, [totals[i] for i in there]), strict=True):
                totals[i] = total
        return None, *totals


def _totals(mesh: DeviceMesh, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the sums of all ranks' tensors, by one all-reduce for those of one dtype."""
    totals: list[torch.Tensor] = list(tensors)
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        chosen = [i for i, tensor in enumerate(tensors) if tensor.dtype is dtype]
        pieces = [tensors[i].reshape(-1) for i in chosen]
        packed = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        summed = Layout(mesh, [_P], packed.shape)
        ways = routes_between(summed, summed.replace(placements=[_R]))
        total = move(packed, *ways)
        for i, piece in zip(chosen, total.split([piece.numel() for piece in pieces]), strict=True):
            totals[i] = piece.view(tensors[i].shape)
    return totals


def _stand_for(parameters: Sequence[torch.Tensor], mesh: DeviceMesh) -> list[torch.Tensor]:
    """Return what stands for parameters where each rank makes something of its own of them."""
    found = list(_Summed.apply(mesh, *parameters))
    for tensor in found:
        _standing_in.set(tensor, True)
        place(tensor, Layout(mesh, [_R], tensor.shape), partial_grad=frozenset({(0, "sum")}))
    return found


class summing_together:  # noqa: N801 - reads as a phrase: with summing_together(module)
    """Add up inside, in one, what modules in a module would each add up by itself."""

    __slots__ = ("_found", "_token")

    @disable_compile
    def __init__(self, module: nn.Module) -> None:
        chosen: dict[DeviceMesh, dict[int, torch.Tensor]] = {}
        needed = torch.is_grad_enabled() and not is_transforming()
        children = list(module.modules()) if needed else []
        note_all_whole(children)
        for child in children:
            for name, mesh in state_of(child).summed.items():
                p = parameters_of(child).get(name)
                if p is not None and p.requires_grad and mesh.size > 1 and p not in awaited:
                    chosen.setdefault(mesh, {})[id(p)] = p
        self._found: _StandIns = {}
        for mesh, parameters in chosen.items():
            for bucket in _fill_buckets(parameters.values()):
                pairs = zip(bucket, _stand_for(bucket, mesh), strict=True)
                self._found |= {(id(p), mesh): (p, stand_in) for p, stand_in in pairs}

    @skip_compile
    def __enter__(self) -> None:
        self._token = _stand_ins.set(self._found)

    @skip_compile
    def __exit__(self, *_: object) -> None:
        _stand_ins.reset(self._token)


def note_all_whole(modules: Sequence[nn.Module]) -> None:
    """Remember of parameters without a style that all ranks have them."""
    found = (mesh for child in modules for _, mesh in state_of(child).styles if mesh.size > 1)
    meshes = tuple(dict.fromkeys(found))
    for child in modules if meshes else ():
        for p in parameters_of(child).values():
            if isinstance(p, nn.Parameter):
                whole_over.set(p, meshes)
                if p.requires_grad:
                    note_whole(p, meshes, awaited.get(p))


def _fill_buckets(parameters: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    found: list[list[torch.Tensor]] = []
    filled = 0
    for p in parameters:
        if not found or filled + p.nbytes > BUCKET_BYTES:
            found.append([])
            filled = 0
        found[-1].append(p)
        filled += p.nbytes
    return found


def find_summed(parameter: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor | None:
    """Return what stands for a parameter in the call under way; None where nothing does."""
    pair = (_stand_ins.get() or {}).get((id(parameter), mesh))
    return pair[1] if pair is not None and pair[0] is parameter else None


def sum_gradients_of(module: nn.Module, mesh: DeviceMesh) -> dict[str, torch.Tensor]:
    """Return what stands for a module's own parameters where it computes this rank's items.

    The gradients of the parameters are then those of all ranks' items: one all-reduce of all of
    them together, in the backward pass, and of those of other modules in the same call of a model.
    Parameters that require no gradient are left out.
    """
    found = {
        name: parameter
        for name, parameter in parameters_of(module).items()
        if parameter is not None and parameter.requires_grad and parameter not in _standing_in
    }
    if not found or mesh.size == 1 or not torch.is_grad_enabled():
        return {}
    refuse_transforms(
        "replicated parameters whose gradients are added up over the ranks (SequenceParallel, and "
        "norms in it); call a copy of the module that is not parallelized"
    )
    known = {name: find_summed(parameter, mesh) for name, parameter in found.items()}
    summed = {name: tensor for name, tensor in known.items() if tensor is not None}
    rest = {name: parameter for name, parameter in found.items() if name not in summed}
    if rest:
        summed |= zip(rest, _stand_for(list(rest.values()), mesh), strict=True)
    return summed
