"""Bring a tensor from where it is declared to arrive to where it is needed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from distarray.comm import DeviceMesh
from distarray.errors import DistArrayError
from distarray.layout import Layout, Replicate
from distarray.torch import _moves
from distarray.torch._nested import placements
from distarray.torch.parallel._arrivals import arrived, found
from distarray.torch.parallel._joint import prepared


class Checking:
    """Raise what is wrong with a tensor, before any is moved."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh

    def __call__(self, x: torch.Tensor, given: Any, wanted: Any, where: str) -> torch.Tensor:
        with _named(where):
            _moves.check_travels(x)
            declared = Layout(self.mesh, placements(given, self.mesh), x.shape)
            target = Layout(self.mesh, placements(wanted, self.mesh), x.shape)
            moves = target.placements != declared.placements
            keyword = _keyword(where)
            arrived(x, self.mesh, declared.placements, moves=moves, name="", keyword=keyword)
        return x


class Moving:
    """Bring a tensor to where it is needed."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh

    def __call__(self, x: torch.Tensor, given: Any, wanted: Any, where: str) -> torch.Tensor:
        with _named(where):
            placed = found(x, self.mesh, declared=placements(given, self.mesh))
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


def _keyword(where: str) -> str:
    """Return the keyword argument that declares a tensor."""
    if where.startswith("input '"):
        return "input_kwarg_layouts"
    return "input_layouts" if where.startswith("input") else "output_layouts"


@contextlib.contextmanager
def _named(where: str) -> Iterator[None]:
    """Begin the message of an error with which tensor it is about."""
    try:
        yield
    except DistArrayError as error:
        if error.args:
            error.args = (f"{where}: {error.args[0]}", *error.args[1:])
        raise
