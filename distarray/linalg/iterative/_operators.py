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
from distarray.linalg.iterative._vectors import (
    ORDINARY_IMAGE,
    Space,
    exponent_of,
    is_finite,
    times_power,
)
from distarray.ops import conj, matmul, matrix_transpose
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


class Unit:
    """A power of two by which images of an operator are multiplied, so that they have squares.

    The first image tells it, in one reduction, of a vector that is neither large nor small.

    Parameters
    ----------
    beside : float
        The size of what is added to the operator.

    Attributes
    ----------
    exponent : int
        0 of an ordinary operator, or as long as images are 0.
    """

    def __init__(self, beside: float = 0.0) -> None:
        self._beside = beside
        self._is_known = False
        self.exponent = 0

    def measure(self, space: Space, image: Buffer) -> None:
        """Look at the size of an image, unless that of one before is known."""
        if not self._is_known and (largest := space.largest(image)):
            self.exponent = exponent_of(max(largest, self._beside), space.dtype, ORDINARY_IMAGE)
            self._is_known = True

    def fix(self) -> None:
        """Let the power be what it is."""
        self._is_known = True


class Map:
    """An operator on blocks, times a power of two: from vectors of one space to those of another.

    An operator and its adjoint share their `unit`.
    """

    def __init__(
        self, what: str, function: Function, source: Space, target: Space, unit: Unit | None = None
    ) -> None:
        self._what, self._function, self._source, self._target = what, function, source, target
        self.unit = unit or Unit()

    def __call__(self, block: Buffer) -> Buffer:
        """Return the block of the image, which shares no memory with the argument."""
        return self.take(self._function(self._source.array(block)), block)

    def take(self, result: Any, block: Buffer) -> Buffer:
        """Return the same of what the operator itself makes of a block."""
        image = self._target.read(result, self._what)
        self.unit.measure(self._target, image)
        if self.unit.exponent:
            return times_power(image, self.unit.exponent)
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

    Where items of the operator or of the right-hand side are so large, or so small, that products
    of them are not there, they are multiplied by powers of two, and so is the solution.

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
        self._exponent = 0  # of the power that the right-hand side is multiplied by

    def begin(self, rtol: float = 0.0, atol: float = 0.0, shift: float = 0.0) -> int | None:
        """Find the first residual, and return what is to be said if that is all."""
        space, x = self.space, self.x
        self.apply.unit = Unit(abs(shift))
        pairs = [(self.b, self.b), (x, x)][: 1 + self.has_start]
        b2, x2 = ([one.real for one in space.multiply(*pairs)] * 2)[:2]
        self.b, self._exponent, b2 = space.normalize(self.b, b2)
        if not is_finite(b2):
            return -1
        if b2 == 0:
            x[...] = 0
            return 0
        start, exponent, x2 = space.normalize(x, x2) if self.has_start else (x, 0, 0.0)
        if x2 == 0:
            self.r, r2 = space.copy(self.b), b2
        else:
            self.r, image = space.empty(), self.apply(start)
            self.apply.unit.fix()  # or else it would change what the solution begins with
            exponent = -self._solution_exponent - exponent
            x[...], image = times_power(start, exponent), times_power(image, exponent)
            terms = (1, self.b), (-1, image), (times_power(shift, self.apply.unit.exponent), x)
            parts = space.combine([(self.r, 0, terms)], [(self.r, self.r)])
            r2 = space.add_up(parts)[0].real
            if not is_finite(r2):
                return -1
        self.b_size, self.r_size = math.sqrt(b2), math.sqrt(r2)
        self.enough = max(times_power(atol, self._exponent), rtol * self.b_size)
        return 0 if self.r_size <= self.enough else None

    @property
    def _solution_exponent(self) -> int:
        """The exponent of the power of two that makes the solution of `x`."""
        return self.apply.unit.exponent - self._exponent

    def solution(self) -> Any:
        """Return the solution so far."""
        space = self.space
        return space.array(space.unite(times_power(self.x, self._solution_exponent)))

    def result(self, info: int) -> tuple[Any, int]:
        """Return the solution with what is to be said of it."""
        x = self.space.unite(times_power(self.x, self._solution_exponent))
        if info == 0 and x is not self.x and not is_finite(self.space.largest(x)):
            info = -1
        return self.space.array(x), info


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
