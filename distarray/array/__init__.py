"""The distributed array and its operators, protocols, printing and conversions."""

from distarray._missing_names import add_missing_names
from distarray.array._array import DistArray, distribute_array, redistribute
from distarray.array._convert import infer_layout, reduced_layout
from distarray.array._describe import local_rows
from distarray.array._fusing import fuse
from distarray.array._halo import halo
from distarray.array._mapping import map_blocks
from distarray.array._overlap import map_overlap
from distarray.array._petsc import from_petsc
from distarray.array._protocols import leading_names
from distarray.array._repr import array2string, array_repr, array_str, print0
from distarray.array._visualize import visualize
from distarray.comm import DeviceMesh

__all__ = [
    "DistArray", "array2string", "array_repr", "array_str", "distribute_array", "from_petsc",
    "fuse", "halo", "infer_layout", "leading_names", "local_rows", "map_blocks", "map_overlap",
    "print0", "redistribute", "reduced_layout", "visualize",
]  # fmt: skip

add_missing_names(DistArray, "ndarray")
add_missing_names(DeviceMesh, "DeviceMesh")
