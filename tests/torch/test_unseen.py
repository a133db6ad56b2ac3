"""A mode that follows layouts pauses in this package's functions, and others do not."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.overrides import TorchFunctionMode  # noqa: E402

from distarray.torch.following._mode import Following  # noqa: E402
from distarray.torch.following._unseen import unseen  # noqa: E402


class Counting(TorchFunctionMode):
    """Counts what it sees."""

    seen = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen += 1
        return func(*args, **(kwargs or {}))


def depth():
    return torch._C._len_torch_function_stack()


def test_pauses_also_where_the_function_raises():
    @unseen
    def fails():
        assert depth() == 0
        raise ValueError("inside")

    assert unseen(depth)() == 0
    with Following(strict=False):
        assert depth() == 1
        assert unseen(depth)() == 0
        with pytest.raises(ValueError, match="inside"):
            fails()
        assert depth() == 1


def test_modes_of_others_see_what_they_saw():
    with Counting() as counting, Following():
        unseen(torch.ones)(2)
        assert counting.seen == 1
    with Following(), Counting() as counting:
        unseen(torch.ones)(2)
        assert counting.seen == 1
