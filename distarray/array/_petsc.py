"""PETSc's vectors and dense matrices over the memory of blocks, and blocks over theirs (petsc4py).

Both libraries give each process consecutive rows. PETSc's dense matrices lie in Fortran order.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from distarray.comm import _backend
from distarray.core import BaseArray, choose_mesh, copy_block, describe, new_array
from distarray.errors import (
    ArgumentTypeError,
    DeviceError,
    DTypeError,
    MeshError,
    MissingPackageError,
    PlacementError,
    ShapeError,
)
from distarray.layout import Layout, Shard


def to_petsc(x: BaseArray) -> Any:
    """Return the `Vec` or dense `Mat` for the public `to_petsc`."""
    layout, block = x._layout, x._local
    mesh: Any = layout.mesh
    if layout.ndim not in (1, 2):
        raise ShapeError(
            f"to_petsc of shape {layout.shape}; PETSc has vectors and matrices: x.reshape(...)"
        )
    several = [axis for axis in range(mesh.ndim) if mesh.shape[axis] > 1]
    cutting = [axis for axis in layout.sharding_axes(0) if mesh.shape[axis] > 1]
    if cutting != several:
        raise PlacementError(
            f"to_petsc of {layout}; PETSc gives each process rows of its own, in the order of the "
            f"processes: x.redistribute([da.Shard(0)] * {mesh.ndim})"
        )
    if not _backend.is_numpy(block):
        raise DeviceError(f"to_petsc of an array on {mesh.device!r}; use x.to_device('cpu') first")
    if mesh.coordinate is None:
        return None
    comm = mesh.comm()  # which starts MPI, if PETSc has not
    petsc = _petsc()
    if np.dtype(petsc.ScalarType) != block.dtype:
        raise DTypeError(
            f"to_petsc of {block.dtype}; this PETSc is built for {np.dtype(petsc.ScalarType)}: "
            "x.astype(PETSc.ScalarType)"
        )
    rows = block.shape[0], layout.shape[0]
    if layout.ndim == 1:
        if not (block.flags.c_contiguous and block.flags.writeable):
            block = copy_block(block)
        return petsc.Vec().createWithArray(block, size=rows, comm=comm)
    if not (block.flags.f_contiguous and block.flags.writeable):
        block = copy_block(block, "F")
    matrix = petsc.Mat().createDense((rows, layout.shape[1]), array=block, comm=comm)
    matrix.assemble()
    return matrix


def from_petsc(x: Any, mesh: Any = None) -> Any:
    """Return the array whose blocks are the memory of a PETSc vector or dense matrix.

    Parameters
    ----------
    x : petsc4py.PETSc.Vec or petsc4py.PETSc.Mat
        A vector in host memory, or a dense matrix.
    mesh : DeviceMesh, optional
        Of the processes of `x` in their order; default: the default mesh.

    Returns
    -------
    DistArray
        Of shape (n,) or (m, n), its rows cut where `x` is, without a copy.

    Raises
    ------
    ArgumentTypeError
        If `x` is neither.
    MeshError
        If the mesh has other processes, or in another order.
    MissingPackageError
        If petsc4py is not installed.

    Notes
    -----
    Distribution: nothing is sent, but for what MPI sends when it compares communicators.

    PETSc remembers norms of what it has: after writing into the array call `x.stateIncrease()`.

    Examples
    --------
    >>> import distarray as da
    >>> from petsc4py import PETSc  # doctest: +SKIP
    >>> x = da.from_petsc(PETSc.Vec().createMPI(10))  # doctest: +SKIP
    """
    mesh = choose_mesh(mesh)
    petsc = _petsc()
    if isinstance(x, petsc.Mat) and x.getType() in ("dense", "seqdense", "mpidense"):
        shape, read = tuple(x.getSize()), x.getDenseArray
    elif isinstance(x, petsc.Vec):
        shape, read = (x.getSize(),), x.getArray
    else:
        kind = f" of type {x.getType()!r}" if isinstance(x, petsc.Mat) else ""
        raise ArgumentTypeError(
            f"from_petsc takes a Vec or a dense Mat, not {describe(x)}{kind}; x.convert('dense') "
            "makes one of a sparse Mat"
        )
    if mesh.coordinate is None:
        raise MeshError(f"from_petsc: this process is not in {mesh}; pass mesh= of those of x")
    compare = importlib.import_module("mpi4py.MPI")
    order = compare.Comm.Compare(x.getComm().tompi4py(), mesh.comm())
    if order not in (compare.IDENT, compare.CONGRUENT):
        raise MeshError(
            f"from_petsc: {mesh} has other processes than x, or in another order; pass mesh= of "
            "those of x"
        )
    offsets = tuple(int(n) for n in x.getOwnershipRanges())
    layout = Layout(mesh, [Shard(0)] * mesh.ndim, shape, boundaries={0: offsets})
    block = np.asarray(read())
    return new_array(block.reshape(layout.local_shape(), order="F"), layout)


def _petsc() -> Any:
    """Return the module of petsc4py, which is optional."""
    try:
        return importlib.import_module("petsc4py.PETSc")
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "to_petsc and from_petsc need petsc4py, built for the MPI of mpi4py: pip install "
            "petsc petsc4py"
        ) from error
