"""Tables and plots from measured numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import measure, report


@pytest.fixture
def parts() -> list[dict]:
    def seconds(median: float) -> dict:
        return {"median": median, "low": median, "high": median}

    row = {
        "ranks": 2,
        "case": "S0 -> S1",
        "size": "64 x 64",
        "seconds": {
            "Heat": seconds(0.25),
            "plain copy": seconds(2e-7),
            "distarray": seconds(3.3e-6),
        },
    }
    only = {**row, "case": "P -> R", "seconds": {"plain copy": seconds(1e-3)}}
    machine = {"cores": "2"}
    return [{"machine": machine, "absent": {"DTensor": "not found"}, "rows": [row, only]}]


def test_table_shows_times_with_multiples_of_the_baseline(parts: list[dict]) -> None:
    lines = report.tables("redistribution", parts).splitlines()
    assert "## 64 x 64, 2 ranks" in lines
    assert "| | plain copy | distarray | Heat |" in lines
    assert "| S0 -> S1 | 200 ns | 3.3 us (16) | 250 ms (1250000) |" in lines
    assert "| P -> R | 1 ms | - | - |" in lines
    assert "| DTensor | not here: not found |" in lines


def test_multiples_are_those_of_the_rounds_where_these_are_known(parts: list[dict]) -> None:
    samples = {"plain copy": [1.0, 2.0, 4.0], "distarray": [3.0, 4.0, 16.0]}
    row = parts[0]["rows"][0]
    row["ratios"] = measure.ratios(samples, "plain copy")
    assert row["ratios"]["distarray"]["median"] == 3.0
    assert "| 3.3 us (3.00) |" in report.tables("redistribution", parts)


def test_plot_of_nothing_is_left_out(parts: list[dict], tmp_path: Path) -> None:
    report.plot("transformer", [{**parts[0], "rows": []}], tmp_path / "plot.png")
    assert not (tmp_path / "plot.png").exists()


def test_plot_is_a_picture(parts: list[dict], tmp_path: Path) -> None:
    report.plot("redistribution", parts, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
