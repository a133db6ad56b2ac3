"""State dicts that are loaded into parts of a sharded module, by torch's ``load_state_dict``."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import nn

from distarray.torch.fsdp._parameter import ShardedParameter, is_share


class Shower(Protocol):
    """What lets modules hold wholes."""

    members: list[ShardedParameter]

    def hide(self) -> None:
        """Let modules hold the shares again."""


class _Hide:
    """A hook before loading: what is loaded goes into shares, where wholes are shown."""

    def __init__(self, group: Shower | None) -> None:
        self._group = None if group is None else weakref.ref(group)

    def __call__(self, *_: Any) -> None:
        group = None if self._group is None else self._group()
        if group is not None:
            group.hide()

    def __deepcopy__(self, _: Any) -> _Hide:
        return _Hide(None)  # copies of a part are not sharded

    def __reduce__(self) -> Any:
        return _Hide, (None,)


_WHOLES = (
    "sharded parameters are this rank's shares here, and what is to be loaded has another shape; "
    "for whole tensors use dt.load_state_dict(model, state), for checkpoints da.checkpoint.load"
)


def _explain(module: nn.Module, state: Mapping[str, Any], prefix: str, *rest: Any) -> None:
    """Say, before torch names the shapes that differ, what loads whole tensors."""
    messages: list[str] = rest[-1]
    for name, own in module.named_parameters(recurse=False):
        given = state.get(prefix + name)
        if is_share(own) and isinstance(given, torch.Tensor) and given.shape != own.shape:
            if _WHOLES not in messages:
                messages.insert(0, _WHOLES)
            return


def watch_loading(group: Shower) -> None:
    """Let shares be loaded into each module that holds some, also by itself."""
    hide = _Hide(group)
    holders = {id(module): module for m in group.members for module, _ in m.slots}
    for module in holders.values():
        module.register_load_state_dict_pre_hook(hide)
        module.register_load_state_dict_pre_hook(_explain)
