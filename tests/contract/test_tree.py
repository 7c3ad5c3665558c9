import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyheads.contract import Tree
from manyheads.contract.tree import same_bits

floats = st.floats(-1e6, 1e6, width=32)


def tree(**tensors: object) -> Tree:
    return Tree({name.replace("__", "."): torch.as_tensor(value) for name, value in tensors.items()})


def numbers(of: Tree) -> dict[str, list[float]]:
    return {name: tensor.tolist() for name, tensor in of.items()}


def test_names_are_sorted_however_a_tree_is_made():
    tensors = {"b.w": torch.ones(1), "a.w": torch.ones(1), "a.b": torch.ones(1)}
    for order in itertools.permutations(tensors):
        made = Tree({name: tensors[name] for name in order})
        assert list(made) == ["a.b", "a.w", "b.w"]
    assert list(tree(z=[1.0]) | tree(c=[1.0], m=[1.0])) == ["c", "m", "z"]
    assert list(tree(z__w=[1.0], a__w=[1.0]).replace(m=tree(w=[2.0]))) == ["a.w", "m.w", "z.w"]


def test_a_tree_cannot_be_changed():
    made = tree(a=[1.0])
    with pytest.raises(TypeError):
        made["a"] = torch.zeros(1)
    source = {"a": torch.ones(1)}
    made = Tree(source)
    source["b"] = torch.ones(1)
    assert list(made) == ["a"]


def test_clone_shares_no_memory():
    made = tree(a=[1.0, 2.0])
    copy = made.clone()
    made["a"].add_(1)
    assert numbers(copy) == {"a": [1.0, 2.0]}


def test_parts_are_cut_at_the_dot():
    made = tree(head__weight=[1.0], head__bias=[2.0], header__weight=[3.0])
    assert numbers(made.part("head")) == {"bias": [2.0], "weight": [1.0]}
    assert numbers(made.replace(head=tree(weight=[9.0]))) == {"head.weight": [9.0], "header.weight": [3.0]}


def test_arithmetic_by_hand():
    a, b = tree(w=[1.0, 2.0], x=[10.0]), tree(w=[4.0, 8.0], x=[-2.0])
    assert numbers(a + b) == {"w": [5.0, 10.0], "x": [8.0]}
    assert numbers(a - b) == {"w": [-3.0, -6.0], "x": [12.0]}
    assert numbers(a * 3) == numbers(3 * a) == {"w": [3.0, 6.0], "x": [30.0]}
    assert numbers(a * b) == {"w": [4.0, 16.0], "x": [-20.0]}
    assert numbers(a.lerp(b, 0.5)) == {"w": [2.5, 5.0], "x": [4.0]}
    assert numbers(a.lerp(b, tree(w=[0.0, 1.0], x=[0.25]))) == {"w": [1.0, 8.0], "x": [7.0]}
    assert numbers(a.descend(b, 0.5)) == {"w": [-1.0, -2.0], "x": [11.0]}


def test_integers_stay_out_of_arithmetic():
    a, b = tree(steps=torch.tensor(3), w=[2.0]), tree(steps=torch.tensor(40), w=[4.0])
    for result in (a + b, a - b, a * 0.5, 0.5 * a, a * b, a.lerp(b, 0.7), a.descend(b, 0.1)):
        assert same_bits(result["steps"], torch.tensor(3))
        assert not torch.equal(result["w"], a["w"])


def test_arithmetic_shares_no_counter():
    # the next step of training adds 1 to it, in place
    a, b = Tree({"w": torch.ones(1), "n": torch.tensor(3)}), Tree({"w": torch.ones(1), "n": torch.tensor(5)})
    for result in (a + b, a - b, a * 0.5, 0.5 * a, a * b, a.lerp(b, 0.7), a.descend(b, 0.1)):
        result["n"].add_(1)
    assert (a["n"].item(), b["n"].item()) == (3, 5)


def test_names_that_the_right_tree_lacks_stay():
    a = tree(w=[1.0], x=[2.0])
    for result in (a + tree(w=[1.0]), a - tree(w=[1.0]), a * tree(w=[2.0]), a.lerp(tree(w=[3.0]), 0.5)):
        assert same_bits(result["x"], a["x"])
        assert not torch.equal(result["w"], a["w"])


@pytest.mark.parametrize("combine", ["__add__", "__sub__", "__mul__"])
def test_names_that_only_the_right_tree_has_are_refused(combine):
    with pytest.raises(KeyError, match="strange"):
        getattr(tree(w=[1.0]), combine)(tree(strange=[1.0]))


@given(st.lists(st.tuples(floats, floats), min_size=1, max_size=20))
def test_lerp_is_exact_at_both_ends(pairs):
    a, b = tree(w=[x for x, _ in pairs]), tree(w=[y for _, y in pairs])
    assert torch.equal(a.lerp(b, 0.0)["w"], a["w"])
    assert torch.equal(a.lerp(b, 1.0)["w"], b["w"])
    assert torch.equal(a.lerp(b, tree(w=[1.0] * len(pairs)))["w"], b["w"])


def test_equality_is_bit_for_bit():
    assert tree(w=[float("nan")]) == tree(w=[float("nan")])
    assert tree(w=[0.0]) != tree(w=[-0.0])
    assert tree(w=[1.0]) != tree(w=torch.tensor([1.0], dtype=torch.float64))
    assert tree(w=[1.0, 1.0]) != tree(w=[[1.0, 1.0]])
    assert tree(w=[1.0]) != tree(v=[1.0])
    assert tree(w=torch.zeros(0, 3)) == tree(w=torch.zeros(0, 3))
    assert tree(w=torch.zeros(2, 3).t()) == tree(w=torch.zeros(3, 2))


def test_descend_has_the_bits_of_an_sgd_step():
    w, g = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0))
    parameter = torch.nn.Parameter(w.clone())
    parameter.grad = g
    torch.optim.SGD([parameter], lr=0.015).step()
    assert same_bits(tree(w=w).descend(tree(w=g), 0.015)["w"], parameter.detach())
