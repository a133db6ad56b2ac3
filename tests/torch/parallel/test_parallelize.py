"""Modules are found by their names, and stay plain modules of plain parameters."""

from __future__ import annotations

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import ArgumentError, ArgumentTypeError, LayoutError, MeshError, MismatchError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from tests.torch.parallel.twins import compare  # noqa: E402
from tests.torch.parallel.two_layers import Block, X, each  # noqa: E402

COL, ROW = dt.ColwiseParallel, dt.RowwiseParallel


def net(blocks=2):
    torch.manual_seed(0)
    model = nn.Module()
    model.layers = nn.ModuleList(Block() for _ in range(blocks))
    model.head = nn.Linear(4, 3)
    model.forward = None
    return model.double()


class Net(nn.Sequential):
    """Blocks in a row."""


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    "plan",
    [
        {"*.up": COL(), "*.down": ROW()},
        {"0.up": COL(), "0.down": ROW(), "[12].up": COL(), "[12].down": ROW()},
        {"?.u*": COL(), "?.d*": ROW()},
    ],
    ids=["star", "set", "parts"],
)
def test_patterns_choose_modules(ranks, plan):
    model = nn.Sequential(Block(), Block(), Block()).double()

    def parallel(twin, mesh):
        dt.parallelize_module(twin, mesh, plan)
        assert all(dt.layout_of(block.up.weight).placements == (da.Shard(0),) for block in twin)
        return twin

    for log in compare(ranks, model, (X,), parallel):
        assert log.count() == log.count("all_reduce") == 6


def test_a_star_stands_for_one_part_of_a_name():
    def program(mesh):
        with pytest.raises(ArgumentError, match=r"plan\['\*up'\] matches no module"):
            dt.parallelize_module(net(), mesh, {"*up": COL()})
        with pytest.raises(ArgumentError, match=r"'layers\.0\.up'"):
            dt.parallelize_module(net(), mesh, {"layers.0.uq": COL()})
        model = dt.parallelize_module(net(), mesh, {"layers.*.up": COL()})
        assert dt.layout_of(model.layers[1].up.weight) is not None
        assert dt.layout_of(model.layers[1].down.weight) is None
        with pytest.warns(UserWarning, match="empty plan"):
            dt.parallelize_module(net(), mesh, {})

    each(program, 1)


def test_a_star_does_not_stand_for_the_module_itself():
    def program(mesh):
        model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 4))
        dt.parallelize_module(model, mesh, {"*": COL(output_layouts=da.Replicate())})
        assert model[1].weight.shape == (2, 6)

    each(program)


def test_arguments_are_checked():
    def program(mesh):
        model = Block()
        for call, error, message in (
            (lambda: dt.parallelize_module(3, mesh, COL()), ArgumentTypeError, "nn.Module"),
            (lambda: dt.parallelize_module(model, mesh, 3), ArgumentTypeError, "plan is"),
            (lambda: dt.parallelize_module(model, mesh, {"up": COL}), ArgumentTypeError, "'up'"),
            (lambda: dt.parallelize_module(model, None, COL()), ArgumentTypeError, "DeviceMesh"),
            (
                lambda: dt.parallelize_module(model, mesh, COL(), src_data_rank=2),
                ArgumentError,
                "must be 0 to 1",
            ),
            (
                lambda: dt.parallelize_module(model, da.DeviceMesh([1 - mesh.rank]), COL()),
                MeshError,
                "not in",
            ),
        ):
            with pytest.raises(error, match=message):
                call()
        assert dt.layout_of(model.up.weight) is None

    each(program)


def test_parameters_stay_themselves_and_plain():
    def program(mesh):
        model = Block().double()
        before = list(model.parameters())
        model.down.weight.requires_grad_(False)
        optimizer = torch.optim.Adam([p for p in before if p.requires_grad], lr=0.1)
        dt.parallelize_module(model, mesh, {"up": COL(), "down": ROW()})
        assert all(a is b for a, b in zip(model.parameters(), before, strict=True))
        assert all(type(p) is nn.Parameter for p in before)
        model(X).sum().backward()
        assert model.down.weight.grad is None
        optimizer.step()  # made before: it holds the blocks now
        assert dt.layout_of(model.up.weight.grad) is dt.layout_of(model.up.weight)
        model.eval()
        with torch.inference_mode():
            model(X)
        state = model.state_dict()
        assert all(type(value) is torch.Tensor for value in state.values())

    each(program)


