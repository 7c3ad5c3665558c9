"""Where local updates run. Every engine gives the same bits."""

from manyheads.engines.base import Engine, described, make_engine, one_thread

__all__ = ["Engine", "described", "make_engine", "one_thread"]
