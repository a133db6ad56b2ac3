"""What a computed Partial array was reduced to is kept with it, until it is written into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray.errors import ImplicitCommunicationError
from distarray.layout import Partial, Replicate, Shard
from tests.array.strategies import agrees, on_ranks

VALUE = np.random.default_rng(3).integers(-4, 5, (12, 8)).astype(float)
"""Whose sums are exact, in any order."""


def run(use: Callable[..., None], axis: Any = 0) -> None:
    def program() -> None:
        x = da.distribute_array(VALUE, da.init_device_mesh((4,)), [Shard(0)])
        y = x.sum(axis=axis)
        assert y.placements == (Partial(),)
        use(x, y, VALUE.sum(axis=axis))

    on_ranks(program)


def test_several_uses_reduce_once() -> None:
    def use(x: Any, y: Any, total: np.ndarray) -> None:
        with da.CommLog() as log:
            difference = x - y
        assert log.count() == 1
        with da.CommLog() as log, da.communication("raise"):
            product, root, again, both = y * 2.0, np.abs(y), x - y, y * y
            whole, changed, one = y.full_array(), y.redistribute([Replicate()]), np.asarray(y)
        assert log.count() == 0
        assert y.placements == (Partial(),)
        for found, expected in (
            (difference, VALUE - total),
            (again, VALUE - total),
            (product, total * 2),
            (root, np.abs(total)),
            (both, total * total),
            (y.max(), total.max()),
            (np.median(y), np.median(total)),
            (y.astype(int), total.astype(int)),
        ):
            agrees(found, expected)
        whole += 1  # copies
        changed += 1
        assert np.array_equal(one, total)
        agrees(y * 1.0, total)
        agrees(changed, total + 1)

    run(use)


def test_numbers_and_products_reduce_once() -> None:
    def use(x: Any, y: Any, total: np.ndarray) -> None:
        gram = x.T @ x
        assert gram.placements == (Partial(),)
        agrees(gram - 1.0, VALUE.T @ VALUE - 1)
        agrees(np.abs(y), np.abs(total))
        with da.CommLog() as log:
            assert float(y) == total
            assert bool(y > 2 * abs(float(total)) + 1) is False
        assert log.count() == 0
        agrees(gram * 2.0, VALUE.T @ VALUE * 2)

    run(use, axis=None)


def test_the_first_use_is_refused_and_the_next_is_not() -> None:
    def use(x: Any, y: Any, total: np.ndarray) -> None:
        with da.communication("raise"), pytest.raises(ImplicitCommunicationError):
            x - y
        x - y
        with da.communication("raise"):
            agrees((y * 2.0).redistribute([Replicate()]), total * 2)

    run(use)


def test_what_is_written_anew_is_reduced_once_again() -> None:
    def use(x: Any, y: Any, total: np.ndarray) -> None:
        agrees(y * 1.0, total)
        y /= 4
        np.multiply(y, 2.0, out=y)
        with da.CommLog() as log:
            agrees((x - y).redistribute(x.placements), VALUE - total / 2)
        assert log.count("all_reduce") == 1
        y[2:] -= 1.0
        y.sort()
        expected = total / 2
        expected[2:] -= 1.0
        with da.CommLog() as log:
            differences = x - y, y - 1.0
        assert log.count("all_reduce") == 1
        agrees(differences[0], VALUE - np.sort(expected))

    run(use)


WRITES: dict[str, Callable[[Any], Any]] = {
    "y += 1": lambda y: y.__iadd__(1.0),
    "y[2:5] = 7": lambda y: y.__setitem__(slice(2, 5), 7.0),
    "copyto": lambda y: np.copyto(y, np.ones(8)),
    "out=": lambda y: np.add(np.arange(8.0), 1.0, out=y),
    "where=": lambda y: np.copyto(y, 3.0, where=np.arange(8) < 4),
    "a view": lambda y: y[3:].__iadd__(1.0),
    "a view of a view": lambda y: np.reshape(y[3:], (5, 1)).__setitem__(0, 9.0),
    "y.T": lambda y: y.T.__setitem__(0, 9.0),
    "sort": lambda y: y.sort(),
    "add.at": lambda y: np.add.at(y, [0, 0], 3.0),
    "a mask": lambda y: y.__setitem__(np.arange(8) < 3, 3.0),
    "indices": lambda y: y.__setitem__([1, 5], 3.0),
    "put": lambda y: np.put(y, [1, 5], 3.0),
}


@pytest.mark.parametrize("name", WRITES)
def test_writing_is_seen_also_through_views(name: str) -> None:
    def use(x: Any, y: Any, total: np.ndarray) -> None:
        earlier = y[3:]
        agrees(x - y, VALUE - total)
        WRITES[name](y)
        WRITES[name](total)
        agrees(x - y, VALUE - total)
        earlier += 1.0
        total[3:] += 1.0
        for found, expected in ((x - y, VALUE - total), (y, total), (earlier * 1.0, total[3:])):
            agrees(found, expected)

    run(use)


def test_what_one_rank_does_alone_decides_nothing() -> None:
    def use(x: Any, y: Any, total: np.ndarray) -> None:
        if x.mesh.coordinate == (0,):
            y.to_local()
            assert y.T.shape == (8,)
        agrees(x - y, VALUE - total)
        if x.mesh.coordinate == (1,):
            assert y.T.to_local().shape == (8,)
        with da.communication("raise"):
            x - y

    run(use)


def test_a_computed_block_is_read_only_and_those_of_users_are_theirs() -> None:
    def use(x: Any, y: Any, total: np.ndarray) -> None:
        for computed in (y, y[2:]):
            with pytest.raises((ValueError, TypeError)):
                da.DistArray.from_local(computed.to_local(), x.mesh, [Partial()])[0] = 1.0
        for own in (y.copy(), da.asarray(y, copy=True), y.redistribute([Partial()])):
            own.to_local()[...] *= 2
            agrees(own * 1.0, 2 * total)
        agrees(y * 1.0, total)
        given = da.DistArray.from_local(y.copy().to_local(), x.mesh, [Partial()])
        agrees(given + 0.5, total + 0.5)
        given.to_local()[...] *= 2
        agrees(given + 0.5, 2 * total + 0.5)

    run(use)


def test_functions_of_users_get_blocks_of_their_own() -> None:
    def negate(block: Any) -> Any:
        block *= -1
        return block

    rule = da.register_rule(negate, "i->i")

    def use(x: Any, y: Any, total: np.ndarray) -> None:
        agrees(x - y, VALUE - total)
        agrees(rule(y), -total)
        agrees(x - y, VALUE - total)

    run(use)


@pytest.mark.parametrize("seed", range(6))
def test_random_uses_and_writes_agree_with_numpy(seed: int) -> None:
    def program() -> None:
        rng = np.random.default_rng(seed)
        mesh = da.init_device_mesh((2, 2) if seed % 2 else (3,))
        placed = [Shard(0), Shard(int(rng.integers(2)))][: mesh.ndim]
        x = da.distribute_array(VALUE, mesh, placed, src=None)
        held = [(x.sum(axis=0), VALUE.sum(axis=0)), (x.max(axis=0), VALUE.max(axis=0))]
        for _ in range(16):
            y, total = held[rng.integers(len(held))]
            match rng.integers(5):
                case 0:
                    agrees(x - y if len(total) == 8 else y * 2.0,
                           VALUE - total if len(total) == 8 else total * 2)  # fmt: skip
                case 1:
                    agrees(np.negative(np.abs(y)), -np.abs(total))
                case 2:
                    start = int(rng.integers(3))
                    held.append((y[start:], total[start:]))
                case 3:
                    y += 1.0
                    total += 1.0
                case _:
                    place = int(rng.integers(len(total)))
                    y[place:] = float(place)
                    total[place:] = place
        for y, total in held:
            agrees(y * 1.0, total)

    on_ranks(program)
