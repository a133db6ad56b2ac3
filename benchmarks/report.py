"""Turn measured numbers into a table a person can read, and a plot."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

ORDER = (
    "plain copy",
    "limit",
    "NumPy",
    "without communication",
    "the bytes alone",
    "distarray",
    "distarray, verify=False",
    "distarray, nothing kept",
    "distarray, NumPy alone",
    "by hand",
    "by hand, fresh memory",
    "NumPy alone",
    "SciPy alone",
)
BASELINES = {
    "redistribution": "plain copy",
    "overhead": "NumPy",
    "large": "by hand",
    "selections": "plain copy",
    "transforms": "by hand",
    "factorizations": "NumPy alone",
    "diffusion": "by hand",
    "overlap": "one after the other",
    "transformer": "without communication",
    "fsdp": "without communication",
    "checkpoint": "the bytes alone",
    "first_calls": "by hand",
    "prediction": "measured",
}


def _ordered(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (ORDER.index(name) if name in ORDER else 99, name))


def _time(seconds: float) -> str:
    """Write a time with three digits."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def tables(suite: str, parts: list[dict]) -> str:
    """Write one table for each rank count and size."""
    baseline = BASELINES[suite]
    lines = [f"# {suite.replace('_', ' ').capitalize()}", "", "| measured on | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in parts[0]["machine"].items()]
    for name, reason in parts[0]["absent"].items():
        lines.append(f"| {name} | not here: {reason} |")
    rows = [row for part in parts for row in part["rows"]]
    groups: dict[tuple[int, str], list[dict]] = {}
    for row in rows:
        groups.setdefault((row["ranks"], row["size"]), []).append(row)
    for (ranks, size), group in groups.items():
        names = _ordered({name for row in group for name in row["seconds"]})
        lines += ["", f"## {size}, {ranks} rank{'s' * (ranks > 1)}", ""]
        shares = list(dict.fromkeys(name for row in group for name in row.get("shares", ())))
        heads = [*names, *shares]
        lines += ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
        for row in group:
            cells = [_cells(row, names, baseline), *(_share(row, name) for name in shares)]
            lines.append(f"| {row['case']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cells(row: dict, names: list[str], baseline: str) -> str:
    cells = []
    for name in names:
        if name not in row["seconds"]:
            cells.append("-")
            continue
        seconds = row["seconds"][name]["median"]
        ratio = _multiple(row, name, baseline)
        told = name == baseline or ratio is None
        cell = _time(seconds) if told else f"{_time(seconds)} ({_ratio(ratio)})"
        peak = row.get("peaks", {}).get(name)
        cells.append(cell if peak is None else f"{cell}, {peak / 2**20:.0f} MiB")
    return " | ".join(cells)


def _share(row: dict, name: str) -> str:
    """Write a share in percent."""
    found = row.get("shares", {}).get(name)
    return "-" if found is None else f"{100 * found['median']:.0f} %"


def _multiple(row: dict, name: str, baseline: str) -> float | None:
    """Return the multiple of the baseline: the median over rounds, where these were recorded."""
    if baseline not in row["seconds"]:
        return None
    if name in row.get("ratios", {}):
        return row["ratios"][name]["median"]
    return row["seconds"][name]["median"] / row["seconds"][baseline]["median"]


def plot(suite: str, parts: list[dict], path: Path) -> None:
    """Draw each case's times as a multiple of the baseline, on a logarithmic scale."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    baseline = BASELINES[suite]
    rows = [row for part in parts for row in part["rows"] if baseline in row["seconds"]]
    if not rows:
        return
    groups: dict[tuple[int, str], list[dict]] = {}
    for row in rows:
        groups.setdefault((row["ranks"], row["size"]), []).append(row)
    names = [n for n in _ordered({n for row in rows for n in row["seconds"]}) if n != baseline]
    figure = Figure(figsize=(9, 1.2 + 0.55 * len(rows) + 0.4 * len(groups)), layout="constrained")
    FigureCanvasAgg(figure)
    heights = [len(group) for group in groups.values()]
    panels = figure.subplots(len(groups), 1, squeeze=False, height_ratios=heights)[:, 0]
    for panel, ((ranks, size), group) in zip(panels, groups.items(), strict=True):
        for index, name in enumerate(names):
            width = 0.8 / len(names)
            places, values = [], []
            for line, row in enumerate(group):
                if name in row["seconds"]:
                    places.append(line + (index - (len(names) - 1) / 2) * width)
                    values.append(_multiple(row, name, baseline))
            panel.barh(places, values, width, color=f"C{index}", label=name)
        panel.set_yticks(range(len(group)), [row["case"] for row in group])
        panel.invert_yaxis()
        panel.set_xscale("log")
        panel.axvline(1.0, color="black", linewidth=0.8)
        panel.set_title(f"{size}, {ranks} rank{'s' * (ranks > 1)}", fontsize=10, loc="left")
        panel.grid(axis="x", alpha=0.3)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=len(names), fontsize=8)
    panels[-1].set_xlabel(f"time as a multiple of {baseline} (less is better)")
    figure.savefig(path, dpi=110)
