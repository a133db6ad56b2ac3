"""Text of sizes, layouts and tables."""

from __future__ import annotations

import pytest

from distarray.layout import AbstractMesh, Layout, Shard
from distarray.layout._format import bytes_text, seconds_text, shape_text, table


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (3.2 * 1024**3, "3.2 GiB"),
        (5 * 1024**5, "5.0 PiB"),
    ],
)
def test_bytes_have_a_unit(count: float, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (3e-8, "30.0 ns"),
        (0.99999e-6, "1.0 us"),
        (3.1e-6, "3.1 us"),
        (0.99999e-3, "1.0 ms"),
        (0.012, "12.0 ms"),
        (0.99999, "1.0 s"),
        (1.5, "1.5 s"),
        (90.0, "90.0 s"),
    ],
)
def test_seconds_have_a_unit(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_shape_of_scalar() -> None:
    assert shape_text((512, 64)) == "512x64"
    assert shape_text(()) == "scalar"


def test_layout_shows_order_and_boundaries_of_its_own() -> None:
    mesh = AbstractMesh((2, 2), ("dp", "tp"))
    layout = Layout(
        mesh, (Shard(0), Shard(0)), (9, 2), shard_order=(1, 0), boundaries={0: (0, 1, 2, 3, 9)}
    )
    assert str(layout) == "9x2 [dp:S(0), tp:S(0)] order tp>dp split 0"


def test_table_aligns_text_left_and_numbers_right() -> None:
    text = table(("step", "bytes"), [("gather", 12), ("slice", 1234)])
    assert text == "step    bytes\n------  -----\ngather     12\nslice    1234"
    assert table(("only", "header"), []) == "only  header\n----  ------"
