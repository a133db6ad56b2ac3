"""Sharding rules as data: which axes of inputs and output are cut together on ONE mesh axis."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from distarray.layout import Layout, Partial, Placement, Replicate, Shard
from distarray.typing import Shape

Letters: TypeAlias = tuple[int | None, ...]
"""For each axis of an array the letter it carries; None for an axis of size 1 that has none."""

Rule: TypeAlias = tuple[Placement, ...]
"""Placements `(out, *ins)` on one mesh axis for which the local call needs no communication."""

Move: TypeAlias = tuple[Layout, Layout] | None
"""Of an operand: the layout it has and the one it must have, or None where it fits."""


class Spec(NamedTuple):
    """What an operation does to the axes of its arrays, in the manner of an einsum string.

    A letter is an axis of the iteration space. Cutting a letter cuts every array that carries it;
    an array without it is replicated. A letter that the output lacks is contracted: the output is
    then `Partial(combine)`, or, without `combine`, that letter may not be cut.
    """

    inputs: tuple[Letters, ...]
    output: Letters
    combine: str | None = None
    partial: tuple[Rule, ...] = ()
    """More rules, for inputs that are Partial; they apply only to inputs that fit as they are."""
    exchanged: tuple[int, ...] | None = None
    """Letters along which the states of blocks are exchanged, if they are. Where the output lacks
    one it is replicated along the mesh axes that cut it."""
    prefix: np.ufunc | None = None
    """Combines the states of the blocks before each along the one exchanged letter: of the exchange
    a block needs no more."""

    def placements(self, letter: int | None) -> Rule:
        """Return the rule `(out, *ins)` that cuts `letter`; None replicates everything."""
        if letter is None:
            return (Replicate(),) * (len(self.inputs) + 1)
        ins = tuple(_place(letters, letter) for letters in self.inputs)
        if letter in self.output:
            return (Shard(self.output.index(letter)), *ins)
        if letter in (self.exchanged or ()):
            return (Replicate(), *ins)
        if self.combine is None:
            raise ValueError(f"letter {letter} is contracted and has no combining operation")
        return (Partial(self.combine), *ins)

    def may_cut(self, letter: int) -> bool:
        """Tell whether a mesh axis may cut `letter`."""
        known = (*self.output, *(self.exchanged or ()))
        return self.combine is not None or letter in known


class Layouts(NamedTuple):
    """The layouts of operands and result, where an operation finds them itself.

    So it is where boundaries follow from arguments or from several arrays, or items change places.
    """

    inputs: tuple[Layout, ...]
    """What the operands must have; the engine moves those that have another."""
    output: Layout
    sends: tuple[tuple[Layout, Layout, bool], ...] = ()
    """Layouts before and after whatever the local step sends, and whether that is redistributed;
    else it is an exchange of items that change places."""
    copies_view: bool = False
    """The result is a copy where NumPy's is a view."""
    counted: int | None = None
    """The axis of the result along which values tell how long its blocks are, if there is one. The
    engine exchanges these lengths; that of the axis in `output` does not matter."""
    plan: Any = None
    """What else the local step has to know."""


class Panels(NamedTuple):
    """How the local step itself brings operands, a panel at a time, instead of the engine."""

    letter: int
    """The axis of the iteration space that is cut."""
    pieces: int
    """Into how many panels at most."""
    moves: tuple[Move, ...]
    """For each operand the layouts before and after, or None where it does not come by panels."""


def _place(letters: Letters, letter: int) -> Placement:
    return Shard(letters.index(letter)) if letter in letters else Replicate()


def pointwise(shapes: tuple[Shape, ...], out: Shape, partial: tuple[Rule, ...] = ()) -> Spec:
    """Return the spec of an operation item by item over shapes that broadcast to `out`."""
    inputs = []
    for shape in shapes:
        shift = len(out) - len(shape)
        inputs.append(
            tuple(shift + i if size == out[shift + i] else None for i, size in enumerate(shape))
        )
    return Spec(tuple(inputs), tuple(range(len(out))), None, partial)


@functools.lru_cache(maxsize=1024)  # any number of this size does
def reduction_spec(
    ndim: int,
    axes: tuple[int, ...],
    keepdims: bool,
    combine: str | None = None,
    partial: tuple[Rule, ...] = (),
    exchanged: bool = False,
) -> Spec:
    """Return the spec of a reduction of `axes`.

    The local results combine by `combine`, or, with `exchanged`, in an exchange of states.
    """
    kept: list[int | None] = []
    for axis in range(ndim):
        if axis not in axes:
            kept.append(axis)
        elif keepdims:
            kept.append(None)
    states = axes if exchanged else None
    return Spec((tuple(range(ndim)),), tuple(kept), combine, partial, states)


# --- rules for Partial inputs of operations item by item -----------------------------------------

# Cuts of axes need none: `pointwise` derives them from the shapes. A rule applies only where every
# input has just the placement it names, and where `stays_partial` finds the dtypes exact; whatever
# matches no rule is reduced first.

_R = Replicate()
_SUM = Partial("sum")

POINTWISE: tuple[Rule, ...] = ()
"""f(a + b) is not f(a) + f(b): every Partial input is reduced first."""

LINEAR: tuple[Rule, ...] = ((_SUM, _SUM),)
"""f(a + b) = f(a) + f(b)."""

ADDITIVE: tuple[Rule, ...] = ((_SUM, _SUM, _SUM),)
"""Sums of sums. A replicated addend is none: added on every rank it would count many times."""

MULTIPLICATIVE: tuple[Rule, ...] = (
    (_SUM, _SUM, _R),
    (_SUM, _R, _SUM),
    (Partial("prod"),) * 3,
)
"""Sums times a factor that every rank of the mesh axis has, and products of products."""


def joining(op: str) -> tuple[Rule, ...]:
    """Return the rules of the operation that reduces `Partial(op)` itself (idempotent ones)."""
    p = Partial(op)
    return ((p, p, p), (p, p, _R), (p, _R, p))
