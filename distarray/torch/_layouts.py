"""Layouts of tensors: beside the tensor, never in it; and those that blocks make up together."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import torch

from distarray.array import infer_layout
from distarray.comm import DeviceMesh, pause_logs, simulated_world, token
from distarray.errors import ArgumentTypeError, LayoutError, MeshError
from distarray.layout import Layout, Placement, Replicate, Shard, suggest_for_torch
from distarray.torch._opaque import disable_compile
from distarray.typing import Shape

T = TypeVar("T")


Parts = frozenset[tuple[int, str]]
Line = tuple[int, ...]
"""The ranks along a mesh axis, among which is this one."""


class Placed(NamedTuple):
    """How a tensor is one block of a global one, which ``layout`` is of.

    ``parts`` are the sizes into which ``axis`` of the full tensor is cut before each part is cut
    among the ranks, in whole ``units`` (fused weights; see `distarray.torch._shards`), if any.
    """

    layout: Layout
    parts: tuple[int, ...] = ()
    axis: int = 0
    units: tuple[int, ...] = ()
    partial_grad: Parts = frozenset()
    """Mesh axes along which the tensor is replicated, and each rank has a part of its gradient,
    with what becomes of the parts further back: "sum", "avg", or "" where it is not known."""


class Lost(NamedTuple):
    """What a tensor comes of, in which it is not known how it is cut: one placed by ``layout``.

    A ``function`` worked along cut ``axes`` of that, and saw this rank's shard only; "" if none.
    ``is_mean`` tells of a number that is a mean or sum of all of that, or of such alone: a loss.
    """

    layout: Layout
    function: str = ""
    axes: frozenset[int] = frozenset()
    is_mean: bool = False

    @property
    def hint(self) -> str:
        """What to tell of the function beside the rest of a message."""
        if self.function not in ("view", "reshape", "unflatten"):
            return ""
        return (
            " (sizes such as (heads, -1) make other heads of a shard; tell what is the same on "
            "every rank, the size of a head: y.unflatten(-1, (-1, size)))"
        )


class Derived(NamedTuple):
    """What a tensor was computed from that all ranks have, together with what is not known.

    ``repeat(x)`` computes the tensor anew from that, ``x``; both are None where others took part.
    """

    source: Placed
    repeat: Callable[[torch.Tensor], torch.Tensor] | None = None
    x: torch.Tensor | None = None


class TensorMap(Generic[T]):
    """A dictionary with tensors as keys, by identity, that does not keep them alive."""

    _all: ClassVar[list[TensorMap[Any]]] = []

    def __init__(self) -> None:
        self._found: dict[int, T] = {}
        self._references: dict[int, weakref.ref[torch.Tensor]] = {}
        self._all.append(self)

    def __getitem__(self, tensor: torch.Tensor) -> T:
        return self._found[id(tensor)]

    def __contains__(self, tensor: torch.Tensor) -> bool:
        reference = self._references.get(id(tensor))
        return reference is not None and reference() is tensor

    def get(self, tensor: torch.Tensor) -> T | None:
        """Return what stands beside a tensor, None if nothing does."""
        reference = self._references.get(id(tensor))
        return None if reference is None or reference() is not tensor else self._found[id(tensor)]

    def set(self, tensor: torch.Tensor, value: T) -> None:
        """Put something beside a tensor, in the place of what was there."""
        key = id(tensor)

        def forget(reference: Any) -> None:
            if self._references.get(key) is reference:
                del self._references[key], self._found[key]

        self._found[key] = value
        self._references[key] = weakref.ref(tensor, forget)

    def discard(self, tensor: torch.Tensor) -> None:
        """Let go what stands beside a tensor, if anything does."""
        if self.get(tensor) is not None:
            del self._references[id(tensor)], self._found[id(tensor)]

    @classmethod
    @contextmanager
    def unreferenced(cls, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
        """Keep no reference to tensors meanwhile: torch swaps no others."""
        kept = []
        for one in cls._all:
            for tensor in tensors:
                if one.get(tensor) is not None:
                    kept.append((one, tensor, one._found[id(tensor)]))
                    one.discard(tensor)
        try:
            yield
        finally:
            for one, tensor, value in kept:
                one.set(tensor, value)

    def tensors(self, choose: Callable[[T], bool]) -> list[tuple[torch.Tensor, T]]:
        """Return the tensors that are alive, and what stands beside them, of chosen values.

        Others are not referred to meanwhile: another thread may be swapping them.
        """
        found = []
        for key in list(self._found):  # no tuples are made, and so nothing is collected meanwhile
            value = self._found.get(key)
            reference = None if value is None or not choose(value) else self._references.get(key)
            tensor = None if reference is None else reference()
            if value is not None and tensor is not None:
                found.append((tensor, value))
        return found


_beside: TensorMap[Placed | Lost | Derived] = TensorMap()

watched: ContextVar[Callable[[torch.Tensor], None] | None] = ContextVar(
    "what hears of every tensor that is placed", default=None
)


def placed_of(tensor: torch.Tensor) -> Placed | None:
    """Return how a tensor is a block of a global one; None where nothing is known.

    A gradient is placed as its parameter.
    """
    if not is_placed(tensor) and not tensor.requires_grad:
        for parameter, placed in all_placed():
            if _is_leaf(parameter) and parameter.grad is tensor:
                return placed
    return own_placed(tensor)


def _is_leaf(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor has a gradient of its own.

    Torch cannot tell of a view in a living graph whose parameter has been changed since.
    """
    try:
        return tensor.is_leaf
    except RuntimeError:
        return False


