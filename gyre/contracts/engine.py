"""The engine protocol: the subset of SGLang's HTTP surface that Gyre speaks. Token ids in, token ids out.

``POST /generate`` takes GenerateRequest and answers GenerateResponse (or, with ``stream``, server-sent
events ``data: <GenerateResponse>`` whose ``output_ids`` are cumulative, ended by ``data: [DONE]``).
``POST /abort_request`` takes ``{"rid": ...}``; the aborted request answers with what it had sampled.
``POST /pause_generation``, ``POST /continue_generation``, ``POST /flush_cache``,
``POST /release_memory_occupation``, ``POST /resume_memory_occupation`` take ``{}``.
``POST /pull_weights`` takes PullWeights and is Gyre's own: weights cross by Mooncake only.
``GET /health``, ``GET /get_server_info`` (EngineInfo), ``GET /metrics`` (Prometheus text).
Bad requests get a 4xx with ``{"error": {"message": reason}}``.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Lenient(BaseModel):
    """Servers may send more than we read."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class SamplingParams(Lenient):
    """``temperature`` 0 is greedy; log-probabilities are then those at temperature 1."""

    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = -1
    max_new_tokens: int = Field(default=128, ge=1)
    stop_token_ids: list[int] = Field(default_factory=list[int])
    sampling_seed: int = Field(default=0, ge=0, lt=1 << 63)
    """A token is a function of (logits, seed, position in the whole sequence)."""


class GenerateRequest(Lenient):
    rid: str | None = None
    input_ids: list[int] = Field(min_length=1)
    sampling_params: SamplingParams = SamplingParams()
    return_logprob: bool = True
    stream: bool = False


class FinishInfo(Lenient):
    type: Literal["stop", "length", "abort"]
    matched: int | None = None
    """The stop token id; it is part of ``output_ids``."""


class GenerateMeta(Lenient):
    id: str
    finish_reason: FinishInfo | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """Prompt tokens whose KV was reused."""
    output_token_logprobs: list[tuple[float, int, str | None]]
    """(log-probability after temperature and before top-p, token id, text or None), one a token."""
    weight_versions: list[tuple[int, int]]
    """(policy version, number of output tokens it sampled), in order; sums to completion_tokens."""
    mixed_kv_tokens: int = 0
    """Output tokens sampled over KV of an older version (``in_place`` publication only)."""


class GenerateResponse(Lenient):
    output_ids: list[int]
    meta_info: GenerateMeta


class WeightsReference(Lenient):
    """A version-stamped immutable copy of the weights in another process's memory.

    ``address`` points at a contiguous region of ``num_bytes`` bytes that starts with a header (see
    gpu_workers/transfer); peers pull it with Mooncake's ``transfer_sync_read``.
    """

    peer: str
    """Mooncake segment name, ``host:port``."""
    address: int
    num_bytes: int
    version: int
    sha256: str
    """Of the payload after the header; equal to policy_version.sha256."""


class PullWeights(Lenient):
    reference: WeightsReference
    mode: Literal["retract", "in_place"] = "retract"
    epoch: int
    """Refused (409) unless it is the epoch the engine was started with."""


class EngineInfo(Lenient):
    model_path: str
    weight_version: int
    vocab_size: int
    context_tokens: int
    max_running_requests: int
    num_running: int
    epoch: int
    extra: dict[str, Any] = Field(default_factory=dict[str, Any])
