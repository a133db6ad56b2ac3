"""Windows for signals: bartlett, blackman, hamming, hanning, kaiser; nothing is sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from distarray.comm import _memory
from distarray.core import check_integer, documented
from distarray.errors import ArgumentTypeError
from distarray.layout import Placement
from distarray.ops.creation._filled import build, target_layout
from distarray.typing import Box, Buffer

_PIECE: Final = 1 << 14
"""So many points are computed at once."""

_DOCUMENTATION = """Return {sentence}.

Parameters
----------
M : int
    How many points; none if it is 0 or negative.
{beta}device, mesh, placements
    As for `empty`.

Returns
-------
DistArray
    Of shape `(M,)` and dtype float64; its largest value is 1, in the middle if `M` is odd.

Raises
------
ArgumentTypeError
    If an argument is no number.

Notes
-----
Distribution: each process computes its block.

Examples
--------
>>> import distarray as da
>>> da.{name}({arguments}).shape
(12,)
"""

Formula = Callable[[Buffer, int], Buffer]
"""Of the odd or even numbers `1 - M, 3 - M, ..., M - 1`, and `M - 1`."""


def _window(name: str, sentence: str, formula: Formula) -> Callable[..., Any]:
    @documented(_DOCUMENTATION, name, sentence=sentence, beta="", arguments="12")
    def window(
        M: int,  # noqa: N803 (NumPy's name)
        /,
        *,
        device: Any = None,
        mesh: Any = None,
        placements: Sequence[Placement] | None = None,
    ) -> Any:
        return _make(name, M, formula, device, mesh, placements)

    return window


def _make(name: str, count: Any, formula: Formula, device: Any, mesh: Any, placements: Any) -> Any:
    size = max(check_integer(name, "M", count), 0)
    layout = target_layout((size,), mesh, placements, device)

    def make(box: Box) -> Buffer:
        start, stop = box[0]
        if size == 1:
            return np.ones(stop - start)
        out: Buffer = _memory.empty((stop - start,), np.float64)
        for i in range(start, stop, _PIECE):
            n = np.arange(1 - size + 2 * i, 1 - size + 2 * min(i + _PIECE, stop), 2.0)
            out[i - start : i - start + len(n)] = formula(n, size - 1)
        return out

    return build(layout, np.dtype(np.float64), make)


bartlett = _window(
    "bartlett",
    "Bartlett's window, a triangle with zeros at both ends",
    lambda n, m: np.where(n <= 0, 1 + n / m, 1 - n / m),
)
blackman = _window(
    "blackman",
    "Blackman's window, a sum of three cosines",
    lambda n, m: 0.42 + 0.5 * np.cos(np.pi * n / m) + 0.08 * np.cos(2.0 * np.pi * n / m),
)
hamming = _window(
    "hamming",
    "Hamming's window, a raised cosine with 0.08 at both ends",
    lambda n, m: 0.54 + 0.46 * np.cos(np.pi * n / m),
)
hanning = _window(
    "hanning",
    "the Hann window, a raised cosine with zeros at both ends",
    lambda n, m: 0.5 + 0.5 * np.cos(np.pi * n / m),
)


@documented(
    _DOCUMENTATION,
    sentence="Kaiser's window, made of Bessel functions",
    beta="beta : float\n    Its shape: 0 gives a rectangle, 14 a narrow peak.\n",
    arguments="12, 14",
)
def kaiser(
    M: int,  # noqa: N803 (NumPy's name)
    beta: Any,
    /,
    *,
    device: Any = None,
    mesh: Any = None,
    placements: Sequence[Placement] | None = None,
) -> Any:
    try:
        shape = float(beta)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"kaiser got beta={beta!r}; it must be one real number") from None

    greatest = np.i0(shape)

    def formula(n: Buffer, m: int) -> Buffer:
        index, middle = (n + m) / 2, m / 2.0
        inside = 1 - ((index - middle) / middle) ** 2.0
        return np.i0(shape * np.sqrt(inside)) / greatest

    return _make("kaiser", M, formula, device, mesh, placements)
