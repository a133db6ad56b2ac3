"""The text of a plan: its steps as a table, and why the other ways were not taken."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from distarray.layout import bytes_text, seconds_text, table
from distarray.redistribute._cost import (
    DEFAULT_MODEL,
    MeasuredModel,
    step_latency,
    step_seconds,
)
from distarray.redistribute._search import alternatives
from distarray.redistribute._steps import LocalStep, Step

if TYPE_CHECKING:
    from distarray.redistribute._plan import Plan


def explain(plan: Plan, rank: int | None = None) -> str:
    """Return a plan as text; see `Plan.explain`."""
    if rank is None:
        mesh = plan.dst.mesh
        middle = mesh.rank_at(tuple([n // 2 for n in mesh.shape]))
        rank = max((mesh.flat_ranks[0], middle), key=plan.bytes_received)
    lines = [f"from  {plan.src}", f"to    {plan.dst}", f"of    {plan.dtype}"]
    if not plan.steps:
        return "\n".join([*lines, "", "nothing to do: the layouts are the same"])
    header = ("step", "over", "result", "messages", "received", "sent", "time")
    rows = [_row(plan, step, rank) for step in plan.steps]
    lines += ["", table(header, rows), "", *_summary(plan, rank)]
    others = [
        _comparison(plan, name, steps, rank)
        for name, steps in alternatives(plan.src, plan.dst, plan.dtype, plan.model)
        if [(type(s), s.dst) for s in steps] != [(type(s), s.dst) for s in plan.steps]
    ]
    if others:
        columns = ("not taken", "time", "received", "sent", "why")
        lines += ["", table(columns, others)]
    return "\n".join(lines)


def _summary(plan: Plan, rank: int) -> tuple[str, str, str]:
    received, bound = plan.bytes_received(rank), plan.bytes_lower_bound(rank)
    moved = f"rank {rank} receives {bytes_text(received)} in {plan.messages(rank)} message(s), "
    held = f"and holds {bytes_text(plan.peak_bytes(rank))} at most; estimated time "
    spent = (
        f"{seconds_text(plan.seconds)}, of it latency {seconds_text(_latency(plan, plan.steps))}"
    )
    return moved + _against_bound(plan, received, bound), held + spent, _basis(plan)


def _basis(plan: Plan) -> str:
    """Return what the times are estimated by."""
    speeds, model = plan.speeds, plan.model
    if isinstance(speeds, MeasuredModel):
        basis = "times by speeds that were measured on this machine"
    elif replace(model, ranks_per_node=None) == DEFAULT_MODEL:
        basis = "times by typical speeds; python -m distarray bench measures those of this machine"
    else:
        basis = "times by the model of the plan"
    ranks = max(plan.src.mesh.size, plan.dst.mesh.size)
    if (model.ranks_per_node or ranks) >= ranks:
        return f"{basis}, all {ranks} ranks on one node"
    latency, bandwidth = seconds_text(model.round_far), bytes_text(model.bandwidth_far)
    return (
        f"{basis}; {model.ranks_per_node} ranks on a node; between nodes {latency} a round and "
        f"{bandwidth}/s for each rank"
    )


def _row(plan: Plan, step: Step, rank: int) -> tuple[object, ...]:
    name = step.kind if isinstance(step, LocalStep) else step.name
    reduction = None if isinstance(step, LocalStep) else step.reduce
    rounds = getattr(step, "rounds", 1)
    return (
        f"{name}{f' ({reduction})' if reduction else ''}{f' x{rounds}' if rounds > 1 else ''}",
        _describe_axes(step),
        str(step.dst),
        step.messages(rank),
        bytes_text(step.bytes_received(rank)),
        bytes_text(step.bytes_sent(rank)),
        seconds_text(step_seconds(step, plan.speeds)),
    )


def _describe_axes(step: Step) -> str:
    if isinstance(step, LocalStep):
        return "-"
    if step.src.mesh.shape != step.dst.mesh.shape or not step.mesh_axes:
        return "two meshes" if step.src.mesh is not step.dst.mesh else "-"
    names = step.src.mesh.axis_names
    return ", ".join(names[i] for i in step.mesh_axes)


def _against_bound(plan: Plan, received: int, bound: int) -> str:
    if received == bound:
        return "no byte more than it lacks"
    if plan.src.has_partial:
        return (
            f"for {bytes_text(bound)} of values that it lacks: contributions to reduce come on top"
        )
    return (
        f"{bytes_text(received - bound)} more than it lacks: fewer messages save more time than "
        "these bytes cost"
    )


def _comparison(plan: Plan, name: str, steps: tuple[Step, ...], rank: int) -> tuple[object, ...]:
    seconds = sum(step_seconds(step, plan.speeds) for step in steps)
    received = sum(step.bytes_received(rank) for step in steps)
    sent = sum(step.bytes_sent(rank) for step in steps)
    reasons = []
    if received > plan.bytes_received(rank):
        reasons.append(f"receives {bytes_text(received - plan.bytes_received(rank))} more")
    if _latency(plan, steps) > _latency(plan, plan.steps):
        extra = _latency(plan, steps) - _latency(plan, plan.steps)
        reasons.append(f"{seconds_text(extra)} more latency")
    if not reasons:
        reasons.append("more to copy, reduce or send across nodes")
    return (
        name,
        seconds_text(seconds),
        bytes_text(received),
        bytes_text(sent),
        "; ".join(reasons),
    )


def _latency(plan: Plan, steps: tuple[Step, ...]) -> float:
    # Times that were measured of few bytes may be longer than those of more, of another step.
    speeds = plan.speeds
    return sum(min(step_latency(step, speeds), step_seconds(step, speeds)) for step in steps)
