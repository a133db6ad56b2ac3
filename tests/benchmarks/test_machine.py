"""What else the machine does while it is measured."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks import machine

SPIN = "import time\nwhile time.process_time() < 0.5: pass"


def test_only_what_this_process_has_not_waited_for_is_others_work() -> None:
    others = machine.Others()
    with subprocess.Popen([sys.executable, "-c", SPIN]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        before = others._now()
        child.wait()
        after = others._now()
    assert before[0] - others._start[0] > 0.4  # the system counts in ticks
    assert before[1] - others._start[1] < 0.4 < after[1] - before[1]
    assert 0 <= others.share() < 1.1
