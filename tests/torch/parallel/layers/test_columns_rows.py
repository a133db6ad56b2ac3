"""Columns and rows: bytes, dtypes, copies, meta, recomputation, second derivatives, compilation."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import ArgumentError, ArgumentTypeError, LayoutError, MismatchError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from tests.torch.parallel.twins import check_gradient, compare  # noqa: E402


def _values(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 7) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)


def _pair(hidden: int = 7) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(5, hidden), nn.GELU(), nn.Linear(hidden, 6)).double()
    for seed, p in enumerate(model.parameters()):
        p.data = _values(*p.shape, seed=seed) / 2
    return model


PLAN = {"0": dt.ColwiseParallel(), "2": dt.RowwiseParallel()}


def _parallel(twin, mesh):
    return dt.parallelize_module(twin, mesh, PLAN)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_bytes_are_those_of_one_all_reduce_each_way(ranks):
    items, width, out = 300, 48, 36
    model = nn.Sequential(nn.Linear(width, 7), nn.GELU(), nn.Linear(7, out)).double()

    for log in compare(ranks, model, (_values(items, width),), _parallel):
        # What the best all-reduces receive: 2 (n - 1) / n of the activations.
        least = 2 * (ranks - 1) / ranks * items * (width + out) * 8
        assert log.bytes() == pytest.approx(least, rel=0.01)


@pytest.mark.parametrize("ranks", [2, 4])
def test_sequence_shards_need_a_gather_and_a_scatter_each_way(ranks):
    def parallel(twin, mesh):
        plan = {
            "0": dt.ColwiseParallel(input_layouts=da.Shard(1)),
            "2": dt.RowwiseParallel(output_layouts=da.Shard(1)),
        }
        dt.parallelize_module(twin, mesh, plan)
        cut, whole = [da.Shard(1)], [da.Replicate()]

        def run(x):
            x = dt.redistribute(x, mesh, whole, cut, shape=(3, 4, 5))
            return dt.redistribute(twin(x), mesh, cut, whole)

        return run

    for log in compare(ranks, _pair(), (_values(3, 4, 5),), parallel):
        # One gather and one scatter each way, a gather each way outside, and the bias's gradient.
        assert log.count("all_gather") == 4
        assert log.count("reduce_scatter") == 2
        assert log.count("all_reduce") == 1


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_other_dtypes(dtype, tolerance):
    compare(3, _pair().to(dtype), (_values(3, 4, 5, dtype=dtype),), _parallel, tolerance=tolerance)


class Joined(nn.Module):
    """Two inputs to a bilinear form, passed by name and in another order."""

    def __init__(self, features: int = 5, out: int = 6) -> None:
        super().__init__()
        self.form = nn.Bilinear(features, 3, out)

    def forward(self, x, y):
        return self.form(input2=y, input1=x)


@pytest.mark.parametrize("style", [dt.ColwiseParallel, dt.RowwiseParallel])
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("features", [5, 2])
def test_bilinear_forms(style, ranks, features):
    def parallel(twin, mesh):
        whole = da.Replicate()
        styled = style(input_layouts=whole, output_layouts=whole)
        return dt.parallelize_module(twin, mesh, {"form": styled})

    model = Joined(features, features).double()
    compare(ranks, model, (_values(4, features), _values(4, 3)), parallel)


def test_bilinear_rows_with_the_first_input_cut_already():
    model = nn.ModuleDict({"a": nn.Linear(5, 7), "b": nn.Bilinear(7, 5, 4)}).double()

    class Chained(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = model

        def forward(self, x):
            return self.parts["b"](self.parts["a"](x), x)

    def parallel(twin, mesh):
        plan = {"parts.a": dt.ColwiseParallel(), "parts.b": dt.RowwiseParallel()}
        return dt.parallelize_module(twin, mesh, plan)

    for log in compare(2, Chained(), (_values(4, 5),), parallel):
        assert log.count() == log.count("all_reduce") == 3  # two inputs want gradients


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_moves_again_and_changes_nothing(reentrant):
    def parallel(twin, mesh):
        _parallel(twin, mesh)
        return lambda x: checkpoint(twin, x, use_reentrant=reentrant)

    for log in compare(2, _pair(), (_values(3, 5),), parallel):
        # One that is not re-entrant stops before the last, whose result nobody needs.
        assert log.count() == log.count("all_reduce") == 2 + reentrant


def test_second_derivatives():
    model, x = _pair(), _values(3, 5)

    def curvature(run, model):
        y = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(run(y).pow(2).sum(), y, create_graph=True)
        slope.pow(2).sum().backward()
        return y.grad

    expected = curvature(model, model)
    gradients = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()

    def program():
        mesh = da.init_device_mesh((3,), ("tp",))
        twin = _parallel(copy.deepcopy(model), mesh)
        torch.testing.assert_close(curvature(twin, twin), expected)
        for name, parameter in twin.named_parameters():
            check_gradient(name, parameter, gradients[name], None, gradients.values())

    simulate(3, program)


def test_without_gradients_there_is_one_all_reduce():
    model, x = _pair(), _values(3, 5)

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        twin = _parallel(copy.deepcopy(model), mesh)
        for mode in (torch.no_grad, torch.inference_mode):
            with da.CommLog() as log, mode():
                y = twin(x)
            torch.testing.assert_close(y, model(x).detach())
            assert log.count() == 1

    simulate(2, program)


def test_a_copy_is_parallel_too_and_knows_its_layouts():
    model, x = _pair(), _values(3, 5)
    words = torch.tensor([[1, 4, 0]])
    table = nn.Embedding(5, 5).double()
    attention = nn.MultiheadAttention(6, 3, batch_first=True).double()

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.pair, self.attention = table, model, attention

        def forward(self, words):
            y = self.pair(self.table(words))
            return self.attention(y, y, y, need_weights=False)[0]

    single = Whole()
    expected = single(words).detach()

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        plan = {
            "table": dt.RowwiseParallel(),
            "pair.0": dt.ColwiseParallel(),
            "pair.2": dt.RowwiseParallel(),
            "attention": dt.ColwiseParallel(),
        }
        twin = dt.parallelize_module(copy.deepcopy(single), mesh, plan)
        other = copy.deepcopy(twin)
        with torch.no_grad():
            for p in twin.parameters():
                p.zero_()  # the copy uses none of it
        torch.testing.assert_close(other(words).detach(), expected)
        for (name, p), q in zip(other.named_parameters(), twin.parameters(), strict=True):
            assert dt.layout_of(p) is dt.layout_of(q) is not None, name

    simulate(2, program)
    del x


def test_from_meta_to_values():
    model, x = _pair(), _values(3, 5)
    expected = model(x).detach()
    table = _values(5, 4)

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        with torch.device("meta"):
            twin = copy.deepcopy(model).to("meta")
            words = nn.Embedding(5, 4, padding_idx=4, dtype=torch.float64)
        with da.CommLog() as log:
            _parallel(twin, mesh)
            dt.parallelize_module(words, mesh, dt.RowwiseParallel())
        assert log.count() == 0
        assert all(p.is_meta for p in twin.parameters())
        twin.to_empty(device="cpu")
        words.to_empty(device="cpu")
        rank = mesh.coordinate[0]
        cut = {"0.weight": 0, "0.bias": 0, "2.weight": 1}
        with torch.no_grad():
            for name, p in twin.named_parameters():
                full = model.get_parameter(name)
                block = full if name not in cut else full.chunk(2, cut[name])[rank]
                p.copy_(block)
            words.weight.copy_(table.chunk(2)[rank])
        torch.testing.assert_close(twin(x).detach(), expected)
        assert dt.layout_of(twin[0].weight).placements == (da.Shard(0),)
        y = words(torch.tensor([0, 4]))
        torch.testing.assert_close(y.detach(), table[[0, 4]])
        y.sum().backward()
        if rank == 1:
            assert words.weight.grad[-1].count_nonzero() == 0

    simulate(2, program)


@pytest.mark.filterwarnings("ignore")  # of the compiler itself
def test_compiled_models_compute_the_same():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(7, 6)
            self.attention = nn.MultiheadAttention(6, 3, batch_first=True)
            self.qkv = nn.Linear(6, 12)
            self.out = nn.Linear(4, 6)

        def forward(self, words):
            y = self.table(words)
            y = y + self.attention(y, y, y, need_weights=False)[0]
            a, b, c = self.qkv(y).chunk(3, -1)
            return self.out(torch.tanh(a) * b + c)

    model = Model().double()
    words = torch.tensor([[1, 4, 0], [6, 6, 2]])

    def parallel(twin, mesh):
        plan = {
            "table": dt.RowwiseParallel(),
            "attention": dt.ColwiseParallel(),
            "qkv": dt.ColwiseParallel(parts=(4, 4, 4)),
            "out": dt.RowwiseParallel(),
        }
        return torch.compile(dt.parallelize_module(twin, mesh, plan), backend="aot_eager")

    torch._dynamo.reset()
    try:
        compare(2, model, (words,), parallel)
    finally:
        torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")  # of the compiler itself
def test_compiler_does_not_trace_what_is_known_of_tensors():
    from torch._dynamo import utils  # whose import takes a second

    torch._dynamo.reset()
    utils.clear_compilation_metrics()
    try:
        compare(
            2,
            _pair(),
            (_values(4, 5),),
            lambda *one: torch.compile(_parallel(*one), backend="aot_eager"),
        )
        # It would look at dictionaries that change meanwhile.
        traced = {Path(one.co_filename or "").name for one in utils.get_compilation_metrics()}
    finally:
        torch._dynamo.reset()
    assert traced
    assert not traced & {"_layouts.py", "_operands.py"}


@pytest.mark.filterwarnings("ignore")  # of the compiler itself
def test_the_compiler_does_not_read_what_other_ranks_write():
    """Simulated ranks share what is known of tensors, which changes while one of them compiles."""

    def program():
        model = nn.MultiheadAttention(6, 3, batch_first=True)
        dt.parallelize_module(model, da.init_device_mesh((1,)), dt.ColwiseParallel())
        x = torch.ones(2, 3, 6)
        guards = torch._dynamo.explain(model)(x, x, x).out_guards
        assert guards
        assert not [guard for guard in guards if "_beside" in guard.name]

    torch._dynamo.reset()
    try:
        simulate(1, program)
    finally:
        torch._dynamo.reset()


def test_an_error_in_forward_puts_the_bias_back():
    class Failing(nn.Linear):
        def forward(self, x):
            if x.isnan().any():
                raise RuntimeError("no numbers")
            return super().forward(x)

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        layer = Failing(4, 3)
        dt.parallelize_module(layer, mesh, dt.RowwiseParallel(own_forward=True))
        bias = layer.bias
        with pytest.raises(RuntimeError, match="no numbers"):
            layer(torch.full((2, 2), torch.nan))
        assert layer.bias is bias is not None
        with pytest.raises(LayoutError, match="3 features on this rank"):
            layer(torch.ones(2, 3))
        assert layer.bias is bias
        assert layer(torch.ones(2, 2)).shape == (2, 3)

    simulate(2, program)


def test_an_input_that_fits_on_some_ranks_alone_is_an_error_on_all():
    def program():
        mesh = da.init_device_mesh((3,), ("tp",))
        layer = nn.Sequential(nn.Linear(6, 3))
        dt.parallelize_module(layer, mesh, {"0": dt.RowwiseParallel()})
        width = (2, 3, 1)[mesh.coordinate[0]]
        fits = width == 2
        with pytest.raises(MismatchError if fits else LayoutError, match="features on this rank"):
            layer(torch.ones(4, width))
        assert layer(torch.ones(4, 2)).shape == (4, 3)  # in step again

    simulate(3, program)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_padding_needs_no_nested_tensors():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, batch_first=True), 1).eval()
    padded = torch.tensor([[False, False], [False, True]])
    x = _values(2, 2, 4).float()

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        twin = copy.deepcopy(model)
        dt.parallelize_module(twin, mesh, {"layers.*": dt.TransformerLayerParallel()})
        with torch.no_grad():
            expected = model(x, src_key_padding_mask=padded)
            found = twin(x, src_key_padding_mask=padded)
        torch.testing.assert_close(found[~padded], expected[~padded])

    simulate(2, program)


def test_errors_say_what_to_do():
    def program():
        mesh = da.init_device_mesh((2, 1), ("a", "b"))
        model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
        with da.CommLog() as log:
            with pytest.raises(ArgumentTypeError, match=r"^1 \(LayerNorm\): .*Linear, Bilinear"):
                dt.parallelize_module(model, mesh["a"], {"1": dt.ColwiseParallel()})
            with pytest.raises(ArgumentError, match=r"^0 \(Linear\): .*mesh\['b'\]"):
                dt.parallelize_module(model, mesh, {"0": dt.ColwiseParallel()})
        assert log.count() == 0
        dt.parallelize_module(model, mesh["a"], {"0": dt.ColwiseParallel()})
        with pytest.raises(ArgumentError, match=r"^0 \(Linear\): .*\['data'\].*'input'"):
            model[0](data=torch.ones(2, 4))

    simulate(2, program)
