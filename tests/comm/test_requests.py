"""Requests complete once, and keep their buffers until then."""

from __future__ import annotations

import gc

from distarray.comm import _requests
from distarray.comm._log import Record
from distarray.comm._requests import DONE, Pending


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


def test_wait_waits_once():
    handle = Handle()
    request = Pending(handle)
    request.wait()
    request.wait()
    assert handle.waits == 1
    assert request.test()


def test_test_tells_when_the_operation_is_done():
    request = Pending(Pending(Handle(3)))
    assert [request.test() for _ in range(4)] == [False, False, True, True]


def test_seconds_spent_waiting_are_added_to_the_record():
    entry = Record("all_reduce", "dp", 8, 0.0)
    Pending(Pending(Handle()), (), entry).wait()
    assert entry.seconds > 0


def test_completed_request_is_done():
    assert DONE.test()
    DONE.wait()


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
