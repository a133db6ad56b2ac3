"""One sharded parameter: the shard that stays, and the whole that modules see while they run.

Its forms: the *original* tensor, which is replaced in place by this rank's block, the *shard*;
*gathered*, where blocks of all ranks have been put together; and *unsharded*, what modules hold
instead of the parameter meanwhile. Blocks are of any size, so that none is padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NoReturn

import torch
from torch import nn

from distarray.comm import DeviceMesh
from distarray.core import common_mesh, lift
from distarray.errors import ArgumentError, ArgumentTypeError, LayoutError
from distarray.layout import Layout, Replicate, Shard, chunk
from distarray.torch._buffers import dense_strides
from distarray.torch._compat import hold_rnn_weights, parameters_of, version
from distarray.torch._full import scatter_from
from distarray.torch._layouts import (
    Placed,
    is_placed,
    note_whole,
    own_placed,
    place,
    placed_of,
    whole_over,
)
from distarray.torch._modules import prefix_errors
from distarray.torch._shard_records import note_placed
from distarray.torch._shards import count_first_cut, shards
from distarray.torch.parallel import forget_graphs, local_padding


class ShardedParameter:
    """A parameter of a sharded module.

    The modules of ``slots`` hold it under these names; optimizers and ``module.parameters()`` see
    ``parameter``, this rank's block.
    """

    def __init__(
        self,
        slots: list[tuple[nn.Module, str]],
        parameter: nn.Parameter,
        mesh: DeviceMesh,
        wanted: Shard | None,
        path: str,
    ) -> None:
        if parameter in shards:
            raise LayoutError(
                f"{path}: the parameter is sharded already, by a call of fully_shard for a module "
                "further out; call it for the modules inside first, then outwards"
            )
        self.slots = slots
        self.parameter = parameter
        self.path = path
        # How tensor parallelism places the whole, and how the last mesh axis cuts that, or what
        # this rank has of it; how the block is a part of the global parameter.
        self.inner = placed_of(parameter) if is_placed(parameter) else None
        cut: Any = Shard(0) if wanted is None else wanted
        if type(cut) is not Shard:
            raise ArgumentTypeError(
                f"{path}: shard_placement_fn returned {wanted!r}; return da.Shard(axis), or None "
                "for da.Shard(0)"
            )
        shape = tuple(parameter.shape)
        *replicas, last = [Replicate()] * mesh.ndim
        with prefix_errors(f"parameter {path!r}"):
            self.layout = Layout(mesh, [*replicas, cut if shape else last], shape)
        self.placed = _nested_placement(self.inner, self.layout)
        self.stride = dense_strides(parameter)  # of the whole, a permutation of C order
        self.extension: Any = None  # functions before and after blocks travel in another form
        self.unreduced: torch.Tensor | None = None  # a whole gradient, for a later pass
        # A gradient of the shard that waits to be reduced among replicas is read and written in the
        # background, by passes in their order; that there is to be one is known at once.
        self.is_deferred = False
        self.deferred: torch.Tensor | None = None
        self._adopted = 0
        self._paddings = [
            (module, module.padding_idx)
            for module, _ in slots
            if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.padding_idx is not None
        ]

    def shard(self, device: torch.device) -> None:
        """Turn the original into this rank's block of it, as the mesh's first rank has it."""
        parameter = self.parameter
        mesh: Any = self.layout.mesh
        like = parameter.detach()
        if parameter.device.type == "meta":
            block = like.new_empty(self.layout.local_shape())
        else:
            like = like.to(device)
            root = mesh.flat_ranks[0]
            whole = like if mesh.rank == root else None
            block = scatter_from(whole, Placed(self.layout), root, like.new_empty(0))
        forget_graphs(parameter)
        parameter.data = block
        self._place()
        self._pad(parameter)

    @property
    def held(self) -> torch.Tensor | None:
        """What modules hold now: the parameter, its whole, or what somebody has put there."""
        module, name = self.slots[0]
        return parameters_of(module).get(name)

    def adopt(self) -> None:
        """Take the parameter that modules hold, should it be another one by now.

        Materialising a module that was on the meta device makes new ones, and so does loading a
        state dict with ``assign=True``.
        """
        found = self.held
        if found is self.parameter:
            return
        if not isinstance(found, nn.Parameter):
            self.refuse_held()
        self.check_form(found)
        if meshes := whole_over.get(self.parameter):
            whole_over.set(found, meshes)
        self.parameter = found
        self._adopted += 1
        for module, name in self.slots[1:]:
            parameters_of(module)[name] = found
        self._place()

    def refuse_held(self) -> NoReturn:
        """Raise for what modules hold in the place of the parameter."""
        if self.held is None:
            raise ArgumentError(
                f"{self.path}: the module has no such parameter any more; parametrizations, "
                "weight_norm and pruning, which put others in its place, come before fully_shard"
            )
        raise ArgumentError(
            f"{self.path}: the parameter has been replaced by {type(self.held).__name__}; sharded "
            "parameters are replaced by parameters, between calls only. torch.func.functional_call "
            "cannot give a sharded module others: call a copy that is not sharded (dt.state_dict "
            "has its whole parameters)"
        )

    def check_form(self, found: torch.Tensor) -> None:
        """Raise unless it is known of what replaces the parameter that it is this rank's block."""
        placed = own_placed(found)
        if placed is None or placed.layout != self.placed.layout:
            raise ArgumentError(
                f"{self.path}: the parameter has been replaced by one of shape "
                f"{tuple(found.shape)}, where this rank's block is {self.layout.local_shape()}; "
                "load whole tensors by dt.load_state_dict, replace parameters before fully_shard, "
                "or say that it is a block, by dt.place_like(new, the parameter that it replaces)"
            )

    @property
    def version(self) -> tuple[int, int]:
        """Another one whenever the values of the shard have changed, as far as torch counts it."""
        return self._adopted, version(self.parameter)

    def hold(self, tensor: torch.Tensor) -> None:
        """Let modules hold a tensor in the place of the parameter."""
        for module, name in self.slots:
            parameters_of(module)[name] = tensor
            if isinstance(module, nn.RNNBase):
                hold_rnn_weights(module)
        self._pad(tensor)

    def _pad(self, tensor: torch.Tensor) -> None:
        """Let embeddings have their word for padding as the weight that they hold has it.

        What initialises them writes to that row.
        """
        if self._paddings:
            start, stop = self.layout.local_box()[0]  # type: ignore[index]
            is_cut = tuple(tensor.shape) != self.layout.shape
            for module, padding in self._paddings:
                module.padding_idx = local_padding(padding, start, stop) if is_cut else padding

    def view_in(self, storage: torch.UntypedStorage, start: int, like: torch.Tensor) -> Any:
        """Return the unsharded form: a view of gathered memory, from an element on."""
        whole = like.new_empty(0).set_(storage, start, self.layout.shape, self.stride)  # type: ignore[call-overload]
        if self.inner is not None:
            place(whole, *self.inner)
        elif self.parameter.requires_grad and (meshes := whole_over.get(self.parameter)):
            note_whole(whole, meshes, self.layout.mesh)
        return whole

    def _place(self) -> None:
        place(self.parameter, *self.placed)
        shards.set(self.parameter, True)
        for module, name in self.slots:
            note_placed(module, name, self.placed)


