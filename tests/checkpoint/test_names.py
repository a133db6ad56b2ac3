"""Which names are within which, compared with the plain definition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from distarray.checkpoint._load_plan import Containers, group_by_container

NAMES = st.lists(st.text("ab.", max_size=6), max_size=12, unique=True)


def is_within(name: str, container: str) -> bool:
    return name == container or name.startswith(f"{container}.")


@given(NAMES, st.text("ab.", min_size=1, max_size=4))
def test_names_and_containers(names, asked):
    found = [n for n in names if is_within(n, asked) and n != asked]
    assert group_by_container(names).get(asked, []) == found
    assert group_by_container(names)[""] == names
    containers = Containers(names)
    assert containers.hold(asked) == any(is_within(asked, n) for n in names)
    assert containers.meet(asked) == any(is_within(asked, n) or is_within(n, asked) for n in names)
