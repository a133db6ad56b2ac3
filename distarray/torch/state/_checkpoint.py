"""Tensors, generators, modules and optimizers in checkpoints, under the names of one process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from distarray.checkpoint import (
    Adapter,
    Block,
    Entry,
    Finish,
    LoadPlan,
    Node,
    Piece,
    Placing,
    SavePlan,
    StateAdapter,
    box_view,
    dtype_of_spec,
    encode_key,
    join_name,
    register,
    register_maker,
)
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointError,
    DTypeError,
    LayoutError,
    StateDictError,
)
from distarray.layout import box as boxes
from distarray.torch import _buffers
from distarray.torch._compat import is_wrapper_subclass
from distarray.torch._layouts import Placed, own_placed, place, placed_of
from distarray.torch._random import read_state
from distarray.torch._shards import list_boxes
from distarray.torch.state._entries import ModuleState, OptimizerState
from distarray.typing import Box

_EXTRA = "_extra_state"
_BITS = {1: torch.uint8, 2: torch.int16}


class TensorPiece(Piece):
    """A box of a tensor on any device; its bits where NumPy lacks the dtype."""

    __slots__ = ()

    def memory(self) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """Return where the memory begins, its shape, and its strides in bytes."""
        tensor = self.array
        strides = tuple(stride * tensor.element_size() for stride in tensor.stride())
        return tensor.data_ptr(), tuple(tensor.shape), strides

    @property
    def is_on_host(self) -> bool:
        return _buffers.gpu_of(self.array) is None

    def part(self, box: Box) -> np.ndarray:
        """Return the values of a box within this one, in host memory."""
        part = box_view(self.array, boxes.shift(box, self.box))
        found: np.ndarray = _buffers.on_host(part).numpy()
        return found

    def host_memory(self) -> np.ndarray:
        if self.is_on_host:
            found: np.ndarray = self.array.numpy()
            return found
        return torch.empty(self.array.shape, dtype=self.array.dtype, device="cpu").numpy()

    def close(self, filled: np.ndarray) -> None:
        """Take what was filled, and let autograd know that the tensor has changed."""
        if not self.is_on_host:
            self.array.copy_(torch.from_numpy(filled))
        if not self.array.is_inference():
            torch.autograd.graph.increment_version(self.array)


def torch_dtype(entry: Entry) -> torch.dtype:
    """Return the dtype of a tensor for an array of a checkpoint."""
    found = getattr(torch, entry.spec, None) if isinstance(entry.spec, str) else None
    if not isinstance(found, torch.dtype):
        raise DTypeError(f"torch has no dtype for {entry.name} of {entry.spec!r}")
    return found


def check_tensor(tensor: torch.Tensor, name: str) -> None:
    """Raise unless a tensor has memory of its own that can be read or filled."""
    hint = "convert it first"
    if tensor.device.type == "meta":
        hint = "materialise it first: module.to_empty(device='cpu')"
    elif is_wrapper_subclass(tensor):
        hint = "pass its plain local tensor, placed by dt.distribute_tensor or parallelize_module"
    elif tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested:
        return
    raise ArgumentTypeError(
        f"{name} is a {type(tensor).__name__} on {tensor.device} with layout {tensor.layout}: "
        f"checkpoints take dense tensors with memory; {hint}"
    )


def block_of(tensor: torch.Tensor, placed: Placed | None, name: str) -> Block:
    """Return what this rank holds of a tensor; all of it where that is not placed."""
    check_tensor(tensor, name)
    spec = str(tensor.dtype).removeprefix("torch.")
    try:
        dtype = np.dtype(dtype_of_spec(spec))
    except CheckpointError:
        raise DTypeError(
            f"tensors of {tensor.dtype} cannot be saved; convert them, or save what they are made "
            "of"
        ) from None
    plain = tensor.detach()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    if dtype.names:
        plain = plain.view(_BITS[plain.element_size()])
    if placed is None:
        pieces: list[Piece] = [TensorPiece(boxes.whole(plain.shape), plain)]
        return Block(spec, plain.shape, pieces, is_same=True)
    if placed.layout.has_partial:
        raise LayoutError(
            f"{name} is placed as {placed.layout}: reduce it before it is saved or filled, by "
            "dt.redistribute"
        )
    pieces = [TensorPiece(box, box_view(plain, own)) for box, own in list_boxes(placed)]
    layout = placed.layout
    return Block(spec, layout.shape, pieces, layout, is_fused=bool(placed.parts))


class Tensors(Adapter):
    """Tensors that stand by themselves, placed or the same on every rank."""

    def save(self, value: torch.Tensor, plan: SavePlan, name: str) -> Node:
        return save_value(value, placed_of(value), plan, name)

    def load(self, value: torch.Tensor, plan: LoadPlan, name: str) -> Finish:
        fill_tensor(value, placed_of(value), plan, name)
        return lambda: value


def save_value(value: Any, placed: Placed | None, plan: SavePlan, name: str) -> Node:
    """Return the node of a tensor, placed or not, or of any other value."""
    if not isinstance(value, torch.Tensor):
        return plan.node(value, name)
    kind = "tensor" if placed is None else "tensor block"
    return plan.array(value, block_of(value, placed, name), name, kind)


def fill_tensor(tensor: torch.Tensor, placed: Placed | None, plan: LoadPlan, name: str) -> None:
    """Let a tensor be filled, in its own memory."""
    if tensor.is_conj() or tensor.is_neg():
        raise ArgumentTypeError(
            f"{name} is a lazily conjugated or negated tensor, which cannot be filled; pass "
            "tensor.resolve_conj().resolve_neg()"
        )
    plan.fill(name, block_of(tensor, placed, name))


def make_tensor(entry: Entry, plan: LoadPlan, placed: Placed | None = None) -> Finish:
    """Make a tensor that every rank has, or this rank's block of one."""
    shape = entry.shape if placed is None else placed.layout.local_shape()
    tensor = torch.empty(shape, dtype=torch_dtype(entry))
    if placed is not None:
        place(tensor, *placed)
    plan.fill_entry(entry, block_of(tensor, placed, entry.name))
    return lambda: tensor


