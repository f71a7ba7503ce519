from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from notebookos_ext.kernel.set_order import arrange, freeze, frozen_recipe_for, recipe_for

# Their hashes do not depend on the process.
elements = st.one_of(
    st.integers(-50, 10**6), st.floats(allow_nan=False), st.tuples(st.integers(0, 9), st.integers())
)


def pickled(group: set[object]) -> set[object]:
    return pickle.loads(pickle.dumps(group))


def build(added: list[object], removed: list[int]) -> set[object]:
    group = set()
    for each in added:
        group.add(each)
    for place in removed:
        if group:
            group.discard(list(group)[place % len(group)])
    return group


@given(st.lists(elements, max_size=40), st.lists(st.integers(0, 99), max_size=15))
def test_a_recipe_gives_the_order_back(added, removed):
    group = build(added, removed)
    recipe = recipe_for(group)
    copy = pickled(group)
    if recipe is not None:
        arrange(copy, recipe)
        assert list(copy) == list(group)
    assert copy == group


@given(st.lists(elements, max_size=15))
def test_a_frozen_set_is_given_back_in_order(added):
    group = frozenset(added)
    recipe = frozen_recipe_for(group)
    if recipe is None:
        assert list(frozenset(group)) == list(group)
    else:
        assert list(freeze(recipe)) == list(group)


def test_a_contested_place_needs_a_recipe():
    # 0 and 8 want the same place of a small table, and 8 was there first.
    group = {8, 0}
    assert list(pickled(group)) == list(group) or recipe_for(group) is not None
    contested = build([16, 8, 0, 3], [])
    recipe = recipe_for(contested)
    again = pickled(contested)
    if recipe is not None:
        arrange(again, recipe)
    assert list(again) == list(contested)


def test_the_next_elements_come_to_the_same_places():
    group = build(list(range(0, 400, 8)), list(range(30)))
    recipe = recipe_for(group)
    assert recipe is not None
    copy = set()
    arrange(copy, recipe)
    for each in (1, 801, 9, 33, 1601):
        group.add(each)
        copy.add(each)
    assert list(copy) == list(group)
