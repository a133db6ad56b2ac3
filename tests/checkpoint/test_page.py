"""docs/checkpoints.md: its programs run as they stand, its table has every public name."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import distarray as da
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


def test_table_lists_all_names_and_their_arguments() -> None:
    table = PAGE.read_text().split("## All names")[1]
    rows = dict(re.findall(r"^\| `(\w+)(.*)$", table, re.MULTILINE))
    assert sorted(rows) == da.checkpoint.__all__
    for name, row in rows.items():
        public = getattr(da.checkpoint, name)
        if name == "Handle":
            expected = {one for one in vars(public) if not one.startswith("_")}
        else:
            expected = set(inspect.signature(public).parameters)
        assert [one for one in sorted(expected) if not re.search(rf"\b{one}\b", row)] == [], name


def test_checkpoint_tells_how_many_ranks_saved_it(tmp_path) -> None:
    da.checkpoint.save(tmp_path / "one", {"step": 1})
    assert "by 1 rank: 1 values>" in repr(da.checkpoint.open(tmp_path / "one"))
