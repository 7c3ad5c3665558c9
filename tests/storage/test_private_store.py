import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyheads.contract.records import PrivateState
from manyheads.contract.tree import Tree
from manyheads.errors import RunError
from manyheads.storage.client_files import ClientFiles
from manyheads.storage.private_store import DiskStore, MemoryStore

CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 4), st.floats(width=32)),
        st.tuples(st.just("get"), st.integers(0, 5), st.none()),
        st.tuples(st.just("drain"), st.none(), st.none()),
    ),
    max_size=30,
)


def state(value: float, size: int = 3) -> PrivateState:
    return PrivateState(model=Tree({"head.bias": torch.full((size,), value)}), step=2)


@settings(max_examples=60, deadline=None)
@given(calls=CALLS, memory=st.sampled_from([0, 300, 1 << 20]))
def test_memory_and_disk_behave_the_same(tmp_path_factory, calls, memory):
    stores = MemoryStore(), DiskStore(ClientFiles(tmp_path_factory.mktemp("states")), memory)
    for call, client, value in calls:
        if call == "put":
            for store in stores:
                store.put(client, state(value))
        elif call == "get":
            assert stores[0].get(client) == stores[1].get(client)
        else:
            drained = [store.drain_changed() for store in stores]
            assert list(drained[0]) == list(drained[1]) == sorted(drained[0])
            assert dict(drained[0]) == dict(drained[1])
        assert stores[0].clients() == stores[1].clients()
    assert [stores[0].get(client) for client in range(6)] == [stores[1].get(client) for client in range(6)]


def test_drained_means_since_the_last_time(tmp_path):
    for store in (MemoryStore(), DiskStore(ClientFiles(tmp_path))):
        assert dict(store.drain_changed()) == {}
        store.put(2, state(1.0))
        store.put(1, state(2.0))
        store.put(2, state(3.0))
        assert dict(store.drain_changed()) == {1: state(2.0), 2: state(3.0)}
        assert dict(store.drain_changed()) == {}
        assert store.get(2) == state(3.0)
        assert store.get(3) is None


def test_disk_keeps_no_more_than_it_may_in_memory(tmp_path):
    size = len(state(0.0, 1000).to_bytes())
    store = DiskStore(ClientFiles(tmp_path), memory=2 * size)
    alive = []
    for client in range(10):
        put = state(float(client), 1000)
        alive.append(weakref.ref(put))
        store.put(client, put)
        del put
    for client in range(10):
        got = store.get(client)
        assert got == state(float(client), 1000)
        alive.append(weakref.ref(got))
        del got
    gc.collect()
    assert sum(ref() is not None for ref in alive) == 2


def test_a_file_changed_from_outside_is_refused(tmp_path):
    store = DiskStore(ClientFiles(tmp_path), memory=0)
    store.put(7, state(1.0))
    (file,) = (tmp_path / "7").iterdir()
    file.write_bytes(state(2.0).to_bytes())
    with pytest.raises(RunError, match=r"7/next\.safetensors"):
        store.get(7)


def test_a_disk_that_refuses_is_one_line(tmp_path, steps):
    store = DiskStore(ClientFiles(tmp_path))
    steps.fail_at(0, OSError(28, "No space left on device"))
    with pytest.raises(RunError, match="cannot be written: No space left on device"):
        store.put(0, state(1.0))
