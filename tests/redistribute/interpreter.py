"""Carry out plans on all ranks of both meshes, one after another in plain NumPy.

The blocks of a layout are a dictionary from world rank to array. Nothing here is fast or clever:
it is what the planner's answers are measured against.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from distarray.layout import REDUCTIONS, Layout, Partial
from distarray.layout import box as boxes
from distarray.redistribute._plan import Plan
from distarray.redistribute._steps import AllReduceStep, ExchangeStep, LocalStep, Step

Blocks = dict[int, np.ndarray]


def at(box):
    """Index an array by a box; a view also where there are no axes."""
    return (*boxes.slices(box), ...)


def coordinates(mesh):
    return product(*map(range, mesh.shape))


def reduce(arrays, op):
    """Combine arrays as the operation says, averages of integers as floats."""
    return np.asarray(_reduce(np.stack(arrays), op))


def _reduce(stack, op):
    match op:
        case "avg":
            return stack.mean(axis=0)
        case "sum":
            return stack.sum(axis=0, dtype=stack.dtype)
        case "prod":
            return stack.prod(axis=0, dtype=stack.dtype)
        case "min":
            return stack.min(axis=0)
        case "max":
            return stack.max(axis=0)
        case "any" | "bor":
            return np.bitwise_or.reduce(stack, axis=0)
        case "all" | "band":
            return np.bitwise_and.reduce(stack, axis=0)
        case "bxor":
            return np.bitwise_xor.reduce(stack, axis=0)


def random_blocks(layout: Layout, dtype: np.dtype, seed: int) -> Blocks:
    """Return blocks of small random values; copies are equal, contributions are not."""
    generator = np.random.default_rng(seed)
    wholes = {}
    found = {}
    for coordinate in coordinates(layout.mesh):
        key = tuple(coordinate[i] for i in layout.partial_axes)
        if key not in wholes:
            low, high = (0, 2) if dtype.kind == "b" else (0, 9) if dtype.kind == "u" else (-4, 5)
            wholes[key] = generator.integers(low, high, layout.shape).astype(dtype)
        block = wholes[key][at(layout.local_box(coordinate))]
        found[layout.mesh.rank_at(coordinate)] = block.copy()
    return found


def global_value(layout: Layout, blocks: Blocks) -> np.ndarray:
    """Return the array that blocks mean; copies must agree."""
    dtype = next(iter(blocks.values())).dtype
    wholes: dict[tuple[int, ...], np.ndarray] = {}
    for coordinate in coordinates(layout.mesh):
        key = tuple(coordinate[i] for i in layout.partial_axes)
        block = blocks[layout.mesh.rank_at(coordinate)]
        assert block.shape == layout.local_shape(coordinate)
        whole = wholes.setdefault(key, np.zeros(layout.shape, dtype))
        part = whole[at(layout.local_box(coordinate))]
        seen = all(coordinate[i] == 0 for i in layout.replicated_axes)
        if not seen:
            np.testing.assert_array_equal(part, block)
        part[...] = block
    for i in reversed(layout.partial_axes):
        placement = layout.placements[i]
        assert type(placement) is Partial
        groups: dict[tuple[int, ...], list[np.ndarray]] = {}
        for key in sorted(wholes):
            groups.setdefault(key[:-1], []).append(wholes[key])
        wholes = {key: reduce(arrays, placement.op) for key, arrays in groups.items()}
    return wholes[()]


def run(plan: Plan, blocks: Blocks) -> Blocks:
    for step in plan.steps:
        blocks = run_step(step, blocks)
    return blocks


def run_step(step: Step, blocks: Blocks) -> Blocks:
    assert {block.dtype for block in blocks.values()} == {step.dtype}
    if isinstance(step, LocalStep):
        found = {rank: _local(step, rank, block) for rank, block in blocks.items()}
    elif isinstance(step, AllReduceStep):
        found = _all_reduce(step, blocks)
    else:
        found = _exchange(step, blocks)
    assert {block.dtype for block in found.values()} == {step.result_dtype}
    return found


def _local(step: LocalStep, rank: int, block: np.ndarray) -> np.ndarray:
    shape = step.dst.local_shape(step.dst.mesh.coordinate_of(rank))
    if step.kind == "relabel":
        assert block.shape == shape
        return block
    new = np.empty(shape, block.dtype)
    if step.kind == "fill":
        new[...] = REDUCTIONS[step.op].identity(block.dtype.kind, block.dtype.itemsize)
    kept = step.kept_boxes(rank)
    if kept is not None:
        new[at(kept[1])] = block[at(kept[0])]
    else:
        assert step.kind == "fill"
    return new


def _all_reduce(step: AllReduceStep, blocks: Blocks) -> Blocks:
    found = {}
    for group in step.src.mesh.groups(step.mesh_axes):
        result = reduce([blocks[rank] for rank in group], step.op)
        found.update({rank: result.astype(step.result_dtype) for rank in group})
    return found


def _exchange(step: ExchangeStep, blocks: Blocks) -> Blocks:
    found = {}
    for rank in step.dst.mesh.flat_ranks:
        shape = step.dst.local_shape(step.dst.mesh.coordinate_of(rank))
        new = np.zeros(shape, step.result_dtype)
        times = np.zeros(shape, int)
        for index in range(step.rounds):
            for transfer in step.receives(rank, (index, step.rounds)):
                source = boxes.slices(transfer.src_box)
                pieces = [blocks[peer][*source, ...] for peer in transfer.peers]
                value = pieces[0] if step.reduce is None else reduce(pieces, step.reduce)
                assert step.reduce or len(pieces) == 1
                assert value.size == transfer.size > 0
                target = boxes.slices(transfer.dst_box)
                new[*target, ...] = value
                times[*target, ...] += 1
        assert (times == 1).all(), "the parts of a block must tile it"
        found[rank] = new
    return found
