"""The pages on torch modules are one program each, and print what they say."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import distarray as da

pytest.importorskip("torch")
pytestmark = pytest.mark.mpi(min_size=4)

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let all ranks work in one empty directory, to which the page writes checkpoints."""
    mesh = da.default_mesh()
    everyone = mesh.communicator()
    path = everyone.broadcast_object(tempfile.mkdtemp() if mesh.rank == 0 else None)
    with monkeypatch.context() as here:
        here.chdir(path)
        yield
    everyone.barrier()
    if mesh.rank == 0:
        shutil.rmtree(path)


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("page", ["torch.md", "fsdp.md"])
def test_page_prints_what_it_says(page: str) -> None:
    text = (DOCS / page).read_text()
    program = "".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    expected = "".join(re.findall(r"```text\n(.*?)```", text, re.DOTALL))
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(program, "the page", "exec"), {"__name__": "__main__"})
    assert output.getvalue() == (expected if da.default_mesh().rank == 0 else "")
