"""Tensors inside of tuples, lists, dictionaries, named tuples and dataclasses, and what goes along.

A layout for each tensor comes in containers of the same form: sequences for tuples and lists,
mappings of names for dictionaries, dataclasses and (if one likes) named tuples. None leaves alone
what is in its place, of whatever form.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from distarray.comm import DeviceMesh
from distarray.errors import ArgumentError, ArgumentTypeError, DistArrayError
from distarray.layout import Placement, suggest_for_torch

Apply = Callable[[torch.Tensor, Any, Any], Any]


def map_tensors(value: Any, given: Any, wanted: Any, where: str, function: Apply) -> Any:
    """Return a value with ``function(tensor, given, wanted)`` in the place of its tensors.

    Parameters
    ----------
    value
        A tensor, a container, or None.
    given, wanted
        Of the same form.
    where
        What the value is: errors, also those of the function, begin with it.

    Raises
    ------
    ArgumentError
        A container has other parts than ``given``.
    ArgumentTypeError
        A part is neither tensor nor container.
    """
    if value is None or given is None or wanted is None:
        return value
    if isinstance(value, torch.Tensor):
        with _name_errors(where):
            return function(value, given, wanted)
    parts = _parts_of(value, given)
    if parts is None:
        raise ArgumentTypeError(
            f"{where} is of type {type(value).__name__}, where a layout {given!r} is declared; it "
            "must be a tensor or a container of tensors; None as its layout leaves it alone"
        )
    _check_form(parts, given, where)
    given, wanted = _layouts_of_parts(given), _layouts_of_parts(wanted)
    mapped = {
        key: map_tensors(part, given.get(key), wanted.get(key), f"{where}[{key!r}]", function)
        for key, part in parts.items()
    }
    changed = {key: part for key, part in mapped.items() if part is not parts[key]}
    return _rebuild(value, mapped, changed) if changed else value


def check_alike(given: Any, wanted: Any, names: tuple[str, str], where: str = "") -> None:
    """Raise unless layouts and the desired ones have the same form.

    Raises
    ------
    ArgumentError
        They have not, or a layout is desired where none is given.
    """
    if wanted is None:
        return
    if given is None:
        raise ArgumentError(
            f"{names[1]}{where} is {wanted!r}, but {names[0]}{where} is None: say how the tensor "
            "arrives, too"
        )
    parts, others = _layouts_of_parts(given), _layouts_of_parts(wanted)
    if isinstance(given, Placement) != isinstance(wanted, Placement) or set(parts) != set(others):
        raise ArgumentError(
            f"{names[0]}{where} and {names[1]}{where} must have the same form, with one entry for "
            f"each tensor or None; they are {given!r} and {wanted!r}"
        )
    for key, part in parts.items():
        check_alike(part, others[key], names, f"{where}[{key!r}]")


def entries(layouts: Any, mesh: DeviceMesh) -> tuple[Any, ...]:
    """Return one entry for each value of several layouts, of which a single one may stand alone."""
    alone = isinstance(layouts, Placement | Mapping) or (mesh.ndim > 1 and is_one(layouts, mesh))
    return (layouts,) if alone else tuple(layouts)


def is_one(layout: Any, mesh: DeviceMesh) -> bool:
    """Tell whether this is the layout of one tensor, a placement for each mesh axis."""
    if isinstance(layout, Placement):
        return mesh.ndim == 1
    return (
        isinstance(layout, Sequence)
        and len(layout) == mesh.ndim
        and all(isinstance(p, Placement) for p in layout)
    )


def placements(layout: Any, mesh: DeviceMesh) -> tuple[Placement, ...]:
    """Return the placements of one tensor, one for each mesh axis, or raise."""
    if not is_one(layout, mesh):
        raise ArgumentTypeError(
            f"its layout {layout!r} must be "
            + ("one placement" if mesh.ndim == 1 else f"a sequence of {mesh.ndim} placements")
            + f", as {mesh} has {mesh.ndim} mesh ax{'is' if mesh.ndim == 1 else 'es'}"
        )
    return (layout,) if isinstance(layout, Placement) else tuple(layout)


# --- containers ----------------------------------------------------------------------------------


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


@contextlib.contextmanager
def _name_errors(where: str) -> Iterator[None]:
    """Begin the message of an error with which tensor it is about."""
    try:
        yield
    except DistArrayError as error:
        if error.args:
            error.args = (f"{where}: {error.args[0]}", *error.args[1:])
        raise
