"""Inside loss_parallel no function takes a shard for the whole: results are right, or refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.overrides import get_testing_overrides  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import LayoutError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from distarray.torch._layouts import lost_of  # noqa: E402
from distarray.torch.following import known_layout  # noqa: E402
from tests.torch.loss.word_blocks import FULL, ROWS, block_of, is_block  # noqa: E402

F = torch.nn.functional
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


def _members(result):
    return result if isinstance(result, tuple | list) else (result,)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("along", [0, 1])
@pytest.mark.parametrize("how", ALONG)
def test_along_the_cut_axis_is_refused_and_along_another_is_right(how, along, axis):
    expected = _members(ALONG[how](FULL, along))

    def program():
        x = block_of(da.init_device_mesh((2,)), axis)
        if along == axis:
            with dt.loss_parallel(), pytest.raises(LayoutError, match="see this rank's shard only"):
                ALONG[how](x, along)
            return
        with dt.loss_parallel():
            found = _members(ALONG[how](x, along))
        assert all(is_block(mine, full) for mine, full in zip(found, expected, strict=True))

    simulate(2, program)


@pytest.mark.parametrize("how", OF_ALL)
def test_what_takes_all_items_is_refused(how):
    def program():
        x = block_of(da.init_device_mesh((3,)), 1)
        with dt.loss_parallel(), pytest.raises(LayoutError, match=r"loss_parallel|in place"):
            OF_ALL[how](x)
        OF_ALL[how](x)  # outside a shard is a plain tensor

    simulate(3, program)


def test_products_over_the_classes_are_refused():
    def program():
        x = block_of(da.init_device_mesh((2,)), 1)
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
            torch.ones(2, ROWS, dtype=x.dtype) @ x  # of rows: a shard of the classes again

    simulate(2, program)


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
def test_whatever_torch_offers_is_right_or_refused_or_known_to_be_of_a_shard(axis):
    functions = [
        function
        for function in get_testing_overrides()
        if callable(function) and not any(w in function.__name__ for w in _LEFT_OUT)
    ]
    assert len(functions) > 900

    def program():
        mesh = da.init_device_mesh((2,))
        outcomes = {"right": set(), "refused": set(), "of a shard": set(), "wrong": set()}
        for function in functions:
            for call, arguments in _CALLS.items():
                name = f"{function.__name__}({call})"
                try:
                    expected = function(*arguments(FULL.clone()))
                except Exception:
                    continue
                try:
                    with dt.loss_parallel():
                        found = function(*arguments(block_of(mesh, axis)))
                except LayoutError:
                    outcomes["refused"].add(name)
                    continue
                except Exception:
                    continue  # torch itself refuses a block, such as one that is not square
                for mine, full in zip(_members(found), _members(expected), strict=False):
                    if isinstance(mine, torch.Tensor):
                        outcomes[_outcome(mine, full)].add(name)
        return outcomes

    for outcomes in simulate(2, program):
        assert not outcomes["wrong"]
        assert len(outcomes["right"]) > 300
        assert len(outcomes["refused"]) > 100


def _outcome(mine, full):
    if known_layout(mine) is not None:
        return "right" if is_block(mine, full) else "wrong"
    if lost_of(mine) is not None:
        return "of a shard"
    return "right" if torch.equal(mine, full) else "wrong"
