"""The pages of ``docs`` are what the code says, and what they tell a person to do works."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import clone
import pytest
import toys

from manyheads.algorithms import registry
from manyheads.algorithms.fedprox import FedProx

PAGES = clone.ROOT / "docs/methods"
STALE = "run: python docs/generate.py"


@pytest.fixture(scope="module")
def generate() -> Any:
    """``docs/generate.py``."""
    spec = importlib.util.spec_from_file_location("generate", clone.ROOT / "docs/generate.py")
    assert spec
    assert spec.loader
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_method_has_a_page() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} - {"README"} == set(registry.names())


@pytest.mark.parametrize("name", registry.names())
def test_a_page_says_what_the_source_says(generate: Any, name: str) -> None:
    text = (PAGES / f"{name}.md").read_text("utf-8")
    assert generate.page(name, text) == text, STALE
    options = re.findall(r"^\| `(\w+)` \| `(.*?)` \| .+ \|$", text.partition("<!-- measured -->")[0], re.M)
    assert dict(options) == {key: str(value) for key, value in registry.fields(name).items()}


@pytest.mark.parametrize("name", ["fedavg", "fedproto", "pfedkdh"])
def test_a_page_says_what_a_run_measures(generate: Any, name: str) -> None:
    text = (PAGES / f"{name}.md").read_text("utf-8")
    assert generate.page(name, text, generate.measured(name)) == text, STALE


@pytest.mark.slow
@pytest.mark.parametrize("name", registry.names())
def test_every_page_says_what_a_run_measures(generate: Any, name: str) -> None:
    test_a_page_says_what_a_run_measures(generate, name)


def test_bytes_are_those_of_the_model() -> None:
    """The papers' CNN has 832 + 51,264 + 524,800 + 5,130 numbers of four bytes; a message's header is small."""
    backbone, head = 4 * (832 + 51_264 + 524_800), 4 * 5_130
    sizes = {"fedavg": (backbone + head, backbone + head), "pfedkdh": (backbone, backbone + head)}
    for name, (up, down) in {**sizes, "fedper": (backbone, backbone), "lg_fedavg": (head, head)}.items():
        row = re.search(r"\| every round \| ([\d,]+) \| ([\d,]+) \|", (PAGES / f"{name}.md").read_text("utf-8"))
        assert row, name
        for found, expected in zip(row.groups(), (up, down), strict=True):
            assert 0 < int(found.replace(",", "")) - expected < 1000, name


@pytest.mark.parametrize("name", registry.names())
def test_what_is_written_by_hand_is_there(name: str) -> None:
    written = (PAGES / f"{name}.md").read_text("utf-8").partition("<!-- /generated -->")[2]
    cost, use, pitfalls = re.split(r"\n## .*\n", written)[1:]
    assert "pass" in cost
    assert use.strip()
    assert 2 <= len(re.findall(r"^- ", pitfalls, re.M)) <= 5


def test_the_index_is_that_of_the_pages(generate: Any) -> None:
    text = (PAGES / "README.md").read_text("utf-8")
    assert generate.index(text, PAGES) == text, STALE
    assert re.findall(r"^\| \[`(\w+)`\]\(\1\.md\) ", text, re.M) == registry.names()


def test_what_stands_around_the_marks_is_kept(generate: Any) -> None:
    page = f"# Mine\n\n{generate.BEGIN}\nold\n{generate.END}\n\n## Cost\n\nmine\n"
    new = generate.page("fedprox", page, "measured")
    assert new.startswith("# Mine\n\n<!-- generated -->\n\n*FedAvg with clients held near")
    assert new.endswith("<!-- measured -->\n\nmeasured\n\n<!-- /generated -->\n\n## Cost\n\nmine\n")
    assert generate.page("fedprox", new) == new


@pytest.mark.parametrize("page", [*PAGES.glob("*.md"), clone.ROOT / "docs/new-method.md"], ids=lambda path: path.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target


def test_the_method_in_the_readme_is_fedprox() -> None:
    text = (clone.ROOT / "README.md").read_text("utf-8")
    [block] = [b for b in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S) if "class FedHeld" in b]
    names: dict[str, Any] = {"__name__": "fedheld"}
    exec(block, names)
    assert toys.run(names["FedHeld"](mu=0.3)).server == toys.run(FedProx(prox_weight=0.3)).server


def test_the_steps_to_a_new_method_work(tmp_path: Path) -> None:
    text = (clone.ROOT / "docs/new-method.md").read_text("utf-8")
    steps: list[str | tuple[str, str]] = []
    for path, block in re.findall(r'^```(?:sh|python title="([^"]+)")\n(.*?)^```$', text, re.M | re.S):
        steps += [(path, block)] if path else block.splitlines()
    assert len(steps) == 6
    folder = clone.make(tmp_path / "clone")
    done = clone.run(folder, steps)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert re.search(r"^9 passed", done.stdout, re.M), done.stdout
    assert "fedavgm" in done.stdout.partition("9 passed")[2]
    assert "| every round | 2,328,912 | 2,328,896 |" in (folder / "docs/methods/fedavgm.md").read_text("utf-8")
    assert "[`fedavgm`](fedavgm.md)" in (folder / "docs/methods/README.md").read_text("utf-8")
