"""The family of reductions: local call, Partial result where a reduced axis is cut."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from distarray.comm import _backend, _memory
from distarray.core._arguments import check_flag, check_travels, describe, join_arrays, plain_buffer
from distarray.core._base import BaseArray, open_traces
from distarray.core._dtypes import floating, normalize_dtype, refusal, stays_partial
from distarray.core._op import Call, Op, State, States
from distarray.core._spec import Rule, Spec, reduction_spec
from distarray.core.engine._cache import cache, remember
from distarray.core.engine._float_errors import text_converts
from distarray.core.engine._fusion import Node, Pass, current_trace, is_waiting
from distarray.core.engine._meshes import device_of, replicated_layout
from distarray.core.engine._operands import (
    assign,
    broadcast_shape,
    check_target,
    lift_layouts,
    match_device,
    normalize_operand,
    normalize_operands,
)
from distarray.core.engine._pipeline import Step, run, run_one, step_for, steps, wrapped
from distarray.core.engine._tiles import merge_pairwise
from distarray.core.families import _docstrings
from distarray.core.families._registry import methods, register, ufuncs
from distarray.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from distarray.layout import REDUCTIONS, Layout, Partial, normalize_axes
from distarray.typing import Buffer, Shape

ABSENT: Any = type("Absent", (), {"__repr__": lambda _: "<no value>"})()
"""Default of an argument for which None has a meaning."""

Dtypes = Callable[[Op, Call], tuple[Any, Any]]


def reduction(
    name: str,
    sentence: str,
    local: Callable[..., Any],
    combine: str | Callable[[Any, Any], Any] | None,
    accepts: tuple[str, ...],
    *,
    ufunc: np.ufunc | None = None,
    answers_name: bool = True,
    answers_reduce: bool = True,
    rules: tuple[Rule, ...] | None = None,
    dtypes: Dtypes | None = None,
    identity: Callable[[Op, Any], Any] | None = None,
    finish: Callable[[Step], Callable[[Buffer], Any]] | None = None,
    dates: np.ufunc | None = None,
    reproducible: Op | None = None,
) -> Op:
    """Return a reduction over axes.

    Parameters
    ----------
    name, sentence : str
        The public name, and the first line of the documentation.
    local : callable
        `local(block, axes, dtype, keepdims, **where)` with the reduced axes as a tuple.
    combine : str or callable or None
        The Partial reduction of blocks' results. Where there is none, the function of two of them:
        the ranks then exchange their results at once. None: they do not combine, and the function
        refuses to reduce an axis that is cut.
    accepts : tuple of str
        NumPy's order of the arguments after the array.
    ufunc : ufunc, optional
        Combines the result with `initial`; its loops tell in which dtype `out` is reduced.
    answers_name : bool
        Whether the reduction is public under its name; else it answers for `ufunc.reduce` alone.
    answers_reduce : bool
        Whether the reduction answers for `ufunc.reduce`, which one of each ufunc may.
    rules : tuple of Rule, optional
        Which Partial inputs may stay; default: those of a `combine` that is a name.
    dtypes : callable, optional
        As of an `Op`, with a `combine` that is a name.
    identity : callable, optional
        `identity(op, dtype)` gives the item that leaves all others as they are; default: that of a
        `combine` that is a name. Without one neither `initial` nor `where` is taken.
    finish : callable, optional
        `finish(step)` gives a function of the combined result; the ranks then reduce at once.
    dates : ufunc, optional
        Combines results of two blocks where items are dates or durations, which no Partial does: a
        `combine` that is called, beside one that is a name.
    reproducible : Op, optional
        As of an `Op`: a reduction with the same static arguments.

    Raises
    ------
    ValueError
        If an argument would have no effect, or another one is needed for it.
    """
    if "initial" in accepts and ufunc is None:
        raise ValueError(f"{name} accepts initial=, and needs ufunc= to combine it with the result")
    if ufunc is not None and answers_reduce and (ufunc, "reduce") in methods:
        taken = methods[ufunc, "reduce"].__name__
        raise ValueError(
            f"{taken} answers for {ufunc.__name__}.reduce; pass answers_reduce=False for {name}"
        )
    options: dict[str, Any]

    def exchanging(together: Callable[[Any, Any], Any], nothing: Any) -> dict[str, Any]:
        def state_dtypes(op: Op, call: Call) -> tuple[Any, Any]:
            total, result = (dtypes or _dtypes)(op, call)
            return (total,), result

        return {
            "dtypes": state_dtypes,
            "bind": _bind_state,
            "identity": nothing,
            "finish": _merge_states(together, finish),
        }

    if isinstance(combine, str):
        of_dates = None
        if dates is not None:
            nothing = functools.partial(_identity, combine=combine)
            of_dates = Op(
                name, local, _spec, accepts=accepts, ufunc=ufunc, **exchanging(dates, nothing)
            )
        options = {
            "dtypes": dtypes or _dtypes,
            "bind": _bind,
            "combine": combine,
            "identity": identity or _identity,
            "finish": finish,
            "rules": ((Partial(combine), Partial(combine)),) if rules is None else rules,
            "instead": of_dates,
            "reproducible": reproducible,
            "defer": None if ufunc is None and combine != "sum" else _reduce_waiting,
        }
    elif combine is None:
        options = {"dtypes": _dtypes if dtypes is None else dtypes, "bind": _bind_whole}
    else:
        if rules or dtypes is not None:
            raise ValueError(f"{name} has a combine= that is called: rules= and dtypes= do nothing")
        if "initial" in accepts and identity is None:
            raise ValueError(f"{name} accepts initial=, and needs identity= where nothing is left")
        options = exchanging(combine, identity)
    op = Op(name, local, _spec, call=_call, accepts=accepts, ufunc=ufunc, **options)
    op.describe(__doc__=_docstrings.reduction(op, sentence), __signature__=_signature(op))
    if answers_name:
        register(op)
    if ufunc is not None and answers_reduce:
        methods[ufunc, "reduce"] = op
    return op


_AXES = frozenset(("axis", "keepdims"))
_of_any_lengths = cache()
"""Steps over all axes, which lengths say nothing of as long as no block is empty."""

# --- the public arguments ------------------------------------------------------------------------


def _call(op: Op, x: Any, /, *args: Any, **options: Any) -> Any:
    if len(args) <= 1 and isinstance(x, BaseArray) and _AXES.issuperset(options):
        keepdims = options.get("keepdims", False)
        if keepdims.__class__ is bool and not (args and "axis" in options):
            axis = args[0] if args else options.get("axis")
            if axis is None:
                return _reduce_all(op, x, (None, None, keepdims, True))
            return run_one(op, x, (axis_key(axis, len(x._layout.shape)), None, keepdims, True))
    if len(args) > len(op.accepts) or not {*op.accepts, *_keywords(op)}.issuperset(options):
        op.check_arguments((x, *args), options)
    return reduce(op, x, **dict(zip(op.accepts, args, strict=False)), **options)


def _reduce_all(op: Op, x: BaseArray, static: Any) -> Any:
    """Return `run_one` over all axes; where no block is empty one step serves any lengths."""
    layout = x._layout
    if open_traces or layout.has_partial or layout.has_empty:
        return run_one(op, x, static)
    block = x._local
    key = op, static, layout.frame, block.dtype
    step = _of_any_lengths[key]
    if step is None:
        if op.combine is None or op.finish is not None:
            return run_one(op, x, static)
        step = steps[op, static, layout.shortest, block.dtype]
        if not step.still or step.op is not op:
            return run_one(op, x, static)
        remember(_of_any_lengths, key, step)
    return wrapped(x, step, step.run(block))


def reduce(
    op: Op,
    x: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = ABSENT,
    where: Any = True,
    reproducible: bool = False,
) -> Any:
    """Return a reduction of `x` over `axis`, with NumPy's arguments."""
    x = beside_mask(op.name, join_arrays(x), where)
    check_out(op.name, x, out)
    keepdims = check_flag(op.name, "keepdims", keepdims)
    reproducible = check_flag(op.name, "reproducible", reproducible)
    if not isinstance(x, BaseArray):
        x = normalize_operand(op.name, x)
        rest = {} if initial is ABSENT else {"initial": initial}
        if where is not True:
            rest["where"] = where
        block = x if _backend.is_buffer(x) else np.asarray(x)
        op = _reproducible(op, block.dtype, dtype) if reproducible else op
        return op.local(block, normalize_axes(axis, np.ndim(x)), dtype, keepdims, **rest)
    axis = axis_key(axis, x.ndim)
    dtype = None if dtype is None else normalize_dtype(dtype)
    if dtype is None and out is not None and op.ufunc is not None:
        dtype = loop_dtype(op.name, op.ufunc, x.dtype, out.dtype)
    op = _reproducible(op, x.dtype, dtype) if reproducible else op
    if initial is None:
        initial = ABSENT
    if initial is not ABSENT:
        initial = _read_initial(op, initial, result_dtype(op, x.dtype, dtype))
    static = (axis, dtype, keepdims, initial is ABSENT and where is True)
    begins = initial is not ABSENT and op.combine == "sum" and not reproducible
    # Sums of nothing are 0.0, and one that begins with -0.0 is not; CuPy's begin with 0.0.
    is_negative = begins and initial.dtype.kind in floating and initial == 0 and "-" in str(initial)
    if is_negative and device_of(x._layout) == "cpu":
        op, initial = _sum_from(op, initial.dtype, initial.tobytes()), ABSENT
    if out is not None:
        step = step_for(op, (x,), static)
        check_fits(op.name, out, step.output.shape, step.result)
    if where is True:
        result = run_one(op, x, static)
    elif op.identity is None:
        raise ArgumentTypeError(f"{op.name}() takes no where=; use da.where first")
    else:
        if op.ufunc is not None and op.ufunc.identity is None and initial is ABSENT:
            raise ArgumentError(f"{op.name}(where=) needs initial=, as nothing may be left")
        result = run(op, (x, normalize_mask(op.name, x, where)), static)
    if initial is not ABSENT:
        assert op.ufunc is not None  # as of all that accept initial=
        result = ufuncs[op.ufunc](result, initial)
    return write_out(op.name, out, result)


