"""Every difference between a CPU and a GPU that Megatron Core leaves to us, in one place.

Megatron Core 0.16 asks ``torch.cuda.current_device()`` where to allocate gradient buffers, which raises on
a machine without CUDA. ``megatron_allocates_on`` answers while a model is built; nothing is patched at
import time, and nothing stays patched. Two more parts of stock Megatron need CUDA: its core attention forks
the CUDA random number tracker, and its rotary embedding moves a table to CUDA. megatron_model.py replaces
both on every device, for other reasons. Megatron's optimizers allocate on ``'cuda'``; optimizer.py has one
AdamW over ``main_grad`` for every device.
"""

from collections.abc import Generator
from contextlib import contextmanager

import torch

from gyre.contracts.errors import BadInput


def resolve(device: str) -> torch.device:
    """Return this process's device. Raises BadInput if CUDA is asked for and absent."""
    if device == "cuda" and not torch.cuda.is_available():
        raise BadInput("cells.device = 'cuda', but torch finds no CUDA device; set cells.device = 'cpu'")
    return torch.device(device, torch.cuda.current_device()) if device == "cuda" else torch.device("cpu")


def collective_backend(device: torch.device) -> str:
    """Return the torch.distributed backend for tensors on a device."""
    return "nccl" if device.type == "cuda" else "gloo"


@contextmanager
def megatron_allocates_on(device: torch.device) -> Generator[None]:
    """Make Megatron allocate on ``device`` inside the block.

    Megatron has no parameter for this. It passes on to torch what ``torch.cuda.current_device`` returns, and
    torch takes a CPU device there just as well.
    """
    if device.type == "cuda":
        yield
        return
    original = torch.cuda.current_device
    torch.cuda.current_device = lambda: device  # pyright: ignore
    try:
        yield
    finally:
        torch.cuda.current_device = original
