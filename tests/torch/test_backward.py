"""What graphs of ranks hang on: leaves of each graph alone."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from tests.torch.programs import filled, on_ranks, values  # noqa: E402


def leaves_below(tensor):
    """Return the leaves that a backward pass from a tensor comes to."""
    found, nodes, seen = [], [tensor.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        nodes += [before for before, _ in node.next_functions]
    return found


def shard(module, mesh):
    return dt.fully_shard(module, mesh)


def cut(module, mesh):
    # The input is prepared once for both, with a handle beside it.
    plan = {"*": dt.ColwiseParallel(output_layouts=da.Shard(-1))}
    prepare = dt.PrepareModuleInput(
        input_layouts=(da.Shard(0),), desired_input_layouts=(da.Replicate(),)
    )
    return dt.parallelize_module(module, mesh, {"": prepare, **plan})


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(2, 4), nn.Linear(2, 4)

    def forward(self, x):
        return self.one(x) + self.two(x)


@pytest.mark.parametrize("distribute", [shard, cut])
def test_ranks_share_no_leaf(distribute):
    # Threads with one leaf for all of them would wait for each other inside of torch, for ever.
    def program(mesh):
        x = values(3, 2, seed=mesh.rank).requires_grad_()
        return leaves_below(distribute(filled(Branches().double()), mesh)(x))

    found = on_ranks(2, program)
    one, two = ({id(leaf) for leaf in leaves} for leaves in found)
    assert len(one) > 4
    assert not one & two, found
