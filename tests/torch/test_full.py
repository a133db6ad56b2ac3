"""Whole tensors come together from blocks and go apart into them; arrays share their memory."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.comm.kernels import address_of  # noqa: E402
from distarray.errors import (  # noqa: E402
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    LayoutError,
    MismatchError,
)
from distarray.testing import simulate  # noqa: E402
from distarray.torch._full import (  # noqa: E402
    distribute_tensor,
    from_torch,
    full_tensor,
    to_torch,
)
from tests.on_device import host  # noqa: E402

R, S, P = da.Replicate(), da.Shard, da.Partial
DTYPES = [torch.float64, torch.bfloat16, torch.float16, torch.int16, torch.bool, torch.complex64]


def _values(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    count = math.prod(shape)
    return (torch.arange(count) % 7 - 3).reshape(shape).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("source", [0, 2, None])
def test_blocks_of_a_tensor_make_it_whole_again(dtype, source):
    whole = _values(5, 3, dtype=dtype)

    def program():
        mesh = da.init_device_mesh((3,))
        mine = whole if source in (None, mesh.rank) else torch.empty_like(whole)
        for placed in (S(0), S(1), R):
            block = distribute_tensor(mine, mesh, [placed], src_data_rank=source)
            layout = dt.layout_of(block)
            assert layout is da.Layout(mesh, [placed], whole.shape)
            assert type(block) is torch.Tensor
            assert block.data_ptr() != whole.data_ptr()
            assert torch.equal(block, whole[tuple(slice(*b) for b in layout.local_box())])
            assert torch.equal(full_tensor(block), whole)

    simulate(3, program)


def test_every_placement_on_a_mesh_of_two_axes():
    whole = _values(5, 3)

    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        for placed in itertools.product((S(0), S(1), R, P()), repeat=2):
            block = distribute_tensor(whole, mesh, placed)
            assert dt.layout_of(block).placements == placed
            with da.CommLog() as log:
                torch.testing.assert_close(full_tensor(block), whole)
            assert log.count() <= 2
            assert dt.layout_of(full_tensor(block)).is_replicated

    simulate(4, program)


def test_gradient_of_a_whole_tensor_is_cut():
    whole = _values(5, 3)

    def program():
        mesh = da.init_device_mesh((3,))
        block = distribute_tensor(whole.clone().requires_grad_(), mesh, [S(0)])
        assert block.requires_grad
        assert block.is_leaf
        with da.CommLog() as log:
            full_tensor(block).square().sum().backward()
        assert log.count() == log.count("all_gather") == 1
        start, stop = dt.layout_of(block).local_box()[0]
        torch.testing.assert_close(block.grad, 2 * whole[start:stop])
        assert torch.equal(full_tensor(block.grad), 2 * whole)

    simulate(3, program)


def test_parts_of_a_fused_weight_are_put_in_order():
    fused = torch.nn.Linear(4, 11)
    weight, bias = fused.weight.detach().clone(), fused.bias.detach().clone()

    def program():
        mesh = da.init_device_mesh((2,))
        linear = torch.nn.Linear(4, 11)
        with torch.no_grad():
            linear.weight.copy_(weight)
            linear.bias.copy_(bias)
        dt.parallelize_module(linear, mesh, dt.ColwiseParallel(parts=(5, 3, 3)))
        assert torch.equal(full_tensor(linear.weight), weight)
        assert torch.equal(full_tensor(linear.bias), bias)
        assert dt.layout_of(full_tensor(linear.weight)).is_replicated
        with pytest.raises(LayoutError, match="parts"):
            from_torch(linear.weight)

    simulate(2, program)


def test_what_ranks_pass_differently_is_an_error_on_all():
    def program():
        mesh = da.init_device_mesh((2,))
        mine = torch.full((4,), float(mesh.rank))
        with pytest.raises(MismatchError, match="same on every rank"):
            distribute_tensor(mine, mesh, [S(0)], src_data_rank=None)
        with pytest.raises(MismatchError, match="same on every rank"):
            distribute_tensor(mine[: 3 + mesh.rank], mesh, [S(0)])
        with pytest.raises(MismatchError, match="same on every rank"):
            distribute_tensor(mine, mesh, [S(0)], src_data_rank=mesh.rank)
        with pytest.raises(ArgumentError, match="no position"):
            distribute_tensor(mine, mesh, [S(0)], src_data_rank=2)
        with pytest.raises(ArgumentTypeError, match="expected a dense torch tensor"):
            distribute_tensor(mine if mesh.rank else [1.0], mesh, [S(0)])
        assert distribute_tensor(mine, mesh, [S(0)], src_data_rank=1).tolist() == [1.0, 1.0]

    simulate(2, program)


def test_a_tensor_without_a_layout_has_no_whole():
    with pytest.raises(LayoutError, match=r"dt.redistribute\(tensor, mesh"):
        full_tensor(torch.ones(3))
    with pytest.raises(ArgumentTypeError, match="list"):
        full_tensor([1.0])


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d is not torch.bfloat16], ids=str)
def test_arrays_and_tensors_share_their_memory(dtype):
    whole = _values(5, 3, dtype=dtype)

    def program():
        mesh = da.init_device_mesh((2,))
        block = distribute_tensor(whole, mesh, [S(0)])
        array = from_torch(block)
        assert array.layout is dt.layout_of(block)
        np.testing.assert_array_equal(array.full_array(), whole.numpy())
        block[0] = 1
        assert array.to_local()[0, 0] == 1
        assert address_of(array.to_local()) == block.data_ptr()
        back = to_torch(array)
        assert back.data_ptr() == block.data_ptr()
        assert dt.layout_of(back) is array.layout

    simulate(2, program)


def test_blocks_of_any_sizes_become_an_array():
    def program():
        mesh = da.init_device_mesh((2,))
        block = torch.full((1 + 2 * mesh.rank, 2), float(mesh.rank), requires_grad=True)
        array = from_torch(block, mesh, [S(0)])
        assert array.shape == (4, 2)
        assert float(da.sum(array)) == 6.0
        again = to_torch(array)
        assert not again.requires_grad
        assert torch.equal(full_tensor(again)[1:].cpu(), torch.ones(3, 2))

    simulate(2, program)


def test_an_empty_block_and_a_parameter_become_arrays():
    def program():
        mesh = da.init_device_mesh((3,))
        linear = torch.nn.Linear(2, 2)
        dt.parallelize_module(linear, mesh, dt.ColwiseParallel())
        array = from_torch(linear.weight)
        assert array.shape == (2, 2)
        torch.testing.assert_close(
            torch.from_numpy(host(array.full_array())), full_tensor(linear.weight).detach()
        )
        assert to_torch(array).shape == linear.weight.shape

    simulate(3, program)


def test_what_torch_and_numpy_do_not_share():
    with pytest.raises(DTypeError, match=r"tensor.float\(\)"):
        from_torch(torch.ones(3, dtype=torch.bfloat16))
    mesh = da.init_device_mesh((1,), device="cpu")
    words = da.DistArray.from_local(np.array(["a", "b"]), mesh, [S(0)])
    with pytest.raises(DTypeError, match="astype"):
        to_torch(words)
    fixed = np.ones(3)
    fixed.flags.writeable = False
    for block in (fixed, np.ones(3)[::-1]):
        array = da.DistArray.from_local(block, mesh, [S(0)])
        with pytest.raises(ArgumentError, match="copy=True"):
            to_torch(array)
        to_torch(da.asarray(array, copy=True))
    with pytest.raises(ArgumentTypeError, match="DistArray"):
        to_torch(torch.ones(3))
