"""The tutorial is one program, and prints what it says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from distarray.testing import simulate

TUTORIAL = Path(__file__).resolve().parent.parent / "docs" / "tutorial.md"


def test_tutorial_prints_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # it writes files
    text = TUTORIAL.read_text()
    program = "".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    expected = "".join(re.findall(r"```text\n(.*?)```", text, re.DOTALL))
    code = compile(program, "the tutorial", "exec")
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        simulate(4, lambda: exec(code, {}))
    assert output.getvalue() == expected
