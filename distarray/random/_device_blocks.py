"""Fill a block in device memory with random numbers, the same bits as on the host."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from distarray.comm.cuda import is_usable, launch, threads, upload, wrap
from distarray.comm.kernels import load_kernels
from distarray.typing import Buffer

_KERNELS: Final = "distarray.random._kernels_cuda"


def launch_floats(
    out: Buffer, kind: str, words: Iterable[Any], geometry: Any, loc: float, scale: float
) -> bool:
    """Fill a C-contiguous block as ``fill_floats`` does; tell whether it was done."""
    if not is_usable(out):
        return False
    kernel = load_kernels(_KERNELS).floats(kind, out.dtype.name)
    return _run(kernel, out, words, geometry, loc, scale)


def launch_integers(
    out: Buffer, words: Iterable[Any], geometry: Any, parameters: Iterable[Any]
) -> bool:
    """Fill a C-contiguous block as ``fill_integers`` does; tell whether it was done.

    Parameters
    ----------
    parameters
        The least number, how many there are, and the bound below which the lower bits of a product
        are drawn again; all modulo 2**64.
    """
    if not is_usable(out):
        return False
    kernel = load_kernels(_KERNELS).integers()
    return _run(kernel, out.view(f"u{out.itemsize}"), words, geometry, *map(np.uint64, parameters))


def _run(kernel: Any, out: Buffer, words: Iterable[Any], geometry: Any, *parameters: Any) -> bool:
    if not out.size:
        return True
    corner, sizes, strides = geometry
    *outer, width = sizes.tolist()
    slots_of_row = width // 2 + 1
    slots = out.size // width * slots_of_row
    entries = [slots, slots_of_row, width, int(corner), *map(int, words), len(outer)]
    for size, stride in zip(reversed(outer), reversed(strides.tolist()[:-1]), strict=True):
        entries += [size, stride]
    table = wrap(upload(np.array(entries, np.int64)))
    return launch(kernel, -(-slots // threads()), wrap(out.reshape(-1)), table, *parameters)