def _reproducible(op: Op, dtype: Any, wanted: Any) -> Op:
    """Return what reduces to the same bits in any order, which integers do anyway."""
    kind = np.dtype(dtype if wanted is None else wanted).kind
    return op.reproducible or op if kind in floating else op


def loop_dtype(name: str, ufunc: np.ufunc, dtype: Any, out: Any) -> Any:
    """Return the dtype in which NumPy reduces, or accumulates, items of `dtype` into `out`.

    Raises
    ------
    DTypeError
        If there is none that holds the items.
    """
    try:
        (loop, *_) = ufunc.resolve_dtypes((out, dtype, None), reduction=True, casting="unsafe")
    except TypeError as error:
        raise DTypeError(f"{name} of {dtype} into out= of {out}: {error}") from error
    if loop.kind == "f" and {dtype.kind, out.kind} == {"u", "i"}:
        return dtype.newbyteorder("=")  # uint64 meets signed integers in float64, which is inexact
    if loop.kind != "b" and not np.can_cast(dtype, loop, "same_kind"):
        raise DTypeError(f"{name} of {dtype} into out= of {out}: {loop} does not hold the items")
    return loop


def _read_initial(op: Op, initial: Any, dtype: Any) -> Any:
    """Return `initial` as an item of the result's dtype, as NumPy takes it."""
    if "initial" not in op.accepts:
        raise ArgumentTypeError(f"{op.name}() takes no initial=")
    if isinstance(initial, np.ndarray):
        initial = plain_buffer(initial, f"{op.name}(initial=)")
    item = np.empty((), dtype)
    try:
        item[...] = initial
    except (TypeError, ValueError, OverflowError) as error:
        raise refusal(error)(
            f"{op.name}(initial={describe(initial)}) of items of {dtype}: {error}; pass one number "
            "that the result's dtype holds"
        ) from error
    return item[()]


