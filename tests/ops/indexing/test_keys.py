"""Advanced keys are taken apart as NumPy does; a reference on plain arrays puts them together."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from distarray.array import distribute_array
from distarray.comm import CommLog, init_device_mesh, simulate
from distarray.errors import ArgumentError, IndexingError
from distarray.ops.indexing._keys import Advanced, broadcast_indices, parse, wrap_index

KEYS = 1500
"""With arrays, lists or booleans, of each seed."""


def random_index(rng: np.random.Generator, size: int, shape: tuple[int, ...], kind: int) -> Any:
    """Return an index array, mostly in range, as an array of some dtype or as a list."""
    low, high = (-size, size) if size else (0, 1)
    values = rng.integers(low, high, shape)
    if kind == 0 and rng.random() < 0.05:
        values = values + size
    if kind < 2:
        return values
    if kind == 2 and (values >= 0).all():
        return values.astype(rng.choice(["u1", "u4", "u8"]))
    if kind == 3:
        return values.astype(rng.choice(["i1", "i2", ">i4"]))
    return values.tolist() if shape else int(values)


def random_key(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Return any mixture of entries; some do not fit."""
    entries: list[Any] = []
    used = 0
    target = int(rng.integers(0, len(shape) + 1)) + int(rng.random() < 0.03)
    dots = int(rng.integers(-1, 4))
    full = [(), (), (1,), (2,), (3,), (2, 3), (3, 1), (0,), (1, 3)][int(rng.integers(9))]
    front = True
    left = list(shape)
    while used < target or (front and dots >= 0):
        pick = rng.random()
        if front and dots >= 0 and (pick < 0.2 or used >= target):
            entries.append(Ellipsis)
            front = False
            rest = max(target - used, 0)  # what follows selects from the last axes
            left = left[:used] + list(shape[len(shape) - rest :] if rest else ())
            continue
        size = left[used] if used < len(left) else 2
        if pick < 0.3:
            entries.append(None)
        elif pick < 0.45:
            entries.append(
                slice(
                    *[None if rng.random() < 0.4 else int(v) for v in rng.integers(-4, 5, 2)],
                    int(rng.choice([1, 2, -1, -2])),
                )
            )
            used += 1
        elif pick < 0.55 and size:
            value = int(rng.integers(-size, size))
            entries.append([value, np.int16(value), np.array(value)][int(rng.integers(3))])
            used += 1
        elif pick < 0.6:
            entries.append(
                [True, False, np.True_, np.array(False), np.array(True)][int(rng.integers(5))]
            )
        elif pick < 0.75:
            ndim = int(rng.integers(1, 3))
            own = tuple(left[used : used + ndim])
            if len(own) < ndim:
                continue
            wrong = rng.random() < 0.04
            mask = rng.random(tuple(n + 1 for n in own) if wrong else own) < 0.5
            if full and len(full) == 1 and mask.size >= full[0] and not wrong:
                flat = np.zeros(mask.size, bool)  # as many as the other indices have
                flat[rng.permutation(mask.size)[: full[0]]] = True
                mask = flat.reshape(own)
            entries.append(mask.tolist() if mask.size and rng.random() < 0.3 else mask)
            used += ndim
        else:
            keep = int(rng.integers(0, len(full) + 1))
            own = tuple(1 if rng.random() < 0.2 else n for n in full[keep:])
            if rng.random() < 0.03:
                own = (*own, 4)
            entries.append(random_index(rng, size, own, int(rng.integers(5))))
            used += 1
    if len(entries) == 1 and rng.random() < 0.5:
        return entries[0]
    return tuple(entries)


