import copy
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from manyheads.errors import InputError
from manyheads.models import Dropout, SplitModel, build, probe, set_generator


class Through(nn.Module):
    """A network with ``function`` between its hidden layer and its head."""

    def __init__(self, function: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.hidden = nn.Linear(16, 8)
        self.fc = nn.Linear(8, 3)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.function(self, self.hidden(x.flatten(1))))
        return logits


def through(function: Callable[[nn.Module, Tensor], Tensor]) -> SplitModel:
    return SplitModel.from_module(Through(function))


def refusal(model: SplitModel, shape: tuple[int, int, int] = (1, 4, 4), classes: int = 3) -> str:
    before = torch.get_rng_state()
    with pytest.raises(InputError) as caught:
        probe(model, shape, classes)
    assert torch.equal(before, torch.get_rng_state())
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda m, x: functional.dropout(x, 0.5, m.training), "torch.nn.functional.dropout"),
        (lambda m, x: functional.alpha_dropout(x, 0.5, m.training), "alpha_dropout"),
        (lambda m, x: torch.dropout(x, 0.5, m.training), "torch.dropout"),
        (lambda m, x: x + torch.randn(x.shape), "torch.randn"),
        (lambda m, x: x + torch.zeros_like(x).normal_(), "normal_"),
        (lambda m, x: functional.rrelu(x, training=m.training), "rrelu"),
        (lambda m, x: x if m.training else x + torch.rand(1), "torch.rand"),
    ],
)
def test_use_of_the_global_generator_is_named(function: Callable[[nn.Module, Tensor], Tensor], name: str) -> None:
    line = refusal(through(function))
    assert name in line
    assert "manyheads.models.Dropout" in line


def test_alpha_dropout_layer_is_refused() -> None:
    network = nn.Sequential(nn.Flatten(), nn.AlphaDropout(0.5), nn.Linear(16, 3))
    assert "alpha_dropout" in refusal(SplitModel.from_module(network, head="2"))


def test_randomness_outside_torch_is_refused() -> None:
    assert "outside torch" in refusal(through(lambda m, x: x * random.random()))


def test_dropout_module_passes_and_nothing_is_disturbed() -> None:
    model = SplitModel(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), Dropout(0.5)), nn.Linear(16, 3)).eval()
    generator = torch.Generator().manual_seed(7)
    set_generator(model, generator)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    assert probe(model, (1, 4, 4), 3) == 16
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(generator.get_state(), torch.Generator().manual_seed(7).get_state())
    assert not any(module.training for module in model.modules())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("name", ["cnn", "lineage_cnn", "resnet8"])
def test_wrong_image_shape(name: str) -> None:
    line = refusal(build(name, shape=(1, 28, 28), classes=10, options={}), (3, 32, 32), 10)
    assert line.startswith("the model does not take images of shape 3x32x32")


def test_wrong_class_count() -> None:
    line = refusal(build("mlp", shape=(1, 8, 8), classes=10, options={}), (1, 8, 8), 62)
    assert line == "the model's head gives 10 logits, but the data has 62 classes"


def test_head_that_does_not_fit_the_features() -> None:
    model = SplitModel(nn.Flatten(), nn.Linear(15, 3))
    assert refusal(model).startswith("the model does not take features of shape 16")


def test_features_must_be_flat() -> None:
    assert "backbone's features have shape [2, 1, 4, 4]" in refusal(SplitModel(nn.Identity(), nn.Linear(4, 3)))


def test_network_that_goes_on_after_its_head() -> None:
    class Probabilities(Through):
        def forward(self, x: Tensor) -> Tensor:
            return functional.log_softmax(super().forward(x), dim=1)

    assert "after its head 'fc'" in refusal(SplitModel.from_module(Probabilities(lambda m, x: x)))


def test_view_of_channels_last_names_the_remedy() -> None:
    class Views(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.view(x.shape[0], -1)

    model = SplitModel(nn.Sequential(nn.Conv2d(3, 4, 1), Views()), nn.Linear(64, 3))
    assert ".flatten(1)" in refusal(model, (3, 4, 4))


def test_output_that_is_no_tensor() -> None:
    class Pair(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x

    assert "returns tuple" in refusal(SplitModel(Pair(), nn.Linear(4, 3)))


def test_an_answer_that_depends_on_the_rest_of_the_batch_is_refused() -> None:
    net = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, track_running_stats=False))
    model = SplitModel(net, nn.Linear(64, 3))
    with pytest.raises(InputError, match="depends on the other images of a batch"):
        probe(model, (1, 8, 8), 3)
