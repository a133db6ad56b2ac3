"""Functions of blocks with edges against the function of the whole padded array."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray import Shard
from distarray.comm import CommLog, _memory, init_device_mesh, simulate
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    CommunicationError,
    DTypeError,
    ShapeError,
)
from tests.array.strategies import KIND, RANKS, agrees, cases, on_ranks, sample
from tests.array.test_halo import MODES, padded

DTYPES = tuple(map(np.dtype, ("f8", "f2", "u1", "?", "c8", "i8")))
DTYPES += (np.dtype("M8[s]"), np.dtype("m8[ms]")) if KIND == "cpu" else ()


def _combine(block: Any, widths: Any) -> Any:
    """Return of each item a sum, or the largest, of those around it that the block has."""
    out = block.copy()
    for offsets in product(*(range(-before, after + 1) for before, after in widths)):
        pairs = list(zip(offsets, block.shape, strict=True))
        target = tuple(slice(max(0, -o), max(0, n - max(0, o))) for o, n in pairs)
        source = tuple(slice(max(0, o), max(0, n - max(0, -o))) for o, n in pairs)
        if block.dtype.kind in "mMb":
            out[target] = np.maximum(out[target], block[source])
        else:
            weight = sum((o + 5) * 11**i for i, o in enumerate(offsets)) % 13 + 1
            out[target] += (block[source] * weight).astype(block.dtype)
    return out


@settings(max_examples=150)
@given(data=st.data())
def test_map_overlap_is_the_function_of_the_padded_array(data: st.DataObject) -> None:
    case = data.draw(cases(DTYPES, () if data.draw(st.booleans()) else ("max",)))
    if case.op and case.values.dtype.kind in "cmM":
        return
    counts = sample((0, 1, 1, 2, 4))
    widths = tuple((data.draw(counts), data.draw(counts)) for _ in case.shape)
    modes = [data.draw(sample(MODES[:-1] if n else (None,))) for n in case.shape]
    wanted = _combine(padded(case.value, widths, modes), widths)
    inner = tuple(
        slice(None) if mode is None else slice(before, before + n)
        for mode, (before, _), n in zip(modes, widths, case.shape, strict=True)
    )

    def program() -> None:
        x = case.build()
        how: dict[str, Any] = {"width": widths or 0, "boundary": dict(enumerate(modes))}
        for interior_first in (False, True):
            y = da.map_overlap(_combine, x, **how, interior_first=interior_first, widths=widths)
            assert y.layout is x.layout.without_partial()
            agrees(y, wanted[inner])
        agrees(x, case.value)

    simulate(RANKS, program, ranks_per_node=data.draw(sample((None, 1, 2))))


def _laplacian(block: Any, scale: float = 1.0) -> Any:
    """Return a stencil of three points along each axis, of a block without its rim."""
    inner = (slice(1, -1),) * block.ndim
    total = block[inner] * (-2.0 * block.ndim)
    for axis in range(block.ndim):
        for part in (slice(None, -2), slice(2, None)):
            total = total + block[(*inner[:axis], part, *inner[axis + 1 :])]
    return total * scale


@settings(max_examples=40)
@given(data=st.data())
def test_map_overlap_agrees_with_the_function_of_the_padded_array(data: st.DataObject) -> None:
    case = data.draw(cases((np.float64, np.int32), ("sum",)))
    mode = data.draw(sample(MODES[1:]))
    if 0 in case.shape and mode != 7:
        mode = 7
    modes, ones = [mode] * len(case.shape), [(1, 1)] * len(case.shape)

    def program() -> None:
        x = case.build()
        wanted = _laplacian(padded(case.value, ones, modes), 3.0)
        y = da.map_overlap(_laplacian, x, width=1, boundary=mode, trim=False, scale=3.0)
        assert y.layout is x.layout.without_partial()

        def two(a: Any, b: Any, c: int) -> Any:
            result = a * 0.0
            if a.ndim:
                result[(slice(1, -1),) * a.ndim] = _laplacian(a + b) * c
            return result

        z = da.map_overlap(two, x, x, 2, width=1, boundary=mode)
        if x.mesh.coordinate is not None:
            agrees(y, wanted)
            agrees(z, _laplacian(padded(case.value, ones, modes)) * 4.0)

    on_ranks(program)


def test_map_overlap_errors_are_raised_on_every_rank() -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        x = da.distribute_array(np.arange(8.0), mesh, [Shard(0)])

        def fails(block: Any) -> Any:
            if mesh.rank == 2:
                raise RuntimeError("no")
            return block

        with pytest.raises(RuntimeError if mesh.rank == 2 else CommunicationError, match="no"):
            da.map_overlap(fails, x, width=1)
        with pytest.raises(ShapeError, match="trim"):
            da.map_overlap(lambda b: b[1:] if mesh.rank else b, x, width=1)
        with pytest.raises(DTypeError, match="float32"):
            da.map_overlap(lambda b: b.astype("f4" if mesh.rank else "f8"), x, width=1)
        with pytest.raises(ShapeError, match="equal"):
            da.map_overlap(lambda a, b: a, x, x[1:], width=1)
        with pytest.raises(ArgumentTypeError, match="width="):
            da.map_overlap(lambda b: b, x, depth=1, width=1)
        with pytest.raises(ArgumentTypeError, match="distributed"):
            da.map_overlap(lambda b: b, np.arange(3), width=1)
        # Three rows on four ranks: the function does not see the empty block.
        few = da.distribute_array(np.arange(3.0), mesh, [Shard(0)])

        def whole(block: Any) -> Any:
            assert block.size == 3
            return block.astype(np.float32)

        agrees(da.map_overlap(whole, few, width=1, boundary=0), np.arange(3, dtype=np.float32))

    on_ranks(program)


@pytest.mark.parametrize("ranks_per_node", [None, 1])
def test_the_interior_comes_first_and_slabs_around_it(
    ranks_per_node: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = np.random.default_rng(2).random((24, 20))
    empty = _memory.empty

    def empty_of_nan(*args: Any, **options: Any) -> Any:  # not what an earlier call has left
        made = empty(*args, **options)
        if made.dtype.kind == "f":
            made[...] = np.nan
        return made

    monkeypatch.setattr(_memory, "empty", empty_of_nan)

    def program() -> None:
        mesh = init_device_mesh((2, 2))
        x = da.distribute_array(value, mesh, [Shard(0), Shard(1)])
        how: dict[str, Any] = {"width": {0: 1, 1: (2, 1)}, "boundary": ("periodic", None)}
        shapes = []

        def func(block: Any) -> Any:
            shapes.append(block.shape)
            return _combine(block, [(1, 1), (2, 1)])

        with CommLog() as log:
            y = da.map_overlap(func, x, **how, interior_first=True)
        # On one side of the block is the end of the array, past which nothing lies.
        edge, slab = ((12, 4), 1) if mesh.coordinate[1] == 0 else ((12, 5), 2)
        assert shapes == [(12, 10), (3, 10 + slab), (3, 10 + slab), edge]
        assert log.count("exchange") == 1
        assert log.bytes("exchange") == (2 * 10 + 12 * slab + 2 * slab) * 8
        agrees(y, np.asarray(da.map_overlap(func, x, **how)))

    simulate(4, program, ranks_per_node=ranks_per_node)


@pytest.mark.host_only  # where an array can be read-only
def test_interior_first_leaves_the_array_and_refuses_memory_that_is_used_again() -> None:
    value = np.arange(40.0).reshape(8, 5)

    def program() -> None:
        mesh = init_device_mesh((4,))
        x = da.distribute_array(value, mesh, [Shard(0)])

        def map_in_parts(func: Any) -> Any:
            return da.map_overlap(func, x, width={1: 1}, boundary="edge", interior_first=True)

        # What looks at the block is not written into.
        agrees(map_in_parts(lambda b: b), value)
        agrees(map_in_parts(lambda b: b[:]), value)
        agrees(map_in_parts(lambda b: np.broadcast_to(b * 2, b.shape)), value * 2)  # is read-only
        agrees(x, value)
        memory = np.zeros(100)
        with pytest.raises(ArgumentError, match="same memory"):
            map_in_parts(lambda b: np.copyto(m := memory[: b.size].reshape(b.shape), b) or m)
        with pytest.raises((ValueError, CommunicationError), match="read-only"):
            map_in_parts(lambda b: np.add(b, 1, out=b))
        with pytest.raises(DTypeError, match="slab"):
            map_in_parts(lambda b: b.astype("f4" if b.shape[1] == 3 else "f8"))
        with pytest.raises(ShapeError, match="trim"):
            map_in_parts(lambda b: b[1:])
        agrees(x, value)

    on_ranks(program)


@pytest.mark.host_only
@pytest.mark.parametrize("boundaries", [None, {0: (0, 2, 23), 1: (0, 16, 17)}])
def test_filters_of_scipy_agree_with_those_of_the_whole_array(boundaries: Any) -> None:
    ndimage = pytest.importorskip("scipy.ndimage")
    value = np.random.default_rng(3).random((23, 17))
    filters: Any = (
        (ndimage.gaussian_filter, 4, {"sigma": 1}),
        (ndimage.convolve, {0: 1, 1: 2}, {"weights": np.arange(15.0).reshape(3, 5)}),
        (ndimage.median_filter, 1, {"size": 3}),
        (ndimage.sobel, {0: 1, 1: 1}, {"axis": 0}),
    )
    # SciPy's modes, and our boundaries; without one SciPy's hold at the ends of the array.
    modes = (
        ("wrap", "periodic"), ("reflect", "symmetric"), ("mirror", "reflect"), ("nearest", "edge"),
        ("constant", 0), ("reflect", None), ("mirror", None), ("nearest", None), ("constant", None),
    )  # fmt: skip

    def program() -> None:
        mesh = init_device_mesh((2, 2))
        x = da.distribute_array(value, mesh, [Shard(0), Shard(1)])
        x = x.redistribute(boundaries=boundaries)
        for function, width, options in filters:
            for mode, boundary in modes:
                wanted = function(value, mode=mode, **options)
                for interior_first in (False, True):
                    how = {"interior_first": interior_first, "boundary": boundary, "mode": mode}
                    y = da.map_overlap(function, x, width=width, **how, **options)
                    agrees(y, wanted, rtol=1e-12, atol=1e-12)

    on_ranks(program)
