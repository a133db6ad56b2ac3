"""Inside loss_parallel no function takes a share for the whole: results are right, or refused."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")

from torch.overrides import get_testing_overrides  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import LayoutError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from distarray.torch._carried import known, lost_layout  # noqa: E402
from distarray.torch._indices import kept_axes  # noqa: E402
from distarray.torch._layouts import place  # noqa: E402

F = torch.nn.functional
ROWS, WORDS = 5, 7
FULL = torch.randn(ROWS, WORDS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

ALONG = {
    "sum": lambda x, d: x.sum(d),
    "mean": lambda x, d: torch.mean(x, dim=d),
    "prod": lambda x, d: x.prod(d),
    "amax": lambda x, d: x.amax(d),
    "amin, kept": lambda x, d: torch.amin(x, d, keepdim=True),
    "max": lambda x, d: x.max(d),
    "min": lambda x, d: torch.min(x, dim=d),
    "argmax": lambda x, d: x.argmax(d),
    "aminmax": lambda x, d: torch.aminmax(x, dim=d),
    "median": lambda x, d: x.median(d),
    "any": lambda x, d: (x > 1).any(d),
    "all": lambda x, d: (x < 1).all(dim=d),
    "std": lambda x, d: x.std(d),
    "var": lambda x, d: torch.var(x, dim=d, correction=0),
    "norm": lambda x, d: x.norm(dim=d),
    "vector_norm": lambda x, d: torch.linalg.vector_norm(x, 1, d),
    "count_nonzero": lambda x, d: (x > 0).count_nonzero(d),
    "logsumexp": lambda x, d: x.logsumexp(d),
    "softmax": lambda x, d: x.softmax(d),
    "log_softmax": lambda x, d: F.log_softmax(input=x, dim=d),
    "nn.Softmax": lambda x, d: torch.nn.Softmax(d)(x),
    "sort": lambda x, d: x.sort(d, descending=True),
    "argsort": lambda x, d: x.argsort(d),
    "topk": lambda x, d: x.topk(2, d),
    "kthvalue": lambda x, d: x.kthvalue(1, d),
    "quantile": lambda x, d: x.quantile(0.5, d),
    "cumsum": lambda x, d: x.cumsum(d),
    "cumprod": lambda x, d: torch.cumprod(x, dim=d),
    "logcumsumexp": lambda x, d: x.logcumsumexp(d),
    "normalize": lambda x, d: F.normalize(x, dim=d),
    "cosine_similarity": lambda x, d: F.cosine_similarity(x, x + 1, d),
    "flip": lambda x, d: x.flip(d),
    "roll": lambda x, d: x.roll(1, d),
    "diff": lambda x, d: x.diff(dim=d),
    "gather": lambda x, d: x.gather(d, (x > 9).long()),
    "index_select": lambda x, d: x.index_select(d, torch.tensor([1, 0])),
    "cat": lambda x, d: torch.cat([x, 2 * x], d),
    "narrow": lambda x, d: x.narrow(d, 1, 1),
    "select": lambda x, d: x.select(d, 0),
    "chunk": lambda x, d: x.chunk(2, d),
    "getitem": lambda x, d: x[:2] if d == 0 else x[..., 1:],
    "list": lambda x, d: x[[1, 0]] if d == 0 else x[:, [0, 1]],
    "scatter": lambda x, d: x.scatter(d, (x > 9).long(), 0.0),
    "linalg.vecdot": lambda x, d: torch.linalg.vecdot(x, x, dim=d),
    "standardized": lambda x, d: (x - x.mean(d, keepdim=True)) / x.std(d, keepdim=True),
}
OF_ALL = {
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.square().mean(),
    "max": torch.max,
    "norm": lambda x: x.norm(),
    "any": lambda x: x.isnan().any(),
    "flattened": lambda x: x.flatten().sum(),
    "viewed": lambda x: (2 * x).view(-1).norm(),
    "unknown": lambda x: torch.linalg.svdvals(x).sum(),
    "number": lambda x: torch.linalg.matrix_norm(x, "nuc"),
    "mse_loss": lambda x: F.mse_loss(x, x + 1),
    "kl_div": lambda x: F.kl_div(x, x.exp(), reduction="batchmean"),
    "binary": lambda x: F.binary_cross_entropy_with_logits(x, x.sigmoid()),
    "nll_loss": lambda x: F.nll_loss(x, torch.zeros(len(x), dtype=torch.long)),
    "nn.MSELoss": lambda x: torch.nn.MSELoss()(x, x + 1),
    "equal": lambda x: torch.equal(x, x + 1),
    "einsum": lambda x: torch.einsum("ab,ab->", x, x),
    "masked": lambda x: x[x > 0],
    "where": lambda x: torch.where(x > 0),
    "transposed in place": lambda x: x.t_(),
}


def _block(mesh, axis):
    layout = da.Layout(mesh, [da.Shard(axis)], FULL.shape)
    box = tuple(slice(*bounds) for bounds in layout.local_box())
    block = FULL[box].clone()
    place(block, layout)
    return block


def _members(result):
    return result if isinstance(result, tuple | list) else (result,)


def _is_block(mine, full):
    """Tell whether a tensor is what its layout says of that of one process."""
    layout = known(mine)
    box = tuple(slice(*bounds) for bounds in layout.local_box())
    if tuple(layout.shape) != tuple(full.shape) or full[box].shape != mine.shape:
        return False
    wide = torch.complex128
    return torch.allclose(full[box].to(wide), mine.to(wide), equal_nan=True)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("along", [0, 1])
@pytest.mark.parametrize("how", ALONG)
def test_along_the_cut_axis_is_refused_and_along_another_is_right(how, along, axis):
    expected = _members(ALONG[how](FULL, along))

    def program():
        x = _block(da.init_device_mesh((2,)), axis)
        if along == axis:
            with dt.loss_parallel(), pytest.raises(LayoutError, match="see this rank's share only"):
                ALONG[how](x, along)
            return
        with dt.loss_parallel():
            found = _members(ALONG[how](x, along))
        assert all(_is_block(mine, full) for mine, full in zip(found, expected, strict=True))

    simulate(2, program, timeout=60)


@pytest.mark.parametrize("how", OF_ALL)
def test_what_takes_all_items_is_refused(how):
    def program():
        x = _block(da.init_device_mesh((3,)), 1)
        with dt.loss_parallel(), pytest.raises(LayoutError, match=r"loss_parallel|in place"):
            OF_ALL[how](x)
        OF_ALL[how](x)  # outside a share is a plain tensor

    simulate(3, program, timeout=60)


def test_products_over_the_classes_are_refused():
    def program():
        x = _block(da.init_device_mesh((2,)), 1)
        weight = torch.ones(3, x.shape[1], dtype=x.dtype)
        with dt.loss_parallel():
            for product in (
                lambda: x @ x.T,
                lambda: weight @ x.T,
                lambda: F.linear(x, weight),
                lambda: torch.einsum("ab, cb -> ac", x, weight),
                lambda: torch.addmm(torch.zeros(1).to(x), x, weight.T),
            ):
                with pytest.raises(LayoutError, match=r"dt\.full_tensor"):
                    product()
            torch.ones(2, ROWS, dtype=x.dtype) @ x  # of rows: a share of the classes again

    simulate(2, program, timeout=60)


def test_what_is_cut_in_an_unknown_way_is_no_loss():
    def program():
        x = _block(da.init_device_mesh((2,)), 1)
        with dt.loss_parallel():
            unknown = torch.cat([x, torch.ones_like(x).repeat(1, 1)])
            with pytest.raises(LayoutError, match="nothing is known"):
                F.cross_entropy(unknown, torch.zeros(2 * ROWS, dtype=torch.long))
            with pytest.raises(LayoutError, match="computed from a tensor placed as"):
                (unknown + 1).sum()
            assert unknown.softmax(0).shape == unknown.shape

    simulate(2, program, timeout=60)


def test_an_assignment_picks_no_classes():
    def program():
        x = _block(da.init_device_mesh((2,)), 1)
        with dt.loss_parallel():
            x[x > 1] = 0.0
            x[2] = 1.0
            with pytest.raises(LayoutError, match="__setitem__"):
                x[:, -1] = 0.0
        full = FULL.clone()
        full[full > 1] = 0.0
        full[2] = 1.0
        assert _is_block(x, full)

    simulate(2, program, timeout=60)


def test_functions_of_the_library_work_inside():
    torch.manual_seed(0)
    head = torch.nn.Linear(4, WORDS).double()
    x = torch.ones(ROWS, 4).double()
    target = torch.arange(ROWS)
    sequence = FULL.reshape(1, ROWS, WORDS)[:, :4].reshape(1, 2, -1)
    expected = F.cross_entropy(head(x), target)
    normalized = torch.nn.GroupNorm(1, 2).double()(sequence)
    expected.backward()
    total = torch.nn.utils.get_total_norm([p.grad for p in head.parameters()])
    weights = {name: value.clone() for name, value in head.state_dict().items()}

    def program():
        mesh = da.init_device_mesh((2,))
        mine = torch.nn.Linear(4, WORDS).double()
        mine.load_state_dict(weights)
        scaled = torch.nn.GroupNorm(1, 2).double()
        with dt.loss_parallel():
            dt.parallelize_module(mine, mesh, dt.ColwiseParallel())
            logits = mine(x)
            loss = dt.vocab_parallel_cross_entropy(logits, target, mesh)
            loss.backward()
            torch.testing.assert_close(loss, expected)
            found = dt.clip_grad_norm_(mine.parameters(), 1e9)
            torch.testing.assert_close(found, total)
            torch.testing.assert_close(dt.full_tensor(logits).sum(), head(x).sum())
            dt.parallelize_module(scaled, mesh, dt.SequenceParallel(sequence_dim=2))
            block = scaled(sequence.chunk(2, -1)[mesh.rank])
        torch.testing.assert_close(block, normalized.chunk(2, -1)[mesh.rank])

    simulate(2, program, timeout=60)


def test_heads_are_no_classes_even_where_a_rank_has_one():
    def program():
        mesh = da.init_device_mesh((2,))
        x = torch.randn(2, 3, 4)  # of this rank's head
        place(x, da.Layout(mesh, [da.Shard(2)], (2, 3, 8)))
        with dt.loss_parallel():
            for shape in ((2, 3, 1, 4), (2, 3, 4, 1)):
                q = x.view(shape).transpose(1, 2)
                scores = F.scaled_dot_product_attention(q, q, q)
                assert lost_layout(scores) is not None
                (q @ q.mT).softmax(-1)
            assert known(x.unsqueeze(2)).shape == (2, 3, 1, 8)
            assert known(x.view(6, 4)).shape == (6, 8)

    simulate(2, program, timeout=60)


def test_weights_that_are_converted_at_every_call_are_weights():
    def program():
        mesh = da.init_device_mesh((2,))
        x = _block(mesh, 1)
        weight = torch.nn.Parameter(_block(mesh, 1))
        place(weight, known(x))
        with dt.loss_parallel():  # what a row-parallel layer does before it adds up
            part = F.linear(x, weight.to(x.dtype).clone())
            assert known(part) is lost_layout(part) is None
            with pytest.raises(LayoutError, match="linear inside"):
                F.linear(x, x)

    simulate(2, program, timeout=60)


def test_beside_replicated_tensors_others_may_be_anything():
    def program():
        mesh = da.init_device_mesh((2,))
        x = FULL.clone()
        place(x, da.Layout(mesh, [da.Replicate()], x.shape))
        other = torch.ones_like(FULL)
        target = torch.zeros(ROWS, dtype=torch.long)
        with dt.loss_parallel():
            F.cross_entropy((2 * x).log_softmax(-1), target)
            with pytest.raises(LayoutError, match="nothing is known"):
                F.cross_entropy(x * other, target)

    simulate(2, program, timeout=60)


def test_every_slice_is_normalised_by_itself():
    expected = FULL.renorm(2, 1, 1.0)

    def program():
        mesh = da.init_device_mesh((2,))
        with dt.loss_parallel():
            found = torch.renorm(_block(mesh, 1), 2.0, 1, maxnorm=1.0)
            with pytest.raises(LayoutError, match="renorm inside"):
                _block(mesh, 0).renorm(2, dim=1, maxnorm=1.0)
        assert _is_block(found, expected)

    simulate(2, program, timeout=60)


def test_the_first_axis_of_length_3_is_no_axis_of_a_share():
    def program():
        layout = da.Layout(da.init_device_mesh((2,)), [da.Shard(0)], (5, 3))
        x = torch.ones(layout.local_shape())  # of one rank's share it would be the first
        place(x, layout)
        with dt.loss_parallel():
            with pytest.raises(LayoutError, match="cross inside"):
                torch.cross(x, x)
            assert known(torch.linalg.cross(x, x)) is known(torch.cross(x, x, dim=1)) is layout

    simulate(2, program, timeout=60)


PLACED = {
    # shape, cut axis, function: on one rank of two the share is of length 1, or of none
    "squeeze": ((2, 3), 1, lambda x: x.squeeze()),
    "squeeze, that axis": ((3, 2), 0, lambda x: x.squeeze(0)),
    "squeeze, another": ((1, 3, 2), 1, lambda x: x.squeeze(0)),
    "squeeze, two": ((1, 5, 1), 1, lambda x: torch.squeeze(x, dim=(0, 2))),
    "squeeze, of many": ((1, 5), 1, lambda x: x.squeeze()),
    "row of column": ((3, 1, 1), 0, lambda x: x.reshape(1, -1)),
    "merged": ((2, 1, 1), 1, lambda x: x.flatten(0, 1)),
    "flat": ((2, 3, 3), 2, lambda x: x.flatten(0, 1)),
    "of none": ((1,), 0, lambda x: x.unflatten(0, (1, -1))),
    "outer": ((3, 3), 0, lambda x: x[:, None] * x[None, :]),
    "gathered": ((1, 3), 1, lambda x: x.gather(0, torch.zeros(1, 1, dtype=torch.long))),
    "gathered by one": ((3, 4), 1, lambda x: x.gather(0, torch.zeros(1, 1, dtype=torch.long))),
}
SAME_EVERYWHERE = {
    "squeeze": LayoutError,
    "squeeze, that axis": LayoutError,
    "squeeze, another": 0,
    "squeeze, two": 0,
    "squeeze, of many": 0,
    "flat": 1,
}


@pytest.mark.parametrize("how", PLACED)
def test_ranks_with_one_item_know_no_more_than_others(how):
    shape, axis, function = PLACED[how]
    wanted = SAME_EVERYWHERE.get(how)

    def program():
        layout = da.Layout(da.init_device_mesh((2,)), [da.Shard(axis)], shape)
        x = torch.ones(layout.local_shape(), dtype=torch.float64)
        place(x, layout)
        with dt.loss_parallel():
            try:
                found = known(function(x))
            except LayoutError:
                return LayoutError
        return None if found is None else found.placements[0].axis

    assert simulate(2, program, timeout=60) == [wanted, wanted]


@pytest.mark.parametrize("shape", [(7, 11, 13), (7, 11, 13, 17)])
def test_axes_that_an_index_keeps_are_where_torch_has_them(shape):
    x = torch.empty(shape)
    rows = torch.zeros(shape[:2], dtype=torch.bool)
    rows[2:4, :2] = True
    pieces = [
        *(slice(None), slice(1, 3), 0, None, Ellipsis, [0, 1, 2], torch.tensor(1)),
        *(torch.tensor([0, 1, 2]), torch.tensor([[0], [1]])),
    ]
    picked = 0
    for count in range(1, 5):
        for index in itertools.product(pieces, repeat=count):
            if sum(item is Ellipsis for item in index) > 1:
                continue
            picked += _agrees(x, index)
    assert picked > 3000
    for index in ((rows,), (rows, 0), (None, rows), (..., torch.tensor(True)), (0, ..., [1, 2])):
        assert _agrees(x, index)


def _agrees(x, index):
    try:
        result = x[index]
    except IndexError:
        return False
    lengths = list(x.shape)
    expected = {lengths.index(n): k for k, n in enumerate(result.shape) if n in lengths}
    assert kept_axes(index, x.ndim) == expected, index
    return True


# --- every function of torch's -------------------------------------------------------------------

_LEFT_OUT = (
    # drawn at random
    *("rand", "dropout", "bernoulli", "multinomial", "normal", "uniform", "exponential", "cauchy"),
    *("geometric", "poisson", "rrelu", "gumbel", "binomial", "lowrank", "empty"),
    # about memory and files, of other layouts, or not for users
    *("quant", "q_", "fake_", "fbgemm", "from_file", "mkldnn", "cudnn", "miopen", "coalesce"),
    *("sparse", "set_", "resize", "__reduce", "backward", "share_memory", "storage", "_make_"),
    *("_cslt", "segment", "as_strided", "__dlpack__", "apply_", "map_", "record_stream", "nested"),
    *("autocast", "register", "pin_memory", "is_pinned", "module_load", "__setstate__"),
    *("__deepcopy__", "new_", "unsafe", "data_ptr", "cross_entropy"),
)
_CALLS = {
    "x": lambda x: (x,),
    "x, x": lambda x: (x, x),
    "x, 0": lambda x: (x, 0),
    "x, 1": lambda x: (x, 1),
    "x, 2": lambda x: (x, 2),
    "x, 2, 1": lambda x: (x, 2, 1),
    "[x, x]": lambda x: ([x, x],),
    "[x, x], 1": lambda x: ([x, x], 1),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("axis", [0, 1])
def test_whatever_torch_offers_is_right_or_refused_or_known_to_be_of_a_share(axis):
    functions = [
        function
        for function in get_testing_overrides()
        if callable(function) and not any(w in function.__name__ for w in _LEFT_OUT)
    ]
    assert len(functions) > 900

    def program():
        mesh = da.init_device_mesh((2,))
        outcomes = {"right": set(), "refused": set(), "of a share": set(), "wrong": set()}
        for function in functions:
            for call, arguments in _CALLS.items():
                name = f"{function.__name__}({call})"
                try:
                    expected = function(*arguments(FULL.clone()))
                except Exception:
                    continue
                try:
                    with dt.loss_parallel():
                        found = function(*arguments(_block(mesh, axis)))
                except LayoutError:
                    outcomes["refused"].add(name)
                    continue
                except Exception:
                    continue  # torch itself refuses a block, such as one that is not square
                for mine, full in zip(_members(found), _members(expected), strict=False):
                    if isinstance(mine, torch.Tensor):
                        outcomes[_outcome(mine, full)].add(name)
        return outcomes

    for outcomes in simulate(2, program, timeout=100):
        assert not outcomes["wrong"]
        assert len(outcomes["right"]) > 300
        assert len(outcomes["refused"]) > 100


def _outcome(mine, full):
    if known(mine) is not None:
        return "right" if _is_block(mine, full) else "wrong"
    if lost_layout(mine) is not None:
        return "of a share"
    return "right" if torch.equal(mine, full) else "wrong"
