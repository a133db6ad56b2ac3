"""Functions of whole axes: of matrices, or of lines, that no mesh axis cuts while they are at work.

Each process calls the function on the matrices that it has. Where a mesh axis cuts them it cuts a
batch axis instead, one longer than 1, for one exchange; the result keeps that cut. Where there is
no such axis, every process gets the matrix and computes the same; of the result it keeps its part
along the axes that were cut. Such copies are made up to a size alone.

Processes of other kinds, or whose BLAS has another number of threads, round otherwise: then
eigenvalues have another order, repeated ones other vectors, and a matrix is singular or not. So
those that have the same matrices compare checksums of what they find, and take what the first has
found where these differ.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from distarray.comm import Communicator, _backend, all_gather_checked, gather_lengths, token
from distarray.core import Call, Letters, Op, Spec, Step, call_on_all, refusal_error
from distarray.errors import ImplicitCommunicationError, ShapeError
from distarray.errors import LinAlgError as OurLinAlgError
from distarray.layout import Layout, Replicate, Shard
from distarray.typing import Shape

REPLICATED_BYTES = 128 << 20
"""A matrix up to this size may become whole on every process, whatever each had of it: 4,096 rows
of 4,096 float64. Sending it takes a hundredth of LAPACK's time for it, and any process can spare
it. Beyond, a process gets at most twice what it has."""

_CORE = 1 << 21  # letters of whole axes, apart from those of batch axes


class LinAlgError(OurLinAlgError, np.linalg.LinAlgError):
    """A matrix that a function cannot work on: not square, singular, or not converging."""


class Axes(NamedTuple):
    """Which axes are whole: the static argument of a function's operation."""

    subscripts: str
    """Letters of the whole axes, the last ones, of operands and results, such as "ij->ik,kj". A
    result is cut along a letter as the operand was from which it had to be collected."""
    options: tuple[tuple[str, Any], ...] = ()
    """Further arguments."""

    @property
    def inputs(self) -> list[str]:
        """Letters of each operand."""
        return self.subscripts.partition("->")[0].split(",")

    @property
    def results(self) -> list[str]:
        """Letters of each result."""
        return self.subscripts.partition("->")[2].split(",")


def whole_axes(
    name: str,
    function: Callable[..., Any],
    fails: bool = False,
    agreed: bool = True,
    kinds: str = "",
) -> Op:
    """Return an operation on whole axes; its static argument is an `Axes`.

    Parameters
    ----------
    name : str
        The public name.
    function : callable
        `function(*blocks, **options)` of NumPy arrays gives an array or a tuple of arrays. It takes
        batches of no matrices. It writes into no block, and its results look at none.
    fails : bool
        Whether it may raise for values; then all processes do.
    agreed : bool
        Whether processes with the same matrices compare what they find. Not needed where each item
        follows from a few operations that all processors round alike.
    kinds : str
        As of an `Op`, where the function converts whatever it can.
    """
    bind = _bind_failing if fails else _bind_agreed if agreed else _bind
    hooks: dict[str, Any] = {"dtypes": _dtypes, "bind": bind, "work": _work, "outputs": _outputs}
    return Op(name, function, _spec, kinds=kinds, is_fresh=True, **hooks)


def _cores(op: Op, call: Call) -> list[tuple[Shape, Shape]]:
    """Return for each operand the lengths of its batch axes, and of its whole axes."""
    axes: Axes = call.static
    found = []
    for shape, letters in zip(call.shapes, axes.inputs, strict=True):
        count = len(letters)
        if len(shape) < count:
            raise LinAlgError(
                f"{op.name} got an array of shape {shape}; it needs at least {count} axes"
            )
        start = len(shape) - count
        found.append((shape[:start], shape[start:]))
    return found


def _probe(op: Op, call: Call) -> list[np.ndarray]:
    """Return the results for a batch of no matrices: their dtypes, and lengths of whole axes.

    What the function refuses of shapes and dtypes it refuses here, on all processes alike.
    """
    axes: Axes = call.static
    pairs = zip(_cores(op, call), call.dtypes, strict=True)
    blocks = [np.empty((0, *core), dtype) for (_, core), dtype in pairs]
    try:
        results = op.local(*blocks, **dict(axes.options))
    except np.linalg.LinAlgError as error:
        raise LinAlgError(f"{op.name} of shapes {call.shapes}: {error}") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise refusal_error(op.name, error, call.dtypes) from error
    return [*results] if isinstance(results, tuple) else [results]


