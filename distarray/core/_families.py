"""One call per row: the public callables, made by `unary`, `binary`, `nary`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from distarray.core import _docstrings
from distarray.core._base import BaseArray
from distarray.core._dtypes import anything
from distarray.core._elementwise import REFUSALS, Elementwise
from distarray.core._paths import binary_path, inplace_path, unary_path
from distarray.core._registry import register
from distarray.core._rules import POINTWISE
from distarray.core._spec import Rule
from distarray.errors import ArgumentTypeError, DTypeError

Row = TypeVar("Row", bound=Elementwise)

_OPTIONS = (
    inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None),
    inspect.Parameter("where", inspect.Parameter.KEYWORD_ONLY, default=True),
    inspect.Parameter("dtype", inspect.Parameter.KEYWORD_ONLY, default=None),
    inspect.Parameter("casting", inspect.Parameter.KEYWORD_ONLY, default="same_kind"),
)


class Unary(Elementwise):
    """A function of one operand."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.quick = unary_path(self)

    def __call__(self, x: Any, /, *out: Any, **options: Any) -> Any:
        """Apply the function; see the row's own documentation."""
        if out or options:
            return self.call((x, *out), options)
        return self.quick(x)


class Binary(Elementwise):
    """A function of two operands, with its operator's paths."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.quick = binary_path(self)
        self.inplace = inplace_path(self)

    def __call__(self, x1: Any, x2: Any, /, *out: Any, **options: Any) -> Any:
        """Apply the function; see the row's own documentation."""
        if out or options:
            return self.call((x1, x2, *out), options)
        if isinstance(x1, BaseArray):
            return self.quick(x1, x2)
        return self.run((x1, x2))


class Equality(Binary):
    """A test of equality: what the ufunc has no loop for is compared as NumPy's operator does it.

    Of dtypes that cannot be equal nothing is. So the ufunc itself answers, too, which raises for
    NumPy's arrays: ``array == x`` calls it, and nothing tells the two apart. Python objects, which
    have come with a plain operand, compare themselves, and structures field by field. Order has no
    such way: objects may refuse one item and take another, and so raise on some processes only.
    """

    def __init__(self, *args: Any, compare: Callable[[Any, Any], Any]) -> None:
        super().__init__(*args)
        self.general = Elementwise(
            self.name, compare, 2, self.rules, check=self._comparable, objects=True
        )

    def run(self, operands: Sequence[Any], local: Callable[..., Any] | None = None) -> Any:
        """Return the comparison of operands of any kind; see `Elementwise.run`."""
        operands = [np.array(None) if x is None else x for x in operands]
        try:
            return super().run(operands, local)
        except (DTypeError, ArgumentTypeError):
            if local is not None:
                raise
        return self.general.run(operands)

    def _comparable(self, operands: Sequence[Any]) -> bool:
        """Compare objects with one item: a process without items must raise with the others."""
        if any(getattr(x, "dtype", None) == np.object_ for x in operands):
            items = [np.zeros(1, x.dtype) if isinstance(x, BaseArray) else x for x in operands]
            try:
                self.general.local(*items)
            except REFUSALS as error:
                raise self.general.refused(error, operands) from error
        return False


def unary(
    name: str, kinds: str, rules: tuple[Rule, ...], local: Callable[..., Any], sentence: str
) -> Unary:
    """Return the row of a function of one operand.

    Parameters
    ----------
    name : str
        The public name.
    kinds : str
        Kinds of dtype it is for.
    rules : tuple of Rule
        Which Partial inputs may stay.
    local : callable
        The function of blocks, usually NumPy's of this name.
    sentence : str
        First line of the documentation.
    """
    return _described(Unary(name, local, 1, rules, kinds), ("x",), sentence)


def binary(
    name: str,
    kinds: str,
    rules: tuple[Rule, ...],
    local: Callable[..., Any],
    sentence: str,
    *,
    check: Callable[[Sequence[Any]], bool] | None = None,
) -> Binary:
    """Return the row of a function of two operands; see `unary`.

    `check(operands)` refuses values that every rank knows.
    """
    return _described(Binary(name, local, 2, rules, kinds, check), ("x1", "x2"), sentence)


def equality(
    name: str, local: Callable[..., Any], compare: Callable[[Any, Any], Any], sentence: str
) -> Equality:
    """Return the row of a test of equality by a ufunc and by Python's operator; see `unary`."""
    row = Equality(name, local, 2, POINTWISE, anything, compare=compare)
    return _described(row, ("x1", "x2"), sentence)


def _described(row: Row, operands: tuple[str, ...], sentence: str) -> Row:
    """Give a row its documentation and signature, and register it."""
    row.__doc__ = _docstrings.ELEMENTWISE.format(
        sentence=sentence,
        operands=_docstrings.operands(operands),
        kinds=_docstrings.kinds(row.kinds),
        distribution=_docstrings.pointwise(row.rules),
    )
    positional = [inspect.Parameter(x, inspect.Parameter.POSITIONAL_ONLY) for x in operands]
    row.__signature__ = inspect.Signature([*positional, *(_OPTIONS if row.is_ufunc else ())])
    row.__qualname__ = row.name
    row.__module__ = "distarray"
    return register(row)
