"""Places of items that are not zero are NumPy's; only how many they are is sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.comm import CommLog
from distarray.errors import ArgumentError, MeshError
from distarray.layout import Partial, Replicate, Shard
from tests.array.strategies import KIND, RANKS, Case, agrees, on_ranks, special_cases
from tests.on_device import host

KINDS = tuple(map(np.dtype, ("?", "i4", "u1", "f8", "f2", "c16")))
KINDS += tuple(map(np.dtype, ("U3", "S3", "M8[s]", "m8[ns]"))) if KIND == "cpu" else ()


@pytest.mark.parametrize("name", ["nonzero", "argwhere", "flatnonzero", "where"])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_places_are_those_of_numpy_for_all_layouts(name: str, data: st.DataObject) -> None:
    ops = ("max",) if data.draw(st.booleans()) else ()
    case: Case = data.draw(special_cases(KINDS[:6] if ops else KINDS, ops))
    assume(case.shape or name in ("argwhere", "flatnonzero"))
    expected = getattr(np, name)(case.value)
    known = expected if isinstance(expected, tuple) else (expected,)

    def program() -> None:
        x = case.build()
        function = getattr(da, name)
        if x.mesh.coordinate is None:
            with pytest.raises(MeshError, match="cannot know the shape"):
                function(x)
            return
        found = function(x)
        assert isinstance(found, tuple) == isinstance(expected, tuple)
        found = found if isinstance(found, tuple) else (found,)
        for one, wanted in zip(found, known, strict=True):
            agrees(one, wanted)
            assert one.layout is found[0].layout

    on_ranks(program)


def test_8_bytes_of_each_process_are_sent() -> None:
    def program() -> None:
        x = da.arange(40000.0).reshape(1000, 40) % 7 - 3
        for function in (da.nonzero, da.argwhere, da.flatnonzero, da.where):
            with CommLog() as log, da.communication("raise"):
                function(x)
            assert log.count() == 1
            assert log.bytes() == 8 * (RANKS - 1)
        first, second = x.nonzero()
        assert first.layout is second.layout
        assert first.layout.is_counted
        assert first.placements == (Shard(0),)
        whole = x.redistribute([Replicate()])
        with CommLog() as log:
            assert whole.nonzero()[0].placements == (Replicate(),)
        assert log.count() == 0
        tiles = x.redistribute([Shard(1)])
        with CommLog() as log:  # truth values are cut along the first axis
            found = tiles.nonzero()
        assert log.bytes() == 30000 // RANKS + 8 * (RANKS - 1)
        agrees(found[1], np.nonzero(host(x.full_array()))[1])

    on_ranks(program)


def test_places_of_partial_arrays_are_those_of_their_sums() -> None:
    def program() -> None:
        mesh = da.init_device_mesh((RANKS,))
        own = np.array([1.0, 0.0, (-1.0) ** mesh.rank])
        x = da.DistArray.from_local(own, mesh, [Partial()])
        agrees(da.flatnonzero(x), np.array([0]))

    on_ranks(program)


def test_arrays_without_axes_have_no_places() -> None:
    def program() -> None:
        for function in (da.nonzero, da.where, np.nonzero):
            with pytest.raises(ArgumentError, match="without axes"):
                function(da.asarray(3))
        with pytest.raises(ArgumentError, match="both values or neither"):
            da.where(da.ones(3) > 0, 1)
        assert da.argwhere(da.asarray(3)).shape == (1, 0)
        assert da.argwhere(da.asarray(0)).shape == (0, 0)

    on_ranks(program)


def test_functions_of_numpy_give_distributed_places() -> None:
    def program() -> None:
        values = np.arange(12).reshape(3, 4) % 3
        x = da.asarray(values)
        for found, expected in zip(np.nonzero(x), np.nonzero(values), strict=True):
            agrees(found, expected)
        agrees(np.argwhere(x), np.argwhere(values))
        agrees(np.flatnonzero(x), np.flatnonzero(values))
        agrees(np.where(x)[0], np.where(values)[0])
        plain: Any = da.nonzero(values)
        assert isinstance(plain[0], np.ndarray)

    on_ranks(program)
