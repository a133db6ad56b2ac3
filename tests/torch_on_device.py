"""Let tensors in host memory pass for tensors on GPUs, where the stand-in passes for CuPy.

The adapters then see device arrays over the tensors' own memory, and return tensors over device
memory, as with CUDA. Their memory is torch's, which the stand-in's devices cannot lend: other
processes read a copy. A backward pass runs in a thread of its own, as on GPUs, in which nothing is
known that the program has set for its thread.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from typing import Any

import numpy as np
import torch

from distarray.comm.cuda import _device, _ipc
from distarray.comm.cuda._ipc import Allocation
from distarray.comm.simulated import _ranks
from distarray.torch import _buffers

_NOBODYS = 1 << 62
"""The number of an allocation that cannot be lent."""


class _Held:
    """The memory of a device array, which stays as long as this does."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.__array_interface__ = buffer._host.__array_interface__


class _Backward(threading.local):
    is_under_way = False


_backward = _Backward()
_prepared = False


def prepare(cupy: Any) -> None:
    """Make tensors pass for such on the stand-in's devices."""
    global _prepared
    if _prepared:
        return
    _prepared = True
    owner = importlib.import_module("cupy._device").owner
    allocation_of = _ipc.allocation_of

    def gpu_of(tensor: torch.Tensor) -> int | None:
        if tensor.device.type != "cpu":
            return None
        try:
            found = owner(tensor.data_ptr())
        except RuntimeError:  # a value of torch.func has no memory
            found = -1
        return found if found >= 0 else _bound()

    def allocation(pointer: int) -> Allocation:
        if owner(pointer) < 0:
            return Allocation(pointer, 1, _NOBODYS)
        return allocation_of(pointer)

    _ipc.allocation_of = allocation
    _buffers.gpu_of = gpu_of
    _buffers.on_host = lambda tensor: tensor.clone()
    _buffers.torch_device = lambda _: torch.device("cpu")
    _buffers._stream_of_torch = lambda number: cupy.cuda.get_current_stream(number).ptr
    _buffers._work_on = lambda _: contextlib.nullcontext()
    _buffers._as_tensor = lambda buffer: torch.from_numpy(np.asarray(_Held(buffer)))
    torch.autograd._engine_run_backward = _in_a_thread(torch.autograd._engine_run_backward)


def _is_traced() -> bool:
    """Tell whether torch works on symbols, or on levels of torch.func, of this thread."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or torch._guards.TracingContext.try_get() is not None
    )


def _bound() -> int:
    """Return the device of this rank."""
    found = _device._bound.get()
    return (_device._bound_process or 0) if found is None else found


def _in_a_thread(run: Any) -> Any:
    def call(*args: Any, **options: Any) -> Any:
        if _backward.is_under_way or _is_traced():
            return run(*args, **options)
        rank, gpu = _ranks.simulated_world(), _bound()
        grad = torch.is_grad_enabled()
        found: list[Any] = []
        raised: list[BaseException] = []

        def work() -> None:
            _backward.is_under_way = True
            if rank is not None:
                _ranks._thread.communicator = rank
                _device._bound.set(gpu)
            try:
                with torch.set_grad_enabled(grad):
                    found.append(run(*args, **options))
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=work, name="backward")
        thread.start()
        thread.join()
        if raised:
            raise raised[0]
        return found[0]

    return call
