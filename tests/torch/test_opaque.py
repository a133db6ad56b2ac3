"""A mode that follows layouts pauses in this package's functions, and others do not."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.overrides import TorchFunctionMode  # noqa: E402

from distarray.torch._opaque import disable_compile, pause_modes, resume  # noqa: E402
from distarray.torch.following import Following  # noqa: E402


class Counting(TorchFunctionMode):
    """Counts what it sees."""

    seen = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen += 1
        return func(*args, **(kwargs or {}))


def depth():
    return torch._C._len_torch_function_stack()


def test_pauses_also_where_the_function_raises():
    @disable_compile
    def fails():
        assert depth() == 0
        raise ValueError("inside")

    assert disable_compile(depth)() == 0
    with Following(strict=False):
        assert depth() == 1
        assert disable_compile(depth)() == 0
        with pytest.raises(ValueError, match="inside"):
            fails()
        assert depth() == 1


def test_modes_of_others_see_what_they_saw():
    with Counting() as counting, Following():
        disable_compile(torch.ones)(2)
        assert counting.seen == 1
    with Following(), Counting() as counting:
        disable_compile(torch.ones)(2)
        assert counting.seen == 1


def test_pauses_beneath_modes_of_others():
    with Following() as following, Counting():
        assert disable_compile(lambda: following.pauses)() == 1
        assert following.pauses == 0


def test_pauses_all_that_are_open():
    with Following(), Following(strict=False):
        assert disable_compile(depth)() == 0
        assert depth() == 2


def test_resumes_what_a_style_calls():
    with Following():
        with pause_modes() as pause:
            assert depth() == 0
            assert resume(pause, depth) == 1
            assert depth() == 0
        assert depth() == 1