@functools.cache
def _sum_from(op: Op, dtype: Any, zero: bytes) -> Op:
    """Return a sum that begins with 0 of a sign on all processes; a few serve all calls."""
    (initial,) = np.frombuffer(zero, dtype)
    local = functools.partial(op.local, initial=initial)
    return replace(op, local=local, identity=lambda *_: initial, defer=None)


def beside_mask(name: str, x: Any, where: Any) -> Any:
    """Return a plain array as one that the processes of its distributed mask, or mean, have."""
    if isinstance(x, BaseArray) or not isinstance(where, BaseArray):
        return x
    block, device = normalize_operand(name, x), _backend.device_of(where._local)
    if _backend.is_buffer(block):
        block = match_device(name, block, where._local)
    block = _backend.asarray(block, device)
    return where._new(block, replicated_layout(where.layout.mesh, block.shape))


def normalize_mask(name: str, x: BaseArray, where: Any) -> Any:
    """Return a mask as an operand.

    Raises
    ------
    DTypeError
        If it does not hold booleans.
    ShapeError
        If it does not broadcast to the array.
    """
    (mask,) = normalize_operands(f"{name}(where=)", [where])
    if not isinstance(mask, BaseArray) and not _backend.is_buffer(mask):
        mask = np.asarray(mask)
    if np.dtype(mask.dtype) != np.bool_:
        raise DTypeError(f"{name}(where=) takes booleans, not {mask.dtype}")
    if broadcast_shape(name, (x.shape, mask.shape)) != x.shape:
        raise ShapeError(f"{name}(where=) of shape {mask.shape} does not broadcast to {x.shape}")
    return mask


