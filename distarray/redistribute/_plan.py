"""The plan of a redistribution: its steps, and exact answers about what they cost a rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distarray.errors import ArgumentTypeError, DTypeError, MeshError, ShapeError
from distarray.layout import REDUCTIONS, Layout, Partial, kept
from distarray.layout import box as boxes
from distarray.redistribute import _explain, _schedule
from distarray.redistribute._blocks import block_of, kept_partial, op_of
from distarray.redistribute._cost import DEFAULT_MODEL, CostModel, step_seconds
from distarray.redistribute._search import cheapest
from distarray.redistribute._speeds import known_speeds
from distarray.redistribute._steps import Step, check_max_bytes, reduced_dtype_between


@dataclass(frozen=True, slots=True)
class Plan:
    """What turns one layout into another; made by `plan`.

    All questions about a rank take its world rank, as in ``mesh.ranks``, and are answered exactly,
    in closed form wherever there is one. Bytes are those that a rank exchanges with others: what
    it copies from its own block does not count.

    Attributes
    ----------
    src, dst
        Abstract layouts.
    dtype
        Of the source's values.
    model
        Cost model that chose the steps.
    steps
        One after another; a step's ``dst`` is the next one's ``src``. None where the layouts are
        the same.

    Examples
    --------
    >>> import distarray as da
    >>> mesh = da.AbstractMesh((4,))
    >>> rows = da.Layout(mesh, [da.Shard(0)], (8, 8))
    >>> whole = da.Layout(mesh, [da.Replicate()], (8, 8))
    >>> plan = da.plan(rows, whole, "float64")
    >>> len(plan.steps), plan.bytes_received(0), plan.bytes_lower_bound(0)
    (1, 384, 384)
    """

    src: Layout
    dst: Layout
    dtype: np.dtype[Any]
    model: CostModel
    steps: tuple[Step, ...]

    @property
    def result_dtype(self) -> np.dtype[Any]:
        """Of the values afterwards: float64 where integers are averaged, else ``dtype``."""
        return self.steps[-1].result_dtype if self.steps else self.dtype

    @property
    def cost(self) -> float:
        """Seconds for a typical rank, as the model estimates that chose the steps."""
        return sum(step_seconds(step, self.model) for step in self.steps)

    @property
    def seconds(self) -> float:
        """Estimated seconds for a typical rank, by what ``python -m distarray bench`` has measured.

        On this machine, with about as many ranks on a node, of blocks whose memory has been used
        before. Where nothing has been measured, or the plan was made by a model of one's own, it
        is the `cost`.
        """
        return sum(step_seconds(step, self.speeds) for step in self.steps)

    @property
    def speeds(self) -> CostModel:
        """What `seconds` are estimated by."""
        if replace(self.model, **_NETWORK) != replace(DEFAULT_MODEL, **_NETWORK):
            return self.model
        ranks = max(self.src.mesh.size, self.dst.mesh.size)
        known = known_speeds(min(ranks, self.model.ranks_per_node or ranks))
        if known is None:
            return self.model
        return replace(known, **{name: getattr(self.model, name) for name in _NETWORK})

    def bytes_received(self, rank: int) -> int:
        """Return the bytes that a rank receives from other ranks, in all steps."""
        return sum(step.bytes_received(self._member(rank)) for step in self.steps)

    def bytes_sent(self, rank: int) -> int:
        """Return the bytes that a rank sends to other ranks, in all steps."""
        return sum(step.bytes_sent(self._member(rank)) for step in self.steps)

    def messages(self, rank: int) -> int:
        """Return how many messages a rank receives, one per peer and step (in one round)."""
        return sum(step.messages(self._member(rank)) for step in self.steps)

    def bytes_lower_bound(self, rank: int) -> int:
        """Return how few bytes a rank could receive, however it is done.

        The values of its new block that its old block lacks. Where the source is ``Partial``, a
        rank holds a value only if it is the only contributor: otherwise at least one value must
        come in for each of its new block (reducing long blocks takes up to twice that for an
        all-reduce, one per other contributor for a reduce-scatter). A mesh axis that stays
        ``Partial`` separates its ranks. Where a ``Partial`` is created the bound is 0: a value may
        be contributed by a rank that holds it.
        """
        return _schedule.count_lacking(self.src, self.dst, self._member(rank)) * self.dtype.itemsize

    def peak_bytes(self, rank: int) -> int:
        """Return the most bytes that a rank holds at a time.

        Its source block (which stays), the blocks before and after a step, and the packed messages
        of that step (none of these within a node, where blocks are read in place).
        """
        rank = self._member(rank)
        source = _block_bytes(self.src, rank, self.dtype)
        peak, before = source, 0
        for step in self.steps:
            after = _block_bytes(step.dst, rank, step.result_dtype)
            peak = max(peak, source + before + after + step.scratch_bytes(rank))
            before = after
        return peak

    def explain(self, rank: int | None = None) -> str:
        """Return a table of the steps, and of the ways that were not taken.

        Parameters
        ----------
        rank
            World rank whose bytes to show; by default the busier of the destination mesh's first
            and middle one.
        """
        return _explain.explain(self, rank)

    def __str__(self) -> str:
        names = ", ".join(step.name for step in self.steps) or "nothing to do"
        return f"{self.src} -> {self.dst} of {self.dtype}: {names}"

    def _member(self, rank: int) -> int:
        """Return the rank, if it is one of either mesh."""
        if rank in self.src.mesh or rank in self.dst.mesh:
            return rank
        raise MeshError(
            f"rank {rank} takes no part: it is in neither of the meshes {self.src.mesh} and "
            f"{self.dst.mesh}; ask for a rank of mesh.ranks"
        )


_NETWORK: dict[str, Any] = {
    "round_far": 0.0, "message_far": 0.0, "bandwidth_far": 0.0, "ranks_per_node": None
}  # fmt: skip
"""What a model says of several nodes, which ``bench`` does not measure."""

_STAND_INS = {
    (kind, itemsize): np.dtype(f"{kind}{itemsize}")
    for kind, sizes in (("f", (2, 4, 8)), ("c", (8, 16)), ("i", (1, 2, 4, 8)), ("b", (1,)))
    for itemsize in sizes
}


def plan(
    src: Layout,
    dst: Layout,
    dtype: Any,
    *,
    max_bytes: int | None = None,
    model: CostModel = DEFAULT_MODEL,
) -> Plan:
    """Return how to turn one layout into another, the cheapest way that the cost model knows.

    Parameters
    ----------
    src, dst
        Layouts of one shape, over any meshes: the same, or others with ranks in common or none.
    dtype
        Anything that ``numpy.dtype`` accepts.
    max_bytes
        Bound on the packed bytes that a rank sends and receives at a time, kept by exchanging in
        rounds. Nothing is packed within a node.
    model
        Speeds of the machine, and its nodes: by default all ranks are on one. Of several tells
        `distarray.redistribute.CostModel(ranks_per_node=64, bandwidth_far=12.5e9 / 64)`, where a
        rank has the 64-th part of a network of 100 Gb/s. All ranks must plan with the same.

    Raises
    ------
    ShapeError
        The layouts have different shapes.
    DTypeError
        A ``Partial`` has an operation that this dtype does not know.
    ArgumentError
        ``max_bytes`` is not positive.

    Examples
    --------
    >>> import distarray as da
    >>> mesh = da.AbstractMesh((4,))
    >>> rows = da.Layout(mesh, [da.Shard(0)], (8, 8))
    >>> columns = da.Layout(mesh, [da.Shard(1)], (8, 8))
    >>> print(da.plan(rows, columns, "float64"))
    8x8 [axis0:S(0)] -> 8x8 [axis0:S(1)] of float64: all-to-all
    """
    for layout in (src, dst):
        if not isinstance(layout, Layout):
            raise ArgumentTypeError(
                f"plan takes two layouts, not {type(layout).__name__}; make one by "
                "Layout(mesh, placements, shape), or take x.layout"
            )
    return _plan(src.abstract, dst.abstract, _check_dtype_argument(dtype), max_bytes, model)


def _check_dtype_argument(dtype: Any) -> np.dtype[Any]:
    try:
        found = np.dtype(dtype)
    except TypeError:
        raise ArgumentTypeError(
            f"dtype {dtype!r} is not a data type; pass for instance float or 'float32'"
        ) from None
    if found.hasobject:
        raise DTypeError(
            f"dtype {found} holds Python objects, which cannot be sent as memory; convert the "
            "array, x.astype(float), or plan for a numeric, string or structured dtype"
        )
    return found


def estimate(src: Layout, dst: Layout, itemsize: int) -> float:
    """Return the estimated seconds of a redistribution of values of ``itemsize`` bytes."""
    return _estimate(src.abstract, dst.abstract, itemsize)


@kept(4096)
def _estimate(src: Layout, dst: Layout, itemsize: int) -> float:
    dtype = _dtype_of_size(src, dst, itemsize)
    return sum(
        step_seconds(step, DEFAULT_MODEL) for step in cheapest(src, dst, dtype, DEFAULT_MODEL)
    )


def clear_planned() -> None:
    """Forget all plans and estimates."""
    _plan.cache_clear()
    _estimate.cache_clear()


def _dtype_of_size(src: Layout, dst: Layout, itemsize: int) -> np.dtype[Any]:
    """Return a dtype of a size that the reductions of both layouts accept."""
    placements = (*src.placements, *dst.placements)
    kinds = {kind for p in placements if type(p) is Partial for kind in REDUCTIONS[p.op].kinds}
    for kind in "fcib":
        if (kind in kinds or not kinds) and (kind, itemsize) in _STAND_INS:
            return _STAND_INS[kind, itemsize]
    return np.dtype(np.bool_) if kinds == {"b"} else np.dtype(f"V{itemsize}")


@kept(8192)
def _plan(
    src: Layout, dst: Layout, dtype: np.dtype[Any], max_bytes: int | None, model: CostModel
) -> Plan:
    if src.shape != dst.shape:
        raise ShapeError(
            f"cannot redistribute an array of shape {src.shape} into a layout of shape "
            f"{dst.shape}: both must be equal; reshape the array first"
        )
    check_dtype(src, dst, dtype)
    steps = cheapest(src, dst, dtype, model)
    if max_bytes is not None:
        check_max_bytes(max_bytes)
        steps = tuple(step.in_rounds(max_bytes) for step in steps)
    return Plan(src, dst, dtype, model, steps)


def _block_bytes(layout: Layout, rank: int, dtype: np.dtype[Any]) -> int:
    box = block_of(layout, rank)
    return 0 if box is None else boxes.volume(box) * dtype.itemsize


def check_dtype(src: Layout, dst: Layout, dtype: np.dtype[Any]) -> None:
    """Raise DTypeError if a ``Partial`` on the way has an operation that its values do not know.

    Or if the result would depend on the order of the reductions: the sum of truth values is their
    disjunction, and that of averages is not.
    """
    kept = kept_partial(src, dst)
    ops = {op_of(src, i) for i in src.partial_axes if i not in kept and src.mesh.shape[i] > 1}
    if dtype.kind == "b" and len(ops) > 1 and "avg" in ops:
        raise DTypeError(
            f"{src} averages truth values along one mesh axis and reduces them otherwise along "
            "another, whose order matters; redistribute in two steps, or convert the array first"
        )
    for layout, kind in ((src, dtype), (dst, reduced_dtype_between(src, dst, dtype))):
        for i in layout.partial_axes:
            placement = layout.placements[i]
            if i not in kept and type(placement) is Partial:
                _check(placement, kind)


def _check(placement: Partial, dtype: np.dtype[Any]) -> None:
    kinds = REDUCTIONS[placement.op].kinds
    # Kinds beyond NumPy's own (bfloat16 has V) are the business of those who reduce them.
    if dtype.kind not in kinds and dtype.kind in "biufcmMSUO":
        raise DTypeError(
            f"{placement!r} of {dtype}: this reduction is defined for the dtype kinds "
            f"{', '.join(kinds)}; convert the array first, or choose another reduction"
        )
