import gc
import tempfile
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyheads.contract.records import PrivateState
from manyheads.contract.tree import Tree
from manyheads.errors import RunError
from manyheads.storage.private_store import DiskStore, MemoryStore, States

CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 4), st.floats(width=32)),
        st.tuples(st.just("get"), st.integers(0, 5), st.none()),
        st.tuples(st.just("note"), st.integers(0, 4), st.integers(0, 9)),
        st.tuples(st.just("commit"), st.none(), st.none()),
    ),
    max_size=30,
)


def state(value: float, size: int = 3) -> PrivateState:
    return PrivateState(model=Tree({"head.bias": torch.full((size,), value)}), step=2)


@settings(max_examples=60, deadline=None)
@given(calls=CALLS, limit=st.sampled_from([0, 12, 30, 10**9]))
def test_memory_and_disk_behave_the_same(tmp_path_factory, calls, limit):
    inside, outside = MemoryStore(limit), DiskStore(tmp_path_factory.mktemp("states"))
    outside.index.cut(b"")
    plain, facts = {}, {}
    for position, (call, client, value) in enumerate(calls):
        if call == "put":
            plain[client] = state(value)
            for store in (inside, outside):
                store.put(client, plain[client])
        elif call == "note":
            facts[client] = {"n": value}
            for store in (inside, outside):
                store.note(client, facts[client])
        elif call == "commit":
            outside.prepare(position)
            outside.finish(position)
        for store in (inside, outside):
            assert store.get(client) == plain.get(client)
            assert list(store.items()) == sorted(plain.items())
            assert len(store) == len(plain)
            assert {client: store.facts(client) for client in store.known()} == facts
            assert store.facts(5) == {}


def test_few_states_are_in_memory_and_others_in_a_folder_that_goes_with_the_store(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = MemoryStore(limit=30)  # a state has 12 bytes
    for client in range(2):
        store.put(client, state(1.0))
    assert list(tmp_path.iterdir()) == []
    for client in range(2, 5):
        store.put(client, state(float(client)))
    store.put(1, state(9.0, size=9))  # does not fit any more
    store.put(3, state(7.0))  # stays where it is
    (folder,) = tmp_path.iterdir()
    assert {int(path.name) for path in folder.iterdir()} == {1, 2, 3, 4}
    assert store.get(1) == state(9.0, size=9)
    assert store.get(3) == state(7.0)
    assert list(store) == list(range(5))
    del store
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_what_is_known_of_a_client_is_a_copy():
    store = MemoryStore()
    store.note(1, {"held": {"model": "a"}})
    store.facts(1)["held"]["model"] = "b"
    assert store.facts(1) == {"held": {"model": "a"}}


def test_states_of_some_clients():
    store = MemoryStore()
    for client in range(3):
        store.put(client, state(float(client)))
    some = States(store, [0, 2])
    assert some == {0: state(0.0), 2: state(2.0)}
    assert 1 not in some


def test_a_commit_costs_what_changed_and_not_what_is_there(tmp_path, toy):
    sizes = []
    for clients in (1, 50):
        with toy.create(tmp_path / str(clients)) as folder:
            store, index = folder.store(), tmp_path / str(clients) / "clients" / "index.jsonl"
            for client in range(100, 100 + clients):
                store.put(client, toy.state(client, 1.0))
                store.note(client, {"seen": 1})
            folder.commit(0, toy.server(0), {})
            before = index.stat().st_size
            store.put(100, toy.state(100, 2.0))
            store.note(100, {"seen": 2})
            folder.commit(1, toy.server(1), {})
            sizes.append(index.stat().st_size - before)
            manifest = (tmp_path / str(clients) / "checkpoints" / "1.json").read_text()
            assert '"100"' not in manifest
    assert sizes[0] == sizes[1]


def test_disk_keeps_no_state_in_memory(tmp_path):
    store = DiskStore(tmp_path)
    alive = []
    for client in range(3):
        put = state(float(client))
        store.put(client, put)
        got = store.get(client)
        assert got == put
        alive += [weakref.ref(put), weakref.ref(got)]
        del put, got
    gc.collect()
    assert [ref() for ref in alive] == [None] * 6


def test_a_file_changed_from_outside_is_refused(tmp_path):
    store = DiskStore(tmp_path)
    store.put(7, state(1.0))
    (file,) = (tmp_path / "7").iterdir()
    file.write_bytes(state(2.0).to_bytes())
    with pytest.raises(RunError, match=r"7/next\.safetensors"):
        store.get(7)


def test_a_disk_that_refuses_is_one_line(tmp_path, steps):
    store = DiskStore(tmp_path)
    steps.fail_at(0, OSError(28, "No space left on device"))
    with pytest.raises(RunError, match="cannot be written: No space left on device"):
        store.put(0, state(1.0))


def test_who_has_a_state_is_known_without_a_look_at_the_files(tmp_path):
    memory, disk = MemoryStore(limit=30), DiskStore(tmp_path)
    disk.index.cut(b"")
    for client in range(4):
        memory.put(client, state(1.0))  # two of them in its folder
        disk.put(client, state(1.0))
    disk.prepare(0)
    disk.finish(0)
    disk.put(4, state(1.0))
    for store, root in ((memory, memory._on_disk().root), (disk, tmp_path)):
        for file in root.rglob("*.safetensors"):
            file.write_bytes(b"")
        assert all(client in store for client in range(4))
        assert 5 not in store
        assert 3 in States(store, [1, 3])
        assert 2 not in States(store, [1, 3])
    assert 4 in disk
