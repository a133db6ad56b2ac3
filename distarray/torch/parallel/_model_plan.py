"""The plan that a model of Hugging Face's has of itself, in parallel styles.

Such a model names its modules and, for each, a word that says how it is cut; parameters, too, those
of experts and the sinks of attentions. How many features belong together the words do not say: a
rank's query heads are those of its keys, so everything that an attention has cut is dealt out in as
many units as there are heads of keys.

What a module of experts computes is linear in its last weights. So each expert is cut as two linear
layers are, the first by columns and the last by rows, every rank computes a part of the output of
every expert, whatever items are routed to it, and the parts are added up once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from distarray.comm import DeviceMesh
from distarray.errors import ArgumentError, ArgumentTypeError
from distarray.layout import Partial, Placement, Replicate, Shard
from distarray.torch._moves import redistribute
from distarray.torch.parallel._feature_parallel import ColwiseParallel, RowwiseParallel
from distarray.torch.parallel._forward_wrapper import hide_forward
from distarray.torch.parallel._parallelize import fits
from distarray.torch.parallel._parameters import distribute_buffer
from distarray.torch.parallel._style import ParallelStyle
from distarray.torch.parallel.layers._features import gather_input, sum_output

_R = Replicate()


class WholeParallel(ParallelStyle):
    """Keep a module's parameters and buffers whole, as is known where they meet shards.

    There their gradients are added up: so those of a norm over each head. What an embedding gives
    all ranks have, since they have the same words. Gradients of the output arrive as
    ``grad_placements``, ``[Partial()]`` where all that follows is cut; ``cuts`` has ``axis``,
    ``parts`` and ``unit``, by name, of parameters that are cut after all.
    """

    def __init__(
        self,
        grad_placements: Sequence[Placement] | None = None,
        cuts: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.grad_placements = grad_placements
        self.cuts = cuts or {}

    def apply(self, module: nn.Module, mesh: DeviceMesh, *, least: int = 1) -> None:
        """Give all ranks the module's parameters and buffers; of a cut one ``least`` units each."""
        for name, _ in module.named_parameters(recurse=False):
            told = dict(self.cuts.get(name) or {})
            if told:
                told["unit"] = told.get("unit", 1) * least
            self.distribute(module, name, mesh, [Shard(told["axis"]) if told else _R], **told)
        for name, _ in module.named_buffers(recurse=False):
            distribute_buffer(module, name, mesh, [_R])
        if isinstance(module, nn.Embedding) or self.grad_placements:
            how: Any = {"grad_placements": self.grad_placements}
            self.on_output(module, lambda _, y: redistribute(y, mesh, [_R], [_R], **how))


