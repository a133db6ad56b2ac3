"""Einstein's summation over operands of any layout, by subscripts in a string."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from math import prod
from typing import Any

import numpy as np

from distarray.core import (
    BaseArray,
    Letters,
    cast,
    check_fits,
    check_target,
    normalize_operands,
    register,
    run,
    step_for,
    write_out,
)
from distarray.errors import ArgumentError, ArgumentTypeError, ShapeError
from distarray.ops.linear_algebra import _panels
from distarray.ops.linear_algebra._contraction import Subscripts, contraction, run_product
from distarray.ops.linear_algebra._products import diagonal
from distarray.typing import Shape


def _parse(subscripts: str) -> tuple[tuple[str, ...], str]:
    """Return the letters of every operand and of the result."""
    left, arrow, right = subscripts.replace(" ", "").partition("->")
    inputs = tuple(left.split(","))
    if not arrow:
        right = _single_letters(left)
    for letters in (*inputs, right):
        if not all(letter.isascii() and letter.isalpha() for letter in letters):
            raise ArgumentError(
                f"einsum got subscripts {subscripts!r}; they are letters for axes, such as "
                '"ij,jk->ik", and "..." for axes before, between or after them'
            )
        if len(set(letters)) != len(letters):
            raise ArgumentError(
                f"einsum got subscripts {subscripts!r}, in which the result has a letter twice"
            )
    unknown = set(right) - set("".join(inputs))
    if unknown:
        raise ArgumentError(
            f"einsum got subscripts {subscripts!r}: no operand has the letters {sorted(unknown)} "
            "of the result"
        )
    return inputs, right


def _single_letters(left: str) -> str:
    """Return the letters that operands have once in all, as the result has them by default."""
    counts = Counter(filter(str.isalpha, left))
    return "".join(sorted(letter for letter, n in counts.items() if n == 1))


def _plain_letters(subscripts: str, operands: Sequence[Any]) -> tuple[str, list[Any]]:
    """Return subscripts without "..." and with each letter once per operand, and the operands.

    Other letters stand for "...", and diagonals for operands that have a letter twice.
    """
    from string import ascii_letters  # the module compiles an expression

    left, arrow, right = subscripts.replace(" ", "").partition("->")
    terms, arrays = left.split(","), [x if hasattr(x, "dtype") else np.asarray(x) for x in operands]
    if len(terms) != len(arrays):
        raise ArgumentError(
            f"einsum got {len(arrays)} operands and subscripts for {len(terms)} ({subscripts!r})"
        )
    hidden = [
        max(x.ndim - len(term) + 3, 0) if "..." in term else 0
        for term, x in zip(terms, arrays, strict=True)
    ]
    spare = "".join(sorted(set(ascii_letters) - set(subscripts)))[: max(hidden)]
    if arrow and spare and "..." not in right:
        raise ArgumentError(
            f'einsum got subscripts {subscripts!r}, whose result lacks the axes of "..."; write '
            "it there as well, or a letter for each axis that is summed"
        )
    right = right.replace("...", spare, 1) if arrow else spare + _single_letters(left)
    for i, (term, n) in enumerate(zip(terms, hidden, strict=True)):
        letters = term.replace("...", spare[len(spare) - n :], 1)
        while twice := [x for x in letters if x.isalpha() and letters.count(x) > 1]:
            first, second = [at for at, x in enumerate(letters) if x == twice[0]][:2]
            shape = arrays[i].shape
            if len(shape) != len(letters) or shape[first] != shape[second]:
                raise ShapeError(
                    f"einsum got an operand of shape {shape} for the subscripts {term!r}; every "
                    "axis needs a letter, and axes of one letter have one length"
                )
            take = diagonal if isinstance(arrays[i], BaseArray) else np.diagonal
            arrays[i] = take(arrays[i], axis1=first, axis2=second)
            kept = [x for at, x in enumerate(letters) if at not in (first, second)]
            letters = "".join(kept) + twice[0]
        terms[i] = letters
    return f"{','.join(terms)}->{right}", arrays


def _letters(shapes: Sequence[Shape], subscripts: str) -> Subscripts:
    inputs, right = _parse(subscripts)
    if len(inputs) != len(shapes):
        raise ArgumentError(
            f"einsum got {len(shapes)} operands and subscripts for {len(inputs)} ({subscripts!r})"
        )
    sizes: dict[str, int] = {}
    for letters, shape in zip(inputs, shapes, strict=True):
        if len(letters) != len(shape):
            raise ShapeError(
                f"einsum got an operand of shape {shape} for the subscripts {letters!r}; every "
                "axis needs a letter"
            )
        for letter, size in zip(letters, shape, strict=True):
            known = sizes.get(letter, 1)
            if 1 not in (known, size) and known != size:
                raise ShapeError(
                    f"einsum {subscripts!r} got lengths {known} and {size} for {letter!r}; they "
                    "must be equal or 1"
                )
            sizes[letter] = size if known == 1 else known
    numbered: list[Letters] = [
        tuple(ord(x) if n == sizes[x] else None for x, n in zip(letters, shape, strict=True))
        for letters, shape in zip(inputs, shapes, strict=True)
    ]
    return tuple(numbered), tuple(map(ord, right))


_PLAIN = 1 << 16
"""Products that NumPy's plain loop makes in the 50 us that it takes to plan calls of the BLAS."""


