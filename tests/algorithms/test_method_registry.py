import subprocess
import sys

import pytest

from manyheads.algorithms import registry
from manyheads.contract import Algorithm
from manyheads.errors import InputError


def test_the_registry_is_the_folder():
    assert {"fedavg", "fedper", "pfedkdh"} <= set(registry.names())
    assert registry.names() == sorted(registry.names())
    assert "registry" not in registry.names()


@pytest.mark.parametrize("name", registry.names())
def test_what_is_read_from_the_file_is_what_the_class_says(name):
    cls = registry.load(name)
    assert issubclass(cls, Algorithm)
    made = cls()
    assert registry.fields(name) == vars(made)
    assert cls(**registry.fields(name)) == made
    assert registry.describe(name).endswith(".")


def test_hyper_parameters_are_inherited(tmp_path, monkeypatch):
    files = {
        "base_one": "class BaseOne(Algorithm):\n    a: int = 1\n    b: float = 0.5\n",
        "child": "class Child(BaseOne):\n    b: float = 2.0\n    c: ClassVar[int] = 3\n",
        "grand": "class Grand(Child):\n    d: str = 'x'\n",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text("@dataclass(frozen=True)\n" + text)
    monkeypatch.setattr(registry, "_FOLDER", tmp_path)
    registry._class.cache_clear()
    try:
        assert registry.fields("child") == {"a": 1, "b": 2.0}
        assert registry.fields("grand") == {"a": 1, "b": 2.0, "d": "x"}
        assert registry.fields("base_one") == {"a": 1, "b": 0.5}
    finally:
        registry._class.cache_clear()


def test_an_unknown_method_is_one_line():
    with pytest.raises(InputError, match=r"^algorithm\.name: unknown method 'fedpr'; did you mean 'fedper'\?$"):
        registry.load("fedpr")


def test_nothing_heavy_is_imported():
    code = (
        "import sys; from manyheads.algorithms import registry as r; "
        "[(r.describe(n), r.fields(n)) for n in r.names()]; assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kd_weight", 1.5),
        ("kd_weight", -0.1),
        ("temperature", 0.0),
        ("prox_weight", -1.0),
        ("warmup_epochs", -1),
        ("recalibration_epochs", -1),
        ("adapt_steps", -1),
    ],
)
def test_values_of_pfedkdh_out_of_range(field, value):
    with pytest.raises(InputError, match=rf"^algorithm\.{field} = {value}: "):
        registry.load("pfedkdh")(**{field: value})