def _dtypes(op: Op, call: Call) -> tuple[Any, Any]:
    dtypes = tuple(result.dtype for result in _probe(op, call))
    one = dtypes if len(dtypes) > 1 else dtypes[0]
    return one, one


def _spec(op: Op, call: Call) -> Spec:
    axes: Axes = call.static
    cores = _cores(op, call)
    batches = [batch for batch, _ in cores]
    try:
        joint = np.broadcast_shapes(*batches)
    except ValueError:
        raise ShapeError(
            f"{op.name} got shapes {' and '.join(map(str, call.shapes))}, whose other axes do not "
            "broadcast; counted from the last of them, sizes must be equal or 1"
        ) from None
    inputs = []
    for batch, letters in zip(batches, axes.inputs, strict=True):
        shift = len(joint) - len(batch)
        own: list[int | None] = [
            i + shift if size == joint[i + shift] != 1 else None for i, size in enumerate(batch)
        ]
        own += [_CORE + ord(letter) for letter in letters]
        inputs.append(tuple(own))
    output: Letters = tuple(i if size != 1 else None for i, size in enumerate(joint))
    return Spec(tuple(inputs), output)


def _work(_: Spec, layouts: Sequence[Layout]) -> float:
    """Return the items of the largest blocks: what is distributed stays so, whatever is quicker.

    Of two ways alike in that, cuts of different axes leave the next transform less to exchange.
    """
    again = sum(len(x.sharding_axes(axis)) > 1 for x in layouts for axis in range(x.ndim))
    return sum(layout.largest_block for layout in layouts) + again / (1 + again)


def _outputs(step: Step) -> tuple[Layout, ...]:
    """Return the layouts of the results."""
    axes: Axes = step.call.static
    for have, get, dtype in zip(step.call.layouts, step.sources, step.call.dtypes, strict=True):
        nbytes = get.largest_block * dtype.itemsize
        allowed = max(REPLICATED_BYTES, 2 * have.without_partial().largest_block * dtype.itemsize)
        if have is not get and nbytes > allowed:
            raise ImplicitCommunicationError(
                f"{step.op.name} needs whole axes, and {have} cuts them: {nbytes} bytes would be "
                f"collected on every process, and at most {allowed} are; redistribute the array "
                "beforehand so that other axes are cut, or replicate it yourself where memory "
                "allows: x.redistribute([da.Replicate()] * x.mesh.ndim)"
            )
    cores = [result.shape[1:] for result in _probe(step.op, step.call)]
    pairs = zip(axes.results, cores, strict=True)
    return tuple(_output(step, axes, letters, core) for letters, core in pairs)


def _output(step: Step, axes: Axes, letters: str, core: Shape) -> Layout:
    """Return the layout of one result: batch axes as they are cut now, whole ones as they were."""
    batch = step.partial
    placements: list[Any] = []
    for mesh_axis, placement in enumerate(batch.placements):
        if type(placement) is not Shard:
            was = _letter_cut(step, axes, mesh_axis)
            at = -1 if was is None else letters.find(was)
            placement = Replicate() if at < 0 else Shard(batch.ndim + at)
        placements.append(placement)
    return batch.replace(
        placements=placements, shape=(*batch.shape, *core), boundaries=batch.boundaries
    )


def _letter_cut(step: Step, axes: Axes, mesh_axis: int) -> str | None:
    """Return the letter of a whole axis that a mesh axis cut in an operand, if it did."""
    for layout, letters in zip(step.call.layouts, axes.inputs, strict=True):
        placement = layout.placements[mesh_axis]
        if type(placement) is Shard:
            start = layout.ndim - len(letters)
            if placement.axis >= start:
                return letters[placement.axis - start]
    return None


def _bind(step: Step) -> Callable[..., Any]:
    return _on_blocks(step, _function_of(step))


def _bind_agreed(step: Step) -> Callable[..., Any]:
    return _on_blocks(step, agree(_function_of(step), step.op.name, step.partial))


def _bind_failing(step: Step) -> Callable[..., Any]:
    return _on_blocks(step, raise_alike(_function_of(step), step.op.name, step.partial))


