"""Requests complete once, keep their buffers until then, and tell their result every time."""

from __future__ import annotations

import gc

from distarray.comm import _requests
from distarray.comm._log import Record
from distarray.comm._requests import Completed, Pending


class Handle:
    """An operation that is done after a number of tests."""

    def __init__(self, tests=2):
        self.left = tests
        self.waits = 0

    def wait(self):
        self.left = 0
        self.waits += 1

    def test(self):
        self.left = max(0, self.left - 1)
        return self.left == 0


def test_wait_finishes_once_and_returns_the_same():
    handle, finished = Handle(), []
    request = Pending(handle, (), lambda: finished.append(1) or "result")
    assert request.wait() == request.wait() == "result"
    assert (handle.waits, finished) == (1, [1])
    assert request.test()


def test_test_finishes_when_the_operation_is_done():
    finished = []
    request = Pending(Pending(Handle(3)), (), lambda: finished.append(1) or "result")
    assert [request.test() for _ in range(4)] == [False, False, True, True]
    assert finished == [1]
    assert request.wait() == "result"


def test_error_while_finishing_is_told_again():
    request = Pending(Pending(Handle()), (), lambda: 1 / 0)
    for _ in range(2):
        try:
            request.wait()
        except ZeroDivisionError:
            continue
        raise AssertionError("the error was lost")


def test_seconds_spent_waiting_are_added_to_the_record():
    entry = Record("all_reduce", "dp", 8, 0.0)
    Pending(Pending(Handle()), (), lambda: None, entry).wait()
    assert entry.seconds > 0


def test_completed_request_is_done():
    assert Completed("x").test()
    assert Completed("x").wait() == "x"


def test_buffers_of_an_abandoned_request_live_until_it_is_done():
    class Buffer:
        pass

    _requests.sweep()
    kept = len(_requests._abandoned)
    handle = Handle(tests=3)
    Pending(handle, (Buffer(),))
    gc.collect()
    assert len(_requests._abandoned) == kept + 1
    _requests.sweep()
    assert len(_requests._abandoned) == kept + 1
    for _ in range(3):
        Pending(Handle()).wait()  # a new request sweeps
    assert len(_requests._abandoned) == kept
