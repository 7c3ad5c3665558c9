"""What parts say of test images: once for all who ask, from any thread, with nothing computed twice or for nobody."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import toys
from torch import Tensor, nn

from manyheads.algorithms.fedavg import FedAvg
from manyheads.algorithms.fedper import FedPer
from manyheads.contract import Broadcast, Part, Predictor, PrivateState, Tree
from manyheads.engines import one_thread
from manyheads.engines.serial import Serial
from manyheads.engines.threads import Threads
from manyheads.local.client import Task
from manyheads.local.outputs import Blocks, Outputs, PartOutputs, RememberedPart
from manyheads.local.rows import CHUNK

WEIGHTS = Tree({"w": torch.ones(2)})


def outputs(images=300, wanted=200):
    return PartOutputs(WEIGHTS, toys.data(range(images)), Blocks(images, torch.arange(wanted)))


class Doubled:
    """A part that says twice the pixel, and writes down how many rows it is given, and which."""

    def __init__(self):
        self.sizes, self.rows = [], []

    def __call__(self, x):
        self.sizes.append(len(x))
        self.rows += x.flatten().int().unique().tolist()
        return 2 * x.flatten(1)


def test_many_who_ask_for_one_row_each_cost_one_pass_over_all_rows():
    found, part = outputs(), Doubled()
    for row in reversed(range(200)):
        assert found.at(torch.tensor([row]), part).tolist() == [[2.0 * row]]
    assert part.sizes == [64] * 4
    assert sorted(part.rows) == list(range(256))
    assert found.at(torch.tensor([290, 7]), part).tolist() == [[580.0], [14.0]]  # one that nobody was going to ask for
    assert part.sizes == [64] * 5
    assert part.rows[256:] == list(range(256, 300))


def test_a_client_costs_the_blocks_that_hold_its_rows_wherever_these_are_in_the_test_set():
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))[:200]
    data, part = toys.data(range(300)), Doubled()
    found = PartOutputs(WEIGHTS, data, Blocks(300, order))
    client = order[100:170]
    assert found.at(client, part).flatten().tolist() == [2.0 * row for row in client.tolist()]
    assert part.sizes == [128]
    assert sorted(part.rows) == sorted(order[64:192].tolist())
    found.at(order[60:70], part)  # its last six are there
    assert part.sizes == [128, 64]


def test_a_row_has_the_same_bits_whoever_asks_for_what_first():
    rng = torch.Generator().manual_seed(0)
    images, wanted = torch.randn(300, 130, generator=rng), torch.randperm(300, generator=rng)[:200]
    part = nn.Sequential(nn.Linear(130, 33), nn.ReLU(), nn.Linear(33, 7)).eval()
    found = []
    with torch.no_grad(), one_thread():
        for asked in ([[row] for row in range(300)], [[row] for row in reversed(range(300))], [list(range(300))]):
            outputs = PartOutputs(WEIGHTS, toys.data(images), Blocks(300, wanted))
            for rows in asked:
                outputs.at(torch.tensor(rows), part)
            found.append(outputs.at(torch.arange(300), part))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_a_whole_test_set_goes_in_chunks():
    found, part = outputs(3 * CHUNK, 0), Doubled()
    found.at(torch.arange(3 * CHUNK), part)
    assert part.sizes == [CHUNK] * 3
    found.at(torch.tensor([5, 5, 5]), part)
    assert part.sizes == [CHUNK] * 3


def test_a_thread_does_other_rows_while_its_own_are_under_way():
    found, both = outputs(), threading.Barrier(2)
    part, own = Doubled(), threading.local()

    def together(x):
        if not hasattr(own, "begun"):
            own.begun = True
            both.wait(timeout=20)  # nobody would come, if the second thread waited for the first
        return part(x)

    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(found.at, torch.tensor([0]), together) for _ in range(2)]
        assert [answer.result().item() for answer in answers] == [0.0, 0.0]
    assert len(part.rows) >= 128  # more, where one thread is much slower than the other
    assert len(set(part.rows)) == len(part.rows)


class Large(Tensor):
    """What there is no memory to store."""

    def new_empty(self, *shape):
        raise MemoryError("stopped")


def raises(x):
    raise RuntimeError("stopped")


@pytest.mark.parametrize("fails", [raises, lambda x: x.flatten(1).as_subclass(Large)])
def test_rows_of_a_thread_that_failed_are_done_by_the_one_that_waits(fails):
    found = outputs(wanted=10)
    begun, fail = threading.Event(), threading.Event()

    def failing(x):
        begun.set()
        assert fail.wait(timeout=20)
        return fails(x)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(found.at, torch.arange(10), failing)
        assert begun.wait(timeout=20)
        part = Doubled()
        second = pool.submit(found.at, torch.tensor([3]), part)
        assert not second.done()
        fail.set()
        with pytest.raises((RuntimeError, MemoryError), match="stopped"):
            first.result(timeout=20)
        assert second.result(timeout=20).item() == 6.0
    assert part.rows == list(range(64))


@pytest.mark.parametrize("says", [lambda x: (x, 2 * x), lambda x: x.sum(), lambda x: x[:3]])
def test_what_is_not_one_row_for_each_image_is_not_remembered(says):
    found, x = outputs(), torch.arange(64.0)
    remembered = RememberedPart(says, lambda: found)
    remembered.current = (x, torch.arange(64))
    for _ in range(2):
        torch.testing.assert_close(remembered(x), says(x), rtol=0, atol=0)


class Pair(nn.Module):
    """The pixels, and twice these."""

    def forward(self, x):
        z = x.flatten(1)
        return z, 2 * z


class Paired(FedAvg):
    """Adds to the logits what a part that answers in pairs says."""

    def parts(self, base, sizes):
        return {**base, "pair": Pair()}

    def logits(self, m, x):
        one, two = m.pair(x)
        return m.head(m.backbone(x)) + (two - one)[:, :4]


@pytest.mark.parametrize("engine", ["serial", "threads"])
def test_a_run_with_a_part_that_answers_in_pairs(engine):
    stage = toys.setting(Paired())
    rows = torch.arange(40)
    with torch.no_grad():
        m = stage.network.model(stage.network.initial)
        right = stage.algorithm.logits(m, stage.parties.test.x(rows)).argmax(dim=1) == stage.parties.test.y
    result = toys.run(Paired(), run__engine=engine, run__workers=2, train__rounds=1)
    assert result.rows[0]["metrics"][0]["accuracy"] == int(right.sum()) / 40


def test_equal_weights_are_the_same_wherever_they_lie():
    shared = Outputs(toys.data(range(10)), torch.arange(10))
    other = Tree({"w": torch.zeros(2)})
    first = shared.of("backbone", WEIGHTS)
    assert shared.of("backbone", WEIGHTS.clone()) is first
    assert shared.of("other", WEIGHTS) is not first
    changed = shared.of("backbone", other)
    assert changed is not first
    assert shared.of("backbone", WEIGHTS) is not first  # only the newest is remembered


@pytest.fixture
def computed(monkeypatch):
    """The rows that any backbone is run over from now on."""
    rows = []
    real = PartOutputs._compute

    def compute(self, blocks, part):
        parts = self._blocks.rows.split(64)
        rows.extend(row for block in blocks.tolist() for row in parts[block].tolist())
        return real(self, blocks, part)

    monkeypatch.setattr(PartOutputs, "_compute", compute)
    return rows


@pytest.mark.parametrize("engine", [Serial, Threads])
@pytest.mark.parametrize("copied", [False, True])
def test_personal_models_on_one_backbone_and_the_global_one_cost_one_pass(computed, engine, copied):
    stage = toys.setting(FedPer())
    initial, ctx = stage.network.initial, stage.server(0)
    backbone = ctx.take(initial, Part.BACKBONE)
    tasks = [
        Task(
            client,
            0,
            Broadcast(model=backbone.clone() if copied else backbone),  # as a worker process has it
            PrivateState(model=ctx.take(initial, Part.HEAD) * (client - 2.0)),
        )
        for client in range(6)
    ]
    with engine(stage, 3) as running:
        found = dict(running.evaluate(tasks, False))
    assert sorted(computed) == list(range(40))
    for client, task in enumerate(tasks):
        rows = stage.parties.test_rows(client)
        m = stage.network.model(task.received.model | task.private.model)
        right = m.head(m.backbone(stage.parties.test.x(rows))).argmax(dim=1) == stage.parties.test.y[rows]
        assert found[client] == {("", "post_agg"): int(right.sum())}
    assert len({found[client]["", "post_agg"] for client in range(6)}) > 1
    tester = stage.tester()
    tester.right(Predictor(initial, FedPer().logits), torch.arange(tester.size))
    assert sorted(computed) == list(range(40))


def test_variants_on_a_backbone_of_one_s_own_cost_one_pass_though_others_are_tested_in_between(computed):
    stage = toys.setting(FedPer())
    initial, rows = stage.network.initial, torch.arange(30)
    testers = [stage.tester(), stage.tester()]
    for factor in (1.0, 2.0):
        for k, tester in enumerate(testers, 2):
            tree = initial.replace(backbone=initial.part("backbone") * k, head=initial.part("head") * factor)
            tester.right(Predictor(tree, FedPer().logits), rows)
    assert len(computed) == 2 * 40  # a block
