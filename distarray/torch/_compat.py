"""Private names of torch that this package stands on: all of them, and why there is no other way.

Each was looked up in torch 2.13; ``tests/torch/test_compat.py`` tells where one has gone. What is
said of versions is where a name came in, as far as torch's own history tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import wraps
from operator import attrgetter
from typing import Any, Final, TypeVar

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import _reduction
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _pytree, checkpoint
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

__all__ = ["StorageWeakRef"]

F = TypeVar("F", bound=Callable[..., Any])

# --- autograd ------------------------------------------------------------------------------------


def is_going_backward() -> bool:
    """Tell whether a backward pass is under way in this thread.

    Since 1.13. Nothing public says so: hooks tell when a pass reaches them, not that one runs.
    """
    return current_backward_pass() != -1


current_backward_pass: Final[Callable[[], int]] = torch._C._current_graph_task_id
"""Return the number of the backward pass under way in this thread, -1 outside of one."""


def will_execute(node: Any) -> bool:
    """Tell whether the backward pass under way will reach a node of the graph.

    Since 2.0. ``backward(inputs=...)`` and ``torch.autograd.grad`` leave nodes out, silently.
    """
    return bool(torch._C._will_engine_execute_node(node))


# The first call makes a type, which other threads wait for with Python's own lock: for ever, where
# what Python collects meanwhile lets them in. So one thread makes it now; None is no node.
with suppress(RuntimeError):
    will_execute(None)


def is_in_function_forward() -> bool:
    """Tell whether the ``forward`` of a function of autograd's is under way in this thread.

    Since 1.11: torch switches forward-mode gradients off there, as else in inference mode only.
    """
    return not (torch._C._is_fwd_grad_enabled() or torch.is_inference_mode_enabled())


def is_of_function(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is what a function of autograd's of the user's own has returned.

    Since 2.0. A node of the graph tells by nothing public which function it goes back through.
    """
    function = getattr(tensor.grad_fn, "_forward_cls", None)
    return function is not None and not function.__module__.startswith(("distarray.", "torch."))


