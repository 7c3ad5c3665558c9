"""What RandAugment adds to a step of training: `python -m benchmarks.augment`.

A step is forward, backward and update of the lineage CNN on a batch of 64. Beside ours stands kornia's own
`RandAugment`, which draws one operation for the whole batch and takes colour images only. One thread; the three are
measured in turn, and the table gives medians and quartiles of paired ratios.
"""

import statistics
from collections.abc import Callable

import torch
from kornia.augmentation.auto import RandAugment as KorniaRandAugment
from rich.console import Console
from rich.table import Table
from torch.nn.functional import cross_entropy

from benchmarks.common import timed
from manyheads.contract import Batch
from manyheads.data.augment import RandAugment
from manyheads.models.zoo import lineage_cnn

BATCH, TURNS = 64, 60


def main() -> None:
    """Measures and prints."""
    torch.set_num_threads(1)
    table = Table("images", "step, ms", "RandAugment, ms", "of a step", "kornia's, ms")
    for shape in ((1, 28, 28), (3, 32, 32)):
        step, ours, theirs = _step(shape), _ours(shape), _kornias(shape)
        times = [[timed(run) for run in (step, ours, theirs)] for _ in range(TURNS)][TURNS // 10 :]
        ratios = statistics.quantiles([own / whole for whole, own, _ in times], n=4)
        median = [1000 * statistics.median(column) for column in zip(*times, strict=True)]
        spread = f"{ratios[1]:.2f} ({ratios[0]:.2f} to {ratios[2]:.2f})"
        kornias = f"{median[2]:.1f}" if shape[0] == 3 else "-"
        table.add_row("x".join(map(str, shape)), f"{median[0]:.1f}", f"{median[1]:.1f}", spread, kornias)
    Console().print(table)


def _images(shape: tuple[int, int, int]) -> torch.Tensor:
    return torch.rand(BATCH, *shape).contiguous(memory_format=torch.channels_last)


def _step(shape: tuple[int, int, int]) -> Callable[[], object]:
    model = lineage_cnn(shape=shape, classes=10).to(memory_format=torch.channels_last)
    sgd, x, y = torch.optim.SGD(model.parameters(), lr=0.01), _images(shape), torch.arange(BATCH) % 10

    def run() -> None:
        sgd.zero_grad()
        cross_entropy(model(x), y).backward()
        sgd.step()

    return run


def _ours(shape: tuple[int, int, int]) -> Callable[[], object]:
    augment, rng = RandAugment((0.5,) * shape[0], (0.25,) * shape[0]), torch.Generator()
    batch = Batch((_images(shape) - 0.5) / 0.25, torch.arange(BATCH) % 10, torch.arange(BATCH), {})
    return lambda: augment(batch, rng)


def _kornias(shape: tuple[int, int, int]) -> Callable[[], object]:
    augment, x = KorniaRandAugment(n=2, m=9), _images((3, *shape[1:]))
    return lambda: augment(x)


if __name__ == "__main__":
    main()
