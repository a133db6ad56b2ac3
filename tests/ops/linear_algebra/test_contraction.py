"""Products agree with NumPy for operands of any layout, and move the least they can."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distarray.array._array import distribute_array
from distarray.comm import CommLog, DeviceMesh, init_device_mesh
from distarray.core.engine._policy import communication
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    DTypeError,
    ImplicitCommunicationError,
    MeshError,
    ShapeError,
)
from distarray.layout import Partial, Replicate, Shard
from distarray.ops.linear_algebra import _contraction as contraction
from distarray.ops.linear_algebra._einsum import einsum
from tests.array.strategies import MESH_SHAPES, Case, agrees, cases, on_ranks

DTYPES = (np.float64, np.float64, np.int32, np.uint8, np.bool_, np.complex128, np.float32)
SIZES = st.sampled_from((0, 1, 2, 3, 5, 8))
CLOSE = {"rtol": 1e-6, "atol": 1e-6}


def ops_for(dtype: Any) -> tuple[str, ...]:
    """Return Partial ops that values of a dtype may have."""
    return ("any",) if np.dtype(dtype) == bool else ("sum", "avg")


@st.composite
def operands(draw: Any, *shapes: tuple[int, ...]) -> list[Case]:
    """Draw one case per shape, on one mesh."""
    mesh_shape = draw(st.sampled_from(MESH_SHAPES))
    found = []
    for shape in shapes:
        dtype = draw(st.sampled_from(DTYPES))
        found.append(draw(cases((dtype,), ops_for(dtype), mesh_shape, shape)))
    return found


@st.composite
def matrix_shapes(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Draw two shapes that matmul takes."""
    rows, inner, columns = draw(SIZES), draw(SIZES), draw(SIZES)
    batch = draw(st.lists(st.sampled_from((1, 2, 3)), max_size=2))
    left, right = (
        tuple(1 if draw(st.integers(0, 3)) == 0 else n for n in batch[draw(st.integers(0, 2)) :])
        for _ in range(2)
    )
    first = (*left, rows, inner) if draw(st.integers(0, 3)) else (inner,)
    second = (*right, inner, columns) if draw(st.integers(0, 3)) else (inner,)
    return first, second


def exact(result: Any, expected: Any) -> None:
    """Check a product of small integers, which is exact in every dtype but after an average."""
    tolerance = CLOSE if np.asarray(expected).dtype.kind in "fc" else {}
    agrees(result, expected, **tolerance)


@settings(max_examples=75)
@given(data=st.data())
def test_matmul_agrees_with_numpy(data: st.DataObject) -> None:
    left, right = data.draw(operands(*data.draw(matrix_shapes())))
    plain = data.draw(st.sampled_from((None, None, "left", "right")))

    def program() -> None:
        a = left.value if plain == "left" else left.build()
        b = right.value if plain == "right" else right.build()
        exact(a @ b, left.value @ right.value)
        exact(contraction.matmul(a, b), left.value @ right.value)  # from memory

    on_ranks(program)


@settings(max_examples=25)
@given(data=st.data())
def test_dot_outer_and_inner_agree_with_numpy(data: st.DataObject) -> None:
    shapes = st.lists(SIZES, max_size=3).map(tuple)
    first = data.draw(shapes)
    second = list(data.draw(shapes))
    if first and second:
        second[-2 if len(second) > 1 else 0] = first[-1]
    third = (*data.draw(shapes)[:2], first[-1]) if first else data.draw(shapes)
    a, b, c = data.draw(operands(first, tuple(second), third))

    def program() -> None:
        exact(contraction.dot(a.build(), b.build()), np.dot(a.value, b.value))
        exact(np.dot(a.build(), b.value), np.dot(a.value, b.value))
        exact(contraction.inner(a.build(), c.build()), np.inner(a.value, c.value))
        exact(contraction.outer(a.build(), b.build()), np.outer(a.value, b.value))

    on_ranks(program)


