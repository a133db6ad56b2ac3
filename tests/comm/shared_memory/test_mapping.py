"""Mapped memory files are aligned, and one memory wherever they are mapped."""

from __future__ import annotations

import itertools
import mmap
import os

import numpy as np
import pytest

from distarray.comm.shared_memory._hugepages import Mapping, huge_page

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memory files")


@pytest.fixture
def file():
    made = os.memfd_create("mapping")
    yield made
    os.close(made)


def test_what_one_mapping_writes_another_reads_after_pages_became_huge(file):
    length = 4 * huge_page()
    os.ftruncate(file, length)
    mine, other = Mapping(file, length, writable=True), Mapping(file, length, writable=False)
    assert mine.address % huge_page() == other.address % huge_page() == 0
    seen = np.frombuffer(other.bytes, np.uint8)
    mine.populate(4096, length - 4096)
    written = np.frombuffer(mine.bytes, np.uint8)
    assert not written.flags.writeable  # blocks are made from the address
    os.pwrite(file, b"\x07" * 3, length - 3)
    assert seen[-3:].tolist() == written[-3:].tolist() == [7, 7, 7]
    assert not seen[:-3].any()
    assert os.fstat(file).st_blocks * 512 >= length - 4096


def test_memory_outlives_the_mapping_while_somebody_looks(file):
    os.ftruncate(file, 8192)
    os.pwrite(file, b"\x05", 8191)
    view = Mapping(file, 8192, writable=False).bytes[8000:]
    assert view[191] == 5


def test_blocks_of_several_huge_pages_begin_in_the_first_page_of_one_each_elsewhere():
    from distarray.comm import _memory

    small = _memory.empty((70_000,), np.uint8)
    blocks = [_memory.empty((n * huge_page(),), np.uint8) for n in (2, 3, 2, 4)]
    at = [block.ctypes.data % huge_page() for block in blocks]
    assert all(first % 64 == 0 and first < mmap.PAGESIZE for first in at)
    assert len(set(at)) == len(at)
    for first, second in itertools.pairwise(at):
        assert (first - second) % mmap.PAGESIZE < mmap.PAGESIZE // 4
    for number, block in enumerate(blocks):
        block[:] = number
    assert [set(block[[0, -1]]) for block in blocks] == [{0}, {1}, {2}, {3}]
    del small, blocks
