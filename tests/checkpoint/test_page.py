"""The programs of docs/checkpoints.md run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from distarray.testing import simulate

PAGE = Path(__file__).resolve().parents[2] / "docs" / "checkpoints.md"


def test_programs_of_the_page_run(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    program = compile("\n".join(blocks), str(PAGE), "exec")
    for _ in range(2):  # the second time finds what the first has left, and nothing to train
        simulate(2, lambda: exec(program, {"__name__": "page"}))
    assert (tmp_path / "run" / "ckpt" / "step-00000020" / "manifest.json").exists()