def _function_of(step: Step) -> Callable[..., Any]:
    axes: Axes = step.call.static
    return partial(step.op.local, **dict(axes.options))


def _on_blocks(step: Step, function: Callable[..., Any]) -> Callable[..., Any]:
    keys = [_own_part(step, layout) for layout in step.outputs]

    def call(*blocks: Any) -> Any:
        # NumPy's alone are the same on every host; blocks on GPUs go there and back.
        results = _as_tuple(function(*map(_backend.to_host, blocks)))
        device = _backend.device_of(blocks[0])
        parts = [
            _backend.asarray(np.asarray(result) if key is None else result[key].copy(), device)
            for result, key in zip(results, keys, strict=True)
        ]
        return tuple(parts) if len(parts) > 1 else parts[0]

    return call


def _as_tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def _own_part(step: Step, layout: Layout) -> tuple[slice, ...] | None:
    """Return where the block of a result is in what this process computes; None: it is all."""
    core = range(step.partial.ndim, layout.ndim)
    if all(layout.partition(axis).count == 1 for axis in core):
        return None
    box = layout.own_box
    return tuple(slice(*box[i]) if i in core else slice(None) for i in range(layout.ndim))


def agree(function: Callable[..., Any], name: str, layout: Layout) -> Callable[..., Any]:
    """Return a function that does what it does on the first process with the same matrices.

    `layout` is that of the matrices, none of which is cut. What it may raise is a `LinAlgError`.
    """
    mesh: Any = layout.mesh
    pairs = zip(mesh.axis_names, layout.placements, strict=True)
    copied = tuple(axis for axis, placement in pairs if type(placement) is not Shard)
    alike = mesh[copied] if copied and mesh.coordinate is not None else None
    if alike is None or alike.size == 1:
        return function

    comm = alike.communicator()
    number = token(name, layout.fingerprint)

    def call(*blocks: Any) -> Any:
        found: list[np.ndarray] = []
        error: Exception | None = None
        try:
            found += (np.asarray(one, order="C") for one in _as_tuple(function(*blocks)))
            mine = 0
            for one in found:
                mine = zlib.crc32(one.reshape(-1).view("u1").data, mine)
        except Exception as own:  # of which all are told
            error, mine = own, zlib.crc32(str(own).encode()) + 2**32
        told = gather_lengths(comm, mine, number, name)
        if told.count(mine) == len(told):
            if error is not None:
                raise error
        else:
            said = all_gather_checked(alike, name, lambda: _describe(found, error))
            found = _take_first(comm, said[0], found)
        return tuple(found) if len(found) > 1 else found[0]

    return call


def _describe(found: list[np.ndarray], error: Exception | None) -> str | list[tuple[Shape, str]]:
    """Return the text of a `LinAlgError`, or what memory for the results is like."""
    if isinstance(error, np.linalg.LinAlgError):
        return str(error)
    if error is not None:
        raise error
    return [(one.shape, one.dtype.str) for one in found]


def _take_first(comm: Communicator, told: Any, found: list[np.ndarray]) -> list[np.ndarray]:
    """Return the results of the first process, or raise its error."""
    if isinstance(told, str):
        raise np.linalg.LinAlgError(told)
    if comm.rank:
        found = [np.empty(shape, dtype) for shape, dtype in told]
    for one in found:
        comm.broadcast(one.reshape(-1))
    return found


def raise_alike(function: Callable[..., Any], name: str, layout: Layout) -> Callable[..., Any]:
    """Return a function that raises a `LinAlgError` on all processes if it does on one.

    Of those with the same matrices the first decides; `layout` is that of the matrices, none of
    which is cut.
    """
    function = agree(function, name, layout)

    def attempt(*blocks: Any) -> Any:
        try:
            return function(*blocks)
        except np.linalg.LinAlgError as error:
            raise LinAlgError(f"{name}: {error}") from None

    if layout.is_replicated:  # all processes fail alike
        return attempt

    def attempt_on_all(*blocks: Any) -> Any:
        try:
            return call_on_all(layout.mesh, name, lambda: attempt(*blocks))
        except OurLinAlgError as error:
            raise LinAlgError(str(error)) from None

    return attempt_on_all