def check_fits(name: str, out: Any, shape: Shape, dtype: Any) -> None:
    """Refuse an `out` of another shape or kind than the result has, before anything is sent."""
    if out.shape != shape:
        raise ShapeError(f"{name} gives shape {shape}, but out= has {out.shape}")
    if text_converts(dtype, out.dtype) or not np.can_cast(dtype, out.dtype, "same_kind"):
        raise DTypeError(f"{name} gives {dtype}, but out= has {out.dtype}")


def run_and_write(op: Op, operands: Sequence[Any], static: Any, out: Any) -> Any:
    """Run an operation of operands with dtypes; its result goes into `out`, if there is one."""
    if out is None:
        return run(op, operands, static)
    check_target(op.name, out)
    step = step_for(op, operands, static)
    check_fits(op.name, out, step.output.shape, step.result)
    return write_out(op.name, out, run(op, operands, static))


def write_out(name: str, out: Any, result: Any) -> Any:
    """Return `out` with `result`, which fits into it; `result` where there is no `out`."""
    if out is None:
        return result
    assign(name, out, result)
    return out


def check_out(name: str, x: Any, out: Any) -> None:
    """Refuse an `out` that cannot be written with what becomes of `x`, before anything is sent.

    Raises
    ------
    ArgumentTypeError
        If one of them is distributed, and not the other.
    ReadOnlyError
        If `out` is read-only.
    MeshError
        If the two have no common mesh.
    """
    if out is None:
        return
    if not isinstance(x, BaseArray):
        raise ArgumentTypeError(
            f"{name}(out=) of a plain array, which every process reduces by itself; use NumPy's "
            "function with an out= of NumPy's, or make a DistArray first: distarray.asarray(x)"
        )
    check_target(name, out)
    lift_layouts(name, (out._layout, x._layout))


def _keywords(op: Op) -> dict[str, Any]:
    """Return the arguments by keyword alone, and their defaults."""
    return {"where": True} | ({} if op.reproducible is None else {"reproducible": False})


def _signature(op: Op) -> inspect.Signature:
    defaults = {"keepdims": False, "initial": ABSENT}
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature(
        [
            inspect.Parameter("x", inspect.Parameter.POSITIONAL_ONLY),
            *(inspect.Parameter(x, kind, default=defaults.get(x)) for x in op.accepts),
            *(
                inspect.Parameter(x, inspect.Parameter.KEYWORD_ONLY, default=default)
                for x, default in _keywords(op).items()
            ),
        ]
    )


# --- hooks; static arguments are (axis, dtype, keepdims, whether empty axes are refused) ---------


def _spec(op: Op, call: Call) -> Spec:
    """Return the spec of an array, and perhaps of a mask that broadcasts to it."""
    axis, _, keepdims, checks_empty = call.static
    layout = call.layouts[0]
    axes = normalize_axes(axis, layout.ndim)
    if checks_empty and layout.size == 0:
        _check_empty(op, layout.shape, call.dtypes[0], axes)
    exchanged = op.combine is None and op.finish is not None
    if op.combine is None and not exchanged:
        check_whole(op, layout, axes)
    if op.combine is None and len(axes) > 1:
        _check_reorderable(op, layout.ndim, call.dtypes[0], axes)
    total = op.dtypes(op, call)[0]
    combine = op.combine
    if combine is not None and total.kind not in REDUCTIONS[combine].kinds:
        combine = None
    if len(call.layouts) == 1:
        rules: tuple[Rule, ...] = ()
        if layout.has_partial:
            rules = tuple(
                rule
                for rule in op.rules
                if isinstance(rule[1], Partial) and stays_partial(rule[1].op, call.dtypes[0], total)
            )
        return reduction_spec(layout.ndim, axes, keepdims, combine, rules, exchanged=exchanged)
    spec = reduction_spec(layout.ndim, axes, keepdims, combine, exchanged=exchanged)
    mask = call.shapes[1]
    shift = layout.ndim - len(mask)
    letters = tuple(
        None if size == 1 and layout.shape[shift + i] != 1 else shift + i
        for i, size in enumerate(mask)
    )
    return spec._replace(inputs=(*spec.inputs, letters))


