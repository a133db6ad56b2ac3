"""Drawings say who holds what, without communication."""

from __future__ import annotations

import numpy as np
import pytest

import distarray as da
from distarray import AbstractMesh, CommLog, Layout, Partial, Replicate, Shard, visualize
from distarray.comm import simulate
from distarray.errors import ArgumentError, ArgumentTypeError

GRID = AbstractMesh((2, 2), axis_names=("dp", "tp"))


def lines(layout: Layout) -> list[str]:
    """Return the drawing of a layout without its title."""
    return visualize(layout).splitlines()[1:]


def test_blocks_are_cells_with_the_ranks_that_hold_them():
    assert visualize(Layout(GRID, [Shard(0), Shard(1)], (10, 7))).splitlines() == [
        "10x7 [dp:S(0), tp:S(1)]",
        "     0:4   4:7",
        "     +-----+-----+",
        "0:5  | 0   | 1   |",
        "     +-----+-----+",
        "5:10 | 2   | 3   |",
        "     +-----+-----+",
    ]


def test_copies_stand_beside_each_other_and_parts_are_reduced():
    assert "| 0 1 |" in lines(Layout(GRID, [Shard(0), Replicate()], (10, 6)))[2]
    assert "| sum(0 1, 2 3) |" in lines(Layout(GRID, [Partial(), Replicate()], (4,)))[2]
    assert "| max(0 2, 1 3) |" in lines(Layout(GRID, [Replicate(), Partial("max")], (4, 4)))[2]
    assert lines(Layout(GRID, [Replicate(), Replicate()], ()))[1] == "| 0 1 2 3 |"


def test_order_of_cuts_and_empty_blocks_are_drawn():
    drawn = lines(Layout(GRID, [Shard(0), Shard(0)], (5,), shard_order=("tp", "dp")))
    assert drawn[0].split() == ["0:2", "2:3", "3:4", "4:5"]
    assert drawn[2] == "| 0   | 2   | 1   | 3   |"
    drawn = lines(Layout(AbstractMesh((3,)), [Shard(0)], (2,)))
    assert drawn[0].split() == ["0:1", "1:2", "2:2"]


def test_every_cell_names_the_ranks_whose_block_it_is():
    mesh = AbstractMesh((2, 3, 2))
    layout = Layout(mesh, [Shard(1), Replicate(), Shard(0)], (5, 7))
    drawn = lines(layout)
    columns = drawn[0].split()
    for row in drawn[2::2]:
        span, *cells = (part.strip() for part in row.strip("|").split("|"))
        for column, cell in zip(columns, cells, strict=True):
            for rank in map(int, cell.split()):
                box = layout.local_box(mesh.coordinate_of(rank))
                assert [f"{start}:{stop}" for start, stop in box] == [span, column]


def test_more_axes_become_a_table():
    drawn = lines(Layout(GRID, [Shard(0), Shard(2)], (4, 3, 6)))
    assert drawn[0].split() == ["rank", "dp", "tp", "axis", "0", "axis", "1", "axis", "2", "shape"]
    assert drawn[4].split() == ["2", "1", "0", "2:4", "0:3", "0:3", "2x3x3"]
    many = lines(Layout(AbstractMesh((100_000,)), [Shard(0)], (300_000, 2, 2)))
    assert len(many) < 50
    assert many[-1].startswith("and 99968 more")


@pytest.mark.parametrize("placement", [Shard(0), Replicate(), Partial()])
def test_large_meshes_are_drawn_in_part(placement):
    drawn = lines(Layout(AbstractMesh((100_000,)), [placement], (200_000, 3)))
    assert len(drawn) < 40
    assert max(map(len, drawn)) < 100


def test_first_rank_prints_and_all_return_the_text_without_communication(capsys):
    def program() -> str:
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        x = da.zeros((10, 6), mesh=mesh, placements=[Shard(0), Replicate()])
        with CommLog() as log:
            text = visualize(x)
        assert log.count() == 0
        return str(text)

    texts = simulate(4, program)
    assert len(set(texts)) == 1
    assert capsys.readouterr().out == texts[0] + "\n"


def test_prompt_does_not_show_the_drawing_twice():
    assert "\n" not in repr(visualize(Layout(GRID, [Shard(0), Shard(1)], (4, 4))))


@pytest.mark.parametrize("shape", [(10, 6), (10,), (0, 3)])
def test_axes_get_a_rectangle_for_every_block_that_is_not_empty(shape):
    figure = pytest.importorskip("matplotlib.figure")
    ax = figure.Figure().subplots()
    layout = Layout(GRID, [Shard(0), Replicate()], shape)
    assert visualize(layout, ax=ax) is ax
    spans = sorted(patch.get_height() * patch.get_width() for patch in ax.patches)
    assert sum(spans) == np.prod(shape)
    assert [text.get_text() for text in ax.texts] == (["0 1", "2 3"] if 0 not in shape else [])
    assert ax.get_title() == str(layout)


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ArgumentTypeError, match="Layout"):
        visualize(np.zeros(3))
    with pytest.raises(ArgumentError, match="two axes"):
        visualize(Layout(GRID, [Shard(0), Shard(1)], (2, 2, 2)), ax=object())
