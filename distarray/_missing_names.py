"""The errors for names that other libraries have and we have not, with what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from distarray.core import INSTEAD

_GATHER = "x.full_array(), or x.full_array(dst=0) for one process"
_SCATTER = "da.distribute_array(value, mesh, placements, src=0)"
_REDUCE = (
    "x.sum() and the like; of what each process has "
    'da.DistArray.from_local(block, mesh, [da.Partial("sum")])'
)
_NUMPY = "x.full_array() for all of it, or x.to_local() for this process's block"
_REDISTRIBUTE = "x.redistribute(placements), such as [da.Shard(1)]"
_LAPACK = "SciPy's on x.full_array(), which gathers; of a stack, by da.map_blocks"
_OPERATOR = "a function of distributed arrays, for da.linalg.cg and others; see docs/iterative.md"
_SPARSE = "scipy.sparse for each process's rows, and da.linalg.cg; see docs/iterative.md"
_METHODS = {
    **dict.fromkeys(("allreduce", "all_reduce", "reduce"), _REDUCE),
    **dict.fromkeys(("gather", "allgather", "all_gather", "full_tensor"), _GATHER),
    **dict.fromkeys(("scatter", "bcast", "broadcast"), _SCATTER),
    **dict.fromkeys(("resplit", "resplit_", "redistribute_", "rechunk"), _REDISTRIBUTE),
    "balance_": "x.rebalance()",
    "split": "x.placements, or da.split(x, sections) for parts of it",
    **dict.fromkeys(("sharding", "chunks", "lshape_map"), "x.layout, or x.describe()"),
    **dict.fromkeys(("lshape", "local_shape"), "x.layout.local_shape()"),
    "global_shape": "x.shape; that of the block is x.layout.local_shape()",
    **dict.fromkeys(("rank", "comm"), "x.mesh.rank, x.mesh.comm(); the number of axes is x.ndim"),
    **dict.fromkeys(
        ("local", "larray", "addressable_shards", "blocks"), "x.to_local(), or da.map_blocks"
    ),
    "device_mesh": "x.mesh",
    "get_halo": "da.halo(x, width)",
    "map_blocks": "da.map_blocks(func, x)",
    "map_overlap": "da.map_overlap(func, x, width=width)",
    **dict.fromkeys(("numpy", "to_numpy"), _NUMPY),
    **dict.fromkeys(("compute", "persist"), f"{_NUMPY}; nothing is lazy here"),
    **dict.fromkeys(("append", "extend"), "x = da.append(x, values), or da.concat of a list, once"),
    **dict.fromkeys(("cpu", "cuda", "to"), "x.to_device('cpu'), or 'cuda'"),
    "groupby": "np.unique(keys, return_inverse=True) and np.bincount; see docs/how-to.md",
    "rolling": "da.map_overlap; see docs/how-to.md",
}
_FUNCTIONS = {
    **dict.fromkeys(
        ("COMM_WORLD", "MPI"), "da.default_mesh(), whose comm() is mpi4py's communicator"
    ),
    **dict.fromkeys(("Finalize", "finalize"), "nothing in its place: MPI ends with the program"),
    **dict.fromkeys(("print", "printf"), "da.print0, which prints once"),
    **dict.fromkeys(("Barrier", "barrier"), "mesh.comm().Barrier(); arrays need none"),
    **dict.fromkeys(("rank", "get_rank"), "da.default_mesh().rank"),
    **dict.fromkeys(("world_size", "get_world_size"), "da.default_mesh().size"),
    **dict.fromkeys(("allreduce", "all_reduce"), _REDUCE),
    **dict.fromkeys(("gather", "allgather", "all_gather"), _GATHER),
    **dict.fromkeys(("scatter", "bcast"), _SCATTER),
    **dict.fromkeys(("from_array", "from_numpy"), f"{_SCATTER}, or da.asarray(value)"),
    "from_local": "da.DistArray.from_local(block, mesh, placements)",
    **dict.fromkeys(("tensor", "Tensor"), "da.asarray(values)"),
    **dict.fromkeys(("resplit", "rechunk"), _REDISTRIBUTE),
    **dict.fromkeys(("distribute_tensor", "device_put"), f"{_SCATTER}, or {_REDISTRIBUTE}"),
    "DTensor": "da.DistArray, or distarray.torch for modules",
    **dict.fromkeys(("init", "make_mesh"), "da.init_device_mesh(shape, axis_names)"),
    **dict.fromkeys(
        ("NamedSharding", "PartitionSpec"),
        "a placement for each mesh axis, as [da.Shard(0)]",
    ),
    **dict.fromkeys(("shard_map", "map_partitions", "blockwise"), "da.map_blocks(func, x)"),
    **dict.fromkeys(
        ("load_hdf5", "read_hdf5"),
        "da.asarray(h5py.File(path)[name]), of which each process reads its block",
    ),
    "save_hdf5": "da.store(x, dataset)",
    **dict.fromkeys(("sparse", "linalg.splu", "linalg.spilu", "linalg.spsolve"), _SPARSE),
    "linalg.LinearOperator": _OPERATOR,
    "linalg.ldl": "da.linalg.lu, da.linalg.lu_factor, or da.linalg.solve",
    "linalg.eigs": "da.linalg.eigsh of hermitian operators",
    **dict.fromkeys(
        ("linalg.solve_banded", "linalg.solveh_banded"),
        "SciPy's by da.map_blocks, of right-hand sides cut by columns; or da.linalg.cg, or gmres, "
        "of a stencil",
    ),
    **dict.fromkeys(
        ("linalg.toeplitz", "linalg.circulant", "linalg.hankel"),
        "da.take(values, i) with i = da.arange(m)[:, None] - da.arange(n) + n - 1, for instance; "
        "da.convolve multiplies by such a matrix",
    ),
    "linalg.block_diag": "da.zeros, and x[i:j, i:j] = block for each",
    "fft.next_fast_len": "any length, or scipy.fft's, as it takes a number",
    **dict.fromkeys(
        ("linalg.sqrtm", "linalg.logm", "linalg.schur", "linalg.hessenberg", "linalg.funm"),
        _LAPACK,
    ),
    **dict.fromkeys(
        ("signal", "ndimage"), "SciPy's filters by da.map_overlap; see docs/tutorial.md"
    ),
    "fftconvolve": "da.convolve, or da.fft.irfft of a product of da.fft.rfft(x, n=...)",
    "random.Generator.rand": "rng.random(size)",
    "random.Generator.randn": "rng.standard_normal(size)",
    "random.Generator.randint": "rng.integers(low, high, size)",
    **dict.fromkeys(("linalg.polar", "linalg.orth", "linalg.null_space"), "da.linalg.svd"),
    **dict.fromkeys(("fft.dct", "fft.dst"), "SciPy's by da.map_blocks, along axes not cut"),
    **dict.fromkeys(
        ("read_csv", "read_parquet"),
        "pandas' on each process, and da.DistArray.from_local; see docs/how-to.md",
    ),
}
INSTEAD_OF_OTHERS = {f"ndarray.{name}": remedy for name, remedy in _METHODS.items()} | _FUNCTIONS
"""Remedies for names of MPI, torch, Heat, dask, JAX, pandas, SciPy; paths as those of NumPy's."""


