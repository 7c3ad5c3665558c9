"""Random streams: one of its own for every purpose, so that no draw depends on what was drawn before elsewhere."""

import hashlib

import torch


def seed_of(*key: int | str) -> int:
    """A 63-bit seed from a key such as ``(seed, round, client, "order", epoch)``, the same on every machine."""
    plain = tuple(part if isinstance(part, str) else int(part) for part in key)  # numpy's integers print otherwise
    digest = hashlib.blake2b(repr(plain).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def stream(*key: int | str) -> torch.Generator:
    """A fresh generator, started from ``seed_of(*key)``."""
    return torch.Generator().manual_seed(seed_of(*key))