def _dtypes(op: Op, call: Call) -> tuple[Any, Any]:
    dtype = result_dtype(op, call.dtypes[0], call.static[1])
    return dtype, dtype


def result_dtype(op: Op, dtype: Any, wanted: Any) -> Any:
    """Return the dtype of a reduction's local results; see `local_dtype`."""
    return local_dtype(op, dtype, (0,), wanted, False)


@functools.lru_cache(maxsize=1024)  # any number of this size does
def local_dtype(op: Op, dtype: Any, *arguments: Any) -> Any:
    """Return the dtype of what the local function makes of items of a dtype.

    Raises
    ------
    DTypeError
        If NumPy has no such function for `dtype`.
    """
    check_travels(dtype)
    try:
        return np.asarray(op.local(np.zeros((1,), dtype), *arguments)).dtype
    except (TypeError, ValueError) as error:
        raise DTypeError(f"{op.name} of {dtype}: {error}; convert with astype") from error


def _identity(op: Op, dtype: Any, combine: str | None = None) -> Any:
    combine = combine or op.combine
    if dtype.kind in "mM" and combine in ("min", "max"):  # the smallest integer is NaT
        bound = np.iinfo(np.int64).max
        return np.array(bound if combine == "min" else -bound).view(dtype.newbyteorder("="))[()]
    assert combine is not None
    # A sum of nothing is 0.0: NumPy's sums begin with it, so that none of a block is -0.0.
    return REDUCTIONS[combine].identity(dtype.kind, dtype.itemsize) or 0


def _bind(step: Step) -> Callable[..., Any]:
    op, adds = step.op, step.adds
    axis, wanted, keepdims, _ = step.call.static
    source = step.sources[0]
    axes = normalize_axes(axis, source.ndim)
    assert op.identity is not None  # as of all that combine by name
    nothing = op.identity(op, adds)
    if 0 in source.local_shape():
        # Nothing here to reduce: what changes nothing when it is combined with the others.
        shape = step.partial.local_shape()
        return lambda block, *_: _memory.full(shape, nothing, adds, _backend.device_of(block))
    at_once = op.finish is not None or adds is not step.total
    wanted = adds if at_once else wanted
    local, total = op.local, step.total
    narrow = adds is not total and step.call.dtypes[0] != total

    def reduce_local(block: Buffer) -> Any:
        return local(block.astype(total) if narrow else block, axes, wanted, keepdims)

    def reduce_masked(block: Buffer, mask: Any) -> Any:
        block = block.astype(total) if narrow else block
        if _backend.is_cupy(block):  # whose reductions take no mask
            library = _backend.namespace_of(block)
            chosen = mask if _backend.is_cupy(mask) else library.asarray(mask)
            kept = library.where(chosen, block, _backend.scalar(nothing, block))
            return local(kept, axes, wanted, keepdims)
        extra = {"where": mask}
        if op.ufunc is not None and op.ufunc.identity is None:
            extra["initial"] = nothing
        return local(block, axes, wanted, keepdims, **extra)

    if len(step.sources) > 1:
        return reduce_masked
    return reduce_local if narrow else (lambda block: local(block, axes, wanted, keepdims))


def _reduce_waiting(op: Op, operands: Sequence[Any], static: Any) -> Any:
    """Return the reduction of an array that waits, which is computed a tile at a time."""
    x, trace = operands[0], current_trace()
    if len(operands) > 1 or trace is None or not is_waiting(x, trace):
        return None
    step = steps[_by_tiles(op), static, x._layout, x.dtype]
    if step.op.bind is not _bind_tiles or not step.still or 0 in x._layout.local_shape():
        return None  # of dates states are exchanged
    result = x._new(step.run(x._node), step.output)
    if step.is_fresh:
        result._reduced = None
    return result


@functools.cache
def _by_tiles(op: Op) -> Op:
    """Return a reduction whose local step takes a node that waits."""
    return replace(op, bind=_bind_tiles)


