"""Modules on shards of the sequence compute what one process computes of all of it."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import (  # noqa: E402
    ArgumentTypeError,
    AxisError,
    LayoutError,
    MismatchError,
)
from distarray.testing import simulate  # noqa: E402
from tests.torch.parallel.twins import compare  # noqa: E402
from tests.torch.programs import values  # noqa: E402

R = da.Replicate()


def scrambled(module: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
    """Give all parameters values that are neither ones nor zeros."""
    for i, parameter in enumerate(module.parameters()):
        parameter.data = values(*parameter.shape, seed=100 + i)
    return module.to(dtype)


def cut(axis: int):
    """Return a function that runs a twin on the shards of its input, given and returned full."""

    def parallel(twin, mesh):
        dt.parallelize_module(twin, mesh, dt.SequenceParallel(sequence_dim=axis))

        def run(x):
            shard = dt.redistribute(x, mesh, [R], [da.Shard(axis)])
            return dt.redistribute(twin(shard), mesh, [da.Shard(axis)], [R])

        return run

    return parallel


class Scale(nn.Module):
    """A norm of a user's own, with parameters of several shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(6))
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / x.abs().mean(-1, keepdim=True) * self.gain + self.shift


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("length", [8, 5, 2])
@pytest.mark.parametrize(
    "module",
    [nn.LayerNorm(6), nn.RMSNorm(6), nn.Linear(6, 6), Scale()],
    ids=lambda m: type(m).__name__,
)
def test_parameters_are_summed_in_one_all_reduce(ranks, length, module):
    x = values(3, length, 6)
    for log in compare(ranks, scrambled(copy.deepcopy(module)), (x,), cut(1)):
        assert log.count("all_reduce") == 1
        elements = sum(p.numel() for p in module.parameters())
        # in: slice / all-gather; out: all-gather / slice
        assert log.count() == 3
        assert log.bytes("all_reduce") <= (ranks - 1) * 8 * elements


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    ("module", "shape", "axis", "gathers"),
    [
        (nn.GroupNorm(2, 6), (5, 6, 4), 0, 0),
        (nn.GroupNorm(2, 6), (2, 6, 7), 2, 1),
        (nn.GroupNorm(3, 6, affine=False), (2, 6, 2, 3), -1, 1),
        (nn.GroupNorm(6, 6), (2, 6, 2, 3), 2, 1),
        (nn.InstanceNorm1d(4, affine=True), (3, 4, 5), 2, 1),
        (nn.InstanceNorm1d(4), (4, 5), 1, 1),
        (nn.InstanceNorm2d(4, affine=True), (3, 4, 5, 2), 0, 0),
        (nn.InstanceNorm2d(4), (3, 4, 5, 2), 3, 1),
    ],
    ids=str,
)
def test_statistics_over_a_cut_axis_are_merged(ranks, module, shape, axis, gathers):
    module = scrambled(copy.deepcopy(module))
    reduced = any(True for _ in module.parameters())
    for log in compare(ranks, module, (values(*shape) + 3,), cut(axis)):
        assert log.count("all_reduce") == reduced
        assert log.count("reduce_scatter") == gathers
        assert log.count() == reduced + 2 + 2 * gathers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("module", "axis"), [(nn.LayerNorm(6), 1), (nn.GroupNorm(2, 4), 2)], ids=str
)
def test_lower_precision(module, axis, dtype):
    module = scrambled(copy.deepcopy(module), dtype)
    tolerance = 1e-5 if dtype is torch.float32 else 0.06
    compare(3, module, (values(2, 4, 6).to(dtype),), cut(axis), tolerance=tolerance)


def test_statistics_keep_their_accuracy_about_a_large_mean():
    module = nn.GroupNorm(1, 2)
    x = values(1, 2, 64, dtype=torch.float32) + 1000
    expected = module.double()(x.double())

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        run = cut(2)(nn.GroupNorm(1, 2), mesh)
        torch.testing.assert_close(run(x).double(), expected, rtol=0, atol=1e-3)

    simulate(2, program)


