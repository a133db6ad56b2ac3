"""Where operators leave results and what they move: Partial kept or reduced, meshes, policy."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from distarray.array._array import DistArray, distribute_array
from distarray.comm import CommLog, DeviceMesh, _backend, init_device_mesh
from distarray.core.engine._policy import communication
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    ImplicitCommunicationError,
    MeshError,
    ShapeError,
)
from distarray.layout import Layout, Partial, Replicate, Shard
from distarray.ops.elementwise import _arithmetic as arithmetic
from tests.array.strategies import agrees, on_ranks
from tests.on_device import host

R = Replicate()


def _partial(mesh: Any, op: str, dtype: Any = np.float64) -> DistArray:
    block = (np.arange(6).reshape(2, 3) * (1 + mesh.rank)).astype(dtype)
    return DistArray.from_local(block, mesh, [Partial(op)])


def test_what_is_exact_of_sums_stays_partial_and_sends_nothing() -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        with CommLog() as log:
            x = _partial(mesh, "sum", np.int64)
            r = distribute_array(np.ones((2, 3), np.int64), mesh, [R], src=None)
            for result in (
                x + x, x - x, x * 2, 2 * x, -x, +x, x * r, r * x, x.copy(), np.int32(3) * x,
                x * np.full((2, 3), 2), x.conj(), x.T, x.sum(0),
            ):  # fmt: skip
                assert result.placements == (Partial("sum"),)
            x = _partial(mesh, "prod", np.int64)
            assert (x * x).placements == (Partial("prod"),)
            for op in ("sum", "avg"):
                x = _partial(mesh, op)
                for result in (x.copy(), x.T, x[0], x.reshape(-1)):
                    assert result.placements == (Partial(op),)
            for result in (
                arithmetic.maximum(_partial(mesh, "max"), 3.0), _partial(mesh, "max").max(0),
            ):  # fmt: skip
                assert result.placements == (Partial("max"),)
        assert log.count("all_reduce") == 0
        assert log.count("all_gather") == 0

    on_ranks(program)


LARGE = 0.75  # of the largest number: parts of it may not be doubled, their sum may


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.float16])
def test_arithmetic_of_sums_overflows_only_where_their_values_do(dtype: Any) -> None:
    top = np.finfo(dtype).max
    parts = (np.array([LARGE, -0.5, 0.0, 0.0]) * float(top)).astype(dtype)
    value = parts.sum()

    def program() -> None:
        x = distribute_array(parts, init_device_mesh((4,)), [Shard(0)]).sum()
        twice = distribute_array(np.array([parts, parts]), init_device_mesh((4,)), [Shard(1)])
        with np.errstate(all="ignore"):
            agrees(x, value)
            for function in (
                lambda s: s * 2, lambda s: 2 * s, lambda s: s / dtype(0.5), lambda s: s + s,
                lambda s: s - (-s), lambda s: s * dtype(np.inf), lambda s: s / 0, lambda s: -s,
                lambda s: s * 0, np.conj, np.real, lambda s: s.astype(np.complex128) * 2,
            ):  # fmt: skip
                agrees(function(x), function(value))
            agrees(twice.sum(1).sum(), value + value)
            agrees(twice.sum(1) @ np.ones(2, dtype), np.full(2, value, dtype) @ np.ones(2, dtype))

    on_ranks(program)


def test_everything_else_reduces_partial_first() -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        for op in ("sum", "max", "avg"):
            x = _partial(mesh, op)
            full = host(x.full_array())
            r = distribute_array(np.full((2, 3), 2.0), mesh, [R], src=None)
            with np.errstate(all="ignore"):
                for result, expected in (
                    (x + 1, full + 1),
                    (x + r, full + 2),
                    (1 - x, 1 - full),
                    (x * x, full * full),
                    (x / 0, full / 0),
                    (x * np.inf, full * np.inf),
                    (x / r, full / 2),
                    (6 / (x + 1), 6 / (full + 1)),
                    (x**2, full**2),
                    (abs(x), abs(full)),
                    (x > 3, full > 3),
                    (x.astype(np.int32), full.astype(np.int32)),
                    (x.astype(np.complex128), full.astype(np.complex128)),
                    (x * 2.0, full * 2),
                    (x / 4, full / 4),
                    (-x, -full),
                    (x * r, full * 2),
                    (x + x, full + full),
                    (x.sum(0), full.sum(0)) if op == "sum" else (x + 0, full),
                ):
                    assert not result.layout.has_partial
                    agrees(result, expected)
        x = _partial(mesh, "max")
        agrees(x + x, 2 * host(x.full_array()))
        agrees(x * 2.0, 2 * host(x.full_array()))

    on_ranks(program)


def test_integer_sums_wrap_at_their_own_width_before_they_widen() -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        x = DistArray.from_local(np.full(3, 100, np.int8), mesh, [Partial("sum")])
        expected = np.full(3, 400 % 256 - 256, np.int8)
        agrees(x, expected)
        agrees(x / 2, expected / 2)
        agrees(x * 2.5, expected * 2.5)
        agrees(x + np.ones(3, np.int32), expected + np.ones(3, np.int32))
        agrees(x.sum(), expected.sum())
        agrees(x.mean(), expected.mean())

    on_ranks(program)


def test_identical_layouts_add_without_communication_and_reuse_the_layout() -> None:
    def program() -> None:
        mesh = init_device_mesh((2, 2))
        x = distribute_array(np.arange(70.0).reshape(7, 10), mesh, [Shard(0), Shard(1)])
        with CommLog() as log, communication("raise"):
            y = x + x * 2 - 1
        assert log.count() == 0
        assert y.layout is x.layout

    on_ranks(program)


def test_replicated_operands_are_sliced_and_not_sent() -> None:
    def program() -> None:
        mesh = init_device_mesh((2, 2))
        value = np.arange(70.0).reshape(7, 10)
        x = distribute_array(value, mesh, [Shard(0), Shard(1)])
        r = distribute_array(value, mesh, [R, R])
        with CommLog() as log, communication("raise"):
            y = x + r + value + value[0] + value[:, :1]
        assert log.count() == 0
        agrees(y, value + value + value + value[0] + value[:, :1])
        assert y.placements == (Shard(0), Shard(1))

    on_ranks(program)


def test_the_smaller_operand_is_the_one_that_moves() -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        x = distribute_array(np.ones((400, 100)), mesh, [Shard(0)])
        row = distribute_array(np.ones(100), mesh, [Shard(0)])
        for y in (x + row, row + x):
            assert y.placements == (Shard(0),)
            agrees(y, np.full((400, 100), 2.0))

    on_ranks(program)


def test_boundaries_and_shard_order_of_an_operand_are_kept() -> None:
    def program() -> None:
        mesh = init_device_mesh((2, 2))
        value = np.arange(22.0).reshape(11, 2)
        odd = Layout(
            mesh,
            [Shard(0), Shard(0)],
            (11, 2),
            shard_order=(1, 0),
            boundaries={0: (0, 1, 1, 9, 11)},
        )
        template = distribute_array(value, mesh, [R, R])
        box = odd.local_box()
        assert box is not None
        x = template._new(_backend.asarray(value[box[0][0] : box[0][1]].copy(), mesh.device), odd)
        y = distribute_array(value, mesh, [Shard(0), R])
        assert (x + template).layout is odd
        assert (x * x).layout is odd
        agrees(x + template, 2 * value)
        agrees(x + y, 2 * value)
        agrees(y + x, 2 * value)

    on_ranks(program)


def test_submesh_operands_count_as_replicated_along_the_other_axes() -> None:
    def program() -> None:
        mesh = init_device_mesh((2, 2), ("dp", "tp"))
        value = np.arange(24.0).reshape(4, 6)
        x = distribute_array(value, mesh, [Shard(0), Shard(1)])
        row = distribute_array(value[0], mesh["tp"], [Shard(0)])
        column = distribute_array(value[:, :1], mesh["dp"], [Shard(0)])
        with CommLog() as log:
            y = x + row
            z = column * row
        assert log.count() == 0
        agrees(y, value + value[0])
        agrees(z, value[:, :1] * value[0])
        assert y.mesh is mesh
        assert z.mesh is mesh
        x += row
        agrees(x, value + value[0])

    on_ranks(program)


def test_unrelated_meshes_raise_before_anything_is_sent() -> None:
    def program() -> list[str]:
        a = init_device_mesh((4,))
        b = DeviceMesh([3, 2, 1, 0])
        x, y = (distribute_array(np.arange(8.0), mesh, [Shard(0)]) for mesh in (a, b))
        messages = []
        with CommLog() as log:
            for call in (lambda: x + y, lambda: y * x, lambda: arithmetic.add(x, x, out=y)):
                with pytest.raises(MeshError) as caught:
                    call()
                messages.append(str(caught.value))
            with pytest.raises(ShapeError):
                x + np.ones(7)
            with pytest.raises(DTypeError):
                x & x
            with pytest.raises(ArgumentTypeError):
                arithmetic.add(x, object())
            with pytest.raises(TypeError):
                x + "a"
        assert log.count() == 0
        agrees(x + y.redistribute([Shard(0)], mesh=a), 2 * np.arange(8.0))
        return messages

    results = on_ranks(program)
    assert all(messages == results[0] for messages in results)


def test_policy_refuses_implicit_movement_and_names_operation_and_bytes() -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        x = distribute_array(np.ones((8, 8)), mesh, [Shard(0)])
        y = distribute_array(np.ones((8, 8)), mesh, [Shard(1)])
        outs = [distribute_array(np.ones((8, 8)), mesh, [Shard(1)]) for _ in range(2)]
        with communication("raise"), CommLog() as log:
            for name, call in (
                ("add", lambda: x + y),
                ("astype", lambda: x.sum(axis=0).astype(np.float32)),
                ("divmod", lambda: np.divmod(x, 2.0, out=tuple(outs))),
                ("add", lambda: x.__iadd__(y)),
                ("sqrt", lambda: np.sqrt(x.sum())),
                ("asarray", lambda: np.asarray(x)),
            ):
                with pytest.raises(ImplicitCommunicationError, match=name) as caught:
                    call()
                assert "bytes" in str(caught.value)
                assert "redistribute" in str(caught.value)
        assert log.count() == 0
        with communication("raise"):
            x.redistribute([Shard(1)])
            assert float(x.sum()) == 64
            x.full_array()
        with communication("raise", min_bytes=10_000):
            agrees(x + y, np.full((8, 8), 2.0))
        with communication("raise"), communication("allow"):
            agrees(x + y, np.full((8, 8), 2.0))

    on_ranks(program)


def test_policy_warns_of_implicit_movement_and_does_it() -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        x = distribute_array(np.ones((8, 8)), mesh, [Shard(0)])
        y = distribute_array(np.ones((8, 8)), mesh, [Shard(1)])
        with communication("warn"):
            agrees(x + y, np.full((8, 8), 2.0))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        on_ranks(program)
    assert any("add would move an operand" in str(one.message) for one in caught)


def test_policy_refuses_unknown_modes() -> None:
    with pytest.raises(ArgumentError, match="ask"), communication("ask"):
        pass
    with pytest.raises(ArgumentError, match="-1"), communication("raise", min_bytes=-1):
        pass
    with pytest.raises(TypeError, match="min_bytes"), communication("raise", min_bytes="many"):
        pass
