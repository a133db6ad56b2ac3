"""Parameters of distributions: numbers, arrays that every process has, distributed arrays.

Plain ones are checked before anything else, and each process looks at its part. With a distributed
one the draw is an operation item by item of the engine, which brings the parameters together and
finds the layout of the result; the processes tell each other there of values that make no sense.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from distarray.comm import _backend
from distarray.core import (
    BaseArray,
    Op,
    Step,
    device_of,
    normalize_dtype,
    plain_buffer,
    pointwise_spec,
    run,
)
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    DistArrayError,
    DTypeError,
    ShapeError,
)
from distarray.ops import broadcast_to
from distarray.random._streams import has_axes
from distarray.typing import Box, Buffer, Shape


class Parameter(NamedTuple):
    """A parameter of a distribution, and what must hold."""

    name: str
    text: str
    must: str = ""
    holds: Callable[[Any], Any] | None = None
    default: Any = None
    """None: there is none."""


INTEGERS = np.dtype(np.int64)
"""Of distributions of whole numbers."""
_DOUBLE: Final = np.dtype(np.float64)
WHOLE: Final = 2.0**53
"""Above it doubles are no longer all whole numbers."""


def count_parameter(name: str, text: str) -> Parameter:
    """Return a parameter that counts something."""
    return Parameter(
        name,
        text,
        "a whole number from 0 to 2**53",
        lambda x: (x >= 0) & (x <= WHOLE) & (x == np.floor(x)),
    )


@dataclass(frozen=True)
class Condition:
    """What must hold of several parameters together."""

    must: str
    holds: Callable[..., Any]
    error: type[ArgumentError] = ArgumentError
    then: Condition | None = None
    """What must hold as well."""


_EXACT = 1 << 53  # up to here integers are floats


def read(parameter: Parameter, value: Any) -> Any:
    """Return a parameter as a float, an array of float64, or the distributed array that it is.

    Raises
    ------
    ArgumentTypeError
        If it holds no real numbers.
    ArgumentError
        If one of them makes no sense.
    """
    name, holds = parameter.name, parameter.holds
    if type(value) is int and abs(value) <= _EXACT:
        value = float(value)
    if type(value) is float and (holds is None or holds(value) is True):
        return value
    if isinstance(value, BaseArray):
        if value.dtype.kind not in "biuf":
            raise ArgumentTypeError(
                f"{name} is an array of {value.dtype} and must be one of real numbers; convert it "
                "with astype"
            )
        return value
    if type(value) is not float:
        try:
            array = _backend.to_host(plain_buffer(value, name))
        except DistArrayError:
            array = None
        if array is None or array.dtype.kind not in "biuf":
            raise ArgumentTypeError(
                f"{name}={value!r} is not one real number, nor an array of such; pass a number, an "
                "array that every process has, or a DistArray"
            )
        value = array.astype(np.float64) if array.ndim else float(array)
    check([parameter], [value])
    return value


def read_float_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the dtype of floats.

    Raises
    ------
    DTypeError
        If it is neither float64 nor float32.
    """
    if dtype is np.float64:
        return _DOUBLE
    found = normalize_dtype(dtype)
    if found not in (np.float64, np.float32):
        raise DTypeError(f"dtype={found} cannot be drawn; use float64 or float32 and astype")
    return found


def check(
    parameters: Sequence[Parameter], values: Sequence[Any], condition: Condition | None = None
) -> None:
    """Refuse numbers, or arrays that broadcast, of which one makes no sense.

    Raises
    ------
    ArgumentError
        With these.
    """
    for parameter, value in zip(parameters, values, strict=True):
        if parameter.holds is not None:
            _refuse([parameter], [value], parameter.holds(value), parameter.must)
    check_together(parameters, values, condition)


def check_together(
    parameters: Sequence[Parameter], values: Sequence[Any], condition: Condition | None
) -> None:
    """Refuse parameters, each of which makes sense, of which some together make none."""
    while condition is not None:
        _refuse(parameters, values, condition.holds(*values), condition.must, condition.error)
        condition = condition.then


