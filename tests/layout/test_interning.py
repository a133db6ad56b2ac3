"""Equal layouts are one object: across spellings, pickles and threads, and never kept alive."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

from hypothesis import given, settings

import distarray.errors
from distarray.layout import AbstractMesh, Layout, Replicate, Shard, forget_recent
from tests.layout.strategies import layouts

MESH = AbstractMesh((2, 4), axis_names=("dp", "tp"))


@given(layouts())
@settings(max_examples=100)
def test_pickled_and_copied_layout_is_the_same_object(layout: Layout) -> None:
    assert pickle.loads(pickle.dumps(layout)) is layout
    assert copy.copy(layout) is layout
    assert copy.deepcopy(layout) is layout


def test_every_spelling_gives_one_object() -> None:
    layout = Layout(MESH, (Shard(1), Replicate()), (6, 8))
    assert Layout(MESH, [Shard(1), Replicate()], [6, 8]) is layout
    assert Layout(MESH, (Shard(-1), Replicate()), (6, 8)) is layout
    assert Layout(MESH, (Shard(-1), Replicate()), (6, 8)) is layout
    assert Layout(MESH, (Shard(1), Replicate()), (6, 8), shard_order=(0, 1)) is layout
    assert Layout(AbstractMesh((2, 4), ["dp", "tp"]), (Shard(1), Replicate()), (6, 8)) is layout


def test_layout_and_mesh_are_freed_with_their_last_reference() -> None:
    gc.disable()
    try:
        mesh = AbstractMesh((3, 5), axis_names=("once", "only"))
        layout = Layout(mesh, (Shard(-1), Shard(0)), (1234, 4321), shard_order=(1, 0))
        layout.local_shape()
        assert layout.abstract is layout
        watch, watch_mesh = weakref.ref(layout), weakref.ref(mesh)
        del layout, mesh
        forget_recent()
        # No collection runs: there must be no cycle either.
        assert watch() is None
        assert watch_mesh() is None
    finally:
        gc.enable()


def test_many_layouts_leave_nothing_behind() -> None:
    gc.collect()

    def entries() -> list[Any]:
        frames = {id(frame): frame for frame in MESH.frames.values()}
        return [entry for frame in frames.values() for entry in frame.layouts.values()]

    def count() -> int:
        return sum(entry() is not None for entry in entries())

    before = count()
    for size in range(10_000, 12_000):
        Layout(MESH, (Shard(0), Replicate()), (size,))
    assert count() <= before + 128  # those that were built last
    assert len(entries()) <= before + 128 + 1
    forget_recent()
    assert count() <= before


def test_threads_that_race_get_one_object() -> None:
    threads, rounds = 8, 150
    made: list[list[Layout]] = [[] for _ in range(threads)]
    start = threading.Barrier(threads)

    def work(mine: list[Layout]) -> None:
        for size in range(rounds):
            start.wait()
            mesh = AbstractMesh((size + 1, 2), ("raced", "mesh"))
            mine.append(Layout(mesh, (Shard(-1), Replicate()), (size, 20_000)))

    workers = [threading.Thread(target=work, args=(mine,)) for mine in made]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(interval)
    for same in zip(*made, strict=True):
        assert all(layout is same[0] for layout in same)


def test_threads_that_make_and_drop_layouts_leave_a_working_table() -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for turn in range(2000):
                shape = (turn % 7, 30_000)
                one = Layout(MESH, (Shard(-1), Shard(0)), shape)
                assert one.shape == shape
                assert one is Layout(MESH, (Shard(1), Shard(0)), shape)
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


def test_unpickled_in_another_process_it_describes_the_same_blocks() -> None:
    layout = Layout(MESH, (Shard(0), Shard(0)), (11,), shard_order=(1, 0))
    program = (
        "import pickle, sys; layout = pickle.load(sys.stdin.buffer);"
        "print(repr(layout), layout.local_box((1, 2)), layout.fingerprint)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps(layout),
        capture_output=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(distarray.errors.__file__).parents[1])},
    )
    expected = f"{layout!r} {layout.local_box((1, 2))} {layout.fingerprint}\n"
    assert done.stdout.decode() == expected
