"""The collectives that reduce values, in whatever dtype they come."""

from __future__ import annotations

from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np

from distarray.comm import _backend, _log, _memory
from distarray.comm._collectives import (
    Counts,
    check_buffer,
    check_size,
    checked_counts,
    from_host,
    landing,
    on_host,
)
from distarray.comm._reducing import prepare_reduction
from distarray.comm._requests import Completed, Request
from distarray.comm._transport import Transport
from distarray.comm.cuda._collectives import ON_HOST_BYTES, DeviceCollectives
from distarray.comm.kernels._blocks import reduce_into
from distarray.errors import ArgumentError, DTypeError
from distarray.typing import Buffer

if TYPE_CHECKING:
    from distarray.comm._communicator import Communicator

SMALL_BYTES = 4096
"""Up to this size a reduction may take a quicker way, where the transport has one."""


class Reducer(Transport):
    """The reductions of a ``Communicator``, over those that its transport has.

    Of values on GPUs few go by host memory; what is more is exchanged, and reduced on the device.
    """

    @cached_property
    def _device(self) -> DeviceCollectives:
        """The collectives of buffers on GPUs."""
        return DeviceCollectives(cast("Communicator", self))

    @overload
    def all_reduce(
        self,
        array: Buffer,
        op: str = ...,
        out: Buffer | None = ...,
        *,
        bfloat16: bool = ...,
        blocking: Literal[True] = ...,
    ) -> Buffer: ...

    @overload
    def all_reduce(
        self,
        array: Buffer,
        op: str = ...,
        out: Buffer | None = ...,
        *,
        bfloat16: bool = ...,
        blocking: Literal[False],
    ) -> Request: ...

    def all_reduce(
        self,
        array: Buffer,
        op: str = "sum",
        out: Buffer | None = None,
        *,
        bfloat16: bool = False,
        blocking: bool = True,
    ) -> Buffer | Request:
        """Return the reduction of every rank's array, bitwise the same on every rank.

        Parameters
        ----------
        array
            The same shape and dtype on every rank.
        op
            sum avg min max prod, any all (bool), band bor bxor (bool and integers).
        out
            Where the result goes, possibly ``array`` itself; default: a new array. Of dtype
            float64 for the average of integers.
        bfloat16
            Whether the items are bfloat16 held as uint16.
        """
        small = array.nbytes <= SMALL_BYTES and _backend.is_numpy(array)
        if small and blocking and self.size > 1 and not bfloat16:
            started = perf_counter()
            value = self.all_reduce_small(array, op)
            if value is not None:
                if _log.recording():
                    seconds = perf_counter() - started
                    _log.record("all_reduce", self.name, self._share(array.nbytes), seconds)
                if out is None:
                    return value
                result_buffer(array, array.shape, value.dtype, out, "all_reduce")[...] = value
                return out
        return self._all_reduce_any(array, op, out, bfloat16, blocking)

    def _all_reduce_any(
        self, array: Buffer, op: str, out: Buffer | None, bfloat16: bool, blocking: bool
    ) -> Buffer | Request:
        check_buffer(array, "send", "all_reduce")
        if blocking and array.nbytes > ON_HOST_BYTES and not _backend.is_numpy(array):
            return self._all_reduce_on_device(array, op, out, bfloat16)
        source = on_host(array)
        reduction = prepare_reduction(source, op, self.size, bfloat16)
        into = result_buffer(array, array.shape, reduction.dtype, out, "all_reduce")
        started = perf_counter()
        finish = reduction.finish
        send = reduction.wire
        if finish is None:
            target = source if into is array else landing(into)
        elif np.may_share_memory(send, source):
            target = np.empty_like(send)
        else:
            target = send  # a copy of our own: reduced in place
        if finish is None and into is array:
            send = target

        def complete() -> Buffer:
            return from_host(target if finish is None else finish(target), into)

        if self.size == 1:
            if send is not target:
                target[...] = send
            value = complete()
            return value if blocking else Completed(value)
        request = self._all_reduce(send, target, reduction.op, blocking)
        tracked = self._track("all_reduce", self._share(send.nbytes), started, request, complete)
        return tracked.wait() if blocking else tracked

    def _all_reduce_on_device(
        self, array: Buffer, op: str, out: Buffer | None, bfloat16: bool
    ) -> Buffer:
        dtype = _reduced_dtype(array, op, self.size, bfloat16)
        into = result_buffer(array, array.shape, dtype, out, "all_reduce")
        started = perf_counter()
        if self.size > 1:
            self._device.all_reduce(array, into, op, bfloat16)
        elif into is not array:
            reduce_into(into, [array], op, bfloat16=bfloat16)
        if self.size > 1 and _log.recording():
            seconds = perf_counter() - started
            _log.record("all_reduce", self.name, self._share(array.nbytes), seconds)
        return into

    def _share(self, nbytes: int) -> int:
        """Return the bytes that an all-reduce takes from others."""
        return 2 * (self.size - 1) * nbytes // self.size

    def reduce_scatter(
        self,
        send: Buffer,
        recv: Buffer,
        counts: Counts | None = None,
        op: str = "sum",
        *,
        bfloat16: bool = False,
        blocking: bool = True,
    ) -> Request:
        """Reduce every rank's ``send``, and put part ``rank`` of it into ``recv``.

        Parameters
        ----------
        send
            ``sum(counts)`` elements.
        recv
            ``counts[rank]`` elements; float64 for the average of integers.
        counts
            What each rank receives, the same on every rank; default: all as much.
        op, bfloat16
            As for ``all_reduce``.
        """
        check_buffer(send, "send", "reduce_scatter")
        check_buffer(recv, "receive", "reduce_scatter")
        counts = checked_counts(counts, self.size, send.size, "receive", "reduce_scatter")
        check_size(recv, counts[self.rank], "receive", "reduce_scatter")
        if send.nbytes > ON_HOST_BYTES and self.size > 1 and not _backend.is_numpy(send):
            dtype = _reduced_dtype(send, op, self.size, bfloat16)
            result_buffer(send, recv.shape, dtype, recv, "reduce_scatter")
            started = perf_counter()
            request = self._device.reduce_scatter(send, recv, counts, op, bfloat16, blocking)
            nbytes = (self.size - 1) * counts[self.rank] * send.itemsize
            return self._track("reduce_scatter", nbytes, started, request, lambda: recv)
        source = on_host(send)
        reduction = prepare_reduction(source, op, self.size, bfloat16)
        result_buffer(send, recv.shape, reduction.dtype, recv, "reduce_scatter")
        started = perf_counter()
        finish = reduction.finish
        wire = reduction.wire
        target = landing(recv) if finish is None else np.empty(recv.size, wire.dtype)

        def complete() -> Buffer:
            return from_host(target if finish is None else finish(target), recv)

        if self.size == 1:
            target[...] = wire
            return Completed(complete())
        request = self._reduce_scatter(wire, target, counts, reduction.op, blocking)
        nbytes = (self.size - 1) * target.nbytes
        return self._track("reduce_scatter", nbytes, started, request, complete)


def _reduced_dtype(array: Buffer, op: str, n: int, bfloat16: bool) -> np.dtype[Any]:
    """Return the dtype of a reduction; the errors are those of ``prepare_reduction``."""
    return prepare_reduction(np.empty(0, array.dtype), op, n, bfloat16).dtype


def result_buffer(
    array: Buffer,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    out: Buffer | None,
    collective: str,
) -> Buffer:
    """Return ``out`` after checking that it takes the result, or a new array."""
    if out is None:
        return _memory.empty(shape, dtype, _backend.device_of(array))
    check_buffer(out, "receive", collective)
    if out.dtype != dtype:
        raise DTypeError(
            f"{collective} of {array.dtype} values gives {dtype}, not the {out.dtype} of the "
            "receive buffer; pass one of that dtype"
        )
    if out.shape != shape:
        raise ArgumentError(
            f"{collective} gives an array of shape {shape}, not the {out.shape} of the receive "
            "buffer; pass one of that shape"
        )
    return out
