"""Where local updates run. Every engine gives the same bits, but for the one that stacks clients."""

from manyheads.engines.base import Engine, check_engine, described, make_engine, one_thread, server_threads

__all__ = ["Engine", "check_engine", "described", "make_engine", "one_thread", "server_threads"]
