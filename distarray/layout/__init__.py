"""Meshes, placements and layouts: arithmetic on who holds what, with no arrays and no MPI."""

from distarray.layout import _box as box
from distarray.layout import _dimmap as dimmap
from distarray.layout._axes import normalize_axes, normalize_axis, read_axes
from distarray.layout._dimmap import DimMap
from distarray.layout._format import bytes_text, seconds_text, shape_text, table
from distarray.layout._layout import Layout, carry_cuts, counted, mark_counted
from distarray.layout._mesh import AbstractMesh, Mesh, mesh_description
from distarray.layout._partition import Partition, chunk
from distarray.layout._placements import Partial, Placement, Replicate, Shard, suggest_for_torch
from distarray.layout._propagate import propagate, stages
from distarray.layout._recent import (
    OFFSET_BYTES,
    entry_bytes,
    forget_recent,
    has_counted,
    keep_recent,
    kept,
    recall,
)
from distarray.layout._reduction import REDUCTIONS

__all__ = [
    "OFFSET_BYTES", "REDUCTIONS", "AbstractMesh", "DimMap", "Layout", "Mesh", "Partial",
    "Partition", "Placement", "Replicate", "Shard", "box", "bytes_text", "carry_cuts", "chunk",
    "counted", "dimmap", "entry_bytes", "forget_recent", "has_counted", "keep_recent", "kept",
    "mark_counted", "mesh_description", "normalize_axes", "normalize_axis", "propagate",
    "read_axes", "recall", "seconds_text", "shape_text", "stages", "suggest_for_torch", "table",
]  # fmt: skip
