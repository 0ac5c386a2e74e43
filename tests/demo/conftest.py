"""Fixtures: the demo's tokenizer, built once, and torch on one thread."""

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from app.demo.tokenizer import build_tokenizer


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer()