def missing_name_error(
    path: str, names: Sequence[str] = (), elsewhere: Sequence[str] = ()
) -> AttributeError:
    """Return the error for an attribute that one of our modules has not.

    Parameters
    ----------
    path : str
        Where it would be inside of the namespace: ``random.seed``.
    names : sequence of str
        Those of the module, of which one may be meant.
    elsewhere : sequence of str
        What has this very name in other places: ``da.linalg.solve``.
    """
    home, _, name = f"distarray.{path}".rpartition(".")
    if path in INSTEAD or (path in np.__all__ and not name.startswith("__")):
        import difflib

        near = difflib.get_close_matches(name, names, 3, 0.8)
        return AttributeError(f"{home} has no {name!r} as NumPy has; {_remedy(path, near)}")
    if path in INSTEAD_OF_OTHERS:
        return AttributeError(f"{home} has no {name!r}; use {INSTEAD_OF_OTHERS[path]}")
    if elsewhere:
        return AttributeError(f"{home} has no {name!r}; use {' or '.join(elsewhere)}")
    return AttributeError(f"module {home!r} has no attribute {name!r}")


def _remedy(name: str, near: list[str]) -> str:
    if name in INSTEAD:
        return f"use {INSTEAD[name]}"
    theirs: Any = getattr(np, name)
    if isinstance(theirs, type) or not callable(theirs):
        return f"use NumPy's own, np.{name}"
    nearest = f"near it are {', '.join(f'da.{one}' for one in near)}; " if near else ""
    return (
        f"{nearest}call np.{name}(x.full_array(), ...), which gathers x on every process, or, "
        f"where blocks can be taken one by one, da.map_blocks(np.{name}, x, ...)"
    )


class _MissingName:
    """An attribute that a class of ours lacks, and others have.

    A descriptor, because a `__getattr__` would make looking for slots that are not set slow.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __get__(self, instance: Any, owner: Any = None) -> NoReturn:
        raise AttributeError(self._text)

    def __set__(self, instance: Any, value: Any) -> NoReturn:
        raise AttributeError(self._text)


def add_missing_names(cls: type, path: str) -> None:
    """Let a class tell what to do instead of names that NumPy's, at `path`, and others have.

    They stay names that it has not, as `hasattr` and `dir` say.
    """
    added = set()
    for remedies, theirs in ((INSTEAD, " as NumPy's has"), (INSTEAD_OF_OTHERS, "")):
        for known, remedy in remedies.items():
            home, _, name = known.rpartition(".")
            if home == path:
                text = f"{cls.__name__} has no {name!r}{theirs}; use {remedy}"
                setattr(cls, name, _MissingName(text))
                added.add(name)

    def names(self: Any) -> list[str]:
        return [name for name in object.__dir__(self) if name not in added]

    cls.__dir__ = names  # type: ignore[assignment,method-assign]
