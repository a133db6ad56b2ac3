"""The status with which the program ends, and the line that ended it.

Python tells nobody that a ``SystemExit`` ends the program, nor its status.
"""

from __future__ import annotations

import builtins
import dis
import sys
import threading
import traceback
from types import CodeType, FrameType
from typing import Any, NoReturn

from distarray.comm._agreement import line_of


def watch_exit_status() -> CalledExit | UnwoundExit:
    """Return what will know the status, once the program has ended its last frame."""
    outermost = sys._current_frames().get(threading.main_thread().ident or 0)
    while outermost is not None and outermost.f_back is not None:
        outermost = outermost.f_back
    if sys.version_info >= (3, 12) and outermost is not None:
        for tool in (4, 3):  # those that debuggers, coverage and profilers leave free
            if sys.monitoring.get_tool(tool) is None:
                return UnwoundExit(outermost.f_code, tool)
    return CalledExit(outermost)


class UnwoundExit:
    """The status of the SystemExit that leaves the outermost frame, by ``sys.monitoring``."""

    def __init__(self, code: CodeType, tool: int) -> None:
        self._code = code
        self._status: object = None
        self.where = ""
        monitoring: Any = getattr(sys, "monitoring")  # noqa: B009 - Python 3.12 has it
        monitoring.use_tool_id(tool, "distarray")
        monitoring.register_callback(tool, monitoring.events.PY_UNWIND, self._unwound)
        monitoring.set_events(tool, monitoring.events.PY_UNWIND)

    def _unwound(self, code: CodeType, _: int, error: BaseException) -> None:
        if code is self._code and isinstance(error, SystemExit):
            self._status = error.code
            frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
            self.where = next(filter(None, map(line_of, reversed(frames))), "")

    def get(self) -> object:
        """Return the status with which the program is ending; None without one."""
        return self._status


class CalledExit:
    """The status of the last call of ``sys.exit``, if it is what ended the outermost frame.

    A status given to ``raise SystemExit(status)`` itself is not seen.
    """

    def __init__(self, outermost: FrameType | None) -> None:
        self._outermost = outermost
        self._status: object = None
        self.where = ""
        sys.exit = self._exit
        for name in ("exit", "quit"):  # absent under python -S
            if hasattr(builtins, name):
                setattr(builtins, name, self._exit)

    def _exit(self, status: Any = None, /) -> NoReturn:
        self._status = status
        self.where = line_of(sys._getframe(1))
        raise SystemExit(status)

    def get(self) -> object:
        """Return the status with which the program is ending; None without one."""
        frame = self._outermost
        if frame is None:
            return self._status
        last = {step.offset: step.opname for step in dis.get_instructions(frame.f_code)}
        # The frame returned: somebody caught the exception, and the program came to its end.
        returned = last.get(frame.f_lasti, "").startswith("RETURN")
        return None if returned else self._status
