import hashlib
import weakref

import numpy as np
import torch

from manyheads.contract import Broadcast, Tree
from manyheads.engines.downlink import Downlink


class Link:
    """A downlink, and what its clients hold."""

    def __init__(self, held=None):
        self.downlink, self.held = Downlink(), dict(held or {})
        self.end_round = self.downlink.end_round

    def send(self, client, sent):
        size, self.held[client] = self.downlink.send(sent, self.held.get(client, {}))
        return size


def message(w=0.0, table=0.0, number=1):
    return Broadcast(model=Tree({"w": torch.full((100,), w)}), table=torch.full((50,), table), number=number)


def test_the_first_message_counts_whole():
    assert Link().send(0, message()) == len(message().to_bytes())


def test_fields_that_a_client_holds_are_not_counted():
    link = Link()
    link.send(0, message())
    link.end_round()
    changed = message(w=1.0)
    assert link.send(0, changed) == len(changed.only(["model"]).to_bytes())
    assert link.send(1, changed) == len(changed.to_bytes())
    assert link.send(0, changed) == len(Broadcast().to_bytes())
    link.end_round()
    assert link.send(0, message(w=1.0, number=2)) == len(Broadcast(number=2).to_bytes())


def test_a_value_that_comes_back_is_sent_again():
    link = Link()
    sizes = [link.send(0, message(w=w)) for w in (0.0, 1.0, 0.0)]
    assert sizes[1] == sizes[2] > 400


def test_a_field_that_was_left_out_for_a_round_is_still_held():
    link = Link()
    link.send(0, message())
    link.send(0, Broadcast(model=message(w=2.0).model))
    assert link.send(0, message(w=2.0)) == len(Broadcast().to_bytes())


def test_contents_count_and_not_addresses():
    link = Link()
    first = message()
    whole = link.send(0, first)
    link.end_round()
    first.model["w"].fill_(7.0)  # no method may do this; the next round notices nevertheless
    assert link.send(0, first) == len(first.only(["model"]).to_bytes())
    assert link.send(1, first) == whole


def test_what_is_held_is_all_that_counts():
    link = Link()
    link.send(3, message())
    assert Link(link.held).send(3, message()) == len(Broadcast().to_bytes())
    assert Link(link.held).send(4, message()) == len(message().to_bytes())


def test_tables_by_client_and_numbers_count():
    link = Link()
    table = Broadcast(heads={1: Tree({"w": torch.zeros(3)})})
    link.send(0, table)
    other = Broadcast(heads={2: Tree({"w": table.heads[1]["w"]})})
    assert link.send(0, other) == len(other.to_bytes())
    empty = Broadcast(a=1.0, b=Tree())
    assert link.send(1, empty) == len(empty.to_bytes())
    assert link.send(1, empty) == len(Broadcast().to_bytes())


def test_no_message_is_kept():
    link = Link()
    sent = message()
    left = weakref.ref(sent.model["w"])
    link.send(0, sent)
    del sent
    assert left() is None


def test_memory_that_is_used_again_is_not_taken_for_what_was_there_before():
    link, memory = Link(), np.zeros(4, np.float32)
    for client in range(3):
        memory[:] = client
        sent = Broadcast(model=Tree({"w": torch.from_numpy(memory)}))  # each time at the same address
        link.send(0, sent)
        assert link.held[0] == Link().downlink.send(sent, {})[1]
        del sent


def test_a_model_that_all_share_is_hashed_once_a_round(monkeypatch):
    hashed = []
    real = hashlib.blake2b
    monkeypatch.setattr(hashlib, "blake2b", lambda data, **options: hashed.append(data) or real(data, **options))
    link, shared = Link(), message()
    for client in range(50):
        link.send(client, Broadcast(model=shared.model))
    assert len(hashed) == 1


def test_views_of_one_memory_are_not_the_same():
    link, both = Link(), torch.arange(8.0)
    for client, other in enumerate((both[4:], both[:4].view(torch.int32), both[:4].view(2, 2))):
        link.send(client, Broadcast(model=Tree({"w": both[:4]})))
        assert link.send(client, Broadcast(model=Tree({"w": other}))) > len(Broadcast().to_bytes())
