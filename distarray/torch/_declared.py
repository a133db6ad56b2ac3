"""Bring a tensor from where it is declared to arrive to where it is needed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from distarray.comm import DeviceMesh
from distarray.errors import DistArrayError, LayoutError
from distarray.layout import Layout, Replicate
from distarray.torch import _moves
from distarray.torch._joint import prepared
from distarray.torch._layouts import is_placed, placed_of
from distarray.torch._nested import placements


class Checking:
    """Raise what is wrong with a tensor, before any is moved."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh

    def __call__(self, x: torch.Tensor, given: Any, wanted: Any, where: str) -> torch.Tensor:
        with _named(where):
            _moves.check_travels(x)
            declared = Layout(self.mesh, placements(given, self.mesh), x.shape)
            target = Layout(self.mesh, placements(wanted, self.mesh), x.shape)
            placed = placed_of(x) if is_placed(x) else None
            if placed is None or placed.layout.mesh is not self.mesh:
                return x
            if placed.layout.placements != declared.placements:
                raise LayoutError(
                    f"it is placed as {placed.layout}, but declared as {given!r}; declare it as it "
                    "arrives, or let the module that it comes from place it so (output_layouts=)"
                )
            if placed.parts and target.placements != declared.placements:
                raise LayoutError(
                    f"it is placed as {placed.layout}, with features of {len(placed.parts)} parts "
                    f"that are cut each by itself, and cannot become {wanted!r}; pass "
                    f"output_layouts={wanted!r} to the style that it comes from"
                )
        return x


class Moving:
    """Bring a tensor to where it is needed."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh

    def __call__(self, x: torch.Tensor, given: Any, wanted: Any, where: str) -> torch.Tensor:
        with _named(where):
            placed = placed_of(x) if is_placed(x) else None
            if placed is not None and placed.layout.mesh is self.mesh:
                src = placed.layout
            else:
                src = _moves.layout_from(x, self.mesh, placements(given, self.mesh))
            dst = Layout(self.mesh, placements(wanted, self.mesh), src.shape)
            if dst.placements == src.placements:
                dst = src  # whatever its boundaries
            there, back = _moves.legs_between(src, dst, None, x.requires_grad)
            if self.mesh.ndim == 1 and isinstance(dst.placements[0], Replicate):
                return prepared(x, there, back)
            return _moves.moved(x, there, back)


@contextlib.contextmanager
def _named(where: str) -> Iterator[None]:
    """Begin the message of an error with which tensor it is about."""
    try:
        yield
    except DistArrayError as error:
        if error.args:
            error.args = (f"{where}: {error.args[0]}", *error.args[1:])
        raise
