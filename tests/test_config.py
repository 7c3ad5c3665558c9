import re
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyheads import config_options
from manyheads.config import AlgorithmConfig, Config, TrainConfig, profiles
from manyheads.data.catalog import PARTITION_OPTIONS
from manyheads.data.dataset import dataset_from_arrays
from manyheads.errors import InputError
from manyheads.prepare import draw_partition

# What may be set to what, by dotted key: None where TOML has no value and the key is left out.
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "data.dir": st.none() | st.text(alphabet="aé☃😀\"'\\#= \n\t\x00\x7f"),
    "data.auxiliary": st.none() | st.integers(0, 10**9),
    "data.validation": st.floats(0, 1, exclude_max=True),
    "partition.clients": st.integers(1, 10**6),
    "partition.min_train": st.none() | st.integers(1, 10**6),
    "train.rounds": st.integers(1, 10**6),
    "train.participation": st.floats(0, 1, exclude_min=True),
    "train.lr": st.floats(0, 1e300, exclude_min=True),
    "train.clip": st.none() | st.floats(0, 1e300, exclude_min=True),
    "run.seed": st.integers(0, 2**63 - 1),
    "run.workers": st.none() | st.integers(1, 64),
    "run.engine": st.sampled_from(["auto", "serial"]),
    "run.buffers": st.sampled_from(["average", "private", "reset"]),
}


# Methods whose paper's setting is not known in all its numbers, or is for data that there is none of here.
UNKNOWN = {"apfl", "fedbn", "fedrod", "per_fedavg", "pfedsim", "scaffold"}
# Methods whose profiles have other names (kdh-*, lineage), and those that have no paper of their own.
ELSEWHERE = {"fedecouple", "pfedkdh", "fedavg_aux", "fedavg_ft", "fedavg_recal", "fedper_aux", "local_only"}
METHODS = {name for name, *_ in config_options.catalog("methods", {})}
PAPERS = sorted(METHODS & profiles().keys())
# Train images and classes of the data that papers use.
IMAGES = {"mnist": (60_000, 10), "fashion-mnist": (60_000, 10), "cifar10": (50_000, 10), "cifar100": (50_000, 100)}


def choices() -> list[tuple[str, str, dict[str, Any]]]:
    found = []
    for what, key in (("partitions", "partition.kind"), ("models", "model.name"), ("methods", "algorithm.name")):
        for name, _, options in config_options.catalog(what, {}):
            found.append((key, name, dict(options)))
    return found


@settings(deadline=None)  # the machine may be busy
@given(st.fixed_dictionaries({}, optional=VALUES), st.sampled_from(choices()), st.booleans())
def test_toml_loads_back_equal(values: dict[str, Any], choice: tuple[str, str, dict[str, Any]], comments: bool) -> None:
    key, name, _ = choice
    config = Config().with_values({**values, key: name})
    text = config.to_toml(comments)
    assert Config.parse(text) == config
    assert Config.parse(text).to_toml(comments) == text
    for dotted, value in values.items():
        section, _, field = dotted.partition(".")
        assert getattr(getattr(config, section), field) == value


@pytest.mark.parametrize(("key", "name", "options"), choices())
def test_a_choice_is_resolved_with_all_its_options(key: str, name: str, options: dict[str, Any]) -> None:
    section = key.partition(".")[0]
    config = Config().with_values({key: name})
    assert getattr(config, section).options == options
    written = tomllib.loads(config.to_toml())[section]
    for option, default in options.items():
        assert written.get(option) == (list(default) if isinstance(default, tuple) else default)


def test_every_field_is_written() -> None:
    text = Config().to_toml()
    for name, section in Config():
        assert f"[{name}]" in text
        for field in section.model_dump():
            assert f"\n{field} = " in text or f"\n# {field} =" in text


