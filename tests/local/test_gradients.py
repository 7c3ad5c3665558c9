"""Gradients of losses with proximal terms are those of automatic differentiation, whatever the terms hold."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from manyheads.contract import Proximal, Tree
from manyheads.local.gradients import slope, with_pull
from manyheads.local.steps import tensors, total


def leaf(*numbers):
    return torch.tensor(numbers, requires_grad=True)


def differentiated(terms, parameters):
    values = tensors(terms)
    return values, torch.autograd.grad(total(values), parameters, allow_unused=True)


def gradients(terms, parameters):
    """The values, and the gradients with what pulls."""
    values, found, pulls = slope(terms, parameters)
    for pull in pulls:
        found[pull.place] = with_pull(found[pull.place], parameters[pull.place], pull)
    return values, found


def check(terms, *parameters):
    """Values and gradients as automatic differentiation has them; inputs and other gradients stay as they are."""
    before = [p.detach().clone() for p in parameters]
    values, found = gradients(terms(), parameters)
    expected_values, expected = differentiated(terms(), parameters)
    assert list(values) == list(terms())
    for name, value in values.items():
        torch.testing.assert_close(value, expected_values[name])
    assert [g is None for g in found] == [g is None for g in expected]
    for one, other in zip(found, expected, strict=True):
        assert one is other is None or torch.allclose(one, other, rtol=1e-6, atol=1e-7)
    assert all(map(torch.equal, before, parameters))
    return found


def test_by_hand():
    w = leaf(1.0, 5.0)
    values, [gradient] = gradients(
        {"ce": (3 * w).sum(), "prox": Proximal(2.0, Tree({"w": w}), Tree({"w": torch.tensor([0.0, 3.0])}))}, [w]
    )
    assert gradient.tolist() == [3 + 2 * 1, 3 + 2 * 2]
    assert {name: value.item() for name, value in values.items()} == {"ce": 18.0, "prox": 1.0 + 4.0}


def test_values_of_proximal_terms_are_left_out_where_nobody_asks():
    a, b = leaf(1.0), leaf(2.0)
    terms = {
        "prox": Proximal(2.0, Tree({"a": a}), Tree({"a": torch.zeros(1)})),
        "ce": a.sum(),
        "of both": Proximal(2.0, Tree({"a": a}), Tree({"a": b})),
    }
    values, gradients, pulls = slope(terms, [a, b], measure=False)
    assert values == {"ce": a.sum()}
    assert [g.item() for g in gradients] == [1 + 2 * (1 - 2), 2 * (2 - 1)]
    assert [(pull.place, pull.weight) for pull in pulls] == [(0, 2.0)]


def test_parameters_that_share_a_gradient_tensor_do_not_share_what_is_added():
    a, b = leaf(1.0, 2.0), leaf(3.0, 4.0)
    found = check(
        lambda: {
            "ce": ((a + b) * torch.tensor([2.0, 7.0])).sum(),
            "prox": Proximal(1.0, Tree({"a": a}), Tree({"a": torch.zeros(2)})),
        },
        a,
        b,
    )
    assert [g.tolist() for g in found] == [[3.0, 9.0], [2.0, 7.0]]


def test_parameters_that_only_the_term_depends_on_and_parameters_that_nothing_depends_on():
    a, b, c = leaf(1.0), leaf(2.0), leaf(3.0)
    check(lambda: {"ce": a.sum(), "prox": Proximal(0.5, Tree({"b": b}), Tree({"b": torch.zeros(1)}))}, a, b, c)
    check(lambda: {"prox": Proximal(0.5, Tree({"b": b}), Tree({"b": torch.zeros(1)}))}, a, b, c)


def test_two_terms_on_one_parameter():
    a = leaf(1.0, 2.0)
    [gradient] = check(
        lambda: {
            "near": Proximal(1.0, Tree({"a": a}), Tree({"a": torch.zeros(2)})),
            "ce": a.square().sum(),
            "far": Proximal(3.0, Tree({"a": a}), Tree({"a": torch.ones(2)})),
        },
        a,
    )
    assert gradient.tolist() == [2 + 1 + 0, 4 + 2 + 3]


def test_frozen_parameters_count_in_the_value_only():
    a, frozen = leaf(1.0), torch.tensor([5.0])
    check(
        lambda: {
            "ce": a.sum(),
            "prox": Proximal(2.0, Tree({"a": a, "frozen": frozen}), Tree({"a": frozen, "frozen": a.detach()})),
        },
        a,
    )


def test_a_reference_that_is_trained_is_differentiated():
    a, b = leaf(1.0, 2.0), leaf(3.0, -1.0)
    [_, of_b] = check(lambda: {"ce": a.sum(), "prox": Proximal(2.0, Tree({"x": a}), Tree({"x": b}))}, a, b)
    assert of_b.tolist() == [4.0, -6.0]


def test_a_function_of_parameters_is_differentiated():
    a, b = leaf(1.0, 2.0), leaf(3.0, -1.0)
    [_, of_b] = check(
        lambda: {"ce": a.sum(), "prox": Proximal(2.0, Tree({"x": a * b}), Tree({"x": torch.ones(2)}))}, a, b
    )
    assert of_b.tolist() == [4.0, -12.0]


def test_beside_terms_without_a_gradient():
    a = leaf(1.0, 2.0)
    check(lambda: {"noted": a.detach().sum(), "prox": Proximal(2.0, Tree({"a": a}), Tree({"a": torch.zeros(2)}))}, a)


def test_a_reference_of_another_type_gives_gradients_like_the_parameters():
    a, reference = leaf(1.0, 2.0), torch.zeros(2, dtype=torch.float64)
    [gradient] = check(lambda: {"ce": a.sum(), "prox": Proximal(2.0, Tree({"a": a}), Tree({"a": reference}))}, a)
    assert gradient.dtype == a.dtype


@given(
    st.sampled_from([(3,), (4, 3), (4, 3, 2, 2)]),
    st.floats(0, 10),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_any_shape_layout_and_weight(shape, weight, channels_last, seed):
    rng = torch.Generator().manual_seed(seed)

    def drawn():
        x = torch.randn(shape, generator=rng)
        return x.to(memory_format=torch.channels_last) if channels_last and x.dim() == 4 else x

    w, reference, scale = drawn().requires_grad_(), torch.randn(shape, generator=rng), drawn()
    [gradient] = check(
        lambda: {"ce": (w * scale).sum(), "prox": Proximal(weight, Tree({"w": w}), Tree({"w": reference}))}, w
    )
    assert gradient.stride() == w.stride()
    if weight == 0:
        assert torch.equal(gradient, scale)
