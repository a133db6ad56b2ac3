"""Random programs of array calls give what NumPy gives, on every rank."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import distarray as da
from tests.array import programs
from tests.array.strategies import Case
from tests.on_device import DEVICE

EACH = programs.GROUP

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="operands of NumPy's stay on the host")


@pytest.mark.parametrize("first", range(0, 4 * EACH, EACH))
def test_programs_agree_with_numpy(first: int) -> None:
    found = [
        (seed, program.statements, message)
        for seed, program, message in programs.failures(range(first, first + EACH), Counter())
    ]
    assert not found


def test_a_wrong_answer_is_noticed_and_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: Any, **options: Any) -> Any:
        return right(x, **options)[::-1].copy()

    right = np.sort
    program = programs.Program((2,), (0, 1))
    first, second = programs.Ref(0), programs.Ref(2)
    values = Case((2,), (da.Shard(0),), np.array([[3.0, 1.0, 2.0]]))
    for number, (name, given) in enumerate(
        [("array", programs.New(values, "own")), ("copy", first), ("sort", first), ("copy", second)]
    ):
        program.add(programs.Statement(name, (given,), (), number))
    assert programs._errors_of([program], Counter()) == [None]
    monkeypatch.setattr(np, "sort", wrong)
    program.answers[2] = program.answers[2][::-1].copy()
    (message,) = programs._errors_of([program], Counter())
    assert message is not None
    smaller, message = programs._smaller(program, message)
    assert [statement.name for statement in smaller.statements] == ["array", "sort"]
    assert "sort" in message
