"""Small values: read on every process, given to every process, computed in host memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from distarray.comm import _backend, name_meshes
from distarray.core import BaseArray, empty_block, reduced_source, refusal, replicated_layout
from distarray.errors import (
    ArgumentTypeError,
    AxisError,
    DistArrayError,
    IndexingError,
    MeshError,
)
from distarray.redistribute import redistribute_local


def read_values(name: str, x: BaseArray) -> np.ndarray:
    """Return the items of a small array, in host memory of every process of the mesh (collective).

    Raises
    ------
    MeshError
        If this process is not in the mesh, and cannot know them.
    """
    layout = x._layout
    mesh: Any = layout.mesh
    if mesh.coordinate is None:
        raise MeshError(
            f"this process is not in {mesh} and does not know the values there, on which {name} "
            "depends; call it only where mesh.coordinate is not None"
        )
    whole = replicated_layout(mesh, layout.shape)
    return _backend.to_host(redistribute_local(*reduced_source(x, x._local, layout, whole), whole))


def check_one_mesh(name: str, *values: Any) -> None:
    """Refuse distributed values on different meshes, where what one tells decides about others.

    Raises
    ------
    MeshError
        On all processes alike: those of a smaller mesh could not go on without the others.
    """
    if len(values) < 2:
        return
    meshes = {x._layout.mesh for x in values if isinstance(x, BaseArray)}
    if len(meshes) > 1:
        raise MeshError(
            f"{name} got operands on different meshes: {name_meshes(meshes)}; "
            "bring them to one: x.redistribute(placements, mesh=...)"
        )


def give_values(x: BaseArray, values: np.ndarray) -> Any:
    """Return what every process has computed alike as a replicated array on the mesh of `x`."""
    layout = replicated_layout(x._layout.mesh, values.shape)
    if layout.mesh.coordinate is None:
        return x._new(empty_block(layout, values.dtype), layout)
    return x._new(_backend.asarray(values, _backend.device_of(x._local)), layout)


def on_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function for blocks of any device, which NumPy computes in host memory."""

    @functools.wraps(function)
    def compute(*args: Any) -> Any:
        for block in args:
            if block.__class__ is np.ndarray:
                return function(*args)
            if _backend.is_buffer(block):
                break
        if _backend.is_numpy(block):
            return function(*args)
        device = _backend.device_of(block)
        result = function(*(_backend.to_host(x) if _backend.is_cupy(x) else x for x in args))
        if isinstance(result, tuple):
            return tuple(_backend.asarray(one, device) for one in result)
        return _backend.asarray(result, device)

    return compute


class ErrorsOfNumPy:
    """Raises as ours what NumPy says in this context of arguments that all processes have alike."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, _: Any) -> None:
        if error is None or isinstance(error, DistArrayError):
            return
        text = f"{self._name}: {error}"
        if isinstance(error, np.exceptions.AxisError):
            raise AxisError(text, error.axis, error.ndim) from error
        if isinstance(error, IndexError):
            raise IndexingError(text) from error
        if isinstance(error, ValueError | OverflowError):
            raise refusal(error)(text) from error
        if isinstance(error, TypeError):
            raise ArgumentTypeError(text) from error
