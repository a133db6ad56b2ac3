"""Let a checker of races see what torch does to memory of the stand-in's devices.

For a process of its own: threads are changed for good. Memory that torch has allocated itself is
host memory, as `tests.torch_on_device` has it: whoever asks next gets it again, on any stream, and
so it is not kept account of.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

from tests.comm.cuda.races import Checker, Span

WAITING = ("aten::_local_scalar_dense", "aten::equal")
IDLE = ("aten::set_", "aten::resize_", "aten::record_stream")
"""Operations that work on what is known of memory, as do those that make empty tensors."""


def watch_torch(cupy: Any, checker: Checker) -> None:
    """Let a checker see what torch does, on all threads that begin from now on.

    A backward pass works on the stream of the thread that asked for it, as on GPUs.
    """
    torch = importlib.import_module("torch")
    modes = importlib.import_module("torch.utils._python_dispatch")
    leaves = importlib.import_module("torch.utils._pytree").tree_leaves
    streams = cupy.cuda.stream

    def spans(values: Any) -> list[Span]:
        return [
            _span(one)
            for one in leaves(values)
            if isinstance(one, torch.Tensor) and one.layout is torch.strided and one.numel()
        ]

    class Watching(modes.TorchDispatchMode):  # type: ignore[misc, name-defined]
        def __torch_dispatch__(
            self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            result = operation(*args, **kwargs)
            schema, stream = operation._schema, streams.get_current_stream()
            if not _is_idle(schema):
                written = [
                    kwargs[one.name] if one.name in kwargs else args[i]
                    for i, one in enumerate(schema.arguments)
                    if _is_written(one) and (one.name in kwargs or i < len(args))
                ]
                checker.access(
                    str(operation), stream, spans((args, kwargs)), spans((written, result))
                )
            if schema.name in WAITING:
                checker.completed(dict(stream.known))
            return result

    begin, run = threading.Thread.start, threading.Thread.run

    def started(self: threading.Thread) -> None:
        if self.name == "backward":
            where = cupy.cuda.Device(), streams.get_current_stream()
            self._where = where  # type: ignore[attr-defined]
        begin(self)

    def watched(self: threading.Thread) -> None:
        for one in getattr(self, "_where", ()):
            one.use()
        with Watching():
            run(self)

    threading.Thread.start = started  # type: ignore[method-assign]
    threading.Thread.run = watched  # type: ignore[method-assign]


def _span(tensor: Any) -> Span:
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # a value of torch.func has no memory
        return Span(0, 0)
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return Span(address, (last + 1) * tensor.element_size())


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _is_idle(schema: Any) -> bool:
    """Tell whether an operation does nothing to memory."""
    found = schema.returns
    makes_views = found and all(
        one.alias_info is not None and not one.alias_info.is_write for one in found
    )
    return bool(makes_views) or schema.name in IDLE or "empty" in schema.name
