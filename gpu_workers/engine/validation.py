"""Validation at the edge of the engine: a bad body is answered with one clear sentence."""

import math
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, ValidationError

from gyre.contracts.engine import GenerateRequest
from gyre.contracts.errors import BadInput

M = TypeVar("M", bound=BaseModel)


class Empty(BaseModel):
    """Body of commands without arguments."""

    model_config = ConfigDict(extra="ignore")


async def parse(request: Request, model: type[M]) -> M:
    """Parse the request's body without coercing types; an empty body counts as ``{}``. Raises BadInput."""
    body = await request.body()
    try:
        return model.model_validate_json(body or b"{}", strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{where}: {first['msg']}" if where else first["msg"]) from None


def check_request(request: GenerateRequest, *, vocab: int, context_tokens: int) -> None:
    """Check what types cannot express. Raises BadInput."""
    outside = next((t for t in request.input_ids if not 0 <= t < vocab), None)
    if outside is not None:
        raise BadInput(f"input_ids: token id {outside} is outside the vocabulary of {vocab}")
    if len(request.input_ids) >= context_tokens:
        raise BadInput(
            f"input_ids: {len(request.input_ids)} tokens leave no room for an answer in a context of "
            f"{context_tokens} tokens"
        )
    params = request.sampling_params
    if not math.isfinite(params.temperature):
        raise BadInput("sampling_params.temperature: must be a finite number")
    if params.top_k != -1 and params.top_k < 1:
        raise BadInput("sampling_params.top_k: must be -1 (off) or at least 1")
