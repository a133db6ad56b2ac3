"""From one layout to another: the plan, what it costs, and how it is carried out."""

from distarray.redistribute._background import (
    Handle,
    done_by,
    in_background,
    redistribute_async,
    refuse_async,
)
from distarray.redistribute._blocks import kept_partial
from distarray.redistribute._cost import DEFAULT_MODEL, CostModel
from distarray.redistribute._execute import clear_plans, redistribute_local, refuse
from distarray.redistribute._packed import Packed
from distarray.redistribute._plan import Plan, check_dtype, estimate, plan
from distarray.redistribute._root import scatter_from

__all__ = [
    "DEFAULT_MODEL",
    "CostModel",
    "Handle",
    "Packed",
    "Plan",
    "check_dtype",
    "clear_plans",
    "done_by",
    "estimate",
    "in_background",
    "kept_partial",
    "plan",
    "redistribute_async",
    "redistribute_local",
    "refuse",
    "refuse_async",
    "scatter_from",
]
