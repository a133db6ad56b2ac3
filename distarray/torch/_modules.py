"""State beside parallelized modules, and the paths that errors begin with."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import zip_longest
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from distarray.comm import DeviceMesh, by_answer
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    DistArrayError,
    LayoutError,
    MismatchError,
)
from distarray.torch._compat import REPLACING, buffers_of, parameters_of
from distarray.torch._layouts import Placed, TensorMap, is_placed, own_placed, place

_NAME = "_distarray"


@dataclass(slots=True)
class State:
    """Beside a module, in its ``__dict__``: it is copied with the module."""

    path: str = ""  # its name in the model that was parallelized; "" for the model itself
    moving: str = ""  # what its moves are for, which ranks must agree on; "" for none
    placed: dict[str, Placed] = field(default_factory=dict)  # its own parameters and buffers
    styles: list[tuple[Any, Any]] = field(default_factory=list)  # and over which mesh
    summed: dict[str, DeviceMesh] = field(default_factory=dict)
    """Over which meshes gradients of its own parameters are added up."""
    owner: weakref.ref[nn.Module] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> State:
        owner = None if self.owner is None else self.owner()
        for name, placed in self.placed.items():
            tensor = None if owner is None else _own_tensor(owner, name)
            if tensor is not None:
                place(copy.deepcopy(tensor, memo), *placed)
        # Layouts and meshes are values.
        own = dict(self.placed), list(self.styles), dict(self.summed)
        return State(self.path, self.moving, *own)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.styles:
            raise ArgumentTypeError(
                f"{self.path or 'the module'} has been parallelized, and cannot be pickled, since "
                "its mesh cannot; save it by da.checkpoint, or by dt.state_dict"
            )
        return State, (self.path,)


def state_of(module: nn.Module) -> State:
    """Return what is known beside a module, nothing at first."""
    found: State | None = module.__dict__.get(_NAME)
    if found is None:
        found = module.__dict__[_NAME] = State()
    if found.owner is None:
        found.owner = weakref.ref(module)
    return found


def _own_tensor(module: nn.Module, name: str) -> torch.Tensor | None:
    """Return a parameter or buffer of a module itself."""
    own: torch.Tensor | None = parameters_of(module).get(name)
    return buffers_of(module).get(name) if own is None else own


def watch_replacements(module: nn.Module) -> None:
    """Know the tensors that ``to``, ``to_empty`` and loading put in the place of a module's own."""
    for name in REPLACING:
        module.__dict__.setdefault(name, MethodType(_watch(name), module))


_successors: TensorMap[tuple[weakref.ref[nn.Module], str]] = TensorMap()
"""Where another parameter has taken the place of one first, of the modules that share it."""


