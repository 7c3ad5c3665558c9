"""bf16 training: convolutions and matrix products in half the bits, where the processor has them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from manyheads.contract.model import Module
from manyheads.local.rows import MULTIPLE

# Of linear layers in all: with fewer, forward and backward with 64 samples were as quick or quicker in fp32.
FEW_WEIGHTS = 1 << 16


def has_bf16() -> bool:
    """Whether this processor multiplies bf16 numbers itself. Those with AMX have these AVX-512 instructions as well."""
    return torch.cpu._is_avx512_bf16_supported()


def fallback(precision: str, engine: str = "", device: str = "cpu") -> str:
    """Why a run goes on in fp32 though its config says ``bf16``, in a line for a person; "" where it need not."""
    if precision == "fp32":
        return ""
    if device != "cpu":
        reason = f"run.device = {device!r} trains in fp32"
    elif engine == "vectorized":
        reason = "run.engine = 'vectorized' trains in fp32"
    else:
        reason = "" if has_bf16() else "this processor has no bf16 instructions"
    return reason and f"train.precision = {precision!r}: {reason}; going on in fp32"


def in_half(part: nn.Module) -> Module:
    """A part with its products in bf16; most heads, where rounding would cost more than it saves, stay as they are."""
    owners = [module for module in part.modules() if module._parameters]
    linear = bool(owners) and all(isinstance(module, nn.Linear) for module in owners)
    return part if linear and sum(p.numel() for p in part.parameters()) < FEW_WEIGHTS else Half(part)


class Half:
    """A part whose convolutions and matrix products run in bf16.

    Weights stay fp32 and get fp32 gradients. So do the part's inputs and outputs: what losses and methods make of them
    is as exact as ever.

    A frozen part takes rows 64 at a time: on a processor with AMX, oneDNN cuts the sums of a linear layer by the number
    of rows, so that their bits would depend on who else is asked. One that says anything without a row for each of
    them, as the last state of an ``nn.GRU``, takes all at once.
    """

    def __init__(self, part: nn.Module) -> None:
        self._part = part

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The part's output, in fp32."""
        frozen = len(inputs) == 1 and not (torch.is_grad_enabled() or self._part.training)
        # torch's cache of rounded weights is one for all threads, and mixes up forward passes with and without gradient
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            joined = self._in_groups(inputs[0]) if frozen and len(inputs[0]) > MULTIPLE else None
            output: Tensor = _wide(self._part(*inputs)) if joined is None else joined
        return output

    def _in_groups(self, rows: Tensor) -> Any:
        """What the part says of ``rows``, 64 at a time; None where it has not said a row for each."""
        outputs = []
        for group in torch.split(rows, MULTIPLE):
            output = _wide(self._part(group))
            pieces = output if isinstance(output, tuple) else (output,)
            if not all(isinstance(piece, Tensor) and piece.shape[:1] == group.shape[:1] for piece in pieces):
                return None
            outputs.append(output)
        if isinstance(outputs[0], tuple):
            return tuple(map(torch.cat, zip(*outputs, strict=True)))
        return torch.cat(outputs)


def _wide(output: Any) -> Any:
    """An output in fp32; it may be a tuple, as an autoencoder's."""
    if isinstance(output, tuple):
        return tuple(map(_wide, output))
    return output.float() if isinstance(output, Tensor) and output.dtype == torch.bfloat16 else output
