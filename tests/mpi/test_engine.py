"""Operators, reductions, printing and numbers under real MPI agree with NumPy on every rank."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from distarray.array._array import DistArray, distribute_array
from distarray.comm import CommLog, DeviceMesh, default_mesh, world
from distarray.core.engine._policy import communication
from distarray.errors import ArgumentError, ImplicitCommunicationError, MeshError, ShapeError
from distarray.layout import Partial, Replicate, Shard

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60)]

VALUE = np.random.default_rng(5).normal(size=(7, 10))


def meshes() -> list[DeviceMesh]:
    """Return a mesh of all ranks, a grid where one fits, and one that leaves a rank out."""
    size = world().size
    found = [default_mesh()]
    if size == 4:
        found.append(DeviceMesh([[0, 1], [2, 3]], ("dp", "tp")))
    if size > 1:
        found.append(DeviceMesh(list(range(size - 1, 0, -1))))
    return found


def same(result: Any, expected: Any) -> None:
    """Check a result on this rank."""
    full = result.full_array()
    if result.mesh.coordinate is None:
        assert full.size == 0
    else:
        np.testing.assert_allclose(full, expected, rtol=1e-12, atol=1e-12)
    assert result.shape == np.shape(expected)
    assert result.dtype == np.asarray(expected).dtype


def test_operators_and_reductions_agree_for_all_pairs_of_placements() -> None:
    choices = (Replicate(), Shard(0), Shard(1))
    for mesh in meshes():
        for a, b in itertools.product(choices, repeat=2):
            x = distribute_array(VALUE, mesh, [a] * mesh.ndim)
            y = distribute_array(VALUE * 3, mesh, [b, *[Replicate()] * (mesh.ndim - 1)])
            same(x + y, VALUE + VALUE * 3)
            same(x * 2 - y[0], VALUE * 2 - VALUE[0] * 3)
            same(np.sqrt(abs(x)), np.sqrt(abs(VALUE)))
            same(x.sum(0) + y.sum(0), VALUE.sum(0) + (VALUE * 3).sum(0))
            x += y
            same(x, VALUE + VALUE * 3)


def test_every_reduction_agrees_and_its_value_is_on_every_rank() -> None:
    for mesh in meshes():
        for placement in (Shard(0), Shard(1)):
            x = distribute_array(VALUE, mesh, [placement] * mesh.ndim)
            for name in ("sum", "prod", "min", "max", "mean", "var", "std", "any", "all"):
                for axis in (None, 0, 1):
                    same(getattr(x, name)(axis), getattr(VALUE, name)(axis))
            for name in ("argmin", "argmax"):
                for axis in (None, 0, 1):
                    same(getattr(x, name)(axis), getattr(VALUE, name)(axis))
            if mesh.coordinate is not None:
                assert float(x.max()) == VALUE.max()
                assert int(x.argmax()) == VALUE.argmax()


def test_partial_of_every_op_reduces_when_its_value_is_needed() -> None:
    mesh = default_mesh()
    blocks = np.arange(1.0, 3.0 * mesh.size + 1).reshape(mesh.size, 3)
    for op, function in (("sum", np.sum), ("max", np.max), ("prod", np.prod), ("avg", np.mean)):
        x = DistArray.from_local(blocks[mesh.rank].copy(), mesh, [Partial(op)])
        expected = function(blocks, axis=0)
        with CommLog() as log:
            y = x.reshape(3, 1)
        assert log.count() == 0
        same(y, expected[:, None])
        same(x * 2, expected * 2)
        same(x + 1, expected + 1)
        same(np.sqrt(x), np.sqrt(expected))


def test_every_rank_prints_the_same_global_values() -> None:
    mesh = default_mesh()
    x = distribute_array(np.arange(4_000_000.0).reshape(2000, 2000), mesh, [Shard(0)])
    with CommLog() as log:
        text = repr(x)
    assert log.bytes() < 100_000
    assert "3.999999e+06" in text
    assert len(set(mesh.communicator().all_gather_object(text))) == 1


def test_errors_are_alike_and_the_next_operation_works() -> None:
    mesh = default_mesh()
    x = distribute_array(VALUE, mesh, [Shard(0)])
    y = distribute_array(VALUE, mesh, [Shard(1)])
    messages = []
    for error, call in (
        (ShapeError, lambda: x + np.ones(3)),
        (ArgumentError, lambda: bool(x)),
        (ArgumentError, lambda: x[:0].max()),
    ):
        with pytest.raises(error) as caught:
            call()
        messages.append(str(caught.value))
    if mesh.size > 1:
        with communication("raise"), pytest.raises(ImplicitCommunicationError):
            x + y
        other = DeviceMesh(list(range(mesh.size))[::-1])
        with pytest.raises(MeshError):
            x + distribute_array(VALUE, other, [Shard(0)])
    assert len(set(mesh.communicator().all_gather_object(tuple(messages)))) == 1
    same(x + y, VALUE + VALUE)
