"""The distributed array and its operators, protocols, printing and conversions."""

from distarray.array._array import DistArray, distribute_array, redistribute
from distarray.array._convert import infer_layout
from distarray.array._mapping import map_blocks
from distarray.array._visualize import visualize

__all__ = [
    "DistArray",
    "distribute_array",
    "infer_layout",
    "map_blocks",
    "redistribute",
    "visualize",
]