def _bind_tiles(step: Step) -> Callable[..., Any]:
    op, (axis, _, keepdims, _) = step.op, step.call.static
    source = step.sources[0]
    axes = normalize_axes(axis, source.ndim)
    kept = [i for i in range(source.ndim) if keepdims or i not in axes]
    reduce_tile, shape = _bind(step), step.partial.local_shape()
    combine = op.ufunc or np.add

    def reduce_node(node: Node) -> Buffer:
        out = _memory.empty(shape, step.adds)
        run = Pass([node], writes=False)
        for box, tiles in run.tiles(axes):
            parts = (reduce_tile(run(tile)) for tile in tiles)
            out[tuple([box[i] for i in kept])] = merge_pairwise(parts, combine)
        return out

    return reduce_node


def _bind_whole(step: Step) -> Callable[..., Any]:
    axis, wanted, keepdims, _ = step.call.static
    local, axes = step.op.local, normalize_axes(axis, step.sources[0].ndim)
    return lambda block: local(block, axes, wanted, keepdims)


def _bind_state(step: Step) -> Callable[..., State]:
    op, (axis, wanted, *_) = step.op, step.call.static
    local, axes = op.local, normalize_axes(axis, step.sources[0].ndim)
    if len(step.sources) == 1:
        return lambda block: (local(block, axes, wanted, True),)
    assert op.identity is not None  # as of all that take where=
    nothing = op.identity(op, step.call.dtypes[0])
    is_wider = isinstance(nothing, float) and step.call.dtypes[0].kind in "biu"

    def reduce_masked(block: Buffer, mask: Any) -> State:
        library = _backend.namespace_of(block)
        block = block.astype(np.float64) if is_wider else block
        kept = library.where(library.asarray(mask), block, _backend.scalar(nothing, block))
        return (local(kept, axes, wanted, True),)

    return reduce_masked


def _merge_states(
    combine: Callable[[Any, Any], Any], finish: Callable[[Step], Callable[[Buffer], Any]] | None
) -> Callable[[Step], Callable[..., Any]]:
    """Return the second local step that combines the results of all blocks, in rank order."""

    def bind(step: Step) -> Callable[..., Any]:
        shape, source, op = step.output.local_shape(), step.sources[0], step.op
        last = None if finish is None else finish(step)
        nothing = None
        if source.size == 0 and op.identity is not None:
            nothing = np.full(shape, op.identity(op, step.total[0]), step.total[0])

        def merge(states: States, *_: Buffer) -> Any:
            result = nothing
            if result is None:
                result = functools.reduce(combine, states[0])
            return result if last is None else last(result)

        return merge

    return bind


def _check_empty(op: Op, shape: Shape, dtype: Any, axes: tuple[int, ...]) -> None:
    """Refuse what NumPy refuses, on every rank alike."""
    try:
        with np.errstate(all="ignore"):
            op.local(np.empty(shape, dtype), axes, None, False)
    except ValueError as error:
        raise ArgumentError(
            f"{op.name} over axes {axes} of an array of shape {shape}: {error}; check "
            "x.size first" + (", or pass initial=" if "initial" in op.accepts else "")
        ) from error


def _check_reorderable(op: Op, ndim: int, dtype: Any, axes: tuple[int, ...]) -> None:
    """Refuse several axes where NumPy does, as the result would depend on their order."""
    try:
        op.local(np.ones((1,) * ndim, dtype), axes, None, False)
    except ValueError as error:
        raise ArgumentError(f"{op.name} over axes {axes}: {error}; reduce one at a time") from error


def check_whole(op: Op, layout: Layout, axes: Sequence[int]) -> None:
    """Refuse axes that are cut, along which results of blocks do not combine."""
    cut = [axis for axis in axes if layout.partition(axis).count > 1]
    if cut:
        raise ArgumentTypeError(
            f"{op.name} along axis {cut[0]} of {layout}: it is not associative, so that results of "
            "blocks do not combine; cut another axis first, as x.redistribute([Shard(other)]), or "
            "gather a small array with x.full_array()"
        )


def axis_key(axis: Any, ndim: int) -> Any:
    """Return an axis argument as a part of a key: None, an integer, or several in their order."""
    if axis is None or axis.__class__ is int:
        return axis
    return tuple(sorted(normalize_axes(axis, ndim)))


def count_reduced(shape: Shape, axes: tuple[int, ...]) -> int:
    """Return how many items are reduced into one."""
    return prod(shape[axis] for axis in axes)
