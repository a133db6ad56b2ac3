"""Saves in the background: one thread per rank writes them in the order of their calls.

The ranks meet on a communicator of their own, which nothing else uses, so that the messages of the
foreground and of redistributions in the background never meet those of a save.
"""

from __future__ import annotations

import atexit
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from distarray.comm import Communicator


class Handle:
    """A save in the background.

    At the end of the program it is finished first. If the program ends with an error, the save
    does as well, and the previous checkpoint stays.

    Examples
    --------
    >>> import distarray as da
    >>> handle = da.checkpoint.save("ckpt", {"x": da.arange(3)}, async_op=True)
    >>> handle.wait()
    >>> handle.test()
    True
    """

    def __init__(self, future: Future[None], path: str) -> None:
        self._future = future
        self._told = False
        self.path = path

    def wait(self) -> None:
        """Return when the checkpoint is there; raise what went wrong, on every rank.

        Raises
        ------
        CheckpointError
            As `save` does.
        """
        self._told = True
        self._future.result()

    def test(self) -> bool:
        """Tell, without waiting, whether the save has ended."""
        return self._future.done()

    def __repr__(self) -> str:
        ended = "ended" if self.test() else "under way"
        return f"<save to {self.path!r}, {ended}>"


class _Worker:
    """The thread of one rank of a communicator, and the communicator that it uses."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm.duplicate()
        self.comm.barrier()  # MPI makes it now, and not beside other messages
        self.executor = ThreadPoolExecutor(1, "distarray checkpoint")
        self.last: Handle | None = None


_workers: weakref.WeakKeyDictionary[Communicator, _Worker] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def start(comm: Communicator, path: str, save: Callable[[Communicator], None]) -> Handle:
    """Write in the background (collective); or now, where MPI knows one thread only."""
    if not comm.concurrent:
        done: Future[None] = Future()
        save(comm)
        done.set_result(None)
        return Handle(done, path)
    worker = _workers.get(comm)
    if worker is None:
        worker = _Worker(comm)
        with _lock:
            if not _workers:
                atexit.unregister(_print_unseen_errors)
                atexit.register(_print_unseen_errors)
            _workers[comm] = worker
    handle = Handle(worker.executor.submit(save, worker.comm), path)
    worker.last = handle
    return handle


def finish(comm: Communicator) -> None:
    """Wait for the last save in the background, and raise its error unless that has been seen."""
    worker = _workers.get(comm)
    if worker is None or worker.last is None:
        return
    last, worker.last = worker.last, None
    if last._told:
        last._future.exception()
    else:
        last.wait()


def _print_unseen_errors() -> None:
    """Print the errors of saves that nobody waited for."""
    with _lock:
        handles = [worker.last for worker in _workers.values() if worker.last is not None]
    for handle in handles:
        if handle._told or not handle.test():
            continue
        error: Any = handle._future.exception()
        if error is not None:
            print(
                f"the save to {handle.path!r} in the background failed, and nobody waited for it: "
                f"{type(error).__name__}: {error}",
                file=sys.stderr,
            )
