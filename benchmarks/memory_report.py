"""Tables and charts of how many bytes a rank holds, against the number of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.fsdp_memory import FORWARD, GROUP, KEPT, STEP

_WIDTH = 48
"""Characters of the longest bar."""


def tables(suite: str, parts: list[dict]) -> str:
    """Write, for each case, a table and a chart of what a rank holds between steps."""
    lines = [f"# {suite.replace('_', ' ').capitalize()}", "", "| measured on | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in parts[0]["machine"].items()]
    for name, reason in parts[0]["absent"].items():
        lines.append(f"| {name} | not here: {reason} |")
    for (size, case), rows in _cases(parts):
        columns = [*KEPT, FORWARD, STEP]
        lines += ["", f"## {size}, {case}", ""]
        lines += ["| ranks | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
        for row in rows:
            held = row["bytes"]
            cells = [_mib(held[name]) for name in columns[:3]]
            cells += [
                f"{_mib(held[name])} ({held[name] / held[GROUP]:.2f})" for name in columns[3:]
            ]
            lines.append(f"| {row['ranks']} | {' | '.join(cells)} |")
        lines += ["", "```text", *_bars(rows), "```"]
    return "\n".join(lines) + "\n"


def _cases(parts: list[dict]) -> Iterator[tuple[tuple[str, str], list[dict]]]:
    found: dict[tuple[str, str], list[dict]] = {}
    for part in parts:
        for row in part["rows"]:
            found.setdefault((row["size"], row["case"]), []).append(row)
    yield from found.items()


def _bars(rows: list[dict]) -> list[str]:
    """Draw what a rank holds between steps (#), and how much more of it is needed in a step (+)."""
    longest = max(_kept(row) + row["bytes"][STEP] for row in rows)
    lines = []
    for row in rows:
        kept = _kept(row)
        dense = round(kept / longest * _WIDTH)
        light = round((kept + row["bytes"][STEP]) / longest * _WIDTH) - dense
        more = f"{_mib(kept)} + {_mib(row['bytes'][STEP])}"
        ranks = f"{row['ranks']:2} rank{'s' if row['ranks'] > 1 else ' '}"
        lines.append(f"{ranks}  {'#' * dense}{'+' * light}  {more}")
    return lines


def _kept(row: dict) -> int:
    return sum(row["bytes"][name] for name in KEPT)


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB"


def plot(suite: str, parts: list[dict], path: Path) -> None:
    """Draw a stack for each number of ranks, beside a line that falls as one over it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    cases = list(_cases(parts))
    if not cases:
        return
    figure = Figure(figsize=(4.5 * len(cases), 4), layout="constrained")
    FigureCanvasAgg(figure)
    panels: Any = figure.subplots(1, len(cases), sharey=True, squeeze=False)[0]
    for panel, ((_, case), rows) in zip(panels, cases, strict=True):
        ranks = [row["ranks"] for row in rows]
        below = [0.0] * len(rows)
        for index, name in enumerate((*KEPT, STEP)):
            heights = [row["bytes"][name] / 2**20 for row in rows]
            panel.bar(ranks, heights, 0.7, below, color=f"C{index}", label=name)
            below = [a + b for a, b in zip(below, heights, strict=True)]
        first = rows[0]
        ideal = [_kept(first) * first["ranks"] / n / 2**20 for n in ranks]
        panel.plot(ranks, ideal, "k_", markersize=26, label="parameters to optimizer, as 1/n")
        panel.set(title=case, xlabel="ranks", xticks=ranks)
        panel.grid(axis="y", alpha=0.3)
    panels[0].set_ylabel("MiB on the rank that holds most")
    figure.suptitle(f"{suite.replace('_', ' ')}: {cases[0][0][0]}", fontsize=10)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
    figure.savefig(path, dpi=110)
