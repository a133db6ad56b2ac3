"""What is torch's and is passed in the place of ours is refused by a message that names ours."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.distributed import tensor as theirs  # noqa: E402
from torch.distributed.tensor import parallel  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import ArgumentTypeError, MeshError  # noqa: E402
from distarray.testing import simulate  # noqa: E402

SHARD, WHOLE = theirs.Shard(1), theirs.Replicate()


@pytest.fixture
def mesh():
    return da.init_device_mesh((1,), ("tp",))


def test_init_device_mesh_spells_its_own_arguments():
    ours = r"it takes \(shape, axis_names.*init_device_mesh\(\(2, 2\), \('dp', 'tp'\)"
    with pytest.raises(ArgumentTypeError, match=f"got 'cpu', mesh_dim_names=; {ours}"):
        da.init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    with pytest.raises(ArgumentTypeError, match=f"got 'cuda'; {ours}"):
        da.init_device_mesh("cuda", (1,))
    with pytest.raises(ArgumentTypeError, match=f"got mesh_dim_names=; {ours}"):
        da.init_device_mesh((1,), mesh_dim_names=("tp",))


@pytest.mark.parametrize(
    "style",
    [
        lambda: dt.ColwiseParallel(input_layouts=SHARD),
        lambda: dt.RowwiseParallel(output_layouts=SHARD),
        lambda: dt.PrepareModuleInput(input_layouts=SHARD, desired_input_layouts=da.Replicate()),
        lambda: dt.PrepareModuleInput(
            input_layouts=(SHARD, None), desired_input_layouts=(da.Replicate(), None)
        ),
        lambda: dt.PrepareModuleOutput(
            output_layouts={"y": SHARD}, desired_output_layouts={"y": da.Replicate()}
        ),
    ],
)
def test_styles_name_our_placement(style):
    with pytest.raises(ArgumentTypeError, match=r"this Shard is torch's; take da\.Shard\(1\)"):
        style()


def test_moves_name_our_placement(mesh):
    x = torch.ones(2, 3)
    for asked in ([SHARD], [WHOLE], [theirs.Partial("avg")]):
        with pytest.raises(ArgumentTypeError, match="is torch's; take da") as found:
            dt.redistribute(x, mesh, [da.Replicate()], asked)
        twin = {"Shard": "Shard(1)", "Replicate": "Replicate()", "Partial": "Partial('avg')"}
        assert f"take da.{twin[type(asked[0]).__name__]})" in str(found.value)
    with pytest.raises(ArgumentTypeError, match=r"take da\.Shard\(1\)"):
        da.distribute_array([[1.0]], mesh, [SHARD])


def test_plans_name_our_style(mesh):
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(ArgumentTypeError, match=r"plan\['0'\].*torch's; take dt\.ColwiseParallel"):
        dt.parallelize_module(model, mesh, {"0": parallel.ColwiseParallel()})
    with pytest.raises(ArgumentTypeError, match=r"torch's; take dt\.SequenceParallel"):
        dt.parallelize_module(model, mesh, parallel.SequenceParallel())

    class Own(parallel.ParallelStyle):
        def _apply(self, module, device_mesh):
            return module

    with pytest.raises(ArgumentTypeError, match=r"derives from torch's ParallelStyle; derive it"):
        dt.parallelize_module(model, mesh, Own())
    with pytest.raises(ArgumentTypeError, match=r"torch's; take dt\.RowwiseParallel"):
        dt.LowRankParallel(parallel.RowwiseParallel())


def test_what_no_style_cuts_is_told_what_may_be_done(mesh):
    with pytest.raises(ArgumentTypeError, match=r"MultiheadAttention, BatchNorm.*without a style"):
        dt.parallelize_module(nn.LSTM(2, 2), mesh, dt.ColwiseParallel())
    with pytest.raises(ArgumentTypeError, match="SequenceParallel") as found:
        dt.parallelize_module(nn.LayerNorm(2), mesh, dt.RowwiseParallel())
    assert "MultiheadAttention" not in str(found.value)


def test_a_process_too_many_is_told_how_many_to_start():
    def program():
        mesh = da.init_device_mesh((2, 1), ("dp", "tp"))
        if mesh.coordinate is None:
            with pytest.raises(MeshError, match=r"\(rank 2\).*or start with mpiexec -n 2"):
                dt.parallelize_module(nn.Linear(2, 2), mesh["tp"], dt.ColwiseParallel())

    simulate(3, program)
