"""Tensors and the buffers that travel are the same memory; nothing here copies."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from distarray.comm import _backend, _cuda
from distarray.comm._device_streams import followers
from distarray.comm._reducing import BFLOAT16
from distarray.errors import ArgumentTypeError, DTypeError
from distarray.typing import Buffer

_HOST_DTYPES = frozenset(
    (
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
    )
)


def buffer_of(tensor: torch.Tensor) -> Buffer:
    """Return the memory of a tensor as a NumPy array (CuPy for CUDA), outside autograd.

    bfloat16, which NumPy lacks, has a dtype of its own that reductions know.

    Raises
    ------
    ArgumentTypeError
        It is no dense tensor, or has no memory (the meta device).
    DTypeError
        Its dtype cannot travel.
    """
    check_travels(tensor)
    plain = tensor.detach()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    if not plain.is_cpu:
        return _on_device(plain)
    if plain.dtype is torch.bfloat16:
        bits: np.ndarray = plain.view(torch.int16).numpy()
        return bits.view(BFLOAT16)
    return plain.numpy()


def check_travels(tensor: Any) -> None:
    """Raise what `buffer_of` would raise; a meta tensor may not travel either."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        kind = tensor.layout if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise ArgumentTypeError(f"expected a dense torch tensor, not {kind}; convert it first")
    if tensor.is_nested:
        raise ArgumentTypeError(
            "expected a dense torch tensor, not a nested one; pad it (nn.TransformerEncoder makes "
            "nested tensors of padded batches unless it has enable_nested_tensor=False)"
        )
    if not (tensor.is_cpu or tensor.is_cuda):
        raise ArgumentTypeError(
            f"a tensor on device {tensor.device} has no memory that MPI could send; move it to the "
            "CPU or to CUDA first (module.to_empty(device='cpu') for modules on meta)"
        )
    if tensor.dtype not in _HOST_DTYPES:
        raise DTypeError(
            f"tensors of {tensor.dtype} cannot be sent; convert to one of "
            f"{', '.join(sorted(str(d) for d in _HOST_DTYPES))}"
        )


def _on_device(tensor: torch.Tensor) -> Buffer:
    """Return a tensor's memory; CuPy's work of this thread goes to torch's stream from now on."""
    cupy = _cuda.cupy()
    number: Any = tensor.device.index
    _cuda.use(number)
    stream = torch.cuda.current_stream(number).cuda_stream
    if cupy.cuda.get_current_stream().ptr != stream:
        cupy.cuda.ExternalStream(stream, number).use()
    if _follow not in followers:
        followers.append(_follow)
    if tensor.dtype is torch.bfloat16:
        return cupy.from_dlpack(tensor.view(torch.int16)).view(BFLOAT16)
    return cupy.from_dlpack(tensor)


def _follow(stream: int) -> AbstractContextManager[Any]:
    return torch.cuda.stream(torch.cuda.ExternalStream(stream))


def tensor_of(buffer: Buffer, like: torch.Tensor) -> torch.Tensor:
    """Return a tensor over the memory of a buffer, which came of a tensor of this dtype.

    The memory is the tensor's from now on: nobody else may hold the buffer.
    """
    if buffer.dtype == BFLOAT16:
        return _tensor(buffer.view(np.int16)).view(torch.bfloat16)
    return _tensor(buffer)


def _tensor(buffer: Buffer) -> torch.Tensor:
    found: torch.Tensor
    found = torch.from_numpy(buffer) if _backend.is_numpy(buffer) else torch.from_dlpack(buffer)
    return found
