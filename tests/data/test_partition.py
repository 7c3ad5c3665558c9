import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyheads.data import redraw
from manyheads.data.catalog import PARTITION_OPTIONS, PARTITIONS
from manyheads.data.dataset import Dataset, Split
from manyheads.data.partition import Partition, from_assignment, make_partition
from manyheads.data.sampling import Ints
from manyheads.errors import InputError
from manyheads.storage import atomic

BALANCED = np.repeat(np.arange(10), 6000)
BALANCED_TEST = np.repeat(np.arange(10), 1000)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of draws ends a search here, not the clock: a busy machine sees the same messages."""
    monkeypatch.setattr(redraw, "SECONDS", 60.0)


def outcome(*args: Any, **arguments: Any) -> Partition | str:
    """A partition, or the message of its refusal; few draws, so that refusals are quick."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redraw, "MAX_DRAWS", 20)
        try:
            return make_partition(*args, **arguments)
        except InputError as error:
            return str(error)


def letters(images: int) -> Ints:
    """Labels of 62 classes as unequal as EMNIST's: ten frequent digits, letters from common to rare."""
    weights = np.concatenate([np.full(10, 38.0), np.geomspace(25, 2, 52)])
    return np.random.default_rng(0).choice(62, size=images, p=weights / weights.sum()).astype(np.int64)


def a_dataset(labels: Ints, test_labels: Ints, classes: int) -> Dataset:
    splits = [Split(np.zeros((len(y), 1, 1, 1), np.uint8), y) for y in (labels, test_labels)]
    return Dataset("made", splits[0], splits[1], tuple(map(str, range(classes))))


def assert_valid(p: Partition, labels: Ints, test_labels: Ints, classes: int, least: int, whole: bool = True) -> None:
    p.check(a_dataset(labels, test_labels, classes))
    if whole:
        everything = np.concatenate([*p.train, *p.validation, p.auxiliary])
        assert np.array_equal(np.sort(everything), np.arange(len(labels)))
    assert min(len(mine) for mine in p.train) >= least
    held = np.stack([np.bincount(labels[mine], minlength=classes) for mine in p.train])
    got = np.stack([np.bincount(test_labels[mine], minlength=classes) for mine in p.test])
    available = np.bincount(test_labels, minlength=classes)
    for c in range(classes):
        assert_follows(held[:, c], got[:, c], int(available[c]))


def assert_follows(held: Ints, got: Ints, available: int) -> None:
    holders = held > 0
    if not holders.any():
        assert got.sum() == 0
        return
    quota = held * (available / held.sum())
    assert got.sum() == available
    assert not got[~holders].any()
    enough = available >= holders.sum()
    if enough:
        assert (got[holders] >= 1).all()
    possible = not enough or np.maximum(np.ceil(quota - 1 - 1e-9), 1)[holders].sum() <= available
    if possible:  # otherwise one image for each holder leaves too few for proportion
        assert np.abs(got - quota).max() <= 1 + 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_published_settings_succeed(seed: int) -> None:
    p = make_partition(
        "dirichlet", BALANCED, BALANCED_TEST, classes=10, clients=20, seed=seed, auxiliary=5000, options={"alpha": 0.05}
    )
    assert_valid(p, BALANCED, BALANCED_TEST, 10, 64)
    assert len(p.auxiliary) == 5000


@pytest.mark.parametrize("seed", range(3))
def test_a_hundred_clients_with_62_unequal_classes_succeed(seed: int) -> None:
    labels, test_labels = letters(60_000), letters(10_000)
    p = make_partition("dirichlet", labels, test_labels, classes=62, clients=100, seed=seed, options={"alpha": 0.1})
    assert_valid(p, labels, test_labels, 62, 64)


