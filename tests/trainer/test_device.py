"""The differences between CPU and GPU."""

import pytest
import torch

from gpu_workers.trainer.device import megatron_allocates_on, resolve
from gyre.contracts.errors import BadInput

CPU = torch.device("cpu")


def test_torch_is_as_before_after_a_model_that_failed() -> None:
    """Megatron's question is answered inside the block only, whatever ends the block."""
    original, found = torch.cuda.current_device, list[torch.device]()

    @megatron_allocates_on(CPU)
    def allocate_and_fail() -> None:
        found.append(torch.empty(1, device=torch.cuda.current_device()).device)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        allocate_and_fail()
    assert found == [CPU]
    assert torch.cuda.current_device is original


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_missing_cuda_device_is_refused() -> None:
    assert resolve("cpu") == CPU
    with pytest.raises(BadInput, match=r"set cells\.device = 'cpu'"):
        resolve("cuda")
