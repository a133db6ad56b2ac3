"""Kinds of backward passes: for all leaves, or for those that were asked for."""

from __future__ import annotations

import torch

from distarray.comm import register_worker_test
from distarray.torch._compat import is_going_backward, will_execute

ANCHOR = torch.zeros((), requires_grad=True, device="cpu")
"""A leaf for graphs to hang on: only ``backward()`` for all leaves reaches it."""


register_worker_test(is_going_backward)


def is_for_all_leaves() -> bool:
    """Tell whether the pass under way, of a graph that hangs on the anchor, is ``backward()``.

    It is not inside of ``torch.autograd.grad`` and ``backward(inputs=...)``.
    """
    anchor = torch.autograd.graph.get_gradient_edge(ANCHOR).node
    return will_execute(anchor)
