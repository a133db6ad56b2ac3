"""Convolutions agree with NumPy for every layout, and fetch what the kernel reaches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.errors import ArgumentError, DTypeError, ShapeError
from distarray.testing import simulate
from tests.array.strategies import KIND, agrees, cases, on_ranks

ROUNDING = {} if KIND == "cpu" else {"rtol": 1e-6, "atol": 1e-4}
"""Of floating-point numbers, which CuPy convolves by FFT."""

DTYPES = tuple(map(np.dtype, ("f8", "i4", "u1", "c16", "?", "f4")))


@pytest.mark.parametrize("name", ["convolve", "correlate"])
@settings(max_examples=20)
@given(data=st.data(), mode=st.sampled_from(("full", "same", "valid")), plain=st.booleans())
def test_slides_agree_with_numpy(name: str, data: st.DataObject, mode: str, plain: bool) -> None:
    sizes = st.sampled_from((1, 2, 3, 5, 8, 13))
    x = data.draw(cases(DTYPES, ("sum", "max"), shape=(data.draw(sizes),)))
    y = data.draw(cases(DTYPES, ("sum",), x.mesh_shape, (data.draw(sizes),)))
    expected = getattr(np, name)(x.value, y.value, mode)

    def program() -> None:
        other: Any = y.value if plain else y.build()
        agrees(getattr(da, name)(x.build(), other, mode), expected, **ROUNDING)
        if plain:
            swapped = getattr(np, name)(y.value, x.value, mode)
            agrees(getattr(da, name)(y.value, x.build(), mode), swapped, **ROUNDING)

    on_ranks(program)


def test_each_block_fetches_one_item_less_than_the_kernel_has() -> None:
    def program() -> int:
        x = da.ones(4000, mesh=da.init_device_mesh((4,)))
        kernel = np.ones(11)
        with da.CommLog() as log, da.communication("raise", min_bytes=81):
            y = da.convolve(x, kernel, mode="same")
        assert y.layout is x.layout
        return log.bytes()

    assert simulate(4, program) == [40, 80, 80, 40]


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("width", [1, 2, 6, 700])
def test_long_blocks_are_not_copied_but_continue_across_their_ends(mode: str, width: int) -> None:
    x, kernel = np.arange(60_000) % 257 - 99, np.arange(width) + 1

    def program() -> None:
        blocks = da.distribute_array(x, placements=[da.Shard(0)], src=None)
        with da.CommLog() as log:
            result = da.convolve(blocks, kernel, mode)
        assert log.bytes() <= 2 * x.itemsize * (width - 1)
        agrees(result, np.convolve(x, kernel, mode))
        uneven = (
            blocks.redistribute([da.Shard(0)], boundaries={0: (0, 20_000, 40_001, len(x))})
            if da.default_mesh().size == 3
            else blocks
        )
        agrees(da.correlate(uneven, kernel, mode), np.correlate(x, kernel, mode))

    for size in (2, 3):
        simulate(size, program)


def test_wrong_arguments_are_refused() -> None:
    def program() -> None:
        x = da.ones(8)
        with pytest.raises(ArgumentError, match="mode"):
            da.convolve(x, x, mode="some")
        with pytest.raises(ShapeError):
            da.convolve(x.reshape(2, 4), x)
        with pytest.raises(ShapeError):
            da.correlate(x, x[:0])
        with pytest.raises(DTypeError):
            da.convolve(x, np.array(["a"]))
        with pytest.raises(DTypeError, match="in common"):  # of which NumPy makes objects
            da.convolve(x, np.array([1], "m8[s]"))
        long = da.ones(200_000)
        with pytest.raises(ArgumentError, match="Fourier"):
            da.convolve(long, long)

    simulate(2, program)
