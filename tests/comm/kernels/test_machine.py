"""What was measured of a processor is found again on it, and on no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from distarray.comm.kernels import _machine


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kernels"))


def test_content_is_found_again_on_the_same_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _machine.load("limits") == {}
    path = _machine.store("limits", {"copy": 1.5e-10})
    assert path is not None
    assert _machine.label() in path.name
    assert _machine.load("limits") == {"copy": 1.5e-10}
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    monkeypatch.setattr(_machine, "label", lambda: "another")
    assert _machine.load("limits") == {}


@pytest.mark.parametrize("text", ["", "{", "[1]", "\xff"])
def test_broken_file_is_no_file(text: str) -> None:
    path = _machine.store("limits", {"copy": 1.0})
    assert path is not None
    path.write_text(text, encoding="latin-1")
    assert _machine.load("limits") == {}


def test_folder_that_cannot_be_made_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "kernels"))
    assert _machine.store("limits", {"copy": 1.0}) is None
    assert _machine.load("limits") == {}


@pytest.mark.parametrize(
    ("lines", "label"),
    [
        (["model name\t: AMD EPYC 7763 64-Core Processor", "cpu family\t: 25", "model\t\t: 1"],
         "amd-epyc-7763-64-core-processor-f25-m1"),
        (["model name\t: Intel(R) Xeon(R) Processor", "cpu family\t: 6", "model\t\t: 143"],
         "intel-xeon-processor-f6-m143"),
        (["BogoMIPS\t: 2000.00"], "aarch64"),
    ],
)  # fmt: skip
def test_label_names_family_and_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lines: list[str], label: str
) -> None:
    (tmp_path / "cpuinfo").write_text("\n".join([*lines, "", "model\t: of the next"]))
    monkeypatch.setattr(_machine, "_PROCESSORS", tmp_path / "cpuinfo")
    monkeypatch.setattr(_machine.platform, "machine", lambda: "aarch64")
    assert _machine.label.__wrapped__() == label
