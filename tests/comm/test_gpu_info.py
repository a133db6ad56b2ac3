"""What ``info`` tells of GPUs, from what ranks see."""

from __future__ import annotations

import sys

import pytest

from distarray.comm import _gpu_info
from distarray.comm._gpu_info import Gpu, RankGpus
from distarray.comm.cuda import _device
from distarray.comm.device_messages import _awareness
from distarray.errors import DeviceError

H100 = [Gpu(f"0000:{n:02x}:00.0", "NVIDIA H100", 80 << 30) for n in range(4)]
VERSIONS = "CUDA 13.0 driver"


def test_no_gpu_anywhere_is_one_line():
    assert _gpu_info.lines(None, [RankGpus("a", "CuPy is not installed")] * 3) == [
        ("GPUs", "none: CuPy is not installed")
    ]


def test_ranks_without_a_gpu_are_named_and_nothing_is_tried(monkeypatch):
    monkeypatch.setattr(_awareness, "verdict", None)
    here = RankGpus("a", "", tuple(H100), VERSIONS, 0)
    told = dict(_gpu_info.lines(None, [here, RankGpus("b", "CUDA sees no GPU")]))
    assert told["trouble"] == "1 of 2 ranks have none; rank 1 on b: CUDA sees no GPU"


def test_rank_that_cannot_tell_its_gpu_is_told_of():
    here = RankGpus("a", "", tuple(H100), VERSIONS, None, "set DISTARRAY_LOCAL_RANK")
    assert ("trouble", "set DISTARRAY_LOCAL_RANK") in _gpu_info.lines(None, [here] * 2)
    assert here.own == "none"


def test_nodes_that_are_alike_are_one_line_and_gpus_are_counted_once():
    each = [RankGpus(host, "", (gpu,), VERSIONS, 0) for host in "abc" for gpu in H100]  # one a rank
    each += [RankGpus("d", "", (H100[0],), VERSIONS, 0)] * 2
    told = _gpu_info._of_nodes(each)
    assert told == [
        ("versions", VERSIONS),
        ("GPUs", "4 x NVIDIA H100, 80.0 GiB on a and 2 more"),
        ("GPUs", "1 x NVIDIA H100, 80.0 GiB on d"),
    ]
    assert each[0].own == "0 (0000:00:00.0)"


def test_instances_of_one_gpu_are_counted_apart():
    parts = [Gpu("0000:00:00.0", "NVIDIA H100 MIG 1g.10gb", 10 << 30, bytes([n])) for n in range(3)]
    told = _gpu_info._of_nodes([RankGpus("a", "", (part,), VERSIONS, 0) for part in parts])
    assert told[1] == ("GPUs", "3 x NVIDIA H100 MIG 1g.10gb, 10.0 GiB on a")


@pytest.mark.parametrize(
    ("bound", "text"),
    [
        ([0, 0, 0], "the 3 ranks on b use 1 of the 4 GPUs they see"),
        ([0, 1, 0], "the 3 ranks on b use 2 of the 4 GPUs they see"),
        ([2, 1, 0], ""),
        ([0, 1, 2, 3, 0, 1, 2, 3], ""),
    ],
)
def test_gpus_that_stay_idle_are_told_of(bound, text):
    everyone = [RankGpus("a", "", tuple(H100[:1]), VERSIONS, 0)] * 2  # they have no more
    everyone += [RankGpus("b", "", tuple(H100), VERSIONS, number) for number in bound]
    assert [told.split(";")[0] for _, told in _gpu_info._describe_idle(everyone)] == [text] * bool(
        text
    )


def test_cupy_that_cannot_be_imported_is_told_of(monkeypatch, tmp_path):
    reason = "numpy.dtype size changed"
    (tmp_path / "cupy.py").write_text(f"raise ValueError({reason!r})")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    assert reason in _gpu_info._describe_rank(1).none
    with pytest.raises(DeviceError, match=f"{reason}.*distarray-mpi"):
        _device.cupy()
