"""The page and the file of numbers that a run on a GPU leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PROMISES = {
    "pack": "pack and unpack at 80 % of the bandwidth of a device copy, or better",
    "values": "kernels give the bytes that CuPy's own functions give",
    "moves": "4 GiB from S0 to S1 between two ranks of one GPU at 50 % of it, or better",
    "steps": "tensor-parallel and sharded steps on CUDA equal to the CPU's, to rounding",
    "suite": "the suite passes in one process",
}


def write(out: Path, parts: list[dict[str, Any]], rehearsal: bool, ranks: list[int]) -> None:
    """Write ``gpu.json`` and ``gpu.md``, of what has been found so far."""
    content = {"suite": "gpu", "rehearsal": rehearsal, "parts": parts}
    for name, text in (
        ("gpu.json", json.dumps(content, indent=1) + "\n"),
        ("gpu.md", page(parts, rehearsal, ranks)),
    ):
        half = out / f".{name}"
        half.write_text(text)
        half.replace(out / name)


def page(parts: list[dict[str, Any]], rehearsal: bool, ranks: list[int]) -> str:
    """Return the page: promises, the machine, and the tables of all parts."""
    rows = [row for part in parts for row in part["rows"]]
    lines = ["# GPU", ""]
    if rehearsal:
        lines += ["A rehearsal without a GPU: tiny sizes, and no number means anything.", ""]
    lines += _promises(rows, rehearsal, ranks)
    for part in parts:
        if part["why"]:
            lines += [f"**{part['name']}**: {part['why']}", ""]
    facts = {row["fact"]: row["value"] for row in rows if "fact" in row}
    lines += [f"| {_marked('measured on', rehearsal)} | |", "|---|---|"]
    lines += [f"| {name} | {_plain(value)} |" for name, value in facts.items()]
    told: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if "table" in row:
            told.setdefault(row["table"], []).append(row)
    for table, found in told.items():
        lines += ["", f"## {_marked(table, rehearsal)}", ""]
        for note in (row["note"] for row in found if "note" in row):
            lines += [note, ""]
        lines += _table([row for row in found if "case" in row])
    for part in parts:
        if part["output"]:
            lines += ["", f"## {_marked(part['name'], rehearsal)}", "", "```"]
            lines += [*part["output"].splitlines(), "```"]
    return "\n".join(lines) + "\n"


def _marked(text: str, rehearsal: bool) -> str:
    return f"{text} (rehearsal)" if rehearsal else text


def _promises(rows: list[dict[str, Any]], rehearsal: bool, ranks: list[int]) -> list[str]:
    verdicts = {row["promise"]: row for row in rows if "promise" in row}
    asked = PROMISES | {f"suite on {n}": f"the suite passes on {n} ranks of the GPU" for n in ranks}
    lines = [f"| {_marked('asked for', rehearsal)} | holds | found |", "|---|---|---|"]
    for name, text in asked.items():
        row = verdicts.get(name, {"holds": None, "text": "its part did not come so far"})
        holds = {True: "yes", False: "NO", None: "not known"}[row["holds"]]
        lines.append(f"| {text} | {holds} | {_plain(row['text'])} |")
    return [*lines, ""]


def _table(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    names = list(dict.fromkeys(name for row in rows for name in row["cells"]))
    lines = ["| | " + " | ".join(name.strip() for name in names) + " |"]
    lines.append("|---" * (len(names) + 1) + "|")
    for row in rows:
        cells = [text(*row["cells"][name]) if name in row["cells"] else "-" for name in names]
        lines.append(f"| {_plain(row['case'])} | {' | '.join(cells)} |")
    return lines


def text(unit: str, value: Any) -> str:
    """Write a value with its unit."""
    if unit == "share":
        return f"{100 * value:.0f} %"
    if unit == "B/s":
        return f"{value / 1e9:.4g} GB/s"
    if unit == "e":
        return f"{value:.1e}"
    if unit == "s":
        scale, name = next(
            (pair for pair in ((1.0, "s"), (1e3, "ms")) if value * pair[0] >= 1), (1e6, "us")
        )
        return f"{value * scale:.3g} {name}"
    return _plain(value)


def _plain(value: Any) -> str:
    return str(value).replace("|", "/").replace("\n", " ")