@pytest.mark.parametrize("name", ["dot", "inner", "kron", "outer"])
@pytest.mark.parametrize("number", [2, 0.5, True, 1j])
def test_numbers_have_the_dtypes_that_numpy_gives_them(name: str, number: Any) -> None:
    value = np.arange(5, dtype=np.float32)

    def program() -> None:
        x, function = distribute_array(value, src=None), getattr(np, name)
        exact(function(x, number), function(value, number))
        exact(function(number, x), function(number, value))

    on_ranks(program)


def test_outer_keeps_the_signs_of_zeros() -> None:
    def program() -> None:
        x = distribute_array(np.array([0.0, 1.0, -3.0]), src=None)
        agrees(
            np.signbit(contraction.outer(x, -x)), np.signbit(np.outer([0, 1, -3], [-0.0, -1, 3]))
        )

    on_ranks(program)


@settings(max_examples=25)
@given(data=st.data())
def test_vecdot_and_tensordot_agree_with_numpy(data: st.DataObject) -> None:
    inner, one, two = data.draw(SIZES), data.draw(SIZES), data.draw(SIZES)
    a, b = data.draw(operands((one, inner, two), (inner, data.draw(st.sampled_from((1, two))))))
    c, d = data.draw(operands((one, inner, two), (two, one, inner)))

    def program() -> None:
        exact(
            contraction.vecdot(a.build(), b.build(), axis=-2), np.vecdot(a.value, b.value, axis=-2)
        )
        exact(np.vecdot(c.build(), c.build(), axis=0), np.vecdot(c.value, c.value, axis=0))
        for axes in (1, ((2,), (0,)), ((0, 2), (1, 0)), ((0, -2, 2), (1, 2, 0)), 0):
            if axes == 1 and two != c.shape[2]:
                continue
            exact(
                contraction.tensordot(c.build(), d.build(), axes=axes),
                np.tensordot(c.value, d.value, axes),
            )

    on_ranks(program)


@settings(max_examples=38)
@given(data=st.data())
def test_einsum_agrees_with_numpy(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 3))
    sizes = {letter: data.draw(SIZES) for letter in "ijkl"}
    subscripts = [
        "".join(data.draw(st.lists(st.sampled_from("ijkl"), unique=True, max_size=3)))
        for _ in range(count)
    ]
    known = sorted(set("".join(subscripts)))
    right = data.draw(st.lists(st.sampled_from(known), unique=True)) if known else []
    text = ",".join(subscripts)
    if data.draw(st.booleans()):
        text += "->" + "".join(right)
    shapes = [tuple(sizes[letter] for letter in letters) for letters in subscripts]
    parts = data.draw(operands(*shapes))
    expected = np.einsum(text, *[part.value for part in parts])

    def program() -> None:
        built = [part.build() for part in parts]
        exact(einsum(text, *built), expected)
        exact(np.einsum(text, built[0], *[part.value for part in parts[1:]]), expected)

    on_ranks(program)


@settings(max_examples=20)
@given(data=st.data())
def test_einsum_with_ellipses_and_diagonals_agrees_with_numpy(data: st.DataObject) -> None:
    n, m, batch = data.draw(SIZES), data.draw(SIZES), data.draw(SIZES)
    text, shapes = data.draw(
        st.sampled_from(
            [
                ("...ij,...jk->...ik", [(batch, 1, n, m), (batch, m, n)]),
                ("...ij,jk", [(batch, n, m), (m, n)]),
                ("i...,i...->...", [(n, m), (n, batch, 1)]),
                ("...,...", [(n, m), ()]),
                ("...->...", [(n, m, batch)]),
                ("ii", [(n, n)]),
                ("ii->i", [(n, n)]),
                ("iji->j", [(n, m, n)]),
                ("iii,i->i", [(n, n, n), (n,)]),
                ("...ii->...i", [(batch, n, n)]),
                ("i...i", [(n, m, n)]),
                ("ij->...ji", [(n, m)]),
            ]
        )
    )
    parts = data.draw(operands(*shapes))
    expected = np.einsum(text, *[part.value for part in parts])

    def program() -> None:
        exact(einsum(text, *[part.build() for part in parts]), expected)
        exact(np.einsum(text, parts[0].build(), *[p.value for p in parts[1:]]), expected)

    on_ranks(program)


