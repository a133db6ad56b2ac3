"""Users' functions get what NumPy's would; what one raises on one process is raised on all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray import Shard
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    CommunicationError,
    DTypeError,
    MeshError,
    ShapeError,
)
from distarray.testing import simulate
from tests.array.strategies import agrees, cases, on_ranks

DTYPES = tuple(map(np.dtype, ("f8", "i4", "c16")))


@settings(max_examples=15)
@given(data=st.data(), kind=st.integers(0, 3))
def test_lines_become_what_the_function_returns(data: st.DataObject, kind: int) -> None:
    shape = tuple(data.draw(st.lists(st.sampled_from((1, 2, 3, 5)), min_size=1, max_size=3)))
    case = data.draw(cases(DTYPES, ("sum",), shape=shape))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    function: Any = (np.cumsum, np.sum, lambda v: np.outer(v, v[:2]), lambda v: v[0] == 1)[kind]
    expected = np.apply_along_axis(function, axis, case.value)

    def program() -> None:
        x = case.build()
        if x.mesh.coordinate is None:
            with pytest.raises(MeshError):
                da.apply_along_axis(function, axis, x)
            return
        agrees(da.apply_along_axis(function, axis, x), expected)

    on_ranks(program)


def test_lines_move_once_and_a_long_one_is_refused() -> None:
    def program() -> int:
        x = da.ones((64, 64), mesh=da.init_device_mesh((4,)))
        with da.CommLog() as log:
            y = da.apply_along_axis(np.sort, 0, x)
        assert y.placements == (Shard(1),)
        with pytest.raises(ArgumentError, match="whole"):
            da.apply_along_axis(np.sort, 0, da.ones(200_000))
        return log.bytes()

    assert max(simulate(4, program)) <= 16 * 64 * 8 + 1024


def test_errors_of_functions_are_raised_on_all_ranks() -> None:
    def refuse(value: Any) -> Any:
        if np.any(value == 3):
            raise KeyError("three")
        return value

    def program() -> None:
        x = da.arange(8, mesh=da.init_device_mesh((4,))).reshape(4, 2)
        error = KeyError if x.mesh.rank == 1 else CommunicationError
        with pytest.raises(error, match="three"):
            da.apply_along_axis(refuse, 1, x)
        with pytest.raises(error, match="three"):
            da.vectorize(refuse, otypes="l")(x)
        with pytest.raises(error, match="three"):
            da.piecewise(x, [x >= 0], [refuse])
        with pytest.raises(ShapeError, match="equal"):
            da.apply_along_axis(lambda line: line[: 1 + line[0] // 4], 1, x)
        with pytest.raises(DTypeError, match="int64 and float64"):
            da.apply_along_axis(lambda line: line[0] / 4 if line[0] > 3 else line[0], 1, x)

    simulate(4, program)


@settings(max_examples=15)
@given(data=st.data(), told=st.booleans())
def test_vectorized_functions_agree_with_numpys(data: st.DataObject, told: bool) -> None:
    shape = tuple(data.draw(st.lists(st.sampled_from((1, 2, 3, 5)), max_size=2)))
    x = data.draw(cases((np.dtype("f8"), np.dtype("i4")), ("sum",), shape=shape))
    y = data.draw(cases((np.dtype("i8"),), (), x.mesh_shape, shape[1:]))

    def function(a: Any, b: Any) -> Any:
        return (a, b * 2) if a > b else (b, a)

    types = "dd" if told else None
    expected = np.vectorize(function, types)(x.value, y.value)

    def program() -> None:
        operands = x.build(), y.build()
        if operands[0].mesh.coordinate is None and not told:
            with pytest.raises(MeshError):
                da.vectorize(function, types)(*operands)
            return
        found = da.vectorize(function, types)(*operands)
        for result, wanted in zip(found, expected, strict=True):
            agrees(result, wanted)

    on_ranks(program)


def test_vectorize_of_other_arguments() -> None:
    def program() -> None:
        assert da.vectorize(abs)(np.array([-1])) == 1
        x = da.arange(3)
        with pytest.raises(ArgumentTypeError):
            da.vectorize(abs, signature="(n)->(n)")(x)
        with pytest.raises(ArgumentTypeError):
            da.vectorize(abs)(x=x)
        with pytest.raises(ArgumentError, match="otypes"):
            da.vectorize(abs)(x[:0])
        agrees(da.vectorize(abs, otypes="i")(x[:0]), np.zeros(0, "i"))

    simulate(2, program)


@pytest.mark.host_only
def test_text_is_as_long_on_all_ranks_as_the_longest() -> None:
    def program() -> None:
        x = da.distribute_array(np.array([8, 9, 10, 11]))
        agrees(da.vectorize(str)(x), np.array(["8", "9", "10", "11"]))
        texts, counts = da.vectorize(lambda n: ("x" * n, n))(x)
        agrees(texts, np.array(["x" * n for n in (8, 9, 10, 11)]))
        agrees(counts, np.array([8, 9, 10, 11]))

    simulate(3, program)


def test_a_function_of_pieces_is_called_only_where_there_are_items() -> None:
    def program() -> None:
        value = np.arange(-4, 4)
        x = da.asarray(value, mesh=da.init_device_mesh((4,)))
        negative, rest = (lambda v, by: -v * by), (lambda v, by: v.min() * 0 + by)
        expected = np.piecewise(value, [value < -1], [negative, rest], 3)
        agrees(da.piecewise(x, [x < -1], [negative, rest], 3), expected)
        agrees(da.piecewise(x, value < -1, [negative, rest], by=3), expected)
        agrees(
            da.piecewise(x, [x < -1], [x.min(), x.sum()]),
            np.piecewise(value, [value < -1], [value.min(), value.sum()]),
        )
        stacked = da.stack([x < -1, x > 1])
        agrees(
            da.piecewise(x, stacked, [1, 2, 3]),
            np.piecewise(value, np.stack([value < -1, value > 1]), [1, 2, 3]),
        )
        with pytest.raises(ArgumentError):
            da.piecewise(x, [x < 0], [])
        with pytest.raises(ShapeError):
            da.piecewise(x, [x[:2] < 0], [1])
        with pytest.raises(ArgumentTypeError):
            da.piecewise(x, None, [1])

    simulate(4, program)


@settings(max_examples=15)
@given(data=st.data())
def test_select_takes_the_first_condition_that_holds(data: st.DataObject) -> None:
    x = data.draw(cases(DTYPES, ("sum",)))
    y = data.draw(cases((np.dtype("f4"),), (), x.mesh_shape, x.shape[-1:]))
    a, b = x.value.real > 1, x.value.real > -1
    expected = np.select([a, b], [x.value, 2], y.value)

    def program() -> None:
        u, v = x.build(), y.build()
        agrees(da.select([u.real > 1, u.real > -1], [u, 2], v), expected)
        with pytest.raises(ArgumentTypeError):
            da.select([u], [u])
        with pytest.raises(ArgumentError):
            da.select([u.real > 1], [])

    on_ranks(program)
