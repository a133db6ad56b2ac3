"""Plans: parallel styles for modules, by the names they have in a model."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from torch.nn.parameter import is_lazy

from distarray.comm import DeviceMesh, all_gather_checked, pause_logs
from distarray.core import check_position
from distarray.errors import ArgumentError, ArgumentTypeError, LayoutError
from distarray.layout import Layout, chunk
from distarray.torch._layouts import check_mesh, is_sharded, placed_of
from distarray.torch._modules import (
    check_described_alike,
    list_holders,
    locate_errors,
    state_of,
    watch_replacements,
)
from distarray.torch._shards import check_parts, shards
from distarray.torch.parallel._feature_parallel import ColwiseParallel
from distarray.torch.parallel._forward_wrapper import follow_layouts
from distarray.torch.parallel._gradient_sums import note_all_whole
from distarray.torch.parallel._parameters import values_from
from distarray.torch.parallel._prepare import (
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
)
from distarray.torch.parallel._style import ParallelStyle, twin_of_style

Plan = ParallelStyle | Mapping[str, ParallelStyle]
Chosen = Sequence[tuple[str, nn.Module, ParallelStyle]]
"""Names, modules and their styles, in the order in which the styles are applied."""


def parallelize_module(
    module: nn.Module, mesh: DeviceMesh, plan: Plan, *, src_data_rank: int | None = 0
) -> nn.Module:
    """Distribute a model's modules over a mesh, in place (collective over the mesh).

    Parameters
    ----------
    module
        The same on every rank. Parameters on the meta device stay there, as blocks: materialise
        them by ``module.to_empty(device="cpu")``, then load a state dict or initialise them, by
        ``reset_parameters`` or ``torch.nn.init``, from one seed on all ranks.
    mesh
        Usually of one axis; ``mesh["tp"]`` takes one out of a larger mesh.
    plan
        A style for the module itself, or styles by module name. A name is compared part by part
        between dots and may hold the wildcards of ``fnmatch``: ``"layers.*.mlp.up"``. A later entry
        adds to an earlier one that matches the same module.
    src_data_rank
        Position in the mesh of the rank whose parameters all take. With None nothing is sent:
        the ranks have the same parameters already, which is checked.

    Returns
    -------
    torch.nn.Module
        ``module`` itself. All its parameters and outputs are plain tensors; `layout_of` knows how
        a parameter is placed.

    Raises
    ------
    ArgumentError
        A name matches no module.
    LayoutError
        A module is parallelized a second time in the same way, or two styles distribute one
        parameter. Modules that share a parameter would place it differently, or one of them is
        not in the plan. Or `fully_shard` was applied to it before: cut first, then shard. Or
        projections that are cut in units (heads) would leave a rank queries without their keys.
    MismatchError
        The ranks pass different plans, or the modules of the plan differ.

    Examples
    --------
    >>> def train():
    ...     model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5))
    ...     plan = {"0": dt.ColwiseParallel(), "2": dt.RowwiseParallel()}
    ...     dt.parallelize_module(model, da.default_mesh(), plan)
    ...     model(torch.ones(2, 4)).sum().backward()
    ...     return str(dt.layout_of(model[0].weight.grad))
    >>> da.testing.simulate(2, train)
    ['6x4 [axis0:S(0)]', '6x4 [axis0:S(0)]']
    """
    check_mesh(mesh)

    chosen: list[tuple[str, nn.Module, ParallelStyle]] = []

    def say() -> list[str]:
        if not isinstance(module, nn.Module):
            raise ArgumentTypeError(f"expected a torch.nn.Module, not {type(module).__name__}")
        if src_data_rank is not None:
            check_position(src_data_rank, mesh, "src_data_rank")
        chosen.extend(_matches(module, plan))
        for name, child, style in chosen:
            _check_whole(name, child, style)
        return [f"src_data_rank={src_data_rank}", *_describe(chosen)]

    with pause_logs():
        told = all_gather_checked(mesh, "parallelize_module", say)
    check_described_alike("parallelize_module needs the same model and plan", told, mesh)
    number = _counts[mesh] = _counts.get(mesh, 0) + 1
    for name, child in module.named_modules():
        state = state_of(child)
        state.path = state.path or name
        state.moving = state.path
        if all(over is mesh for _, over in state.styles):  # across meshes numbers may differ
            state.moving = f"{name or 'the module'} of parallelized model {number}"
    _check_heads(chosen, mesh)
    if not chosen:
        warnings.warn("parallelize_module was given an empty plan", stacklevel=2)
    with values_from(src_data_rank):
        for _, child, style in chosen:
            with locate_errors(child):
                _check_new(child, style, mesh)
                style.apply(child, mesh)
                state_of(child).styles.append((style, mesh))
    parallel = {id(child) for _, child, _ in chosen}
    for child in module.modules():
        if any(id(inner) in parallel for inner in child.modules() if inner is not child):
            follow_layouts(child)
    _check_shared(module)
    note_all_whole(list(module.modules()))
    return module


_counts: WeakKeyDictionary[DeviceMesh, int] = WeakKeyDictionary()
"""How many models have been parallelized over a mesh: what tells those of one class apart."""


def _matches(module: nn.Module, plan: Any) -> Chosen:
    """Return the modules of a plan, in the order of its entries."""
    if isinstance(plan, ParallelStyle):
        return [("", module, plan)]
    if not isinstance(plan, Mapping):
        raise ArgumentTypeError(
            f"plan is a ParallelStyle, or a mapping of module names to such, not "
            f"{type(plan).__name__}{twin_of_style(plan)}"
        )
    names = dict(module.named_modules(remove_duplicate=False))
    found = []
    for pattern, style in plan.items():
        if not isinstance(style, ParallelStyle):
            raise ArgumentTypeError(
                f"plan[{pattern!r}] is a {type(style).__name__}; it must be a ParallelStyle, "
                f"such as dt.ColwiseParallel(){twin_of_style(style)}"
            )
        matched = [name for name in names if fits(name, pattern)]
        if not matched:
            near = difflib.get_close_matches(pattern, names, 3, 0.5) or list(names)[1:6]
            raise ArgumentError(
                f"plan[{pattern!r}] matches no module of the {type(module).__name__}; it has for "
                f"instance {', '.join(map(repr, near))}"
            )
        first = {id(names[name]): name for name in reversed(matched)}  # one may have two names
        found += [(k, names[k], style) for k in matched if first[id(names[k])] == k]
    return found


def _check_new(module: nn.Module, style: ParallelStyle, mesh: DeviceMesh) -> None:
    """Raise if a style would move again what it moves already."""
    for applied, over in state_of(module).styles:
        if over is mesh and (applied is style or _are_alike(applied, style)):
            raise LayoutError(
                f"{type(style).__name__} was applied over {mesh} before: twice, it would "
                "move or reduce everything twice; parallelize a module once"
            )


def _check_whole(path: str, module: nn.Module, style: ParallelStyle) -> None:
    """Raise if a style would cut parameters that `fully_shard` has shared out."""
    if isinstance(style, PrepareModuleInput | PrepareModuleOutput | PrepareModuleInputOutput):
        return  # they move what goes in and out, around the gathering
    for name, parameter in module.named_parameters(recurse=False):
        if parameter in shards:
            raise LayoutError(
                f"{path or 'the module'} ({type(module).__name__}): {type(style).__name__} comes "
                f"too late, parameter {name!r} is a shard of fully_shard already; cut first, by "
                "parallelize_module, then fully_shard"
            )


def _check_heads(matched: Chosen, mesh: DeviceMesh) -> None:
    """Raise where queries would be on other ranks than the keys that they share.

    Of projections that one module holds, or that are fused into one, and are dealt out in units,
    every rank must get the same shard: the same part of all heads.
    """
    beside: dict[str, tuple[str, int, int, tuple[int, ...]]] = {}
    for name, child, style in matched:
        if not (isinstance(style, ColwiseParallel) and isinstance(child, nn.Linear)):
            continue
        placed = placed_of(child.weight)
        size = child.out_features if placed is None else placed.layout.shape[0]
        with locate_errors(child):
            parts, units = check_parts(size, style.parts, style.unit)
        for i, (part, unit) in enumerate(zip(parts, units, strict=True)):
            if unit == 1 or not part:
                continue
            count = part // unit
            offsets = chunk(count, (mesh.size,)).offsets
            said = f"part {i} of {name or 'the module'}" if len(parts) > 1 else name
            mine = said, count, unit, offsets
            other = beside.setdefault(name.rpartition(".")[0], mine)
            if all(a * other[1] == b * count for a, b in zip(offsets, other[3], strict=True)):
                continue
            many, few = sorted((mine, other), key=lambda one: -one[1])
            rank = next(
                r
                for r in range(mesh.size)
                if any(many[3][i] * few[1] != few[3][i] * many[1] for i in (r, r + 1))
            )
            raise LayoutError(
                f"{many[0]} is dealt out as {many[1]} units of {many[2]}, and {few[0]} as {few[1]} "
                f"of {few[2]}: of {mesh.size} ranks the one at position {rank} would have "
                f"{many[3][rank + 1] - many[3][rank]} of the one and "
                f"{few[3][rank + 1] - few[3][rank]} of the other, queries without their keys; deal "
                f"out the query in groups that share a key, unit={many[2] * many[1] // few[1]} "
                "there and in the RowwiseParallel that takes the output, or cut over fewer ranks"
            )


def _are_alike(one: ParallelStyle, other: ParallelStyle) -> bool:
    if type(one) is not type(other):
        return False
    try:
        return bool(vars(one) == vars(other))
    except (RuntimeError, ValueError, TypeError):  # they hold tensors or arrays
        return False


def fits(name: str, pattern: str) -> bool:
    """Tell whether a module's name is one of those that a pattern in a plan stands for."""
    if not name:  # the module itself, which is no part of a name
        return not pattern
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def _check_shared(module: nn.Module) -> None:
    """Raise where a module holds a block of a parameter that it does not know to be cut.

    Modules that share one go on doing so when they are converted.
    """
    for name, child in module.named_modules():
        for key, parameter in child.named_parameters(recurse=False):
            placed = placed_of(parameter)
            if placed is None or not is_sharded(placed.layout):
                continue
            if key not in state_of(child).placed:
                raise LayoutError(
                    f"{name or 'the module'} ({type(child).__name__}) shares its parameter "
                    f"{key!r}, which is placed as {placed.layout}, but has no style in the plan; "
                    "give it one that places the parameter alike"
                )
    for holders in list_holders(module):
        for child, _ in holders[1:] and holders:
            watch_replacements(child)


