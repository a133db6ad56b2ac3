"""A run goes on with another number of ranks as if nothing had happened."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import ArgumentError, MismatchError, StateDictError  # noqa: E402
from distarray.testing import simulate  # noqa: E402

PLAN = {
    "0": dt.ColwiseParallel(parts=(4, 3), output_layouts=da.Replicate()),
    "2": dt.RowwiseParallel(input_layouts=da.Replicate()),
}
MODEL = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
X = torch.linspace(-1, 1, 20).double().reshape(4, 5)
ADAM = {"lr": 0.1, "weight_decay": 0.01}
MAKE = {
    "adam": lambda groups: torch.optim.AdamW(groups, **ADAM),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "plain": lambda groups: torch.optim.SGD(groups, lr=0.1),
}


def start(model, kind):
    groups = [
        {"params": [model[0].weight, model[2].bias]},
        {"params": [model[2].weight], "lr": 0.3},
    ]
    groups[0]["params"].append(model[0].bias)
    return MAKE[kind](groups)


def steps(model, optimizer, count):
    for _ in range(count):
        optimizer.zero_grad()
        (model(X) ** 2).sum().backward()
        optimizer.step()


def reference(kind, count):
    model = copy.deepcopy(MODEL)
    optimizer = start(model, kind)
    steps(model, optimizer, count)
    return model, optimizer


def parallel(mesh, model=MODEL):
    model = copy.deepcopy(model)
    return dt.parallelize_module(model, mesh if mesh.ndim == 1 else mesh["tp"], PLAN)


def each(shape, program):
    names = ("tp",) if len(shape) == 1 else ("dp", "tp")
    size = shape[0] * (shape[1] if len(shape) == 2 else 1)
    return simulate(size, lambda: program(da.init_device_mesh(shape, names)))


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("source", [None, 0])
@pytest.mark.parametrize(
    ("first", "second"), [((2,), (3,)), ((3,), (1,)), ((1,), (2, 2)), ((2, 2), (2,))], ids=str
)
def test_a_run_goes_on_with_other_ranks(first, second, source, kind):
    def begin(mesh):
        model = parallel(mesh)
        optimizer = start(model, kind)
        steps(model, optimizer, 2)
        if source is None:
            return dt.state_dict(model), dt.optimizer_state_dict(model, optimizer)
        options = {"ranks": 0, "mesh": mesh}
        found = (
            dt.state_dict(model, **options),
            dt.optimizer_state_dict(model, optimizer, **options),
        )
        assert mesh.rank == 0 or not any(found)
        return found

    saved = copy.deepcopy(each(first, begin)[0])
    middle, _ = reference(kind, 2)
    expected, reached = reference(kind, 4)
    for name, value in middle.state_dict().items():
        torch.testing.assert_close(saved[0][name], value)

    def go_on(mesh):
        model = parallel(mesh)
        optimizer = start(model, kind)
        given = saved if source is None or mesh.rank == 0 else (None, None)
        options = {} if source is None else {"src_data_rank": 0, "mesh": mesh}
        dt.load_state_dict(model, given[0], **options)
        dt.load_optimizer_state_dict(model, optimizer, given[1], **options)
        steps(model, optimizer, 2)
        found = dt.state_dict(model)
        for name, value in expected.state_dict().items():
            torch.testing.assert_close(found[name], value)
        whole = dt.optimizer_state_dict(model, optimizer)
        assert [g["lr"] for g in whole["param_groups"]] == [0.1, 0.3]
        for name, parameter in expected.named_parameters():
            for key, value in reached.state[parameter].items():
                torch.testing.assert_close(whole["state"][name][key], value)

    each(second, go_on)


def test_what_does_not_fit_is_an_error():
    def program(mesh):
        model = parallel(mesh)
        optimizer = start(model, "adam")
        steps(model, optimizer, 1)
        state = dt.optimizer_state_dict(model, optimizer)
        with pytest.raises(ArgumentError, match="none of the Linear's"):
            dt.optimizer_state_dict(model[2], optimizer)
        for wrong in ({"state": {}}, 3):
            with pytest.raises(StateDictError, match="optimizer_state_dict returned"):
                dt.load_optimizer_state_dict(model, optimizer, wrong)
        with pytest.raises(StateDictError, match="parameter groups"):
            dt.load_optimizer_state_dict(model, torch.optim.SGD(model.parameters()), state)
        state["state"]["0.weight"]["exp_avg"] = torch.ones(4, 5)
        with pytest.raises(StateDictError, match=r"'exp_avg' of 0\.weight has shape \(4, 5\)"):
            dt.load_optimizer_state_dict(model, optimizer, state)
        optimizer.state[model[0].weight]["rows"] = torch.ones(3)
        with pytest.raises(ArgumentError, match="how it is cut is not known"):
            dt.optimizer_state_dict(model, optimizer)

    each((2,), program)


def carry(way, path, source, target, **options):
    """Load what a module and its optimizer have into others, in one of the ways."""
    if way == "checkpoint":
        options["cast"] = True
        da.checkpoint.save(path, dict(zip("mo", source, strict=True)))
        da.checkpoint.load(path, dict(zip("mo", target, strict=True)), **options)
    else:
        options |= {} if way == "all" else {"src_data_rank": 0}
        dt.load_state_dict(target[0], dt.state_dict(source[0]), **options)
        dt.load_optimizer_state_dict(*target, dt.optimizer_state_dict(*source), **options)


WAYS = pytest.mark.parametrize("way", ["checkpoint", "all", "one rank"])


@WAYS
@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize(
    "dtypes", [("float64", "float32"), ("bfloat16", "float32"), ("float32", "bfloat16")], ids=str
)
def test_states_take_the_dtype_of_the_parameter(dtypes, kind, way, tmp_path):
    """As torch's optimizers, which could not make a step otherwise, convert them."""
    saved, here = (getattr(torch, name) for name in dtypes)

    def step(model, optimizer):
        optimizer.zero_grad()
        model(X.to(model[0].weight.dtype)).square().sum().backward()
        optimizer.step()

    def program(mesh):
        states = []
        for place in (lambda model: model, lambda model: dt.fully_shard(model, mesh)):
            old, new = (place(copy.deepcopy(MODEL).to(dtype)) for dtype in (saved, here))
            source, target = start(old, kind), start(new, kind)
            step(old, source)
            if states:
                carry(way, tmp_path / "x", (old, source), (new, target))
            else:
                new.load_state_dict(old.state_dict())
                target.load_state_dict(source.state_dict())
            states.append(copy.deepcopy(dt.optimizer_state_dict(new, target)["state"]))
            step(new, target)
        for name, kept in states[0].items():
            for key, value in kept.items():
                assert states[1][name][key].dtype is value.dtype
                torch.testing.assert_close(states[1][name][key], value, rtol=2e-2, atol=2e-2)

    each((2,), program)


