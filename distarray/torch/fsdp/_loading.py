"""State dicts that are loaded into parts of a sharded module, by torch's ``load_state_dict``."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from torch import nn

from distarray.torch._modules import place_parameters
from distarray.torch.fsdp._parameter import ShardedParameter


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


def _place(module: nn.Module, _: Any) -> None:
    """Let `layout_of` know parameters that ``assign=True`` has made."""
    place_parameters(module)


def watch_loading(group: Shower) -> None:
    """Let shares be loaded into each module that holds some, also by itself."""
    hide = _Hide(group)
    holders = {id(module): module for m in group.members for module, _ in m.slots}
    for module in holders.values():
        module.register_load_state_dict_pre_hook(hide)
        module.register_load_state_dict_post_hook(_place)
