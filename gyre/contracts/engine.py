"""The engine protocol: the part of SGLang's HTTP interface that Gyre uses. Token ids in, token ids out.

``POST /generate`` takes GenerateRequest and returns GenerateResponse. With ``stream`` it returns server-sent
events ``data: <GenerateResponse>`` with cumulative ``output_ids``, and ``data: [DONE]`` at the end.
``POST /abort_request`` takes ``{"rid": ...}``; the aborted request returns the tokens sampled so far.
``POST /pause_generation``, ``POST /continue_generation``, ``POST /flush_cache``,
``POST /release_memory_occupation``, ``POST /resume_memory_occupation`` take ``{}``.
``POST /pull_weights`` takes PullWeights and is Gyre's own: weights are transferred by Mooncake only.
``GET /health``, ``GET /get_server_info`` (EngineInfo), ``GET /metrics`` (Prometheus text).
A bad request gets a 4xx with ``{"error": {"message": reason}}``.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Lenient(BaseModel):
    """Base of the protocol's messages. Unknown fields are ignored: a server may send more than Gyre reads."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class SamplingParams(Lenient):
    """Parameters of sampling. ``temperature`` 0 is greedy and reports log-probabilities at temperature 1."""

    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = -1
    max_new_tokens: int = Field(default=128, ge=1)
    stop_token_ids: list[int] = Field(default_factory=list[int])
    sampling_seed: int = Field(default=0, ge=0, lt=1 << 63)
    """Makes each token a function of its logits, the seed and its position in the whole sequence."""


class GenerateRequest(Lenient):
    rid: str | None = None
    input_ids: list[int] = Field(min_length=1)
    sampling_params: SamplingParams = SamplingParams()
    return_logprob: bool = True
    stream: bool = False


class FinishInfo(Lenient):
    type: Literal["stop", "length", "abort"]
    matched: int | None = None
    """The stop token's id, which is also the last of ``output_ids``."""


class GenerateMeta(Lenient):
    id: str
    finish_reason: FinishInfo | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """Number of prompt tokens whose KV was reused."""
    output_token_logprobs: list[tuple[float, int, str | None]]
    """Per token: (log-probability after temperature and before top-p, token id, text or None)."""
    weight_versions: list[tuple[int, int]]
    """Spans (policy version, number of output tokens it sampled), in order; they sum to completion_tokens."""
    mixed_kv_tokens: int = 0
    """Number of output tokens sampled over KV of an older version; 0 unless publication is ``in_place``."""


class GenerateResponse(Lenient):
    output_ids: list[int]
    meta_info: GenerateMeta


class WeightsReference(Lenient):
    """An immutable copy of one version of the weights in another process's memory.

    ``address`` points at a contiguous region of ``num_bytes`` bytes that starts with a header (see
    gpu_workers/transfer). Peers pull it with Mooncake's ``transfer_sync_read``.
    """

    peer: str
    """Mooncake segment name, ``host:port``."""
    address: int
    num_bytes: int
    version: int
    sha256: str
    """SHA-256 of the payload after the header; equal to ``policy_version.sha256``."""


class PullWeights(Lenient):
    reference: WeightsReference
    mode: Literal["retract", "in_place"] = "retract"
    epoch: int
    """Must be the epoch that the engine was started with; otherwise the request is refused (409)."""


class EngineInfo(Lenient):
    model_path: str
    weight_version: int
    vocab_size: int
    context_tokens: int
    max_running_requests: int
    num_running: int
    epoch: int
    extra: dict[str, Any] = Field(default_factory=dict[str, Any])