def cut_blocks(flat: torch.Tensor, members: Sequence[ShardedParameter]) -> list[torch.Tensor]:
    """Return this rank's blocks of parameters, one after another in a flat tensor."""
    at, found = 0, []
    for member in members:
        shape = member.layout.local_shape()
        size = prod(shape)
        # An empty one has the strides of its own shape, which autograd looks at.
        found.append(flat[at : at + size].view(shape) if size else flat.new_empty(shape))
        at += size
    return found


def _nested_placement(inner: Placed | None, layout: Layout) -> Placed:
    """Return how a block of a block is a block of the global parameter."""
    if inner is None:
        return Placed(layout)
    outer: Any = layout.mesh
    mesh = common_mesh("fully_shard", [outer, inner.layout.mesh])
    lifted = lift(inner.layout, mesh)
    if inner.parts and count_first_cut(inner) == 1:  # parts that are whole are no parts
        inner = Placed(inner.layout)
    (*_, cut), (*_, position) = layout.placements, mesh.axes_of(outer)
    placements = list(lifted.placements)
    placements[position] = cut
    order = [*(i for i in lifted.shard_order or range(mesh.ndim) if i != position), position]
    boundaries = dict(lifted.boundaries or {})
    if type(cut) is Shard and lifted.sharding_axes(cut.axis):
        count = mesh.shape[position]
        offsets, blocks = [0], lifted.partition(cut.axis)
        for index in range(blocks.count):
            start, stop = blocks.bounds(index)
            offsets += [start + end for end in chunk(stop - start, (count,)).offsets[1:]]
        boundaries[cut.axis] = tuple(offsets)
    nested = Layout(
        mesh, placements, lifted.shape, shard_order=order, boundaries=boundaries or None
    )
    return inner._replace(layout=nested)
