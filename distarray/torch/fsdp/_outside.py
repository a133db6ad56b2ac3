"""Calls of parts of a sharded module outside of its own, where parameters are shares: refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from distarray.errors import LayoutError
from distarray.torch._modules import located
from distarray.torch.fsdp._parameter import ShardedParameter, is_share


class _Refuse:
    """A hook before forward: what a module holds then must be whole."""

    def __init__(self, group: str) -> None:
        self._group = group

    def __call__(self, module: nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling():  # inside of calls that have been looked at
            return
        # By the dictionary's own method: reading one in a recomputation makes it whole, if later.
        held = dict.values(module._parameters)
        if not any(p is not None and is_share(p) for p in held):
            return
        if torch._C._current_graph_task_id() != -1:
            return
        with located(module):
            raise LayoutError(
                f"it is called outside of the call of {self._group}, which fully_shard was applied "
                "to: its parameters are this rank's shares there. Call it inside of that module's "
                "forward, or of a method that dt.register_fsdp_forward_method knows; or apply "
                "fully_shard to it first, by itself; or unshard() that module before and reshard() "
                "it afterwards"
            )


def refuse_outside(members: Sequence[ShardedParameter], group: str) -> None:
    """Refuse calls of the modules that hold these parameters while they are shares."""
    refuse = _Refuse(group)
    for module in {id(module): module for m in members for module, _ in m.slots}.values():
        module.register_forward_pre_hook(refuse, prepend=True)
