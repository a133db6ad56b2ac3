"""The family of functions item by item: broadcasting, promotion, `out=`, `where=`, in place."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final, cast

import numpy as np

from distarray.comm import _backend, _memory
from distarray.core._arguments import check_casting, describe
from distarray.core._base import BaseArray
from distarray.core._dtypes import (
    REFUSALS,
    dtype_key,
    loop_kinds,
    normalize_dtype,
    numeric,
    overflow_error,
    stand_in,
    stays_partial,
)
from distarray.core._op import Call, Op
from distarray.core._spec import POINTWISE, Rule, Spec, pointwise
from distarray.core.engine import _on_device
from distarray.core.engine._blocks import as_block, move_all
from distarray.core.engine._cache import cache, remember
from distarray.core.engine._float_errors import (
    DATES_RAISE,
    call_on_all,
    errors_raise,
    may_refuse,
    refuses_items,
)
from distarray.core.engine._fusion import Deferred, current_trace, is_waiting
from distarray.core.engine._meshes import device_of
from distarray.core.engine._operands import (
    LARGE,
    allocate,
    assign,
    broadcast_shape,
    check_target,
    lift_layouts,
    local_blocks,
    normalize_operands,
    reduce_partial,
)
from distarray.core.engine._pipeline import Step, run, step_for
from distarray.core.engine._resolution import align
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    DistArrayError,
    DTypeError,
    OutOfRangeError,
    ShapeError,
)
from distarray.layout import Partial
from distarray.redistribute import read_local
from distarray.typing import Buffer

PLAIN: tuple[Any, ...] = (False, (), ())
"""Static arguments: whether the last operand is a mask, keywords of the local function, and what
tells their values from others that are equal."""

_WRITERS: Final[dict[Any, str]] = {np.clip: "iufcmM", np.round: "fc"}
"""Functions besides ufuncs that take `out=`, and the kinds of results that they write as they are;
NumPy rounds integers to tens by floating-point numbers, which `out=` does not convert."""

_PIECE: Final = 1 << 14
"""So many items at once, with what is computed of them, stay in the cache of a core."""

# --- rows ----------------------------------------------------------------------------------------


def elementwise(
    name: str,
    local: Callable[..., Any],
    nin: int,
    rules: tuple[Rule, ...] = POINTWISE,
    **fields: Any,
) -> Op:
    """Return a function of the items at the same place, with the arguments of a ufunc.

    Parameters
    ----------
    name : str
        The public name.
    local : callable
        The function of blocks, usually a NumPy ufunc.
    nin : int
        Number of operands.
    rules : tuple of Rule
        When a Partial input may stay so.
    **fields
        `check` and more, as of an `Op`; `kinds` where `local` is no ufunc; ``defer=None`` where it
        gives a view.
    """
    ufunc = local if isinstance(local, np.ufunc) else None
    fields.setdefault("kinds", numeric if ufunc is None else loop_kinds(ufunc))
    fields.setdefault("defer", _defer)
    op = Op(
        name,
        local,
        _spec,
        call=call,
        dtypes=_dtypes,
        bind=_bind,
        plain=_of_plain,
        rules=rules,
        nin=nin,
        ufunc=ufunc,
        **fields,
    )
    return op.describe(__signature__=_signature(op.nin, op.nout, ufunc is not None))


def in_pieces(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of blocks, item by item, whose temporary arrays are of bounded size."""

    @functools.wraps(function)
    def call_in_pieces(*blocks: Any, **options: Any) -> Any:
        first = blocks[0]
        if not _backend.is_numpy(first) or first.size <= _PIECE:
            return function(*blocks, **options)
        if any(not _backend.is_numpy(one) or one.shape != first.shape for one in blocks):
            return function(*blocks, **options)
        flat = [one.reshape(-1) for one in blocks]
        dtype = function(*[one[:0] for one in flat], **options).dtype
        out: Buffer = _memory.empty(first.shape, dtype)
        target = out.reshape(-1)
        for start in range(0, target.size, _PIECE):
            piece = slice(start, start + _PIECE)
            target[piece] = function(*[one[piece] for one in flat], **options)
        return out

    return call_in_pieces


