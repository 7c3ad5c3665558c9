"""What may cross the wire: an upload is checked against what its method declares, by name and by shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from manyheads.contract.algorithm import Algorithm, Sent
from manyheads.contract.context import Context
from manyheads.contract.records import Broadcast, PrivateState, Record, ServerState, Upload
from manyheads.contract.tree import Part, Tree
from manyheads.errors import RunError


class WireError(RunError):
    """A message holds something that its method does not declare, or a value that is not finite."""


def check_broadcast(message: Broadcast, algorithm: Algorithm, ctx: Context) -> None:
    """Raises ``WireError`` where the broadcast's model holds more than the shared part."""
    model = message.get("model", Tree())
    if extra := set(model) - set(ctx.take(ctx.initial, algorithm.shared)):
        raise WireError(
            f"{_name(algorithm)} broadcasts {sorted(extra)[0]!r}, which is not in its shared part {algorithm.shared}"
        )


def check_upload(message: Upload, algorithm: Algorithm, ctx: Context, words: Mapping[str, tuple[int, ...]]) -> None:
    """Raises ``WireError`` unless the upload holds what the method declares, with the declared shapes, and no more.

    Args:
        message: what the client wants to send.
        algorithm: its method.
        ctx: the client's context.
        words: what ``n``, ``classes``, ``features`` and ``image`` mean for this client.
    """
    declared = _declared(algorithm, ctx)
    for field in message:
        where = f"{_name(algorithm)}, client {ctx.party}: field {field!r} of the upload"
        if field not in declared:
            raise WireError(f"{where} is not declared; it declares {', '.join(declared)}")
        _check(where, message.get(field), declared[field], ctx, words)


def declared_bytes(algorithm: Algorithm, ctx: Context, words: Mapping[str, tuple[int, ...]]) -> int:
    """The bytes of all numbers that a client's upload may hold, known before it trains; arguments as above.

    A number outside the model counts four bytes. The names and shapes that a message holds besides are left out.
    """
    return sum(
        sum(tensor.nbytes for tensor in ctx.take(ctx.initial, what).values())
        if isinstance(what, Part)
        else 4 * math.prod(_shape(what, words))
        for what in _declared(algorithm, ctx).values()
    )


def check_finite(message: Upload, where: str) -> None:
    """Raises ``WireError``, beginning with ``where``, unless all of the upload is finite and its weight at least 0."""
    _check_numbers(message, where, torch.isfinite, "is not finite")
    if message.get("weight", 0) < 0:
        raise WireError(f"{where} 'weight' is {message.weight}, below 0")


def check_state(state: ServerState | PrivateState, where: str) -> None:
    """Raises ``WireError``, beginning with ``where``, if a number in the state is NaN; a state may hold infinities."""
    _check_numbers(state, where, lambda tensor: ~torch.isnan(tensor), "is not a number")


def throughout(good: Callable[[Tensor], Tensor], tensor: Tensor) -> bool:
    """Whether all numbers are good, in a sense in which a sum is good only of good ones: finite, or not NaN.

    A sum takes a fortieth of the time. That of good ones may overflow, so where it is not good, each number is asked.
    """
    return bool(good(tensor.sum())) or bool(good(tensor).all())


def _check_numbers(record: Record, where: str, good: Callable[[Tensor], Tensor], wrong: str) -> None:
    numbers = {
        name: torch.tensor(float(value)) for name in record if isinstance(value := record.get(name), int | float)
    }
    for name, tensor in {**numbers, **record.tensors()}.items():
        if not throughout(good, tensor):
            raise WireError(f"{where} {name!r} {wrong}")


def _check(where: str, value: object, declared: Sent, ctx: Context, words: Mapping[str, tuple[int, ...]]) -> None:
    if isinstance(declared, Part):
        expected = ctx.take(ctx.initial, declared)
        if not isinstance(value, Tree):
            raise WireError(f"{where} is a {type(value).__name__}; it is declared as the part {declared} of the model")
        if extra := set(value) - set(expected):
            raise WireError(f"{where} holds {sorted(extra)[0]!r}, which is outside its declared part {declared}")
        if missing := set(expected) - set(value):
            raise WireError(f"{where} lacks {sorted(missing)[0]!r} of its declared part {declared}")
        for name, tensor in value.items():
            if tensor.shape != expected[name].shape or tensor.dtype != expected[name].dtype:
                own = f"{list(expected[name].shape)} {expected[name].dtype}"
                raise WireError(f"{where}: {name!r} is {list(tensor.shape)} {tensor.dtype}, the model's is {own}")
        return
    shape = _shape(declared, words)
    actual = tuple(value.shape) if isinstance(value, Tensor) else () if isinstance(value, int | float) else None
    if actual != shape:
        raise WireError(f"{where} has the shape {actual}; it is declared as ({', '.join(declared)}) = {shape}")


def _declared(algorithm: Algorithm, ctx: Context) -> dict[str, Sent]:
    return {"weight": (), **algorithm.sends, "model": algorithm.uploaded(ctx)}


def _shape(declared: tuple[str, ...], words: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(size for word in declared for size in (words[word] if word in words else (int(word),)))


def _name(algorithm: Algorithm) -> str:
    return type(algorithm).__name__
