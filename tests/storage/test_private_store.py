import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyheads.contract.records import PrivateState
from manyheads.contract.tree import Tree
from manyheads.errors import RunError
from manyheads.storage.private_store import DiskStore, MemoryStore

CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 4), st.floats(width=32)),
        st.tuples(st.just("get"), st.integers(0, 5), st.none()),
        st.tuples(st.just("commit"), st.none(), st.none()),
    ),
    max_size=30,
)


def state(value: float, size: int = 3) -> PrivateState:
    return PrivateState(model=Tree({"head.bias": torch.full((size,), value)}), step=2)


@settings(max_examples=60, deadline=None)
@given(calls=CALLS)
def test_memory_and_disk_behave_the_same(tmp_path_factory, calls):
    inside, outside = MemoryStore(), DiskStore(tmp_path_factory.mktemp("states"))
    outside.index.cut(b"")
    for position, (call, client, value) in enumerate(calls):
        if call == "put":
            for store in (inside, outside):
                store.put(client, state(value))
        elif call == "get":
            assert inside.get(client) == outside.get(client)
        else:
            outside.prepare(position)
            outside.finish(position)
        assert dict(outside) == dict(sorted(inside.items()))
        assert list(outside) == sorted(inside)
        assert len(outside) == len(inside)
    assert [inside.get(client) for client in range(6)] == [outside.get(client) for client in range(6)]


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
