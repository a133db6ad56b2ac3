"""Load state dicts of whole tensors, from every rank or from one, or of this rank's blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from distarray.comm import DeviceMesh, all_gather_checked
from distarray.errors import ArgumentTypeError, MismatchError, StateDictError
from distarray.layout import Layout, Replicate
from distarray.torch import _modules, _wholes
from distarray.torch._buffers import check_travels
from distarray.torch._layouts import Placed, placed_of
from distarray.torch.parallel._parameters import block_of
from distarray.torch.state._share_records import difference, record_of, recorded
from distarray.torch.state._state_dict import kept, meshes, only_mesh

_SHOWN = 8  # names that a message lists


class IncompatibleKeys(NamedTuple):
    """Names that a state dict lacks, and names that the module lacks."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class _Told(NamedTuple):
    """What a state dict has, in a form that travels: shape and dtype of each tensor."""

    tensors: dict[str, tuple[tuple[int, ...], torch.dtype] | None]
    metadata: Any


def load_state_dict(
    module: nn.Module,
    state: Mapping[str, Any] | None,
    *,
    strict: bool = True,
    assign: bool = False,
    src_data_rank: int | None = None,
    mesh: DeviceMesh | None = None,
) -> IncompatibleKeys:
    """Load parameters and buffers under their names in one process (collective).

    Parameters
    ----------
    module
        Distributed or not, also materialised by ``to_empty`` or, with ``assign``, on meta.
    state
        Whole tensors, or this rank's blocks; one and the other may be mixed.
    strict
        Whether names must match exactly.
    assign
        Whether the module takes new parameters, of the dtype and device of the given tensors, and
        not only their values.
    src_data_rank
        Position in ``mesh`` of the only rank whose ``state`` counts: of whole tensors, of which
        each rank is sent its block, one module after another. With None every rank has its own.
    mesh
        For ``src_data_rank``; default: the mesh that all distributed parameters are placed on.

    Returns
    -------
    IncompatibleKeys
        ``missing_keys`` and ``unexpected_keys``, empty where ``strict``.

    Raises
    ------
    StateDictError
        Names do not match, or shapes are neither those of whole tensors nor of blocks; on every
        rank, and nothing has been loaded.
    """
    found = kept(module)
    source = None
    if src_data_rank is not None:
        mesh = only_mesh(found, mesh, f"src_data_rank={src_data_rank}")
        source = _wholes.number_of(mesh, src_data_rank)
    told, keys = _checked(module, found, state, strict, assign, source, mesh)
    wanted = _Wanted(found, state, told, source, mesh)
    tied = _tied(module)
    for prefix, child in module.named_modules():
        _load_own(child, prefix, wanted, assign)
    if assign:
        _tie(tied)
    return keys


# --- checks --------------------------------------------------------------------------------------


def _checked(
    module: nn.Module,
    found: Mapping[str, Any],
    state: Mapping[str, Any] | None,
    strict: bool,
    assign: bool,
    source: int | None,
    mesh: Any,
) -> tuple[_Told, IncompatibleKeys]:
    """Return what the state dict has, once all ranks have found it to fit."""
    options = strict, assign, source

    def say() -> tuple[Any, _Told | None]:
        if source is not None and mesh.rank != source:
            return options, None
        told = _told(state)
        _compare(module, found, told, strict, whole=source is not None)
        return options, told

    everyone = [mesh] if mesh is not None else meshes(found)
    if not everyone:
        told = say()[1]
    for one in everyone:
        said = all_gather_checked(one, "load_state_dict", say)
        if any(options != said[0][0] for options, _ in said):
            raise MismatchError(
                "load_state_dict got different options (strict, assign, source) on different "
                f"ranks: {[options for options, _ in said]}; pass the same everywhere"
            )
        at = one.flat_ranks.index(one.rank if source is None else source)
        told = said[at][1]
    assert told is not None
    return told, _compare(module, found, told, strict, whole=source is not None)


def _told(state: Any) -> _Told:
    if not isinstance(state, Mapping):
        raise ArgumentTypeError(f"state is a mapping of names, not {type(state).__name__}")
    tensors: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            check_travels(value)
            tensors[name] = tuple(value.shape), value.dtype
        else:
            tensors[name] = None
    return _Told(tensors, getattr(state, "_metadata", None))


