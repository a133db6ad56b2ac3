"""Data parallelism: the same module on every rank of a mesh axis, with averaged gradients."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from distarray.comm import DeviceMesh, all_gather_checked, token
from distarray.errors import ArgumentError, ArgumentTypeError, LayoutError
from distarray.layout import Shard
from distarray.torch._buffers import buffer_of, bytes_of, check_travels
from distarray.torch._compat import (
    BatchNormBase,
    buffers_of,
    is_going_backward,
    is_transforming,
)
from distarray.torch._layouts import placed_of
from distarray.torch._modules import check_described_alike, locate_errors, prefix_errors
from distarray.torch._moves import check_mesh
from distarray.torch._opaque import disable_compile
from distarray.torch._shards import shards
from distarray.torch.data_parallel._reducer import NAME, Replica


def replicate(
    module: nn.Module,
    mesh: DeviceMesh,
    *,
    op: str = "avg",
    bucket_bytes: int = 10 << 20,
    broadcast_buffers: bool = True,
) -> nn.Module:
    """Train a module on different data on every rank, in place (collective over the mesh).

    Parameters and buffers are those of the mesh's first rank at first, and gradients are averaged
    in every backward pass, in buckets that travel while the pass goes on: so every rank's
    optimizer takes the same step. The module stays of its class, its parameters stay plain.

    Parameters
    ----------
    module
        The same on every rank of the mesh. It may be parallelized over other mesh axes: blocks of
        parameters are averaged with the blocks of the ranks that hold the same ones.
    mesh
        Usually one axis of a larger mesh, ``mesh["dp"]``.
    op
        "avg", or "sum": where the loss is a sum over items, not their mean. Until it is
        averaged, a gradient counts n times then, on a mesh of n ranks.
    bucket_bytes
        Gradients travel in pieces of about this size, the first and the last of at most 1 MiB.
    broadcast_buffers
        Whether every call takes the buffers of the mesh's first rank, before it computes. Then all
        ranks make the same calls, also for evaluation (or call inside `no_sync`).

    Returns
    -------
    torch.nn.Module
        ``module`` itself.

    Raises
    ------
    MismatchError
        The ranks' modules differ in names, shapes or dtypes.
    ArgumentError
        The module or a part of it is replicated already.
    LayoutError
        A parameter is a shard of `fully_shard`, which averages gradients itself, or is cut along
        an axis of ``mesh``, whose ranks then hold different blocks.

    Notes
    -----
    A parameter that a rank's backward pass does not reach counts as zero there; one that no rank
    reaches keeps ``grad`` as it is. Every rank's pass must reach one parameter at least.
    ``torch.autograd.grad`` averages nothing, nor do the transforms of ``torch.func``. Gradients are
    complete when ``backward`` returns. Which parameters require them is found out by calls of the
    module itself: after ``requires_grad_()``, ``to(dtype)`` or ``load_state_dict(assign=True)``
    call that, not only modules inside or methods.
    Hooks of ``register_post_accumulate_grad_hook``, as of optimizers that step inside of backward,
    are called at the end of the pass, with averages; those of ``register_hook`` see the gradient of
    their own rank.

    A bucket is hidden behind what the backward pass still has to do once its gradients are there,
    so that the last large one is not: smaller buckets leave less of it, larger ones wait less often
    for the others. On two ranks with a core each and a delay that stands for a link of 1 GB/s,
    buckets of 25 MiB of 50 MB left 45 ms after the pass, those of 10 MiB 27 ms; smaller ones gained
    no more.

    Batch normalization takes the statistics of its rank's own part of the batch. The running ones
    are those of the first rank in every call; after it they differ between the ranks until the
    next, so save the first one's (``dt.state_dict(module, ranks=0, mesh=mesh)``). Without
    ``broadcast_buffers`` each rank keeps its own.

    References
    ----------
    S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training",
    PVLDB 13 (2020) 3005.

    Examples
    --------
    >>> def gradient():
    ...     mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
    ...     layer = nn.Linear(4, 6)
    ...     dt.parallelize_module(layer, mesh["tp"], dt.ColwiseParallel())
    ...     dt.replicate(layer, mesh["dp"])
    ...     group = mesh["dp"].coordinate[0]
    ...     layer(torch.full((1, 4), 2.0 * group)).sum().backward()
    ...     return layer.weight.grad[0]
    >>> da.testing.simulate(4, gradient)[0]  # the mean of 0 and 2
    tensor([1., 1., 1., 1.])
    """
    check_mesh(mesh)

    def say() -> tuple[list[str], int]:
        if op not in ("avg", "sum"):
            raise ArgumentError(f"op={op!r}: gradients are reduced by 'avg' or 'sum'")
        if bucket_bytes <= 0:
            raise ArgumentError(
                f"bucket_bytes={bucket_bytes!r}: must be positive, such as 10 << 20"
            )
        asked = f"op={op!r}, {bucket_bytes=}, {broadcast_buffers=}"
        return [*_describe(module, mesh), asked], next(_numbers)

    told = all_gather_checked(mesh, "replicate", say)
    described = [one for one, _ in told]
    check_described_alike("replicate needs the same module and arguments", described, mesh)
    number = max(one for _, one in told)
    communicator = mesh.communicator()
    for tensor in (*module.parameters(), *module.buffers()):
        whole = tensor.detach().contiguous()
        communicator.broadcast(buffer_of(whole).reshape(-1), root=0)
        if whole.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(whole)
    replica = Replica(mesh, op, int(bucket_bytes), bool(broadcast_buffers), number)
    module.__dict__[NAME] = replica
    module.register_forward_pre_hook(_before, prepend=True, with_kwargs=True)
    module.register_forward_hook(_after)
    replica.attach(module.named_parameters())
    return module


_numbers = itertools.count()
"""Tell replicated modules apart; ranks agree on the largest."""


@contextlib.contextmanager
def no_sync(module: nn.Module) -> Iterator[None]:
    """Let gradients add up on every rank by itself inside a ``with`` block.

    What counts is where ``backward`` is called: the first call outside averages all that has been
    added up. Buffers are not broadcast inside.

    Parameters
    ----------
    module
        One that `replicate` returned, or any that has such inside.

    Examples
    --------
    >>> model = dt.replicate(nn.Linear(4, 1, bias=False), da.default_mesh())
    >>> with dt.no_sync(model):
    ...     model(torch.ones(1, 4)).sum().backward()
    >>> model(torch.ones(1, 4)).sum().backward()
    >>> model.weight.grad
    tensor([[2., 2., 2., 2.]])
    """
    replicas = [r for m in module.modules() if (r := m.__dict__.get(NAME)) is not None]
    if not replicas:
        raise ArgumentError(
            f"no_sync was given a {type(module).__name__} without anything replicated in it; pass "
            "a module that dt.replicate returned; of what fully_shard has sharded, call "
            "module.set_requires_gradient_sync(False), and True before the last pass"
        )
    before = [replica.syncing for replica in replicas]
    for replica in replicas:
        replica.syncing = False
    try:
        yield
    finally:
        for replica, syncing in zip(replicas, before, strict=True):
            replica.syncing = syncing


# --- before the first call -----------------------------------------------------------------------


def _describe(module: nn.Module, mesh: DeviceMesh) -> list[str]:
    """Return what must be alike on all ranks, after checking that the module can be replicated."""
    if not isinstance(module, nn.Module):
        raise ArgumentTypeError(f"expected a torch.nn.Module, not {type(module).__name__}")
    for name, child in module.named_modules():
        if NAME in child.__dict__:
            raise ArgumentError(
                f"{name or 'the module'} ({type(child).__name__}) is replicated already; replicate "
                "the outer module alone, over a mesh of all the axes"
            )
    known: dict[int, str] = {}
    found: list[str] = []
    for kind, tensors in (
        ("parameter", module.named_parameters(remove_duplicate=False)),
        ("buffer", module.named_buffers(remove_duplicate=False)),
    ):
        for name, tensor in tensors:
            if is_lazy(tensor):
                raise ArgumentError(
                    f"parameter {name!r} has no shape yet; call the module once before replicating"
                )
            if tensor.is_inference() or torch.is_inference_mode_enabled():
                raise ArgumentError(
                    f"{kind} {name!r}: nothing can have a gradient under torch.inference_mode(), "
                    "nor what is made there; make and replicate the module outside, and call it "
                    "inside"
                )
            with prefix_errors(f"{kind} {name!r}"):
                check_travels(tensor)
            _check_same(f"{kind} {name!r}", tensor, mesh)
            first = known.setdefault(id(tensor), name)
            shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
            same = "" if first == name else f" (is {first})"
            frozen = "" if tensor.requires_grad or kind == "buffer" else " without gradient"
            order = "" if tensor.is_contiguous() else f" with strides {tensor.stride()}"
            found.append(f"{kind} {name}{same}: {dtype} {shape}{frozen}{order}")
    return found


def _check_same(what: str, tensor: torch.Tensor, mesh: DeviceMesh) -> None:
    """Raise where ranks hold different blocks, which would take the values of the first."""
    if tensor in shards:
        raise LayoutError(
            f"{what} is a shard of fully_shard, which averages gradients itself; leave out "
            "replicate, and for replicas of shards give fully_shard a mesh of both axes"
        )
    placed = placed_of(tensor)
    if placed is None:
        return
    over: Any = placed.layout.mesh
    for axis, placement in zip(over.axis_names, placed.layout.placements, strict=True):
        if type(placement) is Shard and len({*over[axis].flat_ranks} & {*mesh.flat_ranks}) > 1:
            raise LayoutError(
                f"{what} is {placed.layout}: ranks of {mesh} hold different blocks of it; "
                f"replicate over an axis other than {axis!r}, such as mesh['dp']"
            )


# --- at every call -------------------------------------------------------------------------------


@disable_compile
def _before(module: nn.Module, _: tuple[Any, ...], __: dict[str, Any]) -> None:
    replica: Replica = module.__dict__[NAME]
    with locate_errors(module):
        if is_going_backward():
            return  # recomputed inside a backward pass
        if torch.is_grad_enabled() and not is_transforming():  # which have gradients of their own
            replica.attach(module.named_parameters())
            replica.calls += module.training
        if replica.broadcast_buffers and replica.syncing:
            _broadcast_buffers(module, replica)


@disable_compile
def _after(module: nn.Module, _: tuple[Any, ...], output: Any) -> None:
    if not is_transforming():
        module.__dict__[NAME].begin_pass_at(output)


def _broadcast_buffers(module: nn.Module, replica: Replica) -> None:
    """Give all ranks the buffers of the first, in one message."""
    communicator = replica.mesh.communicator()
    owned = [
        (buffer, isinstance(child, BatchNormBase))
        for child in module.modules()
        for buffer in buffers_of(child).values()
        if buffer is not None and buffer.numel()
    ]
    if not owned or communicator.size == 1:
        return
    # In an order in which all lie at multiples of their items' sizes.
    owned.sort(key=lambda one: -one[0].element_size())
    device = owned[0][0].device
    parts = [bytes_of(buffer).to(device) for buffer, _ in owned]
    whole = torch.cat(parts)
    communicator.agree(
        token("buffers", whole.numel(), replica.number, replica.calls),
        f"broadcast of {whole.numel()} bytes of buffers of replicated module {replica.number} in "
        f"forward call {replica.calls}",
    )
    communicator.broadcast(buffer_of(whole), root=0)
    if communicator.rank == 0:
        return
    arrived = whole.split([part.numel() for part in parts])
    for (buffer, statistics), before, now in zip(owned, parts, arrived, strict=True):
        if torch.equal(before, now):
            continue
        # Statistics change in every call without being what its backward needs: torch itself
        # changes them unnoticed by what earlier calls saved, and so does this.
        target = buffer.data if statistics else buffer.detach()
        target.copy_(now.view(buffer.dtype).reshape(buffer.shape))
