"""Gyre: durable online reinforcement learning for long-horizon agents."""

__version__ = "0.1.0"