class ExpertsParallel(WholeParallel):
    """Cut all experts of a module, each in itself, and add up what the ranks compute."""

    def apply(self, module: nn.Module, mesh: DeviceMesh, **_: Any) -> None:
        """Cut the module's parameters, and hook it."""
        inside = min(getattr(module, k).shape[told["axis"]] for k, told in self.cuts.items())
        # Eight features where there are many: torch's grouped products take 16 bytes.
        least = next((n for n in (8, 4, 2) if inside % n == 0 and inside // n >= mesh.size), 1)
        super().apply(module, mesh, least=least)

        def bring(value: Any) -> Any:
            is_real = isinstance(value, torch.Tensor) and value.is_floating_point()
            return gather_input(value, mesh) if is_real else value

        def bring_all(_: nn.Module, args: Any, kwargs: Any) -> Any:
            return tuple(map(bring, args)), {name: bring(value) for name, value in kwargs.items()}

        self.on_input(module, bring_all)
        hide_forward(module)
        self.on_output(module, lambda _, y: sum_output(y, mesh, _R))


class IdentityParallel(ParallelStyle):
    """Let a module in `ExpertsParallel` that returns its input give each rank a part of it."""

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> None:
        """Divide the input, of which the ranks' parts will be added up."""
        size = mesh.size
        self.on_input(module, lambda _, args, kwargs: ((args[0] / size, *args[1:]), kwargs))


# --- words ----------------------------------------------------------------------------------------

Spec = tuple[type[ParallelStyle], dict[str, Any]]
"""A style, and what it is made with."""


_WHOLE: Spec = (WholeParallel, {})
_WORDS: dict[str, Spec] = {
    "colwise": (ColwiseParallel, {}),
    "packed_colwise": (ColwiseParallel, {"parts": 2}),
    **dict.fromkeys(
        ("colwise_gather_output", "colwise_rep"), (ColwiseParallel, {"output_layouts": _R})
    ),
    "rowwise": (RowwiseParallel, {}),
    "packed_rowwise": (RowwiseParallel, {"parts": 2}),
    **dict.fromkeys(
        ("rowwise_split_input", "rowwise_rep"), (RowwiseParallel, {"input_layouts": _R})
    ),
    "embedding_rowwise": (RowwiseParallel, {}),
    "embedding_colwise": (ColwiseParallel, {"output_layouts": _R}),
    **dict.fromkeys(("replicate", "replicated_with_grad_allreduce"), _WHOLE),
    "mla_kv_a_proj": (WholeParallel, {"grad_placements": [Partial()]}),
    **dict.fromkeys(("moe_tp_experts", "all_reduce"), (ExpertsParallel, {})),
    "moe_identity_expert": (IdentityParallel, {}),
    "local_params": _WHOLE,
}
"""The words that styles carry out; of ``parts``, how many equal ones are fused."""
_HOLDING = ("moe_tp_experts", "all_reduce", "local_params")
"""Words of modules some of whose own parameters have words: the first two add up their outputs."""
_AXES = {"colwise": -2, "packed_colwise": -2, "rowwise": -1, "packed_rowwise": -1}
"""Words of such parameters, and the axis that these cut."""

_SIZES = ("head_dim", "head_size", "attention_head_size")
_COUNTS = ("num_key_value_heads", "num_kv_heads", "num_attention_heads", "num_heads")
"""Names under which attentions, and configs, have the size of a head and the number of heads."""


def plan_of(model: nn.Module) -> dict[str, ParallelStyle]:
    """Return the plan that a model of Hugging Face's has of itself, for `parallelize_module`.

    Parameters
    ----------
    model
        With or without a head. Any module that has ``tp_plan``, or ``_tp_plan`` and a ``config``
        with ``base_model_tp_plan``: words by the names of modules, with ``*`` for numbers. Such a
        plan may be set: ``model.tp_plan = {...}``.

    Returns
    -------
    dict
        Styles by the names of modules: it may be changed. The features of attentions are cut
        between heads of keys, with the query heads that share each, however many ranks there are; a
        rank may have none. Where a head and an embedding share their weight, both are cut by the
        vocabulary; a ``forward`` that an embedding has of its own must work word by word. All other
        modules with parameters are in the plan as well, and stay whole: every rank takes the
        parameters of one, and gradients are added up where ranks have parts of them, as of a norm
        over each head.

    Raises
    ------
    ArgumentError
        The model has no plan, or one with words that no style here carries out (such as those that
        give each rank some of the experts), or features that cannot be dealt out by heads.

    Examples
    --------
    >>> class MLP(nn.Module):
    ...     tp_plan = {"up": "colwise", "down": "rowwise"}
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.up, self.down, self.norm = nn.Linear(4, 6), nn.Linear(6, 4), nn.LayerNorm(4)
    >>> for name, style in dt.plan_of(MLP()).items():
    ...     print(name, type(style).__name__)
    up ColwiseParallel
    down RowwiseParallel
    norm WholeParallel
    """
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"expected a torch.nn.Module, not {type(model).__name__}")
    words, modules = _words_of(model), dict(model.named_modules())
    parameters = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    holding = [
        name for k, word in words.items() if word in _HOLDING for name in _fitting(modules, k)
    ]
    chosen: dict[str, Spec] = {}
    cuts: dict[str, dict[str, str]] = {}
    refused: dict[str, str] = {}
    for pattern, word in words.items():
        if word in _WORDS:
            chosen.update(dict.fromkeys(_fitting(modules, pattern), _WORDS[word]))
        elif _fitting((*modules, *parameters), pattern):
            refused[pattern] = word
        for parent, _, name in (one.rpartition(".") for one in _fitting(parameters, pattern)):
            if parent in holding and word in _AXES:
                cuts.setdefault(parent, {})[name] = word
            else:
                refused[pattern] = word
    if refused:
        raise ArgumentError(
            f"the plan of {type(model).__name__} has entries that no style carries out: {refused}. "
            f"Set model.tp_plan = {{k: v for k, v in model.tp_plan.items() if k not in "
            f"{tuple(refused)}}}: their modules run whole on every rank then, or by a "
            "ParallelStyle of your own that you add to what plan_of returns"
        )
    specs = {name: _with_heads(modules, name, chosen) for name in chosen}
    for name in holding:
        kind, told = specs[name]
        cut = _cut_experts if kind is ExpertsParallel else _cut_heads
        found = cut(modules, name, cuts.get(name, {}), chosen)
        specs[name] = kind, told | {"cuts": found}
    specs |= dict(_tied(modules, specs)) | dict(_of_heads(modules, specs))
    for name, module in modules.items():
        if next(module.parameters(recurse=False), None) is not None:
            specs.setdefault(name, _WHOLE)
        if "own_forward" in specs.get(name, _WHOLE)[1] and len(list(module.parameters())) > 1:
            raise ArgumentError(
                f"{name} is a {type(module).__name__} with parameters beside its weight, which "
                "would have gradients of a rank's own words; leave it, and what shares its weight, "
                "out of model.tp_plan"
            )
    return {key: kind(**told) for key, (kind, told) in _by_patterns(modules, specs).items()}


def _words_of(model: Any) -> Mapping[str, str]:
    """Return the words of a model's plan, by the names of its modules."""
    words = getattr(model, "tp_plan", None)
    if words is None:
        prefix = getattr(model, "base_model_prefix", "")
        prefix = f"{prefix}." if prefix and hasattr(model, prefix) else ""
        base = getattr(getattr(model, "config", None), "base_model_tp_plan", None) or {}
        words = {f"{prefix}{name}": word for name, word in base.items()}
        words |= getattr(model, "_tp_plan", None) or {}
    if not words:
        raise ArgumentError(
            f"{type(model).__name__} has no plan of its own: neither tp_plan nor "
            "config.base_model_tp_plan. Write one for parallelize_module, styles by the names of "
            'modules: {"layers.*.mlp.up": dt.ColwiseParallel(), ...}'
        )
    return words


def _features(module: Any, spec: Spec) -> int | None:
    """Return how many features a style cuts of a linear layer that stay cut; None of others."""
    kind, told = spec
    if kind is WholeParallel or told.keys() & {"input_layouts", "output_layouts"}:
        return None
    found = getattr(module, "out_features" if kind is ColwiseParallel else "in_features", None)
    return None if found is None else found // told.get("parts", 1)


def _with_heads(modules: Mapping[str, Any], name: str, chosen: Mapping[str, Spec]) -> Spec:
    """Return the style of a module with the sizes of its parts, and of what stays together."""
    kind, told = chosen[name]
    module, features = modules[name], _features(modules[name], chosen[name])
    if isinstance(module, nn.Embedding) and kind is not WholeParallel:
        return kind, {**told, "own_forward": True}
    if features is None:
        return kind, told
    if "parts" in told:
        told = {"parts": (features,) * told["parts"]}
    parent = name.rpartition(".")[0]
    if not any(hasattr(modules[parent], k) for k in (*_SIZES, *_COUNTS, "num_key_value_groups")):
        return kind, told
    return kind, {**told, "unit": _unit(modules, parent, chosen, name, features)}


def _unit(
    modules: Mapping[str, Any], parent: str, chosen: Mapping[str, Spec], name: str, features: int
) -> int:
    """Return how many features of an attention stay together: those of all that share a key."""
    attention = modules[parent]
    beside = (_features(modules[k], v) for k, v in chosen.items() if k.rpartition(".")[0] == parent)
    config = next((c for m in _upwards(modules, parent) if (c := getattr(m, "config", None))), None)
    size, count = (_number((attention, config), names) for names in (_SIZES, _COUNTS))
    if hasattr(attention, "v_head_dim"):  # of latents: heads of several sizes, all by the count
        size = 0
    elif not size and count and (width := getattr(config, "hidden_size", None)):
        size = width // (getattr(config, "num_attention_heads", None) or count)
    heads = math.gcd(count, *(n // size for n in beside if n and size and n % size == 0))
    if not heads or features % heads:
        raise ArgumentError(
            f"{name} has {features} features, which {heads} heads of keys cannot share: it is in a "
            f"{type(attention).__name__} of heads of size {size}. Leave it out of model.tp_plan, "
            "and add a style with the unit= of its heads to what plan_of returns"
        )
    return features // heads


def _cut_heads(
    modules: Mapping[str, Any], name: str, words: Mapping[str, str], chosen: Mapping[str, Spec]
) -> dict[str, Any]:
    """Return how an attention's own parameters are cut, which have an item for each head."""
    found = {}
    for key, word in words.items():
        parameter = getattr(modules[name], key)
        axis = max(parameter.ndim + _AXES[word], 0)
        unit = _unit(modules, name, chosen, f"{name}.{key}", parameter.shape[axis])
        found[key] = {"axis": axis, "unit": unit}
    return found


def _cut_experts(
    modules: Mapping[str, Any], name: str, words: Mapping[str, str], _: object
) -> dict[str, Any]:
    """Return how the weights of experts are cut: along the features that each has inside.

    A weight with twice as many has a gate and what it scales, one after the other or in turns.
    """
    experts = modules[name]
    whole = {k for k, _ in experts.named_parameters()} - words.keys()
    if whole or not words:
        raise ArgumentError(
            f"{name} is a {type(experts).__name__} whose output the ranks add up, with parameters "
            f"that the plan does not cut ({sorted(whole)}), of which each would add the whole; "
            "leave it and its parameters out of model.tp_plan, or add a ParallelStyle of your own"
        )
    drops = [k for k, m in experts.named_modules() if isinstance(m, nn.Dropout) and m.p]
    if drops:
        raise ArgumentError(
            f"{name}: {drops} would leave out other items on each rank, of parts that the ranks "
            "add up; set their p to 0, or leave the module and its parameters out of model.tp_plan"
        )
    axes = {k: getattr(experts, k).ndim + _AXES[word] for k, word in words.items()}
    sizes = {k: getattr(experts, k).shape[axis] for k, axis in axes.items()}
    inside, found = min(sizes.values()), {}
    for k, size in sizes.items():
        found[k] = {"axis": axes[k]}
        if size == 2 * inside:
            in_turns = getattr(experts, "is_concatenated", True) is False
            found[k] |= {"unit": 2} if in_turns else {"parts": (inside, inside)}
        elif size != inside:
            raise ArgumentError(
                f"{name} has experts with {sizes} features inside, which cannot be cut alike; "
                "leave it and its parameters out of model.tp_plan"
            )
    return found


def _fitting(names: Iterable[str], pattern: str) -> list[str]:
    return [name for name in names if fits(name, pattern)]


def _number(sources: tuple[Any, ...], names: tuple[str, ...]) -> int:
    """Return the first number of these names that one of the sources has; 0 if none."""
    found = (getattr(one, name, None) for name in names for one in sources)
    return next((n for n in found if isinstance(n, int)), 0)


def _upwards(modules: Mapping[str, Any], name: str) -> Iterator[Any]:
    """Yield a module, and those that hold it, from the inside out."""
    while name:
        yield modules[name]
        name = name.rpartition(".")[0]
    yield modules[""]


def _tied(modules: Mapping[str, Any], specs: Mapping[str, Spec]) -> Iterator[tuple[str, Spec]]:
    """Yield the styles of embeddings and heads without a word, whose weight is cut elsewhere."""
    weights = {name: getattr(module, "weight", None) for name, module in modules.items()}
    cut = {id(weights[name]) for name, spec in specs.items() if spec != _WHOLE}
    for name, weight in weights.items():
        if name in specs or weight is None or id(weight) not in cut:
            continue
        if isinstance(modules[name], nn.Embedding):
            yield name, (RowwiseParallel, {"own_forward": True})
        else:
            yield name, (ColwiseParallel, {"output_layouts": _R})


def _of_heads(modules: Mapping[str, Any], specs: Mapping[str, Spec]) -> Iterator[tuple[str, Spec]]:
    """Yield the styles of norms in attentions whose weights have a row for each head, as q's."""
    for name, module in modules.items():
        parent = name.rpartition(".")[0]
        beside = {k: v for k, v in specs.items() if k.rpartition(".")[0] == parent}
        sizes = {_features(modules[k], v) for k, v in beside.items() if "unit" in v[1]}
        if name in specs or parent not in modules or not sizes - {None}:
            continue
        cuts = {
            key: {"axis": 0, "unit": _unit(modules, parent, specs, f"{name}.{key}", len(p))}
            for key, p in module.named_parameters(recurse=False)
            if p.ndim == 2 and p.shape[0] > 1 and p.numel() in sizes
        }
        if cuts:
            yield name, (WholeParallel, {"cuts": cuts})


def _by_patterns(modules: Mapping[str, Any], specs: Mapping[str, Spec]) -> dict[str, Spec]:
    """Return styles by names in which ``*`` stands for all numbers, wherever these are alike."""
    found: dict[str, Spec] = {}
    for name, spec in specs.items():
        pattern = ".".join("*" if part.isdecimal() else part for part in name.split("."))
        alike = all(specs.get(other) == spec for other in _fitting(modules, pattern))
        found[pattern if alike else name] = spec
    return found
