"""Functions of the user's own, with a sharding rule written as subscripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distarray.comm import _memory
from distarray.core import _replicas
from distarray.core._arguments import plain_buffer
from distarray.core._base import BaseArray
from distarray.core._cache import cache, remember
from distarray.core._dispatch import as_block, move_all
from distarray.core._meshes import device_of
from distarray.core._operands import lifted_layouts, local_blocks
from distarray.core._registry import functions, ufuncs
from distarray.core._resolution import Resolution, resolve
from distarray.core._spec import Letters, Spec
from distarray.errors import ArgumentError, ArgumentTypeError, ShapeError
from distarray.layout import REDUCTIONS, Layout
from distarray.typing import Shape


class Ruled:
    """A function of blocks that may be cut as its subscripts say; made by `register_rule`."""

    def __init__(self, function: Callable[..., Any], subscripts: str, combine: str | None) -> None:
        self.function = function
        self.name = self.__name__ = getattr(function, "__name__", "function")
        self.__doc__ = getattr(function, "__doc__", None)
        self.inputs, self.output = _parsed(subscripts)
        self.subscripts = subscripts
        self.combine = combine
        self.resolutions: dict[Any, Resolution] = cache()
        contracted = {x for array in self.inputs for x in array} - set(self.output) - {"..."}
        if contracted and combine is not None and combine not in REDUCTIONS:
            raise ArgumentError(
                f"register_rule(combine={combine!r}): there is no such reduction; it is one of "
                f"{' '.join(REDUCTIONS)}, or None where blocks cannot be combined"
            )

    def __repr__(self) -> str:
        return f"<distarray function {self.name} {self.subscripts}>"

    def __call__(self, *operands: Any, **options: Any) -> Any:
        """Call the function; its first arguments are the arrays of the rule."""
        count = len(self.inputs)
        if len(operands) < count:
            raise ArgumentTypeError(
                f"{self.name}() has the rule {self.subscripts!r} and takes {count} arrays first, "
                f"{len(operands)} arguments were given"
            )
        rest = operands[count:]
        arrays = [
            x if isinstance(x, BaseArray) else plain_buffer(x, self.name) for x in operands[:count]
        ]
        if _replicas.checked:
            _replicas.compare_operands(self.name, arrays)
        first = next((x for x in arrays if isinstance(x, BaseArray)), None)
        if first is None:
            return self.function(*operands, **options)
        key = tuple(x._layout if isinstance(x, BaseArray) else x.shape for x in arrays)
        found = self.resolutions.get(key)
        if found is None:
            found = self._resolve(key)
            remember(self.resolutions, key, found)
        blocks = local_blocks(self.name, first, arrays)
        if not found.still:
            blocks = move_all(self.name, blocks, found.moves)
        if found.outside:  # nothing to call the function with: only the layout is known
            shape, device = found.output.local_shape(), device_of(first._layout)
            return first._new(_memory.empty(shape, first._local.dtype, device), found.output)
        result = as_block(self.function(*blocks, *rest, **options))
        return first._new(result, self._fitted(found, result))

    def call(self, operands: Sequence[Any], options: dict[str, Any]) -> Any:
        """Run as a ufunc of the same name."""
        return self(*operands, **options)

    def _resolve(self, key: Sequence[Any]) -> Resolution:
        layouts = lifted_layouts(self.name, key)
        sizes: dict[Any, int] = {}
        letters = [
            _letters(self.name, self.subscripts, spelled, layout.shape, sizes)
            for spelled, layout in zip(self.inputs, layouts, strict=True)
        ]
        names = {letter: i for i, letter in enumerate(sizes)}
        inputs: tuple[Letters, ...] = tuple(tuple(names[x] for x in array) for array in letters)
        ellipsis = sorted(x for x in sizes if isinstance(x, int))
        output: list[int | None] = []
        for letter in self.output:
            if letter == "...":
                output += [names[x] for x in ellipsis]
            else:  # None: an axis that the function makes
                output.append(names.get(letter))
        return resolve(Spec(inputs, tuple(output), self.combine), layouts)

    def _fitted(self, found: Resolution, result: Any) -> Layout:
        """Return the layout of the result, with the lengths of axes that the function made."""
        expected = found.output.local_shape()
        layout = found.output
        if result.ndim != len(expected):
            raise ShapeError(
                f"{self.name} gave a block of shape {result.shape}, but its rule "
                f"{self.subscripts!r} promises {len(expected)} axes"
            )
        known = self._known(len(expected))
        shape = tuple(
            size if known[axis] else result.shape[axis] for axis, size in enumerate(layout.shape)
        )
        if shape != layout.shape:
            layout = layout.replace(shape=shape)
        if result.shape != layout.local_shape():
            raise ShapeError(
                f"{self.name} gave a block of shape {result.shape} where its rule "
                f"{self.subscripts!r} promises {layout.local_shape()}"
            )
        return layout

    def _known(self, ndim: int) -> list[bool]:
        """Tell for each axis of the result whether an input has it."""
        inputs = {x for array in self.inputs for x in array}
        known: list[bool] = []
        for letter in self.output:
            spread = ndim - len(self.output) + 1 if letter == "..." else 1
            known += [letter in inputs] * spread
        return known


def _parsed(subscripts: str) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
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

    Notes
    -----
    Distribution: operands that do not fit together are redistributed the cheapest way, under the
    `communication` policy; Partial operands are reduced first. Letters of the output alone are
    axes that the function makes; their lengths must be alike on every rank.

    Examples
    --------
    >>> import numpy as np
    >>> from distarray.core._ruled import register_rule
    >>> norms = register_rule(lambda x: np.sqrt((x * x).sum(-1)), "ij->i")
    """
    row = Ruled(func, subscripts, combine)
    if isinstance(func, np.ufunc):
        ufuncs[func] = row
    elif getattr(func, "__module__", "").partition(".")[0] == "numpy":
        functions[func] = row
    return row
