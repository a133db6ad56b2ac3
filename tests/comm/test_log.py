"""CommLog: which logs record what, and how it is told."""

from __future__ import annotations

import contextvars
import threading

import pytest

from distarray.comm import CommLog, _log
from distarray.comm._log import pause_logs, record, record_agreement, recording
from distarray.comm.simulated import _ranks
from distarray.testing import simulate


def test_nothing_is_recorded_without_a_log():
    assert not recording()
    assert record("all_reduce", "dp", 8, 0.1) is None


def test_collectives_that_move_no_values_are_recorded_inside_of_others():
    with CommLog() as log:
        with pause_logs(), pause_logs():
            record("all_gather", "dp", 64, 0.5)
            record_agreement("dp", 16, 0.25)
        record_agreement("tp", 24, 0.25)
    with pause_logs():
        record_agreement("dp", 16, 0.25)
    assert [(r.collective, r.mesh_axis, r.nbytes) for r in log.records] == [
        ("agreement", "dp", 16),
        ("agreement", "tp", 24),
    ]


def test_logs_nest_and_each_records_what_runs_inside_it():
    with CommLog() as outer:
        record("all_reduce", "dp", 8, 0.5)
        with CommLog() as inner:
            record("all_gather", "tp", 16, 0.25)
        record("all_gather", "dp", 32, 0.25)
    assert (outer.count(), inner.count()) == (3, 1)
    assert (outer.count("all_gather"), outer.count(mesh_axis="dp")) == (2, 2)
    assert outer.count("all_gather", "dp") == 1
    assert (outer.bytes(), outer.bytes("all_gather"), outer.bytes(mesh_axis="dp")) == (56, 48, 40)
    assert outer.seconds() == 1.0
    assert not recording()


def test_log_entered_again_records_once_and_goes_on():
    log = CommLog()
    with log:
        with log:
            record("barrier", "dp", 0, 0.0)
        record("barrier", "dp", 0, 0.0)
    with log:
        record("barrier", "dp", 0, 0.0)
    assert log.count() == 3


def test_log_ends_by_an_error():
    with pytest.raises(ZeroDivisionError), CommLog():
        raise ZeroDivisionError
    assert not recording()


def test_log_is_of_the_thread_that_opened_it_unless_its_context_is_passed_on():
    with CommLog() as log:
        thread = threading.Thread(target=record, args=("all_reduce", "dp", 8, 0.1))
        thread.start()
        thread.join()
        assert log.count() == 0
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(record, "all_reduce", "dp", 8, 0.1))
        thread.start()
        thread.join()
    assert log.count() == 1


def test_table_has_a_line_per_collective_and_mesh_axis():
    with CommLog() as log:
        record("all_reduce", "dp", 1000, 0.5)
        record("all_reduce", "dp", 1000, 0.5)
        record("all_gather", "tp", 1, 0.25)
    assert str(log) == log.table()
    assert log.table().splitlines() == [
        "collective  mesh axis  count  bytes   seconds",
        "all_gather  tp             1      1  0.250000",
        "all_reduce  dp             2  2,000  1.000000",
    ]
    assert repr(log) == "<CommLog: 3 communications, 2,001 bytes>"


def test_log_records_what_another_library_does_for_its_thread(monkeypatch):
    def program():
        with CommLog() as log:
            context: list[contextvars.Context] = []

            def help_out():
                _ranks._thread.communicator = rank
                record("all_reduce", "dp", 8, 0.1)
                with pause_logs():
                    record("all_reduce", "dp", 8, 0.1)
                context.append(_log.copy_log_context())

            rank = _ranks.simulated_world()
            thread = threading.Thread(target=help_out)
            thread.start()
            thread.join()
            context[0].run(record, "all_gather", "dp", 8, 0.1)
            assert (log.count("all_reduce"), log.count("all_gather")) == (1, 1)
        return log

    monkeypatch.setattr(_log, "_worker_tests", [lambda: True])
    with CommLog() as outside:
        one, other = simulate(2, program)
        assert one.count() == other.count() == 2
        assert outside.count() == 0
    assert not _log._open
