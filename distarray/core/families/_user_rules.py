"""Functions of the user's own, with a sharding rule written as subscripts."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from distarray.core import _replicas
from distarray.core._arguments import describe, plain_buffer
from distarray.core._base import BaseArray
from distarray.core._op import Call, Op
from distarray.core._spec import Letters, Spec
from distarray.core.engine._pipeline import Step, run
from distarray.core.families._registry import functions, ufuncs
from distarray.errors import ArgumentError, ArgumentTypeError, ShapeError
from distarray.layout import REDUCTIONS, Layout
from distarray.typing import Shape


class Rule(NamedTuple):
    """Subscripts as they are written, and taken apart."""

    subscripts: str
    inputs: tuple[tuple[str, ...], ...]
    output: tuple[str, ...]
    combine: str | None


def _spec(rule: Rule, name: str, call: Call) -> Spec:
    sizes: dict[Any, int] = {}
    letters = [
        _letters(name, rule.subscripts, spelled, shape, sizes)
        for spelled, shape in zip(rule.inputs, call.shapes, strict=True)
    ]
    names = {letter: i for i, letter in enumerate(sizes)}
    inputs: tuple[Letters, ...] = tuple(tuple(names[x] for x in array) for array in letters)
    ellipsis = sorted(x for x in sizes if isinstance(x, int))
    output: list[int | None] = []
    for letter in rule.output:
        if letter == "...":
            output += [names[x] for x in ellipsis]
        else:  # None: an axis that the function makes
            output.append(names.get(letter))
    return Spec(inputs, tuple(output), rule.combine)


def _layout_of_result(rule: Rule, step: Step, result: Any) -> Layout:
    """Return the layout of the result, with the lengths of axes that the function made."""
    layout, name = step.output, step.op.name
    if result is None:
        return layout
    expected = layout.local_shape()
    if result.ndim != len(expected):
        raise ShapeError(
            f"{name} gave a block of shape {result.shape}, but its rule "
            f"{rule.subscripts!r} promises {len(expected)} axes"
        )
    inputs = {x for array in rule.inputs for x in array}
    known: list[bool] = []
    for letter in rule.output:
        spread = len(expected) - len(rule.output) + 1 if letter == "..." else 1
        known += [letter in inputs] * spread
    shape = tuple(
        size if known[axis] else result.shape[axis] for axis, size in enumerate(layout.shape)
    )
    if shape != layout.shape:
        layout = layout.replace(shape=shape)
    if result.shape != layout.local_shape():
        raise ShapeError(
            f"{name} gave a block of shape {result.shape} where its rule "
            f"{rule.subscripts!r} promises {layout.local_shape()}"
        )
    return layout


def _call(rule: Rule, op: Op, *operands: Any, **options: Any) -> Any:
    """Call the function; its first arguments are the arrays of the rule."""
    op.check_arguments(operands, options)
    count = len(rule.inputs)
    if len(operands) < count:
        raise ArgumentTypeError(
            f"{op.name}() has the rule {rule.subscripts!r} and takes {count} arrays first, "
            f"{len(operands)} arguments were given"
        )
    rest = operands[count:]
    arrays = [x if isinstance(x, BaseArray) else plain_buffer(x, op.name) for x in operands[:count]]
    if not any(isinstance(x, BaseArray) for x in arrays):
        return op.local(*operands, **options)
    return run(op, arrays, None, lambda *blocks: op.local(*blocks, *rest, **options))


def _signature(func: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function, or one that takes anything where it does not tell."""
    try:
        return inspect.signature(func)
    except (TypeError, ValueError):
        return inspect.signature(lambda *args, **options: (args, options))


def _parse(subscripts: str) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """Return the letters of inputs and output of "...ij,j->...i"."""
    ins, arrow, out = subscripts.replace(" ", "").partition("->")
    arrays = [_split(part) for part in (*ins.split(","), out)]
    for part in arrays:
        if len(set(part)) != len(part) or not all(x == "..." or x.isalpha() for x in part):
            arrow = ""
    if not arrow:
        raise ArgumentError(
            f"register_rule({subscripts!r}): write the axes of each array as distinct letters, as "
            "in 'ij,j->i', with '...' for any number of leading axes"
        )
    return tuple(arrays[:-1]), arrays[-1]


