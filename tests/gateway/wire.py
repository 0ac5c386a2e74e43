"""The same request in every dialect, and readers of the answers, without the vendors' clients."""

from typing import Any

DIALECTS = ("anthropic", "openai", "responses", "google")
PATHS = {
    "anthropic": "/v1/messages",
    "openai": "/v1/chat/completions",
    "responses": "/v1/responses",
    "google": "/v1beta/models/m:generateContent",
}
GOOGLE_STREAM = "/v1beta/models/m:streamGenerateContent?alt=sse"


def request_in(
    dialect: str, *texts: str, max_tokens: int | None = None, stream: bool = False
) -> tuple[str, dict[str, Any]]:
    """Return path and body of a request in which user and assistant alternate."""
    if dialect == "google":
        contents = [
            {"role": ("user", "model")[i % 2], "parts": [{"text": text}]} for i, text in enumerate(texts)
        ]
        bound = {"generationConfig": {"maxOutputTokens": max_tokens}} if max_tokens else {}
        return GOOGLE_STREAM if stream else PATHS[dialect], {"contents": contents, **bound}
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    body: dict[str, Any] = {"model": "m", "stream": stream}
    if max_tokens:
        body["max_output_tokens" if dialect == "responses" else "max_tokens"] = max_tokens
    return PATHS[dialect], body | {"input" if dialect == "responses" else "messages": messages}


def text_in(dialect: str, answer: dict[str, Any]) -> str:
    """Return the text of an answer without tool calls."""
    match dialect:
        case "anthropic":
            return "".join(block.get("text", "") for block in answer["content"])
        case "openai":
            return answer["choices"][0]["message"]["content"]
        case "responses":
            return "".join(part["text"] for item in answer["output"] for part in item.get("content", []))
        case _:
            return "".join(part["text"] for part in answer["candidates"][0]["content"]["parts"])


def refusal_in(answer: dict[str, Any]) -> tuple[str, str]:
    """Return kind and sentence of an error answer. Google calls the kind a status."""
    error = answer["error"]
    return error.get("type") or error["status"], error["message"]
