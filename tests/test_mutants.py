"""Mutants fit the code as it is, and the tests that kill them exist; `tests.mutants` runs them."""

from __future__ import annotations

import pytest

from tests import mutants


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_fits_the_code_and_its_tests_exist(mutant):
    assert not mutant.stale(), "mutant is stale: write it anew for the code as it is now"
    assert not mutant.unknown()
    assert mutant.old != mutant.new


def test_names_of_mutants_differ():
    assert len({mutant.name for mutant in mutants.MUTANTS}) == len(mutants.MUTANTS) >= 25
