"""Tensor parallelism for torch modules over MPI, with plain tensors at every seam."""

from distarray.torch._colwise import ColwiseParallel
from distarray.torch._layouts import layout_of
from distarray.torch._moves import PendingTensor, redistribute
from distarray.torch._parallelize import parallelize_module
from distarray.torch._parameters import distribute_parameter
from distarray.torch._replicate import no_sync, replicate
from distarray.torch._rowwise import RowwiseParallel
from distarray.torch._style import ParallelStyle

__all__ = [
    "ColwiseParallel",
    "ParallelStyle",
    "PendingTensor",
    "RowwiseParallel",
    "distribute_parameter",
    "layout_of",
    "no_sync",
    "parallelize_module",
    "redistribute",
    "replicate",
]