def _split(part: str) -> tuple[str, ...]:
    head, dots, tail = part.partition("...")
    return (*head, "...", *tail) if dots else tuple(head)


def _letters(
    name: str, subscripts: str, spelled: tuple[str, ...], shape: Shape, sizes: dict[Any, int]
) -> list[Any]:
    """Return one letter per axis (numbers under an ellipsis, counted from its right)."""
    dots = len(shape) - len(spelled) + 1 if "..." in spelled else 0
    letters: list[Any] = []
    for letter in spelled:
        letters += list(range(-dots, 0)) if letter == "..." else [letter]
    if len(letters) != len(shape) or dots < 0:
        raise ShapeError(f"{name} of shape {shape} does not fit its rule {subscripts!r}")
    for letter, size in zip(letters, shape, strict=True):
        if sizes.setdefault(letter, size) != size:
            raise ShapeError(
                f"{name} with the rule {subscripts!r}: axis {letter} has lengths {sizes[letter]} "
                f"and {size}"
            )
    return letters


def register_rule(
    func: Callable[..., Any], subscripts: str, *, combine: str | None = None
) -> Callable[..., Any]:
    """Teach the engine how a function of plain arrays may be distributed.

    Parameters
    ----------
    func : callable
        Takes blocks (NumPy or CuPy arrays) as its first arguments and returns one array.
    subscripts : str
        One letter per axis, as in einsum: cutting the axes of a letter in all arrays that have it
        cuts the result along it. ``"...i->..."`` reduces the last axis of any array.
    combine : str, optional
        How results of blocks combine where a letter is cut that the output lacks; the result is
        then `Partial(combine)`. None: such a letter may not be cut, and is made whole first.

    Returns
    -------
    callable
        The distributed function. A NumPy function or ufunc is also registered, so that calling it
        with a `DistArray` calls this one.

    Raises
    ------
    ArgumentError
        If the subscripts cannot be read, or `combine` is no reduction.
    ArgumentTypeError
        If `func` is no function, or `subscripts` no text.

    Notes
    -----
    Distribution: operands that do not fit together are redistributed the cheapest way, under the
    `communication` policy; Partial operands are reduced first. Letters of the output alone are
    axes that the function makes; their lengths must be alike on every rank.

    Examples
    --------
    >>> import numpy as np
    >>> from distarray import register_rule
    >>> norms = register_rule(lambda x: np.sqrt((x * x).sum(-1)), "ij->i")
    """
    if not callable(func) or not isinstance(subscripts, str):
        raise ArgumentTypeError(
            f"register_rule({describe(func)}, {describe(subscripts)}): takes a function and text, "
            'such as "ij->i"'
        )
    rule = Rule(subscripts, *_parse(subscripts), combine)
    contracted = {x for array in rule.inputs for x in array} - set(rule.output) - {"..."}
    if contracted and combine is not None and combine not in REDUCTIONS:
        raise ArgumentError(
            f"register_rule(combine={combine!r}): there is no such reduction; it is one of "
            f"{' '.join(REDUCTIONS)}, or None where blocks cannot be combined"
        )
    op = Op(
        getattr(func, "__name__", "function"),
        func,
        lambda op, call: _spec(rule, op.name, call),
        call=functools.partial(_call, rule),
        dtypes=lambda _, call: (None, call.dtypes[0]),
        bind=lambda _: lambda function, *blocks: function(*blocks),
        combine=combine,
        made=functools.partial(_layout_of_result, rule),
    )
    op.describe(__doc__=getattr(func, "__doc__", None), __signature__=_signature(func))
    if isinstance(func, np.ufunc):
        ufuncs[func] = op
    elif (getattr(func, "__module__", "") or "").partition(".")[0] == "numpy":
        functions[func] = op
    return _replicas.compare_arguments(op, op.name) if _replicas.checked else op