def test_comments_say_what_a_key_means() -> None:
    assert "# local epochs a round\n" in Config().to_toml(comments=True)
    assert "# local epochs a round" not in Config().to_toml()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[train]\nlrr = 1", "unknown key 'train.lrr'; did you mean 'train.lr'?"),
        ("[train]\nseed = 1", "unknown key 'train.seed'; did you mean 'run.seed'?"),
        ("[trian]\nlr = 1", "unknown key 'trian'; did you mean 'train'?"),
        ("rounds = 3", "unknown key 'rounds'; did you mean 'train.rounds'?"),
        ("zzz = 3", "unknown key 'zzz'; the sections are: data, partition, model, train, algorithm, run, reality"),
        ("[algorithm]\nkd_wieght = 0.1", "unknown key 'algorithm.kd_wieght'; did you mean 'algorithm.kd_weight'?"),
        ("[partition]\nalfa = 0.1", "unknown key 'partition.alfa'; did you mean 'partition.alpha'?"),
        ("[partition]\nkind = 'iid'\nalpha = 0.1", "unknown key 'partition.alpha'; [partition] has: "),
        ("[train]\nself = 1", "unknown key 'train.self'; [train] has: rounds, "),
        ('["a\\nb"]', "unknown key 'a\\nb'; the sections are: "),
        ("train = 3", "train = 3: must be a table of keys"),
        ("[train]\nlr = 0", "train.lr = 0: must be a number above 0"),
        ("[train]\nlr = nan", "train.lr = nan: must be a number above 0"),
        ("[train]\nlr = true", "train.lr = True: must be a number above 0"),
        ("[train]\nparticipation = 1.5", "train.participation = 1.5: must be a number above 0 and at most 1"),
        ("[train]\nmomentum = 1", "train.momentum = 1: must be a number at least 0 and below 1"),
        ("[train]\nbatch = 6.4", "train.batch = 6.4: must be a whole number at least 1"),
        ("[train]\nclip = 0", "train.clip = 0: must be a number above 0"),
        ("[data]\nsource = 3", "data.source = 3: must be text"),
        ("[data]\nsource = 'mnits'", "data.source: unknown source 'mnits'; did you mean 'mnist'?"),
        ("[partition]\nkind = 'dirichlt'", "partition.kind: unknown partition 'dirichlt'; did you mean 'dirichlet'?"),
        ("[model]\nname = 'cn'", "model.name: unknown model 'cn'; did you mean 'cnn'?"),
        ("[algorithm]\nname = 'fedpr'", "algorithm.name: unknown method 'fedpr'; did you mean 'fedper'?"),
        ("[algorithm]\nkd_weight = 'x'", "algorithm.kd_weight = 'x': must be a number, such as 0.2"),
        ("[algorithm]\nkd_weight = true", "algorithm.kd_weight = True: must be a number, such as 0.2"),
        ("[algorithm]\nkd_weight = [1]", "algorithm.kd_weight = [1]: must be a number"),
        ("[algorithm]\nkd_weight = inf", "algorithm.kd_weight = inf: must be a number, such as 0.2"),
        ("[algorithm]\nadapt_steps = 1.5", "algorithm.adapt_steps = 1.5: must be a whole number, such as 10"),
        ("[model]\nhidden = 3", "model.hidden = 3: must be a list such as [128]"),
        ("[model]\nhidden = [64, 'x']", "model.hidden[1] = 'x': must be a whole number, such as 128"),
        ("[run]\nbuffers = 'averaged'", "run.buffers: unknown buffers 'averaged'; did you mean 'average'?"),
        ("[run]\nbuffers = 1", "run.buffers = 1: must be one of 'average', 'private', 'reset'"),
        ("[run]\nseed = -1", "run.seed = -1: must be a whole number at least 0"),
    ],
)
def test_an_error_is_one_line_with_field_value_and_remedy(text: str, line: str) -> None:
    with pytest.raises(InputError) as caught:
        Config.parse(text)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_errors_of_sections_made_in_python_are_the_same() -> None:
    with pytest.raises(InputError, match=r"^train\.lr = -1: must be a number above 0$"):
        TrainConfig(lr=-1)
    with pytest.raises(InputError, match=r"^unknown key 'algorithm\.kd'"):
        AlgorithmConfig(name="pfedkdh", kd=1)


def test_whole_numbers_are_welcome_where_a_fraction_is_meant() -> None:
    algorithm = Config.parse("[algorithm]\nname = 'pfedkdh'\nkd_weight = 1").algorithm
    assert algorithm.options["kd_weight"] == 1.0
    assert isinstance(algorithm.options["kd_weight"], float)


def test_a_file_that_is_no_config(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    with pytest.raises(InputError, match=r"cannot read config '.*a\.toml': No such file"):
        Config.load(path)
    path.write_text("[train]\nlr = = 1\n")
    with pytest.raises(InputError, match=r"a\.toml is not valid TOML: .*line 2"):
        Config.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"a\.toml': it is not UTF-8 text"):
        Config.load(path)
    with pytest.raises(InputError, match="Is a directory"):
        Config.load(tmp_path)


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("[train]\nlr = 0.5\nclip = 1.0\n")
    config = Config.load(path, ["train.lr = 0.25", "run.engine=serial", 'data.dir="a b"', "train.clip=none"])
    assert config.train.lr == 0.25
    assert config.run.engine == "serial"
    assert config.data.dir == "a b"
    assert config.train.clip is None


@pytest.mark.parametrize("override", ["train.lr", "=1", ".lr=1", "train.=1"])
def test_an_override_that_says_nothing(override: str) -> None:
    with pytest.raises(InputError, match="write it as key=value"):
        Config.parse("", [override])


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("partition.name=iid", "unknown key 'partition.name'; did you mean 'model.name'?"),
        ("rounds=3", "unknown key 'rounds'; did you mean 'train.rounds'?"),
        ("train.lr.x=3", "unknown key 'train.lr.x'; did you mean 'train.lr'?"),
        ("train.lr=fast", "train.lr = 'fast': must be a number above 0"),
        ("train.lr=1\n[run]", "train.lr = '1\\n[run]': must be a number above 0"),
        ("algorithm.temperature=none", "algorithm.temperature = None: must be a number, such as 2.0"),
    ],
)
def test_a_wrong_override(override: str, line: str) -> None:
    with pytest.raises(InputError) as caught:
        Config.parse("", [override])
    assert str(caught.value) == line