def indices_of(found: Advanced) -> tuple[dict[int, np.ndarray], tuple[int, ...]]:
    """Return the integers on each indexed axis of the view, and their shape together."""
    arrays: list[np.ndarray] = []
    axes: list[int | None] = []
    for index in found.key.indices:
        if index.operand is None:
            parts: Any = [np.zeros((), np.int64)]
        elif index.is_mask:
            mask = found.arrays[index.operand]
            parts = np.nonzero(mask) if mask.ndim else [np.zeros(int(mask), np.int64)]
        else:
            parts = [found.arrays[index.operand]]
        for k, part in enumerate(parts):
            axis = index.axis + k if index.ndim else None
            arrays.append(part)
            axes.append(axis)
    shape = broadcast_indices([part.shape for part in arrays])
    broadcast = {
        axis: wrapped(np.broadcast_to(part, shape), found.key.view[axis], axis)
        for axis, part in zip(axes, arrays, strict=True)
        if axis is not None
    }
    return broadcast, shape


def wrapped(index: np.ndarray, size: int, axis: int) -> np.ndarray:
    found = wrap_index(index, size, axis)
    assert found.dtype == np.int64
    return found


def leading(x: np.ndarray, found: Advanced) -> tuple[np.ndarray, np.ndarray, tuple[int, ...]]:
    """Return a view of x with the indexed axes first, the flat places in them, and their shape."""
    basic = [None if entry is None else slice(*entry) for entry in found.key.basic]
    view = x[(*basic, Ellipsis)]
    assert view.shape == found.key.view
    indices, shape = indices_of(found)
    axes = sorted(indices)
    assert found.key.kept == tuple(axis for axis in range(view.ndim) if axis not in axes)
    moved = np.moveaxis(view, axes, range(len(axes)))
    sizes = moved.shape[: len(axes)]
    flat = np.zeros(shape, np.int64)
    for axis, size in zip(axes, sizes, strict=True):
        flat = flat * size + indices[axis]
    return moved, flat, shape


def get(x: np.ndarray, found: Advanced) -> np.ndarray:
    """Select items by rows of a view, the indexed axes as one."""
    moved, flat, shape = leading(x, found)
    rest = found.key.kept
    sizes = moved.shape[: moved.ndim - len(rest)]
    rows = moved.reshape(math.prod(sizes), *moved.shape[len(sizes) :])
    result = rows[flat.ravel()].reshape((*shape, *rows.shape[1:]))
    place = found.key.place
    order = [*range(len(shape), len(shape) + place), *range(len(shape))]
    result = result.transpose(*order, *range(len(shape) + place, result.ndim))
    assert result.shape == found.key.result_shape(shape)
    return result


def put(x: np.ndarray, found: Advanced, value: np.ndarray) -> None:
    """Write a value row by row, so that the last one wins."""
    moved, flat, shape = leading(x, found)
    place = found.key.place
    value = np.broadcast_to(value, found.key.result_shape(shape))
    axes = range(place, place + len(shape))
    value = np.moveaxis(value, axes, range(len(shape)))
    sizes = moved.shape[: moved.ndim - len(found.key.kept)]
    for i in np.ndindex(*shape):
        moved[np.unravel_index(flat[i], sizes) if sizes else ()] = value[i]


@pytest.mark.host_only  # it makes no blocks
@pytest.mark.parametrize("seed", range(4))
def test_keys_select_and_write_what_numpy_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    raised = advanced = 0
    while advanced < KEYS:
        shape = tuple(int(n) for n in rng.choice([0, 1, 2, 2, 3, 4], int(rng.integers(0, 5))))
        x = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
        key = random_key(rng, shape)
        try:
            expected = x[key]
        except IndexError:
            with pytest.raises(IndexingError):
                get(x, parse(key, shape))
            raised += 1
            continue
        found = parse(key, shape)
        hash(found.key)
        advanced += bool(found.arrays)
        result = get(x, found)
        assert result.shape == np.shape(expected), key
        assert (result == expected).all(), key
        value = rng.integers(1000, 9999, result.shape)
        theirs, ours = x.copy(), x.copy()
        theirs[key] = value
        put(ours, found, value)
        assert (theirs == ours).all(), key
    assert 0 < raised < KEYS  # most of the keys are good ones


