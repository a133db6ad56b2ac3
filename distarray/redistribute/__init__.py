"""From one layout to another: the plan, what it costs, and how it is carried out."""

from distarray.redistribute._cost import DEFAULT_MODEL, CostModel
from distarray.redistribute._plan import Plan, estimate, plan

__all__ = ["DEFAULT_MODEL", "CostModel", "Plan", "estimate", "plan"]
