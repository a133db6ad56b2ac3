"""Fill a block in device memory with random numbers, the same bits as on the host."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from distarray.comm.cuda._launch import address_of, launch, threads, uploaded, usable
from distarray.comm.cuda._tables import divisor
from distarray.comm.kernels import load_kernels
from distarray.typing import Buffer

_KERNELS: Final = "distarray.random._kernels_cuda"

_MOST_BY_SHIFT: Final = 1 << 31


def filled_floats(
    out: Buffer, kind: str, words: Iterable[Any], geometry: Any, loc: float, scale: float
) -> bool:
    """Fill a C-contiguous block as ``fill_floats`` does; tell whether it was done."""
    if not usable(out):
        return False
    kernel = load_kernels(_KERNELS).floats(kind, out.dtype.name)
    parameters = [*struct.unpack("<2q", struct.pack("<2d", loc, scale)), 0]
    return _run(kernel, out, words, geometry, parameters)


def filled_integers(
    out: Buffer, words: Iterable[Any], geometry: Any, parameters: Iterable[Any]
) -> bool:
    """Fill a C-contiguous block as ``fill_integers`` does; tell whether it was done.

    Parameters
    ----------
    parameters
        The least number, how many there are, and the bound below which the lower bits of a product
        are drawn again; all modulo 2**64.
    """
    if not usable(out):
        return False
    kernel = load_kernels(_KERNELS).integers(out.dtype.itemsize)
    signed = np.array([*parameters], np.uint64).view(np.int64).tolist()
    return _run(kernel, out, words, geometry, signed)


def _run(
    kernel: Any, out: Buffer, words: Iterable[Any], geometry: Any, parameters: Iterable[int]
) -> bool:
    if not out.size:
        return True
    corner, sizes, strides = geometry
    *outer, width = sizes.tolist()
    slots_of_row = width // 2 + 1
    slots = out.size // width * slots_of_row
    multiplier, shift = divisor(slots_of_row) if slots < _MOST_BY_SHIFT else (0, 0)
    entries = [address_of(out), slots, slots_of_row, multiplier, shift, width, int(corner)]
    entries += [*map(int, words), *parameters, len(outer)]
    for size, stride in zip(reversed(outer), reversed(strides.tolist()[:-1]), strict=True):
        entries += [size, stride]
    table = uploaded(np.array(entries, np.int64))
    return launch(kernel, table, 1, -(-slots // threads()))
