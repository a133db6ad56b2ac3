"""Modules in checkpoints: under the names and shapes that they have in one process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from distarray.checkpoint import Adapter, Finish, LoadPlan, Node, SavePlan, join_name
from distarray.errors import ArgumentError
from distarray.torch._layouts import own_placed
from distarray.torch.state._checkpoint_tensors import fill_tensor, save_tensor
from distarray.torch.state._state_dict import kept

_EXTRA = "_extra_state"


class Modules(Adapter):
    """Modules, parallelized in any way or not at all."""

    def save(self, value: nn.Module, plan: SavePlan, name: str) -> Node:
        """Save parameters, persistent buffers and extra states; a shared one once."""
        pairs = []
        for key, one in kept(value).items():
            full = join_name(name, key)
            if isinstance(one, torch.Tensor):
                pairs.append([key, save_tensor(one, own_placed(one), plan, full)])
            else:
                pairs.append([key, plan.node(one, full)])
        return {"object": type(value).__qualname__, "of": {"dict": pairs}}

    def load(self, value: nn.Module, plan: LoadPlan, name: str) -> Finish:
        """Fill parameters and buffers in place."""
        own = {id(one) for one in (*value.parameters(), *value.buffers())}
        extra: list[tuple[nn.Module, Finish]] = []
        found = kept(value)
        names: dict[int, list[str]] = {}
        for key, one in found.items():
            names.setdefault(id(one), []).append(join_name(name, key))
        for key, one in found.items():
            full = join_name(name, key)
            owner = key.rpartition(".")[0]
            if key.rpartition(".")[2] == _EXTRA:
                made = plan.saved_value(full)
                if made is not None:
                    extra.append((value.get_submodule(owner), made))
            elif id(one) not in own:
                raise ArgumentError(
                    f"{full} is no parameter or buffer of the {type(value).__name__}, but made "
                    "by a hook of its state_dict(), so that it cannot be filled; load by "
                    "dt.load_state_dict"
                )
            else:
                # Of the names of a shared tensor one suffices; the first that is there counts.
                there = [other for other in names[id(one)] if plan.has(other)]
                if full == (there or names[id(one)])[0]:
                    fill_tensor(one, own_placed(one), plan, full)
                elif full in there:
                    plan.tie(full, there[0])

        def finish() -> Any:
            for module, made in extra:
                module.set_extra_state(made())
            return value

        return finish


def modules_in(state: Any, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of a state, with their names."""
    if isinstance(state, nn.Module):
        yield name, state
    elif isinstance(state, Mapping):
        for key, value in state.items():
            yield from modules_in(value, join_name(name, key))
    elif isinstance(state, (list, tuple)):
        for index, value in enumerate(state):
            yield from modules_in(value, join_name(name, index))
