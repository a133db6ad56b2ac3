"""Random state by mesh axis: which ranks draw alike, and which draw differently.

There is no state besides that of torch's own generators. A region of `random_state` seeds them from
a number that it draws from torch's default generator, and from this rank's place on the axes along
which ranks differ; after it they go on from where that number was drawn. Hence

- what a region draws follows from the state of the default generator before it: activation
  checkpointing, which restores that state before it computes again, gets the same numbers again,
  and a training run is resume by restoring it (`get_random_state`, `set_random_state`);
- ranks whose generators were alike before a region are alike after it, whatever they drew inside.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import torch

from distarray.comm import DeviceMesh
from distarray.core import _replicas
from distarray.errors import ArgumentError, ArgumentTypeError, MismatchError
from distarray.torch._buffers import digest_of
from distarray.torch._layouts import check_mesh

_generator: ContextVar[torch.Generator | None] = ContextVar("source of keys", default=None)

Key = tuple[int, int]

_SEED = "pass one seed everywhere, and name in differ= the axes along which ranks shall differ"

_reading = threading.Lock()


def read_state(generator: torch.Generator | None = None, device: Any = None) -> torch.Tensor:
    """Return the state of a generator, or of torch's own of a device: by default of the CPU.

    Torch locks the generator while it makes the tensor. What Python collects then may let another
    thread in, as of simulated ranks, that waits for the generator with Python's own lock, for ever.
    """
    with _reading:
        collects = gc.isenabled()
        gc.disable()
        try:
            if device is not None:
                return torch.cuda.get_rng_state(device)
            return (generator or torch.default_generator).get_state()
        finally:
            if collects:
                gc.enable()


@contextlib.contextmanager
def forked(devices: Sequence[Any] = ()) -> Iterator[None]:
    """Leave torch's generators of the CPU and of some GPUs as they are now."""
    own, others = read_state(), [(read_state(device=one), one) for one in devices]
    try:
        yield
    finally:
        torch.set_rng_state(own)
        for state, device in others:
            torch.cuda.set_rng_state(state, device)


def manual_seed(seed: int, mesh: DeviceMesh, *, differ: Sequence[str] | str = ()) -> int:
    """Seed torch's generators, alike on all ranks or differently along some axes (collective).

    Parameters
    ----------
    seed
        The same on every rank; 0 or more.
    mesh
        That holds this process.
    differ
        Names of the axes along which ranks shall draw different numbers: usually those of data
        parallelism. Along the others, such as those of tensor parallelism, ranks draw alike, as
        initialisation, dropout of replicated activations and `dropout` need.

    Returns
    -------
    int
        What torch was seeded with here: ``seed`` itself where ``differ`` is empty.

    Raises
    ------
    MismatchError
        If ranks pass other seeds, or name other axes.

    Examples
    --------
    >>> mesh = da.init_device_mesh((1, 1), ("dp", "tp"))  # (2, 2) of four processes
    >>> dt.manual_seed(5, mesh)
    5
    >>> here = dt.manual_seed(5, mesh, differ="dp")  # another number along "dp", one along "tp"
    """
    check_mesh(mesh)

    def read() -> tuple[int, tuple[str, ...]]:
        names = _check_axes(mesh, differ)
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ArgumentTypeError(f"seed={seed!r} is a {type(seed).__name__}; pass an int")
        if not 0 <= seed < 2**63:
            raise ArgumentError(
                f"seed={seed} must be 0 or more and below 2**63; use abs() or a hash"
            )
        return seed, names

    told = _replicas.exchange(mesh, "manual_seed", read)
    for name, values in zip(("seed", "differ"), zip(*told, strict=True), strict=True):
        _replicas.refuse(mesh, "manual_seed", name, [repr(one) for one in values], None, _SEED)
    seed, names = told[0]
    own = _seed_here(seed, mesh, names) if names else seed
    torch.manual_seed(own)
    return own


@contextlib.contextmanager
def random_state(mesh: DeviceMesh, *, differ: Sequence[str] | str) -> Iterator[None]:
    """Draw differently along some mesh axes inside, and go on as if nothing had been drawn.

    For random functions of sharded tensors, such as dropout of attention weights whose heads are
    cut: every rank needs other numbers there. Inside, torch's generators (that of the CPU, and of
    the current CUDA device) are seeded by the next number of the default generator and this rank's
    place on the axes. After it, also after an exception, they are as they were before, but for
    that one number; so what follows is alike again on ranks that were alike.

    Nothing is sent, and nothing need be saved: see this module's description. Regions may be
    nested. Also a decorator of functions.

    Parameters
    ----------
    mesh
        That holds this process.
    differ
        Names of the axes along which numbers differ. Along the others they are as alike as the
        ranks' generators were.

    Examples
    --------
    >>> mesh = da.init_device_mesh((1,), ("tp",))
    >>> x = torch.ones(6)
    >>> with dt.random_state(mesh, differ="tp"):
    ...     x = F.dropout(x, 0.1)
    """
    names = _check_axes(mesh, differ)
    with _seed_inside(_seed_here(_join_words(draw_key()), mesh, names)):
        yield


@contextlib.contextmanager
def seeded_alike() -> Iterator[None]:
    """Draw alike on ranks whose generators were alike, and leave them so, however much is drawn."""
    with _seed_inside(_join_words(draw_key()) >> 1):
        yield


