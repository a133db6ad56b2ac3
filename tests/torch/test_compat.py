"""Every private name of torch is there, and does what `_compat` says of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray.torch as dt  # noqa: E402
from distarray.torch import _compat  # noqa: E402

PRIVATE = re.compile(
    r"\btorch\._[a-zA-Z]|\btorch(?:\.\w+)*\._[a-zA-Z]|from torch[\w.]*\._\w+ import"
    r"|\b(?:nn|\w+norm)(?:\.\w+)*\._(?!_)\w|from torch[\w.]* import [^\n]*(?<![\w.])_\w+"
    r"|(?<!self)(?<!mesh)\.(?:_version|_cdata|_backward_hooks|_parameters|_buffers|_forward_pre_hooks|_base)\b"
)


@pytest.mark.parametrize(
    "path", sorted(Path(dt.__file__).parent.rglob("*.py")), ids=lambda path: path.stem
)
def test_no_private_name_of_torch_is_used_elsewhere(path):
    if path.name == "_compat.py":
        return
    text = re.sub(r"distarray\.torch[\w.]*", "", path.read_text())
    assert not PRIVATE.findall(text)


def test_graph_leaves_are_those_that_functions_of_torch_lead_back_to():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * gradient

    a, b, c = (torch.ones(2, requires_grad=True) for _ in range(3))
    assert [id(x) for x in _compat.graph_leaves(a)] == [id(a)]
    found = [*_compat.graph_leaves((a + Twice.apply(b)) * c.exp().sum() * a)]
    assert {id(x) for x in found} == {id(a), id(c)}
    assert len(found) == 2


def test_backward_passes():
    seen = []

    class Looks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            node = torch.autograd.graph.get_gradient_edge(leaf).node
            seen.append((_compat.is_going_backward(), _compat.will_execute(node)))
            assert _compat.current_backward_pass() != -1
            return gradient

    leaf, other = (torch.ones(2, requires_grad=True) for _ in range(2))
    assert not _compat.is_going_backward()
    assert _compat.current_backward_pass() == -1
    for inputs in (None, [other]):
        (Looks.apply(other) + leaf).sum().backward(inputs=inputs)
    assert seen == [(True, True), (True, False)]


def test_forwards_of_functions():
    seen = []

    class Looks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            seen.append(_compat.is_in_function_forward())
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            seen.append(_compat.is_in_function_forward())
            return gradient

    Looks.apply(torch.ones(2, requires_grad=True)).sum().backward()
    assert seen == [True, False]
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert not _compat.is_in_function_forward()


def test_results_of_functions():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * gradient

    x = torch.ones(2, requires_grad=True)
    checkpointed = torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=True)
    found = [_compat.is_of_function(one) for one in (x, x + 1, Double.apply(x), checkpointed)]
    assert found == [False, False, True, False]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_keep_other_functions(reentrant, monkeypatch):
    from torch.utils.checkpoint import CheckpointFunction, checkpoint

    calls = []

    def wrap(function, args):
        assert args[-1] is x

        def again(x):
            calls.append(torch._C._current_graph_task_id() != -1)
            return function(x)

        return again

    name = "_checkpoint_without_reentrant_generator"
    monkeypatch.setattr(torch.utils.checkpoint, name, getattr(torch.utils.checkpoint, name))
    monkeypatch.setattr(CheckpointFunction, "forward", staticmethod(CheckpointFunction.forward))
    _compat.wrap_checkpointed(wrap)
    x = torch.ones(2, requires_grad=True)
    checkpoint(torch.exp, x, use_reentrant=reentrant).sum().backward()
    assert calls == ([False, True] if reentrant else [True])
    torch.testing.assert_close(x.grad, x.detach().exp())


def test_hooks_for_saved_tensors():
    assert _compat.innermost_saved_tensor_hooks() is None
    pair = (lambda x: x, lambda x: x)
    with torch.autograd.graph.saved_tensors_hooks(*pair):
        assert _compat.innermost_saved_tensor_hooks() == pair
    assert _compat.innermost_saved_tensor_hooks() is None


def test_versions_of_tensors():
    x = torch.ones(2)
    before = _compat.version(x)
    x.view(1, 2).add_(1)
    assert _compat.version(x) == before + 1
    with torch.inference_mode():
        assert _compat.version(torch.ones(2)) == 0


def test_hooks_of_tensors():
    x = torch.ones(2, requires_grad=True)
    assert _compat.hooks_of(x) is None
    handle = x.register_hook(lambda gradient: gradient)
    assert len(_compat.hooks_of(x)) == 1
    handle.remove()
    assert len(_compat.hooks_of(x)) == 0


def test_memory_of_tensors():
    x = torch.ones(4)
    assert _compat.memory_key(x) == _compat.memory_key(x[2:].view(2, 1))
    assert _compat.memory_key(x) != _compat.memory_key(x.clone())
    reference = _compat.StorageWeakRef(x.untyped_storage())
    assert reference.cdata == _compat.memory_key(x)
    assert not reference.expired()
    del x
    assert reference.expired()


def test_transforms():
    told = []

    def look(x):
        told.append((_compat.is_transforming(), _compat.is_wrapped(x)))
        return x.sum()

    x = torch.ones(2)
    look(x)
    torch.func.grad(look)(x)
    torch.func.vmap(look)(x)
    assert told == [(False, False), (True, True), (True, True)]


def test_function_modes():
    class Counts(torch.overrides.TorchFunctionMode):
        seen = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.seen += 1
            return func(*args, **(kwargs or {}))

    assert _compat.function_mode_depth() == 0
    with Counts() as outer, Counts() as inner:
        assert _compat.function_mode_depth() == 2
        assert _compat.function_modes() == [outer, inner]
        assert _compat.function_mode_at(1) is inner
        assert _compat.pop_function_mode() is inner
        torch.ones(2)
        _compat.push_function_mode(inner)
        assert (outer.seen, inner.seen) == (1, 0)
    assert _compat.function_mode_depth() == 0


def test_modules():
    class Watches(nn.BatchNorm1d):
        called = ()

        def _apply(self, *args, **kwargs):
            self.called += ("_apply",)
            return super()._apply(*args, **kwargs)

        def _load_from_state_dict(self, *args, **kwargs):
            self.called += ("_load_from_state_dict",)
            return super()._load_from_state_dict(*args, **kwargs)

    module = Watches(2)
    module.double().load_state_dict(nn.BatchNorm1d(2).state_dict())
    assert module.called == _compat.REPLACING
    assert _compat.parameters_of(module)["weight"] is module.weight
    assert _compat.buffers_of(module)["running_mean"] is module.running_mean
    _compat.check_input_dim(module, torch.ones(1, 2))
    with pytest.raises(ValueError, match="1D"):
        _compat.check_input_dim(module, torch.ones(2))


def test_methods_that_compute():
    kinds = (nn.Conv1d, nn.ConvTranspose1d, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
    for name in _compat.COMPUTING:
        assert any(callable(getattr(kind, name, None)) for kind in kinds), name


def test_old_arguments_of_losses():
    with pytest.warns(UserWarning, match="reduction='sum'"):
        assert _compat.reduction_of(False, None) == "sum"
    with pytest.warns(UserWarning, match="reduction='none'"):
        assert _compat.reduction_of(None, False) == "none"


def test_leaves_of_containers():
    assert _compat.leaves_of({"a": (1, [2]), "b": 3}) == [1, 2, 3]


def test_functions_that_the_compiler_leaves_alone():
    program = """
