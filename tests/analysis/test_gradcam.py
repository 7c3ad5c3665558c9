import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import toys
from matplotlib.image import imread
from methods import TwoAnswers
from torch import nn
from torch.nn.functional import interpolate

from manyheads.algorithms.fedavg import FedAvg
from manyheads.algorithms.fedecouple import FedeCouple
from manyheads.algorithms.fedrep import FedRep
from manyheads.analysis.gradcam import chosen, gradcam, heat, in_turns, last_convolution, predictors
from manyheads.analysis.trained import Trained
from manyheads.contract import Algorithm, Predictor
from manyheads.errors import InputError
from manyheads.local.network import Network
from manyheads.models.registry import build
from manyheads.models.zoo import resnet8


def trained(algorithm: Algorithm, **values: object) -> Trained:
    experiment = toys.experiment(algorithm, cohorts=None, train__participation=1.0, **values)
    return Trained(experiment, experiment.run())


@pytest.fixture(scope="module")
def fedecouple() -> Trained:
    """Its heads disagree on some images of client 0, and its maps are not empty."""
    enough = {"train__rounds": 4, "train__epochs": 6, "train__lr": 0.1, "model__dropout": 0.0, "model__features": 16}
    return trained(FedeCouple(augment=False), **enough)


def logits(m, x):
    return m.head(m.backbone(x))


def by_hand(*after: nn.Module) -> Network:
    """Two feature maps of an image x: x itself and 2.5 - x. Three classes, each with a weight for each of 8 pixels."""
    convolution, head = nn.Conv2d(1, 2, 1), nn.Linear(8, 3, bias=False)
    with torch.no_grad():
        convolution.weight.copy_(torch.tensor([1.0, -1.0]).view(2, 1, 1, 1))
        convolution.bias.copy_(torch.tensor([0.0, 2.5]))
        head.weight.copy_(
            torch.tensor(
                [
                    [1.0, 1, 1, 1, 2, 0, 0, 0],  # mean weights 1 and 1/2
                    [4.0, -4, 0, 0, 1, 1, 1, 1],  # 0 and 1
                    [-1.0, -1, -1, -1, 0, 0, 0, 0],  # -1 and 0
                ]
            )
        )
    return Network({"backbone": nn.Sequential(convolution, *after, nn.Flatten()), "head": head})


IMAGE = torch.tensor([[1.0, 2], [3, 4]])
MAPS = {  # relu of the feature maps, each times its mean weight, summed
    0: [[1.75, 2.25], [2.75, 3.25]],  # x + (2.5 - x) / 2
    1: [[1.5, 0.5], [0, 0]],  # 2.5 - x
    2: [[0, 0], [0, 0]],  # -x
}


@pytest.mark.parametrize("label", MAPS)
def test_by_hand(label: int) -> None:
    network = by_hand()
    name, maps = heat(network, Predictor(network.initial, logits), toys.data(IMAGE[None, None]), torch.tensor([label]))
    assert name == "backbone.0"
    assert maps.tolist() == [MAPS[label]]


def test_each_image_has_the_class_that_is_asked_for() -> None:
    network, images = by_hand(), IMAGE.expand(3, 1, 2, 2)
    _, maps = heat(network, Predictor(network.initial, logits), toys.data(images), torch.tensor([2, 0, 1]))
    assert maps.tolist() == [MAPS[2], MAPS[0], MAPS[1]]


def test_what_follows_in_place_does_not_touch_the_maps() -> None:
    # Of x none is cut off, of 2.5 - x the lower row, whose weights so count for nothing: 1/2 for class 1, 1/2 for 0.
    for inplace in (False, True):
        network = by_hand(nn.ReLU(inplace=inplace))
        _, maps = heat(network, Predictor(network.initial, logits), toys.data(IMAGE[None, None]), torch.tensor([1]))
        assert maps.tolist() == [[[0.75, 0.25], [0, 0]]]


