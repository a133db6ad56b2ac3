"""Tables and plots from measured numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import fsdp_memory, measure, memory_report, report


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


def test_memory_is_told_beside_time(parts: list[dict]) -> None:
    parts[0]["rows"][0]["peaks"] = {"distarray": 3 << 20}
    told = report.tables("redistribution", parts)
    assert "| S0 -> S1 | 200 ns | 3.3 us (16), 3 MiB | 250 ms" in told


def test_shares_are_told_in_percent(parts: list[dict]) -> None:
    parts[0]["rows"][0]["shares"] = {"hidden": {"median": 0.456, "low": 0.4, "high": 0.5}}
    told = report.tables("redistribution", parts)
    assert "| | plain copy | distarray | Heat | hidden |" in told
    assert "| 250 ms (1250000) | 46 % |" in told
    assert "| P -> R | 1 ms | - | - | - |" in told


@pytest.fixture
def held() -> list[dict]:
    def row(ranks: int) -> dict:
        kept = dict.fromkeys(fsdp_memory.KEPT, 8 * 2**20 // ranks)
        wholes = dict.fromkeys((fsdp_memory.FORWARD, fsdp_memory.STEP), 2**20)
        nbytes = {**kept, **wholes, fsdp_memory.GROUP: 2**19}
        return {"ranks": ranks, "case": "gathered twice", "size": "a model", "bytes": nbytes}

    return [{"machine": {"cores": "2"}, "absent": {}, "rows": [row(n)]} for n in (1, 2)]


def test_memory_is_told_and_drawn_against_the_number_of_ranks(held, tmp_path: Path) -> None:
    lines = memory_report.tables("fsdp_memory", held).splitlines()
    assert "## a model, gathered twice" in lines
    assert "| 2 | 4.0 MiB | 4.0 MiB | 4.0 MiB | 1.0 MiB (2.00) | 1.0 MiB (2.00) |" in lines
    (one,) = (line for line in lines if line.startswith(" 1 rank "))
    (two,) = (line for line in lines if line.startswith(" 2 ranks"))
    assert 2 * two.count("#") == one.count("#") > 0
    assert one.endswith("24.0 MiB + 1.0 MiB")
    memory_report.plot("fsdp_memory", held, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_plot_of_nothing_is_left_out(parts: list[dict], tmp_path: Path) -> None:
    report.plot("transformer", [{**parts[0], "rows": []}], tmp_path / "plot.png")
    assert not (tmp_path / "plot.png").exists()


def test_plot_is_a_picture(parts: list[dict], tmp_path: Path) -> None:
    report.plot("redistribution", parts, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