def _refuse(
    parameters: Sequence[Parameter],
    values: Sequence[Any],
    holds: Any,
    must: str,
    error: type[ArgumentError] = ArgumentError,
) -> None:
    if holds is True or holds is np.True_ or np.all(holds):
        return
    wrong, *those = np.broadcast_arrays(~np.asarray(_host(holds)), *map(_host, values))
    place = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    shown = [f"{p.name}={one[place].item()!r}" for p, one in zip(parameters, those, strict=True)]
    raise error(f"{', '.join(shown)} must be {must}")


def _host(value: Any) -> Any:
    return _backend.to_host(value) if has_axes(value) else value


def common_shape(name: str, size: Shape | None, shapes: Sequence[Shape]) -> Shape:
    """Return the shape of a draw: `size`, or that to which the parameters broadcast.

    Raises
    ------
    ShapeError
        If they do not broadcast, or not to `size`.
    """
    if not any(shapes):
        return size or ()
    try:
        found = np.broadcast_shapes(*shapes, *([] if size is None else [size]))
    except ValueError:
        found = None
    if found is None or size not in (None, found):
        shown = " and ".join(str(one) for one in shapes if one) or "()"
        wanted = "" if size is None else f" to size={size}"
        raise ShapeError(
            f"{name}: parameters of shape {shown} do not broadcast{wanted}; sizes must be equal or "
            "1, counted from the last axis"
        )
    return found


# --- blocks --------------------------------------------------------------------------------------

Draw = Callable[[Shape, Box, Any, Sequence[Any]], Buffer]
"""What makes the block of a box on a device, of numbers and the blocks of the parameters."""


def cut(value: Any, shape: Shape, box: Box) -> Any:
    """Return the part of a plain parameter for a box of the shape; it may have more axes."""
    if not has_axes(value):
        return value
    further = value.shape[len(shape) :]
    part = tuple([slice(start, stop) for start, stop in box[: len(shape)]])
    return np.broadcast_to(value, (*shape, *further))[part]


def draw_beside(name: str, draw: Draw, values: Sequence[Any], shape: Shape, dtype: Any) -> Any:
    """Return the array that `draw` makes block by block, laid out as its parameters are."""
    operands = list(values)
    first = next(i for i, one in enumerate(operands) if isinstance(one, BaseArray))
    if np.broadcast_shapes(*[getattr(one, "shape", ()) for one in operands]) != shape:
        operands[first] = broadcast_to(operands[first], shape)
    return run(_row(name), operands, dtype, draw)


@functools.cache
def _row(name: str) -> Op:
    """Return the operation by which a method draws where parameters are distributed."""
    return Op(
        name,
        np.broadcast_arrays,
        pointwise_spec,
        dtypes=lambda _, call: (call.static, call.static),
        bind=_bind,
        check=lambda *_: True,  # only the processes that have a value know whether it makes sense
    )


def _bind(step: Step) -> Callable[..., Buffer]:
    layout = step.partial
    box: Any = layout.local_box()
    sizes = tuple(b - a for a, b in box)
    device = device_of(layout)

    def local(draw: Draw, *blocks: Buffer) -> Buffer:
        values = [np.broadcast_to(one, sizes) if one.ndim else one.item() for one in blocks]
        return draw(layout.shape, box, device, values)

    return local


def read_integers(name: str, value: Any) -> Any:
    """Return a bound as an int, an array of integers, or the distributed array that it is.

    Raises
    ------
    ArgumentTypeError
        If it holds no integers.
    """
    found = value
    if not isinstance(value, BaseArray):
        try:
            found = _backend.to_host(plain_buffer(value, name))
        except DistArrayError:
            found = np.empty(0)
    if found.dtype.kind not in "biu":
        raise ArgumentTypeError(f"{name}={value!r} must be an integer, or an array of such")
    return found if isinstance(value, BaseArray) or found.ndim else int(found)
