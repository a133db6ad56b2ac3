"""Styles that bring what goes into a module, or comes out of it, to where it is needed.

Tensors may come inside of tuples, lists, dictionaries, named tuples and dataclasses. A layout for
each comes in containers of the same form: sequences for tuples and lists, mappings of names for
dictionaries, dataclasses and (if one likes) named tuples. None leaves alone what is in its place,
of whatever form.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from distarray.comm import DeviceMesh
from distarray.errors import ArgumentError, ArgumentTypeError
from distarray.layout import Layout, Placement, Replicate, Shard, suggest_for_torch
from distarray.torch._buffers import check_travels
from distarray.torch._layouts import check_mesh, layout_from
from distarray.torch._modules import prefix_errors
from distarray.torch._moves import move
from distarray.torch._routes import routes_between
from distarray.torch.parallel._arrivals import check_arrival
from distarray.torch.parallel._forward_wrapper import extend
from distarray.torch.parallel._gradient_sums import prepare_input
from distarray.torch.parallel._slices import keep_shards, note_gathered
from distarray.torch.parallel._style import ParallelStyle


class PrepareModuleInput(ParallelStyle):
    """Redistribute the inputs of a module before its forward.

    Parameters
    ----------
    input_layouts
        How positional arguments arrive, one entry for each: a placement (on a mesh of several axes
        a sequence of placements, one for each); for a tuple, list, dictionary, named tuple or
        dataclass a container of such; None for what is left alone. A single placement serves
        for a single argument. An argument that is None is left alone.
    desired_input_layouts
        How they go on, in the same form.
    input_kwarg_layouts, desired_input_kwarg_layouts
        The same for keyword arguments, by name; those not named, or not passed, are left alone.
    use_local_output
        For compatibility: tensors are plain always.

    Notes
    -----
    The gradient of an input that goes on replicated is the same on every rank, unless the module
    uses the input for something else on each rank. `ColwiseParallel` and its kin know that
    they do, and a use of your own says so by ``dt.redistribute(x, mesh, [Replicate()],
    [Replicate()], grad_placements=[Partial()])``. So query, key and value projections in a module
    whose input is gathered here need one all-gather forward, and one reduce-scatter of the sum of
    their gradients backward, instead of one collective for each; other uses of the same input,
    in a residual connection for instance, are right beside them. This holds where they take the
    very tensor that the module is called with, and ``backward()`` is called for all leaves;
    otherwise each reduces its own gradient. Of an input of 1 MiB and more a rank keeps its shard
    alone between forward and backward, where it is gathered once more.

    Examples
    --------
    >>> class Gate(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.gate, self.up = nn.Linear(4, 6), nn.Linear(4, 6)
    ...     def forward(self, x):
    ...         return self.gate(x).sigmoid() * self.up(x)
    >>> plan = {
    ...     "": dt.PrepareModuleInput(
    ...         input_layouts=da.Shard(1), desired_input_layouts=da.Replicate()),
    ...     "gate": dt.ColwiseParallel(),
    ...     "up": dt.ColwiseParallel(),
    ... }
    >>> def gathers():
    ...     mesh = da.default_mesh()
    ...     layer = dt.parallelize_module(Gate(), mesh, plan)
    ...     x = dt.distribute_tensor(torch.ones(2, 5, 4), mesh, [da.Shard(1)])
    ...     with da.CommLog() as log:
    ...         y = layer(x)
    ...     return log.count("all_gather"), [*y.shape]
    >>> da.testing.simulate(2, gathers)  # once for both layers
    [(1, [2, 5, 3]), (1, [2, 5, 3])]
    """

    def __init__(
        self,
        *,
        input_layouts: Any = None,
        desired_input_layouts: Any = None,
        input_kwarg_layouts: Mapping[str, Any] | None = None,
        desired_input_kwarg_layouts: Mapping[str, Any] | None = None,
        use_local_output: bool = False,
    ) -> None:
        del use_local_output
        _check_both(input_layouts, desired_input_layouts, "input_layouts")
        _check_both(input_kwarg_layouts, desired_input_kwarg_layouts, "input_kwarg_layouts")
        self.input_layouts = input_layouts
        self.desired_input_layouts = desired_input_layouts
        self.input_kwarg_layouts = dict(input_kwarg_layouts or {})
        self.desired_input_kwarg_layouts = dict(desired_input_kwarg_layouts or {})

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> None:
        """Let the module's arguments be moved."""
        check_mesh(mesh)
        _check_names(module, self.input_kwarg_layouts)

        def prepare(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            given: Sequence[Any] = [None] * len(args)
            wanted = given
            if self.input_layouts is not None:
                given = _list_entries(self.input_layouts, mesh)
                wanted = _list_entries(self.desired_input_layouts, mesh)
            if len(given) != len(args):
                raise ArgumentError(
                    f"input_layouts={self.input_layouts!r} is for {len(given)} positional "
                    f"arguments, but forward was called with {len(args)}; give one entry for each, "
                    "None for what is left alone, and input_kwarg_layouts for keyword arguments"
                )
            layouts: dict[Any, Any] = dict(enumerate(zip(given, wanted, strict=True)))
            for name, layout in self.input_kwarg_layouts.items():
                layouts[name] = layout, self.desired_input_kwarg_layouts[name]
            values: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
            checked = {}
            for key, value in values.items():
                keyword = "input_layouts" if isinstance(key, int) else "input_kwarg_layouts"
                both: tuple[Any, Any] = layouts.get(key, (None, None))
                checked[key] = _check_tensors(value, *both, f"input {key!r}", mesh, keyword)
            moved = {key: bring() for key, bring in checked.items()}
            return tuple(map(moved.get, range(len(args)))), {name: moved[name] for name in kwargs}

        self.on_input(module, prepare)
        extend(module, arounds=keep_shards)


class PrepareModuleOutput(ParallelStyle):
    """Redistribute the outputs of a module after its forward.

    Parameters
    ----------
    output_layouts
        How the output leaves forward: a placement, or for several outputs one entry for each; see
        `PrepareModuleInput`.
    desired_output_layouts
        How it goes on, in the same form.
    use_local_output
        For compatibility: tensors are plain always.

    Examples
    --------
    >>> style = dt.PrepareModuleOutput(
    ...     output_layouts=da.Shard(1), desired_output_layouts=da.Replicate())
    >>> def shape():
    ...     mesh = da.default_mesh()
    ...     norm = dt.parallelize_module(nn.LayerNorm(4), mesh, dt.SequenceParallel())
    ...     dt.parallelize_module(norm, mesh, style)
    ...     x = dt.distribute_tensor(torch.ones(2, 5, 4), mesh, [da.Shard(1)])
    ...     return [*norm(x).shape]
    >>> da.testing.simulate(2, shape)
    [[2, 5, 4], [2, 5, 4]]
    """

    def __init__(
        self, *, output_layouts: Any, desired_output_layouts: Any, use_local_output: bool = True
    ) -> None:
        del use_local_output
        _check_both(output_layouts, desired_output_layouts, "output_layouts")
        self.output_layouts = output_layouts
        self.desired_output_layouts = desired_output_layouts

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> None:
        """Let the module's outputs be moved."""
        check_mesh(mesh)

        if self.output_layouts is None:
            return
        given = _list_entries(self.output_layouts, mesh)
        wanted = _list_entries(self.desired_output_layouts, mesh)
        named = len(given) == 1 and isinstance(given[0], Mapping)

        def prepare(_: nn.Module, output: Any) -> Any:
            layouts: tuple[Any, Any] = given, wanted
            if named or not isinstance(output, tuple | list):
                if len(given) != 1:
                    raise ArgumentError(
                        f"output_layouts={self.output_layouts!r} is for {len(given)} outputs, but "
                        f"forward returned one {type(output).__name__}; give one entry for each "
                        "output"
                    )
                layouts = given[0], wanted[0]
            return _check_tensors(output, *layouts, "the output", mesh, "output_layouts")()

        self.on_output(module, prepare)


class PrepareModuleInputOutput(ParallelStyle):
    """Redistribute the inputs of a module before its forward, and the outputs after it.

    Parameters
    ----------
    input_layouts, desired_input_layouts, input_kwarg_layouts, desired_input_kwarg_layouts
        See `PrepareModuleInput`.
    output_layouts, desired_output_layouts
        See `PrepareModuleOutput`.
    use_local_input, use_local_output
        For compatibility: tensors are plain always.

    Examples
    --------
    >>> class Flip(nn.Module):
    ...     def forward(self, x):
    ...         return x.flip(0)
    >>> style = dt.PrepareModuleInputOutput(
    ...     input_layouts=da.Shard(0), desired_input_layouts=da.Replicate(),
    ...     output_layouts=da.Replicate(), desired_output_layouts=da.Shard(0))
    >>> def flip():
    ...     mesh = da.default_mesh()
    ...     x = dt.distribute_tensor(torch.arange(4), mesh, [da.Shard(0)])
    ...     return dt.parallelize_module(Flip(), mesh, style)(x)
    >>> da.testing.simulate(2, flip)
    [tensor([3, 2]), tensor([1, 0])]
    """

    def __init__(
        self,
        *,
        input_layouts: Any = None,
        desired_input_layouts: Any = None,
        input_kwarg_layouts: Mapping[str, Any] | None = None,
        desired_input_kwarg_layouts: Mapping[str, Any] | None = None,
        use_local_input: bool = False,
        output_layouts: Any,
        desired_output_layouts: Any,
        use_local_output: bool = True,
    ) -> None:
        self.prepare_module_input = PrepareModuleInput(
            input_layouts=input_layouts,
            desired_input_layouts=desired_input_layouts,
            input_kwarg_layouts=input_kwarg_layouts,
            desired_input_kwarg_layouts=desired_input_kwarg_layouts,
            use_local_output=use_local_input,
        )
        self.prepare_module_output = PrepareModuleOutput(
            output_layouts=output_layouts,
            desired_output_layouts=desired_output_layouts,
            use_local_output=use_local_output,
        )

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> None:
        """Let the module's arguments and outputs be moved."""
        self.prepare_module_input.apply(module, mesh)
        self.prepare_module_output.apply(module, mesh)


# --- layouts -------------------------------------------------------------------------------------


def _check_both(given: Any, wanted: Any, name: str) -> None:
    """Raise unless both are given and have the same form, or neither is."""
    if (given is None) != (wanted is None):
        raise ArgumentError(
            f"{name}={given!r} and desired_{name}={wanted!r}: pass both, or neither"
        )
    _check_alike(given, wanted, name)


def _check_names(module: nn.Module, layouts: Mapping[str, Any]) -> None:
    """Raise where forward has no argument of a name."""
    if not layouts:
        return
    known = inspect.signature(type(module).forward).parameters
    if any(p.kind is p.VAR_KEYWORD for p in known.values()):
        return
    for name in layouts:
        if name not in list(known)[1:]:
            raise ArgumentError(
                f"input_kwarg_layouts names {name!r}, but forward takes {list(known)[1:]}"
            )


def _check_alike(given: Any, wanted: Any, name: str) -> None:
    """Raise unless layouts and the desired ones have the same form."""
    if wanted is None:
        return
    if given is None:
        raise ArgumentError(
            f"desired_{name} is {wanted!r}, but {name} is None: say how the tensor arrives, too"
        )
    parts, others = _layouts_of_parts(given), _layouts_of_parts(wanted)
    if isinstance(given, Placement) != isinstance(wanted, Placement) or set(parts) != set(others):
        raise ArgumentError(
            f"{name} and desired_{name} must have the same form, with one entry for each tensor or "
            f"None; they are {given!r} and {wanted!r}"
        )
    for key, part in parts.items():
        _check_alike(part, others[key], f"{name}[{key!r}]")


def _list_entries(layouts: Any, mesh: DeviceMesh) -> tuple[Any, ...]:
    """Return one entry for each value of several layouts, of which a single one may stand alone."""
    alone = isinstance(layouts, Placement | Mapping) or (mesh.ndim > 1 and _is_one(layouts, mesh))
    return (layouts,) if alone else tuple(layouts)


def _is_one(layout: Any, mesh: DeviceMesh) -> bool:
    """Tell whether this is the layout of one tensor, a placement for each mesh axis."""
    if isinstance(layout, Placement):
        return mesh.ndim == 1
    return (
        isinstance(layout, Sequence)
        and len(layout) == mesh.ndim
        and all(isinstance(p, Placement) for p in layout)
    )


def _placements_of(layout: Any, mesh: DeviceMesh) -> tuple[Placement, ...]:
    """Return the placements of one tensor, one for each mesh axis, or raise."""
    if not _is_one(layout, mesh):
        raise ArgumentTypeError(
            f"its layout {layout!r} must be "
            + ("one placement" if mesh.ndim == 1 else f"a sequence of {mesh.ndim} placements")
            + f", as {mesh} has {mesh.ndim} mesh ax{'is' if mesh.ndim == 1 else 'es'}"
        )
    return (layout,) if isinstance(layout, Placement) else tuple(layout)


# --- tensors --------------------------------------------------------------------------------------


def _check_tensors(
    value: Any, given: Any, wanted: Any, where: str, mesh: DeviceMesh, keyword: str
) -> Callable[[], Any]:
    """Raise what is wrong with the tensors in a value, before any is moved; return what moves them.

    Errors begin with ``where``; ``given``, which the style takes by ``keyword``, and ``wanted`` are
    layouts of the same form.
    """
    if value is None or given is None or wanted is None:
        return lambda: value
    if isinstance(value, torch.Tensor):
        return _check_tensor(value, given, wanted, where, mesh, keyword)
    parts = _parts_of(value, given)
    if parts is None:
        raise ArgumentTypeError(
            f"{where} is of type {type(value).__name__}, where a layout {given!r} is declared; it "
            "must be a tensor or a container of tensors; None as its layout leaves it alone"
        )
    _check_form(parts, given, where)
    given, wanted = _layouts_of_parts(given), _layouts_of_parts(wanted)
    checked = {}
    for key, part in parts.items():
        layouts = given.get(key), wanted.get(key)
        checked[key] = _check_tensors(part, *layouts, f"{where}[{key!r}]", mesh, keyword)

    def bring() -> Any:
        moved = {key: bring_part() for key, bring_part in checked.items()}
        changed = {key: part for key, part in moved.items() if part is not parts[key]}
        return _rebuild(value, moved, changed) if changed else value

    return bring


def _check_tensor(
    x: torch.Tensor, given: Any, wanted: Any, where: str, mesh: DeviceMesh, keyword: str
) -> Callable[[], torch.Tensor]:
    """Raise what is wrong with a tensor; return what brings it to where it is needed."""
    with prefix_errors(where):
        check_travels(x)
        declared = Layout(mesh, _placements_of(given, mesh), x.shape).placements
        desired = Layout(mesh, _placements_of(wanted, mesh), x.shape).placements
        moves = desired != declared
        placed = check_arrival(x, mesh, declared, moves=moves, name="", keyword=keyword)

    def bring() -> torch.Tensor:
        with prefix_errors(where):
            src = layout_from(x, mesh, declared) if placed is None else placed.layout
            dst = Layout(mesh, desired, src.shape) if moves else src
            there, back = routes_between(src, dst, None, x.requires_grad)
            if mesh.ndim > 1 or not isinstance(dst.placements[0], Replicate):
                return move(x, there, back)
            result = prepare_input(x, there, back)
            if isinstance(src.placements[0], Shard):
                note_gathered(result, x, src)
            return result

    return bring


def _parts_of(value: Any, given: Any) -> dict[Any, Any] | None:
    """Return the parts of a container by their names or positions; None for what is none."""
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        if isinstance(given, Mapping) and hasattr(value, "_fields"):
            return dict(zip(value._fields, value, strict=True))
        return dict(enumerate(value))
    return None


def _check_form(parts: Mapping[Any, Any], given: Any, where: str) -> None:
    if isinstance(given, Mapping):
        unknown = [key for key in given if key not in parts]
        if not unknown:
            return
        found = f"{where} has no {', '.join(map(repr, unknown))}; it has {list(parts)}"
    elif isinstance(given, Placement):
        found = f"{where} has {len(parts)} parts, but one layout {given!r} is declared"
    elif len(given) != len(parts) or any(isinstance(key, str) for key in parts):
        found = f"{where} has the parts {list(parts)}, but {len(given)} layouts are declared"
    else:
        return
    raise ArgumentError(
        f"{found}; declare one for each part, in a container of the same form (a dictionary for "
        "parts with names), with None for a part to be left alone"
    )


def _layouts_of_parts(layout: Any) -> Mapping[Any, Any]:
    """Return the layouts in a container by the names or positions of its parts."""
    if isinstance(layout, Mapping):
        return layout
    if isinstance(layout, Placement):
        return {}
    if not isinstance(layout, Sequence):
        raise ArgumentTypeError(
            f"a layout is a placement, such as da.Shard(1), or a container of such, not {layout!r}"
            f"{suggest_for_torch(layout)}"
        )
    return dict(enumerate(layout))


def _rebuild(value: Any, parts: Mapping[Any, Any], changed: Mapping[Any, Any]) -> Any:
    """Return a container of the same kind with other parts, some of which have changed."""
    if isinstance(value, tuple):
        items = list(parts.values())
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    result = copy.copy(value)
    for key, part in changed.items():
        if isinstance(value, Mapping | list):
            result[key] = part
        else:
            object.__setattr__(result, key, part)  # also where the dataclass is frozen
    return result
