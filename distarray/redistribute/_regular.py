"""Recognise what a change of layout is: nothing to send, a collective's pattern, or neither."""

from __future__ import annotations

from typing import Any

import numpy as np

from distarray.layout import Layout, Partial, Replicate, Shard
from distarray.redistribute._copies import route
from distarray.redistribute._route import real_cuts, same_mesh, shared_cuts
from distarray.redistribute._steps import (
    AllGatherStep,
    AllToAllStep,
    DirectAllReduceStep,
    ExchangeStep,
    LocalStep,
    ReduceScatterStep,
    reduced_dtype,
)


def step_between(src: Layout, dst: Layout, dtype: np.dtype[Any]) -> LocalStep | ExchangeStep:
    """Return the step that turns ``src`` into ``dst``, with the most telling name.

    Both layouts have one shape; ``dst`` has no ``Partial`` that ``src`` lacks.
    """
    if not same_mesh(src, dst):
        return ExchangeStep(src, dst, dtype)
    axes = range(src.ndim)
    shared = [shared_cuts(src, dst, axis) for axis in axes]
    before = [len(real_cuts(src, axis)) for axis in axes]
    after = [len(real_cuts(dst, axis)) for axis in axes]
    reduced = [
        p.op
        for i, (p, q) in enumerate(zip(src.placements, dst.placements, strict=True))
        if type(p) is Partial
        and p is not q
        and (src.mesh.shape[i] > 1 or reduced_dtype(p.op, dtype) != dtype)
    ]
    if not reduced and shared == before:
        return LocalStep("relabel" if shared == after else "slice", src, dst, dtype)
    return _named(src, dst, shared == before, shared == after)(src, dst, dtype)


def _named(src: Layout, dst: Layout, cuts_more: bool, cuts_less: bool) -> type[ExchangeStep]:
    """Return the class of an exchange on one mesh.

    ``cuts_more`` says that every new block is a part of an old one, ``cuts_less`` the reverse.
    """
    shape = src.mesh.shape
    changes = [
        (p, q)
        for i, (p, q) in enumerate(zip(src.placements, dst.placements, strict=True))
        if p is not q and shape[i] > 1
    ]
    if not changes:
        return ExchangeStep
    if cuts_less and all(type(p) is Shard and type(q) is Replicate for p, q in changes):
        return AllGatherStep
    if cuts_more and all(type(p) is Partial and type(q) is Shard for p, q in changes):
        return ReduceScatterStep
    if cuts_more and cuts_less and all(type(q) is Replicate for _, q in changes):
        return DirectAllReduceStep
    if len(changes) == 1 and all(type(p) is Shard and type(q) is Shard for p, q in changes):
        crossed = route(src, dst).mesh_axes
        return AllToAllStep if len(crossed) == 1 else ExchangeStep
    return ExchangeStep