def test_another_method_drops_the_options_of_the_old_one() -> None:
    text = "[algorithm]\nname = 'pfedkdh'\nkd_weight = 0.5\n"
    assert "kd_weight" not in Config.parse(text, ["algorithm.name=fedper"]).algorithm.options
    assert Config.parse(text, ["algorithm.name=pfedkdh"]).algorithm.options["kd_weight"] == 0.5
    unnamed = Config.parse("[algorithm]\nkd_weight = 0.5", ["algorithm.name=pfedkdh"])
    assert unnamed.algorithm.options["kd_weight"] == 0.5
    overrides = ["algorithm.kd_weight=0.1", "algorithm.name=pfedkdh"]
    assert Config.parse("[algorithm]\nname = 'fedavg'", overrides).algorithm.options["kd_weight"] == 0.1


def test_with_method_and_with_seed_leave_the_rest_alone() -> None:
    config = Config.parse("[algorithm]\nname = 'pfedkdh'\nkd_weight = 0.5\n[train]\nlr = 0.5")
    other = config.with_method("fedper").with_seed(3)
    assert (other.algorithm.name, other.run.seed) == ("fedper", 3)
    assert config.with_method("pfedkdh") == config
    assert other.with_method("pfedkdh").with_seed(0).with_values({"algorithm.kd_weight": 0.5}) == config
    with pytest.raises(InputError, match=r"algorithm\.name: unknown method 'x'"):
        config.with_method("x")


def test_a_factory_of_ones_own_takes_any_option() -> None:
    config = Config.parse("[model]\nname = 'my.nets:build'\nwidths = [3, 4]\nbias = true")
    assert config.model.options == {"widths": (3, 4), "bias": True}
    assert Config.parse(config.to_toml()) == config


def test_a_path_or_hub_name_is_a_source() -> None:
    assert Config.parse("[data]\nsource = './photos'").data.source == "./photos"
    assert Config.parse("[data]\nsource = 'hf:owner/name'").data.source == "hf:owner/name"


@pytest.mark.parametrize("name", list(profiles()))
def test_profiles_load_and_say_what_they_are_for(name: str) -> None:
    config = Config.profile(name)
    assert Config.parse(config.to_toml()) == config
    assert len(profiles()[name]) > 20


def test_every_method_of_a_paper_has_a_profile_or_is_known_to_have_none() -> None:
    assert {Config.profile(name).algorithm.name for name in profiles()} <= METHODS
    assert sorted([*PAPERS, *UNKNOWN, *ELSEWHERE]) == sorted(METHODS)


@pytest.mark.parametrize("name", PAPERS)
def test_a_papers_profile_states_data_partition_and_budget(name: str) -> None:
    text = (files("manyheads") / "profiles" / f"{name}.toml").read_text("utf-8")
    first, second = text.splitlines()[:2]
    assert re.match(r"# \S+ (own )?setting\b.*: ", first)
    assert second.startswith("# ")  # what a config cannot say
    raw = tomllib.loads(text)
    assert list(raw) == ["data", "partition", "model", "train", "algorithm", "run"]
    assert raw["algorithm"]["name"] == name
    assert raw["data"].keys() >= {"source", "auxiliary"}
    assert raw["partition"].keys() >= {"kind", "clients"} | PARTITION_OPTIONS[raw["partition"]["kind"]].keys()
    said = raw["train"].keys() | raw["algorithm"].keys()
    assert said >= {"rounds", "participation", "batch", "lr"}
    assert said & {"epochs", "local_rounds"}


@pytest.mark.parametrize("name", PAPERS)
def test_the_images_of_a_papers_profile_can_be_dealt_out(name: str) -> None:
    config = Config.profile(name)
    train, classes = IMAGES[config.data.source]
    labels = [np.arange(n) % classes for n in (min(train, config.data.limit or train), 10_000)]
    data = dataset_from_arrays(*(a for y in labels for a in (np.zeros((len(y), 1, 1, 1), np.uint8), y)))
    dealt = draw_partition(config, data)
    assert dealt.clients == config.partition.clients


def test_an_unknown_profile() -> None:
    with pytest.raises(InputError, match=r"^--profile: unknown profile 'mnist5'; did you mean 'mnist5k'\?$"):
        Config.profile("mnist5")


def test_the_papers_profiles_follow_its_table() -> None:
    table = {"kdh-mnist": (50, 2), "kdh-fashion-mnist": (50, 2), "kdh-cifar10": (50, 3), "kdh-cifar100": (70, 5)}
    for name, (rounds, epochs) in table.items():
        config = Config.profile(name)
        train = config.train
        assert (train.rounds, train.epochs, train.batch, train.lr, train.participation) == (
            rounds,
            epochs,
            64,
            0.015,
            0.5,
        )
        assert (config.partition.clients, config.data.auxiliary) == (20, 5000)
        assert config.algorithm.options["recalibration_epochs"] == 3
        assert config.algorithm.options["warmup_epochs"] == 0