# --- the public arguments ------------------------------------------------------------------------

_OPTIONS = {
    "where": True,
    "casting": "same_kind",
    "order": "K",
    "dtype": None,
    "subok": True,
    "signature": None,
}
"""Keywords of a ufunc besides `out`, and their defaults."""
_TAKEN = frozenset(("out", *_OPTIONS))


@functools.cache
def _signature(nin: int, nout: int, is_ufunc: bool) -> inspect.Signature:
    """Return the signature of a ufunc; what is none takes only `out` besides its operands."""
    kind = inspect.Parameter
    operands = ["x"] if nin == 1 else [f"x{i + 1}" for i in range(nin)]
    parameters = [kind(x, kind.POSITIONAL_ONLY) for x in operands]
    if nout == 1:
        parameters.append(kind("out", kind.POSITIONAL_OR_KEYWORD, default=None))
    else:
        outs = [f"out{i + 1}" for i in range(nout)]
        parameters += [kind(out, kind.POSITIONAL_ONLY, default=None) for out in outs]
        parameters.append(kind("out", kind.KEYWORD_ONLY, default=(None,) * nout))
    if is_ufunc:
        parameters += [kind(key, kind.KEYWORD_ONLY, default=_OPTIONS[key]) for key in _OPTIONS]
    return inspect.Signature(parameters)


def call(op: Op, /, *operands: Any, **options: Any) -> Any:
    """Apply a function with NumPy's keyword arguments `out`, `where`, `dtype`, `casting`.

    Raises
    ------
    ArgumentTypeError
        For arguments that do not fit the signature, or an `out` that is not distributed.
    """
    if not options and len(operands) == op.nin:
        return run_row(op, operands)
    known = {"out"} if op.ufunc is None else _TAKEN
    if not (op.nin <= len(operands) <= op.nin + op.nout and known.issuperset(options)):
        op.check_arguments(operands, options)
    if len(operands) > op.nin:
        outs = operands[op.nin :]
        if "out" in options:
            raise ArgumentTypeError(f"{op.name}() got out= by position and by name; pass one")
        options["out"] = (*outs, *(None,) * (op.nout - len(outs))) if op.nout > 1 else outs[0]
        operands = operands[: op.nin]
    out, where, extra = _read_options(op, options)
    masked = where is not True
    if masked:
        operands = (*operands, where)
    if out is None:
        return run_row(op, operands, masked, **extra)
    return run_into(op, out, operands, masked, **extra)


