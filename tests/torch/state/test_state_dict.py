"""State dicts are those of one process, whoever holds which block of the module."""

from __future__ import annotations

import copy
import io

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import ArgumentError, MeshError, StateDictError  # noqa: E402
from distarray.testing import simulate  # noqa: E402


class Model(nn.Module):
    """Every kind of entry: cut, fused, tied, replicated, buffers and further state."""

    def __init__(self, seed=0):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.qkv = nn.Linear(6, 5 + 3 + 3)
        self.up = nn.Linear(11, 7)
        self.down = nn.Linear(7, 6, bias=False)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight
        self.low = nn.Linear(6, 3).bfloat16()
        self.register_buffer("steps", torch.tensor(3))
        self.register_buffer("passing", torch.ones(2), persistent=False)
        self.epoch = seed
        generator = torch.Generator().manual_seed(seed)
        for value in (*self.parameters(), self.norm.running_mean):
            value.data.copy_(torch.randn(value.shape, generator=generator))

    def get_extra_state(self):
        return {"epoch": self.epoch}

    def set_extra_state(self, state):
        self.epoch = state["epoch"]

    def forward(self, words):
        x = self.up(self.qkv(self.embed(words)))
        return self.head(self.norm(self.down(torch.tanh(x))))


PLAN = {
    "embed": dt.RowwiseParallel(),
    "qkv": dt.ColwiseParallel(parts=(5, 3, 3), output_layouts=da.Replicate()),
    "up": dt.ColwiseParallel(),
    "down": dt.RowwiseParallel(),
    "head": dt.ColwiseParallel(output_layouts=da.Replicate()),
    "low": dt.ColwiseParallel(),
}


def parallel(mesh, seed=0, model=None):
    model = Model(seed) if model is None else copy.deepcopy(model)
    return dt.parallelize_module(model, mesh if mesh.ndim == 1 else mesh["tp"], PLAN)


def same(found, expected):
    assert list(found) == list(expected)
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert found[name].dtype is value.dtype
            assert not found[name].requires_grad
            assert type(found[name]) is torch.Tensor
            torch.testing.assert_close(found[name], value, rtol=0, atol=0)
        else:
            assert found[name] == value


def each(shape, program):
    size = shape[0] * (shape[1] if len(shape) == 2 else 1)
    names = ("tp",) if len(shape) == 1 else ("dp", "tp")

    def run():
        return program(da.init_device_mesh(shape, names))

    return simulate(size, run)


MESHES = [(1,), (2,), (3,), (4,), (2, 2)]
MODEL, OTHER = Model(0), Model(1)
WHOLE, NEXT = MODEL.state_dict(), OTHER.state_dict()


@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_all_ranks_get_what_one_process_has(shape):
    def program(mesh):
        model = parallel(mesh, model=MODEL)
        found = dt.state_dict(model)
        same(found, WHOLE)
        assert found._metadata == WHOLE._metadata
        assert found["head.weight"] is found["embed.weight"]
        stream = io.BytesIO()
        torch.save(found, stream)
        stream.seek(0)
        same(torch.load(stream), WHOLE)

    each(shape, program)


@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_one_rank_alone_gets_whole_tensors(shape):
    def program(mesh):
        model = parallel(mesh, model=MODEL)
        with da.CommLog() as log:
            found = dt.state_dict(model, ranks=mesh.size - 1, mesh=mesh, cpu=True)
        if mesh.rank == mesh.size - 1:
            same(found, WHOLE)
        else:
            assert not found
            assert log.bytes() == 0

    each(shape, program)


@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_blocks_are_what_a_rank_holds(shape):
    def program(mesh):
        model = parallel(mesh, model=MODEL)
        with da.CommLog() as log:
            found = dt.state_dict(model, full=False)
            other = parallel(mesh, model=MODEL)
        before = log.count()
        assert list(found) == list(WHOLE)
        assert dt.layout_of(found["up.weight"]) is dt.layout_of(model.up.weight)
        assert found["up.weight"].data_ptr() == model.up.weight.data_ptr()
        with torch.no_grad():
            for value in other.parameters():
                value.zero_()
        with log:
            dt.load_state_dict(other, found)
        moved = log.records[before:]
        assert all(record.collective == "all_gather_object" for record in moved)
        same(dt.state_dict(other), WHOLE)

    each(shape, program)


@pytest.mark.parametrize(
    ("source", "assign"), [(None, False), (None, True), (0, True), (-1, False)]
)
@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_whole_tensors_are_loaded_from_all_ranks_or_from_one(shape, source, assign):
    def program(mesh):
        model = parallel(mesh, model=MODEL)
        parameter = model.up.weight
        at = None if source is None else source % mesh.size
        given = NEXT if at is None or mesh.rank == at else None
        keys = dt.load_state_dict(
            model, given, src_data_rank=at, mesh=None if at is None else mesh, assign=assign
        )
        assert keys == ([], [])
        same(dt.state_dict(model), NEXT)
        assert model.epoch == 1
        assert (model.up.weight is parameter) != assign
        assert model.head.weight is model.embed.weight
        assert dt.layout_of(model.up.weight) is not None
        if assign:  # nothing of the given state is held
            for name, block in dt.state_dict(model, full=False).items():
                if isinstance(block, torch.Tensor) and block.shape != NEXT[name].shape:
                    assert block.untyped_storage().nbytes() <= block.nbytes

    each(shape, program)