@WAYS
def test_states_that_were_not_there_are_dropped(way, tmp_path):
    """As by torch, for parameters that had made no step when the state was saved."""

    def program(mesh):
        old, new = parallel(mesh), parallel(mesh)
        old[0].bias.requires_grad_(False)
        source, target = start(old, "adam"), start(new, "adam")
        steps(old, source, 1)
        steps(new, target, 3)
        carry(way, tmp_path / "x", (old, source), (new, target))
        found = dt.optimizer_state_dict(new, target)["state"]
        assert {name: one["step"].item() for name, one in found.items()} == {
            "0.weight": 1,
            "2.weight": 1,
            "2.bias": 1,
        }

    each((2,), program)


@WAYS
@pytest.mark.parametrize("named", [False, True])
def test_names_of_parameters_are_the_optimizers_own(named, way, tmp_path):
    """Also where its group has another order, and where it has grown."""

    def program(mesh):
        model = parallel(mesh)
        pairs = list(model.named_parameters())
        source = torch.optim.SGD(pairs, lr=0.1, momentum=0.9)
        steps(model, source, 1)
        given = pairs[::-1] if named else [parameter for _, parameter in pairs[::-1]]
        target = torch.optim.SGD(given, lr=0.2, momentum=0.9)
        carry(way, tmp_path / "x", (model, source), (model, target))
        for _, parameter in pairs:
            pair = (one.state[parameter]["momentum_buffer"] for one in (source, target))
            assert torch.equal(*pair)
        (group,) = target.param_groups
        assert group["lr"] == 0.1
        assert group.get("param_names") == ([name for name, _ in given] if named else None)
        few = torch.optim.SGD(pairs[:2], lr=0.3)
        carry(way, tmp_path / "y", (model, few), (model, target), strict=False)
        assert group.get("param_names") == target.param_groups[0].get("param_names")
        assert len(target.param_groups[0]["params"]) == 4

    each((2,), program)


