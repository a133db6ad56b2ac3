"""Messages name lines of the program, and not of the libraries that it calls."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from distarray.comm import _agreement


def test_the_line_of_the_program_is_named_and_not_that_of_torch():
    torch = pytest.importorskip("torch")

    class Told(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            lines.append(_agreement.line_of(sys._getframe().f_back))
            return x

    lines = []
    Told.apply(torch.ones(1))
    assert f"{__file__}, line" in lines[0]
    assert "Told.apply(torch.ones(1))" in lines[0]


def test_a_frame_between_two_lines_is_named_by_its_first():
    class Code:
        co_filename, co_firstlineno = "program.py", 3

    class Frame:
        f_code, f_lineno, f_back = Code, None, None

    assert _agreement.line_of(Frame()) == " at program.py, line 3"


def test_an_error_is_at_the_innermost_line_of_the_program():
    def fails(row):
        return row[9]

    with pytest.raises(IndexError) as caught:
        np.apply_along_axis(fails, 0, np.ones(3))
    told = _agreement.line_of_error(caught.value)
    assert told.startswith(f" at {__file__}, line ")
    assert told.endswith(": return row[9]")


def test_an_error_without_a_line_of_the_program_names_none():
    assert _agreement.line_of_error(ValueError("never raised")) == ""
