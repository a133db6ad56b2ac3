"""Dropout masks are the same for any number of ranks; random state follows mesh axes."""

from __future__ import annotations

import copy
import gc
import sys
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.core import _replicas  # noqa: E402
from distarray.errors import ArgumentError, ArgumentTypeError, MismatchError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from distarray.torch._random import keys_from, read_state  # noqa: E402
from distarray.torch.training._dropout import keep_mask  # noqa: E402

R = da.Replicate()


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def dropped(ranks, module, x, axis):
    """Return what a module makes of shards of x, and of its gradient, gathered."""

    def program():
        mesh = da.init_device_mesh((ranks,), ("tp",))
        twin = dt.parallelize_module(
            copy.deepcopy(module), mesh, dt.SequenceParallel(sequence_dim=axis)
        )
        mine = x.detach().clone().requires_grad_()
        with keys_from(generator()):
            outputs = []
            for known in (True, False, True):
                shard = dt.redistribute(mine, mesh, [R], [da.Shard(axis)])
                shard = shard if known else shard * 1  # nothing is known of this one
                outputs.append(dt.redistribute(twin(shard), mesh, [da.Shard(axis)], [R]))
        whole = torch.stack(outputs)
        (
            whole * torch.linspace(1, 2, whole.numel(), dtype=x.dtype).view(whole.shape)
        ).sum().backward()
        return whole.detach(), mine.grad

    return simulate(ranks, program)