import torch
from distarray.torch import _compat
def inner(x):
    assert not torch.compiler.is_compiling()
    return x + 1
def outer(x):
    return inner(x) * 2
_compat.skip_frame(_compat.mark_disabled(inner))
torch.compile(outer, backend="eager")(torch.ones(2))
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=100)


def test_ends_of_backward_passes():
    told = []
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda _: _compat.call_after_backward(lambda: told.append(x.grad is not None)))
    x.sum().backward()
    assert told == [True]


def test_hooks_after_accumulation():
    x = torch.ones(2, requires_grad=True)
    assert not _compat.hooks_after_accumulation_of(x)
    x.register_post_accumulate_grad_hook(print)
    assert list(_compat.hooks_after_accumulation_of(x).values()) == [print]


def test_what_tensors_are():
    x = torch.ones(2)
    assert _compat.base_of(x) is None
    assert _compat.base_of(x[1:]) is x
    assert not _compat.is_wrapper_subclass(x)
    assert _compat.norms_of([x, 2 * x], 1)[1] == 4
    _compat.scale_all([x], torch.tensor(3.0))
    assert torch.equal(x, torch.full((2,), 3.0))


def test_leaves_that_are_mapped():
    assert _compat.map_leaves(str, (1, {"a": [2]})) == ("1", {"a": ["2"]})


def test_states_of_modules():
    module = nn.Linear(2, 2)
    module.register_state_dict_post_hook(hook := lambda *_: None)
    assert list(_compat.state_dict_hooks_of(module).values()) == [hook]
    weight = torch.full((2, 2), 3.0)
    assert not _compat.load_own_state(module, {"part.weight": weight}, "part.", {})
    assert torch.equal(module.weight, weight)
    assert _compat.load_own_state(module, {"part.weight": torch.ones(3)}, "part.", {})


def test_weights_of_recurrent_modules():
    module, x = nn.LSTM(2, 2), torch.ones(1, 2)
    for name, own in _compat.parameters_of(module).items():
        _compat.parameters_of(module)[name] = own.detach() * 0
    _compat.hold_rnn_weights(module)
    assert not module(x)[0].any()


def test_modules_with_running_statistics():
    assert issubclass(nn.BatchNorm1d, _compat.BatchNormBase)
    assert not isinstance(nn.LayerNorm(2), _compat.BatchNormBase)


def test_fans():
    assert getattr(nn.init, _compat.FANS)(torch.empty(2, 3)) == (3, 2)
