"""The pages that need no torch are one program each, and print what they say."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from distarray.testing import simulate

DOCS = Path(__file__).resolve().parent.parent / "docs"
HERE = ("coming-from.md", "how-to.md", "iterative.md", "redistribution.md", "tutorial.md")
ELSEWHERE = ("checkpoints.md", "torch.md", "fsdp.md")
"""Pages that tests/checkpoint/test_page.py and tests/mpi/torch/test_page.py run."""


def code(page: Path, language: str) -> str:
    """Return all code of a page in one language."""
    return "".join(re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL))


@pytest.mark.parametrize("page", HERE)
def test_page_prints_what_it_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the tutorial writes files
    program = compile(code(DOCS / page, "python"), page, "exec")
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        simulate(4, lambda: exec(program, {}))
    assert output.getvalue() == code(DOCS / page, "text")


def test_every_page_with_code_is_run() -> None:
    assert {page.name for page in DOCS.rglob("*.md") if code(page, "python")} == {*HERE, *ELSEWHERE}
