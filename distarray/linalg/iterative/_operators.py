"""Operators of iterative solvers: a matrix, a function of arrays, or an object with `matvec`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from distarray.comm import _backend
from distarray.core import (
    BaseArray,
    check_distributed,
    check_integer,
    check_number,
    copy_block,
    describe,
)
from distarray.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from distarray.linalg.iterative._vectors import Space, is_finite
from distarray.ops import LinAlgError, conj, matmul, matrix_transpose
from distarray.typing import Buffer, Shape

Function = Callable[[Any], Any]


class Operator(NamedTuple):
    """A linear map as functions of distributed arrays."""

    label: str
    matvec: Function
    rmatvec: Function | None
    """Its adjoint, where there is one."""
    shape: tuple[int, int] | None
    dtype: Any

    def check_shape(self, name: str, target: Shape, source: Shape) -> None:
        """Refuse a shape that does not lead from vectors of `source` to those of `target`."""
        expected = math.prod(target), math.prod(source)
        if self.shape is not None and self.shape != expected:
            raise ShapeError(
                f"{name}: {self.label} has shape {self.shape}; vectors of shapes {target} and "
                f"{source} need {expected}"
            )


def read_operator(name: str, label: str, value: Any) -> Operator:
    """Return what a user passes as an operator.

    Raises
    ------
    ArgumentTypeError
        If it is none.
    ShapeError
        If it is an array that is no matrix.
    """
    if isinstance(value, (BaseArray, np.ndarray)):
        if value.ndim != 2:
            raise ShapeError(
                f"{name}: {label} has shape {value.shape}; it must be a matrix, or a function"
            )
        return Operator(
            label,
            lambda x: matmul(value, x),
            lambda x: _apply_adjoint(value, x),
            (value.shape[0], value.shape[1]),
            value.dtype,
        )
    matvec = getattr(value, "matvec", None)
    if matvec is not None:
        shape = getattr(value, "shape", None)
        return Operator(
            label,
            matvec,
            getattr(value, "rmatvec", None),
            None if shape is None else (int(shape[0]), int(shape[1])),
            getattr(value, "dtype", None),
        )
    if callable(value):
        return Operator(label, value, None, None, None)
    raise ArgumentTypeError(
        f"{name}: {label} is {describe(value)}; it must be a distributed matrix, a function of "
        "distributed arrays, or an object with matvec(x) and shape; of a sparse matrix each "
        "process keeps its rows, and a function multiplies them: see the section on sparse "
        "matrices in docs/iterative.md"
    )


def _apply_adjoint(matrix: Any, x: Any) -> Any:
    """Multiply by the adjoint of a matrix, of which no copy is made."""
    transposed = matrix.T if isinstance(matrix, np.ndarray) else matrix_transpose(matrix)
    return conj(matmul(transposed, conj(x))) if matrix.dtype.kind == "c" else matmul(transposed, x)


class Map:
    """An operator on blocks: from vectors of one space to those of another."""

    def __init__(self, what: str, function: Function, source: Space, target: Space) -> None:
        self._what, self._function, self._source, self._target = what, function, source, target

    def __call__(self, block: Buffer) -> Buffer:
        """Return the block of the image, which shares no memory with the argument."""
        result = self._function(self._source.array(block))
        image = self._target.read(result, self._what)
        # Solvers write into their vectors while they read images.
        return copy_block(image) if _backend.may_share_memory(image, block) else image


def vector_dtype(*dtypes: Any) -> Any:
    """Return the dtype of vectors, as SciPy does: one of float32 to complex128.

    Everything else is computed in float64, or complex128.
    """
    try:
        found = np.result_type(*[one for one in dtypes if one is not None])
    except TypeError as error:
        raise DTypeError(f"operators and vectors have numbers as items: {error}") from None
    if found.char in "fdFD":
        return found
    return np.dtype(np.complex128 if found.kind == "c" else np.float64)


class System:
    """A square system of equations, its first residual, and when it is small enough.

    Attributes
    ----------
    space : Space
    apply : Map
        The operator.
    precondition : Map or None
    x, r : array
        Blocks of the solution so far, and of the residual.
    b_size, r_size, enough : float
        The sizes of the right-hand side, of the first residual, and of one that is small enough.
    """

    def __init__(self, name: str, A: Any, b: Any, x0: Any, M: Any) -> None:
        layout = check_distributed(name, b)._layout.without_partial()
        operator = read_operator(name, "A", A)
        inverse = None if M is None else read_operator(name, "M", M)
        known = [one.dtype for one in (operator, inverse) if one is not None]
        if x0 is not None:
            known.append(check_distributed(f"{name}(x0=)", x0).dtype)
        self.space = space = Space(name, layout, vector_dtype(b.dtype, *known))
        for one in (operator, inverse):
            if one is not None:
                one.check_shape(name, layout.shape, layout.shape)
        self.apply = Map("what A returned", operator.matvec, space, space)
        self.precondition: Any = None
        if inverse is not None:
            self.precondition = Map("what M returned", inverse.matvec, space, space)
        self.b = space.read(b, "b")
        self.x = space.zeros() if x0 is None else space.copy(space.read(x0, "x0"))
        self.has_start = x0 is not None

    def begin(self, rtol: float = 0.0, atol: float = 0.0, shift: float = 0.0) -> int | None:
        """Find the first residual, and return what is to be said if that is all.

        Raises
        ------
        LinAlgError
            If squares of the right-hand side are too small to be told from 0.
        """
        space, x = self.space, self.x
        self.r = space.empty()
        image = ((-1, self.apply(x)), (shift, x)) if self.has_start else ()
        pairs = [(self.b, self.b), (self.r, self.r)][: 1 + self.has_start]
        parts = space.combine([(self.r, 0, ((1, self.b), *image))], pairs)
        b2, r2 = ([one.real for one in space.add_up(parts)] * 2)[:2]
        if not is_finite(b2, r2):
            return -1
        check_size(space, self.b, b2)
        self.b_size, self.r_size = math.sqrt(b2), math.sqrt(r2)
        self.enough = max(atol, rtol * self.b_size)
        if b2 == 0:
            x[...] = 0
        return 0 if b2 == 0 or self.r_size <= self.enough else None

    def result(self, info: int) -> tuple[Any, int]:
        """Return the solution with what is to be said of it."""
        return self.space.array(self.x), info


def read_tolerance(name: str, key: str, value: Any) -> float:
    """Return a tolerance.

    Raises
    ------
    ArgumentError
        If it is negative, or NaN.
    """
    found = read_real(name, key, value)
    if not found >= 0:
        raise ArgumentError(f"{name}({key}={value!r}): must be 0 or more")
    return found


def read_real(name: str, key: str, value: Any) -> float:
    """Return a real number.

    Raises
    ------
    ArgumentError
        If it is complex.
    """
    found = check_number(name, key, value)
    if isinstance(found, (complex, np.complexfloating)):
        raise ArgumentError(f"{name}({key}={value!r}): must be real")
    return float(found)


def read_choice(name: str, key: str, value: Any, among: tuple[Any, ...]) -> Any:
    """Return one of some words, or None.

    Raises
    ------
    ArgumentError
        If it is another one.
    """
    if isinstance(value, str | None) and value in among:
        return value
    known = " or ".join(repr(one) for one in among if one is not None)
    raise ArgumentError(f"{name}({key}={describe(value)}): must be {known}")


def check_callback(name: str, value: Any) -> None:
    """Check what is called after each iteration.

    Raises
    ------
    ArgumentTypeError
        If it cannot be.
    """
    if value is not None and not callable(value):
        raise ArgumentTypeError(f"{name}(callback={describe(value)}): must be a function")


def read_count(name: str, key: str, value: Any, default: int, least: int = 0) -> int:
    """Return a number of steps, or of vectors.

    Raises
    ------
    ArgumentError
        If it is less than `least`.
    """
    found = default if value is None else check_integer(name, key, value)
    if value is not None and found < least:
        raise ArgumentError(f"{name}({key}={value!r}): must be {least} or more")
    return found


def refuse(name: str, options: dict[str, Any], remedy: str) -> None:
    """Refuse options of SciPy's that are set.

    Raises
    ------
    ArgumentError
        If one of them is.
    """
    given = [
        f"{key}={describe(value)}"
        for key, value in options.items()
        if value is not None and value is not False
    ]
    if given:
        raise ArgumentError(f"{name} does not take {', '.join(given)}; {remedy}")


def check_size(space: Space, b: Buffer, square: float) -> None:
    """Refuse a right-hand side whose squares, which add up to `square`, are too small to be told.

    Raises
    ------
    LinAlgError
        If so.
    """
    if square < space.least_square and space.largest(b):
        raise LinAlgError(
            f"{space.name}: b is so small, at most {space.largest(b):.1e}, that its size in "
            f"{space.dtype} cannot be told; multiply b, and divide the solution"
        )
