"""Redistribution from one layout to another: the plan, its cost, and how it is carried out."""

from distarray.redistribute._background import (
    Handle,
    redistribute_async,
    refuse_async,
    run_in_background,
    run_now,
)
from distarray.redistribute._blocks import kept_partial
from distarray.redistribute._cost import (
    CostModel,
    Grid,
    Grids,
    MeasuredModel,
    look_up,
)
from distarray.redistribute._execute import (
    Piece,
    clear_plans,
    fetching,
    read_in_place,
    read_local,
    reads_in_place,
    redistribute_local,
    redistribute_together,
    redistributing,
    refuse,
)
from distarray.redistribute._joined import Joined, Part
from distarray.redistribute._messages import count_rounds, exchange_views
from distarray.redistribute._packed import Packed
from distarray.redistribute._plan import Plan, check_dtype, estimate, plan
from distarray.redistribute._root import gather_to, scatter_from
from distarray.redistribute._small_blocks import SmallBlocks, are_small, largest_block
from distarray.redistribute._speeds import forget_speeds, keep_speeds

__all__ = [
    "CostModel", "Grid", "Grids", "Handle", "Joined", "MeasuredModel", "Packed",
    "Part", "Piece", "Plan", "SmallBlocks", "are_small", "check_dtype", "clear_plans",
    "count_rounds", "estimate", "exchange_views", "fetching", "forget_speeds", "gather_to",
    "keep_speeds", "kept_partial", "largest_block", "look_up", "plan", "read_in_place",
    "read_local", "reads_in_place", "redistribute_async", "redistribute_local",
    "redistribute_together", "redistributing", "refuse", "refuse_async", "run_in_background",
    "run_now", "scatter_from",
]  # fmt: skip
