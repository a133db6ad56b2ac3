"""Redistribution in the background: a thread per rank runs plans in the order of their calls.

Every rank makes the same calls in the same order, so the threads meet each other in that order, on
communicators of their own, whatever the foreground does meanwhile. Copies and sums release the
interpreter, so they run beside the foreground's computation.

Work that fails takes with it what its rank had begun before the program heard of the failure: other
ranks may have begun more or less of it, and what only some carry out would meet their next calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from distarray.comm import Communicator, Purpose, _backend, background_work, copy_log_context, world
from distarray.comm.cuda import fork_stream
from distarray.layout import Layout
from distarray.redistribute._execute import bound_steps, redistribute_local, refuse
from distarray.typing import Buffer

if TYPE_CHECKING:
    from concurrent.futures import Future


class Handle:
    """A block that is on its way."""

    def __init__(self, future: Future[Buffer], worker: _Worker | None = None) -> None:
        self._future = future
        self._worker = worker

    def wait(self) -> Buffer:
        """Return the block when it is there; raise what went wrong on the way."""
        try:
            if not self._future.done():
                with background_work.waiting():
                    return self._future.result()
            return self._future.result()
        except BaseException as error:
            if self._worker is not None:
                self._worker.forgive(error)
            raise

    def test(self) -> bool:
        """Tell whether the block is there, without waiting."""
        return self._future.done()


class _Worker:
    """The thread of one rank."""

    def __init__(self) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._thread = ThreadPoolExecutor(1, "distarray background")
        self._failures: list[BaseException] = []
        """What the program has not heard of; another list once it has."""

    def submit(self, call: Callable[..., Buffer], *args: Any) -> Handle:
        """Begin a call after those before it, unless one of them fails."""
        background_work.begin()
        future = self._thread.submit(self._run, self._failures, call, args)
        future.add_done_callback(background_work.end)
        return Handle(future, self)

    def forgive(self, error: BaseException) -> None:
        """Begin anew with the next call where the program has heard of what went wrong."""
        if any(error is failure for failure in self._failures):
            self._failures = []

    @staticmethod
    def _run(failures: list[BaseException], call: Callable[..., Buffer], args: Any) -> Buffer:
        try:
            if failures:
                raise failures[0]
            return call(*args)
        except BaseException as error:
            failures[:] = [error]
            raise
        finally:
            del failures, args  # the traceback holds this frame


_workers: dict[Any, _Worker] = {}
_workers_lock = threading.Lock()


def redistribute_async(
    local: Buffer,
    src: Layout,
    dst: Layout,
    *,
    max_bytes: int | None = None,
    purpose: Purpose | None = None,
    prepare: Callable[[], None] | None = None,
) -> Handle:
    """Start `redistribute_local` in the background and return at once.

    Collective, like the redistribution itself: every rank of both meshes calls it at the same
    place among its calls, for the same ``purpose``. ``local`` must not change until the result is
    there; ``prepare``, where given, is called in the background before, and may fill it. Where MPI
    was started without ``MPI_THREAD_MULTIPLE`` nothing may run in the background: the
    redistribution is complete on return.
    """

    def work(background: bool) -> Buffer:
        if prepare is not None:
            prepare()
        return redistribute_local(
            local, src, dst, max_bytes=max_bytes, purpose=purpose, background=background
        )

    if src is dst or not world().concurrent:
        return run_now(work)
    # What makes communicators is called in one order with all else of the program.
    bound_steps(src, dst, local.dtype, max_bytes, background=True)
    _backend.use(local)
    if prepare is not None and not _backend.is_numpy(local):
        prepare()  # on the stream of the program, which does not wait for it
        prepare = None
    return run_in_background(work)


def run_in_background(work: Callable[[bool], Buffer], *, alone: bool = False) -> Handle:
    """Start collective work in the background and return at once.

    Every rank calls this at the same place among its calls. ``work`` is told whether it runs in the
    background, with communicators of its own. Where MPI was started without
    ``MPI_THREAD_MULTIPLE`` it does not: it is done on return. So is work of this rank `alone`,
    which waits for nobody.
    """
    rank = None if alone else world()
    if rank is None or not rank.concurrent:
        return run_now(work)
    # The caller's context goes along, so that its CommLog records what the thread sends.
    context = copy_log_context()
    fork = fork_stream()
    task = work if fork is None else partial(fork.run, work)
    return _worker(rank).submit(context.run, task, True)


def run_now(work: Callable[[bool], Buffer]) -> Handle:
    """Return the handle of work that is done here and now, in the foreground."""
    from concurrent.futures import Future

    done: Future[Buffer] = Future()
    done.set_result(work(False))
    return Handle(done)


def refuse_async(src: Layout, dst: Layout, dtype: np.dtype[Any], reason: str) -> None:
    """Join a redistribution in the background only to say that this rank cannot take part."""
    rank = world()
    if rank.concurrent:
        _worker(rank).submit(partial(refuse, src, dst, dtype, reason, background=True)).wait()
    else:
        refuse(src, dst, dtype, reason)


def _worker(rank: Communicator) -> _Worker:
    """Return this rank's thread; simulated ranks have one each."""
    worker = _workers.get(rank)
    if worker is not None:
        return worker
    with _workers_lock:
        worker = _workers.get(rank)
        if worker is None:
            for old in [other for other in _workers if other.is_over]:
                del _workers[old]  # its thread ends
            worker = _workers[rank] = _Worker()
        return worker