def _read_options(op: Op, options: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Return (out, where, what else the local call gets)."""
    out = options.get("out")
    where = options.get("where", True)
    extra: dict[str, Any] = {}
    if options.get("dtype") is not None:
        extra["dtype"] = normalize_dtype(options["dtype"])
    if options.get("signature") is not None:
        extra["signature"] = _read_signature(op, options["signature"])
    if "casting" in options:
        extra["casting"] = check_casting(op.name, options["casting"])
    order = options.get("order", "K")
    if not isinstance(order, str) or order not in ("K", "A", "C"):
        raise ArgumentTypeError(f"{op.name}() got order={describe(order)}; it takes order='K'")
    if out is not None:
        out = out if isinstance(out, tuple) else (out,)
        out = None if all(one is None for one in out) else out
    if out is not None and len(out) != op.nout:
        raise ArgumentTypeError(f"{op.name}(out=) takes {op.nout} DistArray, got {len(out)}")
    return out, where, extra


def _read_signature(op: Op, signature: Any) -> Any:
    """Return a ufunc's `signature=`, a text or a tuple of dtypes and None, as a part of a key."""
    if isinstance(signature, str):
        return signature
    if isinstance(signature, tuple):
        return tuple([None if one is None else normalize_dtype(one) for one in signature])
    raise ArgumentTypeError(
        f"{op.name}(signature={describe(signature)}): a text as 'dd->d', or a tuple of dtypes and "
        "None"
    )


def run_row(op: Op, operands: Sequence[Any], masked: bool = False, **options: Any) -> Any:
    """Return the function of operands of any kind: distributed, plain arrays, numbers.

    Parameters
    ----------
    masked : bool
        Whether the last operand is a mask; items elsewhere are 0. NumPy leaves them as they come,
        which would make replicas differ.
    **options
        Keywords of the local function.
    """
    static = _static(op, masked, options) if masked or options else PLAIN
    if op.instead is None or static is not PLAIN:
        return run(op, operands, static)
    operands = [np.array(None) if x is None else x for x in operands]
    try:
        return run(op, operands, static)
    except (DTypeError, ArgumentTypeError):
        return run(op.instead, operands, static)


def _static(op: Op, masked: bool, options: dict[str, Any]) -> tuple[Any, ...]:
    named = tuple([(key, _read_option(op, key, options[key])) for key in sorted(options)])
    # What tells values from others that are equal: 0.0 from -0.0, 1 from True.
    spelled = [
        x.__class__ if isinstance(x, np.dtype) or (x and x.__class__ in _NUMBERS) else repr(x)
        for _, x in named
    ]
    return masked, named, tuple(spelled)


def _read_option(op: Op, key: str, value: Any) -> Any:
    """Return a keyword of the local function, which is the same for all items."""
    if value.__class__ in _NUMBERS:
        return value
    if isinstance(value, BaseArray) and not value.ndim:
        return cast("Any", value).item()
    if isinstance(value, BaseArray) or (_backend.is_buffer(value) and value.ndim):
        raise ArgumentTypeError(
            f"{op.name}({key}=) takes one number, not an array; choose item by item with da.where"
        )
    value = value[()] if isinstance(value, np.ndarray) else value
    try:
        hash(value)
        several = isinstance(value, tuple) and key != "signature"
    except TypeError:
        several = True
    if several:
        raise ArgumentTypeError(f"{op.name}({key}={describe(value)}): must be one value")
    return value


_NUMBERS = frozenset((bool, int, float))
_promoted = cache()
"""Dtypes of results, by those of operands."""

# --- hooks of the engine -------------------------------------------------------------------------


def _spec(op: Op, call: Call) -> Spec:
    kept = []
    if call.static == PLAIN and any(layout.has_partial for layout in call.layouts):
        (result, *_) = _result_dtypes(op, call.dtypes, call.static)
        for rule in op.rules:
            pairs = zip(rule[1:], call.dtypes, range(len(call.dtypes)), strict=True)
            if all(
                i in call.places and stays_partial(placement.op, dtype, result)
                for placement, dtype, i in pairs
                if type(placement) is Partial
            ):
                kept.append((rule[0], *[rule[i + 1] for i in call.places]))
    return pointwise(call.shapes, broadcast_shape(op.name, call.shapes), tuple(kept))


def _dtypes(op: Op, call: Call) -> tuple[Any, Any]:
    dtypes = _result_dtypes(op, call.dtypes, call.static)
    return None, dtypes if op.nout > 1 else dtypes[0]


def _result_dtypes(op: Op, dtypes: Sequence[Any], static: Any) -> tuple[Any, ...]:
    """Return the dtype of each result, as NumPy promotes."""
    key = (op, static, *dtypes)
    found = _promoted.get(key)
    if found is None:
        masked, options, _ = static
        inputs = dtypes[:-1] if masked else dtypes
        try:
            results = op.local(*map(stand_in, inputs), **dict(options))
        except REFUSALS as error:
            raise refusal_error(op.name, error, dtypes) from error
        results = results if op.nout > 1 else (results,)
        found = tuple([as_block(one).dtype for one in results])
        if all(isinstance(dtype, (np.dtype, type)) for dtype in dtypes):  # a number's value matters
            remember(_promoted, key, found)
    return found


def _bind(step: Step) -> Callable[..., Any]:
    op, static = step.op, step.call.static
    shape, layout = step.output.local_shape(), step.output
    dtypes = step.result if op.nout > 1 else (step.result,)
    on_device = device_of(layout) != "cpu"
    local = _local(op, static, on_device)
    # What is written into is not smaller than the largest operand.
    arrays = zip(step.sources, step.call.places, strict=True)
    sizes = [prod(one.local_shape()) * step.call.dtypes[i].itemsize for one, i in arrays]
    largest = step.call.places[sizes.index(max(sizes))]
    writes = max(sizes) >= LARGE and _takes_out(op, static, dtypes[0])

    def function(*blocks: Any) -> Any:
        try:
            if on_device and _on_device.is_on_device(blocks):
                results = _on_device.call_on_device(local, blocks, dtypes)
                return results if op.nout > 1 else results[0]
            if writes:
                device = _backend.device_of(blocks[largest])
                outs = tuple(allocate(shape, dtype, device, blocks) for dtype in dtypes)
                found = outs if op.nout > 1 else outs[0]
                local(*blocks, out=found)
                return found
            results = local(*blocks)
            if isinstance(results, np.character):  # cut to this text, and shorter than its dtype
                results = np.asarray(results, dtypes[0])
            return results
        except REFUSALS as error:
            raise refusal_error(op.name, error, blocks) from error

    return function


def _takes_out(op: Op, static: Any, dtype: Any) -> bool:
    """Tell whether the function of blocks writes results of a dtype into what it is given."""
    return not static[0] and (op.ufunc is not None or dtype.kind in _WRITERS.get(op.local, ""))


def _local(op: Op, static: Any, on_device: bool = True) -> Callable[..., Any]:
    """Return the function of blocks, perhaps on a GPU, with its keywords, and under its mask."""
    masked, options, _ = static
    extra = dict(options)
    if masked:
        return functools.partial(_call_masked, op.local, extra)
    if not extra:
        return op.local
    if not on_device:
        return functools.partial(op.local, **extra)
    return functools.partial(_call_with, op.local, extra)


def _call_with(
    local: Callable[..., Any], extra: dict[str, Any], *blocks: Any, **keywords: Any
) -> Any:
    function = _on_device.substitute(local) if _on_device.is_on_device(blocks) else local
    return function(*blocks, **{**extra, **keywords})


def _call_masked(
    local: Callable[..., Any], extra: dict[str, Any], *blocks: Any, out: Any = None, **keywords: Any
) -> Any:
    """Call under a mask, the last operand."""
    *inputs, mask = blocks
    keywords = {**extra, **keywords}
    on = next((x for x in blocks if _backend.is_cupy(x)), None)
    if out is None:
        shape = np.broadcast_shapes(*(np.shape(block) for block in blocks))
        results = local(*[stand_in(dtype_key(x)) for x in inputs], **keywords)
        results = results if isinstance(results, tuple) else (results,)
        library = np if on is None else _backend.namespace_of(on)
        out = tuple(library.zeros(shape, result.dtype) for result in results)
    targets = out if isinstance(out, tuple) else (out,)
    if on is None:
        local(*inputs, where=mask, out=targets, **keywords)
    else:
        casting = keywords.pop("casting", "same_kind")
        results = _on_device.substitute(local)(*inputs, **keywords)
        results = results if isinstance(results, tuple) else (results,)
        for target, result in zip(targets, results, strict=True):
            _on_device.copy_where(target, result, mask, casting)
    return targets if len(targets) > 1 else targets[0]


_WAITING_KINDS = frozenset("biufcmM")
"""Of dtypes that may wait; that of text depends on values."""
_BYTE = frozenset(range(128))
"""Python's integers that every dtype of integers holds."""


def _defer(op: Op, operands: Sequence[Any], static: Any) -> Any:
    """Return the result in a fused function as an array that waits; None where it must not."""
    first = next((x for x in operands if isinstance(x, Deferred)), None)
    trace = current_trace()
    if first is None or trace is None or op.nout > 1:
        return None
    step = step_for(op, operands, static)
    dtypes = [step.result, *[x for x in step.call.dtypes if isinstance(x, np.dtype)]]
    views = step.output.has_partial and op.ufunc is None
    on_device = _on_device.is_on_device([x for x in operands if not isinstance(x, BaseArray)])
    kinds = {dtype.kind for dtype in dtypes}
    if step.outside or views or on_device or step.refuses or not _WAITING_KINDS.issuperset(kinds):
        return None
    if not _BYTE.issuperset(x for x in operands if x.__class__ is int):
        # What no dtype here holds raises now, on ranks without items as well.
        _of_plain(op, [stand_in(getattr(x, "dtype", x)) for x in operands], static)
    shape = step.output.local_shape()
    inputs: list[Any] = []
    for x, move in zip(operands, step.moves, strict=True):
        if move is None and is_waiting(x, trace) and x._node.shape == shape:
            inputs.append(x._node)
        elif isinstance(x, BaseArray):
            inputs.append(x._local)
        elif move is None and isinstance(x, np.ndarray):
            inputs.append(x.copy())  # the caller may write into it before the result is computed
        else:  # to be copied by the move, or a number
            inputs.append(x)
    if not step.still:
        inputs = step.move(
            inputs, [x if getattr(x, "_whole", None) is None else x._whole for x in operands]
        )
    takes_out = _takes_out(op, static, step.result)
    local = _local(op, static)
    result = first.defer(trace, local, takes_out, inputs, step.result, step.output)
    if step.is_fresh:
        result._reduced = None
    return result


def _of_plain(op: Op, operands: Sequence[Any], static: Any) -> Any:
    try:
        return _local(op, static)(*operands)
    except (*REFUSALS, AttributeError) as error:  # the last of NumPy, where items are objects
        raise refusal_error(op.name, error, operands) from error


def dtypes_of(function: Callable[[Op, Call], Any]) -> Callable[[Op, Call], tuple[Any, Any]]:
    """Return the `dtypes` of a row: those of what a function makes of few items."""

    def dtypes(op: Op, call: Call) -> tuple[Any, Any]:
        try:
            found = function(op, call)
        except DistArrayError:
            raise
        except (TypeError, ValueError) as error:  # NumPy refuses text, for one, by either
            raise refusal_error(op.name, TypeError(error), call.dtypes) from error
        given = tuple([one.dtype for one in found]) if isinstance(found, tuple) else found.dtype
        return given, given

    return dtypes


def refusal_error(name: str, error: Exception, operands: Sequence[Any]) -> DistArrayError:
    """Return the error for operands, or their dtypes, that the local function refused."""
    if isinstance(error, DistArrayError):
        return error
    kinds = ", ".join(
        x.__name__ if isinstance(x, type) else str(x)
        for x in (x if isinstance(x, (type, np.dtype)) else dtype_key(x) for x in operands)
    )
    if isinstance(error, OverflowError):
        if str(error).startswith("Overflow "):  # of dates
            return overflow_error(f"{name} of {kinds}", error)
        return OutOfRangeError(
            f"{name} of {kinds}: {error}; Python numbers take the dtype of the array they "
            "meet, so convert that with astype, or pass an array"
        )
    if isinstance(error, (ValueError, RuntimeError)):
        return ArgumentError(f"{name} of {kinds}: {error}")
    if any(words in str(error) for words in _on_device.LACKING):
        return _on_device.lacking_error(f"{name} of {kinds}")
    return DTypeError(f"{name} of {kinds}: {error}; convert the operands with astype")


# --- into an existing array ----------------------------------------------------------------------

copied_row = elementwise("copyto", lambda block: block, 1, defer=None)

_moves = cache()
"""What must move so that operands fit a target, by the target's layout and theirs."""


def run_into(
    op: Op,
    out: tuple[Any, ...],
    operands: Sequence[Any],
    masked: bool = False,
    casting: Any = "same_kind",
    **options: Any,
) -> Any:
    """Write a function into `out`, which keeps its layout and dtype, and return `out`.

    Raises
    ------
    ShapeError
        If the operands do not broadcast to the shape of `out`.
    DTypeError
        If the result cannot be cast to the dtype of `out`.
    """
    for one in out:
        check_target(op.name, one)
    target = out[0]
    mesh = target._layout.mesh
    operands = normalize_operands(op.name, operands)
    if check_casting(op.name, casting) != "same_kind" and op.ufunc is not None:
        options["casting"] = casting
    static = _static(op, masked, options)
    uncertain = op.check is not None and op.check(operands, static)
    uncertain |= DATES_RAISE and refuses_items(op.ufunc, [dtype_key(x) for x in operands])
    uncertain |= _check_out(op, out, operands, static, casting)
    if masked and len(out) > 1:
        mask = operands[-1]
        if hasattr(mask, "copy"):  # a result may be written into its memory
            operands = (*operands[:-1], mask := mask.copy())
        for one, result in zip(out, run_row(op, operands, masked, **options), strict=True):
            run_into(copied_row, (one,), (result, mask), masked=True, casting=casting)
        return out
    if masked and target._layout.has_partial:
        whole = reduce_partial(op.name, target)  # reduce it, write, split it again
        run_into(op, (whole,), operands, masked, **{**options, "casting": casting})
        assign(op.name, target, whole)
        return target
    if len(out) > 1 or target._layout.has_partial:
        results = run_row(op, operands, masked, **options)
        for one, result in zip(out, results if len(out) > 1 else (results,), strict=True):
            assign(op.name, one, result, casting)
        return out if len(out) > 1 else target
    key = [
        x._layout if isinstance(x, BaseArray) else getattr(x, "shape", ()) or None for x in operands
    ]
    moves = _moves[target._layout, *key]
    if moves is None:
        places = [i for i, part in enumerate(key) if part is not None]
        layouts = lift_layouts(op.name, [target._layout, *[key[i] for i in places]])
        spec = pointwise(tuple(layout.shape for layout in layouts), target.shape)
        moves = [None] * len(key)
        for place, move in zip(places, align(spec, layouts)[1:], strict=True):
            moves[place] = move
        remember(_moves, (target._layout, *key), moves)
    blocks = local_blocks(op.name, target, operands)
    blocks = move_all(op.name, operands, blocks, moves, read_local)
    if mesh.coordinate is not None:
        write = functools.partial(_write, op, target._local, blocks, static, casting)
        if uncertain or errors_raise():
            call_on_all(mesh, op.name, write)
        else:
            write()
    return target


def _write(op: Op, target: Buffer, blocks: Sequence[Any], static: Any, casting: Any) -> None:
    """Write the function of blocks that fit together into a block."""
    local = _local(op, static)
    on_device = _on_device.is_on_device(blocks)
    try:
        if op.ufunc is not None and (static[0] or not on_device):
            local(*blocks, out=target, casting=casting)
            return
        mask = blocks[-1] if static[0] else True
        inputs = blocks[:-1] if static[0] else blocks
        unmasked = (False, *static[1:])
        local = _local(op, unmasked)
        direct = target.nbytes >= LARGE and _takes_out(op, static, target.dtype)
        dtypes: tuple[Any, ...] = ()
        if on_device or direct:
            dtypes = _result_dtypes(op, [dtype_key(x) for x in inputs], unmasked)
        if on_device:
            (result,) = _on_device.call_on_device(local, inputs, dtypes)
            _on_device.copy_where(target, result, mask, casting)
        elif dtypes == (target.dtype,):
            local(*inputs, out=target)
        else:
            result = _backend.unaliased(local(*inputs), target)  # which may be a view
            np.copyto(target, result, casting=casting, where=mask)
    except (*REFUSALS, RuntimeError) as error:  # the last where text is too short for dates
        raise refusal_error(op.name, error, blocks) from error


def _check_out(
    op: Op, out: tuple[Any, ...], operands: Sequence[Any], static: Any, casting: Any
) -> bool:
    """Check shapes and dtypes; tell whether some items of the result may not convert."""
    shapes = [x.shape for x in operands if getattr(x, "ndim", 0)]
    uncertain = False
    dtypes = _result_dtypes(op, [getattr(x, "dtype", x) for x in operands], static)
    for one, dtype in zip(out, dtypes, strict=True):
        uncertain |= may_refuse(dtype, one.dtype)
        if broadcast_shape(op.name, [one.shape, *shapes]) != one.shape:
            raise ShapeError(
                f"{op.name} of shapes {shapes} does not fit into an array of shape "
                f"{one.shape}; broadcast the target first, or drop out="
            )
        if not np.can_cast(dtype, one.dtype, casting):
            raise DTypeError(
                f"{op.name} gives {dtype}, which casting={casting!r} does not put into an "
                f"array of {one.dtype}; use a new array, or x.astype({str(dtype)!r}) first"
            )
    return uncertain
