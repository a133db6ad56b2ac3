"""What is done by the kernels and by CuPy's own functions, on blocks of one size."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.gpu.device import Work, filled
from distarray.comm import BFLOAT16, _block_reduction, reduce_into
from distarray.comm._packing import copy_boxes
from distarray.random._blocks import fill_floats, fill_integers

PACK, BOXES, ACROSS = "Pack and unpack", "Boxes", "Transposes"
REDUCE, MADE = "Reductions", "Fill, random numbers"
DTYPES = ("float32", "uint8", "float64", "uint16", "complex128")
"""Of itemsizes 1 to 16; the most telling come first."""
KEY = (5, 6)


@dataclass
class Case:
    """Something done by this library, and by CuPy's own functions.

    Attributes
    ----------
    nbytes
        That it has to read and to write.
    results
        What both have made, to compare; None where they need not make the same.
    """

    table: str
    name: str
    nbytes: int
    ours: Work
    theirs: Work
    results: Callable[[], tuple[Any, Any]] | None


def cases(cupy: Any, nbytes: int, dtypes: tuple[str, ...] = DTYPES) -> Iterator[Case]:
    """Yield what is measured, the most telling first; arrays live as long as their case.

    Parameters
    ----------
    nbytes
        Of a block, a power of two.
    """
    first, *others = dtypes
    yield from _packs(cupy, nbytes, first)
    for dtype in others[:1]:
        yield from _packs(cupy, nbytes, dtype)
    yield from _transposes(cupy, nbytes, first)
    yield from _reductions(cupy, nbytes // 2)
    yield from _boxes(cupy, nbytes, first)
    yield from _made(cupy, nbytes)
    for dtype in others[1:]:
        yield from _packs(cupy, nbytes, dtype)
    for dtype in others:
        yield from _boxes(cupy, nbytes, dtype)
        yield from _transposes(cupy, nbytes, dtype)


def _grid(nbytes: int, dtype: str) -> tuple[int, int]:
    """Return rows and columns of a block: a power of two each, twice as many bytes along rows."""
    items = nbytes // np.dtype(dtype).itemsize
    columns = 1 << (items.bit_length() // 2)
    return items // columns, columns


def _packs(cupy: Any, nbytes: int, dtype: str) -> Iterator[Case]:
    rows, columns = _grid(nbytes, dtype)
    for odd, peers in itertools.product((0, 1), (1, 2, 8)):
        shape = rows, columns - odd
        cuts = [shape[1] * i // peers for i in range(peers + 1)]
        boxes = [((0, rows), bounds) for bounds in itertools.pairwise(cuts)]
        told = f"{dtype}, {peers} {'peers' if peers > 1 else 'peer'}{', odd rows' * odd}"
        yield from _pack(cupy, filled(cupy, shape, dtype), boxes, told)


def _pack(cupy: Any, block: Any, boxes: list[Any], told: str) -> Iterator[Case]:
    """Yield packing the boxes of a block, and unpacking them into another."""
    buffers = [cupy.zeros(block.size, block.dtype) for _ in range(2)]
    blocks = [cupy.zeros(block.shape, block.dtype) for _ in range(2)]
    packed, parts = _packed(block, boxes, buffers[1])
    pairs = list(zip(*_packed(block, boxes, buffers[0]), strict=True))
    yield Case(
        *(PACK, f"pack, {told}", 2 * block.nbytes),
        lambda: copy_boxes(pairs),
        lambda: _assigned(packed, parts),
        lambda: (buffers[0], buffers[1]),
    )
    pieces, ours = _packed(blocks[0], boxes, buffers[0])
    _, theirs = _packed(blocks[1], boxes, buffers[1])
    yield Case(
        *(PACK, f"unpack, {told}", 2 * block.nbytes),
        lambda: copy_boxes(list(zip(ours, pieces, strict=True))),
        lambda: _assigned(theirs, packed),
        lambda: (blocks[0], blocks[1]),
    )


def _packed(block: Any, boxes: list[Any], buffer: Any) -> tuple[list[Any], list[Any]]:
    """Return the parts of a buffer that boxes take, and the boxes."""
    at, packed, parts = 0, [], []
    for box in boxes:
        part = block[tuple(slice(*bounds) for bounds in box)]
        packed.append(buffer[at : at + part.size].reshape(part.shape))
        parts.append(part)
        at += part.size
    return packed, parts


def _assigned(targets: list[Any], sources: list[Any]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target[...] = source


def _copies(table: str, name: str, made: list[Any], pairs: Callable[[Any], list[Any]]) -> Case:
    """Return the case of pairs of views, of the first and the second of two equal arrays."""
    ours, theirs = pairs(made[0]), pairs(made[1])
    return Case(
        *(table, name, 2 * sum(dst.nbytes for dst, _ in ours)),
        lambda: copy_boxes(ours),
        lambda: _assigned(*map(list, zip(*theirs, strict=True))),
        lambda: (made[0], made[1]),
    )


def _boxes(cupy: Any, nbytes: int, dtype: str) -> Iterator[Case]:
    rows, columns = _grid(nbytes, dtype)
    for peers in (2, 8):
        sources = [filled(cupy, (rows // peers, columns), dtype) for _ in range(peers)]
        width = columns // peers
        made = [cupy.zeros((rows, width), dtype) for _ in range(2)]

        def pairs(out: Any, sources: Any = sources, width: int = width) -> list[Any]:
            height = len(sources[0])
            return [
                (out[i * height : (i + 1) * height], source[:, :width])
                for i, source in enumerate(sources)
            ]

        yield _copies(BOXES, f"{dtype}, S0 -> S1 among {peers}", made, pairs)
        del sources, made
    itemsize = np.dtype(dtype).itemsize
    block = filled(cupy, (rows * columns,), dtype)
    for told, run, step in (
        ("rows of 64 bytes", 64 // itemsize, 128 // itemsize),
        ("rows of 5 items", 5, 11),
        ("rows of 1 item", 1, 2),
        ("rows of 1001 items", 1001, 1301),
    ):
        count = block.size // step
        if count:
            source = block[: count * step].reshape(count, step)[:, :run]
            made = [cupy.zeros((count, run), dtype) for _ in range(2)]
            yield _copies(
                *(BOXES, f"{dtype}, {told}", made), lambda out, source=source: [(out, source)]
            )
            yield _copies(
                *(BOXES, f"{dtype}, {told}, into such", [block.copy() for _ in range(2)]),
                lambda out, made=made, run=run, step=step: [
                    (out[: len(made[0]) * step].reshape(-1, step)[:, :run], made[1])
                ],
            )


def _transposes(cupy: Any, nbytes: int, dtype: str) -> Iterator[Case]:
    rows, columns = _grid(nbytes, dtype)
    for odd in (0, 1):
        block = filled(cupy, (rows - odd, columns - odd), dtype)
        made = [cupy.zeros(block.shape[::-1], dtype) for _ in range(2)]
        told = f"{dtype}, 2 axes{', odd' * odd}"
        yield _copies(ACROSS, told, made, lambda out, block=block: [(out, block.T)])
    cube = 1 << (rows * columns).bit_length() // 3
    block = filled(cupy, (cube, cube, cube), dtype)
    for order in ((1, 2, 0), (2, 1, 0), (0, 2, 1), (1, 0, 2)):
        made = [cupy.zeros(block.shape, dtype) for _ in range(2)]
        told = f"{dtype}, 3 axes to {order}"
        yield _copies(ACROSS, told, made, lambda out, order=order: [(out, block.transpose(order))])


def _reductions(cupy: Any, nbytes: int) -> Iterator[Case]:
    for kind in ("float32", "float64", "bfloat16", "float16"):
        dtype = "uint16" if kind == "bfloat16" else kind
        size = nbytes // np.dtype(dtype).itemsize
        if kind == "bfloat16":  # the upper halves of float32
            whole = (cupy.arange(size, dtype=np.uint32) % 1021).astype(np.float32)
            values = (whole.view(np.uint32) >> 16).astype(dtype)
            del whole
        else:
            values = (cupy.arange(size, dtype=np.uint32) % 1021).astype(dtype)
        out = [cupy.zeros(size, dtype) for _ in range(2)]
        as_kind = BFLOAT16 if kind == "bfloat16" else kind
        into = [one.view(as_kind) for one in out]
        for count in (2, 4):
            sources = [values, *(cupy.roll(values, i) for i in range(1, count))]
            sources = [source.view(as_kind) for source in sources]
            for op in ("sum", "max") if count == 2 else ("sum",):
                yield Case(
                    *(REDUCE, f"{op}, {kind}, {count} sources", (count + 1) * values.nbytes),
                    lambda s=sources, op=op, to=into[0]: reduce_into(to, s, op),
                    lambda s=sources, op=op, to=into[1]: _block_reduction._by_numpy(to, s, op),
                    lambda out=out: (out[0], out[1]),
                )


def _made(cupy: Any, nbytes: int) -> Iterator[Case]:
    out = cupy.empty(nbytes // 4, "float32")
    yield Case(
        *(MADE, "fill, float32", out.nbytes),
        *(lambda: out.__setitem__(..., 1.5), lambda: out.fill(1.5), None),
    )
    for kind in ("uniform", "normal"):
        for dtype in ("float32", "float64"):
            made = cupy.empty(nbytes // np.dtype(dtype).itemsize, dtype)
            box = ((0, made.size),)
            yield Case(
                *(MADE, f"random {kind}, {dtype}", made.nbytes),
                lambda kind=kind, made=made, box=box: fill_floats(
                    made, kind, KEY, 1, (made.size,), box
                ),
                lambda kind=kind, made=made: _random_of_cupy(cupy, kind, made),
                None,
            )
    whole = cupy.empty(nbytes // 8, "int64")
    yield Case(
        *(MADE, "random integers below 1000, int64", whole.nbytes),
        lambda: fill_integers(whole, KEY, 1, (whole.size,), ((0, whole.size),), 0, 1000),
        lambda: _generator(cupy).integers(0, 1000, whole.size),
        None,
    )


@functools.cache
def _generator(cupy: Any) -> Any:
    """Return CuPy's generator, whose states take long to make."""
    return cupy.random.default_rng(1)


def _random_of_cupy(cupy: Any, kind: str, out: Any) -> Any:
    generator = _generator(cupy)
    if kind == "uniform":
        return generator.random(out.shape, out.dtype, out)
    return generator.standard_normal(out.shape, out.dtype, out)