@pytest.mark.parametrize("layout", [R, da.Shard(0), da.Shard(1), da.Shard(2)], ids=str)
def test_input_of_known_layout_is_brought_to_shards(layout):
    """What another style puts out as a whole is cut; what is cut along features is exchanged."""

    def parallel(twin, mesh):
        dt.parallelize_module(twin, mesh, dt.SequenceParallel())

        def run(x):
            moved = dt.redistribute(x, mesh, [R], [layout])
            y = twin(moved)
            assert dt.layout_of(y).placements == (da.Shard(1),)
            return dt.redistribute(y, mesh, [da.Shard(1)], [R])

        return run

    class Fresh(nn.LayerNorm):
        """Hands on its input in a new tensor, as modules do."""

    compare(3, scrambled(Fresh(6)), (values(2, 5, 6),), parallel)


def test_after_row_parallel_needs_no_word_of_the_layout():
    model = scrambled(nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 6), nn.LayerNorm(6)))

    def parallel(twin, mesh):
        dt.parallelize_module(
            twin,
            mesh,
            {"0": dt.ColwiseParallel(), "1": dt.RowwiseParallel(), "2": dt.SequenceParallel()},
        )
        return lambda x: dt.redistribute(twin(x), mesh, [da.Shard(1)], [R])

    compare(2, model, (values(3, 5, 5),), parallel)


def test_layout_on_one_axis_of_a_larger_mesh():
    module = scrambled(nn.LayerNorm(6))
    x = values(4, 5, 6)

    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        twin = dt.parallelize_module(copy.deepcopy(module), mesh["tp"], dt.SequenceParallel())
        shard = dt.redistribute(x, mesh, [R, R], [da.Shard(0), R])
        y = twin(shard)
        assert dt.layout_of(y).placements == (da.Shard(0), da.Shard(1))
        whole = dt.redistribute(y, mesh, [da.Shard(0), da.Shard(1)], [R, R])
        torch.testing.assert_close(whole, module(x))

    simulate(4, program)


def test_parameters_become_those_of_one_rank():
    def program():
        mesh = da.init_device_mesh((3,))
        norm = nn.LayerNorm(4)
        norm.weight.data.fill_(mesh.rank + 2)
        dt.parallelize_module(norm, mesh, dt.SequenceParallel(), src_data_rank=1)
        assert norm.weight.eq(3).all()
        assert dt.layout_of(norm.weight).placements == (R,)
        norm = nn.LayerNorm(4)
        norm.weight.data.fill_(mesh.rank + 2)
        with pytest.raises(MismatchError, match="parameter 'weight' differs"):
            dt.parallelize_module(norm, mesh, dt.SequenceParallel(), src_data_rank=None)

    simulate(3, program)


def test_second_derivatives_frozen_parameters_and_no_grad():
    module = scrambled(nn.LayerNorm(4))
    x = values(2, 5, 4).requires_grad_()

    def penalty(norm, x, total):
        y = norm(x)
        (slope,) = torch.autograd.grad((y**3).sum(), norm.weight, create_graph=True)
        return total(y) + (slope**2).sum()

    penalty(module, x, lambda y: (y**2).sum()).backward()
    expected = [p.grad.clone() for p in (*module.parameters(), x)]
    module.zero_grad()

    def program():
        mesh = da.init_device_mesh((2,))
        norm = dt.parallelize_module(copy.deepcopy(module), mesh, dt.SequenceParallel())
        mine = x.detach().clone().requires_grad_()
        shard = dt.redistribute(mine, mesh, [R], [da.Shard(1)])

        def total(y):
            return dt.redistribute((y**2).sum(), mesh, [da.Partial()], [R])

        penalty(norm, shard, total).backward()
        for found, wanted in zip((*norm.parameters(), mine), expected, strict=True):
            torch.testing.assert_close(found.grad, wanted)
        norm.weight.requires_grad_(False)
        norm.zero_grad()
        with da.CommLog() as log:
            norm(shard.detach()).sum().backward()
        assert norm.weight.grad is None
        assert log.bytes("all_reduce") <= 2 * 4 * 8
        with da.CommLog() as log, torch.no_grad():
            norm(shard)
        assert log.count() == 0
        norm.requires_grad_(False)
        assert not norm(shard.detach()).requires_grad

    simulate(2, program)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_recomputes_without_further_reductions(reentrant):
    from torch.utils.checkpoint import checkpoint

    def parallel(twin, mesh):
        run = cut(1)(twin, mesh)
        return lambda x: checkpoint(run, x, use_reentrant=reentrant)

    for log in compare(2, scrambled(nn.LayerNorm(6)), (values(3, 4, 6),), parallel):
        assert log.count("all_reduce") == 1


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(backend):
    model = scrambled(nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.GELU()))

    def program():
        mesh = da.init_device_mesh((1,))
        twin = copy.deepcopy(model)
        dt.parallelize_module(twin, mesh, {name: dt.SequenceParallel() for name in "012"})
        compiled = torch.compile(twin, backend=backend)
        x = values(3, 4, 6)
        torch.testing.assert_close(compiled(x), model(x))

    simulate(1, program)


