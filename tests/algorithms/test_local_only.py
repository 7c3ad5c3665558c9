"""Local-only: nothing crosses the wire, and nobody matters to anybody else."""

import toys

from manyheads.algorithms.local_only import LocalOnly
from manyheads.contract import Upload


def test_an_upload_holds_no_tensor(overheard):
    toys.run(LocalOnly())
    assert overheard
    for message in overheard.values():
        upload = Upload.from_bytes(message)
        assert upload.tensors() == {}
        assert list(upload) == ["model", "weight"]


def test_a_client_ends_with_the_same_model_whoever_else_takes_part():
    alone = toys.run(LocalOnly(), cohorts=((1,), (1,), (1,)))
    together = toys.run(LocalOnly(), cohorts=((0, 1), (1, 2), (1, 3, 4)))
    assert alone.private[1] == together.private[1]
    assert list(alone.private) == [1]


def test_it_learns_and_has_no_global_model():
    result = toys.run(LocalOnly())
    assert {metric["model"] for row in result.rows for metric in row["metrics"]} == {"personal"}
    before, *_, after = (row["metrics"] for row in result.rows)
    assert after[0]["accuracy"] > before[0]["accuracy"]
