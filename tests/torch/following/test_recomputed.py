"""Checkpoints that run again know how their arguments are placed, as when they first ran."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.testing import simulate  # noqa: E402

R, S, P = da.Replicate(), da.Shard, da.Partial()
FORMS = pytest.mark.parametrize("reentrant", [True, False])


class Block(nn.Module):
    """A result whose shape tells nothing of the length of the sequence."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x):
        return self.down(torch.tanh(self.up(self.norm(x)))).mean(1)


class Model(nn.Module):
    """A checkpoint of a replicated tensor, whole or of one module."""

    def __init__(self, kept):
        super().__init__()
        self.first, self.block = nn.Linear(4, 4), Block()
        self.kept = kept
        self.checkpoint = lambda function, x: function(x)

    def forward(self, x):
        x = self.first(x)
        if self.kept == "block":
            return self.checkpoint(self.block, x)
        if self.kept == "function":
            return self.checkpoint(lambda x: self.block(x * 2), x)
        block, y = self.block, self.checkpoint(self.block.norm, x)
        return block.down(torch.tanh(block.up(y))).mean(1)


PLAN = {
    "first": dt.ColwiseParallel(output_layouts=R),
    "block.norm": dt.SequenceParallel(),
    "block.up": dt.ColwiseParallel(input_layouts=S(1)),
    "block.down": dt.RowwiseParallel(),
}


def _run(program):
    with set_checkpoint_early_stop(False):  # of the process, not of a thread
        simulate(2, program)


def _compare(alone, mine, x, y):
    """Compare the results and gradients of this rank with those of one process."""
    wanted = alone(x)
    torch.testing.assert_close(y, wanted)
    wanted.square().sum().backward()
    y.square().sum().backward()
    for p, q in zip(mine.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(dt.full_tensor(p.grad), q.grad)


@FORMS
@pytest.mark.parametrize("kept", ["block", "function", "module"])
def test_a_replicated_argument_is_brought_to_the_sequence_again(reentrant, kept):
    torch.manual_seed(0)
    start, x = Model(kept).double(), torch.randn(2, 5, 4, dtype=torch.float64)

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        mine, alone = copy.deepcopy(start), copy.deepcopy(start)
        mine.checkpoint = partial(checkpoint, use_reentrant=reentrant)
        dt.parallelize_module(mine, mesh, PLAN)
        _compare(alone, mine, x, mine(x))

    _run(program)


@FORMS
def test_checkpoints_of_parallelized_modules_by_hand(reentrant):
    torch.manual_seed(0)
    start, x = Block().double(), torch.randn(2, 5, 4, dtype=torch.float64)

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        mine, alone = copy.deepcopy(start), copy.deepcopy(start)
        plan = {name.removeprefix("block."): style for name, style in PLAN.items()}
        dt.parallelize_module(mine, mesh, {k: v for k, v in plan.items() if k != "first"})
        known = dt.redistribute(x.clone().requires_grad_(), mesh, [R], [R])
        _compare(alone, mine, x, checkpoint(mine, known, use_reentrant=reentrant))

    _run(program)


@FORMS
@pytest.mark.parametrize("context", [nullcontext, dt.check_layouts])
@pytest.mark.parametrize("backward_inside", [True, False])
def test_contributions_that_leave_a_checkpoint_and_are_added_up_further_out(
    reentrant, context, backward_inside
):
    class Doubled(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Linear(4, 4)

        def forward(self, x):
            return self.down(x) * 2

    class Summed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Doubled()
            self.run = lambda inner, x: inner(x)

        def forward(self, x):
            return torch.tanh(self.run(self.inner, x))

    torch.manual_seed(0)
    start, x = Summed().double(), torch.randn(2, 4, dtype=torch.float64)

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        mine, alone = copy.deepcopy(start), copy.deepcopy(start)
        style = dt.RowwiseParallel(input_layouts=R, output_layouts=P)
        dt.parallelize_module(mine, mesh, {"inner.down": style})

        def run(inner, x):
            y = checkpoint(inner, x, use_reentrant=reentrant)
            return dt.redistribute(y, mesh, [P], [R])

        mine.run = run
        with context():
            y = mine(x.clone().requires_grad_())
            if backward_inside:
                _compare(alone, mine, x, y)
        if not backward_inside:
            _compare(alone, mine, x, y)

    _run(program)
