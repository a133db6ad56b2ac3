"""A model's own plan gives the logits, gradients, steps and texts of one process."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import ArgumentError, ArgumentTypeError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from tests.tolerance import assert_close  # noqa: E402

WORDS = torch.tensor([[1, 3, 10, 7, 7, 2], [0, 2, 3, 9, 5, 12]])
HEADED = {
    "layers.*.attention.q": "colwise",
    "layers.*.attention.k": "colwise",
    "layers.*.attention.v": "colwise",
    "layers.*.attention.o": "rowwise",
    "layers.*.gates": "packed_colwise",
    "layers.*.down": "rowwise",
    "layers.*.experts.up": "colwise",  # of which this model has none
}


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        heads, keys, width = config.num_attention_heads, config.num_key_value_heads, 8
        self.head_dim, self.num_key_value_groups = config.head_dim, heads // keys
        self.q = nn.Linear(width, heads * config.head_dim)
        self.k = nn.Linear(width, keys * config.head_dim, bias=False)
        self.v = nn.Linear(width, keys * config.head_dim, bias=False)
        self.o = nn.Linear(heads * config.head_dim, width)
        self.q_norm, self.k_norm = nn.LayerNorm(config.head_dim), nn.RMSNorm(config.head_dim)
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        shape = (*x.shape[:-1], -1, self.head_dim)
        q, k = self.q_norm(self.q(x).view(shape)), self.k_norm(self.k(x).view(shape))
        q, k, v = (one.transpose(1, 2) for one in (q, k, self.v(x).view(shape)))
        k, v = (one.repeat_interleave(self.num_key_value_groups, 1) for one in (k, v))
        weights = (q @ k.transpose(2, 3) * self.scale).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).reshape(*x.shape[:-1], -1))


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attention, self.norm = Attention(config), nn.LayerNorm(8)
        self.gates, self.down = nn.Linear(8, 14), nn.Linear(7, 8)

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        gate, up = self.gates(x).chunk(2, -1)
        return x + self.down(nn.functional.silu(gate) * up)


class Scaled(nn.Embedding):
    def forward(self, words):
        return super().forward(words) * 3


class Base(nn.Module):
    base_model_prefix = "body"

    def __init__(self, **sizes):
        super().__init__()
        given = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 3} | sizes
        self.config = SimpleNamespace(base_model_tp_plan=HEADED, **given)
        self.table = Scaled(13, 8)
        self.layers = nn.ModuleList(Layer(self.config) for _ in range(2))
        self.norm = nn.LayerNorm(8)

    def forward(self, words):
        x = self.table(words)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Headed(nn.Module):
    """A base model, and a head whose weight is that of the embedding."""

    base_model_prefix = "body"
    _tp_plan = {"head": "colwise_gather_output"}  # noqa: RUF012

    def __init__(self, tied=True, **sizes):
        super().__init__()
        self.body = Base(**sizes)
        self.config = self.body.config
        self.head = nn.Linear(8, 13, bias=False)
        if tied:
            self.head.weight = self.body.table.weight

    def forward(self, input_ids, labels=None):
        logits = self.head(self.body(input_ids))
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), input_ids[:, 1:].flatten())
        return SimpleNamespace(logits=logits, loss=loss)


def whole(x):
    return x if dt.layout_of(x) is None else dt.full_tensor(x).detach().clone()


def train(model):
    """Return what two steps compute, by name: logits, losses, gradients, parameters."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-2)
    found = {}
    for step in range(2):
        output = model(input_ids=WORDS, labels=WORDS)
        optimizer.zero_grad()
        output.loss.backward()
        found[f"logits {step}"], found[f"loss {step}"] = (
            output.logits.detach(),
            output.loss.detach(),
        )
        named = [(name, p) for name, p in model.named_parameters() if p.grad is not None]
        found |= {f"gradient {step} of {name}": whole(p.grad) for name, p in named}
        optimizer.step()
    return found | {name: whole(p) for name, p in model.named_parameters()}


def compare(ranks, model, run=train, plan=dt.plan_of, shift=1):
    """Compare what a model and its parallel copy give; return the plan and the copies' layouts."""
    expected = run(copy.deepcopy(model))

    def program():
        twin = copy.deepcopy(model)
        mesh = da.init_device_mesh((ranks,), ("tp",))
        for p in twin.parameters():
            p.data += shift * mesh.rank  # all take those of the first
        dt.parallelize_module(twin, mesh, plan(twin))
        found = run(twin)
        assert found.keys() == expected.keys()
        gradients = [x for name, x in expected.items() if name.startswith("gradient")]
        for name, x in expected.items():
            terms = gradients if name.startswith("gradient") else ()
            # Norms of transformers compute in single precision.
            assert_close(found[name], x, terms, tolerance=1e-5, what=name)
        return {name: dt.layout_of(p) for name, p in twin.named_parameters()}

    return simulate(ranks, program, timeout=100)[0]


def small(**sizes):
    torch.manual_seed(0)
    return Headed(**sizes).double()


