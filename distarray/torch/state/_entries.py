"""Entries of states: what a module and an optimizer keep, under which names, and how it is placed.

State dicts, states of optimizers and checkpoints see modules and optimizers through this alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import nn
from torch.optim import Optimizer

from distarray.checkpoint import join_name
from distarray.comm import DeviceMesh, all_gather_checked, list_first
from distarray.core import check_position, lift
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    MeshError,
    MismatchError,
    StateDictError,
)
from distarray.layout import Layout, Replicate
from distarray.torch import _modules
from distarray.torch._full import gather_on_all, gather_on_one, scatter_from
from distarray.torch._layouts import Placed, is_sharded, own_placed
from distarray.torch._shards import block_of

T = TypeVar("T")


class Entry(NamedTuple):
    """One value of a state; `placed` tells how a tensor is a block, None where ranks have all."""

    value: Any
    placed: Placed | None


class ModuleState:
    """The parameters, persistent buffers and extra states of a module.

    ``entries`` has them by their names in one process, in the order of torch's state dict: the
    parameters and buffers themselves, tied ones under every name.
    """

    def __init__(self, module: nn.Module) -> None:
        if not isinstance(module, nn.Module):
            raise ArgumentTypeError(f"expected a torch.nn.Module, not {type(module).__name__}")
        for child in module.modules():
            _modules.place_parameters(child)
        found: Any = module.state_dict(keep_vars=True)
        self.module = module
        self.metadata: dict[str, Any] | None = getattr(found, "_metadata", None)
        self.entries = {
            name: Entry(value, own_placed(value) if isinstance(value, torch.Tensor) else None)
            for name, value in found.items()
        }

    @property
    def meshes(self) -> list[Any]:
        """The meshes that parameters are placed on, in their order."""
        placed = (entry.placed for entry in self.entries.values())
        return list(dict.fromkeys(one.layout.mesh for one in placed if one is not None))


class OptimizerState:
    """What an optimizer keeps of parameters, by the names that these have in modules.

    Names are those within the first module that has all of them; with the module's own where
    several do.
    """

    def __init__(self, optimizer: Optimizer, modules: Iterable[tuple[str, nn.Module]]) -> None:
        self.optimizer = optimizer
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        wanted, kinds = set(held), []
        known: dict[torch.Tensor, dict[str, str]] = {}
        for path, module in modules:
            kinds.append(type(module).__name__)
            for child in module.modules():
                _modules.place_parameters(child)
            for name, parameter in module.named_parameters():
                if parameter in wanted:
                    known.setdefault(parameter, {}).setdefault(path, name)
        unknown = sum(parameter not in known for parameter in held)
        if unknown:
            raise ArgumentError(
                f"{unknown} of the {len(held)} parameters of the {type(optimizer).__name__} are "
                f"none of the {' and '.join(kinds) or 'state'}'s; pass the module that it was made "
                "for, beside it in a state that is saved (parallelize before the optimizer is made "
                "where that replaces parameters)"
            )
        common = set[str]().union(*known.values()).intersection(*known.values())
        self.names = {
            p: known[p][min(common)] if common else join_name(*next(iter(known[p].items())))
            for p in held
        }

    def entries(self) -> Iterator[tuple[torch.Tensor, str, Any, Entry]]:
        """Yield parameter, its name, key and value of all that is kept."""
        for parameter, name in self.names.items():
            placed = own_placed(parameter)
            for key, value in self.optimizer.state.get(parameter, {}).items():
                own = None
                if placed is not None and isinstance(value, torch.Tensor) and value.ndim:
                    if value.shape == parameter.shape:
                        own = placed
                    elif is_sharded(placed.layout):
                        raise ArgumentError(
                            f"the {type(self.optimizer).__name__} keeps {key!r} of shape "
                            f"{tuple(value.shape)} for {name}, whose block has shape "
                            f"{tuple(parameter.shape)}: how it is cut is not known; use an "
                            "optimizer whose states have the shape of the parameter"
                        )
                yield parameter, name, key, Entry(value, own)

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The parameter groups, with names for parameters."""
        return [
            {**group, "params": [self.names[p] for p in group["params"]]}
            for group in self.optimizer.param_groups
        ]

    def differing_groups(self, saved: Sequence[Sequence[str]]) -> str:
        """Return how saved groups of names differ from those here; "" where they do not."""
        here = [group["params"] for group in self.groups]
        if list(map(set, saved)) == list(map(set, here)):
            return ""
        return f"parameter groups {[list(one) for one in saved]}, where the optimizer has {here}"

    def match_groups(self, saved: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return for each group the saved one with its parameters, or itself."""
        found: list[Mapping[str, Any]] = []
        for i, group in enumerate(self.groups):
            sharing = [one for one in saved if not set(group["params"]).isdisjoint(one["params"])]
            if len(sharing) > 1:
                raise StateDictError(
                    f"group {i} of the optimizer has parameters of {len(sharing)} groups of the "
                    f"state, {[one['params'] for one in sharing]}, so that it is not known whose "
                    "hyperparameters it takes; make the optimizer with these groups, and further "
                    "ones for new parameters"
                )
            found.append(sharing[0] if sharing else group)
        return found

    def load(
        self,
        states: Mapping[torch.Tensor, dict[Any, Any]],
        saved: Sequence[Mapping[str, Any]] | None,
    ) -> None:
        """Load states and groups as torch does; parameters of no saved group keep their states.

        Others of which ``states`` has none lose theirs. Saved groups have names for parameters;
        None leaves those of the optimizer.
        """
        groups = self.groups if saved is None else list(saved)
        names = {name for group in saved or () for name in group["params"]}
        if self.differing_groups([group["params"] for group in groups]):
            groups = self.match_groups(groups)
        index = {parameter: i for i, parameter in enumerate(self.names)}
        own = []
        for group, here in zip(groups, self.optimizer.param_groups, strict=True):
            one = {key: value for key, value in group.items() if key != "param_names"}
            own.append({**one, "params": [index[p] for p in here["params"]]})
        kept = {p: one for p, one in self.optimizer.state.items() if self.names.get(p) not in names}
        loaded = {index.get(p, p): dict(one) for p, one in {**kept, **states}.items()}
        self.optimizer.load_state_dict({"state": loaded, "param_groups": own})


# --- between blocks and whole tensors ------------------------------------------------------------


def quote(names: Iterable[str]) -> str:
    """Return the first of some names, and how many more there are."""
    return list_first(list(map(repr, names)))


class Holder:
    """Who has whole tensors, of a state that is saved or loaded: all ranks, or one of a mesh.

    The user's argument ``keyword`` names the position of the one; None is for all ranks. Where
    ``mesh`` is None that of the state is meant.
    """

    def __init__(
        self, state: ModuleState, position: int | None, mesh: DeviceMesh | None, keyword: str
    ) -> None:
        self._mesh: Any = mesh
        self._rank: int | None = None
        self.is_here = True  # this rank has them
        if position is not None:
            if mesh is None:
                if len(state.meshes) != 1:
                    on = ", ".join(map(str, state.meshes)) or "no mesh"
                    raise ArgumentError(
                        f"{keyword}={position} is a position in a mesh, but the module's "
                        f"parameters are on {on}; pass mesh="
                    )
                (self._mesh,) = state.meshes
            self._rank = self._mesh.flat_ranks[check_position(position, self._mesh, keyword)]
            self.is_here = self._mesh.rank == self._rank
        self._meshes = state.meshes if self._mesh is None else [self._mesh]
        self.is_one = position is not None

    def gather(self, entry: Entry, *, cpu: bool) -> Any:
        """Return a value as one process has it (collective); anything where it is not had."""
        value, placed = entry
        if not isinstance(value, torch.Tensor):
            return value
        whole: torch.Tensor | None = value.detach()
        if placed is not None and is_sharded(placed.layout):
            if self._rank is None:
                whole = gather_on_all(value.detach(), placed)
            else:
                whole = gather_on_one(value.detach(), placed, self._rank)
        return whole.cpu() if cpu and whole is not None else whole

    def agree(
        self,
        what: str,
        options: dict[str, Any],
        describe: Callable[[], T],
        names: Callable[[T], list[str]],
    ) -> T:
        """Return what the source says of its state (collective); raise on all ranks if one does.

        ``names`` tells what must be in the state of every rank, of parameters that are placed.
        """
        options = {**options, "source": self._rank}

        def say() -> tuple[Any, T | None]:
            return options, describe() if self.is_here else None

        told = None if self._meshes else describe()
        for mesh in self._meshes:
            said = all_gather_checked(mesh, what, say)
            told_options = [other for other, _ in said]
            differ = f"{what} got different options on different ranks"
            _modules.check_alike(differ, told_options, mesh, "pass the same everywhere")
            at = mesh.flat_ranks.index(mesh.rank if self._rank is None else self._rank)
            told = said[at][1]
            if self._rank is None:
                has = [set(names(cast(T, one))) for _, one in said]
                lack = [sorted(set().union(*has) - one) for one in has]
                if any(lack):
                    rank = next(i for i, one in enumerate(lack) if one)
                    raise MismatchError(
                        f"{what} got different states on different ranks: that of rank "
                        f"{mesh.communicator().world_ranks[rank]} lacks {quote(lack[rank])}; "
                        "pass the same everywhere, or that of one rank with src_data_rank="
                    )
        assert told is not None
        return told

    def scatter(
        self,
        given: torch.Tensor | None,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        placed: Placed | None,
        device: Any,
        copied: bool,
    ) -> torch.Tensor:
        """Return this rank's part of a whole tensor (collective where one rank has it).

        That is of memory of its own, unless it is not ``copied``, where all ranks have the whole.
        """
        if self._rank is None:
            assert given is not None
            part = given.detach() if placed is None else block_of(given.detach(), placed)
            return part.clone(memory_format=torch.contiguous_format) if copied else part
        if placed is None:
            placed = Placed(Layout(self._mesh, [Replicate()] * self._mesh.ndim, shape))
        over: Any = placed.layout.mesh
        if over is not self._mesh:  # all ranks along its further axes have the same
            if self._mesh.axes_of(over) is None:
                raise MeshError(
                    f"{self._mesh} does not contain {over}, on which a parameter is placed; pass "
                    "the mesh from which that was taken"
                )
            placed = placed._replace(layout=lift(placed.layout, self._mesh))
        like = torch.empty(0, dtype=dtype, device=device)
        return scatter_from(given if self.is_here else None, placed, self._rank, like)

    def broadcast(self, value: Any) -> Any:
        """Return a value that is no tensor, of the source (collective where that is one rank)."""
        if self._rank is None:
            return value
        return self._mesh.communicator().broadcast_object(
            value if self.is_here else None, self._mesh.flat_ranks.index(self._rank)
        )


def receiver_of(state: ModuleState, ranks: str | int, mesh: DeviceMesh | None) -> Holder:
    """Return who gets whole tensors."""
    if ranks != "all" and not isinstance(ranks, int):
        raise ArgumentTypeError(f"ranks={ranks!r}: 'all', or the position of one rank in the mesh")
    return Holder(state, ranks if isinstance(ranks, int) else None, mesh, "ranks")
