import torch
import toys
from torch import nn

from manyheads.contract import Part
from manyheads.local.network import Network, channels_last
from manyheads.models import build


def resnet():
    return Network(build("resnet8", shape=(1, 8, 8), classes=4, options={"width": 2}).parts())


def test_tags_say_part_norm_and_buffer():
    tags = resnet().tags
    assert tags["head.weight"] == {"head"}
    assert tags["backbone.conv1.weight"] == {"backbone"}
    assert tags["backbone.bn1.weight"] == {"backbone", "norm"}
    assert tags["backbone.bn1.num_batches_tracked"] == {"backbone", "norm", "buffer"}
    assert tags["backbone.layer2.0.shortcut.1.running_var"] == {"backbone", "norm", "buffer"}
    assert set(tags) == set(resnet().initial)
    layers = {"backbone": nn.Sequential(nn.GroupNorm(1, 2), nn.LayerNorm(2), nn.Linear(2, 2)), "head": nn.Linear(2, 2)}
    assert {name for name, of in Network(layers).tags.items() if "norm" in of} == {
        f"backbone.{i}.{leaf}" for i in (0, 1) for leaf in ("weight", "bias")
    }


def test_the_initial_tree_is_a_copy():
    layer = nn.Linear(2, 2)
    network = Network({"head": layer})
    before = network.initial.clone()
    with torch.no_grad():
        layer.weight.add_(1)
    assert network.initial == before


def test_binding_gives_what_the_modules_gave():
    model = build("cnn", shape=(1, 8, 8), classes=4, options={"kernel": 3, "padding": 1, "widths": (3, 4)}).eval()
    network = Network(model.parts())
    x = torch.randn(2, 1, 8, 8)
    m = network.model(network.initial)
    assert torch.equal(m.head(m.backbone(x)), model(x))
    other = network.model(network.initial * 0.0)
    assert torch.equal(other.head(other.backbone(x)), torch.zeros(2, 4))
    assert torch.equal(m.head(m.backbone(x)), model(x))


def modes(network, trains):
    names = [name for name, tags in network.tags.items() if (trains - Part.BUFFER).holds(tags)]
    bound = network.bind(channels_last(network.initial), names)
    return {name: module.training for name, module in bound.modules.named_modules() if name}


def test_trained_parts_are_in_train_mode_and_frozen_ones_in_eval_mode():
    network = resnet()
    everything = modes(network, Part.ALL)
    assert all(everything.values())
    head = modes(network, Part.HEAD)
    assert {name for name, training in head.items() if training} == {"head"}
    without_norm = modes(network, Part.BACKBONE - Part.NORM)
    assert not without_norm["backbone.bn1"]
    assert without_norm["backbone.conv1"]
    assert not without_norm["head"]


def test_a_frozen_backbone_keeps_its_statistics():
    stage = toys.setting(model__name="resnet8", model__width=2)
    ctx, data = stage.client(0, 0), stage.parties.train(0)
    tree = ctx.fit(ctx.initial, stage.algorithm.loss, data, trains=Part.HEAD)
    assert tree.part("backbone") == ctx.initial.part("backbone")
    assert tree.part("head") != ctx.initial.part("head")
    whole = ctx.fit(ctx.initial, stage.algorithm.loss, data)
    assert not torch.equal(whole["backbone.bn1.running_mean"], ctx.initial["backbone.bn1.running_mean"])
    assert whole["backbone.bn1.num_batches_tracked"].item() == ctx.steps(data)


def test_a_part_without_weights_is_there():
    network = Network({"backbone": nn.Flatten(), "head": nn.Linear(1, 2)})
    x = torch.tensor([3.0]).reshape(1, 1, 1, 1)
    m = network.model(network.initial)
    assert torch.equal(m.backbone(x), torch.tensor([[3.0]]))
    assert m.head(m.backbone(x)).shape == (1, 2)
