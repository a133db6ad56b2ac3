"""Sharding rules as data: which axes of inputs and output are cut together on ONE mesh axis."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from distarray.layout import Partial, Placement, Replicate, Shard
from distarray.typing import Shape

Letters: TypeAlias = tuple[int | None, ...]
"""For each axis of an array the letter it carries; None for an axis of size 1 that has none."""

Rule: TypeAlias = tuple[Placement, ...]
"""Placements `(out, *ins)` on one mesh axis for which the local call needs no communication."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What an operation does to the axes of its arrays, in the manner of an einsum string.

    A letter is an axis of the iteration space. Cutting a letter cuts every array that carries it;
    an array without it is replicated. A letter that the output lacks is contracted: the output is
    then `Partial(combine)`, or, without `combine`, that letter may not be cut.
    """

    inputs: tuple[Letters, ...]
    output: Letters
    combine: str | None = None
    partial: tuple[Rule, ...] = field(default=())
    """More rules, for inputs that are Partial; they apply only to inputs that fit as they are."""
    exchanged: tuple[int, ...] | None = None
    """Letters along which the states of blocks are exchanged, if they are. Where the output lacks
    one it is replicated along the mesh axes that cut it."""

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

    def rules(self) -> tuple[Rule, ...]:
        """Return every rule on one mesh axis."""
        letters = {x: None for array in self.inputs for x in array if x is not None}
        cuts = [self.placements(letter) for letter in letters if self.may_cut(letter)]
        return (self.placements(None), *cuts, *self.partial)


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


def reduction(
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


def contraction(subscripts: str, partial: tuple[Rule, ...] = ()) -> Spec:
    """Return the spec of an einsum string such as "ij,jk->ik" (summed letters give Partial)."""
    ins, _, out = subscripts.partition("->")
    inputs = tuple(tuple(ord(x) for x in array) for array in ins.split(","))
    return Spec(inputs, tuple(ord(x) for x in out), "sum", partial)
