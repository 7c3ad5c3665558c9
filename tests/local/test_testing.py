import torch
import toys
from torch import nn

from manyheads.contract import Predictor
from manyheads.local import testing
from manyheads.local.network import Network
from manyheads.local.outputs import Outputs


def plain(stage, tree, rows):
    """The same answers, computed the long way."""
    m = stage.network.model(tree)
    test = stage.parties.test
    return stage.algorithm.logits(m, test.x(rows)).argmax(dim=1) == test.y[rows]


def test_answers_are_those_of_the_network():
    stage = toys.setting()
    tester = stage.tester()
    ctx = stage.client(0, 0)
    trees = [ctx.initial, ctx.fit(ctx.initial, stage.algorithm.loss, stage.parties.train(0), epochs=8)]
    answers = []
    for tree in (*trees, trees[0]):
        right = tester.right(Predictor(tree, stage.algorithm.logits), torch.arange(tester.size))
        assert torch.equal(right, plain(stage, tree, torch.arange(tester.size)))
        answers.append(right)
    assert torch.equal(answers[0], answers[2])
    assert not torch.equal(answers[0], answers[1])


def test_many_heads_on_one_backbone_run_it_once():
    stage = toys.setting()
    tester = stage.tester()
    passes = []

    def logits(m, x):
        z = m.backbone(x)
        passes.append(z)
        return m.head(z)

    initial = stage.network.initial
    for factor in (1.0, -1.0, 0.5):
        head = initial.part("head") * factor
        tree = initial.replace(head=head)
        rows = torch.arange(8)
        assert torch.equal(tester.right(Predictor(tree, logits), rows), plain(stage, tree, rows))
    assert all(torch.equal(z, passes[0]) for z in passes)  # that it ran once, test_outputs.py shows


def test_nothing_is_asked_of_a_client_without_test_images():
    stage = toys.setting()
    tester = stage.tester()
    right = tester.right(Predictor(stage.network.initial, stage.algorithm.logits), stage.parties.test_rows(4))
    assert right.shape == (0,)


def test_a_part_whose_weights_stand_under_another_part_s_name_is_run_again_where_these_change():
    first, second = nn.Linear(64, 4, bias=False), nn.Linear(64, 4)
    second.weight = first.weight
    network = Network({"a": nn.Sequential(nn.Flatten(), first), "b": nn.Sequential(nn.Flatten(), second)})
    assert network.names == {"a": ["a.1.weight"], "b": ["a.1.weight", "b.1.bias"]}
    test, rows = toys.setting().parties.test, torch.arange(40)
    tester = testing.Tester(network, test, Outputs(test, rows))
    found = []
    for factor in (1.0, -1.0):
        tree = network.initial.replace(a=network.initial.part("a") * factor)
        found.append(tester.right(Predictor(tree, lambda m, x: m.b(x)), rows))
        assert torch.equal(found[-1], network.model(tree).b(test.x(rows)).argmax(dim=1) == test.y)
    assert not torch.equal(*found)