def test_values_come_from_one_rank_or_are_compared():
    full = Block()

    def program(mesh):
        model = copy.deepcopy(full)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(mesh.rank - 1)
        one = dt.parallelize_module(copy.deepcopy(model), mesh, {"up": COL()}, src_data_rank=1)
        assert torch.equal(dt.full_tensor(one.up.weight), full.up.weight)
        with pytest.raises(MismatchError, match=r"up \(Linear\): parameter 'weight' differs"):
            dt.parallelize_module(model, mesh, {"up": COL()}, src_data_rank=None)
        same = dt.parallelize_module(copy.deepcopy(full), mesh, {"up": COL()}, src_data_rank=None)
        assert torch.equal(dt.full_tensor(same.up.weight), full.up.weight)

    each(program)


def test_only_the_blocks_of_a_parameter_travel():
    full = nn.Linear(64, 96)
    others = nn.Linear(64, 96)

    def program(mesh):
        mine = copy.deepcopy(full if mesh.rank == 1 else others)
        with da.CommLog() as log:
            dt.parallelize_module(mine, mesh, COL(parts=(32, 64)), src_data_rank=1)
        assert log.bytes() == (0 if mesh.rank == 1 else mine.weight.shape[0] * 65 * 4)
        return mine.weight.detach()

    blocks = each(program, 3)
    rows = {tuple(row.tolist()) for block in blocks for row in block}
    assert rows == {tuple(row.tolist()) for row in full.weight.detach()}


def test_several_styles_on_one_module_run_in_their_order():
    model = nn.Sequential(nn.Linear(4, 5)).double()

    def parallel(twin, mesh):
        gather = dt.PrepareModuleInput(
            input_layouts=(da.Shard(0),), desired_input_layouts=(da.Replicate(),)
        )
        plan = {"0": gather, "[0]": COL(output_layouts=da.Replicate())}
        dt.parallelize_module(twin, mesh, plan)
        return lambda x: twin(dt.redistribute(x, mesh, [da.Replicate()], [da.Shard(0)]))

    compare(2, model, (X,), parallel)


# --- shared, copied, materialised ----------------------------------------------------------------


