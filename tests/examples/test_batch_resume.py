"""Batch files that go on where they were stopped, with stand-ins for Slurm's commands."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

BATCH = Path(__file__).resolve().parents[2] / "examples" / "batch"
SCRIPT = BATCH / "gpt_fsdp.slurm"


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which `srun` and `scontrol` write down what they are asked."""
    for name, then in (("srun", "exec sleep ${SLEEP:-0}"), ("scontrol", "exit 0")):
        command = tmp_path / "bin" / name
        command.parent.mkdir(exist_ok=True)
        command.write_text(f'#!/bin/bash\necho {name} "$@" >> "$TOLD"\n{then}\n')
        command.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "TOLD": str(tmp_path / "told"),
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NTASKS": "8",
    }


@pytest.mark.parametrize(
    ("script", "folder", "checkpoints"),
    [
        ("gpt_fsdp.slurm", "gpt-fsdp-7", "gpt-checkpoints"),
        ("taylor_green.slurm", "taylor-green-7", "taylor_green"),
    ],
)
def test_first_run_begins_and_later_ones_resume(
    slurm: dict[str, str], tmp_path: Path, script: str, folder: str, checkpoints: str
) -> None:
    subprocess.run(["bash", BATCH / script], env=slurm, check=True, timeout=30)
    manifest = tmp_path / folder / checkpoints / "step-00000100" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("{}")
    subprocess.run(["bash", BATCH / script], env=slurm, check=True, timeout=30)
    first, second = (tmp_path / "told").read_text().splitlines()
    assert "--mesh 2,4" in first
    assert f"--out {tmp_path}/{folder}" in first
    assert "--resume" not in first
    assert second == f"{first} --resume"


def test_signal_before_the_limit_puts_the_job_into_the_queue(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    run = subprocess.Popen(["bash", SCRIPT], env={**slurm, "SLEEP": "5"})
    for _ in range(300):
        if (tmp_path / "told").exists():
            break
        time.sleep(0.02)
    run.send_signal(signal.SIGUSR1)
    assert run.wait(timeout=20) == 0
    assert (tmp_path / "told").read_text().splitlines()[1:] == ["scontrol requeue 7"]


def test_program_that_fails_fails_the_job(slurm: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "bin" / "srun").write_text("#!/bin/bash\nexit 3\n")
    assert subprocess.run(["bash", SCRIPT], env=slurm, check=False, timeout=30).returncode == 3