@contextlib.contextmanager
def _seed_inside(own: int) -> Iterator[None]:
    """Seed torch's generators inside; after it they go on from where they were."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with forked(devices):
        torch.default_generator.manual_seed(own)
        if devices:
            torch.cuda.manual_seed(own)
        yield


def get_random_state(mesh: DeviceMesh, *, differ: Sequence[str] | str = ()) -> dict[str, Any]:
    """Return the states of torch's generators on all ranks, for a checkpoint (collective).

    Parameters
    ----------
    mesh
        That holds this process.
    differ
        Names of the axes along which the ranks' generators differ. Along the others they are alike,
        of which one is kept: the result serves for any size of these axes.

    Returns
    -------
    dict
        The same on every rank; of what ``torch.save`` writes and loads with ``weights_only=True``.

    Raises
    ------
    MismatchError
        The generators of the CPU are not alike along an axis that is not in ``differ``.

    Examples
    --------
    >>> mesh = da.default_mesh()
    >>> state = dt.get_random_state(mesh)
    >>> drawn = torch.rand(3)
    >>> dt.set_random_state(state, mesh)
    >>> torch.equal(torch.rand(3), drawn)
    True
    """
    names = _check_axes(mesh, differ)
    own: dict[str, torch.Tensor] = {"cpu": read_state()}
    if torch.cuda.is_initialized():
        own["cuda"] = read_state(device="cuda")
    place = _place(mesh, names)
    first = not any(_place(mesh, [name for name in mesh.axis_names if name not in names]))
    kept = {kind: state.numpy().tobytes() for kind, state in own.items()} if first else None
    states: dict[tuple[int, ...], dict[str, torch.Tensor]] = {}
    digests: dict[tuple[int, ...], str] = {}
    told = mesh.communicator().all_gather_object((place, digest_of(own["cpu"]), kept))
    for rank, (where, digest, found) in enumerate(told):
        if digests.setdefault(where, digest) != digest:
            raise MismatchError(
                f"differ={names}: the random states of ranks with the coordinates {where} on these "
                f"axes of {mesh} are not alike (position {rank} has another one than those before "
                "it): name all axes along which they differ, or seed by dt.manual_seed and draw "
                "what differs inside of dt.random_state"
            )
        if found is not None:
            states[where] = {
                kind: torch.frombuffer(bytearray(state), dtype=torch.uint8)
                for kind, state in found.items()
            }
    return {"differ": names, "sizes": _sizes(mesh, names), "states": states}


def set_random_state(state: Mapping[str, Any], mesh: DeviceMesh) -> None:
    """Restore what `get_random_state` returned: each rank takes the states of its place.

    Parameters
    ----------
    state
        The same on every rank.
    mesh
        With the axes along which states differ, of the sizes they had; others are free.

    Raises
    ------
    ArgumentError
        An axis is missing, or has another size.

    Examples
    --------
    >>> mesh = da.default_mesh()
    >>> state = dt.get_random_state(mesh)
    >>> mask = dt.dropout(torch.ones(8))
    >>> dt.set_random_state(state, mesh)
    >>> torch.equal(dt.dropout(torch.ones(8)), mask)
    True
    """
    names = _check_axes(mesh, tuple(state["differ"]))
    sizes = _sizes(mesh, names)
    if sizes != tuple(state["sizes"]):
        raise ArgumentError(
            f"the random states were saved with sizes {tuple(state['sizes'])} of the axes {names}, "
            f"and {mesh} has {sizes}; seed anew by dt.manual_seed(seed, mesh, differ={names})"
        )
    own = state["states"][_place(mesh, names)]
    torch.set_rng_state(own["cpu"])
    if "cuda" in own and torch.cuda.is_available():
        torch.cuda.set_rng_state(own["cuda"])


# --- keys ----------------------------------------------------------------------------------------


def draw_key() -> Key:
    """Return two words of 32 bits, drawn from torch's default generator."""
    low, high = torch.randint(2**32, (2,), generator=_generator.get(), device="cpu").tolist()
    return low, high


@contextlib.contextmanager
def keys_from(generator: torch.Generator) -> Iterator[None]:
    """Draw keys from another generator inside; threads, which share torch's own, need this."""
    token = _generator.set(generator)
    try:
        yield
    finally:
        _generator.reset(token)


def _join_words(key: Key) -> int:
    return key[0] | key[1] << 32


def _check_axes(mesh: DeviceMesh, differ: Sequence[str] | str) -> tuple[str, ...]:
    """Return the names of axes, checked, in the order of the mesh."""
    check_mesh(mesh)
    given = (differ,) if isinstance(differ, str) else tuple(differ)
    for name in given:
        if name not in mesh.axis_names:
            raise ArgumentError(
                f"differ={differ!r}: {mesh} has no axis {name!r}; it has {mesh.axis_names}"
            )
    return tuple(name for name in mesh.axis_names if name in given)


def _sizes(mesh: DeviceMesh, names: Sequence[str]) -> tuple[int, ...]:
    return tuple(mesh.shape[mesh.axis_names.index(name)] for name in names)


def _place(mesh: DeviceMesh, names: Sequence[str]) -> tuple[int, ...]:
    assert mesh.coordinate is not None
    return tuple(mesh.coordinate[mesh.axis_names.index(name)] for name in names)


def _seed_here(seed: int, mesh: DeviceMesh, names: Sequence[str]) -> int:
    """Return a seed for this rank's place on some axes, unlike those of other places and seeds."""
    spelled = repr((seed, list(zip(names, _place(mesh, names), strict=True)))).encode()
    digest = hashlib.blake2b(spelled, digest_size=8, person=b"distarray.torch").digest()
    return int.from_bytes(digest, "little") >> 1
