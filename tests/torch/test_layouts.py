"""Layouts ride beside tensors, and go when they go."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import ArgumentTypeError, LayoutError  # noqa: E402
from distarray.layout import AbstractMesh, Layout, Shard  # noqa: E402
from distarray.torch import _layouts  # noqa: E402

LAYOUT = Layout(AbstractMesh((1,)), [Shard(0)], (0, 2))


def test_a_layout_does_not_keep_a_tensor_alive():
    tensor = torch.ones(0, 2)
    _layouts.place(tensor, LAYOUT)
    assert dt.layout_of(tensor) is LAYOUT
    known = len(_layouts._beside._found)
    alive = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert alive() is None
    assert len(_layouts._beside._found) < known


def test_a_layout_outlives_the_name_of_a_tensor_in_a_graph():
    x = torch.ones(0, 2, requires_grad=True)
    _layouts.place(x, LAYOUT)
    y = x * 2
    del x
    gc.collect()
    found = y.grad_fn.next_functions[0][0].variable
    assert dt.layout_of(found) is LAYOUT


def test_a_gradient_has_the_layout_of_its_parameter():
    x = torch.nn.Parameter(torch.ones(0, 2))
    _layouts.place(x, LAYOUT)
    x.sum().backward()
    assert dt.layout_of(x.grad) is LAYOUT
    assert dt.layout_of(x * 2) is None
    assert dt.layout_of(torch.ones(0, 2)) is None


def test_gradients_are_found_beside_graphs_of_parameters_that_have_changed_since():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.scale = nn.Linear(2, 4), nn.Parameter(torch.ones(()))

        def forward(self, x):
            return self.layer(x) * self.scale

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        model = dt.parallelize_module(Scaled(), mesh, {"layer": dt.ColwiseParallel()})
        dt.distribute_parameter(model, "scale", mesh, [da.Replicate()])
        graph = model(torch.ones(3, 2))
        with torch.no_grad():
            model.scale += 1
        model.layer.weight.grad = torch.ones_like(model.layer.weight)
        assert dt.layout_of(torch.ones(2)) is None
        assert str(dt.layout_of(model.layer.weight.grad)) == "4x2 [tp:S(0)]"
        del graph

    da.testing.simulate(2, program)


def test_a_tensor_that_was_resized_has_none():
    x = torch.ones(0, 2)
    _layouts.place(x, LAYOUT)
    x.resize_(3, 2)
    assert dt.layout_of(x) is None


def test_a_copy_is_placed_like_its_parameter_or_gradient_once_that_is_said():
    x = torch.nn.Parameter(torch.ones(0, 2))
    _layouts.place(x, LAYOUT)
    copy = x.detach().clone()
    assert dt.layout_of(copy) is None
    assert dt.place_like(copy, x) is copy
    assert dt.layout_of(copy) is LAYOUT
    assert dt.place_like(copy, x) is copy, "saying it again is no error"
    x.sum().backward()
    assert dt.layout_of(dt.place_like(x.grad.double(), x.grad)) is LAYOUT


def test_place_like_says_what_does_not_fit():
    x = torch.ones(0, 2)
    _layouts.place(x, LAYOUT)
    with pytest.raises(LayoutError, match="no layout is known"):
        dt.place_like(x, torch.ones(0, 2))
    with pytest.raises(LayoutError, match=r"shape \(3, 2\) cannot"):
        dt.place_like(torch.ones(3, 2), x)
    other = torch.ones(0, 2)
    _layouts.place(other, Layout(AbstractMesh((1,)), [Shard(1)], (0, 2)))
    with pytest.raises(LayoutError, match="already"):
        dt.place_like(other, x)
    with pytest.raises(ArgumentTypeError, match="list"):
        dt.place_like([1.0], x)


def test_ranks_that_are_threads_leave_the_gradients_of_others_alone():
    """A gradient that another thread lets go meanwhile is memory that is gone."""
    program = """
import sys
import torch
import distarray as da
import distarray.torch as dt  # noqa: E402
from distarray.testing import simulate

def program():
    mesh = da.init_device_mesh((4,), ("tp",))
    layer = dt.parallelize_module(torch.nn.Linear(4, 8), mesh, dt.ColwiseParallel())
    weight, other = layer.weight, torch.ones(2, 4)
    for _ in range(10_000):
        if mesh.rank % 2:
            weight.grad = torch.ones_like(weight)
            weight.grad = None
        else:
            assert dt.layout_of(other) is None

sys.setswitchinterval(1e-6)
simulate(4, program)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_of_an_array_its_own_layout_is_named():
    with pytest.raises(ArgumentTypeError, match=r"not DistArray; an array's is x\.layout"):
        dt.layout_of(da.arange(3))
