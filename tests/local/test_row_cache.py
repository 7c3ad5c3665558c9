import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
import toys

from manyheads.algorithms.fedavg import FedAvg
from manyheads.algorithms.pfedkdh import PFedKDH
from manyheads.contract import Part
from manyheads.engines import base
from manyheads.local import rows as rows_module
from manyheads.local.rows import CachedPart, RowCache, chunks, pad


def test_padding_repeats_the_first_row():
    assert pad(torch.arange(64)).tolist() == list(range(64))
    assert pad(torch.tensor([5, 6])).tolist() == [5, 6] + [5] * 62
    assert len(pad(torch.arange(65))) == 128


def test_chunks():
    assert [len(piece) for piece in chunks(torch.arange(1030))] == [256, 256, 256, 256, 6]
    assert list(chunks(torch.arange(0))) == []


def test_each_row_is_computed_once():
    asked = []

    def fn(x):
        asked.append(len(x))
        return x.flatten(1) * 2

    cache = RowCache(fn, toys.data(range(200)))
    assert cache(torch.tensor([3, 1])).flatten().tolist() == [6.0, 2.0]
    assert cache(torch.tensor([1, 3, 199])).flatten().tolist() == [2.0, 6.0, 398.0]
    assert cache(torch.tensor([199, 1])).flatten().tolist() == [398.0, 2.0]
    assert asked == [64, 64]
    ahead = RowCache(fn, toys.data(range(200)), torch.arange(100))
    assert ahead(torch.tensor([99])).item() == 198.0
    assert ahead(torch.tensor([0])).item() == 0.0
    assert asked == [64, 64, 128]


def test_grouping_rows_differently_changes_no_bit(monkeypatch):
    stage = toys.setting()
    ctx = stage.client(0, 0)
    bound = ctx.model(ctx.initial)
    x = torch.randn(600, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    data = toys.data(x)
    whole = ctx.features(bound, data)
    assert whole.shape == (600, 8)
    rows = torch.randperm(600, generator=torch.Generator().manual_seed(1))
    few = RowCache(bound.backbone, data)
    found = torch.empty_like(whole)
    for some in (*torch.split(rows[:50], 1), *torch.split(rows[50:], 11)):
        found[some] = few(some)
    assert torch.equal(found, whole)
    for chunk in (64, 256):
        monkeypatch.setattr(rows_module, "CHUNK", chunk)
        assert torch.equal(ctx.features(bound, data), whole)


def test_twins_share_the_work_and_change_no_bit():
    stage = toys.setting()
    bound = [stage.network.bind(stage.network.initial).calls["backbone"] for _ in range(3)]
    data = toys.data(torch.randn(700, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
    together, threads = threading.Barrier(3, timeout=20), set()

    def meeting(part):
        def fn(x):
            threads.add(threading.get_ident())
            together.wait()  # passes only where three passes are under way at a time
            return part(x)

        return fn

    rows = torch.arange(700)
    shared = RowCache(meeting(bound[0]), data, rows, [meeting(part) for part in bound[1:]])(rows)
    assert torch.equal(shared, RowCache(bound[0], data)(rows))
    assert len(threads - {threading.get_ident()}) == 3


@pytest.fixture
def pools(monkeypatch):
    """The sizes of all pools that passes of frozen parts have made."""
    sizes = []

    def made(size, **how):
        sizes.append(size)
        return ThreadPoolExecutor(size, **how)

    monkeypatch.setattr(rows_module, "ThreadPoolExecutor", made)
    return sizes


def test_the_server_calibrates_on_all_threads_with_the_same_bits(pools, monkeypatch):
    monkeypatch.setattr(base, "cores", lambda: 2)
    monkeypatch.setattr(rows_module, "CHUNK", 8)  # of 20 auxiliary images: three passes
    alone = toys.run(PFedKDH(), run__engine="serial")
    assert not pools
    shared = toys.run(PFedKDH(), run__engine="threads")
    assert set(pools) == {2}
    assert shared.server == alone.server
    assert toys.plain(shared.rows) == toys.plain(alone.rows)


def test_clients_keep_to_their_own_thread(pools):
    images = toys.data(torch.randn(600, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
    stage = replace(toys.setting(), threads=2)
    for ctx, used in ((stage.client(0, 0), []), (stage.server(0), [2])):
        ctx.fit(ctx.initial, FedAvg().loss, images, trains=Part.ALL)
        assert pools == []  # nothing is frozen
        ctx.fit(ctx.initial, FedAvg().loss, images, trains=Part.HEAD)
        assert pools == used


def test_a_cached_part_answers_for_its_own_batch_only():
    data = toys.data(range(10))
    part = CachedPart(lambda x: x.flatten(1), RowCache(lambda x: x.flatten(1) + 100, data))
    x, rows = data.x(torch.tensor([4])), torch.tensor([4])
    assert part(x).item() == 4.0
    part.current = (x, rows)
    assert part(x).item() == 104.0
    assert part(x.clone()).item() == 4.0