def layout_of(tensor: torch.Tensor) -> Layout | None:
    """Return the layout of a parameter, a gradient or an output that this library made.

    Parameters
    ----------
    tensor
        A plain tensor: this rank's block.

    Returns
    -------
    Layout or None
        Of the global tensor; None for a tensor that has none. What torch computes from tensors
        with a layout has none.

    Examples
    --------
    >>> block = dt.distribute_tensor(torch.arange(5), da.default_mesh(), [da.Shard(0)])
    >>> print(dt.layout_of(block))
    5 [axis0:S(0)]
    >>> print(dt.layout_of(block + 1))
    None
    """
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentTypeError(
            f"layout_of takes a torch tensor, not {type(tensor).__name__}; an array's is x.layout"
        )
    placed = placed_of(tensor)
    return None if placed is None else placed.layout


def place_like(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Say that a tensor is placed as another one, such as a copy of a sharded parameter.

    Nothing is sent or changed. What torch computes from a block (``parameter.detach().clone()``, an
    average over steps) has no layout until it is said; then it is saved, loaded, gathered and
    measured as the parameter is.

    Parameters
    ----------
    tensor
        This rank's block, of the shape that the block of ``like`` has; of any dtype, on any device.
    like
        A tensor that `layout_of` knows.

    Returns
    -------
    torch.Tensor
        ``tensor`` itself.

    Raises
    ------
    LayoutError
        Nothing is known of ``like``; the shapes differ; or ``tensor`` is placed otherwise already.

    Examples
    --------
    >>> layer = dt.parallelize_module(nn.Linear(4, 6), da.default_mesh(), dt.ColwiseParallel())
    >>> average = dt.place_like(layer.weight.detach().clone(), layer.weight)
    >>> print(dt.layout_of(average))
    6x4 [axis0:S(0)]
    """
    for one in (tensor, like):
        if not isinstance(one, torch.Tensor):
            raise ArgumentTypeError(f"expected a torch tensor, not {type(one).__name__}")
    placed = placed_of(like)
    if placed is None:
        raise LayoutError(
            f"no layout is known of the tensor of shape {tuple(like.shape)} that another is to be "
            "placed like: parameters of parallelized and sharded modules, their gradients and what "
            "this library returns have one; pass the parameter itself"
        )
    if tensor.shape != like.shape:
        raise LayoutError(
            f"a tensor of shape {tuple(tensor.shape)} cannot be placed as one whose block here has "
            f"shape {tuple(like.shape)}, of {placed.layout}; pass a block of the same shape"
        )
    known = placed_of(tensor)
    if known is not None and known != placed:
        raise LayoutError(
            f"the tensor is placed as {known.layout} already, and cannot be {placed.layout} as "
            "well; pass a copy of it, tensor.clone()"
        )
    if known is None:
        place(tensor, *placed)
    return tensor


def known_of(tensor: torch.Tensor) -> Placed | Lost | Derived | None:
    """Return what is known of a tensor itself; None where nothing is, also for a gradient."""
    found = _beside.get(tensor)
    if type(found) is Placed and tuple(tensor.shape) != found.layout.local_shape():
        return None  # it has been resized since
    return found


def own_placed(tensor: torch.Tensor) -> Placed | None:
    """Return how a tensor itself is placed; None where that is not known."""
    found = known_of(tensor)
    return found if type(found) is Placed else None


def lost_of(tensor: torch.Tensor) -> Lost | None:
    """Return what a tensor comes of, in which the cut is lost; None where there is nothing."""
    found = _beside.get(tensor)
    return found if type(found) is Lost else None


def is_placed(tensor: torch.Tensor) -> bool:
    """Tell whether it is known how a tensor itself is placed."""
    return type(_beside.get(tensor)) is Placed


is_known = _beside.__contains__


def all_placed() -> list[tuple[torch.Tensor, Placed]]:
    """Return all tensors of this rank of which it is known how they are placed."""
    simulated = simulated_world()  # another thread may be changing its rank's, or swapping them

    def is_own(found: Placed | Lost | Derived) -> bool:
        if type(found) is not Placed:
            return False
        mesh: Any = found.layout.mesh
        return simulated is None or mesh.rank == simulated.rank

    own: Any = _beside.tensors(is_own)
    return list(own)


def place(tensor: torch.Tensor, layout: Layout, *of_parts: Any, **more: Any) -> None:
    """Say that a tensor is this rank's block of a layout: `Placed` has the other arguments."""
    _beside.set(tensor, Placed(layout, *of_parts, **more))
    watcher = watched.get()
    if watcher is not None:
        watcher(tensor)


def note(tensor: torch.Tensor, known: Lost | Derived) -> None:
    """Say what a tensor comes of, of which it is not known how it is placed."""
    _beside.set(tensor, known)


derived_over: TensorMap[tuple[Derived, ...]] = TensorMap()
"""Beside tensors of which more is known over one mesh: what they come of that all ranks of others
have."""


def derived_of(tensor: torch.Tensor) -> tuple[Derived, ...]:
    """Return what a tensor comes of that all ranks have, over one mesh or several."""
    found = _beside.get(tensor)
    if type(found) is Placed and found.layout.is_replicated:
        found = Derived(found)
    own = (found,) if type(found) is Derived else ()
    return own + (derived_over.get(tensor) or ())


def keep_over_others(tensor: torch.Tensor, found: Sequence[Derived]) -> None:
    """Remember what a tensor comes of along lines of ranks over which nothing else is known."""
    derived_over.discard(tensor)
    known = known_of(tensor) if found else None
    if known is not None:
        layout = known.source.layout if isinstance(known, Derived) else known.layout
        lines = lines_known(layout)
        more = [Derived(one.source) for one in found if not lines_known(one.source.layout) <= lines]
        if more:
            derived_over.set(tensor, tuple(more))


cut_over: TensorMap[Layout | Lost] = TensorMap()
"""Beside tensors of which more is known over one mesh: how other meshes cut them, or what they come
of that others cut."""


def cuts_of(x: torch.Tensor) -> Layout | Lost | None:
    """Return how other meshes cut a tensor, unless it has been resized since."""
    found = cut_over.get(x)
    is_other = isinstance(found, Layout) and tuple(x.shape) != found.local_shape()
    return None if is_other else found


def cut_beside(x: torch.Tensor, lines: frozenset[Line]) -> Layout | Lost | None:
    """Return how a tensor is cut along other lines of ranks than these; None where it is not."""
    found: Any = cuts_of(x) or known_of(x)
    if isinstance(found, Lost):
        cuts = cuts_along_others(found.layout, lines)
        return None if cuts is None else Lost(cuts)
    if type(found) is Placed:
        found = None if found.parts else found.layout
    return cuts_along_others(found, lines) if isinstance(found, Layout) else None


@lru_cache(maxsize=4096)
def cuts_along_others(layout: Layout, lines: frozenset[Line]) -> Layout | None:
    """Return what a layout cuts along other lines than these; None where that is nothing.

    Nor is it told where both cut one axis.
    """
    mesh: Any = layout.mesh
    own, placements = lines_of(layout)[0], layout.placements
    cutting = {i: p.axis for i, p in enumerate(placements) if i in own and type(p) is Shard}
    kept = [i for i in cutting if not any(len({*own[i]} & {*line}) > 1 for line in lines)]
    axes = {cutting[i] for i in kept}
    if not kept or any(axis in axes for i, axis in cutting.items() if i not in kept):
        return None
    over = mesh if len(kept) == mesh.ndim else mesh[tuple(mesh.axis_names[i] for i in kept)]
    shape = [n if i in axes else 1 for i, n in enumerate(layout.shape)]
    split = {axis: layout.partition(axis).offsets for axis in axes}
    order = layout.shard_order if over is mesh else None
    cuts = [placements[i] for i in kept]
    return Layout(over, cuts, shape, shard_order=order, boundaries=split)


def keep_cuts(source: torch.Tensor, result: torch.Tensor, cuts: Layout | Lost | None) -> None:
    """Remember how other meshes cut a result, whose axes are those of what it was made of."""
    if isinstance(cuts, Lost):
        if not is_placed_along(result, cuts.layout):
            cut_over.set(result, cuts)
        return
    axes = () if cuts is None else cut_axes(cuts)
    if cuts is None or axes[-1] >= result.ndim or is_placed_along(result, cuts):
        return
    if all(result.shape[axis] == source.shape[axis] for axis in axes):
        cut_over.set(result, relabel(cuts, {axis: axis for axis in axes}, result.shape))


def is_placed_along(x: torch.Tensor, layout: Layout) -> bool:
    """Tell whether it is known how a tensor is placed along lines of ranks of a layout."""
    placed = own_placed(x)
    return placed is not None and not lines_known(layout).isdisjoint(lines_known(placed.layout))


whole_over: TensorMap[tuple[Any, ...]] = TensorMap()
"""Beside parameters, or blocks of them, over which meshes all ranks have what has no style."""


def note_whole(tensor: torch.Tensor, meshes: tuple[Any, ...], reduced_over: Any = None) -> None:
    """Say of a parameter that all ranks of meshes have it, unless more is known of it.

    What each rank makes of it beside shards gives it a part of the gradient: an error, but where
    the parts are ``reduced_over`` a mesh that has these ranks.
    """
    known = _beside.get(tensor)
    if known is not None and type(known) is not Derived:
        return
    left = _whole_over(meshes, reduced_over)
    if not left:
        _beside.discard(tensor)
        derived_over.discard(tensor)
    elif known is None or tuple([one.source.layout.mesh for one in derived_of(tensor)]) != left:
        every = [Placed(Layout(mesh, [Replicate()] * mesh.ndim, tensor.shape)) for mesh in left]
        note(tensor, Derived(every[0]))
        keep_over_others(tensor, [*map(Derived, every[1:])])


@lru_cache(maxsize=4096)
def _whole_over(meshes: tuple[Any, ...], reduced_over: Any) -> tuple[Any, ...]:
    """Return the meshes of those that nothing reduces over, each of some ranks of its own."""
    reduced = set() if reduced_over is None else set(reduced_over.flat_ranks)
    found: dict[Any, frozenset[Line]] = {}
    for mesh in meshes:
        lines = lines_of_mesh(mesh)
        if not (reduced.issuperset(mesh.flat_ranks) or lines <= frozenset().union(*found.values())):
            found[mesh] = lines
    return tuple(found)


def lines_of_mesh(mesh: Any) -> frozenset[Line]:
    return lines_known(Layout(mesh, [Replicate()] * mesh.ndim, ()))


def is_derived(tensor: torch.Tensor, mesh: DeviceMesh) -> bool:
    """Tell whether it comes of what ranks of a mesh have alike, which needs the gradients of all.

    Of what another mesh's ranks have it does not matter.
    """
    if not tensor.requires_grad or not torch.is_grad_enabled():
        return False
    lines = lines_of_mesh(mesh)
    found = (derived_over.get(tensor) or ()) if is_placed(tensor) else derived_of(tensor)
    for source, *_ in found:
        known = () if source.partial_grad else lines_known(source.layout)
        if any(len({*one} & {*other}) > 1 for one in lines for other in known):
            return True
    return False


def gradient_source(tensor: torch.Tensor) -> Placed | None:
    """Return how a tensor is placed, or what it was computed from that all ranks have."""
    found = _beside.get(tensor)
    if type(found) is Derived:
        return found.source
    return found if type(found) is Placed else None


@disable_compile
def hand_on(source: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Return a result that was computed item by item, placed as its source where that is known."""
    placed = own_placed(source)
    if placed is not None and result.shape == source.shape and not is_placed(result):
        place(result, *placed)
    return result


# --- shapes ---------------------------------------------------------------------------------------


def check_mesh(mesh: Any) -> None:
    """Raise if this is no mesh of processes, or holds not this one."""
    if not isinstance(mesh, DeviceMesh):
        raise ArgumentTypeError(
            f"expected a DeviceMesh, not {type(mesh).__name__}; make one by da.init_device_mesh"
            f"{suggest_for_torch(mesh)}"
        )
    if mesh.coordinate is None:
        whole = mesh
        while whole.parent is not None:
            whole = whole.parent
        raise MeshError(
            f"this process (rank {mesh.rank}) is not in {mesh}; call this on the ranks of the mesh "
            f"alone, or start with mpiexec -n {whole.size}"
        )


def layout_from(
    tensor: torch.Tensor,
    mesh: DeviceMesh,
    placements: Sequence[Placement],
    shape: Sequence[int] | None = None,
) -> Layout:
    """Return the layout of a block; collective where an axis is sharded and no shape is given."""
    local = tuple(tensor.shape)
    if shape is not None:
        layout = Layout(mesh, placements, shape)
        check_block(local, layout)
        return layout
    draft = Layout(mesh, placements, local)
    if not is_sharded(draft):  # a block's shape is the global one
        return draft
    return infer_layout(mesh, draft.placements, _told_shapes(draft, tensor.dtype))


def check_block(local: Shape, layout: Layout) -> None:
    """Raise if a block of this shape is not this rank's one of a layout."""
    if layout.local_shape() != local:
        raise LayoutError(
            f"a block of shape {local} was passed where {layout} gives this rank "
            f"{layout.local_shape()}; leave shape= out for blocks of other sizes"
        )


@lru_cache(maxsize=4096)
def cut_axes(layout: Layout) -> tuple[int, ...]:
    """Return the array axes that some mesh axis cuts."""
    return tuple(sorted({p.axis for p in layout.placements if type(p) is Shard}))


@lru_cache(maxsize=4096)
def lines_of(layout: Layout) -> tuple[dict[int, Line], frozenset[int]]:
    """Return the lines of a layout's mesh axes of several ranks, and which are replicated."""
    mesh: Any = layout.mesh
    axes = [i for i, size in enumerate(mesh.shape) if size > 1]
    lines = {i: mesh[mesh.axis_names[i]].flat_ranks for i in axes}
    return lines, frozenset(i for i in axes if type(layout.placements[i]) is Replicate)


def lines_known(layout: Layout) -> frozenset[Line]:
    """Return the lines of ranks along which a layout tells something."""
    return frozenset(lines_of(layout)[0].values())


def relabel(layout: Layout, axes: Mapping[int, int], local: Iterable[int]) -> Layout:
    """Return a layout whose cut axes have moved to others, of blocks of a ``local`` shape."""
    return _relabel(layout, tuple(axes.items()), tuple(local))


@lru_cache(maxsize=4096)
def _relabel(layout: Layout, pairs: tuple[tuple[int, int], ...], local: tuple[int, ...]) -> Layout:
    axes = dict(pairs)
    if local == layout.local_shape() and all(old == new for old, new in pairs):
        return layout
    shape = list(local)
    boundaries = {}
    for old, new in axes.items():
        shape[new] = layout.shape[old]
        boundaries[new] = layout.partition(old).offsets
    placements = [Shard(axes[p.axis]) if type(p) is Shard else p for p in layout.placements]
    return Layout(
        layout.mesh,
        placements,
        shape,
        shard_order=layout.shard_order,
        boundaries=boundaries or None,
    )


@lru_cache(maxsize=4096)
def divided_axes(layout: Layout) -> frozenset[int]:
    """Return the array axes of which several ranks have shards."""
    both = zip(layout.placements, layout.mesh.shape, strict=True)
    return frozenset(p.axis for p, size in both if type(p) is Shard and size > 1)


def is_sharded(layout: Layout) -> bool:
    """Tell whether ranks hold different blocks."""
    return bool(divided_axes(layout))


def _told_shapes(draft: Layout, dtype: torch.dtype) -> tuple[Shape, ...]:
    """Return the shape of every rank's block, in the order of the mesh."""
    number, what = _shape_token(draft.mesh, draft.placements, draft.ndim, dtype)
    mesh: Any = draft.mesh
    comm = mesh.communicator()
    told = np.array(draft.shape, np.int64)
    with pause_logs():
        if comm.reaches_all():
            with comm.views(told, number, what) as views:
                return tuple([tuple(view.tolist()) for view in views])
        everyone = np.empty(comm.size * told.size, np.int64)
        comm.all_gather(told, everyone, token=number, what=what)
    return tuple(tuple(row) for row in everyone.reshape(comm.size, -1).tolist())


@lru_cache(maxsize=1024)
def _shape_token(
    mesh: Any, placements: tuple[Placement, ...], ndim: int, dtype: torch.dtype
) -> tuple[int, str]:
    """Return the token of an exchange of shapes, and what it says."""
    what = f"a {dtype} block with {ndim} axes, placed as {placements} on {mesh}"
    return token("shapes", what, mesh.flat_ranks), what
