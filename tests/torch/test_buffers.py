"""Tensors and buffers are one memory."""

from __future__ import annotations

import gc

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from distarray.comm import BFLOAT16, _memory  # noqa: E402
from distarray.comm.kernels import address_of  # noqa: E402
from distarray.errors import ArgumentTypeError, DTypeError  # noqa: E402
from distarray.torch._buffers import buffer_of, tensor_of  # noqa: E402

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.complex64,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (4, 5)], ids=str)
def test_there_and_back_is_the_same_memory(dtype, shape):
    tensor = torch.ones(shape, dtype=dtype)
    buffer = buffer_of(tensor)
    assert buffer.shape == shape
    assert buffer.nbytes == tensor.nbytes
    assert (buffer.dtype == BFLOAT16) == (dtype == torch.bfloat16)
    back = tensor_of(buffer)
    assert back.dtype is dtype
    assert back.data_ptr() == tensor.data_ptr()
    assert torch.equal(back, tensor)
    if tensor.numel():
        back.zero_()
        assert not tensor.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_strides_are_kept(dtype):
    tensor = torch.arange(24).reshape(4, 6).to(dtype)
    for view in (tensor.t(), tensor[::2, 1::3], tensor[:1].expand(5, 6)):
        buffer = buffer_of(view)
        assert buffer.strides == tuple(s * view.element_size() for s in view.stride())
        assert address_of(buffer) == view.data_ptr()


def test_conjugates_are_resolved():
    z = torch.tensor([1 + 2j]).conj()
    assert buffer_of(z)[0] == 1 - 2j
    assert buffer_of(z.imag)[0] == -2


def test_zeros_without_memory_get_some():
    x = torch.ones(3, requires_grad=True)
    torch.sgn(x).sum().backward()
    assert x.grad._is_zerotensor()
    assert buffer_of(x.grad).tolist() == [0, 0, 0]


def test_gradients_stay_outside():
    tensor = torch.ones(2, requires_grad=True)
    assert not tensor_of(buffer_of(tensor)).requires_grad


def test_a_tensor_keeps_the_memory_of_its_buffer():
    buffer = _memory.empty((64, 1024), np.dtype(np.float32))
    buffer[...] = 7
    tensor = tensor_of(buffer)
    view = tensor[3:].t()
    del buffer, tensor
    gc.collect()
    for _ in range(8):
        _memory.empty((64, 1024), np.dtype(np.float32))[...] = 0
    assert bool((view == 7).all())


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (np.ones(2), ArgumentTypeError),
        (None, ArgumentTypeError),
        (torch.ones(2, device="meta"), ArgumentTypeError),
        (torch.ones(2).to_sparse(), ArgumentTypeError),
        (torch.ones(2).to(torch.float8_e4m3fn), DTypeError),
    ],
    ids=["numpy", "none", "meta", "sparse", "float8"],
)
def test_what_cannot_travel_is_refused(value, error):
    with pytest.raises(error):
        buffer_of(value)
