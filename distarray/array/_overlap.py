"""Functions of blocks with the edges of their neighbours: `map_overlap`.

Either the function gets the whole block with edges, which is a copy of it. Or it gets the block as
it lies, which suffices for the interior, and then thin slabs around that: of the block only these
are copied, twice as thick as the edges are wide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from distarray.array._mapping import mesh_and_first
from distarray.comm import _backend, _memory, all_gather_checked, copy_box, copy_boxes
from distarray.core import (
    BaseArray,
    check_device,
    check_flag,
    lift,
    move,
    new_array,
    plain_buffer,
)
from distarray.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from distarray.layout import Layout, kept
from distarray.ops import (
    HaloPlan,
    HaloSpec,
    fill_in,
    fill_views,
    plan_halo,
    read_halo,
    run_exchange,
)
from distarray.typing import Buffer, Shape

Key = tuple[slice, ...]
Pair = tuple[int, int]


class Slab(NamedTuple):
    """A part of a block that needs edges, and lies where the interior does not."""

    needs: Key
    """What it is computed from, in the block with edges."""
    inner: Key
    """Where it lies in that."""
    target: Key
    """Where it lies in the block."""


class Parts(NamedTuple):
    """How a block is computed in parts."""

    interior: Key
    """What the block's own items suffice for."""
    slabs: tuple[Slab, ...]
    copies: tuple[tuple[Key, Key], ...]
    """What slabs need of the block: where it goes in the block with edges, where it lies."""


def parts_of_block(layout: Layout, spec: HaloSpec, found: HaloPlan) -> Parts | None:
    """Return how this process computes its block in parts; None where the block is too short."""
    sizes = layout.local_shape()
    edges = tuple(
        (inner.start, wide - inner.stop)
        for inner, wide in zip(found.interior, found.first.shape, strict=True)
    )
    return _parts(sizes, edges, spec.widths)


@kept(1024)
def _parts(sizes: Shape, edges: tuple[Pair, ...], widths: tuple[Pair, ...]) -> Parts | None:
    # Without an edge, at an end of the array, the function knows what to do there.
    thick = [
        (before if first else 0, after if last else 0)
        for (first, last), (before, after) in zip(edges, widths, strict=True)
    ]
    inside = [(first, n - last) for n, (first, last) in zip(sizes, thick, strict=True)]
    if any(start >= stop for start, stop in inside):
        return None
    slabs, copies = [], []
    deep: list[tuple[int, int]] = []  # what slabs of the axes before do not need
    for axis, (n, (start, stop), (before, after)) in enumerate(
        zip(sizes, inside, widths, strict=True)
    ):
        rest = [(0, m) for m in sizes[axis + 1 :]]
        low = min(start + after, n) if start else 0
        high = max(stop - before, low) if stop < n else n
        for part, own in (((0, start), (0, low)), ((stop, n), (high, n))):
            if part[0] < part[1]:
                slabs.append(_slab([*inside[:axis], part, *rest], sizes, edges, widths))
                copies.append([*deep, own, *rest])
        deep.append((low, high))
    lead = [first for first, _ in edges]
    pairs = tuple((_key(box, lead), _key(box)) for box in copies)
    return Parts(_key(inside), tuple(slabs), pairs)


def _slab(box: Sequence[Pair], sizes: Shape, edges: Sequence[Pair], widths: Sequence[Pair]) -> Slab:
    """Return what a part of a block is computed from: as far as that goes, also edges."""
    wide = [
        (max(p - before, -first), min(q + after, n + last))
        for (p, q), n, (first, last), (before, after) in zip(box, sizes, edges, widths, strict=True)
    ]
    return Slab(
        _key(wide, [first for first, _ in edges]), _key(box, [-p for p, _ in wide]), _key(box)
    )


def _key(box: Sequence[Pair], shift: Sequence[int] | None = None) -> Key:
    shift = shift or [0] * len(box)
    return tuple(slice(p + s, q + s) for (p, q), s in zip(box, shift, strict=True))


def _surround_slabs(block: Buffer, found: HaloPlan, spec: HaloSpec, parts: Parts) -> Buffer:
    """Return a block with edges of which nothing is set but what slabs need (collective)."""
    out = _memory.empty(found.first.shape, block.dtype, _backend.device_of(block))
    copy_boxes([(out[to], block[source]) for to, source in parts.copies], total=out.nbytes)
    run_exchange(found.edges, block, out)
    fill_in(fill_views(found.first.fills, out, spec.constants))
    return out