def graph_leaves(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Return the leaves to which a gradient of a tensor goes back; none behind opaque functions.

    Since 2.0. Those are functions of autograd's that others than checkpoints have, compiled code
    among them.
    """
    nodes, seen = [tensor.grad_fn], set()
    if tensor.grad_fn is None:
        yield tensor
    while nodes:
        node: Any = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        function = getattr(node, "_forward_cls", None)
        if function is None or function.__module__.startswith("torch.utils."):
            nodes += [before for before, _ in node.next_functions]


def wrap_checkpointed(wrap: Callable[[Callable[..., Any], tuple[Any, ...]], Any]) -> None:
    """Let checkpoints keep ``wrap(function, args)`` in the place of each function, from now on.

    The last of ``args`` are the function's. Since 2.4. Neither kind of checkpoint tells anybody
    what it runs again, or when. Both look these names up when they are called, so that it does not
    matter by which name a program has imported ``checkpoint``.
    """
    module: Any = checkpoint
    kind, generate = module.CheckpointFunction, module._checkpoint_without_reentrant_generator
    forward = kind.forward

    @wraps(forward)
    def forward_wrapped(ctx: Any, function: Any, *args: Any) -> Any:
        return forward(ctx, wrap(function, args), *args)

    @wraps(generate)
    def generate_wrapped(function: Any, *args: Any, **kwargs: Any) -> Any:
        return generate(wrap(function, args), *args, **kwargs)

    kind.forward = staticmethod(forward_wrapped)
    module._checkpoint_without_reentrant_generator = generate_wrapped


def innermost_saved_tensor_hooks() -> Any:
    """Return the pair of hooks that torch hands saved tensors to now; None where there is none.

    Since 1.10, with this argument since 2.3. ``saved_tensors_hooks`` hides those outside of it, and
    hooks that decline a tensor must hand it on to them.
    """
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def version(tensor: torch.Tensor) -> int:
    """Return how often a tensor's memory has been changed in place.

    Since 0.4; documented in the notes on autograd only. Inference tensors count nothing.
    """
    return 0 if tensor.is_inference() else int(tensor._version)


def call_after_backward(function: Callable[[], None]) -> None:
    """Let the engine call a function at the end of the backward pass under way.

    Since 0.4; torch's own data parallelism ends its passes so. A pass that fails lets it go.
    """
    torch.autograd.Variable._execution_engine.queue_callback(function)  # type: ignore[attr-defined]


hooks_of: Final[Callable[[torch.Tensor], Any]] = attrgetter("_backward_hooks")
"""The dictionary of a tensor's hooks; None before the first one is registered. Since 0.2. Nothing
public tells whether somebody waits for the gradient of a tensor."""
hooks_after_accumulation_of: Final[Callable[[torch.Tensor], Any]] = attrgetter(
    "_post_accumulate_grad_hooks"
)
"""The dictionary of hooks that see a gradient added; None before there is one. Since 2.1. Gradients
that come outside of autograd have nobody else to call them."""
base_of: Final[Callable[[torch.Tensor], torch.Tensor | None]] = attrgetter("_base")
"""The tensor that a tensor is a view of; None where it is none. Since 0.4."""


def memory_key(tensor: torch.Tensor) -> int:
    """Return the address of what holds a tensor's memory, the same for all views of it.

    Since 2.0; ``data_ptr()`` is no key, since memory that is freed is given out again.
    """
    return int(tensor.untyped_storage()._cdata)


# --- torch.func ----------------------------------------------------------------------------------

is_transforming: Final[Callable[[], bool]] = torch._C._are_functorch_transforms_active
"""Whether a transform of torch.func is under way. Since 2.0; nothing public tells it."""
is_wrapped: Final[Callable[[Any], bool]] = torch._C._functorch.is_functorch_wrapped_tensor
"""Whether a tensor is one of a transform, without memory of its own. Since 2.1."""

is_batched: Final[Callable[[Any], bool]] = torch._C._functorch.is_legacy_batchedtensor
"""Whether a gradient is one of many, by ``is_grads_batched=True``. Since 2.0; no public name."""

# --- modes ---------------------------------------------------------------------------------------

function_mode_depth: Final[Callable[[], int]] = torch._C._len_torch_function_stack
"""How many function modes are open in this thread. Since 2.0; no public name has it."""
function_modes: Final[Callable[[], list[Any]]] = _get_current_function_mode_stack
"""The function modes that are open, outermost first. Since 2.0."""
function_mode_at: Final[Callable[[int], Any]] = torch._C._get_function_stack_at
"""One of them, by its number from the outermost. Since 2.0."""
pop_function_mode: Final[Callable[[], Any]] = torch._C._pop_torch_function_stack
"""Take the innermost mode away, to be pushed again. Since 2.0; contexts of modes nest, and a
call inside of one that is not to be seen has no other way."""
push_function_mode: Final[Callable[[Any], None]] = torch._C._push_on_torch_function_stack


# --- tensors -------------------------------------------------------------------------------------

is_wrapper_subclass: Final[Callable[[Any], bool]] = is_traceable_wrapper_subclass
"""Whether a tensor is of a class that holds others, such as DTensor. Since 2.1."""
norms_of: Final[Callable[..., Any]] = torch._foreach_norm
"""The norms of tensors of one dtype and device, in one call. Since 2.1, as in clip_grad_norm_."""
scale_all: Final[Callable[[list[torch.Tensor], torch.Tensor], None]] = torch._foreach_mul_
"""Multiply tensors of one dtype and device in place, in one call. Since 1.9."""


# --- modules -------------------------------------------------------------------------------------

BatchNormBase: Final = _NormBase
"""The class of modules that have running statistics. Since 1.0."""
FANS: Final = "_calculate_fan_in_and_fan_out"
"""The function of ``torch.nn.init`` that modules call to reset their parameters. Since 0.2."""
REPLACING: Final = ("_apply", "_load_from_state_dict")
"""Methods that torch calls, of each module by itself, for all conversions and all loading. Since
0.4; hooks of modules see loading, and nothing sees conversions."""
COMPUTING: Final = (
    *("__call__", "forward", "_conv_forward", "_output_padding", "_sa_block", "_mha_block"),
    "_ff_block",
)
"""Methods of torch's modules that say what is computed, by which a subclass that differs is
known. Since 1.8 (convolutions) and 1.11 (transformers)."""


parameters_of: Final[Callable[[nn.Module], dict[str, Any]]] = attrgetter("_parameters")
"""A module's own parameters by name, None where one is left out, to be changed. Since 0.1.
``named_parameters`` gives a copy, and ``setattr`` refuses tensors that are none."""
buffers_of: Final[Callable[[nn.Module], dict[str, Any]]] = attrgetter("_buffers")
"""A module's own buffers by name, to be changed. Since 0.1."""
state_dict_hooks_of: Final[Callable[[nn.Module], dict[int, Any]]] = attrgetter("_state_dict_hooks")
"""The hooks that a module's state dicts go through. Since 0.3, to be put once."""


def load_own_state(
    module: nn.Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any]
) -> list[str]:
    """Load what a module itself has, and not its children; return what is wrong.

    Since 0.4: what ``load_state_dict`` calls, and modules override, for each module.
    """
    errors: list[str] = []
    module._load_from_state_dict(state, prefix, metadata, False, [], [], errors)
    return errors