def test_a_map_is_as_large_as_the_image() -> None:
    convolution = nn.Conv2d(1, 1, 2, stride=2, bias=False)
    nn.init.constant_(convolution.weight, 0.25)
    head = nn.Linear(4, 1, bias=False)
    nn.init.constant_(head.weight, 1.0)
    network = Network({"backbone": nn.Sequential(convolution, nn.Flatten()), "head": head})
    image = IMAGE.repeat_interleave(2, 0).repeat_interleave(2, 1)
    _, maps = heat(network, Predictor(network.initial, logits), toys.data(image[None, None]), torch.tensor([0]))
    assert maps.shape == (1, 4, 4)
    assert maps[0, ::3, ::3].tolist() == IMAGE.tolist()
    assert maps[0, 0].tolist() == [1, 1.25, 1.75, 2]  # linear between the middles of the pixels


class Twisted(nn.Module):
    """Its layers run in another order than they are defined in."""

    def __init__(self) -> None:
        super().__init__()
        self.second, self.never = nn.Conv2d(1, 1, 3), nn.Conv2d(1, 1, 3)
        self.first, self.shortcut = nn.Conv2d(1, 1, 3), nn.Conv2d(1, 1, 1)

    def forward(self, x):
        y = self.second(self.first(x))
        return y + self.shortcut(x)[..., 2:-2, 2:-2]


def test_the_last_convolution_is_the_one_that_runs_last() -> None:
    net = Twisted()
    assert last_convolution(net, lambda: net(torch.zeros(1, 1, 8, 8))) == ("backbone.second", net.second)
    residual = resnet8(shape=(1, 8, 8), classes=2, width=2).backbone
    name, _ = last_convolution(residual, lambda: residual(torch.zeros(2, 1, 8, 8)))
    assert name == "backbone.layer3.0.conv2"
    assert not any(module._forward_hooks for module in (*net.modules(), *residual.modules()))


def independent(run: Trained, tree, x: torch.Tensor, label: int) -> torch.Tensor:
    """Grad-CAM of one image by plain torch."""
    options = run.experiment.config.model.options
    network = build("cnn", shape=(1, 8, 8), classes=toys.CLASSES, options=options).eval()
    network.load_state_dict(dict(tree))
    kept = []
    network.backbone.conv2.register_forward_hook(lambda module, inputs, output: kept.append(output))
    answer = network(x[None])[0, label]
    [gradient] = torch.autograd.grad(answer, kept[0])
    weights = gradient.mean(dim=(2, 3), keepdim=True)
    small = (weights * kept[0]).sum(dim=1, keepdim=True).clamp(min=0)
    return interpolate(small, (8, 8), mode="bilinear", align_corners=False)[0, 0].detach()


def test_each_model_is_seen_with_its_own_head(fedecouple: Trained, tmp_path: Path) -> None:
    views = gradcam(fedecouple, 0, tmp_path / "out.png", images=4)
    models = predictors(fedecouple, 0)
    assert list(views) == list(models) == ["global", "personal"]
    data = fedecouple.test(0)
    answers = {name: fedecouple.logits(model, data).argmax(dim=1) for name, model in models.items()}
    some = data.take(chosen(answers, data.y, 4).rows)
    x = some.x(torch.arange(len(some)))
    for name, model in models.items():
        probabilities = fedecouple.logits(model, some).softmax(dim=1)
        assert views[name].predicted.equal(probabilities.argmax(dim=1))
        assert views[name].probability.equal(probabilities.amax(dim=1))
        for place, label in enumerate(views[name].predicted.tolist()):
            expected = independent(fedecouple, model.tree, x[place], label)
            assert torch.allclose(views[name].maps[place], expected, atol=1e-6)
        assert views[name].maps.amax(dim=(1, 2)).min() > 1e-3
    assert not torch.allclose(views["global"].maps, views["personal"].maps, atol=1e-3)
    assert not answers["global"].equal(answers["personal"])