class Modules(Adapter):
    """Modules, parallelized in any way or not at all."""

    def save(self, value: nn.Module, plan: SavePlan, name: str) -> Node:
        """Save parameters, persistent buffers and extra states; a shared one once."""
        pairs = [
            [key, save_value(*entry, plan, join_name(name, key))]
            for key, entry in ModuleState(value).entries.items()
        ]
        return {"object": type(value).__qualname__, "of": {"dict": pairs}}

    def load(self, value: nn.Module, plan: LoadPlan, name: str) -> Finish:
        """Fill parameters and buffers in place."""
        fillable = {id(one) for one in (*value.parameters(), *value.buffers())}
        extra: list[tuple[nn.Module, Finish]] = []
        entries = ModuleState(value).entries
        names: dict[int, list[str]] = {}  # of each value, several for a tied one
        for key, (one, _) in entries.items():
            names.setdefault(id(one), []).append(key)
        for key, (one, placed) in entries.items():
            full = join_name(name, key)
            owner, _, last = key.rpartition(".")
            if last == _EXTRA:
                made = plan.saved_value(full)
                if made is not None:
                    extra.append((value.get_submodule(owner), made))
            elif id(one) not in fillable:
                raise ArgumentError(
                    f"{full} is no parameter or buffer of the {type(value).__name__}, but made "
                    "by a hook of its state_dict(), so that it cannot be filled; load by "
                    "dt.load_state_dict"
                )
            else:
                # Of the names of a tied tensor one suffices.
                tied = [join_name(name, other) for other in names[id(one)]]
                there = [other for other in tied if plan.has(other)]
                if full in (there or tied[:1]):
                    fill_tensor(one, placed, plan, full)

        def finish() -> Any:
            for module, made in extra:
                module.set_extra_state(made())
            return value

        return finish