@settings(max_examples=60, deadline=None)
@given(
    clients=st.integers(1, 200),
    classes=st.integers(2, 100),
    alpha=st.floats(0.01, 100),
    images=st.integers(1, 4000),
    validation=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 2**32),
)
def test_dirichlet_is_valid_or_says_why_not(
    clients: int, classes: int, alpha: float, images: int, validation: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    labels, test_labels = rng.integers(0, classes, images), rng.integers(0, classes, images // 3)
    p = outcome(
        "dirichlet",
        labels,
        test_labels,
        classes=classes,
        clients=clients,
        seed=seed,
        validation=validation,
        options={"alpha": alpha},
    )
    if isinstance(p, str):
        assert "would work" in p or "; choose" in p
        assert "\n" not in p
    else:
        assert_valid(p, labels, test_labels, classes, 10)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(sorted(set(PARTITIONS) - {"dirichlet", "quantity"})),
    clients=st.integers(1, 200),
    classes=st.integers(2, 100),
    n=st.integers(1, 5),
    s=st.floats(0, 100),
    seed=st.integers(0, 2**32),
)
def test_every_other_kind_is_valid_or_says_why_not(
    kind: str, clients: int, classes: int, n: int, s: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    labels, test_labels = rng.integers(0, classes, 3000), rng.integers(0, classes, 500)
    options = {name: value for name, value in {"n": n, "s": s}.items() if name in PARTITION_OPTIONS[kind]}
    columns = {"writer_id": rng.integers(0, 250, 3000)}
    p = outcome(
        kind, labels, test_labels, classes=classes, clients=clients, seed=seed, options=options, columns=columns
    )
    if isinstance(p, str):
        assert p.startswith("partition.")
        assert "\n" not in p
    else:
        assert_valid(p, labels, test_labels, classes, 10)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"clients": 200, "options": {"alpha": 0.01}}, ["min_train = 64", "at most 0", "alpha ="]),
        ({"options": {"alpha": 0}}, ["partition.alpha = 0", "0.1"]),
        ({"options": {"alpha": math.nan}}, ["partition.alpha = nan"]),
        ({"options": {"alhpa": 1}}, ["did you mean 'alpha'"]),
        ({"kind": "dirichlett"}, ["did you mean 'dirichlet'"]),
        ({"auxiliary": 60_001}, ["data.auxiliary = 60001", "60000"]),
        ({"auxiliary": -1}, ["data.auxiliary = -1"]),
        ({"auxiliary": 60_000}, ["clients = 20", "0 train images"]),
        ({"validation": 1.0}, ["data.validation = 1.0", "[0, 1)"]),
        ({"validation": -0.1}, ["data.validation = -0.1"]),
        ({"clients": 0}, ["partition.clients = 0"]),
        ({"min_train": 0}, ["partition.min_train = 0"]),
        ({"classes": 9}, ["label 9"]),
        ({"kind": "classes", "options": {"n": 11}}, ["n = 11", "at most 10"]),
        ({"kind": "classes", "clients": 3, "options": {"n": 2}}, ["n = 2", "choose n = 4"]),
        ({"kind": "similarity", "options": {"s": 101}}, ["s = 101"]),
        (
            {"kind": "similarity", "options": {"samples": 5000}},
            ["samples = 5000", "choose samples = "],
        ),
        ({"kind": "natural"}, ["writer_id", "no columns"]),
        ({"kind": "natural", "columns": {"writer": np.zeros(60_000)}}, ["did you mean 'writer'"]),
        ({"kind": "natural", "columns": {"writer_id": np.zeros(60_000)}}, ["has 1 values"]),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(change: dict[str, Any], parts: list[str]) -> None:
    arguments: dict[str, Any] = {"kind": "dirichlet", "classes": 10, "clients": 20, "seed": 0, **change}
    with pytest.raises(InputError) as caught:
        make_partition(arguments.pop("kind"), BALANCED, BALANCED_TEST, **arguments)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_more_clients_than_images_names_what_fits() -> None:
    labels = np.repeat(np.arange(10), 20)
    with pytest.raises(InputError, match=r"clients = 300: 180 train images .*; choose at most 18 clients$"):
        make_partition("iid", labels, labels, classes=10, clients=300, seed=0)
    p = make_partition("iid", labels, labels, classes=10, clients=18, seed=0)
    assert [len(mine) for mine in p.train] == [10] * 18


