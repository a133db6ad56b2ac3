"""Parameters that modules share, and transformer layers whose parts belong together."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import ArgumentTypeError, LayoutError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from distarray.torch._random import keys_from  # noqa: E402
from tests.torch.parallel.twins import compare  # noqa: E402


def _values(*shape: int, seed: int = 7) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


class Tied(nn.Module):
    """A table of words, and a head that uses it again."""

    def __init__(self, words: int = 7) -> None:
        super().__init__()
        self.table = nn.Embedding(words, 5, padding_idx=1)
        self.middle = nn.Linear(5, 5)
        self.head = nn.Linear(5, words, bias=False)
        self.head.weight = self.table.weight

    def forward(self, words):
        return self.head(torch.tanh(self.middle(self.table(words))))


WORDS = torch.tensor([[1, 4, 0], [6, 6, 2]])


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_table_and_a_head_share_a_weight(ranks):
    def parallel(twin, mesh):
        plan = {
            "table": dt.RowwiseParallel(),
            "head": dt.ColwiseParallel(output_layouts=da.Replicate()),
        }
        dt.parallelize_module(twin, mesh, plan)
        assert twin.head.weight is twin.table.weight
        return twin

    for log in compare(ranks, Tied().double(), (WORDS,), parallel):
        assert log.count("all_reduce") == 2
        assert log.count("all_gather") == 1


def test_modules_that_place_a_shared_parameter_otherwise_are_an_error():
    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        for plan, text in (
            ({"table": dt.RowwiseParallel(), "head": dt.RowwiseParallel()}, r"^head \(Linear\)"),
            ({"table": dt.ColwiseParallel(), "head": dt.ColwiseParallel()}, r"^head \(Linear\)"),
            ({"table": dt.RowwiseParallel()}, r"^head \(Linear\) shares its parameter 'weight'"),
            ({"head": dt.ColwiseParallel(unit=2)}, "whole units"),
            (
                {"table": dt.RowwiseParallel(), "head": dt.ColwiseParallel(parts=(3, 4))},
                "placed as .* already",
            ),
        ):
            with pytest.raises(LayoutError, match=text):
                dt.parallelize_module(Tied(), mesh, plan)

    simulate(2, program)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize(("heads", "hidden", "ranks"), [(4, 8, 2), (3, 7, 2), (2, 5, 3)])
def test_a_transformer_encoder_layer(norm_first, batch_first, heads, hidden, ranks):
    model = nn.Sequential(
        nn.TransformerEncoderLayer(
            2 * heads,
            heads,
            hidden,
            dropout=0.0,
            norm_first=norm_first,
            batch_first=batch_first,
            activation="gelu",
        )
    ).double()

    def parallel(twin, mesh):
        return dt.parallelize_module(twin, mesh, {"0": dt.TransformerLayerParallel()})

    for log in compare(ranks, model, (_values(2, 4, 2 * heads),), parallel):
        assert log.count() == log.count("all_reduce") == 4


def test_a_transformer_decoder_layer_with_masks():
    class Decoding(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerDecoderLayer(6, 3, 7, dropout=0.0, batch_first=True)

        def forward(self, x, memory):
            mask = nn.Transformer.generate_square_subsequent_mask(4, dtype=x.dtype)
            return self.layer(x, memory, tgt_mask=mask, tgt_is_causal=True)

    def parallel(twin, mesh):
        return dt.parallelize_module(twin, mesh, {"layer": dt.TransformerLayerParallel()})

    for log in compare(2, Decoding().double(), (_values(2, 4, 6), _values(2, 5, 6)), parallel):
        # Three blocks, each way; the memory's gradient is one more.
        assert log.count() == log.count("all_reduce") == 7


def test_fused_kernels_of_torch_do_not_bypass_the_styles():
    layer = nn.TransformerEncoderLayer(6, 3, 7, dropout=0.1, batch_first=True).double()
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x, padded = _values(2, 4, 6), torch.tensor([[False] * 4, [False, False, True, True]])
    expected = [model(x).detach(), model(x, src_key_padding_mask=padded).detach()]

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        twin = copy.deepcopy(model)
        dt.parallelize_module(twin, mesh, {"layers.*": dt.TransformerLayerParallel()})
        with torch.no_grad():
            found = [twin(x), twin(x, src_key_padding_mask=padded)]
        torch.testing.assert_close(found[0], expected[0])
        torch.testing.assert_close(found[1][~padded], expected[1][~padded])

    simulate(2, program)


def test_dropout_between_the_cut_layers_is_the_same_on_any_number_of_ranks():
    layer = nn.TransformerEncoderLayer(6, 3, 7, dropout=0.5, batch_first=True).double()
    layer.dropout1, layer.dropout2 = nn.Identity(), nn.Identity()
    x = _values(2, 4, 6)

    def outputs(ranks):
        def program():
            mesh = da.init_device_mesh((ranks,), ("tp",))
            twin = copy.deepcopy(layer)
            dt.parallelize_module(twin, mesh, dt.TransformerLayerParallel())
            with keys_from(torch.Generator().manual_seed(5)):
                return twin(x)

        return simulate(ranks, program)

    (expected,) = outputs(1)
    for ranks in (2, 3):
        for found in outputs(ranks):
            torch.testing.assert_close(found, expected)


def test_other_modules_are_no_transformer_layers():
    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        with pytest.raises(ArgumentTypeError, match="plan styles for its parts"):
            dt.parallelize_module(nn.Linear(4, 4), mesh, dt.TransformerLayerParallel())

    simulate(2, program)