def _local(*arguments: Any) -> Any:
    *blocks, subscripts = arguments
    # Each product of a pair is in the final dtype: what it sums must not wrap or saturate earlier.
    dtype = np.result_type(*[block.dtype for block in blocks])
    if not all(block.size for block in blocks):
        # NumPy 2.4 spoils the heap where it multiplies long doubles and there is none of them.
        return np.einsum(subscripts, *[np.zeros_like(x, float) for x in blocks]).astype(dtype)
    blocks = [block.astype(dtype, copy=False) for block in blocks]
    pays = len(blocks) > 1 and prod([block.size for block in blocks]) > _PLAIN
    return np.einsum(subscripts, *blocks, optimize=pays)


_einsum = contraction("einsum", _letters, _local)


def einsum(subscripts: str, /, *operands: Any, out: Any = None, optimize: Any = False) -> Any:
    """Return the sum of products of operands over the letters that the result lacks.

    Parameters
    ----------
    subscripts : str
        Letters of the axes of each operand, and after "->" those of the result; without it, the
        letters that appear once, in alphabetical order. "..." is for axes that are broadcast; a
        letter twice in an operand takes its diagonal.
    *operands : DistArray or array
        At least one distributed. Plain arrays must be the same on every process.
    out : DistArray, optional
        Where the result goes, once it is complete; it keeps its layout and dtype.
    optimize : optional
        Has no effect: blocks are contracted in the order that NumPy finds cheapest.

    Returns
    -------
    DistArray
        Cut along the letters that the operands are cut along; `Partial("sum")` where a summed
        letter is cut.

    Raises
    ------
    ArgumentError
        If the subscripts cannot be read or do not fit the operands.
    ShapeError
        If lengths differ.

    Notes
    -----
    Distribution: as for `matmul`. More than two operands are multiplied in pairs where several are
    large and would have to become larger than blocks, along different axes.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.asarray([[1, 2], [3, 4]])
    >>> print(da.einsum("ij,ij->i", x, x))
    [ 5 25]
    """
    if not isinstance(subscripts, str):
        raise ArgumentTypeError(
            f"einsum got {type(subscripts).__name__} first; it takes a string of subscripts, such "
            'as "ij,jk->ik", then the operands'
        )
    del optimize
    if not operands:
        raise ArgumentError(f"einsum got no operands for {subscripts!r}; pass one for each term")
    terms = subscripts.partition("->")[0].replace(" ", "").split(",")
    if "." in subscripts or any(len(set(term)) < len(term) for term in terms):
        subscripts, arrays = _plain_letters(subscripts, operands)
        operands = tuple(arrays)
    if len(operands) > 2:
        nbytes = sum([x.nbytes for x in operands if isinstance(x, BaseArray)])
        if nbytes > _panels.PANEL_BYTES:
            known = normalize_operands("einsum", operands)
            arrays = [x if hasattr(x, "dtype") else np.asarray(x) for x in known]
            step = step_for(_einsum, arrays, subscripts)
            if step.panels is not None and _panels.find_large(step, step.moves):
                if out is not None:
                    check_target("einsum", out)
                    check_fits("einsum", out, step.output.shape, step.result)
                return write_out("einsum", out, _run_in_pairs(subscripts, arrays))
    return run_product(_einsum, operands, subscripts, out)


def _run_in_pairs(subscripts: str, operands: Sequence[Any]) -> Any:
    """Multiply two operands at a time: panels of all, along one letter, would leave some whole.

    Of all pairs the next is the one whose product has the fewest items.
    """
    inputs, right = _parse(subscripts)
    dtype = np.result_type(*[x.dtype for x in operands])
    terms = [
        (letters, cast("einsum", x, dtype) if isinstance(x, BaseArray) else x.astype(dtype))
        for letters, x in zip(inputs, operands, strict=True)
    ]

    def join(pair: tuple[int, int]) -> tuple[int, str]:
        """Return how many items the product of two terms has, and its letters."""
        others = right + "".join(terms[i][0] for i in range(len(terms)) if i not in pair)
        sizes: dict[str, int] = {}
        for letters, x in (terms[i] for i in pair):
            for letter, n in zip(letters, x.shape, strict=True):
                sizes[letter] = max(sizes.get(letter, 1), n)
        kept = [letter for letter in sizes if letter in others]
        return prod(sizes[letter] for letter in kept), "".join(kept)

    while len(terms) > 1:
        pairs = combinations(range(len(terms)), 2)
        (_, kept), pair = min((join(pair), pair) for pair in pairs)
        letters, blocks = zip(*(terms[i] for i in pair), strict=True)
        if len(terms) == 2:
            kept = right
        text = f"{','.join(letters)}->{kept}"
        plain = not any(isinstance(x, BaseArray) for x in blocks)
        product = _local(*blocks, text) if plain else run(_einsum, blocks, text)
        terms = [(kept, product), *(one for i, one in enumerate(terms) if i not in pair)]
    return terms[0][1]


register(einsum)
