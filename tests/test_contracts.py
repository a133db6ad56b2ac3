"""The rules of the house that a machine can check, over the whole project."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "distarray").rglob("*.py"))
FOLDERS = ("distarray", "tests", "examples", "benchmarks", "docs", "scripts", ".ci")
TEXTS = {".py", ".md", ".sh", ".toml", ".cfg", ".slurm", ".yaml", ""}
PROJECT = [
    path
    for folder in (*FOLDERS, "")
    for path in sorted((ROOT / folder).glob("**/*" if folder else "*"))
    if path.is_file()
    and path.suffix in TEXTS
    and not any(part[0] in "._" and part != ".ci" for part in path.relative_to(ROOT).parts[:-1])
]

LEFT_UNDONE = [
    "TO" + "DO",
    "FIX" + "ME",
    "XX" + "X",
    "NotImplemented" + "Error",
    "place" + "holder",
]
MOST_LINES = 450  # past 400, look for the two modules inside


def test_imports_keep_to_the_floors() -> None:
    """import-linter's contracts in setup.cfg hold."""
    command = [Path(sys.executable).parent / "lint-imports", "--no-cache", "--no-logo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_module_imports_the_public_door() -> None:
    """Nothing inside goes through ``distarray/__init__.py``, which would be a cycle."""
    door = re.compile(r"^\s*(import distarray( as \w+)?\s*$|from distarray import )", re.MULTILINE)
    outside = {ROOT / "distarray" / name for name in ("__init__.py", "__main__.py")}
    inside = [path for path in SOURCES if path not in outside]
    assert [str(path) for path in inside if door.search(path.read_text())] == []


def test_import_starts_nothing() -> None:
    """``import distarray`` loads neither MPI nor Numba, nor anything optional."""
    program = (
        "import sys, distarray;"
        "heavy = ['mpi4py.MPI', 'numba', 'cupy', 'torch', 'h5py', 'zarr', 'matplotlib'];"
        "print(*(name for name in heavy if name in sys.modules))"
    )
    output = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
    ).stdout.split()
    assert output == [], "import distarray loads these"


def test_nothing_is_left_undone() -> None:
    """No file says that something is to be written later."""
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in PROJECT
        for word in LEFT_UNDONE
        if word in path.read_text(errors="replace")
        and "cupy_stand_in" not in path.parts  # it raises what CuPy raises
    ]
    assert found == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_says_its_one_responsibility(path: Path) -> None:
    """Each module opens with a docstring and stays short enough to read at once."""
    text = path.read_text()
    assert text.startswith('"""')
    assert path.name == "__init__.py" or text.count("\n") <= MOST_LINES
    assert path.stem.strip("_") not in {"utils", "helpers", "common", "misc"}


def test_readme_shows_what_the_scripts_run() -> None:
    """The two commands of the README are the ones that exist, and the suite is what CI calls."""
    readme = (ROOT / "README.md").read_text()
    for script in ("scripts/demo", "scripts/suite"):
        assert f"bash {script}" in readme
        assert os.access(ROOT / script, os.X_OK)
    assert "bash scripts/suite" in (ROOT / ".ci" / "run").read_text()


def test_import_contracts_are_all_read() -> None:
    """Every contract section has a type, so that none is passed over by a slip of the pen."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    sections = [name for name in parser.sections() if name.startswith("importlinter:contract:")]
    assert len(sections) >= 4
    assert all(parser.has_option(section, "type") for section in sections)