@pytest.mark.parametrize(
    ("ranks", "heads", "keys"),
    [(2, 4, 2), (3, 4, 2), (3, 6, 3), (2, 3, 1), (3, 5, 5)],
    ids=["even", "a rank has none", "many", "one key", "each its own"],
)
def test_query_heads_stay_with_their_keys(ranks, heads, keys):
    layouts = compare(ranks, small(num_attention_heads=heads, num_key_value_heads=keys))
    query, key = (layouts[f"body.layers.1.attention.{name}.weight"].partition(0) for name in "qk")
    query = query.offsets
    assert query == tuple(n * heads // keys for n in key.offsets)
    assert all(n % 3 == 0 for n in query)


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_embedding_is_cut_with_its_head(tied):
    layouts = compare(2, small(tied=tied))
    assert str(layouts["body.table.weight"]) == f"13x8 [tp:{'S(0)' if tied else 'R'}]"
    if not tied:
        assert str(layouts["head.weight"]) == "13x8 [tp:S(0)]"


def test_plan_names_each_kind_of_module_once_and_may_be_changed():
    plan = dt.plan_of(small())
    assert {
        name: type(style).__name__.removesuffix("Parallel") for name, style in plan.items()
    } == {
        "head": "Colwise",
        "body.table": "Rowwise",
        "body.norm": "Whole",
        "body.layers.*.norm": "Whole",
        "body.layers.*.attention": "Whole",
        **{f"body.layers.*.attention.{name}": "Colwise" for name in "qkv"},
        **{f"body.layers.*.attention.{name}_norm": "Whole" for name in "qk"},
        "body.layers.*.attention.o": "Rowwise",
        "body.layers.*.gates": "Colwise",
        "body.layers.*.down": "Rowwise",
    }
    assert plan["body.layers.*.gates"].parts == (7, 7)
    units = {
        name[-1]: style.unit
        for name, style in plan.items()
        if "attention." in name and "norm" not in name
    }
    assert units == {"q": 6, "k": 3, "v": 3, "o": 6}

    def without_the_head(model):
        changed = dt.plan_of(model)
        del changed["head"], changed["body.table"]
        return changed

    assert compare(2, small(), plan=without_the_head, shift=0).get("head.weight") is None


def test_layers_that_differ_have_entries_of_their_own():
    model = small()
    model.body.layers[1].gates, model.body.layers[1].down = nn.Linear(8, 10), nn.Linear(5, 8)
    plan = dt.plan_of(model.double())
    assert [plan[f"body.layers.{i}.gates"].parts for i in range(2)] == [(7, 7), (5, 5)]
    compare(2, model)


def test_a_base_model_has_the_names_without_prefix():
    plan = dt.plan_of(small().body)
    assert isinstance(plan["layers.*.attention.q"], dt.ColwiseParallel)
    assert "head" not in plan


def test_words_that_no_style_carries_out_are_an_error_with_the_entries():
    model = small()
    model.tp_plan = {
        "body.layers.*.down": "rowwise",
        "head": "ep_router",
        "body.layers.*.gates.bias": "grouped_gemm",
    }
    entries = r"'head': 'ep_router', 'body.layers.\*.gates.bias': 'grouped_gemm'"

    def program():
        with pytest.raises(ArgumentError, match=entries):
            dt.plan_of(model)

    simulate(2, program)
    model.tp_plan = {"body.layers.*.down": "rowwise_split_input"}
    compare(2, model)


@pytest.mark.parametrize("words", [None, {}])
def test_a_model_without_a_plan_is_an_error_that_says_what_to_do(words):
    model = nn.Linear(3, 4)
    model.tp_plan = words
    with pytest.raises(ArgumentError, match=r"Linear has no plan of its own.*ColwiseParallel"):
        dt.plan_of(model)
    with pytest.raises(ArgumentTypeError, match="not dict"):
        dt.plan_of({})


def test_features_that_are_no_heads_are_an_error():
    model = small()
    model.body.layers[1].attention.o = nn.Linear(11, 8)
    with pytest.raises(ArgumentError, match=r"body.layers.1.attention.o has 11 features.* 2 heads"):
        dt.plan_of(model)


def test_an_embedding_with_parameters_beside_its_weight_is_an_error():
    model = small()
    model.body.table.norm = nn.LayerNorm(8)
    with pytest.raises(ArgumentError, match=r"body\.table is a Scaled with parameters beside"):
        dt.plan_of(model)


# --- models of transformers -----------------------------------------------------------------------

SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 14,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def model_of(name, **sizes):
    transformers = pytest.importorskip("transformers", minversion="5")
    kind = getattr(transformers, f"{name}ForCausalLM")
    config = kind.config_class(**SIZES | sizes)
    torch.manual_seed(0)
    found = kind(config).double()
    for p in found.parameters():  # norms are not all ones
        p.data += torch.randn_like(p) / 5
    return found.eval()


def train_and_generate(model):
    found = train(model)
    words = model.generate(WORDS, max_new_tokens=5, do_sample=False, eos_token_id=None)
    return found | {"text": words.double()}


LATENT = {
    "q_lora_rank": 6,
    "kv_lora_rank": 5,
    "qk_nope_head_dim": 3,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
}
MODELS = {
    "Llama": {},
    "Qwen3": {"tie_word_embeddings": True},
    "Mistral": {"sliding_window": 4, "num_key_value_heads": 1},
    "Phi3": {"head_dim": 4},
    "Gemma3": {},
    "GPTNeoX": {},
    "MiniCPM3": {"head_dim": 4, "num_key_value_heads": 4, **LATENT},
}


@pytest.mark.parametrize("name", ["Mixtral", "Qwen3Moe"])
def test_experts_are_refused_and_run_whole_without_their_words(name):
    sizes = {"num_experts": 3, "num_local_experts": 3, "num_experts_per_tok": 2}
    model = model_of(name, moe_intermediate_size=6, experts_implementation="eager", **sizes)
    with pytest.raises(ArgumentError, match=r"mlp\.experts': 'moe_tp_experts'"):
        dt.plan_of(model)
    words = {key: word for key, word in model.tp_plan.items() if "experts" not in key}
    model.tp_plan = words
    layouts = compare(2, model)
    assert str(layouts["model.layers.1.self_attn.q_proj.weight"]).endswith("[tp:S(0)]")


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_models_of_transformers_train_and_write_as_in_one_process(name, ranks):
    compare(ranks, model_of(name, **MODELS[name]), train_and_generate)
