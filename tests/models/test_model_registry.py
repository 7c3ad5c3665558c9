import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

from manyheads.config import ModelConfig
from manyheads.errors import InputError
from manyheads.models import Dropout, SplitModel, build, catalog

FACTORY = """
from torch import nn
from manyheads.models import SplitModel

def tiny(*, shape, classes, features=4):
    layers = nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], features), nn.Dropout(0.1))
    return SplitModel(layers, nn.Linear(features, classes))

def plain(*, shape, classes):
    return nn.Linear(1, classes)

number = 3
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_networks.py").write_text(FACTORY)
    (tmp_path / "broken_network.py").write_text("raise ValueError('first\\nsecond')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_networks", raising=False)
    return "my_networks"


def refusal(name: str, **options: object) -> str:
    with pytest.raises(InputError) as caught:
        build(name, shape=(1, 28, 28), classes=10, options=options)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_catalog_needs_neither_torch_nor_numpy() -> None:
    code = "import sys; from manyheads.models import catalog; catalog.MODELS; catalog.options('cnn'); "
    code += "assert not {'torch', 'numpy'} & set(sys.modules), 'imported'"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def test_catalog_lists_every_model_with_a_sentence_and_its_defaults() -> None:
    assert catalog.names() == ("cnn", "lineage_cnn", "mlp", "resnet18", "resnet8")
    assert all(text.endswith(".") for text in catalog.MODELS.values())
    assert catalog.options("cnn") == {
        "kernel": 5,
        "padding": 0,
        "widths": (32, 64),
        "features": 512,
        "dropout": 0.25,
    }


@pytest.mark.parametrize("name", catalog.names())
def test_defaults_in_the_catalog_pass_their_own_checks(name: str) -> None:
    defaults = catalog.options(name)
    assert ModelConfig(name=name, **defaults).options == defaults


def test_unknown_names_are_answered_with_the_nearest() -> None:
    assert refusal("cnnn") == "unknown model 'cnnn'; did you mean 'cnn'?"
    assert "the options ['dropuot']: got an unexpected keyword argument" in refusal("cnn", dropuot=0.1)
    with pytest.raises(InputError, match=r"^unknown key 'model.dropuot'; did you mean 'model.dropout'\?$"):
        ModelConfig(name="cnn", dropuot=0.1)
    with pytest.raises(InputError, match="did you mean 'resnet8'"):
        catalog.describe("resnet9")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"kernel": 2.5}, "model.kernel = 2.5: must be a whole number, such as 5"),
        ({"kernel": True}, "model.kernel = True: must be a whole number, such as 5"),
        ({"dropout": "0.1"}, "model.dropout = '0.1': must be a number, such as 0.25"),
        ({"widths": 32}, "model.widths = 32: must be a list such as [32, 64]"),
        ({"widths": [32, 6.5]}, "model.widths[1] = 6.5: must be a whole number, such as 32"),
    ],
)
def test_wrong_types(options: dict[str, object], line: str) -> None:
    with pytest.raises(InputError) as caught:
        ModelConfig(name="cnn", **options)
    assert str(caught.value) == line


def test_whole_numbers_and_lists_are_welcome_where_the_default_differs() -> None:
    options = ModelConfig(name="cnn", dropout=0, widths=[4, 5]).options
    assert (options["dropout"], options["widths"]) == (0.0, (4, 5))


def test_factory_of_the_user(package: str) -> None:
    model = build(f"{package}:tiny", shape=(1, 4, 4), classes=3, options={"features": 6})
    assert isinstance(model, SplitModel)
    assert model.head.get_parameter("weight").shape == (3, 6)
    assert isinstance(model.backbone.get_submodule("2"), Dropout)
    assert not any(isinstance(module, nn.Dropout) for module in model.modules())


@pytest.mark.parametrize(
    ("name", "options", "parts"),
    [
        ("no_such_package.networks:tiny", {}, ["cannot import 'no_such_package.networks'", "PYTHONPATH"]),
        ("broken_network:tiny", {}, ["cannot import 'broken_network'", "ValueError: first"]),
        (":tiny", {}, ["cannot import ''"]),
        ("my_networks:tinny", {}, ["did you mean 'tiny'?"]),
        ("my_networks:number", {}, ["unknown factory in 'my_networks' 'number'"]),
        ("my_networks:tiny", {"feature": 3}, ["cannot be called with", "['feature']", "unexpected keyword"]),
        ("my_networks:plain", {}, ["returned Linear", "SplitModel.from_module"]),
    ],
)
def test_factory_that_does_not_work(package: str, name: str, options: dict[str, object], parts: list[str]) -> None:
    line = refusal(name, **options)
    assert all(part in line for part in parts), line
