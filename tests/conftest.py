"""What all tests share."""

from collections.abc import Iterator

import pytest
import torch
import toys
from hypothesis import settings

from manyheads.engines import one_thread

settings.register_profile("manyheads", deadline=None, derandomize=True)  # a busy machine is no failure
settings.load_profile("manyheads")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """One thread inside each torch operation, as in a run: what a test computes itself then has a run's bits."""
    with one_thread():
        yield


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Layers that a test makes itself start from the same weights every time."""
    torch.manual_seed(0)


@pytest.fixture
def overheard(monkeypatch: pytest.MonkeyPatch) -> toys.Heard:
    """Every upload that crosses the wire during the test, by round and client, as bytes."""
    return toys.listen(monkeypatch)
