"""What torch reaches on this machine in the products of the papers' CNN, and how many there are."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from benchmarks.common import SIZES
from manyheads.engines.base import cores
from manyheads.local.precision import has_bf16

BATCH, KERNEL, WIDTHS, FEATURES, CLASSES = 64, 5, (32, 64), 512, 10
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def rate_names() -> list[str]:
    """What ``rates`` measures: kind and type."""
    return [f"{kind} {name}" for name in TYPES if name == "fp32" or has_bf16() for kind in ("gemm", "conv")]


def shape(like: str) -> tuple[int, int, int]:
    """Of an image: channels, height, width."""
    height, width, channels = SIZES[like][1]
    return channels, height, width


def _products(like: str) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]:
    """The CNN's convolutions as channels in, channels out and side of the image; its linear layers as in and out."""
    (channels, side, _), convolutions = shape(like), []
    for width in WIDTHS:
        convolutions.append((channels, width, side))
        channels, side = width, (side - KERNEL + 1) // 2
    return convolutions, [(channels * side * side, FEATURES), (FEATURES, CLASSES)]


def flops(like: str) -> float:
    """Of a sample's forward and backward pass. The first layer's input needs no gradient."""
    convolutions, linear = _products(like)
    work = [2 * KERNEL**2 * a * b * (side - KERNEL + 1) ** 2 for a, b, side in convolutions]
    return 2 * work[0] + 3 * sum(work[1:]) + 3 * sum(2 * a * b for a, b in linear)


def rates(like: str) -> Callable[[], dict[str, float]]:
    """Measures FLOP/s of all cores, by kind and type."""
    jobs: dict[str, Callable[[], float]] = {}
    for name in rate_names():
        kind, _, precision = name.partition(" ")
        jobs[name] = _gemm(TYPES[precision]) if kind == "gemm" else _convolutions(like, TYPES[precision])

    def alone(job: Callable[[], float], until: float) -> float:
        torch.set_num_threads(1)
        done, start = job(), time.perf_counter()
        while time.perf_counter() < until:
            done += job()
        return done / (time.perf_counter() - start)

    def measure() -> dict[str, float]:
        with ThreadPoolExecutor(cores()) as pool:
            return {
                name: sum(pool.map(alone, [job] * cores(), [time.perf_counter() + 0.4] * cores()))
                for name, job in jobs.items()
            }

    return measure


def _gemm(dtype: torch.dtype) -> Callable[[], float]:
    n = 512
    a, b = torch.randn(n, n).to(dtype), torch.randn(n, n).to(dtype)

    def job() -> float:
        torch.mm(a, b)
        return 2 * n**3

    return job


def _convolutions(like: str, dtype: torch.dtype) -> Callable[[], float]:
    """The CNN's convolutions on a batch, forward and backward."""
    layers, flops = [], 0
    for place, (inputs, outputs, side) in enumerate(_products(like)[0]):
        layer = nn.Conv2d(inputs, outputs, KERNEL).to(dtype, memory_format=torch.channels_last)
        x = torch.randn(BATCH, side, side, inputs).to(dtype).permute(0, 3, 1, 2)
        layers.append((layer, x.requires_grad_(place > 0)))
        flops += (3 if place else 2) * 2 * KERNEL**2 * inputs * outputs * (side - KERNEL + 1) ** 2 * BATCH
    gradients = [torch.randn_like(layer(x)) for layer, x in layers]

    def job() -> float:
        for (layer, x), gradient in zip(layers, gradients, strict=True):
            needed = [*layer.parameters(), *([x] if x.requires_grad else [])]
            torch.autograd.grad(layer(x), needed, gradient)
        return flops

    return job
