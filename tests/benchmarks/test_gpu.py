"""The run on a GPU, rehearsed without one; what it does where parts crash, hang or are missing."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as driver
from benchmarks.gpu import check, job, part, report, suite
from tests import processes, run

ROOT = Path(driver.ROOT)
needs_mpiexec = pytest.mark.skipif(check.launcher(None) is None, reason="needs mpiexec")


def rehearsed(folder: Path, parts: str) -> tuple[dict, str]:
    # More than there is, so that no part of a slow machine is ended at its share of it.
    command = [sys.executable, "-m", "benchmarks.gpu", "--rehearse", "--seconds", "800"]
    command += ["--ranks", "2", "--parts", parts, "--out", str(folder)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    for name in ("DISTARRAY_TEST_RECORDS", "DISTARRAY_TEST_DEVICE"):
        environment.pop(name, None)
    ended = job.run(command, environment, 260, folder / "log", ROOT)
    assert ended.status == 0, ended.last_lines
    found = json.loads((folder / "gpu.json").read_text())
    whole = (folder / "gpu.log").read_text()
    for step in found["parts"]:
        assert not step["why"], (step["name"], step["output"], whole[-3000:])
    page = (folder / "gpu.md").read_text()
    headings = [line for line in page.splitlines() if line.startswith("## ")]
    assert headings
    assert all("(rehearsal)" in line for line in headings)
    return found, page


@needs_mpiexec
@pytest.mark.slow
@pytest.mark.timeout(270)
def test_rehearsal_runs_every_part(tmp_path: Path) -> None:
    found, page = rehearsed(tmp_path, "here,kernels,moves,suite")
    rows = [row for part in found["parts"] for row in part["rows"]]
    troubles = [row for row in rows if "trouble" in row.get("cells", ())]
    assert not troubles
    assert not [row for row in rows if row.get("holds") is not None]  # nothing is proven
    tables = {row["table"] for row in rows if "case" in row}
    assert {"Device copy", "Pack and unpack", "Transposes", "Reductions", "Constants"} <= tables
    assert sum(table.startswith("Moves: 64 x 64") for table in tables) == 3
    constants = [row["case"] for row in rows if row.get("table") == "Constants"]
    assert len(constants) == len(set(constants)) == 3
    assert "1 passed, 0 failed" in page
    assert "stand-in for a GPU" in page


def test_what_the_suite_runs_on_a_gpu_is_there() -> None:
    chosen = suite._paths(run.ROOT, run, rehearsal=False)
    assert all(chosen)
    assert [path for paths in chosen for path in paths if not Path(path).exists()] == []


@needs_mpiexec
@pytest.mark.slow
@pytest.mark.timeout(270)
def test_steps_are_rehearsed_on_the_host(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    found, page = rehearsed(tmp_path, "torch")
    equal = [
        row["cells"]["equal"]
        for part in found["parts"]
        for row in part["rows"]
        if "error" in row.get("cells", ())
    ]
    assert len(equal) == 9
    assert all(cell == ["", "yes"] for cell in equal)
    assert "There is no CUDA" in page
    assert "9 comparisons" in page


def test_rehearsal_keeps_away_from_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        driver.main(["--rehearse", "--out", str(driver.RESULTS)])
    assert "a folder of its own" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        driver.main(["--parts", "kernels,nothing"])
    assert "no such parts: nothing" in capsys.readouterr().err


def test_without_a_gpu_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cupy.py").write_text("raise ImportError('none here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(check, "missing", lambda *_: [])
    options = ["--seconds", "60", "--parts", "kernels,suite", "--out", str(tmp_path / "out")]
    assert driver.main(options) == 1
    page = (tmp_path / "out" / "gpu.md").read_text()
    assert "no GPU: ImportError: none here" in page
    assert "| yes |" not in page
    assert page.count("| not known |") == 8


def test_part_that_crashes_or_hangs_leaves_what_it_had_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = '{"table": "T", "case": "one", "cells": {"time": ["s", 0.5]}}'
    for name, end in (("crashing", "os.kill(os.getpid(), 11)"), ("hanging", "time.sleep(60)")):
        (tmp_path / f"{name}.py").write_text(
            "import os, sys, time\n"
            "with open(sys.argv[sys.argv.index('--rows') + 1], 'a') as file:\n"
            f"    file.write('''{begun}\\n''')\n"
            f"print('before the end', flush=True)\n{end}\n"
        )
    monkeypatch.setattr(
        driver,
        "STEPS",
        (
            driver.Step("crashing", "one", "benchmarks_crashing", 0, 0.5),
            driver.Step("hanging", "one", "benchmarks_hanging", 0, 0.1),
            driver.Step("on ranks", "one", "benchmarks_hanging", 2, 0.1),
        ),
    )
    for name in ("crashing", "hanging"):
        (tmp_path / f"{name}.py").rename(tmp_path / f"benchmarks_{name}.py")
    monkeypatch.setattr(driver, "GROUPS", ("one",))
    monkeypatch.setattr(driver, "MARGIN_SECONDS", 1.0)
    monkeypatch.setattr(check, "launcher", lambda named: None)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    started = time.monotonic()
    out = tmp_path / "out"
    options = ["--rehearse", "--seconds", "20", "--parts", "one", "--out", str(out)]
    assert driver.main(options) == 0
    assert time.monotonic() - started < 15
    crashed, hung, without = json.loads((out / "gpu.json").read_text())["parts"]
    assert "status -11" in crashed["why"]
    assert "at its deadline" in hung["why"]
    assert "there is no mpiexec" in without["why"]
    for one in (crashed, hung):
        assert one["rows"] == [json.loads(begun)]
        assert "before the end" in one["output"]
    page = (out / "gpu.md").read_text()
    assert page.count("| one | 500 ms |") == 2
    assert "**hanging**: it was ended" in page


def test_descendants_of_a_job_end_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "GRACE_SECONDS", 1.0)
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    program = (
        "import subprocess, sys, time\n"
        f"p = subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True)\n"
        "print(p.pid, flush=True)\ntime.sleep(60)\n"
    )
    ended = job.run([sys.executable, "-c", program], os.environ, 2.0, tmp_path / "log", tmp_path)
    assert ended.status is None
    assert not processes.lives(int(ended.output.split()[0]))


def test_page_says_what_holds_and_what_is_not_known() -> None:
    rows = [
        {"promise": "pack", "holds": True, "text": "20 cases"},
        {"promise": "moves", "holds": False, "text": "4 GiB: 31 %"},
        {"fact": "GPU", "value": "a | b"},
        {"table": "T", "note": "Left out."},
        {"table": "T", "case": "x", "cells": {"share": ["share", 0.815], "rate": ["B/s", 3e12]}},
        {"table": "T", "case": "y", "cells": {"time": ["s", 2.5e-6], "off": ["e", 1.5e-7]}},
    ]
    parts = [{"name": "kernels", "why": "", "output": "", "rows": rows}]
    lines = report.page(parts, False, [2]).splitlines()
    assert "rehears" not in "".join(lines)
    held = {line.split("|")[2].strip(): line for line in lines if line.count("|") == 4}
    assert "80 %" in held["yes"]
    assert "31 %" in held["NO"]
    assert "| the suite passes on 2 ranks of the GPU | not known |" in "\n".join(lines)
    assert "| GPU | a / b |" in lines
    assert "| x | 82 % | 3000 GB/s | - | - |" in lines
    assert "| y | - | - | 2.5 us | 1.5e-07 |" in lines


def test_launcher_brings_its_library(tmp_path: Path) -> None:
    mpiexec = tmp_path / "bin" / "mpiexec"
    mpiexec.parent.mkdir()
    mpiexec.write_text("#!/bin/sh\n")
    assert check.launcher(str(mpiexec)) is None  # no program yet
    mpiexec.chmod(0o755)
    assert check.launcher(str(mpiexec)) == str(mpiexec)
    assert check.with_library({}, str(mpiexec)) == {}
    (tmp_path / "lib").mkdir()
    library = tmp_path / "lib" / "libmpi.so.12"
    library.touch()
    found = check.with_library({"LD_LIBRARY_PATH": "/x"}, str(mpiexec))
    assert found == {"LD_LIBRARY_PATH": f"{library.parent}:/x", "MPI4PY_LIBMPI": str(library)}
    named = check.with_library({"MPI4PY_LIBMPI": "mine"}, str(mpiexec))
    assert named["MPI4PY_LIBMPI"] == "mine"


def test_case_that_fails_is_told_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows"
    monkeypatch.setattr(sys, "argv", ["part", "--rows", str(rows), "--seconds", "60"])
    one = part.Part()
    assert one.attempt("T", "first", lambda: 1 // 0) is None
    assert one.attempt("T", "second", lambda: 5) == 5
    assert "Traceback" in capfd.readouterr().err
    one.end = 0.0
    assert not any(one.has_time(f"case {i}") for i in range(9))
    one.close("T")
    failed, note = map(json.loads, rows.read_text().splitlines())
    assert failed["cells"]["trouble"][1].startswith("ZeroDivisionError")
    assert note["note"].endswith("case 5 and 3 more.")