@pytest.mark.parametrize(
    ("module", "shape", "axis"),
    [
        (nn.Dropout(0.3), (3, 7, 6), 1),
        (nn.Dropout(0.9, inplace=True), (3, 7, 6), -1),
        (nn.Dropout(1.0), (3, 7), 1),
        (nn.AlphaDropout(0.4), (3, 7, 6), 1),
        (nn.AlphaDropout(0.4, inplace=True), (3, 2, 6), 1),
        (nn.AlphaDropout(1.0), (3, 7), 1),
        (nn.Dropout1d(0.5), (5, 4, 6), 0),
        (nn.Dropout1d(0.5), (5, 4, 6), 2),
        (nn.Dropout1d(0.5), (40, 6), 1),
        (nn.Dropout2d(0.5), (5, 4, 6, 2), 2),
        (nn.Dropout3d(0.5), (5, 4, 6, 2), 0),
        (nn.FeatureAlphaDropout(0.5), (5, 4, 6, 2), 3),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:.*is deprecated")
def test_any_number_of_ranks_drops_the_same(module, shape, axis):
    x = torch.randn(shape, dtype=torch.float64, generator=generator(1))
    ((first, slope),) = dropped(1, module, x, axis)
    for ranks in (2, 3, 4):
        for whole, gradient in dropped(ranks, module, x, axis):
            torch.testing.assert_close(whole, first, rtol=0, atol=0)
            torch.testing.assert_close(gradient, slope)
    assert module.p == 1 or not torch.equal(first[0], first[1])  # every call has a mask of its own


def test_twin_of_one_process_uses_the_same_function():
    x = torch.randn((4, 5, 6), dtype=torch.float64, generator=generator(1))
    with keys_from(generator()):
        expected = torch.stack([dt.dropout(x, 0.3) for _ in range(3)])
    for whole, _ in dropped(3, nn.Dropout(0.3), x, 1):
        torch.testing.assert_close(whole, expected, rtol=0, atol=0)


def test_masks_are_what_dropout_promises():
    x = torch.ones(400, 300)
    with keys_from(generator()):
        y = dt.dropout(x, 0.25)
        torch.testing.assert_close(y.unique(), torch.tensor([0, 1 / 0.75]))
        assert abs((y == 0).float().mean() - 0.25) < 0.005
        rows, columns = (y == 0).float().mean(1), (y == 0).float().mean(0)
        assert rows.std() < 0.03
        assert columns.std() < 0.03
        assert dt.dropout(x, 0.25, training=False) is x
        for module in (nn.AlphaDropout(0.25), nn.FeatureAlphaDropout(0.25)):
            (one, _), *_ = dropped(1, module, torch.randn(400, 300, generator=generator(2)), 0)
            assert abs(one[0].mean()) < 0.02
            assert abs(one[0].std() - 1) < 0.02
        with pytest.raises(ArgumentError, match=r"p=1\.5 is no probability"):
            dt.dropout(x, 1.5)
    np.testing.assert_array_equal(
        keep_mask((4, 6), ((1, 3), (2, 6)), (5, 9), 0.5, x),
        keep_mask((4, 6), ((0, 4), (0, 6)), (5, 9), 0.5, x)[1:3, 2:],
    )


def test_evaluation_and_half_precision():
    def program():
        mesh = da.init_device_mesh((2,))
        twin = dt.parallelize_module(nn.Dropout(0.5), mesh, dt.SequenceParallel())
        x = torch.ones(2, 3, dtype=torch.bfloat16)
        with keys_from(generator()):
            y = twin(x)
            assert y.dtype is torch.bfloat16
            assert set(y.unique().tolist()) <= {0.0, 2.0}
            assert dt.layout_of(y).shape == (2, 6)
            twin.eval()
            before = generator().get_state()
            assert twin(x) is x
        with keys_from(same := generator()):
            twin(x)
            assert torch.equal(same.get_state(), before)  # no key is drawn

    simulate(2, program)


def test_channels_that_span_ranks_need_equal_keys():
    def program():
        mesh = da.init_device_mesh((2,))
        channels = dt.parallelize_module(
            nn.Dropout1d(0.5), mesh, dt.SequenceParallel(sequence_dim=2)
        )
        items = dt.parallelize_module(nn.Dropout(0.5), mesh, dt.SequenceParallel(sequence_dim=2))
        x = torch.ones(2, 4, 3)
        with keys_from(generator(mesh.rank)):
            items(x)  # has no item in common with the other ranks
            with pytest.raises(MismatchError, match="drew other random numbers"):
                channels(x)

    simulate(2, program)


def test_channels_that_span_ranks_need_one_probability():
    def program():
        mesh = da.init_device_mesh((2,))
        channels = dt.parallelize_module(
            nn.Dropout1d(0.25 * (1 + mesh.rank)), mesh, dt.SequenceParallel(sequence_dim=2)
        )
        with (
            keys_from(generator()),
            pytest.raises(MismatchError, match=r"p differs .*rank 0: 0\.25; rank 1: 0\.5"),
        ):
            channels(torch.ones(2, 4, 3))

    simulate(2, program)


def test_probabilities_are_compared_with_the_check_on(monkeypatch):
    monkeypatch.setattr(_replicas, "checked", True)

    def program():
        mesh = da.init_device_mesh((2,))
        x = dt.distribute_tensor(torch.ones(6), mesh, [da.Shard(0)])
        with keys_from(generator()):
            assert dt.dropout(x, 0.5).shape == (3,)
            with pytest.raises(MismatchError, match=r"dropout .*p differs"):
                dt.dropout(x, 0.25 * (1 + mesh.rank))

    simulate(2, program)


def test_seeds_and_axes_that_differ_between_ranks_are_refused_on_all():
    def program():
        mesh = da.init_device_mesh((2, 1), ("dp", "tp"))
        with pytest.raises(MismatchError, match=r"seed differs .*rank 0: 0; rank 1: 1"):
            dt.manual_seed(mesh.rank, mesh)
        with pytest.raises(MismatchError, match="differ differs"):
            dt.manual_seed(3, mesh, differ=("dp", "tp")[mesh.rank])
        with pytest.raises(ArgumentError, match=r"rank 1.* seed=-1 must be"):
            dt.manual_seed(-mesh.rank, mesh)
        assert dt.manual_seed(3, mesh) == 3

    simulate(2, program)


def test_own_forward_of_a_dropout_is_refused():
    class Mine(nn.Dropout):
        def forward(self, x):
            return x

    def program():
        with pytest.raises(ArgumentTypeError, match="Mine replaces the forward"):
            dt.parallelize_module(Mine(), da.init_device_mesh((1,)), dt.SequenceParallel())

    simulate(1, program)


# --- random state --------------------------------------------------------------------------------


def alone(function):
    """Run a function as the only rank, and leave torch's generator as it was."""
    with torch.random.fork_rng(devices=[]):
        simulate(1, function)


def test_region_leaves_one_number_drawn_also_after_errors():
    def program():
        mesh = da.init_device_mesh((1, 1), ("dp", "tp"))
        torch.manual_seed(5)
        with dt.random_state(mesh, differ="tp"):
            inside = torch.rand(3)
        after = torch.rand(3)
        torch.manual_seed(5)

        @dt.random_state(mesh, differ=("tp",))
        def fails():
            assert torch.equal(torch.rand(3), inside)
            torch.rand(1000)
            with dt.random_state(mesh, differ=("dp", "tp")):
                assert not torch.equal(torch.rand(3), inside)
            raise RuntimeError("inside")

        with pytest.raises(RuntimeError, match="inside"):
            fails()
        assert torch.equal(torch.rand(3), after)

        @dt.random_state(mesh, differ="tp")
        def drawn():
            return torch.rand(3)

        torch.manual_seed(5)
        assert torch.equal(drawn(), inside)
        assert not torch.equal(drawn(), inside)

    alone(program)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_draws_the_same_in_a_region(reentrant):
    from torch.utils.checkpoint import checkpoint

    def program():
        mesh = da.init_device_mesh((1,), ("tp",))
        drop = dt.parallelize_module(nn.Dropout(0.5), mesh, dt.SequenceParallel())

        def block(x):
            with dt.random_state(mesh, differ="tp"):
                y = nn.functional.dropout(x, 0.5)
            return drop(y) ** 2

        def gradient(run):
            torch.manual_seed(11)
            x = torch.linspace(1, 2, 64).requires_grad_()
            x2 = x.view(8, 8)
            (run(x2) + run(x2)).sum().backward()
            return x.grad

        expected = gradient(block)
        found = gradient(lambda x: checkpoint(block, x, use_reentrant=reentrant))
        assert torch.equal(found, expected)

    alone(program)


def test_state_is_saved_and_restored(tmp_path):
    def program():
        mesh = da.init_device_mesh((1, 1), ("dp", "tp"))
        assert dt.manual_seed(7, mesh) == 7
        assert dt.manual_seed(7, mesh, differ="dp") == dt.manual_seed(7, mesh, differ=["dp"]) != 7
        state = dt.get_random_state(mesh, differ="dp")
        torch.save(state, tmp_path / "state.pt")
        expected = torch.rand(4)
        dt.set_random_state(torch.load(tmp_path / "state.pt", weights_only=True), mesh)
        assert torch.equal(torch.rand(4), expected)
        state["sizes"] = (2,)
        with pytest.raises(ArgumentError, match=r"saved with sizes \(2,\)"):
            dt.set_random_state(state, mesh)

    alone(program)


def test_wrong_seeds_and_axes_are_told():
    def program():
        mesh = da.init_device_mesh((1,), ("tp",))
        with pytest.raises(ArgumentError, match=r"no axis 'dp'; it has \('tp',\)"):
            dt.manual_seed(1, mesh, differ=("dp",))
        with pytest.raises(ArgumentError, match="seed=-1 must be 0 or more"):
            dt.manual_seed(-1, mesh)
        with pytest.raises(ArgumentTypeError, match=r"seed=1\.5 is a float"):
            dt.manual_seed(1.5, mesh)
        with pytest.raises(ArgumentError, match="has no axis"), dt.random_state(mesh, differ="x"):
            pass

    alone(program)


class Garbage:
    """Refers to itself, and lets other threads in when it is collected at the wrong time."""

    def __init__(self) -> None:
        self.own = self

    def __del__(self) -> None:
        if sys._getframe(1).f_code.co_name == "read_state":
            time.sleep(0.002)


def test_threads_read_generators_while_garbage_is_collected() -> None:
    def program() -> None:
        for _ in range(1000):
            Garbage()
            read_state()

    before = gc.get_threshold()
    gc.set_threshold(3)
    try:
        simulate(2, program)
    finally:
        gc.set_threshold(*before)


@pytest.mark.parametrize("collects", [False, True])
def test_reading_a_generator_leaves_garbage_collection_as_it_is(collects: bool) -> None:
    told: list[bool] = []

    class Generator:
        def get_state(self) -> None:
            told.append(gc.isenabled())

    before = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        read_state(Generator())
        told.append(gc.isenabled())
    finally:
        (gc.enable if before else gc.disable)()
    assert told == [False, collects]
