"""The rules of the house that a machine can check, over the whole project."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
from collections.abc import Mapping
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


def test_imports_keep_to_the_floors() -> None:
    """import-linter's contracts in setup.cfg hold."""
    command = [Path(sys.executable).parent / "lint-imports", "--no-cache", "--no-logo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_module_imports_the_public_door() -> None:
    """Nothing inside goes through ``distarray/__init__.py``, which would be a cycle."""
    door = re.compile(r"^\s*(import distarray( as \w+)?\s*$|from distarray import )", re.MULTILINE)
    outside = {ROOT / "distarray" / name for name in ("__init__.py", "__main__.py", "_port.py")}
    inside = [path for path in SOURCES if path not in outside]
    assert [str(path) for path in inside if door.search(path.read_text())] == []


def _output(program: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return what a program prints in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**environment, "PYTHONPATH": str(ROOT)},
    ).stdout


def test_import_starts_nothing() -> None:
    """``import distarray`` loads neither MPI nor Numba, nor what is optional or takes long."""
    program = (
        "import sys, distarray;"
        "heavy = ['mpi4py.MPI', 'numba', 'cupy', 'torch', 'h5py', 'zarr', 'matplotlib',"
        " 'distarray.checkpoint', 'distarray.fft', 'distarray.linalg', 'distarray.random',"
        " 'distarray.comm.mpi', 'distarray.comm.device_messages', 'distarray.comm.cuda._boxes',"
        " 'concurrent.futures', 'subprocess', 'socket', 'hashlib'];"
        "print(*(name for name in heavy if name in sys.modules))"
    )
    assert _output(program) == "\n", "import distarray loads these"


def test_numpys_functions_find_what_is_imported_late() -> None:
    program = (
        "import numpy as np, distarray as da; x = da.ones((2, 2));"
        "print(float(np.linalg.norm(x)), np.fft.fft(x).tolist()[0][0].real)"
    )
    assert _output(program) == "2.0 2.0\n"


PROCESS = """
import atexit, builtins, faulthandler, os, signal, sys, threading, warnings
import concurrent.futures.thread, numpy

def process():
    return {
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook, sys.exit, os._exit),
        "builtins": (builtins.exit, builtins.quit),
        "exit functions": (atexit._ncallbacks(), *threading._threading_atexits),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "faulthandler": faulthandler.is_enabled(),
        "monitoring": hasattr(sys, "monitoring") and [*map(sys.monitoring.get_tool, range(6))],
        "threads": threading.enumerate(),
        "environment": dict(os.environ),
        "files": os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd") else [],
        "warnings": list(warnings.filters),
        "float errors": numpy.geterr(),
    }

before = process()
import distarray
after = process()
print(*(name for name in before if before[name] != after[name]), sep="; ")
"""


def test_import_changes_nothing_in_the_process() -> None:
    """A process that no launcher started as one of several ranks stays as it was."""
    launchers = ("PMI", "OMPI", "PMIX", "SLURM", "HYD")
    alone = {k: v for k, v in os.environ.items() if not k.startswith(launchers)}
    output = _output(PROCESS, alone)
    assert output == "\n", f"import distarray changes these: {output}"


def test_benchmarks_find_what_they_import() -> None:
    """All of them, started as their driver starts them; what is absent alone may be missing."""
    program = (
        "import importlib, pkgutil, benchmarks\n"
        "for module in pkgutil.walk_packages(benchmarks.__path__, 'benchmarks.'):\n"
        "    try:\n"
        "        module.name.endswith('__main__') or importlib.import_module(module.name)\n"
        "    except ModuleNotFoundError as error:\n"
        "        print(error.name)"
    )
    assert set(_output(program).split()) <= {"torch", "cupy"}


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
def test_module_says_what_it_is_about(path: Path) -> None:
    """Each module opens with a docstring, and its name says what it is about."""
    text = path.read_text()
    assert text.startswith('"""')
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