def hold_rnn_weights(module: nn.RNNBase) -> None:
    """Let a recurrent module compute with the parameters that it holds now.

    Since 0.4: it keeps a list of them beside, which only ``setattr`` brings up to date.
    """
    names = module._flat_weights_names
    module._flat_weights = [module._parameters.get(name) for name in names]


def check_input_dim(module: Any, input: torch.Tensor) -> None:
    """Raise what a batch or instance normalisation raises of an input with other axes.

    Since 0.1, where ranks that have no channels would not reach torch's own check.
    """
    module._check_input_dim(input)


def is_zero_tensor(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor has no memory, as gradients of ``sign`` and ``sgn``. Since 1.11."""
    return tensor._is_zerotensor()


def reduction_of(size_average: bool | None, reduce: bool | None) -> str:
    """Return the ``reduction`` that old arguments of losses stand for. Since 0.4.1."""
    return str(_reduction.legacy_get_string(size_average, reduce))


map_leaves: Final[Callable[[Callable[[Any], Any], Any], Any]] = _pytree.tree_map
"""Return containers with a function of each leaf in its place. Since 1.8, as `leaves_of`."""
leaves_of: Final[Callable[[Any], list[Any]]] = _pytree.tree_leaves
"""Return what is in nested containers, those that programs have registered as well. Since 1.8;
``torch.utils.pytree`` became public after 2.13."""


# --- torch.compile -------------------------------------------------------------------------------


COMPILER: Final = "torch._dynamo"
"""The module without which nothing is compiled; torch imports it with its first use. Since 2.0."""


def mark_disabled(function: F) -> F:
    """Mark a function as one that the compiler does not trace into while it traces others.

    Since 2.0; ``torch.compiler.disable`` sets the same marks, and imports the compiler, which takes
    seconds.
    """
    call: Any = function
    call._torchdynamo_disable = True
    call._torchdynamo_disable_msg = None
    return function


def skip_frame(function: F) -> F:
    """Let the compiler leave the frames of a function alone where nothing is traced yet.

    As ``torch._dynamo.eval_frame.skip_code`` does, without the import of the compiler. The names
    are of 2.6; other versions trace more than they need to.
    """
    frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    skip = getattr(frames, "set_code_exec_strategy", None)
    if skip is not None:
        action = frames._FrameAction
        code = function.__code__  # type: ignore[attr-defined]
        skip(code, frames._FrameExecStrategy(action.SKIP, action.DEFAULT))
    return function