@pytest.mark.parametrize("clients", [30, 200])
def test_the_advice_after_too_many_draws_works(clients: int) -> None:
    arguments: dict[str, Any] = {"classes": 10, "clients": clients, "seed": 3}
    with pytest.raises(InputError) as caught:
        make_partition("dirichlet", BALANCED, BALANCED_TEST, options={"alpha": 0.02}, **arguments)
    advice = dict(re.findall(r"(min_train|alpha) = ([\d.]+)", str(caught.value).split("; ")[1]))
    assert "alpha" in advice
    make_partition("dirichlet", BALANCED, BALANCED_TEST, options={"alpha": float(advice["alpha"])}, **arguments)
    if "min_train" in advice:
        least = int(advice["min_train"])
        make_partition("dirichlet", BALANCED, BALANCED_TEST, options={"alpha": 0.02}, min_train=least, **arguments)


def test_the_accepted_draw_depends_on_the_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: dict[str, Any] = {"classes": 10, "clients": 20, "options": {"alpha": 0.05}}
    first = make_partition("dirichlet", BALANCED, BALANCED_TEST, seed=7, **arguments)
    assert first.redraws > 0
    np.random.seed(0)  # the global generator plays no part
    monkeypatch.setattr(redraw, "SECONDS", 60.0)
    again = make_partition("dirichlet", BALANCED, BALANCED_TEST, seed=7, **arguments)
    assert (again.hash, again.redraws) == (first.hash, first.redraws)
    assert make_partition("dirichlet", BALANCED, BALANCED_TEST, seed=8, **arguments).hash != first.hash


def test_defaults_of_auxiliary_and_least_size_follow_the_data() -> None:
    small = np.repeat(np.arange(10), 100)
    p = make_partition("iid", small, small, classes=10, clients=90, seed=0)
    assert len(p.auxiliary) == 100
    assert np.array_equal(np.bincount(small[p.auxiliary]), np.full(10, 10))
    large = make_partition("iid", BALANCED, BALANCED_TEST, classes=10, clients=2, seed=0)
    assert np.array_equal(np.bincount(BALANCED[large.auxiliary]), np.full(10, 500))
    with pytest.raises(InputError, match="min_train = 64"):
        make_partition("iid", BALANCED, BALANCED_TEST, classes=10, clients=900, seed=0)


def test_auxiliary_set_is_the_same_for_every_kind_and_none_when_not_wanted() -> None:
    sets = [
        make_partition(kind, BALANCED, BALANCED_TEST, classes=10, clients=5, seed=1, auxiliary=300).auxiliary
        for kind in ("iid", "shards", "dirichlet")
    ]
    assert np.array_equal(sets[0], sets[1])
    assert np.array_equal(sets[0], sets[2])
    assert not len(make_partition("iid", BALANCED, BALANCED_TEST, classes=10, clients=5, seed=1, auxiliary=0).auxiliary)


def test_validation_is_a_stratified_share_of_each_clients_own_images() -> None:
    arguments: dict[str, Any] = {"classes": 10, "clients": 20, "seed": 0, "options": {"alpha": 0.5}}
    without = make_partition("dirichlet", BALANCED, BALANCED_TEST, **arguments)
    p = make_partition("dirichlet", BALANCED, BALANCED_TEST, validation=0.25, **arguments)
    for whole, train, kept in zip(without.train, p.train, p.validation, strict=True):
        assert np.array_equal(np.union1d(train, kept), whole)
        assert len(kept) == len(whole) // 4
        share = np.bincount(BALANCED[whole], minlength=10) * len(kept) / len(whole)
        assert np.abs(np.bincount(BALANCED[kept], minlength=10) - share).max() <= 1


