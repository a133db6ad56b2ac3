"""NumPy dtypes as MPI knows them: what moves as which MPI datatype, and which op reduces it."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from distarray.comm._packing import run_of
from distarray.comm._reductions import COMBINE

if TYPE_CHECKING:
    from mpi4py import MPI

_CARRIERS: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
"""Values only move, so that any dtype of a size may travel as the unsigned integer of that size."""


def carrier(array: np.ndarray) -> np.ndarray:
    """Return a flat array as unsigned integers of its item size, or else as bytes.

    Buffers of many dtypes (datetimes, void, float16 of other libraries) are not known to MPI.
    """
    unsigned = _CARRIERS.get(array.itemsize)
    return array.view(np.uint8 if unsigned is None else unsigned)


@lru_cache(maxsize=256)
def moving_type(itemsize: int) -> MPI.Datatype:
    """Return the MPI datatype of one item, for moving it."""
    from mpi4py import MPI

    native = {1: MPI.UINT8_T, 2: MPI.UINT16_T, 4: MPI.UINT32_T, 8: MPI.UINT64_T}.get(itemsize)
    if native is not None:
        return native
    unit, count = (MPI.UINT64_T, itemsize // 8) if itemsize % 8 == 0 else (MPI.UINT8_T, itemsize)
    return unit.Create_contiguous(count).Commit()


def strided_type(array: np.ndarray) -> MPI.Datatype:
    """Return the MPI datatype of the items of a strided array in C order; the caller frees it."""
    run, axis = run_of(array)
    made = moving_type(array.itemsize).Create_contiguous(run // array.itemsize)
    for n, step in zip(array.shape[axis - 1 :: -1], array.strides[axis - 1 :: -1], strict=True):
        inner, made = made, made.Create_hvector(n, 1, step)
        inner.Free()
    return made.Commit()


def memory_of(array: np.ndarray) -> MPI.buffer:
    """Return the memory that a strided array's items lie in, from the first one on."""
    from mpi4py import MPI

    return MPI.buffer.fromaddress(array.__array_interface__["data"][0], array.nbytes)


_NATIVE_TYPES: Final = {
    "b1": "C_BOOL",
    "i1": "INT8_T",
    "i2": "INT16_T",
    "i4": "INT32_T",
    "i8": "INT64_T",
    "u1": "UINT8_T",
    "u2": "UINT16_T",
    "u4": "UINT32_T",
    "u8": "UINT64_T",
    "f4": "FLOAT",
    "f8": "DOUBLE",
    "c8": "C_FLOAT_COMPLEX",
    "c16": "C_DOUBLE_COMPLEX",
    "f16": "LONG_DOUBLE",
    "c32": "C_LONG_DOUBLE_COMPLEX",
}
_FLOATS: Final = {np.dtype(c).str[1:] for c in "fdgFDG"}
_NATIVE_OPS: Final = {
    ("sum", "iufc"): "SUM",
    ("prod", "iuf"): "PROD",
    ("min", "iu"): "MIN",
    ("max", "iu"): "MAX",
    ("any", "b"): "LOR",
    ("all", "b"): "LAND",
    ("bxor", "b"): "LXOR",
    ("band", "iu"): "BAND",
    ("bor", "iu"): "BOR",
    ("bxor", "iu"): "BXOR",
}


@lru_cache(maxsize=256)
def reducing_type(dtype: np.dtype[Any], op: str) -> tuple[MPI.Datatype, MPI.Op]:
    """Return the MPI datatype and op that reduce values of a dtype as NumPy does.

    MPI's own where it has the op with NumPy's result. Elsewhere an op of ours, evaluated in rank
    order: min and max of floats (MPI leaves NaN open), and products of complex values (with fused
    multiply-add their last bits depend on the order of the operands).
    """
    from mpi4py import MPI

    datatype = getattr(MPI, _NATIVE_TYPES[f"{dtype.kind}{dtype.itemsize}"])
    for (known, kinds), native in _NATIVE_OPS.items():
        if known == op and dtype.kind in kinds:
            return datatype, getattr(MPI, native)
    return datatype, _custom_op(op)


@cache
def _custom_op(op: str) -> MPI.Op:
    """Return an MPI op that combines values as NumPy does, for all dtypes: mpi4py has few."""
    from mpi4py import MPI

    dtypes = [
        (getattr(MPI, name), np.dtype(short))
        for short, name in _NATIVE_TYPES.items()
        if short in _FLOATS
    ]

    ufunc = COMBINE[op]

    def function(lower: Any, inout: Any, datatype: MPI.Datatype) -> None:
        dtype = next(dtype for known, dtype in dtypes if known == datatype)
        target = np.frombuffer(inout, dtype)
        with np.errstate(all="ignore"):
            ufunc(np.frombuffer(lower, dtype), target, out=target)

    return MPI.Op.Create(function, commute=False)
