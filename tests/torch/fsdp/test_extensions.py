"""Blocks that travel in another form, and modules that cannot be copied."""

from __future__ import annotations

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from tests.torch.fsdp.training import filled, mean_square, values  # noqa: E402

X = values(12, 5)
START = filled(nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)))


def as_bits(block):
    return block.view(torch.int64)


def put_bits(sent, layout, whole):
    for rank, (bits,) in enumerate(sent):
        place = tuple(slice(start, stop) for start, stop in layout.local_box((rank,)))
        whole[place] = bits.view(torch.float64)


def joined_bits(sent, layout, whole):
    return torch.cat([bits.view(torch.float64) for (bits,) in sent])


def quantized(block):
    scale = block.abs().amax().clamp_min(1e-12) / 127 if block.numel() else block.new_ones(())
    return (block / scale).round().to(torch.int8), scale


def put_quantized(sent, layout, whole):
    for rank, (levels, scale) in enumerate(sent):
        place = tuple(slice(start, stop) for start, stop in layout.local_box((rank,)))
        whole[place] = levels * scale


def steps(module, x, count=3):
    optimizer = torch.optim.AdamW(module.parameters(), 0.05)
    for _ in range(count):
        optimizer.zero_grad()
        mean_square(module, x).backward()
        optimizer.step()


@pytest.mark.parametrize("keep", [True, False, 1, 2])
@pytest.mark.parametrize("post", [put_bits, joined_bits])
def test_calls_without_backward_in_between(keep, post):
    def program():
        mesh = da.init_device_mesh((3,), ("dp",))
        mine = dt.fully_shard(copy.deepcopy(START), mesh, reshard_after_forward=keep)
        mine.set_all_gather_extension("0.weight", as_bits, post)
        for _ in range(3):
            assert torch.equal(mine(X), START(X))
            with torch.no_grad():
                assert torch.equal(mine(X), START(X))

    simulate(3, program)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("keep", [True, False, 2])
@pytest.mark.parametrize("post", [put_bits, joined_bits])
def test_bits_of_blocks_are_the_blocks(n, keep, post):
    twin = copy.deepcopy(START)
    steps(twin, X)

    def program():
        mesh = da.init_device_mesh((n,))
        mine = copy.deepcopy(START)
        dt.fully_shard(mine, mesh, reshard_after_forward=keep)
        mine.set_all_gather_extension("0.weight", as_bits, post)
        mine.set_all_gather_extension("2.weight", as_bits, post)
        steps(mine, X)
        for name, parameter in mine.named_parameters():
            expected = twin.get_parameter(name)
            torch.testing.assert_close(dt.full_tensor(parameter), expected, rtol=0, atol=1e-9)

    simulate(n, program)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_quantized_blocks_travel_as_bytes(n):
    def program():
        mesh = da.init_device_mesh((n,))
        mine = copy.deepcopy(START)
        dt.fully_shard(mine, mesh)
        mine.set_all_gather_extension("0.weight", quantized, put_quantized)
        with torch.no_grad():
            mine(X)  # the ranks tell each other what they send
            with da.CommLog() as log:
                found = mine(X)
        twin = copy.deepcopy(START)
        layout = da.Layout(mesh, [da.Shard(0)], (7, 5))
        with torch.no_grad():
            put_quantized(
                [quantized(START[0].weight[slice(*layout.local_box((r,))[0])]) for r in range(n)],
                layout,
                twin[0].weight,
            )
        torch.testing.assert_close(found, twin(X), rtol=0, atol=1e-12)
        others = 35 - layout.local_shape()[0] * 5
        plain = 7 + 21 + 3
        own = sum(
            da.Layout(mesh, [da.Shard(0)], shape).local_shape()[0] * width
            for shape, width in (((7,), 1), ((3, 7), 7), ((3,), 1))
        )
        assert log.bytes("all_gather") == others + 8 * (n - 1) + 8 * (plain - own)

    simulate(n, program)


def test_extensions_have_two_functions_of_a_parameter_there_is():
    def program():
        mine = dt.fully_shard(copy.deepcopy(START), da.init_device_mesh((1,)))
        with pytest.raises(TypeError, match="pass both"):
            mine.set_all_gather_extension("0.weight", as_bits, None)
        with pytest.raises(ValueError, match="no parameter"):
            mine.set_all_gather_extension("0.scale", as_bits, put_bits)
        mine.set_all_gather_extension("0.weight", lambda block: "bits", put_bits)
        with pytest.raises(TypeError, match="tuple of tensors"):
            mine(X)

    simulate(1, program)


def test_sharded_modules_are_not_copied():
    def program():
        mine = dt.fully_shard(copy.deepcopy(START), da.init_device_mesh((1,)))
        for function in (copy.deepcopy, copy.copy, pickle.dumps):
            with pytest.raises(TypeError, match="checkpoint"):
                function(mine)

    simulate(1, program)
