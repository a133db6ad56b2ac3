"""Which kind of backward pass is under way: one for all leaves, or one that was asked for some."""

from __future__ import annotations

import torch

from distarray.comm import _log

ANCHOR = torch.zeros((), requires_grad=True, device="cpu")
"""A leaf for graphs to hang on: only ``backward()`` for all leaves reaches it."""


def is_under_way() -> bool:
    """Tell whether this thread goes backward."""
    return bool(torch._C._current_graph_task_id() != -1)


_log.helpers.append(is_under_way)


def is_for_all_leaves() -> bool:
    """Tell whether the pass under way, of a graph that hangs on the anchor, is ``backward()``.

    It is not inside of ``torch.autograd.grad`` and ``backward(inputs=...)``.
    """
    anchor = torch.autograd.graph.get_gradient_edge(ANCHOR).node
    return bool(torch._C._will_engine_execute_node(anchor))
