"""Processes with the same matrices agree on what they find, however each of them rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray.comm import CommLog
from distarray.core import run
from distarray.layout import Placement, Replicate, Shard
from distarray.linalg import _tall
from distarray.ops import Axes, whole_axes
from distarray.testing import simulate

VALUE = np.diag([1.0, 1.0, 2.0, 2.0, 3.0]) + np.ones((5, 5))


def _turn(columns: Any) -> Any:
    """Return columns as a process of another kind might have them."""
    return columns * (-1) ** da.default_mesh().rank


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()])
def test_eigenvectors_are_those_of_one_process(
    placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    eigh = np.linalg.eigh

    def of_another_processor(x: Any, *letter: Any) -> Any:
        values, vectors = eigh(x, *letter)
        return values, _turn(vectors)

    monkeypatch.setattr(np.linalg, "eigh", of_another_processor)

    def program() -> None:
        x = da.distribute_array(VALUE, placements=[placement], src=None)
        values, vectors = da.linalg.eigh(x)
        assert vectors.placements == (Shard(0) if placement == Shard(0) else Replicate(),)
        product, scaled = np.asarray(x @ vectors), np.asarray(vectors * values)
        np.testing.assert_allclose(product, scaled, atol=1e-12)
        mine = vectors.redistribute([Replicate()]).to_local()
        everyone = da.default_mesh().communicator().all_gather_object(mine)
        assert all((mine == one).all() for one in everyone)

    simulate(3, program)


def test_copies_of_some_matrices_are_those_of_one_process_of_each_group() -> None:
    row = whole_axes("turned", lambda block: (_turn(block), block.sum((-2, -1))))

    def program() -> None:
        mesh = da.init_device_mesh((2, 2))
        x = da.distribute_array(
            np.stack([VALUE, VALUE + 1]), mesh, [Shard(0), Replicate()], src=None
        )
        with CommLog() as log:
            turned, total = run(row, (x,), Axes("ij->ij,"))
        assert log.count("broadcast") == 2
        np.testing.assert_array_equal(
            turned.to_local(), x.to_local() * (-1) ** (mesh.rank // 2 * 2)
        )
        np.testing.assert_array_equal(total.to_local(), x.to_local().sum((-2, -1)))

    simulate(4, program)


@pytest.mark.parametrize("of_first", [True, False])
def test_matrix_is_singular_on_all_processes_or_on_none(of_first: bool) -> None:
    def function(block: Any) -> Any:
        if len(block) and (da.default_mesh().rank == 0) == of_first:
            raise np.linalg.LinAlgError("Singular matrix")
        return block + 1

    row = whole_axes("shaky", function, fails=True)

    def program() -> None:
        x = da.asarray(VALUE)
        if of_first:
            with pytest.raises(np.linalg.LinAlgError, match="shaky: Singular"):
                run(row, (x[None],), Axes("ij->ij"))
        else:
            found = run(row, (x[None],), Axes("ij->ij"))
            np.testing.assert_array_equal(np.asarray(found), VALUE[None] + 1)

    simulate(3, program)


def test_singular_vectors_of_tall_matrices_are_those_of_one_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decompose = _tall.decompose_finite

    def of_another_processor(x: Any, **options: Any) -> Any:
        u, s, vh = decompose(x, **options)
        return _turn(u), s, _turn(vh)

    monkeypatch.setattr(_tall, "decompose_finite", of_another_processor)
    da.testing.reset()
    value = np.random.default_rng(0).normal(size=(60, 4))

    def program() -> None:
        u, s, vh = da.linalg.svd(da.asarray(value), full_matrices=False)
        assert u.placements == (Shard(0),)
        np.testing.assert_allclose(np.asarray(u * s) @ np.asarray(vh), value, atol=1e-12)

    simulate(3, program)
    da.testing.reset()


def test_processes_that_agree_exchange_checksums_alone() -> None:
    def program() -> None:
        x = da.distribute_array(VALUE, placements=[Replicate()], src=None)
        with CommLog() as log:
            da.linalg.eigh(x)
        assert log.count() == log.count("all_gather") == 1
        assert log.bytes() == 8
        with CommLog() as log:
            da.linalg.cross(x[:3], x[:3], axis=0)
        assert log.count() == 0

    simulate(2, program)