class Tied(nn.Module):
    """An embedding whose vectors are the classes of the output, too."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words):
        return self.head(torch.tanh(self.embed(words)))


@pytest.mark.parametrize("ranks", [2, 3])
def test_shared_parameters_stay_shared(ranks):
    def parallel(twin, mesh):
        plan = {"embed": ROW(), "head": COL(output_layouts=da.Replicate())}
        dt.parallelize_module(twin, mesh, plan)
        assert twin.head.weight is twin.embed.weight
        return twin

    compare(ranks, Tied().double(), (torch.tensor([[1, 6, 0], [3, 3, 5]]),), parallel)


def test_modules_that_share_must_agree():
    def program(mesh):
        with pytest.raises(LayoutError, match=r"head \(Linear\): .* by a module that shares it"):
            dt.parallelize_module(Tied(), mesh, {"embed": ROW(), "head": ROW()})
        with pytest.raises(LayoutError, match=r"head \(Linear\) shares .* has no style"):
            dt.parallelize_module(Tied(), mesh, {"embed": ROW()})

    each(program)


def test_copies_know_their_parameters():
    def program(mesh):
        model = dt.parallelize_module(Block().double(), mesh, {"up": COL(), "down": ROW()})
        twin = copy.deepcopy(model)
        assert dt.layout_of(twin.up.weight) is dt.layout_of(model.up.weight)
        with torch.no_grad():
            twin.up.weight.zero_()
        assert model.up.weight.abs().sum() > 0
        y = model(X)
        torch.testing.assert_close(copy.deepcopy(model)(X), y)

    each(program)


def test_modules_on_meta_become_blocks_without_a_message():
    full = Block().double()

    def program(mesh):
        with torch.device("meta"):
            model = Block().double()
        with da.CommLog() as log:
            dt.parallelize_module(model, mesh, {"up": COL(), "down": ROW()})
        assert log.count() == 0
        assert model.up.weight.device.type == "meta"
        assert model.up.weight.shape == (3, 4)
        model.to_empty(device="cpu")
        dt.load_state_dict(model, full.state_dict())
        torch.testing.assert_close(model(X), full(X))
        assert dt.layout_of(model.up.weight).shape == (6, 4)

    each(program)


def test_one_axis_of_a_mesh_is_taken():
    full = Block().double()

    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        with pytest.raises(ArgumentError, match=r"up \(Linear\): .*mesh\['tp'\]"):
            dt.parallelize_module(copy.deepcopy(full), mesh, {"up": COL()})
        model = copy.deepcopy(full)
        dt.parallelize_module(model, mesh["tp"], {"up": COL(), "down": ROW()})
        x = X + mesh.coordinate[0]
        torch.testing.assert_close(model(x), full(x))

    simulate(4, program)


# --- what cannot be cut --------------------------------------------------------------------------


def refused(module, style, mesh, error, message):
    before = {name: p.shape for name, p in module.named_parameters()}
    with pytest.raises(error, match=message):
        dt.parallelize_module(module, mesh, style)
    assert before == {name: p.shape for name, p in module.named_parameters()}


def test_computed_parameters_are_refused():
    def program(mesh):
        for make in (
            torch.nn.utils.parametrizations.weight_norm,
            torch.nn.utils.parametrizations.orthogonal,
        ):
            refused(make(nn.Linear(4, 4)), COL(), mesh, ArgumentError, "parametrization")
            refused(make(nn.Linear(4, 4)), ROW(), mesh, ArgumentError, "parametrization")
        lazy = nn.LazyLinear(4)
        with pytest.raises(ArgumentError, match="run the module once"):
            dt.parallelize_module(lazy, mesh, COL())

    each(program, 1)


def test_errors_name_module_found_wanted_and_remedy():
    def program(mesh):
        model = Net(Block().double())
        model[0].up(X).sum().backward()
        with pytest.raises(ArgumentError, match=r"0\.up \(Linear\): .*after zero_grad"):
            dt.parallelize_module(model, mesh, {"0.up": COL()})
        model.zero_grad()
        with pytest.raises(ArgumentTypeError, match=r"0 \(Block\): ColwiseParallel knows no way"):
            dt.parallelize_module(model, mesh, {"0": COL()})
        dt.parallelize_module(model, mesh, {"0.down": ROW()})
        with pytest.raises(
            LayoutError, match=r"^0\.down \(Linear\): .*input_layouts=da\.Replicate"
        ):
            model(X)
        with (
            torch.no_grad(),
            pytest.raises(LayoutError, match=r"^0\.down \(Linear\): .*6.*3.*da\.Replicate"),
        ):
            model(X)

    each(program)


def test_parallelized_modules_are_not_pickled():
    def program():
        module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        mesh = da.init_device_mesh((1,))
        dt.parallelize_module(module, mesh, {"0": dt.ColwiseParallel()})
        pickle.dumps(module[1])
        with pytest.raises(TypeError, match=r"0 has been parallelized.*checkpoint"):
            pickle.dumps(module)

    simulate(1, program)


def grouped_attention(queries, keys):
    model = nn.Module()
    model.q, model.k = nn.Linear(8, 4 * queries), nn.Linear(8, 4 * keys)
    model.v, model.o = nn.Linear(8, 4 * keys), nn.Linear(4 * queries, 8)
    model.up = nn.Linear(8, 10)
    return nn.ModuleDict({"inner": model})


@pytest.mark.parametrize(("ranks", "queries", "keys"), [(4, 4, 2), (3, 6, 2), (2, 6, 3), (3, 8, 4)])
def test_queries_without_their_keys_are_refused(ranks, queries, keys):
    def program(mesh):
        plan = {f"*.{name}": COL(unit=4) for name in "qkv"} | {"*.up": COL()}
        model = grouped_attention(queries, keys)
        unit = 4 * queries // keys
        with da.CommLog() as log:
            with pytest.raises(LayoutError, match=rf"inner\.q.*inner\.k.*unit={unit}"):
                dt.parallelize_module(model, mesh, plan)
            assert log.count() == 0
        plan |= {"*.q": COL(unit=unit), "*.o": ROW(unit=unit)}
        dt.parallelize_module(model, mesh, plan)
        fused = nn.Linear(8, 4 * (queries + 2 * keys))
        parts = tuple(4 * n for n in (queries, keys, keys))
        with pytest.raises(LayoutError, match=r"part 0.*part 1"):
            dt.parallelize_module(fused, mesh, COL(parts=parts, unit=4))
        dt.parallelize_module(fused, mesh, COL(parts=parts, unit=(unit, 4, 4)))

    each(program, ranks)