def _compare(
    module: nn.Module, found: Mapping[str, Any], told: _Told, strict: bool, whole: bool
) -> IncompatibleKeys:
    """Return the names that do not match, or raise where they or the shapes must."""
    missing = [name for name in found if name not in told.tensors]
    unexpected = [name for name in told.tensors if name not in found]
    wrong = []
    if strict and missing:
        wrong.append(f"missing keys: {_listed(missing)}")
    if strict and unexpected:
        wrong.append(f"unexpected keys: {_listed(unexpected)}")
    for name, value in found.items():
        given = told.tensors.get(name)
        if given is None or not isinstance(value, torch.Tensor):
            continue
        block, placed = tuple(value.shape), placed_of(value)
        full = block if placed is None else placed.layout.shape
        if given[0] != full and (whole or given[0] != block):
            has = f"{name} has shape {given[0]}, where the module's has {full}"
            wrong.append(has if whole or block == full else f"{has} (this rank's block: {block})")
    for name, given in recorded(told.metadata):
        tensor = told.tensors.get(name)
        if tensor is not None and name in found:
            own = None if whole else record_of(placed_of(found[name]))
            share = difference(name, given, tensor[0], own)
            wrong += [] if share is None else [share]
    names = {name for name, _ in _own_names(module)}
    if odd := [name for name in found if name not in names]:
        wrong.append(
            f"hooks of the module rename {_listed(odd)}; load it before it is parallelized"
        )
    if wrong:
        raise StateDictError(
            f"the state dict does not fit the {type(module).__name__}: {'; '.join(wrong[:_SHOWN])}"
            + (f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else "")
            + ". Pass the state of this module, whole or as blocks"
            + (", or strict=False for names that differ" if missing or unexpected else "")
        )
    return IncompatibleKeys(missing, unexpected)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more


def _own_names(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield every name that a state dict may have, with the module that it is of."""
    for prefix, child in module.named_modules(remove_duplicate=False):
        start = f"{prefix}." if prefix else ""
        for name in (*child._parameters, *child._buffers, "_extra_state"):
            yield start + name, child


# --- loading -------------------------------------------------------------------------------------


class _Wanted:
    """Gives this rank's part of each tensor of a state dict."""

    def __init__(
        self,
        found: Mapping[str, Any],
        state: Mapping[str, Any] | None,
        told: _Told,
        source: int | None,
        mesh: Any,
    ) -> None:
        self._placed = {
            name: (None if not isinstance(value, torch.Tensor) else placed_of(value), value)
            for name, value in found.items()
        }
        self._state: Mapping[str, Any] = {} if state is None else state
        self.told = told
        self._source, self._mesh = source, mesh

    def own(self, name: str, copied: bool) -> Any:
        """Return what a parameter, buffer or extra state takes, `copied` where it is a view."""
        placed, value = self._placed[name]
        told = self.told.tensors[name]
        if self._source is not None:
            given = self._state[name] if self._mesh.rank == self._source else None
            if told is None:
                comm = self._mesh.communicator()
                return comm.broadcast_object(given, self._mesh.flat_ranks.index(self._source))
            if placed is None:
                placed = Placed(Layout(self._mesh, [Replicate()] * self._mesh.ndim, told[0]))
            device = "cpu" if value.device.type == "meta" else value.device
            like = torch.empty(0, dtype=told[1], device=device)
            return _wholes.handed_out(given, _wholes.over(placed, self._mesh), self._source, like)
        given = self._state[name]
        if placed is None or told is None or tuple(value.shape) == told[0]:
            return given
        block = block_of(given.detach(), placed)
        return block.clone(memory_format=torch.contiguous_format) if copied else block


def _load_own(module: nn.Module, prefix: str, wanted: _Wanted, assign: bool) -> None:
    """Load what a module itself has, and not its children; as torch does it."""
    start = f"{prefix}." if prefix else ""
    names = [start + name for name in (*module._parameters, *module._buffers, "_extra_state")]
    own = {
        name: wanted.own(name, assign)
        for name in names
        if name in wanted.told.tensors and name in wanted._placed
    }
    metadata = dict((wanted.told.metadata or {}).get(prefix, {}))
    if assign:
        metadata["assign_to_params_buffers"] = True
    errors: list[str] = []
    module._load_from_state_dict(own, start, metadata, False, [], [], errors)
    if errors:
        raise StateDictError(f"{prefix or 'the module'} refuses its state: {'; '.join(errors)}")
    _modules.place_parameters(module)


def _tied(module: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """Return under which names each parameter is, where these are several."""
    groups: dict[int, list[tuple[nn.Module, str]]] = {}
    for child in module.modules():
        for name, parameter in child._parameters.items():
            if parameter is not None:
                groups.setdefault(id(parameter), []).append((child, name))
    return [group for group in groups.values() if len(group) > 1]


def _tie(tied: list[list[tuple[nn.Module, str]]]) -> None:
    """Let modules share parameters again that have taken one each."""
    for (first, name), *others in tied:
        for child, other in others:
            child._parameters[other] = first._parameters[name]
