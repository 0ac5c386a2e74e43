"""The state of one request, from its arrival to its finished answer."""

import itertools
from dataclasses import dataclass, field
from typing import NamedTuple

from gyre.contracts.engine import (
    FinishInfo,
    GenerateMeta,
    GenerateRequest,
    GenerateResponse,
    SamplingParams,
)


class SampledToken(NamedTuple):
    token: int
    logprob: float
    version: int
    mixed_kv: bool
    """Whether it was sampled over KV computed with older weights."""


@dataclass(slots=True, eq=False)
class Generation:
    """State of one request. Only the scheduler's thread writes; others read through ``snapshot``."""

    rid: str
    prompt: tuple[int, ...]
    params: SamplingParams
    max_total: int
    """Number of tokens, prompt included, at which it ends with ``length``."""
    stream: bool = False
    tokens: list[int] = field(default_factory=list[int])
    """Prompt and output."""
    sampled: list[SampledToken] = field(default_factory=list[SampledToken])
    """Append-only, so that a snapshot from another thread is consistent."""
    num_cached: int = 0
    """Number of tokens whose KV is in this request's row."""
    mixed_kv: bool = False
    """Whether some of that KV was computed with older weights."""
    reused: int | None = None
    """Number of prompt tokens found in the prefix cache when it first ran."""
    finish: FinishInfo | None = None
    failure: str | None = None

    @classmethod
    def of(cls, request: GenerateRequest, rid: str, context_tokens: int) -> "Generation":
        prompt = tuple(request.input_ids)
        return cls(
            rid=rid,
            prompt=prompt,
            params=request.sampling_params,
            max_total=min(len(prompt) + request.sampling_params.max_new_tokens, context_tokens),
            stream=request.stream,
            tokens=list(prompt),
        )

    @property
    def num_uncached(self) -> int:
        """Number of tokens to compute before the next one can be sampled; at least 1."""
        return len(self.tokens) - self.num_cached

    @property
    def ended(self) -> bool:
        return self.finish is not None or self.failure is not None

    def drop_kv(self) -> None:
        """Forget the KV, which will be recomputed."""
        self.num_cached, self.mixed_kv = 0, False

    def append(self, token: int, logprob: float, version: int) -> None:
        """Append a sampled token and finish if it is a stop token or the last one that fits."""
        self.tokens.append(token)
        self.sampled.append(SampledToken(token, logprob, version, self.mixed_kv))
        if token in self.params.stop_token_ids:
            self.finish = FinishInfo(type="stop", matched=token)
        elif len(self.tokens) >= self.max_total:
            self.finish = FinishInfo(type="length")

    def snapshot(self) -> GenerateResponse:
        """Return the answer so far."""
        finish = self.finish  # Read before the tokens: a finished answer must have all of them.
        sampled = tuple(self.sampled)
        spans = [(v, len(list(group))) for v, group in itertools.groupby(s.version for s in sampled)]
        return GenerateResponse(
            output_ids=[s.token for s in sampled],
            meta_info=GenerateMeta(
                id=self.rid,
                finish_reason=finish,
                prompt_tokens=len(self.prompt),
                completion_tokens=len(sampled),
                cached_tokens=self.reused or 0,
                output_token_logprobs=[(s.logprob, s.token, None) for s in sampled],
                weight_versions=spans,
                mixed_kv_tokens=sum(s.mixed_kv for s in sampled),
            ),
        )
