"""Sharding of a module's parameters over a mesh, to be gathered while it runs."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import nn

from distarray.comm import DeviceMesh, all_gather_checked
from distarray.errors import ArgumentError, ArgumentTypeError, LayoutError
from distarray.layout import Shard
from distarray.torch import _buffers
from distarray.torch._compat import parameters_of
from distarray.torch._modules import (
    check_described_alike,
    check_ungraded,
    check_usable,
    locate_errors,
    prefix_errors,
    state_of,
)
from distarray.torch._moves import check_mesh
from distarray.torch._opaque import skip_compile
from distarray.torch.data_parallel import REPLICA
from distarray.torch.fsdp._group import Group, check_reshard_after_forward
from distarray.torch.fsdp._module import FSDPModule, call_unsharded, mix_in
from distarray.torch.fsdp._parameter import ShardedParameter
from distarray.torch.fsdp._policies import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy
from distarray.torch.fsdp._state import NAME, State, state_beside


def fully_shard(
    module: nn.Module | Sequence[nn.Module],
    mesh: DeviceMesh,
    *,
    reshard_after_forward: bool | int | None = None,
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
        Parameters on the meta device stay there; afterwards materialise them, and load or
        initialise them.
    mesh
        Its last axis shards. Along further axes shards are replicated (hybrid sharding).
    reshard_after_forward
        Whether the whole parameters go after the forward pass, to be gathered again for the
        backward pass. A number of ranks: each of them keeps its shard among that many
        consecutive ones (those of its node, for instance), from which they are gathered again.
        With None they go, but for those of the outermost module of a call, with which the
        backward pass begins.
    shard_placement_fn
        Function of a parameter: `Shard` of the axis that is cut, or None for axis 0.
    mp_policy, offload_policy
        In which dtypes the module computes, and where the shards are kept; torch's own are
        taken as those of the same fields here.
    ignored_params
        Parameters to leave alone, to be named in the calls for modules further out, too. Every
        rank has all of each, its own values and its own gradients: `replicate` the modules that
        have them, before or after, or average gradients after backward by `redistribute`.

    Returns
    -------
    torch.nn.Module
        ``module`` itself, an `FSDPModule` now. Its parameters are plain tensors, this rank's
        shards, outside of its calls; `layout_of` knows how they are placed.

    Raises
    ------
    ArgumentError
        Parameters without shape, with a gradient, or shared with a module that another call
        has sharded; or of a module that `replicate` was applied to. A container without a
        ``forward`` of its own, such as ``nn.ModuleList``: no call would gather its parameters.
    MismatchError
        The modules of the ranks differ.

    Notes
    -----
    S. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
    arXiv:1910.02054; Y. Zhao et al., "PyTorch FSDP", arXiv:2304.11277. Memory of a rank: its
    shards, their gradients and optimizer state; and while it runs, two groups' whole parameters
    (one computes, one arrives) and the whole gradients of one group or two.

    Buffers stay as they are on every rank, and nothing of them is sent, as in torch's FSDP2. The
    running statistics of batch normalization are those of the rank's own inputs: `save` of
    `distarray.checkpoint` raises until they are averaged, or takes the first rank's with
    ``check=False``.

    Examples
    --------
    >>> def shard():
    ...     model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5))
    ...     for layer in (model[0], model[2], model):
    ...         dt.fully_shard(layer, da.default_mesh())
    ...     model(torch.ones(2, 4)).sum().backward()
    ...     return [*model[0].weight.shape], str(dt.layout_of(model[0].weight.grad))
    >>> da.testing.simulate(2, shard)
    [([3, 4], '6x4 [axis0:S(0)]'), ([3, 4], '6x4 [axis0:S(0)]')]
    """
    check_mesh(mesh)
    modules: list[nn.Module] = []
    members: list[ShardedParameter] = []
    policy = _convert_policy(mp_policy or MixedPrecisionPolicy())
    offload = _convert_policy(offload_policy or OffloadPolicy())

    def say() -> tuple[int, list[str]]:
        if not isinstance(policy, MixedPrecisionPolicy):
            raise ArgumentTypeError(f"mp_policy={policy!r}: takes a dt.MixedPrecisionPolicy")
        if not isinstance(offload, OffloadPolicy):
            raise ArgumentTypeError(
                f"offload_policy={offload!r}: takes a dt.CPUOffloadPolicy, or a dt.OffloadPolicy"
            )
        check_reshard_after_forward(reshard_after_forward)
        modules.extend(_check_modules(module))
        with locate_errors(modules[0]):
            ignored = {id(p) for p in ignored_params or ()}
            for path, parameter, slots in _find_parameters(modules, ignored):
                wanted = None if shard_placement_fn is None else shard_placement_fn(parameter)
                members.append(ShardedParameter(slots, parameter, mesh, wanted, path))
        described = [f"{m.path}: {m.parameter.dtype} {m.placed.layout}" for m in members]
        asked = f"{policy}, {offload}, reshard_after_forward={reshard_after_forward}"
        return next(_numbers), [*described, asked]

    told = all_gather_checked(mesh, "fully_shard", say)
    root = modules[0]
    number = max(one for one, _ in told)
    name = f"{state_of(root).path or type(root).__name__} (group {number})"
    compute = _buffers.torch_device(mesh.device)
    if compute.type == "cpu":  # or else where the parameters are
        compute = next((m.parameter.device for m in members if m.parameter.is_cuda), compute)
    with locate_errors(root):
        described = [one for _, one in told]
        check_described_alike("fully_shard needs the same module and arguments", described, mesh)
        kept = torch.device("cpu") if isinstance(offload, CPUOffloadPolicy) else compute
        for member in members:
            member.shard(kept)
    group = None
    if members:
        group = Group(members, mesh, policy, offload, reshard_after_forward, compute, name)
    for one in modules:
        one.__dict__[NAME] = State(group, one is modules[-1], one)
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

    Examples
    --------
    >>> class Model(nn.Linear):
    ...     def score(self, x):
    ...         return self(x).sum()
    >>> model = dt.fully_shard(Model(4, 6), da.default_mesh())
    >>> dt.register_fsdp_forward_method(model, "score")
    >>> model.score(torch.ones(2, 4)).shape
    torch.Size([])
    """
    if not isinstance(module, FSDPModule):
        raise ArgumentTypeError(
            f"fully_shard was not applied to this {type(module).__name__}; apply it first"
        )
    method = getattr(type(module), name, None)
    if not callable(method):
        raise ArgumentError(f"{type(module).__name__} has no method {name!r}")

    @skip_compile
    def whole(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return call_unsharded(self, types.MethodType(method, self), args, kwargs)

    module.__dict__[name] = types.MethodType(whole, module)


_numbers = itertools.count()
"""Tell groups apart whose modules have no names yet; ranks agree on the largest."""

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
_POLICIES = {k.__name__: k for k in (MixedPrecisionPolicy, OffloadPolicy, CPUOffloadPolicy)}


def _convert_policy(policy: Any) -> Any:
    """Return the equal of a policy of torch's, and anything else as it is."""
    kind = _POLICIES.get(type(policy).__name__)
    if kind is None or type(policy).__module__ != "torch.distributed.fsdp":
        return policy
    names = [field.name for field in fields(kind)]
    given = getattr(type(policy), "__dataclass_fields__", {})
    if set(names) != set(given):  # of another version of torch: the message names ours
        return policy
    return kind(**{name: getattr(policy, name) for name in names})


