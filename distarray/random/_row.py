"""The row of a distribution: a method of `Generator`, its signature and its documentation."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from distarray.errors import ArgumentTypeError
from distarray.random._parameters import (
    INTEGERS,
    Condition,
    Parameter,
    check_together,
    read,
    read_float_dtype,
)
from distarray.random._streams import Fill

_DOCUMENTATION = """{sentence}

Parameters
----------
{parameters}size, {dtype}mesh, placements
    As for `random`.{beside}

Raises
------
{wrong}

{notes}Examples
--------
>>> import distarray as da
>>> print(da.random.default_rng(7).{name}({arguments}))
{example}
"""
_BESIDE = """ Without `size` the result has the shape to which the parameters
    broadcast; beside a distributed parameter, without `mesh` and `placements`, its layout."""
_KEYWORD: Final = inspect.Parameter.KEYWORD_ONLY
_FLOAT: Final = frozenset((float,))
POSITION: Final = inspect.Parameter.POSITIONAL_OR_KEYWORD


def distribution(
    name: str,
    sentence: str,
    parameters: tuple[Parameter, ...],
    fill: Fill,
    arguments: str,
    example: str,
    *,
    method: str = "",
    condition: Condition | None = None,
    whole: bool = False,
    dtype: Any = _KEYWORD,
    affine: tuple[str, Callable[..., tuple[float, float]]] | None = None,
) -> Callable[..., Any]:
    """Return the method that draws from a distribution.

    Parameters
    ----------
    fill
        As `by_formula` or `by_sampler` gives it, for the parameters in their order.
    method
        How, and whose it is, for the documentation.
    condition
        What must hold of all parameters together.
    whole
        The numbers are of int64, and there is no `dtype`.
    dtype
        How it is passed.
    affine
        The kind of numbers, and the function of parameters that are numbers that gives what they
        are to be moved and scaled by: the kernels do that.
    """
    own = [
        inspect.Parameter(
            p.name, POSITION, default=inspect.Parameter.empty if p.default is None else p.default
        )
        for p in parameters
    ]
    signature = inspect.Signature(
        [
            inspect.Parameter("self", POSITION),
            *own,
            inspect.Parameter("size", POSITION, default=None),
            *([] if whole else [inspect.Parameter("dtype", dtype, default=np.float64)]),
            inspect.Parameter("mesh", _KEYWORD, default=None),
            inspect.Parameter("placements", _KEYWORD, default=None),
        ]
    )

    public = signature.replace(parameters=list(signature.parameters.values())[1:])
    names = public.parameters.keys()
    positional = [p.name for p in public.parameters.values() if p.kind is POSITION]
    defaults = {
        p.name: p.default
        for p in public.parameters.values()
        if p.default is not inspect.Parameter.empty
    }

    sound = {p.name: p.default for p in parameters if type(p.default) is float}

    def draw(self: Any, *args: Any, **options: Any) -> Any:
        given = {**defaults, **options}
        twice = False
        if args:
            named = dict(zip(positional, args, strict=False))
            twice = len(args) > len(positional) or not options.keys().isdisjoint(named)
            given |= named
        if given.keys() != names or twice:
            try:  # which takes 10 us
                signature.bind(self, *args, **options)
            except TypeError as error:
                shown = f"its signature is {name}{public}"
                raise ArgumentTypeError(f"{name}: {error}; {shown}") from None
        values = [
            value if (value := given[p.name]) is sound.get(p.name, p) else read(p, value)
            for p in parameters
        ]
        kind = INTEGERS if whole else read_float_dtype(given["dtype"])
        where = given["size"], kind, given["mesh"], given["placements"]
        if affine is not None and _FLOAT.issuperset(map(type, values)):
            check_together(parameters, values, condition)
            return self._floats(affine[0], *affine[1](*values), *where)
        return self._sample(name, fill, parameters, values, condition, *where)

    conditions = [f"`{p.name}` is not {p.must}" for p in parameters if p.must]
    following = condition
    while following:
        conditions.append(f"they are not {following.must}")
        following = following.then
    draw.__doc__ = _DOCUMENTATION.format(
        name=name,
        sentence=sentence,
        parameters="".join(f"{p.name} : float or array\n    {p.text}\n" for p in parameters),
        dtype="" if whole else "dtype, ",
        beside=_BESIDE if parameters else "",
        wrong=_wrong(conditions, whole, bool(parameters)),
        notes=f"Notes\n-----\n{textwrap.fill(method, 90)}\n\n" if method else "",
        arguments=arguments,
        example=example,
    )
    draw.__name__, draw.__qualname__ = name, f"Generator.{name}"
    draw.__signature__ = signature  # type: ignore[attr-defined]
    return draw


def _wrong(conditions: list[str], whole: bool, has_parameters: bool) -> str:
    """Return the section on errors."""
    parts = []
    if conditions:
        parts.append(f"ArgumentError\n    If {', or '.join(conditions)}.")
    if has_parameters:
        parts.append("ShapeError\n    If the parameters do not broadcast to `size`.")
    if not whole:
        parts.append("DTypeError\n    If `dtype` is neither float64 nor float32.")
    return "\n".join(parts)
