"""Who holds what, in words and in notebooks; rows here; printing on one rank. Nothing is sent."""

from __future__ import annotations

import contextlib
import io
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.array._visualize import draw_cells, draw_table
from distarray.comm import CommLog
from distarray.errors import ArgumentTypeError, AxisError
from distarray.layout import Partial, Replicate, Shard
from tests.array.strategies import Case, cases, on_ranks
from tests.on_device import DEVICE


class _Checked(HTMLParser):
    """Raises unless tags are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.cells.append(data)


def parse(text: str) -> list[str]:
    checked = _Checked()
    checked.feed(text)
    assert not checked.open
    return checked.cells


@given(cases(("f8", "?", "i2"), ("sum", "max")))
@settings(max_examples=20, deadline=None)
def test_text_is_alike_on_all_ranks_and_tells_every_block(case: Case) -> None:
    def program() -> tuple[str, str]:
        x = case.build()
        with CommLog() as log:
            text, page = x.describe(), x._repr_html_()
        assert log.count() == 0
        lines = text.split("\n\n")[1].splitlines()[2:]
        assert len(lines) == x.mesh.size
        for line, rank in zip(lines, x.mesh.flat_ranks, strict=True):
            box = x.layout.local_box(x.mesh.coordinate_of(rank))
            assert line.split()[0] == str(rank)
            assert all(f"{start}:{stop}" in line.split() for start, stop in box)
        assert str(x.layout) in text
        assert str(x.layout) in parse(page)
        assert repr(text) == str(text)
        return str(text), page

    assert len(set(on_ranks(program))) == 1


def test_copies_parts_boundaries_and_bytes_are_named() -> None:
    def program() -> None:
        mesh = da.init_device_mesh((2, 2), axis_names=("dp", "tp"))
        x = da.distribute_array(np.zeros((6, 4)), mesh, [Shard(0), Replicate()])
        text = x.describe()
        assert text.startswith("DistArray of shape 6x4, float64, 192 B\n")
        assert f"mesh    4 processes, on {DEVICE}" in text
        assert "blocks  2, of 3x4, 96 B, each on 2 processes" in text
        parts = da.DistArray.from_local(np.ones(2), mesh, [Partial(), Shard(0)])
        assert "each in 2 parts still to be reduced" in parts.describe()
        assert "boundaries of its own" in x[1:].describe()
        assert "at most" in x[1:].describe()
        y = x[np.array([True, False, False, False, False, True])]
        z = x[np.array([False, False, False, True, True, True])]
        assert "boundaries" not in y.describe()  # which are those of the default split
        assert "boundaries that follow from values" in z.describe()

    on_ranks(program)


def test_text_of_many_ranks_is_short() -> None:
    x = da.zeros((100_000, 3))
    layout = da.Layout(da.AbstractMesh((10_000,)), [Shard(0)], x.shape)
    assert len(draw_table(layout, 8).splitlines()) == 35
    heads, lines = draw_cells(layout)
    assert (len(heads), len(lines)) == (1, 12)


def test_names_are_escaped_in_html() -> None:
    mesh = da.init_device_mesh((1,), axis_names=("<b>",))
    x = da.zeros((2, 2), mesh=mesh)
    assert "&lt;b&gt;" in x._repr_html_()
    assert "2x2 [<b>:S(0)]" in parse(x._repr_html_())
    assert parse(da.zeros(())._repr_html_())
    assert parse(da.zeros((2, 2, 2))._repr_html_())


@given(cases(("i8",), ("sum",)))
@settings(max_examples=30, deadline=None)
def test_local_rows_say_where_rows_of_the_block_are(case: Case) -> None:
    def program() -> None:
        x = case.build()
        if not x.ndim:
            with pytest.raises(AxisError, match="no rows"):
                da.local_rows(x)
            return
        with CommLog() as log:
            rows = da.local_rows(x)
        assert log.count() == 0
        assert isinstance(rows, range)
        assert len(rows) == x.to_local().shape[0]
        if x.mesh.coordinate is not None and case.op is None:
            (_, *rest) = x.layout.local_box()
            mine = case.value[(slice(rows.start, rows.stop), *(slice(*one) for one in rest))]
            np.testing.assert_array_equal(x.to_local(), mine)

    on_ranks(program)


def test_local_rows_of_plain_arrays_are_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="local_rows"):
        da.local_rows(np.zeros(3))


@pytest.mark.parametrize("options", [{}, {"sep": "-", "end": "!"}])
@given(st.integers(0, 9))
@settings(max_examples=5, deadline=None)
def test_print0_prints_once_what_print_prints(options: dict[str, str], n: int) -> None:
    def program() -> str:
        x = da.arange(n)
        out = io.StringIO()
        da.print0("x", x, x.sum(), n, file=out, **options)
        return out.getvalue()

    expected = io.StringIO()
    value = np.arange(n)
    print("x", value, value.sum(), n, file=expected, **options)
    first, *others = on_ranks(program)
    assert first == expected.getvalue()
    assert set(others) == {""}


def test_print0_of_an_array_elsewhere_tells_its_layout() -> None:
    def program() -> str:
        x = da.zeros(4, mesh=da.DeviceMesh([1, 2]))
        out = io.StringIO()
        with contextlib.redirect_stdout(None):
            da.print0(x, file=out)
        return out.getvalue()

    assert "outside" in on_ranks(program)[0]