@pytest.mark.parametrize(
    "key",
    [
        (0, 0, 0, 0),
        ([0], 0, 0, 0),
        (Ellipsis, Ellipsis, [0]),
        np.zeros((2, 4), bool),
        np.zeros((3, 3), bool),
        np.zeros((2, 3, 4, 1), bool),
        (np.zeros(2, bool), np.zeros((3, 4), bool), [0]),
        [True],
        np.array([]),
        [[1.0]],
        1.0,
        np.float64(1.0),
        "a",
        b"a",
        np.array(["a"]),
        [None],
        np.array([1, 2], object),
        [2**70],
        1j,
        set(),
        np.array([0], "m8[s]"),
        (2, [0]),
        ([0], 7),
        ([0], slice(None), -4, -9),
    ],
    ids=str,
)
def test_keys_that_do_not_fit_are_refused_as_in_numpy(key: Any) -> None:
    x = np.arange(24).reshape(2, 3, 4)
    with pytest.raises(IndexError):
        x[key]
    with pytest.raises(IndexingError):
        parse(key, x.shape)


@pytest.mark.parametrize("key", [([0],) * 64, ([True],) * 64, ([0], *[0] * 63)])
def test_keys_of_more_arrays_than_numpy_takes_are_refused(key: Any) -> None:
    x = np.ones((1,) * 64)
    if type(key[-1]) is list:  # of integers NumPy makes no arrays, and we do
        with pytest.raises(IndexError):
            x[key] = 1
    with pytest.raises(IndexingError, match="64 axes"):
        parse(key, x.shape)
    assert parse((*key[:63], slice(None)), x.shape).key.result_shape((1,)) == (1, 1)


def test_ragged_lists_are_refused_as_in_numpy() -> None:
    with pytest.raises(ValueError):
        np.zeros((3, 3))[[[1], [1, 2]]]
    with pytest.raises(ArgumentError, match="list"):
        parse([[1], [1, 2]], (3, 3))


def test_indices_out_of_range_and_shapes_that_do_not_broadcast_are_told() -> None:
    assert wrap_index(np.array([-3, 2], np.int8), 3, 0).tolist() == [0, 2]
    assert wrap_index(np.array([2**64 - 1], np.uint64), 3, 0).tolist() == [2]
    for wrong in ([0, 3, 4], [0, -4]):
        with pytest.raises(IndexingError, match=rf"index {wrong[1]} .* axis 1 of length 3"):
            wrap_index(np.array(wrong), 3, 1)
    with pytest.raises(IndexingError, match=r"\(2,\), \(3,\)"):
        broadcast_indices([(2,), (3,)])


def test_static_part_of_a_key_has_no_items_of_its_arrays() -> None:
    shape = (4, 5, 6)
    one = parse((slice(None), [1, 2], np.array([True] * 6)), shape)
    other = parse((Ellipsis, [0, 4], np.array([False] * 6)), shape)
    assert one.key == other.key
    assert hash(one.key) == hash(other.key)
    assert [array.dtype.kind for array in one.arrays] == ["i", "b"]
    assert parse((1, slice(2)), shape).arrays == ()
    assert parse((1, [2]), shape).key != parse((2, [2]), shape).key


def test_distributed_arrays_in_a_key_are_operands_and_nothing_is_sent() -> None:
    def program() -> None:
        mesh = init_device_mesh((2,))
        rows = distribute_array(np.array([0, 2, 1]), mesh, src=None)
        mask = distribute_array(np.array([True, False, True, True]), mesh, src=None)
        with CommLog() as log:
            found = parse((slice(1, None), rows, mask), (5, 3, 4))
            with pytest.raises(IndexingError, match="axis 1"):
                parse((rows, mask), (5, 3))
        assert log.count() == 0
        assert found.arrays[0] is rows
        assert found.arrays[1] is mask
        assert found.key == parse((slice(1, None), [0] * 3, [True] * 4), (5, 3, 4)).key
        assert found.key.result_shape((3,)) == (4, 3)

    simulate(2, program)
