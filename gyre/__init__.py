"""Gyre: durable online reinforcement learning for long-horizon agents. The ground that every room stands on.

contracts/    the vocabulary; no I/O
durable/      Temporal, without business logic
host/         processes and ports of this machine
rules/        pure decisions, property-tested
settings/     input, checked at the edge
trajectory/   pure: conversations, trees, batches
"""

__version__ = "0.1.0"
