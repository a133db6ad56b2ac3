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
        weights = self.weigh(q @ k.transpose(2, 3) * self.scale)
        return self.o((weights @ v).transpose(1, 2).reshape(*x.shape[:-1], -1))

    def weigh(self, scores):
        return scores.softmax(-1)


class Sinking(Attention):
    """Attention with a parameter for each head, as gpt-oss has it."""

    def __init__(self, config):
        super().__init__(config)
        self.sinks = nn.Parameter(torch.linspace(0, 1, config.num_attention_heads))

    def weigh(self, scores):
        sinks = self.sinks.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], -1)
        scores = torch.cat([scores, sinks], -1)
        return (scores - scores.max(-1, keepdim=True).values).softmax(-1)[..., :-1]


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


def train(model, words=WORDS):
    """Return what two steps compute, by name: logits, losses, gradients, parameters."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-2)
    found = {}
    for step in range(2):
        output = model(input_ids=words, labels=words)
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

    return simulate(ranks, program)[0]


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
        "body.layers.*.down.bias": "colwise",  # of a module without a word for such
    }
    entries = (
        r"'head': 'ep_router', 'body.layers.\*.gates.bias': 'grouped_gemm', "
        r"'body.layers.\*.down.bias': 'colwise'"
    )

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


# --- parameters that are cut by name --------------------------------------------------------------


class Experts(nn.Module):
    """Experts that items are routed to, as models of transformers have them."""

    def __init__(self, inside=7, in_turns=False, transposed=False, gates=2):
        super().__init__()
        self.is_concatenated, self.transposed, self.gates = not in_turns, transposed, gates
        shapes = (3, inside * gates, 8), (3, 8, inside)
        shapes = [(a, c, b) if transposed else (a, b, c) for a, b, c in shapes]
        self.up, self.down = (nn.Parameter(torch.randn(shape) / 3) for shape in shapes)
        self.same = nn.Identity()
        self.register_buffer("factor", torch.tensor(1.5))

    def forward(self, x, chosen, weights):
        found = torch.zeros_like(x)
        for expert in range(4):
            rows, place = torch.where(chosen == expert)
            y = self.same(x[rows]) if expert == 3 else self.run(x[rows], expert)
            found.index_add_(0, rows, y * weights[rows, place, None])
        return found

    def run(self, x, expert):
        up, down = (w[expert] if self.transposed else w[expert].T for w in (self.up, self.down))
        y = x @ up
        if self.gates == 2:
            gate, y = y.chunk(2, -1) if self.is_concatenated else (y[:, ::2], y[:, 1::2])
            y = nn.functional.silu(gate) * y
        return self.factor * (y @ down)


class Routed(nn.Module):
    def __init__(self, **kinds):
        super().__init__()
        self.table, self.head = nn.Embedding(13, 8), nn.Linear(8, 13)
        sizes = {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 2}
        self.attention = Sinking(SimpleNamespace(**sizes))
        self.router, self.experts = nn.Linear(8, 4), Experts(**kinds)
        column, row = ("rowwise", "colwise") if self.experts.transposed else ("colwise", "rowwise")
        packed = self.experts.is_concatenated and self.experts.gates == 2
        self.tp_plan = {
            **{f"attention.{name}": "colwise" for name in "qkv"},
            "attention.o": "rowwise",
            "attention": "local_params",
            "attention.sinks": "colwise",
            "experts": "moe_tp_experts",
            "experts.up": f"packed_{column}" if packed else column,
            "experts.down": row,
            "experts.same": "moe_identity_expert",
        }

    def forward(self, input_ids, labels=None):
        x = self.table(input_ids)
        x = x + self.attention(x)
        flat = x.flatten(0, 1)
        weights, chosen = self.router(flat).softmax(-1).topk(2, -1)
        logits = self.head(x + self.experts(flat, chosen, weights=weights).view(x.shape))
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), input_ids[:, 1:].flatten())
        return SimpleNamespace(logits=logits, loss=loss)


def routed(seed=0, **kinds):
    torch.manual_seed(seed)
    return Routed(**kinds).double()


KINDS = {
    "gate and scaled": {},
    "in turns": {"in_turns": True},
    "transposed": {"transposed": True},
    "no gate": {"gates": 1},
    "a rank has none": {"inside": 2},
    "eights": {"inside": 24},
}


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_experts_are_cut_inside_and_sinks_go_with_their_heads(kind, ranks):
    layouts = compare(ranks, routed(ranks, **KINDS[kind]))
    sinks, key = layouts["attention.sinks"], layouts["attention.k.weight"]
    assert sinks.partition(0).offsets == key.partition(0).offsets  # 2 sinks and 2 features a key
    up, down = layouts["experts.up"], layouts["experts.down"]
    axis = 2 if kind == "transposed" else 1
    gates = KINDS[kind].get("gates", 2)
    assert [gates * n for n in down.partition(3 - axis).offsets] == [*up.partition(axis).offsets]
    assert layouts["router.weight"].is_replicated
    if kind == "eights":
        assert all(n % 8 == 0 for n in down.partition(2).offsets)


def test_experts_work_beside_fully_sharded_parameters_and_load_anywhere():
    model = routed()
    expected = train(copy.deepcopy(model))

    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        twin = copy.deepcopy(model)
        dt.parallelize_module(twin, mesh["tp"], dt.plan_of(twin))
        dt.fully_shard(twin.experts, mesh["dp"])
        dt.fully_shard(twin, mesh["dp"])
        place, _ = mesh.coordinate  # each group has sequences of its own
        found = train(twin, WORDS.chunk(2)[place])
        for name, x in expected.items():
            if name.startswith("logits"):
                x = x.chunk(2)[place]
            if not name.startswith("loss"):  # a mean of all sequences
                assert_close(found[name], x, expected.values(), what=name)
        alone = routed(1)
        alone.load_state_dict(dt.state_dict(twin))
        assert_close(alone.experts.up.detach(), expected["experts.up"], what="up")

    simulate(4, program)


def test_experts_whose_outputs_cannot_be_added_up_are_an_error():
    model = routed()
    model.experts.bias = nn.Parameter(torch.zeros(3, 8))
    with pytest.raises(ArgumentError, match=r"Experts whose output .* does not cut \(\['bias'\]\)"):
        dt.plan_of(model)
    model = routed()
    model.experts.up = nn.Parameter(torch.zeros(3, 15, 8))
    with pytest.raises(ArgumentError, match=r"{'up': 15, 'down': 7} features inside"):
        dt.plan_of(model)
    model = routed()
    model.experts.same = nn.Dropout(0.1)
    with pytest.raises(ArgumentError, match=r"experts: \['same'\] would leave out other items"):
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
ROUTED = {
    "num_experts": 3,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 6,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "experts_implementation": "eager",
}
MODELS = {
    "Llama": {},
    "Qwen3": {"tie_word_embeddings": True},
    "Mistral": {"sliding_window": 4, "num_key_value_heads": 1},
    "Phi3": {"head_dim": 4},
    "Gemma3": {},
    "GPTNeoX": {},
    "MiniCPM3": {"head_dim": 4, "num_key_value_heads": 4, **LATENT},
    "Mixtral": ROUTED,
    "Qwen3Moe": ROUTED,
    "DeepseekV3": ROUTED | LATENT | {"head_dim": 4, "num_key_value_heads": 4},
    "Llama4": ROUTED,  # a rank has none of 2 keys: its features become complex numbers
    "Cohere": {"use_qk_norm": True},  # norms whose weights have a row for each head
    "MiMoV2Flash": ROUTED | {"v_head_dim": 5},  # with sinks
}


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_models_of_transformers_train_and_write_as_in_one_process(name, ranks):
    compare(ranks, model_of(name, **MODELS[name]), train_and_generate)


@pytest.mark.parametrize("shards", [False, True], ids=["replicated", "fully sharded"])
@pytest.mark.parametrize("name", ["Qwen3", "Gemma3", "Mixtral", "DeepseekV3"])
def test_models_of_transformers_train_in_groups_that_have_words_of_their_own(name, shards):
    model = model_of(name, **MODELS[name])
    expected = train(copy.deepcopy(model))

    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        twin = copy.deepcopy(model)
        for p in twin.parameters():
            p.data += mesh.rank  # all take those of the first
        dt.parallelize_module(twin, mesh["tp"], dt.plan_of(twin))
        for layer in twin.model.layers if shards else ():
            dt.fully_shard(layer, mesh["dp"])
        (dt.fully_shard if shards else dt.replicate)(twin, mesh["dp"])
        group = mesh["dp"].coordinate[0]
        found = train(twin, WORDS[group : group + 1])
        assert found.keys() == expected.keys()
        gradients = [x for key, x in expected.items() if key.startswith("gradient")]
        for key, x in expected.items():
            own = found[key]
            if key.startswith("logits"):
                x = x[group : group + 1]
            elif key.startswith("loss"):
                own = dt.redistribute(own, mesh["dp"], [da.Partial("avg")], [da.Replicate()])
            terms = gradients if key.startswith("gradient") else ()
            assert_close(own, x, terms, tolerance=1e-5, what=key)

    simulate(4, program)
