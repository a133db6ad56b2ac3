"""Norms of tensors that are cut among ranks, by one all-reduce of a number, and clipping."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from distarray.comm import Purpose, list_first
from distarray.core import common_mesh, lift
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    LayoutError,
    MeshError,
    NonFiniteError,
)
from distarray.layout import Layout, Partial, Replicate, Shard
from distarray.redistribute import redistribute_local
from distarray.torch._compat import norms_of, scale_all
from distarray.torch._layouts import is_sharded, layout_of
from distarray.torch._shard_records import name_of

_R = Replicate()


class Block(NamedTuple):
    """A tensor's values on this rank, None where it has none, its layout, if any, and its name."""

    values: torch.Tensor | None
    layout: Layout | None
    name: str = ""


@torch.no_grad()
def get_total_norm(
    tensors: torch.Tensor | Iterable[torch.Tensor],
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    """Return the norm of all tensors as one vector, as one process would have it (collective).

    Parameters
    ----------
    tensors
        Parameters, their gradients or other tensors, with a layout or replicated.
    norm_type, error_if_nonfinite, foreach
        As for `clip_grad_norm_`.

    Examples
    --------
    >>> def norm():
    ...     x = torch.tensor([3.0, 4.0])
    ...     return dt.get_total_norm([dt.distribute_tensor(x, da.default_mesh(), [da.Shard(0)])])
    >>> da.testing.simulate(2, norm)
    [tensor(5.), tensor(5.)]
    """
    del foreach
    blocks = [Block(t, layout_of(t)) for t in list_distinct(tensors)]
    return total_norm(blocks, float(norm_type), error_if_nonfinite, "get_total_norm")


@torch.no_grad()
def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    """Scale gradients down, in place, so that their norm is not above a maximum (collective).

    The norm is that of all gradients as one vector, of the model as one process has it: blocks
    count once however they are replicated. One all-reduce of a single number where any parameter is
    sharded, over the mesh axes that shard; none otherwise.

    Parameters
    ----------
    parameters
        The same on every rank, with whatever layouts. Those that `layout_of` knows nothing of are
        taken as replicated. What has a gradient on one rank has one on all.
    max_norm
        Maximum of the norm.
    norm_type
        p of the p-norm, such as 2.0 or ``float("inf")``; not 0.
    error_if_nonfinite
        Raise, on every rank, where the norm is not finite; else the gradients become NaN or 0.
    foreach
        For compatibility: tensors of one dtype and device are always taken together.

    Returns
    -------
    torch.Tensor
        The norm before scaling, the same on every rank; of float32 where gradients are of lower
        precision, in which norms are computed then.

    Raises
    ------
    NonFiniteError
        See ``error_if_nonfinite``.
    MismatchError
        The ranks pass parameters of different shapes or layouts, or other options; or one has no
        gradient of a parameter of which others have one, so that no norm would be that of one
        process.

    Examples
    --------
    >>> def clip():
    ...     weight = dt.distribute_tensor(torch.zeros(2), da.default_mesh(), [da.Shard(0)])
    ...     weight.grad = torch.tensor([3.0]) + da.default_mesh().rank
    ...     return dt.clip_grad_norm_([weight], 1.0), weight.grad
    >>> da.testing.simulate(2, clip)
    [(tensor(5.), tensor([0.6000])), (tensor(5.), tensor([0.8000]))]
    """
    del foreach
    found = list_distinct(parameters)
    max_norm = float(max_norm)
    blocks = []
    for i, p in enumerate(found):
        layout = layout_of(p)
        shape = tuple(p.shape) if layout is None else layout.shape  # alike on all ranks
        name = f"parameter {i} {name_of(p)}of shape {shape}" if p.grad is None else ""
        blocks.append(Block(p.grad, layout, name))
    asked = f"clip_grad_norm_, {max_norm=}"
    total = total_norm(blocks, float(norm_type), error_if_nonfinite, asked)
    scale = (max_norm / (total + 1e-6)).clamp(max=1.0)  # what torch adds, lest it divide by zero
    gradients = [block.values for block in blocks if block.values is not None]
    for group in group_alike(gradients):
        scale_all(group, scale.to(group[0].device))
    return total


def list_distinct(tensors: Any) -> list[torch.Tensor]:
    """Return the tensors of an argument, each once."""
    found = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    for one in found:
        if not isinstance(one, torch.Tensor):
            raise ArgumentTypeError(
                f"expected tensors, such as model.parameters(), not a {type(one).__name__}"
            )
    return list({id(one): one for one in found}.values())


def total_norm(
    blocks: Sequence[Block], p: float, error_if_nonfinite: bool, asked: str
) -> torch.Tensor:
    """Return the norm of tensors that these are blocks of."""
    if p == 0 or math.isnan(p):
        raise ArgumentError(f"norm_type={p}: must be a number other than 0, or infinite")
    for block in blocks:
        if block.layout is not None and block.layout.has_partial:
            raise LayoutError(
                f"a tensor is placed as {block.layout}, whose norm its blocks do not tell; "
                "redistribute it to Replicate or Shard first"
            )
        if block.values is not None and block.values.layout is not torch.strided:
            raise ArgumentTypeError(
                f"a tensor of {block.values.layout} layout: only dense ones have norms here; use "
                "dense gradients, such as nn.Embedding(sparse=False) has"
            )
    value = _combine(blocks, p, asked)
    if not math.isinf(p):
        with np.errstate(all="ignore"):
            value = float(np.float64(value) ** (1 / p))
    given = [block.values for block in blocks if block.values is not None]
    dtype = torch.float32
    for values in given:
        dtype = torch.promote_types(dtype, values.dtype.to_real())
    device = given[0].device if given else None
    total = torch.tensor(value, dtype=torch.float64).to(device, dtype)
    if error_if_nonfinite and not math.isfinite(float(total)):
        raise NonFiniteError(
            f"the norm of order {p} of the gradients is {float(total)}, so that they cannot be "
            "clipped; pass error_if_nonfinite=False to scale them by it nevertheless"
        )
    return total


def _combine(blocks: Sequence[Block], p: float, asked: str) -> float:
    """Return the sum of p-th powers (maximum, minimum) over all elements of all ranks' blocks."""
    groups: dict[Any, list[Block]] = {}
    meshes = list(dict.fromkeys(mesh for b in blocks if (mesh := _mesh_of(b)) is not None))
    common: Any = None
    if meshes:
        with contextlib.suppress(MeshError):  # then each mesh is summed over by itself
            common = common_mesh(asked, meshes)
    for block in blocks:
        groups.setdefault(common or _mesh_of(block), []).append(block)
    parts = [
        _sum_powers([b.values for b in group], p)
        if mesh is None
        else _reduce_over(mesh, group, p, asked)
        for mesh, group in groups.items()
    ]
    return _join(parts, p)


def _reduce_over(mesh: Any, blocks: Sequence[Block], p: float, asked: str) -> float:
    """Reduce over those axes of a mesh that cut; of equal blocks one rank's counts."""
    cuts = [_cutting_axes(mesh, b) for b in blocks]
    axes = frozenset[int]().union(*cuts)
    counted = [
        b.values
        for b, cut in zip(blocks, cuts, strict=True)
        if all(mesh.coordinate[axis] == 0 for axis in axes - cut)
    ]
    value = np.array(_sum_powers(counted, p))
    shapes = [() if b.layout is None else b.layout.shape for b in blocks]
    placed = [(shape, sorted(cut)) for shape, cut in zip(shapes, cuts, strict=True)]
    digest = hashlib.blake2b(repr(placed).encode(), digest_size=8).hexdigest()
    missing = [b.name for b in blocks if b.values is None]
    lacking = f", with no gradient of {list_names(missing)}" if missing else ""
    purpose = Purpose.of(
        f"{asked}, norm_type={p}, {len(blocks)} tensors, placed as {digest}{lacking}"
    )
    op = "sum" if math.isfinite(p) else "max" if p > 0 else "min"
    src = Layout(mesh, [Partial(op) if i in axes else _R for i in range(mesh.ndim)], ())
    return float(redistribute_local(value, src, src.without_partial(), purpose=purpose))


def list_names(names: Sequence[str]) -> str:
    """Return names for a message, which tells long lists apart by a digest."""
    shown = list_first(names)
    if shown == ", ".join(names):
        return shown
    digest = hashlib.blake2b(repr(list(names)).encode(), digest_size=4).hexdigest()
    return f"{shown} ({digest})"


def _mesh_of(block: Block) -> Any:
    """Return the mesh that cuts a tensor; None where none does."""
    layout = block.layout
    return None if layout is None or not is_sharded(layout) else layout.mesh


def _cutting_axes(mesh: Any, block: Block) -> frozenset[int]:
    """Return the axes of a mesh that cut a tensor."""
    if block.layout is None or _mesh_of(block) is None:
        return frozenset()
    placements = lift(block.layout, mesh).placements
    return frozenset(axis for axis, one in enumerate(placements) if type(one) is Shard)


def _sum_powers(tensors: Sequence[torch.Tensor | None], p: float) -> float:
    """Return the sum of p-th powers of all elements (maximum, minimum of their absolute values)."""
    filled = [t.detach() for t in tensors if t is not None and t.numel()]
    norms: list[float] = []
    for group in group_alike(filled):
        dtype = torch.float32 if group[0].dtype.itemsize < 4 else None
        values = torch.stack(list(norms_of(group, p, dtype=dtype))).double()
        norms += (values if math.isinf(p) else values**p).tolist()
    return _join(norms, p)


def _join(parts: Sequence[float], p: float) -> float:
    """Return the sum of sums of powers (maximum, minimum)."""
    if math.isfinite(p):
        return float(np.sum(parts))
    if not parts:
        return 0.0 if p > 0 else math.inf
    return float(np.max(parts) if p > 0 else np.min(parts))


def group_alike(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Return tensors in groups of one device and dtype."""
    groups: dict[Any, list[torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    return list(groups.values())
