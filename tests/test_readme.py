"""The programs of the README run as they stand, and print what it says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from distarray.testing import simulate

README = Path(__file__).resolve().parent.parent / "README.md"
TEXT = README.read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
PRINTED = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)


def run(program: str) -> str:
    """Return what a program prints on four simulated ranks, by itself."""
    code = compile(program, "the README", "exec")
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        simulate(4, lambda: exec(code, {}))
    return output.getvalue()


def test_first_program_prints_what_it_says() -> None:
    assert run(PROGRAMS[0]) == PRINTED[0]


@pytest.mark.parametrize("program", PROGRAMS[1:])
def test_other_programs_need_nothing_of_it(program: str) -> None:
    if "import torch" in program:
        pytest.importorskip("torch")
    assert run(program)