@cache
def _watch(method: str) -> Callable[..., Any]:
    def replace(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        before = {name: own for name, own in parameters_of(module).items() if own is not None}
        with ExitStack() as stack:
            if torch.__future__.get_swap_module_params_on_conversion():
                stack.enter_context(TensorMap.unreferenced(list(before.values())))
            result = getattr(type(module), method)(module, *args, **kwargs)
        for name, old in before.items():
            new: Any = parameters_of(module)[name]
            if new is not old:  # what was shared stays shared
                holder, there = _successors.get(old) or (weakref.ref(module), name)
                first = holder()
                known = None if first is None else parameters_of(first).get(there)
                if known is not None and (known.dtype, known.device) == (new.dtype, new.device):
                    parameters_of(module)[name] = known
                _successors.set(old, (holder, there))
        place_parameters(module)
        return result

    replace.__name__ = method  # by which pickle finds it: a copy has the method of its class
    return replace


def place_parameters(module: nn.Module) -> None:
    """Say again how the module's parameters and buffers are placed, should they be new tensors."""
    for name, placed in state_of(module).placed.items():
        own = _own_tensor(module, name)
        if own is None or is_placed(own):
            continue
        if tuple(own.shape) == placed.layout.local_shape():
            place(own, *placed)


def check_own(module: nn.Module) -> None:
    """Raise where a module has something else in the place of a distributed tensor than its block.

    Tensors of a block's shape that ``torch.func.functional_call`` puts there are taken for blocks.
    """
    parameters, buffers = parameters_of(module), buffers_of(module)
    for name, placed in state_of(module).placed.items():
        own = _own_tensor(module, name)
        if own is None and name not in parameters and name not in buffers:
            old = f"{name}_g" in parameters or f"{name}_orig" in parameters
            if old or parametrize.is_parametrized(module, name):
                raise ArgumentError(
                    f"parameter {name!r} is computed from others since the module was parallelized "
                    "(a parametrization, weight_norm, spectral_norm), from this rank's block "
                    "alone; remove that, by torch.nn.utils.parametrize.remove_parametrizations for "
                    "instance"
                )
        elif own is not None and own_placed(own) is None:
            local = placed.layout.local_shape()
            if isinstance(own, nn.Parameter) or (name in buffers and own.shape != local):
                raise LayoutError(
                    f"{name!r} has been replaced since it was cut, by a tensor of shape "
                    f"{tuple(own.shape)}; it was this rank's block, of shape {local}, of "
                    f"{placed.layout}. Replace and resize (resize_token_embeddings) before "
                    "parallelize_module or fully_shard; give other values by parameter.copy_ or "
                    "dt.load_state_dict; or say that it is a block, by "
                    "dt.place_like(new, the parameter that it replaces)"
                )
            if tuple(own.shape) == local and type(parameters) is dict:
                place(own, *placed)  # and no whole of `fully_shard`, which has such shapes, too


def list_holders(module: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """Return which modules inside hold each parameter, and under which names."""
    found: dict[int, list[tuple[nn.Module, str]]] = {}
    for child in module.modules():
        for name, parameter in parameters_of(child).items():
            if parameter is not None:
                found.setdefault(id(parameter), []).append((child, name))
    return list(found.values())


def check_usable(name: str, parameter: torch.Tensor) -> None:
    """Raise for a parameter that cannot be cut: without a shape, or made in the inference mode.

    Outside of that mode torch cannot use it.
    """
    if is_lazy(parameter):
        raise ArgumentError(f"parameter {name!r} has no shape yet; run the module once beforehand")
    if parameter.is_inference() and not torch.is_inference_mode_enabled():
        raise ArgumentError(
            f"parameter {name!r} was made under torch.inference_mode(), and cannot be used outside "
            "once it is cut; make the module outside, or cut and call it inside as well"
        )


def check_ungraded(name: str, parameter: torch.Tensor) -> None:
    """Raise for a parameter that has a gradient of its full shape."""
    if parameter.grad is not None:
        raise ArgumentError(
            f"parameter {name!r} has a gradient already, of the full shape; cut and shard before "
            "the first backward pass, or after zero_grad()"
        )


def check_alike(what: str, told: Sequence[Any], mesh: DeviceMesh, remedy: str) -> None:
    """Raise where the ranks of a mesh tell different things."""
    if any(one != told[0] for one in told):
        said = by_answer(told, mesh.communicator().world_ranks)
        raise MismatchError(f"{what}: {said}; {remedy}")


def check_described_alike(what: str, told: Sequence[Sequence[str]], mesh: DeviceMesh) -> None:
    """Raise where ranks describe their modules differently, by the first difference."""
    for said in zip_longest(*told, fillvalue="nothing more"):
        check_alike(f"{what} on every rank of {mesh}", said, mesh, "build it alike everywhere")


@contextmanager
def prefix_errors(where: str) -> Iterator[None]:
    """Begin the message of an error from inside with what it is about."""
    try:
        yield
    except DistArrayError as error:
        _prefix(error, where)
        raise


@contextmanager
def locate_errors(module: nn.Module) -> Iterator[None]:
    """Begin the message of an error from inside with the module's path and class."""
    try:
        yield
    except DistArrayError as error:
        locate(error, module)
        raise


def locate(error: DistArrayError, module: nn.Module) -> None:
    """Begin an error's message with the innermost module that it comes from."""
    if not getattr(error, "located", False):
        _prefix(error, f"{state_of(module).path or 'the module'} ({type(module).__name__})")
        error.located = True  # type: ignore[attr-defined]


def _prefix(error: DistArrayError, where: str) -> None:
    if error.args:
        error.args = (f"{where}: {error.args[0]}", *error.args[1:])