@pytest.mark.parametrize(("algorithm", "columns"), [(FedRep(), ["personal"]), (FedAvg(), ["global"])])
def test_a_method_without_one_of_the_models_shows_the_other(
    algorithm: Algorithm, columns: list[str], fedecouple: Trained, tmp_path: Path
) -> None:
    assert list(gradcam(trained(algorithm, train__rounds=1), 0, tmp_path / "one.png", images=3)) == columns
    gradcam(fedecouple, 0, tmp_path / "two.png", images=3)
    one, two = imread(tmp_path / "one.png"), imread(tmp_path / "two.png")
    assert one.shape[0] == two.shape[0] > 700
    assert 500 < one.shape[1] < two.shape[1] < 1000
    assert np.mean(one[..., :3].min(axis=2) < 0.99) > 0.2


def test_a_method_of_named_variants_only_is_refused(tmp_path: Path) -> None:
    run = trained(TwoAnswers(), train__rounds=1)
    with pytest.raises(InputError, match=r"^Grad-CAM shows the global and the personal model, and .* has neither$"):
        gradcam(run, 0, tmp_path / "out.png")


def test_images_on_which_the_models_disagree_come_first() -> None:
    y = torch.tensor([0, 1, 1, 0, 1, 2])
    one = torch.tensor([0, 1, 0, 0, 1, 2])
    other = torch.tensor([1, 0, 1, 0, 1, 2])
    choice = chosen({"global": one, "personal": other}, y, 4)
    # disagree: 0 (class 0), 1 and 2 (class 1); agree: 3 (class 0), 4 (class 1), 5 (class 2). Class 1 is the largest.
    assert choice.rows.tolist() == [1, 0, 4, 3]
    assert choice.caption.startswith("2 of the 3 images where the models disagree, 2 of the 3 images where they agree;")
    assert chosen({"global": one, "personal": other}, y, 3).rows.tolist() == [1, 0, 4]
    assert chosen({"personal": one}, y, 2).rows.tolist() == [2, 1]  # one error, one right answer
    assert "1 of the 1 images where the model errs" in chosen({"personal": one}, y, 2).caption


def test_one_kind_stands_in_for_another() -> None:
    y = torch.tensor([0, 1, 0, 1])
    same = {"global": y, "personal": y}
    assert chosen(same, y, 3).rows.tolist() == [0, 1, 2]
    assert chosen({"global": y, "personal": 1 - y}, y, 3).rows.tolist() == [0, 1, 2]
    assert sorted(chosen(same, y, 10).rows.tolist()) == [0, 1, 2, 3]


def test_classes_take_turns() -> None:
    y = torch.tensor([2, 2, 2, 0, 0, 1])
    assert in_turns(y, torch.ones(6, dtype=torch.bool)).tolist() == [0, 3, 5, 1, 4, 2]
    assert in_turns(y, y == 2).tolist() == [0, 1, 2]
    assert in_turns(y, y == 9).tolist() == []


@pytest.mark.parametrize(
    ("client", "name", "word"),
    [
        (4, "out.png", "client 4 has no test images"),
        (6, "out.png", "client 6: the run has clients 0 to 5"),
        (0, "out.pdf", r"a picture is written as PNG; give a file such as .*out\.png"),
    ],
)
def test_wrong_input_is_refused(client: int, name: str, word: str, fedecouple: Trained, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=word):
        gradcam(fedecouple, client, tmp_path / name)


def test_a_network_without_convolution_is_refused(tmp_path: Path) -> None:
    run = trained(FedAvg(), model__name="mlp", train__rounds=1)
    with pytest.raises(InputError, match="Grad-CAM needs a convolution, and the run's network has none"):
        gradcam(run, 0, tmp_path / "out.png")
    assert not (tmp_path / "out.png").exists()


def test_captum_is_an_extra(fedecouple: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(InputError, match=r"^Grad-CAM needs captum: pip install 'manyheads\[analysis\]'$"):
        gradcam(fedecouple, 0, tmp_path / "out.png")
