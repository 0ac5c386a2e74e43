"""Recomputes log-probabilities with transformers in fp32, and hashes published weights."""

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
    """The tensors of a safetensors file by Hugging Face name, or None if it is not one."""
    try:
        return load_file(path)
    except SafetensorError:
        return None


def payload_sha256(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> str:
    """SHA-256 over the tensors in sorted name order, contiguous little-endian bytes in ``dtype``."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        flat = tensors[name].to(dtype).contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


class Scorer:
    """One transformers model in fp32 on the CPU that takes the weights of one version after another."""

    def __init__(self, model_path: str) -> None:
        """Raises BadInput if ``model_path`` holds no model configuration."""
        try:
            config = AutoConfig.from_pretrained(model_path)
        except (OSError, ValueError) as error:
            first = str(error).splitlines()[0]
            raise BadInput(f"model.path of the run, {model_path}, cannot be read: {first}") from error
        self._model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()

    def load(self, tensors: Mapping[str, torch.Tensor]) -> str | None:
        """Take these weights. Returns a sentence if they are not the model's, else None."""
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
        """|recorded - recomputed| of the tokens that ``version`` sampled in ``calls``.

        The loaded weights must be that version's. Mixed-KV tokens are left out.
        """
        parts = [np.abs(self.logprobs(call) - call.logprobs)[owned(call, version)] for call in calls]
        return np.concatenate([np.empty(0), *parts])

    @torch.inference_mode()
    def logprobs(self, call: RebuiltCall) -> NDArray[np.float64]:
        """Log-probabilities of the output tokens at the call's temperature, one a token.

        Minus infinity for what no engine could have sampled: ids outside the vocabulary, or no input.
        """
        num_output = len(call.output_ids)
        ids = torch.from_numpy(np.concatenate([call.input_ids, call.output_ids]).astype(np.int64))
        known = (ids >= 0) & (ids < self._model.config.vocab_size)
        if num_output == 0 or len(call.input_ids) == 0 or not known.all():
            return np.full(num_output, -np.inf)
        # The last token predicts nothing here; of the rest only the final num_output positions do.
        logits = self._model(ids[None, :-1], logits_to_keep=num_output, use_cache=False).logits[0]
        scores = torch.log_softmax(logits / call.temperature, dim=-1)
        return scores.gather(1, ids[-num_output:, None])[:, 0].double().numpy()


def owned(call: RebuiltCall, version: int) -> NDArray[np.bool_]:
    """Which output tokens ``version`` sampled over KV of its own."""
    owners = np.repeat([v for v, _ in call.versions], [n for _, n in call.versions])
    clean = np.arange(len(owners)) < len(owners) - call.mixed_kv_tokens
    return (owners == version) & clean