# --- same plan ------------------------------------------------------------------------------------


def _describe(chosen: Chosen) -> list[str]:
    """Return modules, shapes and dtypes of their own parameters, and what styles are made with."""
    return [
        f"{name or 'the module'} ({type(module).__name__} of {_parameters(module)}) by "
        f"{_style(style)}"
        for name, module, style in chosen
    ]


def _parameters(module: nn.Module) -> str:
    told = []
    for name, p in module.named_parameters(recurse=False):
        placed = placed_of(p)  # blocks differ
        own = "without a shape" if is_lazy(p) else tuple(p.shape)
        told.append(
            f"{name} {own if placed is None else placed.layout.shape} "
            f"{str(p.dtype).removeprefix('torch.')}{' on meta' if p.is_meta else ''}"
            f"{'' if p.requires_grad else ' without gradient'}"
        )
    return ", ".join(told) or "no parameters"


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
        return _join(f"{_value(k)}: {_value(v)}" for k, v in value.items())
    if isinstance(value, set | frozenset):
        return _join(sorted(map(_value, value)))
    if isinstance(value, list | tuple):
        return _join(map(_value, value))
    # The default of object, and what functions have, would name an address.
    plain = type(value).__repr__ is not object.__repr__ and " at 0x" not in (told := repr(value))
    return told if plain else getattr(value, "__qualname__", type(value).__qualname__)


def _join(items: Iterable[str]) -> str:
    return f"({', '.join(items)})"