class Optimizers(Adapter):
    """Optimizers whose states have the shape of the parameter, or are the same on every rank."""

    def save(self, value: Optimizer, plan: SavePlan, name: str) -> Node:
        """Save states and hyperparameters."""
        own = OptimizerState(value, _modules_in(plan.state))
        states: dict[str, list[Any]] = {}
        for _, parameter, key, entry in own.entries():
            start = join_name(join_name(name, "state"), parameter)
            node = save_value(*entry, plan, join_name(start, key))
            states.setdefault(parameter, []).append([encode_key(key, start), node])
        return {
            "object": type(value).__qualname__,
            "of": {
                "dict": [
                    ["state", {"dict": [[p, {"dict": found}] for p, found in states.items()]}],
                    ["param_groups", plan.node(own.groups, join_name(name, "param_groups"))],
                ]
            },
        }

    def load(self, value: Optimizer, plan: LoadPlan, name: str) -> Finish:
        """Fill states, making those that are not there yet, and set hyperparameters."""
        own = OptimizerState(value, _modules_in(plan.state))
        start = join_name(name, "param_groups")
        saved_groups = plan.saved_value(start)
        made: dict[torch.Tensor, dict[Any, Finish]] = {}
        for parameter, key in own.names.items():
            for what, full in plan.children(join_name(join_name(name, "state"), key)):
                one = _fill_state(value, parameter, what, plan, full)
                if one is not None:
                    made.setdefault(parameter, {})[what] = one
        if saved_groups is not None:
            names = [plan.value(join_name(group, "params")) for _, group in plan.children(start)]
            wrong = own.differing_groups(names)
            if wrong:
                plan.refuse_if_strict(
                    f"{name} was saved with {wrong}; make the optimizer with the same groups"
                )
                try:
                    own.match_groups([{"params": one} for one in names])
                except StateDictError as error:
                    plan.refuse(f"{name}: {error}")

        def finish() -> Any:
            states = {p: {k: m() for k, m in one.items()} for p, one in made.items()}
            own.load(states, None if saved_groups is None else saved_groups())
            return value

        return finish


def _modules_in(state: Any, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of a state, with their names."""
    if isinstance(state, nn.Module):
        yield name, state
    elif isinstance(state, Mapping):
        for key, value in state.items():
            yield from _modules_in(value, join_name(name, key))
    elif isinstance(state, (list, tuple)):
        for index, value in enumerate(state):
            yield from _modules_in(value, join_name(name, index))


def _fill_state(
    optimizer: Optimizer, parameter: torch.Tensor, what: Any, plan: LoadPlan, name: str
) -> Finish | None:
    """Let a state be filled: the tensor that is there, if it has the dtype, or a new one."""
    found = plan.value(name) if plan.is_array(name) else None
    if found is None:
        return plan.saved_value(name)
    placed = own_placed(parameter)
    full = tuple(parameter.shape) if placed is None else placed.layout.shape
    like = bool(found.shape) and found.shape == full
    shape = tuple(parameter.shape) if like else found.shape
    dtype = torch_dtype(found)
    tensor = optimizer.state.get(parameter, {}).get(what)
    if not isinstance(tensor, torch.Tensor) or (tensor.shape, tensor.dtype) != (shape, dtype):
        if like:
            tensor = torch.empty_like(parameter, dtype=dtype, requires_grad=False)
        else:
            tensor = torch.empty(shape, dtype=dtype, device=parameter.device if shape else "cpu")
    fill_tensor(tensor, placed if like else None, plan, name)
    return lambda: tensor


def register_all() -> None:
    """Let `da.checkpoint` take what torch has; done when the adapters are imported."""
    register(torch.Tensor, Tensors())
    register(
        torch.Generator,  # these must be alike on all ranks
        StateAdapter(read_state, torch.Generator.set_state, "torch.Generator"),
    )
    register(nn.Module, Modules())
    register(Optimizer, Optimizers())
    register_maker("tensor", make_tensor)
    register_maker(  # in the default placements on the default mesh
        "tensor block",
        lambda entry, plan: make_tensor(entry, plan, Placed(Placing().layout(entry.shape))),
    )
