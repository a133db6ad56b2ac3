"""Ranks that share cores share the threads of OpenBLAS and of large copies as well."""

from __future__ import annotations

import ast
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from distarray.comm.kernels import _threads
from tests.test_abort import launch

PROGRAM = """
import numpy as np
import distarray as da
from distarray.comm.kernels import cores
from distarray.comm.kernels._threads import _openblas_threads
from distarray.linalg._kernels import _scipy
def threads(): return [count() for count, _ in _openblas_threads()]
before = threads()
x = da.random.default_rng(0).random((6, 6))
trace = float(da.trace(x @ x))
_scipy("gemm", x.dtype)
if x.mesh.rank == 0: print((before, threads(), cores()))
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("told", ["", "2"])
def test_openblas_gets_the_cores_of_a_rank(told: str) -> None:
    ended = launch(PROGRAM, OMP_NUM_THREADS="", OPENBLAS_NUM_THREADS=told)
    assert ended.status == 0, ended.said
    before, after, cores = ast.literal_eval(ended.said)
    if not before:
        pytest.skip("NumPy has another library than OpenBLAS")
    share = max(1, cores // 3)
    assert all(count <= share for count in after) or told
    assert after[: len(before)] == (before if told else [min(share, *before)] * len(before))


@pytest.mark.parametrize(
    ("own", "others", "share"),
    [
        (range(8), [range(8)] * 3, 2),
        (range(2), [range(2)] * 3, 1),
        (range(4), [range(4, 8), range(8, 12)], 4),  # each has cores of its own
        (range(4), [range(4), range(4, 8), range(4, 8)], 2),
        (range(6), [range(6)] * 5, 1),
    ],
)
def test_cores_are_shared_by_the_ranks_that_may_run_on_them(
    monkeypatch: pytest.MonkeyPatch, own: range, others: Sequence[range], share: int
) -> None:
    limited = []
    for name, value in (
        ("_share", None),
        ("_count", None),
        ("limit_openblas", lambda: limited.append(_threads._share)),
        ("_read_setting", lambda: 0),
    ):
        monkeypatch.setattr(_threads, name, value)
    ranks = [frozenset(own), *map(frozenset, others)]
    _threads.share_cores(ranks[0], ranks[:1])
    assert limited == []
    _threads.share_cores(ranks[0], ranks)
    _threads.share_cores(ranks[0], ranks[:2])  # ranks of a smaller group are not alone either
    assert set(limited) == {share}
    assert _threads.count() == share


def test_files_of_any_name_may_be_mapped_beside_openblas(tmp_path: Path) -> None:
    before = len([*_threads._openblas_threads()])
    for name in (b"data_\xe9", b"a_openblas_\xe9", b"a_openblas.npy"):
        path = os.fsencode(tmp_path) + b"/" + name
        try:
            with open(path, "wb+") as file:
                file.write(bytes(mmap.PAGESIZE))
                file.flush()
                mapped = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        except OSError:
            pytest.skip("names of files are text here")
        assert len([*_threads._openblas_threads()]) == before
        mapped.close()
