"""Everything in which a CPU differs from a GPU for Megatron Core, in one place.

Megatron Core 0.16 asks ``torch.cuda.current_device()`` where to allocate gradient buffers, and raises
on a machine without CUDA. ``megatron_allocates_on`` answers for it while a model is built; nothing is
patched at import time, and nothing stays patched. The stock core attention forks the CUDA random
number tracker and the stock rotary embedding moves its table to CUDA: megatron_model.py replaces both, on every
device, for reasons of its own. Megatron's optimizers allocate on ``'cuda'``; optimizer.py is one AdamW
over ``main_grad`` for every device.
"""

from collections.abc import Generator
from contextlib import contextmanager
from unittest import mock

import torch

from gyre.contracts.errors import BadInput


def resolve(device: str) -> torch.device:
    """The device of this process. Raises BadInput when CUDA is asked for and absent."""
    if device == "cuda" and not torch.cuda.is_available():
        raise BadInput("cells.device = 'cuda', but torch finds no CUDA device; set cells.device = 'cpu'")
    return torch.device(device, torch.cuda.current_device()) if device == "cuda" else torch.device("cpu")


def collective_backend(device: torch.device) -> str:
    return "nccl" if device.type == "cuda" else "gloo"


@contextmanager
def megatron_allocates_on(device: torch.device) -> Generator[None]:
    """Let Megatron allocate on ``device`` inside the block."""
    if device.type == "cuda":
        yield
        return
    with mock.patch.object(torch.cuda, "current_device", return_value=device):
        yield