def test_a_rank_whose_state_lacks_something_is_an_error():
    def program(mesh):
        model = parallel(mesh)
        optimizer = start(model, "adam")
        steps(model, optimizer, 1)
        state = copy.deepcopy(dt.optimizer_state_dict(model, optimizer))
        steps(model, optimizer, 1)
        if mesh.rank == 1:
            state["state"].pop("0.bias")
        with pytest.raises(MismatchError, match=r"rank 1 lacks '0\.bias\.exp_avg', "):
            dt.load_optimizer_state_dict(model, optimizer, state)
        assert {one["step"].item() for one in optimizer.state.values()} == {2}
        whole = dt.state_dict(model)
        if mesh.rank == 0:
            whole.pop("2.weight")
        with pytest.raises(MismatchError, match=r"rank 0 lacks '2\.weight'"):
            dt.load_state_dict(model, whole, strict=False)

    each((2,), program)


@pytest.mark.parametrize("source", [None, 0])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("sharded", [False, True])
def test_a_model_that_has_grown(sharded, apart, source):
    """What is there is loaded; new parameters begin, and those that are gone are left out."""

    def model(width):
        layers = [torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3, bias=width < 3)]
        module = torch.nn.Sequential(*layers, *(torch.nn.Linear(3, 3) for _ in range(width - 2)))
        with torch.no_grad():
            for i, p in enumerate(module.parameters()):
                p.copy_(torch.linspace(-1, 1, p.numel()).roll(i).view(p.shape))
        return module

    def placed(module, mesh):
        if sharded:
            return dt.fully_shard(module, mesh)
        return dt.parallelize_module(
            module, mesh, {"0": dt.ColwiseParallel(output_layouts=da.Replicate())}
        )

    def optimizer_of(module, rate):
        groups = [{"params": list(module[:3].parameters()), "lr": rate}]
        if len(module) > 3:
            new = list(module[3:].parameters())
            if apart:
                groups.append({"params": new, "lr": 0.7})
            else:
                groups[0]["params"] += new
        return torch.optim.AdamW(groups)

    def step(module, optimizer):
        optimizer.zero_grad()
        rank = da.comm.world().rank if sharded else 0
        module(torch.ones(2, 4) + rank).square().mean().backward()
        optimizer.step()

    def program(mesh):
        small = placed(model(2), mesh)
        old = optimizer_of(small, 0.25)
        step(small, old)
        options = {} if source is None else {"ranks": source, "mesh": mesh}
        state = dt.optimizer_state_dict(small, old, **options)
        large = placed(model(3), mesh)
        new = optimizer_of(large, 0.5)
        options = {} if source is None else {"src_data_rank": source, "mesh": mesh}
        with pytest.raises(da.errors.DistArrayError, match="strict=False"):
            dt.load_optimizer_state_dict(large, new, state, **options)
        assert not new.state
        dt.load_optimizer_state_dict(large, new, state, strict=False, **options)
        assert [group["lr"] for group in new.param_groups] == [0.25, 0.7][: 1 + apart]
        whole = dt.optimizer_state_dict(large, new)["state"]
        wanted = dt.optimizer_state_dict(small, old)["state"]
        assert set(whole) == {"0.weight", "0.bias", "2.weight"}
        for name, own in whole.items():
            for key, value in own.items():
                torch.testing.assert_close(value, wanted[name][key])
        step(large, new)
        found = dt.optimizer_state_dict(large, new)["state"]
        counts = {name: one["step"].item() for name, one in found.items()}
        assert counts == dict.fromkeys(whole, 2) | {"3.weight": 1, "3.bias": 1}

    each((2,), program)


def test_groups_that_were_merged_are_an_error():
    def program(mesh):
        model = parallel(mesh)
        optimizer = start(model, "adam")
        state = dt.optimizer_state_dict(model, optimizer)
        merged = torch.optim.SGD(model.parameters(), 0.1)
        with pytest.raises(StateDictError, match="of 2 groups"):
            dt.load_optimizer_state_dict(model, merged, state, strict=False)
        with pytest.raises(MismatchError, match="strict"):
            dt.load_optimizer_state_dict(model, optimizer, state, strict=mesh.rank == 0)

    each((2,), program)


def test_rates_that_differ_between_ranks_are_named():
    """As a schedule makes them that follows the loss of each rank."""

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        model = parallel(mesh)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        steps(model, optimizer, 1)
        dt.optimizer_state_dict(model, optimizer)
        optimizer.param_groups[0]["lr"] = torch.tensor(0.1 + mesh.rank)
        with pytest.raises(
            MismatchError, match=r"'lr' on different ranks: rank 0: 0\.1.*rank 1: 1"
        ):
            dt.optimizer_state_dict(model, optimizer)

    simulate(2, program)
