"""Rows item by item: the public callables, made by `unary`, `binary` and `equality`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from distarray.core._base import BaseArray
from distarray.core._dtypes import REFUSALS
from distarray.core._op import Op
from distarray.core._spec import POINTWISE, Rule
from distarray.core.families import _docstrings
from distarray.core.families._elementwise import elementwise, refusal_error
from distarray.core.families._examples import example
from distarray.core.families._fast_paths import binary_path, unary_path
from distarray.core.families._registry import register


def unary(
    name: str,
    rules: tuple[Rule, ...],
    local: Callable[..., Any],
    sentence: str,
    **fields: Any,
) -> Op:
    """Return the row of a function of one operand; see `elementwise`.

    Its documentation begins with the sentence.
    """
    op = elementwise(name, local, 1, rules, **fields)
    return _describe(op, ("x",), sentence, quick=unary_path(op))


def binary(
    name: str,
    rules: tuple[Rule, ...],
    local: Callable[..., Any],
    sentence: str,
    **fields: Any,
) -> Op:
    """Return the row of a function of two operands; see `unary`.

    `check(operands)` refuses values that every rank knows.
    """
    op = elementwise(name, local, 2, rules, **fields)
    return _describe(op, ("x1", "x2"), sentence, quick=binary_path(op))


def equality(
    name: str, local: Callable[..., Any], compare: Callable[[Any, Any], Any], sentence: str
) -> tuple[Op, Op]:
    """Return the row of a test of equality by a ufunc, and that of Python's operator.

    To the operator nothing is equal of dtypes that the ufunc does not compare, and structures
    compare field by field. To both Python objects, which have come with a plain operand, compare
    themselves. Order has no such way: objects may refuse one item and take another, and so raise on
    some processes only.
    """

    def check(function: Callable[[Any, Any], Any], operands: Sequence[Any], _: Any) -> bool:
        """Compare objects with one item: a process without items must raise with the others."""
        if any(getattr(x, "dtype", None) == np.object_ for x in operands):
            items = [np.zeros(1, x.dtype) if isinstance(x, BaseArray) else x for x in operands]
            try:
                function(*items)
            except REFUSALS as error:
                raise refusal_error(name, error, operands) from error
        return False

    of_objects, of_any = (
        elementwise(name, function, 2, check=partial(check, function), takes_objects=True)
        for function in (local, compare)
    )
    row = binary(name, POINTWISE, local, sentence, instead=of_objects)
    by_operator = replace(row, instead=of_any)
    return row, by_operator.describe(quick=binary_path(by_operator))


def _describe(op: Op, operands: tuple[str, ...], sentence: str, **fields: Any) -> Op:
    """Give a row its documentation and short path, and register it."""
    doc = _docstrings.ELEMENTWISE.format(
        sentence=sentence,
        operands=_docstrings.operands(operands),
        kinds=_docstrings.kinds(op.kinds),
        distribution=_docstrings.pointwise(op.rules),
        example=example(op),
    )
    return register(op.describe(__doc__=doc, **fields))
