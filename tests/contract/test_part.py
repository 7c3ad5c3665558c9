import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyheads.contract import Part

TAGS = [
    frozenset(tags)
    for size in range(1, 4)
    for tags in itertools.combinations(["backbone", "head", "norm", "buffer"], size)
]
parts = st.recursive(
    st.sampled_from([Part.ALL, Part.NONE, Part.BACKBONE, Part.HEAD, Part.NORM, Part.BUFFER, Part.of("cpn")]),
    lambda inner: st.tuples(st.sampled_from("|&-"), inner, inner).map(
        lambda t: {"|": t[1] | t[2], "&": t[1] & t[2], "-": t[1] - t[2]}[t[0]]
    ),
    max_leaves=6,
)


@given(parts, parts, st.sampled_from(TAGS))
def test_operators_are_those_of_sets(a, b, tags):
    assert (a | b).holds(tags) == (a.holds(tags) or b.holds(tags))
    assert (a & b).holds(tags) == (a.holds(tags) and b.holds(tags))
    assert (a - b).holds(tags) == (a.holds(tags) and not b.holds(tags))


@pytest.mark.parametrize("tags", TAGS)
def test_named_parts(tags):
    assert Part.ALL.holds(tags)
    assert not Part.NONE.holds(tags)
    assert Part.PARAMETERS.holds(tags) == ("buffer" not in tags)
    assert Part.BACKBONE.holds(tags) == ("backbone" in tags)
    assert (Part.BACKBONE - Part.NORM).holds(tags) == ("backbone" in tags and "norm" not in tags)


def test_parts_are_values():
    assert Part.of("head") == Part.HEAD
    assert {Part.HEAD: 1}[Part.of("head")] == 1
    assert Part.ALL - Part.NONE == Part.ALL
    assert Part.NONE | Part.HEAD == Part.HEAD
    assert Part.ALL & Part.HEAD == Part.HEAD


def test_a_part_says_what_it_is():
    assert repr((Part.BACKBONE | Part.HEAD) - Part.NORM) == "((backbone | head) - norm)"
