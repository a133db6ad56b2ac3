"""Docstrings of rows: a sentence from the row, the rest from its family and its rules."""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from distarray.core._dtypes import KINDS
from distarray.core._spec import Rule
from distarray.core.families._examples import example

if TYPE_CHECKING:
    from distarray.core._op import Op

F = TypeVar("F", bound=Callable[..., Any])

ELEMENTWISE = """{sentence}

Parameters
----------
{operands}
out : DistArray, optional
    Where the result goes; it keeps its layout and dtype.
where : array of bool, optional
    Items elsewhere keep what `out` held; without `out` they are 0.
dtype, casting : optional
    As in NumPy.

Returns
-------
DistArray
    Of the broadcast shape and NumPy's result type.

Raises
------
ShapeError
    If the operands do not broadcast.
DTypeError
    If NumPy has no such function for their dtypes.
MeshError
    If the operands live on unrelated meshes.

Notes
-----
{kinds}

{distribution}

{example}"""

REDUCTION = """{sentence}

Parameters
----------
{arguments}

Returns
-------
DistArray
    Of the remaining axes.

Raises
------
AxisError
    If an axis is out of range or named twice.
DTypeError
    If NumPy has no such function for the dtype, or `out` does not hold the result's.
ShapeError
    If `out` has another shape than the result, or `where` does not broadcast to `x`.
{errors}
Notes
-----
{distribution}

{example}"""

_NOTHING_LEFT = """ArgumentError
    If there is no item, or may be none under `where`, and no `initial`.
"""

_ARGUMENTS = {
    "x": "array",
    "axis": "int or tuple of int, optional\n    Axes to reduce; default: all.",
    "dtype": "data type, optional\n    Of the result and its sums.",
    "out": "DistArray, optional\n    Where the result goes; it keeps its layout and dtype.",
    "keepdims": "bool\n    Keep reduced axes with size 1.",
    "initial": "number, optional\n    Combined with the result; the result of no items.",
    "where": "array of bool, optional\n    Items that count; it broadcasts to `x`.",
    "reproducible": (
        "bool\n    Whether floating-point items are added up exactly and the sum is rounded once:"
        "\n    to the same bits in any order, of any blocks and on any number of processes."
    ),
}
"""What arguments of reductions are."""

_POINTWISE = (
    "Distribution: every cut of an operand stays if the others are cut alike or replicated (then "
    "they are sliced, without communication); otherwise the cheaper operand is redistributed. "
)


@functools.cache
def paragraph(text: str) -> str:
    """Return text broken into lines."""
    return textwrap.fill(text, 98, break_on_hyphens=False)


def operands(names: tuple[str, ...]) -> str:
    """Return the parameter lines of operands."""
    return "\n".join(f"{name} : array or number" for name in names)


def kinds(accepted: str) -> str:
    """Return what the documentation says of the dtypes that a row computes with."""
    told = "For " + ", ".join(KINDS[kind] for kind in accepted if kind in KINDS) + "."
    if "f" in accepted and not set(accepted) & set("biu"):
        told += " Integers and booleans are converted to floating point first, as in NumPy."
    return told


_LAZY = (
    "Distribution: where a mesh axis cuts a reduced axis the result is Partial({op!r}): nothing is "
    "sent until its value is needed{rest}. Kept axes stay cut. {inputs} reduced first."
)


_EXCHANGED = (
    "Distribution: where a mesh axis cuts a reduced axis, the results of all blocks are exchanged "
    "at once, and the result is replicated there. Kept axes stay cut. Of more than 512 KiB each "
    "rank combines a part. Where results of more than a mebibyte would bring a rank more than its "
    "block has, a kept axis is cut instead. Partial inputs are reduced first."
)

_REPRODUCIBLE = (
    "With `reproducible` the result is the exact sum of the items, rounded once to the nearest "
    "number of its dtype, which is float64 or complex128 at most; an exact zero is 0.0. Items are "
    "split without error (Rump, Ogita, Oishi 2008), as for binned sums (Ahrens, Demmel, Nguyen "
    "2020), but no part is dropped. The exact sums of blocks, 16 bytes for each item of the "
    "result and each of its parts, are exchanged at once; where items of some sum are farther "
    "apart than about 2**45, 760 bytes of each in another exchange. Partial inputs are reduced "
    "first, and what they are reduced to depends on the mesh. `initial` is added to the rounded "
    "sum. A call takes some 6 to 50 us longer than without, 0.2 ms until its kernel is loaded; "
    "items far below 2**-20 of the largest ones take longer than others."
)


def arguments(names: Sequence[str]) -> str:
    """Return the parameter lines of a reduction."""
    return "\n".join(f"{name} : {_ARGUMENTS[name]}" for name in names)


def fill_arguments(function: F) -> F:
    """Put the parameter lines of a reduction where its docstring has `{arguments}`."""
    text = inspect.getdoc(function) or ""  # nothing, with `python -OO`
    names = inspect.signature(function).parameters
    function.__doc__ = text.replace("{arguments}", arguments([*names]))
    return function


def documented(template: str, name: str = "", **fields: Any) -> Callable[[F], F]:
    """Return the decorator that fills in a function's docstring, and gives it its name."""

    def document(function: F) -> F:
        if name:
            function.__name__ = function.__qualname__ = name
        function.__doc__ = template.format(name=function.__name__, **fields)
        return function

    return document


def reduction(op: Op, sentence: str) -> str:
    """Return the documentation of a reduction."""
    extra = () if op.reproducible is None else ("reproducible",)
    filled = functools.partial(
        REDUCTION.format,
        sentence=sentence,
        arguments=arguments(("x", *op.accepts, "where", *extra)),
        errors=_NOTHING_LEFT if op.ufunc is not None and op.ufunc.identity is None else "",
        example=example(op),
    )
    if op.combine is None:
        return filled(distribution=paragraph(_EXCHANGED))
    inputs = "Partial inputs are"
    if op.rules:
        exact = " where they are integers" if op.combine in ("sum", "prod") else ""
        inputs = f"Partial inputs of this kind stay so{exact}, others are"
    rest = []
    if op.combine == "sum":
        rest.append("half precision, which adds up in float32")
    if op.instead is not None:
        rest.append("dates, of which the results of all blocks are exchanged")
    but = f", but for {', and for '.join(rest)}" if rest else ""
    shown = paragraph(_LAZY.format(op=op.combine, rest=but, inputs=inputs))
    if extra:
        shown += f"\n\n{paragraph(_REPRODUCIBLE)}"
    return filled(distribution=shown)


def pointwise(rules: tuple[Rule, ...]) -> str:
    """Return the paragraph that says what becomes of cuts and which Partial inputs stay so."""
    partial = "Partial operands are reduced first"
    if rules:
        shown = "; ".join(f"{', '.join(map(str, rule[1:]))} -> {rule[0]}" for rule in rules)
        partial += f", but for {shown} (sums and products: of integers)"
    return paragraph(f"{_POINTWISE}{partial}.")
