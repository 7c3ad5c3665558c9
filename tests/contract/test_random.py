import itertools

import numpy as np
import torch

from manyheads.contract.random import seed_of, stream


def test_seeds_do_not_change_between_versions():
    assert seed_of(0, 1, 2, "order", 0) == 3883266099384627651


def test_each_part_of_a_key_counts():
    keys = list(itertools.product((0, 1), (0, 1), (0, 1), ("order", "dropout"), (0, 1)))
    assert len({seed_of(*key) for key in keys}) == len(keys)
    assert seed_of(1, 11) != seed_of(11, 1) != seed_of("1", 11)


def test_numbers_of_numpy_are_numbers():
    assert seed_of(np.int64(0), np.int32(1), 2, "order", np.int64(0)) == seed_of(0, 1, 2, "order", 0)


def test_a_stream_starts_anew_and_is_no_other():
    first = stream(0, "a")
    drawn = torch.rand(4, generator=first)
    assert torch.equal(torch.rand(4, generator=stream(0, "a")), drawn)
    assert not torch.equal(torch.rand(4, generator=first), drawn)
    assert not torch.equal(torch.rand(4, generator=stream(0, "b")), drawn)
