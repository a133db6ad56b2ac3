"""Docstrings of rows: a sentence from the row, the rest from its family and its rules."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from distarray.core._dtypes import KINDS
from distarray.core._spec import Rule

if TYPE_CHECKING:
    from distarray.core._op import Op

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
"""

REDUCTION = """{sentence}

Parameters
----------
x : array
axis : int or tuple of int, optional
    Axes to reduce; default: all.
{options}out : DistArray, optional
    Where the result goes.
keepdims : bool
    Keep reduced axes with size 1.

Returns
-------
DistArray
    Of the remaining axes.

Raises
------
AxisError
    If an axis is out of range or named twice.
ArgumentError
    If nothing is left to reduce and the reduction has no identity.

Notes
-----
{distribution}
"""


_POINTWISE = (
    "Distribution: every cut of an operand stays if the others are cut alike or replicated (then "
    "they are sliced, without communication); otherwise the cheaper operand is redistributed. "
)


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
    "sent until its value is needed{half}. Kept axes stay cut. {inputs} reduced first."
)


_EXCHANGED = (
    "Distribution: where a mesh axis cuts a reduced axis, the results of all blocks are exchanged "
    "at once, and the result is replicated there. Kept axes stay cut. Partial inputs are reduced "
    "first."
)


def reduction(op: Op, sentence: str) -> str:
    """Return the documentation of a reduction."""
    dtype = "dtype : optional\n    Of the result and its sums.\n" if "dtype" in op.accepts else ""
    if op.combine is None:
        shown = _EXCHANGED
        return REDUCTION.format(sentence=sentence, options=dtype, distribution=paragraph(shown))
    inputs = "Partial inputs are"
    if op.rules:
        exact = " where they are integers" if op.combine in ("sum", "prod") else ""
        inputs = f"Partial inputs of this kind stay so{exact}, others are"
    half = ", but for half precision, which adds up in float32" if op.combine == "sum" else ""
    shown = _LAZY.format(op=op.combine, half=half, inputs=inputs)
    return REDUCTION.format(sentence=sentence, options=dtype, distribution=paragraph(shown))


def pointwise(rules: tuple[Rule, ...]) -> str:
    """Return the paragraph that says what becomes of cuts and which Partial inputs stay so."""
    partial = "Partial operands are reduced first"
    if rules:
        shown = "; ".join(f"{', '.join(map(str, rule[1:]))} -> {rule[0]}" for rule in rules)
        partial += f", but for {shown} (sums and products: of integers)"
    return paragraph(f"{_POINTWISE}{partial}.")
