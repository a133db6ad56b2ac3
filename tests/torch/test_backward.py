"""Backward passes of threads do not wait for each other inside of torch."""

from __future__ import annotations

import subprocess
import sys

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


FIRST_LOOK = """
import contextlib, faulthandler, gc, threading, time
from distarray.torch._compat import will_execute

def look_first():
    with contextlib.suppress(RuntimeError):  # no backward pass is under way
        gc.enable()
        will_execute(None)
    gc.disable()
    inside.set()

def look_second():
    inside.wait()
    with contextlib.suppress(RuntimeError):
        will_execute(None)

def let_others_in(*_):
    inside.set()
    time.sleep(0.1)

gc.disable()
gc.set_threshold(1)
gc.callbacks.append(let_others_in)
inside = threading.Event()
threads = [threading.Thread(target=one, daemon=True) for one in (look_second, look_first)]
for thread in threads:
    thread.start()
faulthandler.dump_traceback_later(20, exit=True)
for thread in threads:
    thread.join()
"""


def test_threads_look_first_while_garbage_is_collected():
    done = subprocess.run([sys.executable, "-c", FIRST_LOOK], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
