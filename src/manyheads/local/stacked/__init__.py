"""Clients trained as one stacked model: their values side by side along a first axis, in one call of ``vmap``."""
