"""Styles that bring what goes into a module, or comes out of it, to where it is needed."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from distarray.comm import DeviceMesh
from distarray.errors import ArgumentError
from distarray.layout import Layout, Replicate
from distarray.torch._buffers import check_travels
from distarray.torch._layouts import check_mesh, layout_from
from distarray.torch._moves import move
from distarray.torch._routes import routes_between
from distarray.torch.parallel._arrivals import check_arrival, find_placed
from distarray.torch.parallel._containers import check_alike, entries, map_tensors, placements
from distarray.torch.parallel._gradient_sums import prepare_input
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
    otherwise each reduces its own gradient.

    Examples
    --------
    >>> dt.parallelize_module(attention, mesh, {
    ...     "": dt.PrepareModuleInput(
    ...         input_layouts=(da.Shard(1), None),
    ...         desired_input_layouts=(da.Replicate(), None)),
    ...     "wq": dt.ColwiseParallel(),
    ...     "wk": dt.ColwiseParallel(),
    ...     "wv": dt.ColwiseParallel(),
    ...     "wo": dt.RowwiseParallel(output_layouts=da.Shard(1))})
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
        _check_both(
            input_layouts, desired_input_layouts, ("input_layouts", "desired_input_layouts")
        )
        _check_both(
            input_kwarg_layouts,
            desired_input_kwarg_layouts,
            ("input_kwarg_layouts", "desired_input_kwarg_layouts"),
        )
        self.input_layouts = input_layouts
        self.desired_input_layouts = desired_input_layouts
        self.input_kwarg_layouts = dict(input_kwarg_layouts or {})
        self.desired_input_kwarg_layouts = dict(desired_input_kwarg_layouts or {})

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> None:
        """Let the module's arguments be moved."""
        check_mesh(mesh)
        _check_names(module, self.input_kwarg_layouts)

        def prepare(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            self._map(args, kwargs, mesh, _check)
            return self._map(args, kwargs, mesh, _move)

        self.on_input(module, prepare)

    def _map(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: DeviceMesh, function: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self.input_layouts is not None:
            given = entries(self.input_layouts, mesh)
            wanted = entries(self.desired_input_layouts, mesh)
            if len(given) != len(args):
                raise ArgumentError(
                    f"input_layouts={self.input_layouts!r} is for {len(given)} positional "
                    f"arguments, but forward was called with {len(args)}; give one entry for each, "
                    "None for what is left alone, and input_kwarg_layouts for keyword arguments"
                )
            on_position = partial(function, mesh, "input_layouts")
            args = tuple(
                map_tensors(*values, f"input {i}", on_position)
                for i, values in enumerate(zip(args, given, wanted, strict=True))
            )
        on_name = partial(function, mesh, "input_kwarg_layouts")
        arriving, desired = self.input_kwarg_layouts, self.desired_input_kwarg_layouts
        return args, {
            name: map_tensors(
                value, arriving.get(name), desired.get(name), f"input {name!r}", on_name
            )
            for name, value in kwargs.items()
        }


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
    """

    def __init__(
        self,
        *,
        output_layouts: Any,
        desired_output_layouts: Any,
        use_local_output: bool = True,
    ) -> None:
        del use_local_output
        _check_both(
            output_layouts, desired_output_layouts, ("output_layouts", "desired_output_layouts")
        )
        self.output_layouts = output_layouts
        self.desired_output_layouts = desired_output_layouts

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> None:
        """Let the module's outputs be moved."""
        check_mesh(mesh)

        def prepare(_: nn.Module, output: Any) -> Any:
            self._map(output, mesh, partial(_check, mesh, "output_layouts"))
            return self._map(output, mesh, partial(_move, mesh, "output_layouts"))

        self.on_output(module, prepare)

    def _map(self, output: Any, mesh: DeviceMesh, function: Any) -> Any:
        if self.output_layouts is None:
            return output
        given = entries(self.output_layouts, mesh)
        wanted = entries(self.desired_output_layouts, mesh)
        named = len(given) == 1 and isinstance(given[0], Mapping)
        if isinstance(output, tuple | list) and not named:
            return map_tensors(output, given, wanted, "the output", function)
        if len(given) != 1:
            raise ArgumentError(
                f"output_layouts={self.output_layouts!r} is for {len(given)} outputs, but forward "
                f"returned one {type(output).__name__}; give one entry for each output"
            )
        return map_tensors(output, given[0], wanted[0], "the output", function)


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


# --- arguments -----------------------------------------------------------------------------------


def _check_both(given: Any, wanted: Any, names: tuple[str, str]) -> None:
    """Raise unless both are given and have the same form, or neither is."""
    if given is None and wanted is None:
        return
    if given is None or wanted is None:
        raise ArgumentError(
            f"{names[0]}={given!r} and {names[1]}={wanted!r}: pass both, or neither"
        )
    check_alike(given, wanted, names)


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


# --- tensors --------------------------------------------------------------------------------------


def _check(
    mesh: DeviceMesh, keyword: str, x: torch.Tensor, given: Any, wanted: Any
) -> torch.Tensor:
    """Raise what is wrong with a tensor, which a keyword argument declares, before any is moved."""
    check_travels(x)
    declared = Layout(mesh, placements(given, mesh), x.shape).placements
    moves = Layout(mesh, placements(wanted, mesh), x.shape).placements != declared
    check_arrival(x, mesh, declared, moves=moves, name="", keyword=keyword)
    return x


def _move(mesh: DeviceMesh, _: str, x: torch.Tensor, given: Any, wanted: Any) -> torch.Tensor:
    """Bring a tensor from where it is declared to arrive to where it is needed."""
    placed = find_placed(x, mesh, declared=placements(given, mesh))
    if placed is not None and placed.layout.mesh is mesh:
        src = placed.layout
    else:
        src = layout_from(x, mesh, placements(given, mesh))
    dst = Layout(mesh, placements(wanted, mesh), src.shape)
    if dst.placements == src.placements:
        dst = src  # whatever its boundaries
    there, back = routes_between(src, dst, None, x.requires_grad)
    if mesh.ndim == 1 and isinstance(dst.placements[0], Replicate):
        return prepare_input(x, there, back)
    return move(x, there, back)
