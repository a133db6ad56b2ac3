"""At whatever operation on files a save ends, the checkpoint before it or the new one is there."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import numpy as np
import pytest

import distarray as da
from distarray.checkpoint.storage import _files
from distarray.testing import simulate


class CrashError(BaseException):
    """The end of a process: nothing that it would do afterwards is done."""


def crash_at(operation: int, rank: int) -> object:
    """Return a hook that lets one rank end at an operation."""
    left = [operation]

    def hook(*_: object) -> None:
        if da.default_mesh().rank == rank:
            left[0] -= 1
        if left[0] < 0:
            raise CrashError

    return hook


def value_at(path: Path) -> float:
    """Return the value that a checkpoint is filled with, having read all of it."""
    found = da.checkpoint.load(path)
    values = {*found["x"].full_array().ravel().tolist(), *found["n"].tolist()}
    assert len(values) == 1
    return values.pop()


def save(path: Path, value: float, **options: object) -> None:
    state = {"x": da.full((40, 3), float(value)), "n": np.full(5, value)}
    handle = da.checkpoint.save(path, state, **options)
    if handle is not None:
        handle.wait()


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("exchanges", "step"), [(True, False), (False, False), (True, True)])
def test_crash_at_any_operation_leaves_a_whole_checkpoint(
    tmp_path, monkeypatch, exchanges, step, rank
):
    if not exchanges:
        monkeypatch.setattr(_files, "_renameat2", lambda: None)

    def options(number: int) -> dict[str, int]:
        return {"step": number, "keep_last": 1} if step else {}

    found = []
    for operations in range(60):
        folder = tmp_path / str(operations)
        path = folder / "ckpt"
        simulate(2, lambda path=path: save(path, 1, **options(1)))
        monkeypatch.setattr(_files, "hook", crash_at(operations, rank))
        try:
            simulate(2, lambda path=path: save(path, 2, **options(2)))
            crashed = False
        except CrashError:
            crashed = True
        monkeypatch.setattr(_files, "hook", None)
        found.append(value_at(path))
        if not crashed:
            break
        simulate(2, lambda path=path: save(path, 3, **options(3)))
        assert value_at(path) == 3
        assert [p.name for p in folder.iterdir()] == ["ckpt"], "what the crash left is gone"
        if step:
            assert [p.name for p in path.iterdir()] == ["step-00000003"]
    assert not crashed
    assert found == sorted(found)
    assert set(found) == {1, 2}


@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("rank", [0, 1])
def test_rank_that_fails_at_any_operation_fails_the_save_on_all(
    tmp_path, monkeypatch, exchanges, rank
):
    """As when the disk is full: the error names the rank, and nothing is left behind."""
    if not exchanges:
        monkeypatch.setattr(_files, "_renameat2", lambda: None)
    path = tmp_path / "ckpt"
    simulate(2, save, path, 1)
    told = []
    for operations in range(40):
        left = [operations]

        def hook(operation: str, where: str, left: list[int] = left) -> None:
            if operation == "remove" or da.default_mesh().rank != rank:
                return
            left[0] -= 1
            if left[0] == -1:
                told.append(operation)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), where)

        def program(hook: object = hook) -> str:
            try:
                save(path, 2)
            except da.errors.CheckpointError as error:
                return str(error)
            return ""

        monkeypatch.setattr(_files, "hook", hook)
        messages = simulate(2, program)
        monkeypatch.setattr(_files, "hook", None)
        assert [p.name for p in tmp_path.iterdir()] == ["ckpt"]
        if left[0] >= 0:
            break
        assert all(f"rank {rank}" in message and "No space" in message for message in messages)
        assert value_at(path) in (1, 2)
    assert messages == ["", ""]
    assert "write" in told
    assert value_at(path) == 2


def test_replacing_keeps_what_is_no_checkpoint(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").write_text("text")
    (tmp_path / "file").write_text("text")
    for name in ("mine", "file"):
        with pytest.raises(da.errors.CheckpointError, match="is no checkpoint"):
            save(tmp_path / name, 1)
    assert (tmp_path / "mine" / "thesis").read_text() == "text"


@pytest.mark.parametrize("exchanges", [True, False])
def test_links_stay_and_lead_to_the_new_checkpoint(tmp_path, monkeypatch, exchanges):
    if not exchanges:
        monkeypatch.setattr(_files, "_renameat2", lambda: None)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "home").mkdir()
    link = tmp_path / "home" / "ckpt"
    link.symlink_to(tmp_path / "scratch" / "ckpt")
    for value in (1, 2):
        save(link, value)
        assert value_at(link) == value
        assert link.is_symlink()
        assert [p.name for p in (tmp_path / "home").iterdir()] == ["ckpt"]
        assert [p.name for p in (tmp_path / "scratch").iterdir()] == ["ckpt"]


def test_steps_are_kept_and_the_newest_whole_one_is_loaded(tmp_path):
    path = tmp_path / "run"
    assert da.checkpoint.latest(path) is None
    for step in (10, 20, 30, 40):
        save(path, step, step=step, keep_last=3)
    assert da.checkpoint.steps(path) == [20, 30, 40]
    assert da.checkpoint.latest(path) == 40
    assert value_at(path) == 40
    assert da.checkpoint.load(path, {"n": None}, step=20)["n"][0] == 20
    (data,) = (path / "step-00000040").glob("data-*")
    os.truncate(data, 100)
    with pytest.warns(UserWarning, match="truncated"):
        assert value_at(path) == 30
    with pytest.raises(da.errors.ArgumentError, match="keep_last"):
        save(path, 5, keep_last=2)
    with pytest.raises(da.errors.CheckpointError, match="step-00000007"):
        da.checkpoint.load(path, step=7)
    with pytest.raises(da.errors.CheckpointError, match="no checkpoint at"):
        da.checkpoint.load(tmp_path / "nothing")


@pytest.mark.parametrize("background", [False, True])
def test_a_step_before_the_newest_raises_on_all_ranks_and_writes_nothing(tmp_path, background):
    path = tmp_path / "run"
    for step in (10, 20, 30):
        save(path, step, step=step)

    def again(**options: object) -> None:
        with pytest.raises(da.errors.ArgumentError, match=r"later steps, 20, 30, .*remove_later"):
            da.checkpoint.save(path, {"n": 1}, step=10, async_op=background, **options)

    simulate(3, again)
    simulate(3, lambda: again(keep_last=2))
    assert sorted(p.name for p in path.iterdir()) == [f"step-000000{n}" for n in (10, 20, 30)]
    assert value_at(path) == 30
    save(path, 31, step=30)
    assert value_at(path) == 31, "the same step is replaced"


@pytest.mark.parametrize("background", [False, True])
def test_later_steps_go_once_the_new_one_is_there(tmp_path, background, monkeypatch):
    path = tmp_path / "run"
    for step in (10, 20, 30, 40):
        save(path, step, step=step)
    seen = []

    def hook(operation: str, where: str) -> None:
        if operation == "remove":
            seen.append((path / "step-00000025").exists())

    monkeypatch.setattr(_files, "hook", hook)
    save(path, 25, step=25, keep_last=2, remove_later=True, async_op=background)
    assert da.checkpoint.steps(path) == [20, 25]
    assert value_at(path) == 25
    assert seen
    assert all(seen)
    save(path, 26, step=26, remove_later=True)  # nothing is later
    assert da.checkpoint.steps(path) == [20, 25, 26]


def test_what_saves_of_other_names_have_left_stays(tmp_path):
    ours, theirs = tmp_path / ".step-00000001.tmp-0a", tmp_path / ".model.tmp-0a"
    for left in (ours, theirs):
        left.mkdir()
    simulate(2, lambda: save(tmp_path, 1, step=2))
    assert theirs.exists()
    assert not ours.exists()


def test_files_that_another_rank_has_made_may_be_slow_to_appear(tmp_path):
    late = threading.Timer(0.2, (tmp_path / "data").touch)
    late.start()
    os.close(_files.open_to_write(os.fspath(tmp_path / "data")))
    late.join()


def test_remove_later_is_about_steps(tmp_path):
    with pytest.raises(da.errors.ArgumentError, match="no step="):
        save(tmp_path / "x", 1, remove_later=True)
    with pytest.raises(da.errors.ArgumentError, match="remove_later=1"):
        save(tmp_path / "x", 1, step=1, remove_later=1)


def test_one_path_is_used_with_steps_or_without(tmp_path):
    save(tmp_path / "steps", 1, step=1)
    with pytest.raises(da.errors.ArgumentError, match="no step= was given"):
        save(tmp_path / "steps", 2)
    save(tmp_path / "one", 1)
    with pytest.raises(da.errors.ArgumentError, match="saved without step="):
        save(tmp_path / "one", 2, step=2, remove_later=True)
    assert value_at(tmp_path / "steps") == value_at(tmp_path / "one") == 1