def test_lists_are_multiplied_into_an_array() -> None:
    out = distribute_array(np.zeros((2, 2)))
    assert einsum("ij,kj->ik", [[1, 2], [3, 4]], [[5, 6], [7, 8]], out=out) is out
    agrees(out, np.array([[17.0, 23], [39, 53]]))


R, P = Replicate(), Partial("sum")


@pytest.mark.parametrize(
    ("left", "right", "placed", "received"),
    [
        (Shard(0), R, Shard(0), 0),
        (R, Shard(1), Shard(1), 0),
        (Shard(1), Shard(0), P, 0),
        (P, R, R, 2 * 3 * 640 * 64 * 8 // 4),
        (R, P, R, 2 * 3 * 64 * 64 * 8 // 4),
        (R, R, R, 0),
        (Shard(0), Shard(0), Shard(0), 3 * 64 * 16 * 8),
        (Shard(0), Shard(1), Shard(0), 3 * 64 * 16 * 8),
    ],
)
def test_matmul_moves_only_what_the_layouts_make_it(
    left: Any, right: Any, placed: Any, received: int
) -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        a = distribute_array(np.ones((640, 64)), mesh, [left], src=None)
        b = distribute_array(np.ones((64, 64)), mesh, [right], src=None)
        with CommLog() as log:
            y = a @ b
        assert y.placements == (placed,)
        assert log.bytes() <= received
        if not received:
            with communication("raise"):
                a @ b
        else:
            with communication("raise"), pytest.raises(ImplicitCommunicationError):
                a @ b
        agrees(y, np.ones((640, 64)) @ np.ones((64, 64)))

    on_ranks(program)


def test_smaller_operand_is_gathered() -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        small = distribute_array(np.ones((8, 400)), mesh, [Shard(0)], src=None)
        large = distribute_array(np.ones((400, 400)), mesh, [Shard(1)], src=None)
        assert (small @ large).placements == (Shard(1),)
        assert (large.T @ small.T).placements == (Shard(0),)

    on_ranks(program)


def test_matmul_on_a_2d_mesh_keeps_rows_and_columns_where_they_are() -> None:
    def program() -> None:
        mesh = init_device_mesh((2, 2))
        a = distribute_array(np.ones((8, 6)), mesh, [Shard(0), R], src=None)
        b = distribute_array(np.ones((6, 4)), mesh, [R, Shard(1)], src=None)
        with communication("raise"):
            y = a @ b
        assert y.placements == (Shard(0), Shard(1))
        k = distribute_array(np.ones((8, 6)), mesh, [Shard(0), Shard(1)], src=None)
        c = distribute_array(np.ones((6, 4)), mesh, [R, Shard(0)], src=None)
        with communication("raise"):
            assert (k @ c).placements == (Shard(0), P)

    on_ranks(program)


def test_operands_on_sub_meshes_meet_on_the_parent() -> None:
    def program() -> None:
        mesh = init_device_mesh((2, 2), ("dp", "tp"))
        whole = np.arange(24.0).reshape(4, 6)
        a = distribute_array(whole, mesh, [Shard(0), R], src=None)
        b = distribute_array(whole.T, mesh["tp"], [Shard(1)], src=None)
        y = a @ b
        assert y.placements == (Shard(0), Shard(1))
        agrees(y, whole @ whole.T)
        with pytest.raises(MeshError):
            a @ distribute_array(whole.T, DeviceMesh([0, 1]), [R], src=None)

    on_ranks(program)


def test_booleans_multiply_by_or() -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        whole = np.arange(64).reshape(8, 8) % 5 == 0
        a = distribute_array(whole, mesh, [Shard(1)], src=None)
        b = distribute_array(whole, mesh, [Shard(0)], src=None)
        y = a @ b
        assert y.placements == (Partial("any"),)
        agrees(y, whole @ whole)

    on_ranks(program)


def test_small_integers_are_reduced_before_they_are_widened() -> None:
    def program() -> None:
        x = Case((4,), (P,), np.full((4, 2, 2), 100, np.uint8)).build()
        agrees(x @ np.ones((2, 2)), np.full((2, 2), 400 % 256, np.uint8) @ np.ones((2, 2)))
        agrees(
            x @ np.ones((2, 2), np.int64),
            np.full((2, 2), 144, np.uint8) @ np.ones((2, 2), np.int64),
        )

    on_ranks(program)


def test_in_place_and_out_write_into_their_array() -> None:
    def program() -> None:
        whole = np.arange(16.0).reshape(4, 4)
        x = distribute_array(whole, init_device_mesh((4,)), [Shard(1)], src=None)
        before = x.layout
        x @= whole
        assert x.layout is before
        agrees(x, whole @ whole)
        assert np.matmul(whole, whole.T, out=x) is x
        agrees(x, whole @ whole.T)
        n = distribute_array(np.eye(4, dtype=int), init_device_mesh((4,)), [R], src=None)
        with pytest.raises(DTypeError):
            n @= whole

    on_ranks(program)


@pytest.mark.parametrize(("shape", "other"), [((3,), (3,)), ((3, 3), (3, 1)), ((3, 3), (3,))])
def test_in_place_product_of_another_shape_is_not_spread_over_the_array(
    shape: tuple[int, ...], other: tuple[int, ...]
) -> None:
    def program() -> None:
        x = distribute_array(np.ones(shape), init_device_mesh((4,)), [Shard(0)], src=None)
        with pytest.raises(ShapeError, match="write x = x @ y"):
            x @= np.full(other, 2.0)
        agrees(x, np.ones(shape))

    on_ranks(program)


OUT: dict[str, Any] = {
    "matmul": lambda np, x, y, z: np.matmul(x, y, out=z),
    "dot": lambda np, x, y, z: np.dot(x, y, out=z),
    "dot of more axes": lambda np, x, y, z: np.dot(x[None], y[None], out=z[None, :, None]),
    "dot of a number": lambda np, x, y, z: np.dot(x, 2.5, out=z),
    "method": lambda np, x, y, z: x.dot(y, z),
    "outer": lambda np, x, y, z: np.outer(x[:, 0], y[1], out=z),
    "einsum": lambda np, x, y, z: np.einsum("ij,kj->ki", x, y, out=z),
    "einsum of itself": lambda np, x, y, z: np.einsum("ij->ji", z, out=z),
}


@pytest.mark.parametrize("name", OUT)
@settings(max_examples=6)
@given(data=st.data())
def test_products_are_written_into_out(name: str, data: st.DataObject) -> None:
    mesh_shape = data.draw(st.sampled_from(MESH_SHAPES))
    dtypes = (np.float64,), ("sum",)
    x, y, z = (data.draw(cases(*dtypes, mesh_shape, (5, 5))) for _ in range(3))

    def program() -> None:
        into = z.build()
        layout = into.layout
        known = z.value.copy()
        result = OUT[name](np, x.value, y.value, known)
        found = OUT[name](np, x.build(), y.build(), into)
        if name == "dot of more axes":  # of a view
            found, result = found[0, :, 0], result[0, :, 0]
        else:
            assert found is into
        assert into.layout is layout
        agrees(into, known, **CLOSE)
        agrees(found, result, **CLOSE)

    on_ranks(program)


@pytest.mark.parametrize("name", ["matmul", "dot", "einsum", "outer"])
def test_an_out_that_does_not_fit_is_refused_and_nothing_is_sent(name: str) -> None:
    def program() -> None:
        x = distribute_array(np.ones((4, 4)), init_device_mesh((4,)), [Shard(0)], src=None)
        y = distribute_array(np.ones((4, 4)), init_device_mesh((4,)), [Shard(1)], src=None)
        with CommLog() as log:
            for into, error in (
                (np.zeros((4, 4)), ArgumentTypeError),
                (y[:3], ShapeError),
                (y.astype(int), DTypeError),
            ):
                with pytest.raises(error):
                    OUT[name](np, x, y, into)
        assert log.count() == 0

    on_ranks(program)


def test_process_outside_the_mesh_takes_part_with_empty_blocks() -> None:
    def program() -> None:
        whole = np.arange(24.0).reshape(4, 6)
        x = distribute_array(whole, DeviceMesh([3, 1]), [Shard(0)], src=None)
        agrees(x @ x.T, whole @ whole.T)
        agrees(x @ np.ones(6), whole @ np.ones(6))
        agrees(einsum("ij->j", x), whole.sum(0))
        agrees(contraction.vecdot(x, x), (whole * whole).sum(1))

    on_ranks(program)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x: x @ x, ShapeError),
        (lambda x: x @ np.ones(4), ShapeError),
        (lambda x: contraction.matmul(x, np.float64(2)), ShapeError),
        (lambda x: np.ones((3, 2, 4)) @ x[None, None].reshape(2, 2, 2, 6), ShapeError),
        (lambda x: contraction.matmul(np.ones((2, 2)), np.ones((2, 2))), ArgumentTypeError),
        (lambda x: x @ np.array(["a"] * 6), DTypeError),
        (lambda x: contraction.vecdot(x, x[:, :3]), ShapeError),
        (lambda x: contraction.vecdot(x, x[:, 0], axis=1), AxisError),
        (lambda x: contraction.tensordot(x, x, axes=3), ArgumentError),
        (lambda x: contraction.tensordot(x, x, axes=((0,), (1,))), ShapeError),
        (lambda x: contraction.tensordot(x, x, axes=((0,), (0, 1))), ArgumentError),
        (lambda x: contraction.tensordot(x, x, axes=((2,), (0,))), AxisError),
        (lambda x: einsum("ij,jk", x), ArgumentError),
        (lambda x: einsum("ii", x), ShapeError),
        (lambda x: einsum("ij->ii", x), ArgumentError),
        (lambda x: einsum("i", x), ShapeError),
        (lambda x: einsum("ij->k", x), ArgumentError),
        (lambda x: einsum("ij,ji->", x, x), ShapeError),
        (lambda x: einsum("i...->i", x), ArgumentError),
        (lambda x: einsum("..i", x), ArgumentError),
        (lambda x: einsum("...i,...", x), ArgumentError),
        (lambda x: einsum("...ijk", x), ShapeError),
        (lambda x: einsum(x, [0, 1]), ArgumentTypeError),
        (lambda x: np.matmul(x, np.ones((6, 4)), out=np.empty((4, 4))), ArgumentTypeError),
    ],
)
def test_bad_operands_raise_on_every_rank_and_send_nothing(call: Any, error: Any) -> None:
    def program() -> None:
        whole = np.arange(24.0).reshape(4, 6)
        x = distribute_array(whole, init_device_mesh((4,)), [Shard(0)], src=None)
        with CommLog() as log, pytest.raises(error):
            call(x)
        assert log.count() == 0
        agrees(x @ whole.T, whole @ whole.T)

    on_ranks(program)


@pytest.mark.host_only  # CuPy has no long double
def test_einsum_gives_numpy_no_empty_blocks_of_long_double(monkeypatch: Any) -> None:
    seen: list[Any] = []
    plain = np.einsum

    def watch(subscripts: Any, *blocks: Any, **options: Any) -> Any:
        seen.extend(blocks)
        return plain(subscripts, *blocks, **options)

    x, y = np.arange(1, 3, dtype=np.longdouble), np.arange(1, 6, dtype=np.float64)
    expected = np.multiply.outer(x, y)
    monkeypatch.setattr(np, "einsum", watch)

    def program() -> None:
        agrees(einsum("i,j", *(distribute_array(one) for one in (x, y))), expected)

    on_ranks(program)
    blocks = [one for one in seen if isinstance(one, np.ndarray)]
    assert not all(one.size for one in blocks)
    assert all(one.size for one in blocks if one.dtype == np.longdouble)
