"""Recompute log-probabilities with transformers in fp32, and hash published weights."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from app.audit.rebuild import RebuiltCall
from gyre.contracts.errors import BadInput


def read_weights(path: Path) -> dict[str, torch.Tensor] | None:
    """Return a safetensors file's tensors by Hugging Face name, or None if it is not such a file."""
    try:
        return load_file(path)
    except SafetensorError:
        return None


def payload_sha256(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> str:
    """Return the SHA-256 over the tensors, cast to ``dtype``, as little-endian bytes in order of name."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        flat = tensors[name].to(dtype).contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


class Scorer:
    """A transformers model in fp32 on the CPU, loaded with one version's weights after another."""

    def __init__(self, model_path: str) -> None:
        """Build the model. Raises BadInput if ``model_path`` holds no readable model configuration."""
        try:
            config = AutoConfig.from_pretrained(model_path)
        except (OSError, ValueError) as error:
            first = str(error).splitlines()[0]
            raise BadInput(f"model.path of the run, {model_path}, cannot be read: {first}") from error
        self._model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()

    def load(self, tensors: Mapping[str, torch.Tensor]) -> str | None:
        """Load these weights. Return a sentence if they do not fit the model, else None."""
        # Tied weights are stored once, under the name of the embedding.
        tied = {"lm_head.weight"} if self._model.config.tie_word_embeddings else set[str]()
        shapes = {name: tuple(value.shape) for name, value in self._model.state_dict().items()}
        missing = sorted(shapes.keys() - tensors.keys() - tied)
        strange = sorted(n for n, t in tensors.items() if shapes.get(n) != tuple(t.shape))
        if missing or strange:
            return f"tensors do not fit the model: {', '.join([*missing, *strange][:3])}"
        self._model.load_state_dict(tensors, strict=False)
        self._model.tie_weights()
        return None

    def gaps(self, version: int, calls: Iterable[RebuiltCall]) -> NDArray[np.float64]:
        """Return |recorded - recomputed| for the tokens that ``version`` sampled in ``calls``, mixed-KV ones
        left out. The loaded weights must be that version's.
        """
        parts = [np.abs(self.logprobs(call) - call.logprobs)[owned(call, version)] for call in calls]
        return np.concatenate([np.empty(0), *parts])

    @torch.inference_mode()
    def logprobs(self, call: RebuiltCall) -> NDArray[np.float64]:
        """Return one log-probability per output token, at the call's temperature.

        Minus infinity stands for output that no engine could have sampled: ids outside the vocabulary, or
        no input.
        """
        num_output = len(call.output_ids)
        ids = torch.from_numpy(np.concatenate([call.input_ids, call.output_ids]).astype(np.int64))
        known = (ids >= 0) & (ids < self._model.config.vocab_size)
        if num_output == 0 or len(call.input_ids) == 0 or not known.all():
            return np.full(num_output, -np.inf)
        # Position i predicts token i + 1, so the last token is not needed as input, and only the last
        # num_output positions predict output.
        logits = self._model(ids[None, :-1], logits_to_keep=num_output, use_cache=False).logits[0]
        scores = torch.log_softmax(logits / call.temperature, dim=-1)
        return scores.gather(1, ids[-num_output:, None])[:, 0].double().numpy()


def owned(call: RebuiltCall, version: int) -> NDArray[np.bool_]:
    """Return a mask of the output tokens that ``version`` sampled over its own KV."""
    owners = np.repeat([v for v, _ in call.versions], [n for _, n in call.versions])
    clean = np.arange(len(owners)) < len(owners) - call.mixed_kv_tokens
    return (owners == version) & clean
