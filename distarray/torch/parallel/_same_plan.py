"""Whether all ranks parallelize the same modules in the same way, before anything else is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from torch import nn

from distarray.comm import DeviceMesh, all_gather_checked, by_answer, token, unrecorded
from distarray.errors import MismatchError
from distarray.layout import Layout
from distarray.torch._layouts import placed_of
from distarray.torch.parallel._style import ParallelStyle

Chosen = Sequence[tuple[str, nn.Module, ParallelStyle]]
"""Names, modules and their styles, in the order in which the styles are applied."""


def chosen_alike(
    mesh: DeviceMesh, src_data_rank: int | None, choose: Callable[[], Chosen]
) -> Chosen:
    """Return what ``choose()`` returns, once all ranks have chosen the same (collective).

    Parameters
    ----------
    mesh
        Over whose ranks.
    src_data_rank
        From where parameters come, which must be the same as well.
    choose
        Checks this rank's arguments. What it raises on any rank is raised on all.

    Raises
    ------
    MismatchError
        Modules, the shapes and dtypes of their own parameters, styles or what these are made with
        differ between ranks.
    """
    chosen: list[tuple[str, nn.Module, ParallelStyle]] = []

    def say() -> int:
        chosen.extend(choose())
        return token(_described(chosen), src_data_rank)

    with unrecorded():
        if len(set(all_gather_checked(mesh, "parallelize_module", say))) == 1:
            return chosen
        comm = mesh.communicator()
        everyone = comm.all_gather_object((f"src_data_rank={src_data_rank}", *_described(chosen)))
    for said in zip_longest(*everyone, fillvalue="nothing more"):
        if len(set(said)) > 1:
            break
    raise MismatchError(
        "parallelize_module: the ranks would parallelize different modules, or in different ways: "
        f"{by_answer(said, comm.world_ranks)}. Every rank must pass the same model and the same "
        "plan"
    )


def _described(chosen: Chosen) -> list[str]:
    return [
        f"{name or 'the module'} ({type(module).__name__} of {_parameters(module)}) by "
        f"{_style(style)}"
        for name, module, style in chosen
    ]


def _parameters(module: nn.Module) -> str:
    told = [
        f"{name} {_shape(parameter)} {str(parameter.dtype).removeprefix('torch.')}"
        f"{' on meta' if parameter.is_meta else ''}"
        for name, parameter in module.named_parameters(recurse=False)
    ]
    return ", ".join(told) or "no parameters"


def _shape(parameter: Any) -> tuple[int, ...] | str:
    placed = placed_of(parameter)
    if placed is not None:  # blocks differ
        return placed.layout.shape
    try:
        return tuple(parameter.shape)
    except RuntimeError:  # it has none yet
        return "without a shape"


def _style(style: ParallelStyle) -> str:
    told = [f"{name}={_value(value)}" for name, value in sorted(vars(style).items())]
    return f"{type(style).__name__}({', '.join(told)})"


def _value(value: Any) -> str:
    """Return what is the same in every process where the value is; its type, where that is all."""
    if isinstance(value, ParallelStyle):
        return _style(value)
    if isinstance(value, DeviceMesh):  # which ranks it has may differ
        return f"a mesh of {value.shape} {value.axis_names}"
    if isinstance(value, Layout):
        return f"{value.placements} of {value.shape}"
    if isinstance(value, Mapping):
        return _joined(f"{_value(k)}: {_value(v)}" for k, v in value.items())
    if isinstance(value, set | frozenset):
        return _joined(sorted(map(_value, value)))
    if isinstance(value, list | tuple):
        return _joined(map(_value, value))
    # The default of object, and what functions have, would name an address.
    plain = type(value).__repr__ is not object.__repr__ and " at 0x" not in (told := repr(value))
    return told if plain else getattr(value, "__qualname__", type(value).__qualname__)


def _joined(items: Iterable[str]) -> str:
    return f"({', '.join(items)})"