def map_overlap(
    func: Callable[..., Any],
    *arrays: Any,
    width: Any,
    boundary: Any = None,
    trim: bool = True,
    interior_first: bool = False,
    **options: Any,
) -> Any:
    """Call a function of plain arrays with this process's blocks and their neighbours' edges.

    Collective over the mesh; dask's `map_overlap`, whose depth is the width here.

    Parameters
    ----------
    func : callable
        `func(*blocks, **options)` returns one array.
    *arrays
        Distributed arrays of one shape, at least one; they are moved to the layout of the first.
        Whatever else is among them is passed on as it is.
    width, boundary
        As for `halo`: NumPy's "reflect" leaves out the outermost item, dask's is "symmetric" here.
    trim : bool
        What `func` returns has the shape of the block with edges, which are cut off. With
        `trim=False` it has the shape of the block itself.
    interior_first : bool
        Call `func` with the block as it lies, for the items whose neighbours it has, and then with
        thin slabs that have edges: of the block these alone are copied. Right where each item
        of the result depends on its neighbours within `width`, not on where the block begins or
        how long it is (in Fourier transforms and running sums it does, in the last bits). `func`
        must return a new array each time, and may not write into what it gets.
    **options
        Passed on to `func`.

    Returns
    -------
    DistArray
        Of the shape and layout of the first array.

    Raises
    ------
    ArgumentTypeError
        Without a distributed array, or a function.
    ArgumentError
        With `interior_first`, if `func` returns the memory of an earlier result.
    ShapeError
        If the arrays differ in shape, or the results have another one, on every rank alike.
    DTypeError
        If the results differ in dtype.

    Notes
    -----
    Distribution: a halo of each array, and one small exchange, which carries an exception of
    `func` on one rank to all. Where a block is empty `func` is not called, unless all are. Peak
    memory: the blocks with edges and what `func` needs.

    `interior_first` is for large blocks with edges along the first axis alone: cut there, and no
    boundary. On 2 ranks stencils of blocks of 64 to 256 MiB took 0.63 to 0.82 of the time, and
    those of small blocks as long. With a boundary the last axis has edges as well, and slabs
    along it can double the time. Edges do not travel meanwhile: in a node, and in messages between
    its processes, a thread for them cost more than it hid. ``halo(x, ..., async_op=True)`` leaves
    that to the program.

    Examples
    --------
    >>> import numpy as np
    >>> import distarray as da
    >>> x = da.asarray(np.array([0.0, 0, 9, 0, 0, 0]))
    >>> print(da.map_overlap(lambda b: np.convolve(b, np.ones(3) / 3, "same"), x, width=1))
    [0. 3. 3. 3. 0. 0.]
    """
    trim = check_flag("map_overlap", "trim", trim)
    interior_first = check_flag("map_overlap", "interior_first", interior_first)
    if "depth" in options:
        raise ArgumentTypeError("map_overlap takes no depth=; pass it as width=")
    mesh, first = mesh_and_first("map_overlap", func, arrays)
    layout = first.without_partial()
    specs = {}
    for i, x in enumerate(arrays):
        if isinstance(x, BaseArray):
            if x.shape != layout.shape:
                raise ShapeError(
                    f"map_overlap of shapes {layout.shape} and {x.shape}; they must be equal: pass "
                    "others as plain arrays, or make a halo of each"
                )
            specs[i] = read_halo("map_overlap", width, boundary, layout, x.dtype)
    blocks = list(arrays)
    for i in specs:
        blocks[i] = move("map_overlap", arrays[i]._local, lift(arrays[i]._layout, mesh), layout)
    shape = layout.local_shape()
    one = next(iter(specs))
    if mesh.coordinate is None:
        return new_array(_memory.empty(shape, arrays[one].dtype, mesh.device), layout)
    found = {
        i: plan_halo("map_overlap", layout, spec, blocks[i].dtype) for i, spec in specs.items()
    }
    parts = parts_of_block(layout, specs[one], found[one]) if interior_first else None
    wide = list(blocks)
    for i, spec in specs.items():
        if parts is None:
            wide[i] = found[i].first.around(blocks[i], spec.constants)
        else:
            wide[i] = _surround_slabs(blocks[i], found[i], spec, parts)
            blocks[i] = _backend.make_read_only(blocks[i])

    def call(given: Sequence[Any], expected: Shape) -> Buffer:
        result = plain_buffer(func(*given, **options), "map_overlap", mesh.device)
        check_device(result, mesh, "map_overlap")
        if result.shape != expected:
            raise ShapeError(
                f"map_overlap with trim={trim}: the function returned a block of shape "
                f"{result.shape} where {expected} was expected; trim=True takes blocks with edges, "
                "and trim=False without"
            )
        return result

    def in_parts(parts: Parts) -> Buffer:
        interior = call(blocks, shape if trim else _shape(parts.interior))
        out = interior
        if not trim or not _is_own(interior, blocks):
            out = _memory.empty(shape, interior.dtype, mesh.device)
            inside = parts.interior or ...
            copy_box(out[inside], interior[inside] if trim else interior)
        for needs, inner, target in parts.slabs:
            slab = [x[needs] if i in specs else x for i, x in enumerate(wide)]
            piece = call(slab, _shape(needs if trim else target))
            if piece.dtype != out.dtype:
                raise DTypeError(
                    f"map_overlap: the function returned {out.dtype} of the interior and "
                    f"{piece.dtype} of a slab; convert them to one dtype in it"
                )
            if _backend.may_share_memory(piece, out):
                raise ArgumentError(
                    "map_overlap with interior_first=True: the function returned the same memory "
                    "twice; return a new array, or leave out interior_first"
                )
            out[target] = piece[inner] if trim else piece
        return out

    result: Any = None

    def say() -> str | None:
        nonlocal result
        if 0 in shape and 0 not in layout.shape:
            return None
        if parts is not None:
            result = in_parts(parts)
        else:
            result = call(wide, found[one].first.shape if trim else shape)
        return str(result.dtype.str)

    dtypes = {dtype for dtype in all_gather_checked(mesh, "map_overlap", say) if dtype is not None}
    if len(dtypes) > 1:
        raise DTypeError(
            "map_overlap: the function returned blocks of "
            f"{' and '.join(sorted(str(np.dtype(one)) for one in dtypes))}; convert them to one "
            "dtype in it"
        )
    if result is None:
        result = _memory.empty(shape, dtypes.pop(), mesh.device)
    elif trim and parts is None:
        result = result[found[one].interior or ...]
    return new_array(result, layout)


def _shape(key: Key) -> Shape:
    return tuple(part.stop - part.start for part in key)


def _is_own(result: Buffer, blocks: Sequence[Any]) -> bool:
    """Tell whether a result may be written into: its memory is nobody else's, as far as known."""
    return _backend.is_writeable(result) and not any(
        _backend.is_buffer(x) and _backend.may_share_memory(result, x) for x in blocks
    )