def _check_modules(given: Any) -> list[nn.Module]:
    modules = [given] if isinstance(given, nn.Module) else list(given)
    if not modules:
        raise ArgumentError("there is no module in the list to shard; pass one at least")
    for one in modules:
        if not isinstance(one, nn.Module):
            raise ArgumentTypeError(f"expected torch modules, not {type(one).__name__}")
        contains = isinstance(one, _CONTAINERS) and type(one).forward is nn.Module.forward
        with locate_errors(one):
            if state_beside(one) is not None:
                raise LayoutError("fully_shard was applied to it before; apply it once")
            if contains or type(one) is nn.Module:
                raise ArgumentError(
                    "it has no forward, so that no call of it would gather the parameters: "
                    "fully_shard each module in it, or all of them as a list, or the module that "
                    "calls them"
                )
    return modules


def _find_parameters(
    modules: Sequence[nn.Module], ignored: set[int]
) -> list[tuple[str, Any, list[Any]]]:
    """Return the parameters that no module inside manages, with who holds them, by name."""
    inside = [child for one in modules for child in one.modules()]
    groups = [state.group for child in inside if (state := state_beside(child)) is not None]
    managed = {id(m.parameter) for group in groups if group is not None for m in group.members}
    replicated = {
        id(p) for child in inside if REPLICA in child.__dict__ for p in child.parameters()
    }
    found: dict[int, tuple[str, Any, list[Any]]] = {}
    for prefix, module in (pair for one in modules for pair in _walk(one, "")):
        for name, parameter in parameters_of(module).items():
            if parameter is None or id(parameter) in ignored:
                continue
            path = f"{prefix}{name}"
            if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
                raise ArgumentError(
                    f"parameter {path!r} has sparse gradients, which cannot be packed; pass "
                    "sparse=False to the module"
                )
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
            if id(parameter) in replicated:
                raise ArgumentError(
                    f"parameter {path!r}: dt.replicate was applied to its module, and fully_shard "
                    "averages gradients, too; leave out replicate, or name the parameter in "
                    "ignored_params"
                )
            check_usable(path, parameter)
            check_ungraded(path, parameter)
            if parameter.device.type != "meta":
                with prefix_errors(f"parameter {path!r}"):
                    _buffers.check_travels(parameter)
            found[id(parameter)] = path, parameter, [(module, name)]
    return list(found.values())


def _walk(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield a module and those inside, by path, but for what earlier calls have sharded."""
    if state_beside(module) is None:
        yield prefix, module
        for name, child in module.named_children():
            yield from _walk(child, f"{prefix}{name}.")
