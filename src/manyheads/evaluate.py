"""Metrics. A row says which model, on which data, at which moment, averaged how."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from manyheads.contract.model import Predictor
from manyheads.local.testing import Tester

Row = dict[str, Any]


def global_rows(
    variant: str, predictor: Predictor, tester: Tester, tests: Mapping[int, torch.Tensor], clients: int
) -> list[Row]:
    """The global model on the whole test set, and on each client's; one pass serves both.

    Args:
        variant: the model's name among those of its method.
        predictor: the model.
        tester: answers for the whole test set.
        tests: the places of each client's test images in the test set.
        clients: how many clients there are.
    """
    right = tester.right(predictor, torch.arange(tester.size))
    whole = {"model": "global", "variant": variant, "data": "global test", "moment": "post_agg", "average": "micro"}
    correct = {client: int(right[rows].sum()) for client, rows in tests.items()}
    sizes = {client: len(rows) for client, rows in tests.items()}
    return [
        whole | {"accuracy": int(right.sum()) / len(right)},
        *client_rows("global", variant, "post_agg", correct, sizes, clients),
    ]


def client_rows(
    model: str, variant: str, moment: str, correct: Mapping[int, int], sizes: Mapping[int, int], clients: int
) -> list[Row]:
    """Accuracy on the clients' own test images: macro (every client counts the same) and micro (every image does).

    Args:
        model: ``global`` or ``personal``.
        variant: the model's name among those of its method.
        moment: ``post_agg``, ``post_local`` or ``post_adapt``.
        correct: right answers by client.
        sizes: test images by client; a client with none is left out of both averages, and counted.
        clients: how many clients there are in all.
    """
    counted = [client for client in sorted(correct) if sizes[client]]
    if not counted:
        return []
    accuracies = [correct[client] / sizes[client] for client in counted]
    row = {"model": model, "variant": variant, "data": "client test", "moment": moment}
    who = {"clients": len(counted), "left_out": len(correct) - len(counted), "of": clients}
    mean = math.fsum(accuracies) / len(accuracies)
    spread = {
        "std": math.sqrt(math.fsum((a - mean) ** 2 for a in accuracies) / len(accuracies)),
        "worst_decile": worst_decile(accuracies),
        "tested": counted,
        "correct": [correct[client] for client in counted],
    }
    micro = sum(correct[client] for client in counted) / sum(sizes[client] for client in counted)
    return [
        row | {"average": "macro", "accuracy": mean} | who | spread,
        row | {"average": "micro", "accuracy": micro} | who,
    ]


def worst_decile(accuracies: Sequence[float]) -> float:
    """The mean of the lowest tenth, rounded up to whole clients."""
    lowest = sorted(accuracies)[: math.ceil(len(accuracies) / 10)]
    return math.fsum(lowest) / len(lowest)
