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
_SOFTMAX = "e = da.exp(x - x.max(-1, keepdims=True)), and e / e.sum(-1, keepdims=True)"
_GRADIENTS = "tensors where gradients are needed: dt.to_torch(x), or x.to_local() in torch"
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
    "permute": "da.permute_dims(x, axes), or x.transpose(axes)",
    "unsqueeze": "da.expand_dims(x, axis=axis), or x[None]",
    "clone": "x.copy()",
    "dim": "x.ndim",
    "at": "x[index] = value; where places repeat np.add.at(x, index, values)",
    "block_until_ready": "nothing in its place: operations are done when they return",
    **dict.fromkeys(("float", "double", "half", "int", "long"), "x.astype(dtype)"),
    **dict.fromkeys(("detach", "backward", "grad", "requires_grad"), _GRADIENTS),
    **{
        name: f"da.{name}(x)"
        for name in (
            "abs",
            "exp",
            "log",
            "median",
            "sin",
            "cos",
            "sqrt",
            "square",
            "tanh",
            "unique",
        )
    },
    **dict.fromkeys(("matmul", "mm"), "x @ y"),
}
_BARRIER = "mesh.comm().Barrier(); arrays need none"
_MESH_NAMES = {
    **dict.fromkeys(("get_rank", "Get_rank"), "mesh.rank"),
    **dict.fromkeys(("Get_size", "get_world_size"), "mesh.size"),
    "get_local_rank": "mesh[axis].coordinate[0]",
    "get_coordinate": "mesh.coordinate",
    "get_group": "mesh.comm(axis), of mpi4py",
    "mesh": "mesh.ranks",
    "mesh_dim_names": "mesh.axis_names",
    **dict.fromkeys(("barrier", "Barrier"), _BARRIER),
    **dict.fromkeys(("allreduce", "all_reduce", "Allreduce"), _REDUCE),
    **dict.fromkeys(("gather", "allgather", "all_gather", "Gather", "Allgather"), _GATHER),
    **dict.fromkeys(("scatter", "bcast", "broadcast", "Scatter", "Bcast"), _SCATTER),
}
_SUM_OF_TENSORS = "dt.redistribute(tensor, mesh, [da.Partial()], [da.Replicate()])"
_TORCH_NAMES = {
    **dict.fromkeys(("FSDP", "FullyShardedDataParallel"), "dt.fully_shard(module, mesh)"),
    **dict.fromkeys(("DDP", "DistributedDataParallel"), "dt.replicate(module, mesh)"),
    **dict.fromkeys(
        ("init_process_group", "destroy_process_group"),
        "nothing in its place: mpiexec starts the processes, and da.init_device_mesh gives a mesh",
    ),
    **{
        name: f"da.{name}"
        for name in ("Partial", "Replicate", "Shard", "checkpoint", "init_device_mesh")
    },
    "DeviceMesh": "da.init_device_mesh(shape, axis_names)",
    "DTensor": "plain tensors, this process's blocks, whose layout dt.layout_of(tensor) tells",
    "MixedPrecision": "dt.MixedPrecisionPolicy",
    "distribute_module": "a dt.ParallelStyle of your own, and dt.distribute_parameter",
    **dict.fromkeys(("ColumnParallelLinear", "ColumnParallel"), "dt.ColwiseParallel"),
    **dict.fromkeys(("RowParallelLinear", "RowParallel"), "dt.RowwiseParallel"),
    **dict.fromkeys(("get_model_state_dict", "get_state_dict"), "dt.state_dict(module)"),
    **dict.fromkeys(
        ("set_model_state_dict", "set_state_dict"), "dt.load_state_dict(module, state)"
    ),
    "get_optimizer_state_dict": "dt.optimizer_state_dict",
    "set_optimizer_state_dict": "dt.load_optimizer_state_dict",
    "all_reduce": _SUM_OF_TENSORS,
    "all_gather": "dt.full_tensor(tensor)",
    "barrier": _BARRIER,
    "get_rank": "mesh.rank",
    "get_world_size": "mesh.size",
}
_FUNCTIONS = {
    **dict.fromkeys(
        ("COMM_WORLD", "MPI"), "da.default_mesh(), whose comm() is mpi4py's communicator"
    ),
    **dict.fromkeys(("Finalize", "finalize"), "nothing in its place: MPI ends with the program"),
    **dict.fromkeys(("print", "printf"), "da.print0, which prints once"),
    **dict.fromkeys(("Barrier", "barrier"), _BARRIER),
    **dict.fromkeys(("rank", "get_rank"), "da.default_mesh().rank"),
    **dict.fromkeys(("world_size", "get_world_size"), "da.default_mesh().size"),
    **dict.fromkeys(("allreduce", "all_reduce", "Allreduce"), _REDUCE),
    **dict.fromkeys(("gather", "allgather", "all_gather", "Gather", "Allgather"), _GATHER),
    **dict.fromkeys(("scatter", "bcast", "Scatter", "Bcast"), _SCATTER),
    **dict.fromkeys(("compute", "persist"), f"{_NUMPY}; nothing is lazy here"),
    "cat": "da.concat(arrays, axis=0)",
    "erf": "da.special.erf(x)",
    "sigmoid": "da.special.expit(x)",
    "relu": "da.maximum(x, 0)",
    "softmax": _SOFTMAX,
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
INSTEAD_OF_OTHERS = {
    f"{home}{name}": remedy
    for home, remedies in (
        ("", _FUNCTIONS),
        ("ndarray.", _METHODS),
        ("DeviceMesh.", _MESH_NAMES),
        ("torch.", _TORCH_NAMES),
    )
    for name, remedy in remedies.items()
}
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