def test_from_one_rank_each_is_sent_its_block_alone():
    model = nn.Sequential(nn.Linear(64, 32, bias=False)).double()
    nbytes = 64 * 32 * 8

    def program(mesh):
        twin = dt.parallelize_module(copy.deepcopy(model), mesh, {"0": dt.ColwiseParallel()})
        given = model.state_dict() if mesh.rank == 0 else None
        with da.CommLog() as log:
            dt.load_state_dict(twin, given, src_data_rank=0)
        assert log.count("scatter") == 1
        assert log.bytes("scatter") == (0 if mesh.rank == 0 else nbytes // 4)
        assert log.count("broadcast") == 0

    each((4,), program)


@pytest.mark.parametrize("first", MESHES[1:], ids=str)
@pytest.mark.parametrize("second", MESHES[:3], ids=str)
def test_a_state_goes_on_with_another_number_of_ranks(first, second):
    saved = each(first, lambda mesh: dt.state_dict(parallel(mesh, model=OTHER)))[0]

    def program(mesh):
        model = parallel(mesh, model=MODEL)
        dt.load_state_dict(model, saved)
        same(dt.state_dict(model), NEXT)

    each(second, program)


@pytest.mark.parametrize("assign", [False, True])
def test_meta_modules_are_loaded(assign):
    with torch.device("meta"):
        model = Model.__new__(Model)
        nn.Module.__init__(model)
        model.up, model.down = nn.Linear(11, 7), nn.Linear(7, 6, bias=False)
    model.get_extra_state = nn.Module.get_extra_state.__get__(model)
    plan = {"up": dt.ColwiseParallel(), "down": dt.RowwiseParallel()}
    state = {name: value for name, value in NEXT.items() if name.partition(".")[0] in plan}
    x = torch.ones(2, 11)

    def program(mesh):
        net = nn.Sequential()
        net.up, net.down = copy.deepcopy(model.up), copy.deepcopy(model.down)
        with da.CommLog() as log:
            dt.parallelize_module(net, mesh, plan)
        assert log.count() == 0
        if not assign:
            net.to_empty(device="cpu")
        given = state if mesh.rank == 0 else None
        dt.load_state_dict(net, given, src_data_rank=0, assign=assign)
        assert dt.layout_of(net.up.weight).placements == (da.Shard(0),)
        same(dt.state_dict(net), state)
        torch.testing.assert_close(net(x), OTHER.down(OTHER.up(x)))

    each((2,), program)


# --- what does not fit ---------------------------------------------------------------------------


def without(state, name):
    return {key: value for key, value in state.items() if key != name}


@pytest.mark.parametrize("source", [None, 0])
def test_what_does_not_fit_is_an_error_on_every_rank(source):
    def program(mesh):
        model = parallel(mesh, model=MODEL)

        def load(state, **options):
            if source is not None and mesh.rank != source:
                state = None
            return dt.load_state_dict(model, state, src_data_rank=source, **options)

        wrong = {**WHOLE, "up.weight": torch.ones(5, 11)}
        for state, message in (
            (without(NEXT, "up.bias"), r"missing keys: 'up\.bias'"),
            ({**NEXT, "more": torch.ones(1)}, "unexpected keys: 'more'"),
            (wrong, r"up\.weight has shape \(5, 11\), where the module's has \(7, 11\)"),
        ):
            with pytest.raises(RuntimeError, match=message) as caught:
                load(state)
            assert isinstance(caught.value, StateDictError)
        with pytest.raises(StateDictError, match="has shape"):
            load(wrong, strict=False)
        same(dt.state_dict(model), WHOLE)  # nothing was loaded
        keys = load({**without(NEXT, "up.bias"), "more": torch.ones(1)}, strict=False)
        assert keys.missing_keys == ["up.bias"]
        assert keys.unexpected_keys == ["more"]
        same(dt.state_dict(model), {**NEXT, "up.bias": WHOLE["up.bias"]})

    each((3,), program)


def test_an_error_on_one_rank_reaches_all():
    def program(mesh):
        model = parallel(mesh, model=MODEL)
        state = NEXT if mesh.rank else without(NEXT, "up.bias")
        with pytest.raises(StateDictError, match=r"missing keys: 'up\.bias'"):
            dt.load_state_dict(model, state)
        same(dt.state_dict(model), WHOLE)

    each((2,), program)


def test_positions_need_a_mesh():
    def program(mesh):
        plain = Model()
        with pytest.raises(ArgumentError, match="pass mesh="):
            dt.state_dict(plain, ranks=0)
        same(dt.state_dict(plain), Model().state_dict())
        dt.load_state_dict(plain, NEXT)
        same(dt.state_dict(plain), NEXT)
        model = parallel(mesh, model=MODEL)
        with pytest.raises(ArgumentError, match="must be 0 to 1"):
            dt.state_dict(model, ranks=2)
        other = da.init_device_mesh((2,), ("other",))
        given = NEXT if mesh.rank == 0 else None
        with pytest.raises(MeshError, match="does not contain"):
            dt.load_state_dict(model, given, src_data_rank=0, mesh=other)

    each((2,), program)
