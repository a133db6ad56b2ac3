"""Random items of every dtype that can be sorted: special values, many of them equal."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

DTYPES = (
    *("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "g"),
    *("c8", "c16", "G", "M8[D]", "m8[us]", "M8", "U1", "U5", "S1", "S11", "V3", "V16"),
    *(">i4", ">f8", ">U3", ">c16", ">M8[s]"),
    np.dtype([("a", "f8"), ("b", "i2")]),
    np.dtype([("a", "f2"), ("b", "c8"), ("c", "?")], align=True),
    np.dtype([("a", ">f4"), ("b", [("x", "U2"), ("y", "M8[D]")])]),
    np.dtype([("a", "u1", (3,)), ("b", "g")]),
)

_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-300, 6e4)
_TEXTS = ("", "a", "b", "ab", "abc", "\0a", "é", "\U0010ffff", "zz", "a b c d e f")
_SPAN = 2**62


@st.composite
def items(draw: Any, dtype: Any, size: Any = None) -> np.ndarray:
    """Draw a 1-d array of a dtype."""
    n = draw(st.integers(0, 30)) if size is None else size
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return draw_items(rng, np.dtype(dtype), n, draw(st.booleans()))


def draw_items(rng: np.random.Generator, dtype: np.dtype[Any], n: int, few: bool) -> np.ndarray:
    """Return random items; `few` of them are different."""
    out = np.zeros(n, dtype)
    if dtype.names is not None:
        for name in dtype.names:
            base, shape = dtype[name].base, dtype[name].shape
            count = n * int(np.prod(shape, dtype=int))
            out[name] = draw_items(rng, base, count, few).reshape(n, *shape)
        return out
    kind = dtype.kind
    if kind == "b":
        return rng.random(n) < 0.5
    if kind in "iu":
        info = np.iinfo(dtype)
        if few:
            return rng.choice(np.array([info.min, info.max, 0, 1, 2, 3], dtype), n)
        return rng.integers(info.min, info.max, n, dtype.newbyteorder("="), True).astype(dtype)
    if kind in "mM":
        values = rng.integers(-3 if few else -_SPAN, 3 if few else _SPAN, n)
        out = values.view(f"{kind}8[{np.datetime_data(dtype)[0]}]").astype(dtype)
        out[rng.random(n) < 0.2] = "NaT"
        return out
    if kind == "c":
        part = np.empty(0, dtype).real.dtype
        out.real = draw_items(rng, part, n, few)
        out.imag = draw_items(rng, part, n, few)
        return out
    if kind == "f":
        special = rng.choice(np.array(_FLOATS), n).astype(dtype)
        with np.errstate(over="ignore"):
            random = (rng.standard_normal(n) * 10.0 ** rng.integers(-6, 6, n)).astype(dtype)
        return np.where(rng.random(n) < (1.0 if few else 0.2), special, random).astype(dtype)
    if kind == "V":
        raw = rng.integers(0, 2 if few else 256, n * dtype.itemsize).astype(np.uint8)
        return np.frombuffer(raw.tobytes(), dtype, n).copy()
    texts = [text.encode("latin1", "ignore") if kind == "S" else text for text in _TEXTS]
    return rng.choice(np.array(texts), n).astype(dtype)


def identical(a: np.ndarray, b: np.ndarray) -> bool:
    """Tell whether two arrays are of one dtype and shape and hold the same, sign of zero included.

    What lies between the fields of a structure or in the padding of a long double is not compared,
    nor which NaN it is that a long double holds.
    """
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.names is not None:
        return all(identical(a[name], b[name]) for name in a.dtype.names)
    if a.dtype.char == "G":
        return identical(a.real, b.real) and identical(a.imag, b.imag)
    if a.dtype.char == "g":
        return np.array_equal(a, b, equal_nan=True) and (np.signbit(a) == np.signbit(b)).all()
    return a.tobytes() == b.tobytes()
