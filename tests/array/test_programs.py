"""Random programs of array calls give what NumPy gives, on every rank."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.array import programs
from tests.on_device import DEVICE

EACH = 50

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="operands of NumPy's stay on the host")


@pytest.mark.parametrize("first", range(0, 4 * EACH, EACH))
def test_programs_agree_with_numpy(first: int) -> None:
    found = [
        (seed, program.statements, message)
        for seed, program, message in programs.failures(range(first, first + EACH), Counter())
    ]
    assert not found


def test_a_wrong_answer_is_noticed_and_made_smaller() -> None:
    program = programs.draw(7)
    last = program.statements[-1].number
    assert not isinstance(program.answers[0], Exception)
    program.answers[0] = program.answers[0].reshape(-1)[:0].copy()
    (message,) = programs._errors_of([program], Counter())
    assert message is not None
    assert last
