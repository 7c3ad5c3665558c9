"""Weighted means over uploads, in one pass and in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manyheads.contract.records import Upload
from manyheads.contract.tree import Tree

Weight = Callable[[Upload], float] | Mapping[int, float]


def average(uploads: Mapping[int, Upload], fields: tuple[str, ...], weight: Weight) -> Upload:
    """See ``ServerContext.average``."""
    total = 0.0
    sums: dict[str, Any] = {}
    for client, upload in uploads.items():
        share = float(weight[client] if isinstance(weight, Mapping) else weight(upload))
        if not share >= 0:
            raise ValueError(f"the aggregation weight of client {client} is {share}; it must be at least 0")
        for name in fields:
            sums[name] = _added(sums.get(name), getattr(upload, name), share)
        total += share
    if not total > 0:
        raise ValueError("nothing to average: no upload, or all weights are zero")
    return Upload(**{name: _divided(value, total) for name, value in sums.items()})


@dataclass
class _Sum:
    """A running weighted sum that remembers which type it came from."""

    value: Tensor
    dtype: torch.dtype


def _added(total: Any, value: Any, share: float) -> Any:
    if isinstance(value, Tree):
        if total is not None and total.keys() != value.keys():
            raise ValueError(
                f"uploads hold different tensors: {sorted(total.keys() ^ value.keys())[0]!r} is not in all"
            )
        return {name: _added(total and total[name], tensor, share) for name, tensor in value.items()}
    tensor = value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)
    if not tensor.is_floating_point():
        return _Sum(tensor if total is None else torch.maximum(total.value, tensor), tensor.dtype)
    if total is None:
        return _Sum(tensor.double() * share, tensor.dtype)
    return _Sum(total.value.add_(tensor, alpha=share), tensor.dtype)


def _divided(total: Any, weights: float) -> Any:
    if isinstance(total, dict):
        return Tree({name: _divided(value, weights) for name, value in total.items()})
    mean = total.value / weights if total.value.is_floating_point() else total.value
    return mean.to(total.dtype)
