"""Tensors and the buffers that travel are the same memory; nothing here copies.

On a GPU the work of CuPy in a thread comes in the order of torch's: `follow` makes torch's current
stream CuPy's as well. Memory of either library may be read by the other for as long as it likes;
where work in the background, which has a stream of its own, reads memory that torch may hand out
again, `still_read` tells torch.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import torch

from distarray.comm import BFLOAT16, _backend, _memory, is_bfloat16
from distarray.comm.cuda import _device, followers
from distarray.core import digest
from distarray.errors import ArgumentTypeError, DTypeError
from distarray.torch._compat import is_zero_tensor
from distarray.typing import Buffer

_NAMES = (
    *("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
    *("complex64", "complex128"),
)
_DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    **{getattr(torch, name): np.dtype(name) for name in _NAMES},
    torch.bfloat16: BFLOAT16,
}


def buffer_of(tensor: torch.Tensor) -> Buffer:
    """Return the memory of a tensor as a NumPy array (CuPy for CUDA), outside autograd.

    bfloat16, which NumPy lacks, has a dtype of its own that reductions know.
    """
    check_travels(tensor)
    plain = tensor.detach()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    if is_zero_tensor(plain):
        plain = plain.clone()
    number = gpu_of(plain)
    if number is not None:
        _follow(number)
        cupy, item, steps = _device.cupy(), plain.element_size(), plain.stride()
        extents = ((n - 1) * step for n, step in zip(plain.shape, steps, strict=True))
        span = (1 + sum(extents)) * item if plain.numel() else 0
        memory = cupy.cuda.UnownedMemory(plain.data_ptr(), span, plain, number)
        pointer = cupy.cuda.MemoryPointer(memory, 0)
        strides = tuple(step * item for step in steps)
        return cupy.ndarray(tuple(plain.shape), wire_dtype(plain.dtype), pointer, strides)
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
    if tensor.dtype not in _DTYPES:
        raise DTypeError(
            f"tensors of {tensor.dtype} cannot be sent; convert to one of "
            f"{', '.join(sorted(str(d) for d in _DTYPES))}"
        )


def is_dense(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor's items fill their memory, in any order of the axes."""
    return bool(torch.ops.aten.is_non_overlapping_and_dense(tensor.detach()))


def dense_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return in which strides a tensor's values lie without gaps: its own, or those of C order."""
    like = tensor if is_dense(tensor) else torch.empty(tensor.shape, device="meta")
    return like.stride()


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor's items, in C order, where it is."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def digest_of(tensor: torch.Tensor) -> str:
    """Return what tells a tensor's values, by their bits, from all others."""
    return digest(bytes_of(tensor).cpu().numpy())


def wire_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """Return the dtype of the buffers of tensors that can travel."""
    return _DTYPES[dtype]


def empty(size: int, like: torch.Tensor) -> Buffer:
    """Return an uninitialised flat buffer of a tensor's dtype, where it is.

    The other ranks of the node can read it in place. Raises what `buffer_of` does.
    """
    check_travels(like)
    follow(like)
    return _memory.empty((size,), wire_dtype(like.dtype), device_of(like))


def tensor_of(buffer: Buffer) -> torch.Tensor:
    """Return a tensor over the memory of a buffer, which came of a tensor of this dtype.

    The memory is the tensor's from now on: nobody else may hold the buffer.
    """
    if is_bfloat16(buffer.dtype):
        return tensor_of(buffer.view(np.int16)).view(torch.bfloat16)
    if _backend.is_numpy(buffer):
        found: torch.Tensor = torch.from_numpy(buffer)
        return found
    if not buffer.size:  # there is no address that would tell of a device
        nothing = torch.from_numpy(np.empty(buffer.shape, buffer.dtype))
        return nothing.to(torch_device(_backend.device_of(buffer)))
    return _as_tensor(buffer)


# --- devices -------------------------------------------------------------------------------------


def gpu_of(tensor: torch.Tensor) -> int | None:
    """Return the number of the GPU that holds a tensor; None for a tensor in host memory."""
    return tensor.device.index if tensor.is_cuda else None


def device_of(tensor: torch.Tensor) -> str:
    """Return where the buffer of a tensor is: "cpu", or "cuda:<number>"."""
    number = gpu_of(tensor)
    return "cpu" if number is None else f"cuda:{number}"


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in host memory: itself, or a copy of one on a GPU."""
    return tensor.cpu()


def torch_device(device: str) -> torch.device:
    """Return torch's device for one of a mesh: "cuda" is the GPU that is this rank's."""
    if _backend.kind_of(device) == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", _device.number_of(device))


def follow(tensor: torch.Tensor) -> None:
    """Let what CuPy does in this thread come after what torch has been given for a tensor's GPU.

    Autograd goes back through operations on a GPU in a thread of its own, whose current stream is
    that of the operation; the program may have changed streams, too.
    """
    number = gpu_of(tensor)
    if number is not None:
        _follow(number)


def still_read(tensor: torch.Tensor) -> None:
    """Let torch know that work on this thread's stream reads a tensor, which may be freed before.

    Memory that torch frees is handed out again on the stream that it was made on, at once.
    """
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))


def _follow(number: int) -> None:
    cupy = _device.cupy()
    _device.use(number)
    stream = _stream_of_torch(number)
    before = cupy.cuda.get_current_stream()
    if before.ptr != stream:
        # What CuPy was given before, of arrays that have no tensor, comes first.
        event = cupy.cuda.Event(disable_timing=True)
        event.record(before)
        _foreign(cupy.cuda, stream, number).use().wait_event(event)
    if _work_on not in followers:
        followers.append(_work_on)
        _device.keepers.append(
            _device.Keeper("torch", torch.cuda.memory_reserved, torch.cuda.empty_cache)
        )


class _Foreign(NamedTuple):
    """A stream of another library, as CUDA's protocol for streams has it."""

    pointer: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer


def _foreign(cuda: Any, pointer: int, number: int) -> Any:
    """Return CuPy's stream for one that another library has made on a GPU."""
    if hasattr(cuda.Stream, "from_external"):  # CuPy 14.1
        return cuda.Stream.from_external(_Foreign(pointer))
    return cuda.ExternalStream(pointer, number)


def _stream_of_torch(number: int) -> int:
    return int(torch.cuda.current_stream(number).cuda_stream)


def _work_on(stream: int) -> AbstractContextManager[Any]:
    return torch.cuda.stream(torch.cuda.ExternalStream(stream))


def _as_tensor(buffer: Buffer) -> torch.Tensor:
    found: torch.Tensor = torch.from_dlpack(buffer)
    return found