def test_classes_gives_every_client_n_classes_and_cuts_each_evenly() -> None:
    p = make_partition("classes", BALANCED, BALANCED_TEST, classes=10, clients=20, seed=0, options={"n": 3})
    held = np.stack([np.bincount(BALANCED[mine], minlength=10) for mine in p.train])
    assert ((held > 0).sum(axis=1) == 3).all()
    assert ((held > 0).sum(axis=0) == 6).all()
    assert len({tuple(row > 0) for row in held}) > 10


def test_shards_are_equal_and_hold_few_classes() -> None:
    p = make_partition("shards", BALANCED, BALANCED_TEST, classes=10, clients=50, seed=0, options={"n": 2})
    sizes = [len(mine) for mine in p.train]
    assert max(sizes) - min(sizes) <= 2
    assert max(len(np.unique(BALANCED[mine])) for mine in p.train) <= 4


def test_similarity_with_samples_follows_its_lineage() -> None:
    options = {"s": 20, "samples": 600}
    p = make_partition("similarity", BALANCED, BALANCED_TEST, classes=10, clients=20, seed=0, options=options)
    held = np.stack([np.bincount(BALANCED[mine], minlength=10) for mine in p.train])
    assert (held.sum(axis=1) == 600).all()
    assert np.array_equal(held[0], [172, 172, 172, 12, 12, 12, 12, 12, 12, 12])
    assert np.array_equal(held[4], [172, 12, 12, 12, 12, 12, 12, 12, 172, 172])
    assert np.array_equal(held[5], held[0])
    assert "12000 of 55000 train images used" in p.description
    assert_valid(p, BALANCED, BALANCED_TEST, 10, 600, whole=False)


def test_similarity_names_a_sample_size_that_fits() -> None:
    arguments: dict[str, Any] = {"classes": 10, "clients": 20, "seed": 0}
    with pytest.raises(InputError) as caught:
        make_partition("similarity", BALANCED, BALANCED_TEST, options={"samples": 5000}, **arguments)
    fits = int(re.findall(r"choose samples = (\d+)", str(caught.value))[0])
    p = make_partition("similarity", BALANCED, BALANCED_TEST, options={"samples": fits}, **arguments)
    assert {len(mine) for mine in p.train} == {fits}


@pytest.mark.parametrize(("s", "widest"), [(0, 3), (100, 10)])
def test_similarity_without_samples_uses_everything(s: int, widest: int) -> None:
    p = make_partition("similarity", BALANCED, BALANCED_TEST, classes=10, clients=20, seed=0, options={"s": s})
    assert {len(np.unique(BALANCED[mine])) for mine in p.train} == {widest}
    assert_valid(p, BALANCED, BALANCED_TEST, 10, 64)


def test_quantity_differs_in_size_but_not_in_classes() -> None:
    p = make_partition("quantity", BALANCED, BALANCED_TEST, classes=10, clients=10, seed=0, options={"alpha": 0.5})
    sizes = np.array([len(mine) for mine in p.train])
    assert sizes.max() > 4 * sizes.min()
    shares = np.bincount(BALANCED[p.train[int(sizes.argmax())]], minlength=10) / sizes.max()
    assert np.abs(shares - 0.1).max() < 0.02


def test_natural_keeps_every_writer_whole() -> None:
    writer = np.random.default_rng(0).integers(0, 40, len(BALANCED)).astype(str)
    columns = {"writer_id": writer}
    p = make_partition("natural", BALANCED, BALANCED_TEST, classes=10, clients=15, seed=0, columns=columns)
    writers = [set(writer[mine]) for mine in p.train]
    assert sum(map(len, writers)) == 40
    assert set.union(*writers) == set(writer)