def test_parameters_are_back_after_an_error():
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            raise RuntimeError("inside")

    def program():
        mesh = da.init_device_mesh((2,))
        module = dt.parallelize_module(Fails(), mesh, dt.SequenceParallel(sequence_dim=0))
        with pytest.raises(RuntimeError, match="inside"):
            module(torch.ones(3))
        assert type(module.weight) is nn.Parameter

    simulate(2, program)


@pytest.mark.parametrize(
    ("module", "axis", "shape", "message"),
    [
        (nn.LayerNorm((5, 6)), 1, (2, 5, 6), r"axis 1, across which LayerNorm"),
        (nn.RMSNorm(6), -1, (2, 5, 6), r"axis 2, across which RMSNorm"),
        (nn.GroupNorm(2, 6), 1, (2, 6, 4), r"axis 1, across which GroupNorm"),
        (nn.InstanceNorm1d(6, affine=True), 1, (2, 6, 4), r"across which InstanceNorm"),
        (nn.Softmax(1), 1, (2, 6), r"across which Softmax"),
        (nn.Linear(3, 3), 1, (2, 3), r"across which Linear"),
    ],
    ids=str,
)
def test_modules_that_work_across_the_sequence_are_refused(module, axis, shape, message):
    def program():
        mesh = da.init_device_mesh((2,))
        twin = copy.deepcopy(module)
        model = nn.Sequential(twin).double()
        dt.parallelize_module(model, mesh, {"0": dt.SequenceParallel(sequence_dim=axis)})
        with da.CommLog() as log, pytest.raises(LayoutError, match=rf"^0 \(.*{message}"):
            model(values(*shape))
        assert log.count() == 0

    simulate(2, program)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Conv1d(2, 2, 3), "Conv1d does not, or is not known to"),
        (nn.BatchNorm1d(2), "BatchNorm1d does not"),
        (nn.InstanceNorm1d(2, track_running_stats=True), "track_running_stats"),
        (nn.Embedding(4, 2, max_norm=1.0), "max_norm"),
        (nn.Sequential(nn.Linear(2, 2)), r"holds others \('0'\)"),
    ],
    ids=str,
)
def test_modules_that_are_not_known_are_refused(module, message):
    def program():
        mesh = da.init_device_mesh((2,))
        with pytest.raises(ArgumentTypeError, match=message):
            dt.parallelize_module(copy.deepcopy(module), mesh, dt.SequenceParallel())

    simulate(2, program)


def test_wrong_use_is_told():
    with pytest.raises(ArgumentTypeError, match=r"sequence_dim=1\.5"):
        dt.SequenceParallel(sequence_dim=1.5)

    def program():
        mesh = da.init_device_mesh((2,))
        norm = nn.LayerNorm(4)
        dt.parallelize_module(norm, mesh, dt.SequenceParallel(sequence_dim=2))
        with pytest.raises(AxisError, match=r"sequence_dim=2, .*shape \(3, 4\)"):
            norm(torch.ones(3, 4))
        with pytest.raises(LayoutError, match="has a style already"):
            dt.parallelize_module(norm, mesh, dt.SequenceParallel())

    simulate(2, program)
