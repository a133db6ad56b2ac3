"""Shard a module's parameters over a mesh, and gather them while it runs."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from distarray.comm import DeviceMesh
from distarray.comm._mismatch import differing
from distarray.errors import ArgumentError, ArgumentTypeError, LayoutError, MismatchError
from distarray.layout import Shard
from distarray.torch._buffers import check_travels
from distarray.torch._modules import located, state_of
from distarray.torch._moves import check_mesh
from distarray.torch.fsdp._group import Group
from distarray.torch.fsdp._module import FSDPModule, called, mix_in
from distarray.torch.fsdp._parameter import ShardedParameter
from distarray.torch.fsdp._policies import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy
from distarray.torch.fsdp._state import NAME, State, state_beside


def fully_shard(
    module: nn.Module | Sequence[nn.Module],
    mesh: DeviceMesh,
    *,
    reshard_after_forward: bool | int = True,
    shard_placement_fn: Callable[[nn.Parameter], Shard | None] | None = None,
    mp_policy: MixedPrecisionPolicy | None = None,
    offload_policy: OffloadPolicy | None = None,
    ignored_params: Iterable[nn.Parameter] | None = None,
) -> Any:
    """Shard the parameters of a module, in place (collective over the mesh).

    Apply it to modules inside first, to the layers of a model for instance, then to the model: each
    call makes a group of the parameters that no earlier call has taken. A group is gathered, in one
    all-gather, before its module runs forward or backward, and its gradients are averaged by one
    reduce-scatter. While one computes the next one is gathered, and the gradients of the last one
    are reduced.

    Parameters
    ----------
    module
        The same on every rank; or several modules, in the order in which they are called, that
        make one group. Parameters take the values of the mesh's first rank. They may have been
        distributed by `parallelize_module` over other axes of a mesh that contains this one.
        Parameters on the meta device stay there; materialise and load them afterwards.
    mesh
        Its last axis shards. Along further axes shares are replicated (hybrid sharding).
    reshard_after_forward
        Whether the whole parameters go after the forward pass, to be gathered again for the
        backward pass. A number of ranks: each of them keeps its share among that many
        consecutive ones (those of its node, for instance), from which they are gathered again.
    shard_placement_fn
        Function of a parameter: `Shard` of the axis that is cut, or None for axis 0.
    mp_policy, offload_policy
        In which dtypes the module computes, and where the shares are kept.
    ignored_params
        Parameters to leave alone.

    Returns
    -------
    torch.nn.Module
        ``module`` itself, an `FSDPModule` now. Its parameters are plain tensors, this rank's
        shares, outside of its calls; `layout_of` knows how they are placed.

    Raises
    ------
    ArgumentError
        Parameters without shape, with a gradient, or shared with a module that another call
        has sharded.
    MismatchError
        The modules of the ranks differ.

    Notes
    -----
    S. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
    arXiv:1910.02054; Y. Zhao et al., "PyTorch FSDP", arXiv:2304.11277. Memory of a rank: its
    shares, their gradients and optimizer state; and while it runs, two groups' whole parameters
    (one computes, one arrives) and the whole gradients of one group or two.
    """
    check_mesh(mesh)
    modules = [module] if isinstance(module, nn.Module) else list(module)
    for one in modules:
        if not isinstance(one, nn.Module):
            raise ArgumentTypeError(f"expected torch modules, not {type(one).__name__}")
    policy = _checked(mp_policy, MixedPrecisionPolicy, "mp_policy") or MixedPrecisionPolicy()
    offload = _checked(offload_policy, OffloadPolicy, "offload_policy") or OffloadPolicy()
    if not isinstance(reshard_after_forward, int):
        raise ArgumentTypeError(
            f"reshard_after_forward={reshard_after_forward!r}: True, False, or a number of ranks"
        )
    root = modules[0]
    with located(root):
        for one in modules:
            if state_beside(one) is not None:
                raise LayoutError("fully_shard was applied to it before; apply it once")
        found = _found(modules, {id(p) for p in ignored_params or ()})
        name = state_of(root).path or type(root).__name__
        members = [
            ShardedParameter(slots, parameter, mesh, _wanted(shard_placement_fn, parameter), path)
            for path, parameter, slots in found
        ]
        _compare(members, mesh)
        compute = torch.device(mesh.device)
        kept = torch.device("cpu") if isinstance(offload, CPUOffloadPolicy) else compute
        for member in members:
            member.cut(kept)
    group = None
    if members:
        group = Group(members, mesh, policy, offload, reshard_after_forward, compute, name)
    for one in modules:
        one.__dict__[NAME] = State(group, one is modules[-1])
        mix_in(one)
    return module


def register_fsdp_forward_method(module: nn.Module, name: str) -> None:
    """Let a method gather a sharded module's parameters as ``forward`` does.

    Parameters
    ----------
    module
        An `FSDPModule`.
    name
        Of a method of it that is called from outside, such as ``"generate"``.
    """
    if not isinstance(module, FSDPModule):
        raise ArgumentTypeError(
            f"fully_shard was not applied to this {type(module).__name__}; apply it first"
        )
    method = getattr(type(module), name, None)
    if not callable(method):
        raise ArgumentError(f"{type(module).__name__} has no method {name!r}")

    def whole(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return called(self, types.MethodType(method, self), args, kwargs)

    module.__dict__[name] = types.MethodType(whole, module)


def _checked(value: Any, kind: type, name: str) -> Any:
    if value is not None and not isinstance(value, kind):
        raise ArgumentTypeError(f"{name}={value!r}: takes a {kind.__name__}")
    return value


def _found(modules: Sequence[nn.Module], ignored: set[int]) -> list[tuple[str, Any, list[Any]]]:
    """Return the parameters that no module inside manages, with who holds them, by name."""
    managed: set[int] = set()
    for one in modules:
        for child in one.modules():
            state = state_beside(child)
            if state is not None and state.group is not None:
                managed |= {id(m.parameter) for m in state.group.members}
    found: dict[int, tuple[str, Any, list[Any]]] = {}
    for one in modules:
        _collect(one, "", managed, ignored, found)
    return list(found.values())


def _collect(
    module: nn.Module, prefix: str, managed: set[int], ignored: set[int], found: dict[int, Any]
) -> None:
    if state_beside(module) is not None:
        return
    for name, parameter in module._parameters.items():
        if parameter is None or id(parameter) in ignored:
            continue
        path = f"{prefix}{name}"
        if id(parameter) in managed:
            raise ArgumentError(
                f"parameter {path!r} is shared with a module inside that is sharded already; "
                "modules that share parameters belong to one group: leave the inner one to the "
                "call for the module that holds both, or pass both as a list"
            )
        known = found.get(id(parameter))
        if known is not None:
            if all(holder is not module or n != name for holder, n in known[2]):
                known[2].append((module, name))
            continue
        _check(path, parameter)
        found[id(parameter)] = path, parameter, [(module, name)]
    for name, child in module.named_children():
        _collect(child, f"{prefix}{name}.", managed, ignored, found)


def _check(path: str, parameter: nn.Parameter) -> None:
    if isinstance(parameter, UninitializedParameter):
        raise ArgumentError(f"parameter {path!r} has no shape yet; run the module once beforehand")
    if parameter.grad is not None:
        raise ArgumentError(
            f"parameter {path!r} has a gradient already, of the full shape; shard before the first "
            "backward pass, or after zero_grad()"
        )
    if parameter.device.type != "meta":
        try:
            check_travels(parameter)
        except ArgumentTypeError as error:
            raise ArgumentTypeError(f"parameter {path!r}: {error}") from None


def _wanted(function: Any, parameter: nn.Parameter) -> Shard | None:
    found: Shard | None = None if function is None else function(parameter)
    return found


def _compare(members: Sequence[ShardedParameter], mesh: DeviceMesh) -> None:
    """Raise where the ranks are about to shard different parameters (collective)."""
    own = [f"{m.path}: {m.parameter.dtype} {m.placed.layout}" for m in members]
    communicator = mesh.communicator()
    told = communicator.all_gather_object(own)
    if all(one == told[0] for one in told):
        return
    for i in range(max(map(len, told))):
        said = [one[i] if i < len(one) else "nothing" for one in told]
        if len(set(said)) > 1:
            raise MismatchError(
                f"fully_shard needs the same module on every rank of {mesh}: "
                f"{differing(said, communicator.ranks)}; build it alike everywhere"
            )