def test_saved_and_loaded_are_the_same(tmp_path: Path) -> None:
    p = make_partition("dirichlet", BALANCED, BALANCED_TEST, classes=10, clients=20, seed=0, options={"alpha": 0.05})
    p.save(tmp_path / "p.safetensors")
    q = Partition.load(tmp_path / "p.safetensors")
    assert (q.hash, q.description, q.redraws, q.clients) == (p.hash, p.description, p.redraws, 20)
    for name in ("train", "validation", "test"):
        for mine, other in zip(getattr(p, name), getattr(q, name), strict=True):
            assert np.array_equal(mine, other)
    q.save(tmp_path / "q.safetensors")
    assert (tmp_path / "p.safetensors").read_bytes() == (tmp_path / "q.safetensors").read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["p.safetensors", "q.safetensors"]


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    p = from_assignment([np.array([0]), np.array([1])], np.array([0, 1]), np.array([0, 1]), classes=2, seed=0)
    path = tmp_path / "p.safetensors"
    p.save(path)
    before = path.read_bytes()

    def full(name: str) -> None:
        if name.startswith("after write"):
            raise OSError("no space left on device")

    monkeypatch.setattr(atomic, "step", full)
    other = from_assignment([np.array([0, 1])], np.array([0, 1]), np.array([0, 1]), classes=2, seed=0)
    with pytest.raises(OSError, match="no space"):
        other.save(path)
    assert path.read_bytes() == before
    monkeypatch.undo()
    other.save(path)
    assert Partition.load(path).hash == other.hash
    assert [file.name for file in tmp_path.iterdir()] == ["p.safetensors"]


def test_any_damage_to_a_stored_partition_is_noticed(tmp_path: Path) -> None:
    p = from_assignment([np.array([0, 2]), np.array([1])], np.array([0, 1, 1]), np.array([0, 1]), classes=2, seed=0)
    path = tmp_path / "p.safetensors"
    p.save(path)
    content = path.read_bytes()
    for position in range(0, len(content), 3):
        path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        with pytest.raises(InputError, match="damaged"):
            Partition.load(path)
    for length in (0, 7, 100, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(InputError, match="damaged"):
            Partition.load(path)
    with pytest.raises(InputError, match="no such partition file"):
        Partition.load(tmp_path / "other.safetensors")


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ([[0, 1], [1, 2]], "image 1 of the train split occurs more than once"),
        ([[0, 1], [2, 3]], "position 3 is not in the train split, which has 3 images"),
        ([[0, 1], []], "client 1 of 2 has no train images"),
    ],
)
def test_an_assignment_that_breaks_a_promise_is_refused(assignment: list[list[int]], message: str) -> None:
    labels = np.array([0, 1, 1])
    with pytest.raises(InputError, match=message):
        from_assignment([np.array(mine, np.int64) for mine in assignment], labels, labels, classes=2, seed=0)


def test_check_refuses_a_partition_of_another_data_set() -> None:
    labels = np.arange(100) % 2
    p = make_partition("iid", labels, labels, classes=2, clients=2, seed=0)
    p.check(a_dataset(labels, labels, 2))
    with pytest.raises(InputError, match="not in the train split, which has 50 images"):
        p.check(a_dataset(labels[:50], labels, 2))
    with pytest.raises(InputError, match="not in the test split"):
        p.check(a_dataset(labels, labels[:50], 2))
    empty = Partition((p.train[0], np.zeros(0, np.int64)), p.validation, p.test, p.auxiliary)
    with pytest.raises(InputError, match="client 1 has no train images"):
        empty.check(a_dataset(labels, labels, 2))


def test_small_holders_get_a_test_image_taken_from_the_largest() -> None:
    labels = np.zeros(1000, np.int64)
    owners = [np.array([0]), np.array([1]), np.arange(2, 1000)]
    p = from_assignment(owners, labels, np.zeros(100, np.int64), classes=2, seed=0)
    assert [len(mine) for mine in p.test] == [1, 1, 98]
    few = from_assignment(owners, labels, np.zeros(2, np.int64), classes=2, seed=0)
    assert [len(mine) for mine in few.test] == [0, 0, 2]


def test_the_catalog_is_read_without_numpy() -> None:
    code = "import sys; from manyheads.data.catalog import SOURCES, PARTITIONS; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    assert set(PARTITIONS) == set(PARTITION_OPTIONS)
