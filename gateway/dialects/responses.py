"""OpenAI Responses."""

import json
from collections.abc import Mapping
from typing import Any

from gateway.dialects.base import Finished, Reply, Stream, event
from gateway.dialects.openai import error_detail
from gateway.errors import sentence_of
from gyre.trajectory.answers import Answer, short_hash
from gyre.trajectory.canonical import CanonicalRequest, ToolCall
from gyre.trajectory.dialects import from_responses

Item = dict[str, Any]


class OpenAIResponses:
    name, tool_prefix = "responses", "call_"

    def parse(self, body: Mapping[str, Any]) -> CanonicalRequest:
        return from_responses(body)

    def whole(self, reply: Reply, finished: Finished) -> dict[str, Any]:
        return _ended(reply, finished)

    def stream(self, reply: Reply) -> Stream:
        return ResponseStream(reply)

    def error(self, status: int, error: BaseException) -> tuple[int, dict[str, Any]]:
        return status, {"error": error_detail(status, error)}


class ResponseStream(Stream):
    """Items one after the other, reasoning, message, calls, each opened, filled and closed; all numbered."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self._sequence, self._output_index = 0, -1
        self._open = ""
        self._said = ""

    def start(self) -> bytes:
        begun = {"response": _response(self.reply, "in_progress", [])}
        return self._event("response.created", **begun) + self._event("response.in_progress", **begun)

    def say(self, reasoning: str, text: str) -> bytes:
        return (self._reason(reasoning) if reasoning else b"") + (self._write(text) if text else b"")

    def finish(self, finished: Finished) -> bytes:
        calls = finished.answer.tool_calls
        said = b"" if calls or self._open == "message" else self._write("")
        said += self._close()
        for call in calls:
            said += self._call(_call_item(self.reply, call))
        return said

    def end(self, finished: Finished) -> bytes:
        response = _ended(self.reply, finished)
        return self._event(f"response.{response['status']}", response=response)

    def error(self, status: int, error: BaseException) -> bytes:
        code = "server_error" if status >= 500 else "invalid_prompt"
        detail = {"error": {"code": code, "message": sentence_of(error)}}
        return self._event("response.failed", response=_response(self.reply, "failed", []) | detail)

    def _reason(self, reasoning: str) -> bytes:
        said = b""
        if self._open != "reasoning":
            said = self._open_item("reasoning", _reasoning_item(self.reply, ""))
            said += self._part("response.reasoning_summary_part.added", part=_summary(""))
        self._said += reasoning
        return said + self._part("response.reasoning_summary_text.delta", delta=reasoning)

    def _write(self, text: str) -> bytes:
        said = b""
        if self._open != "message":
            item = _message_item(self.reply, "") | {"status": "in_progress", "content": []}
            said = self._close() + self._open_item("message", item)
            said += self._part("response.content_part.added", part=_text_part(""))
        self._said += text
        return said + self._part("response.output_text.delta", delta=text, logprobs=[])

    def _close(self) -> bytes:
        """End the item that is open, if one is."""
        said = b""
        if self._open == "reasoning":
            said += self._part("response.reasoning_summary_text.done", text=self._said)
            said += self._part("response.reasoning_summary_part.done", part=_summary(self._said))
            said += self._close_item(_reasoning_item(self.reply, self._said))
        elif self._open == "message":
            said += self._part("response.output_text.done", text=self._said, logprobs=[])
            said += self._part("response.content_part.done", part=_text_part(self._said))
            said += self._close_item(_message_item(self.reply, self._said))
        return said

    def _call(self, item: Item) -> bytes:
        field, kind = _FILLED[item["type"]]
        filled = item[field]
        said = self._open_item(item["type"], item | {field: "", "status": "in_progress"})
        where = {"output_index": self._output_index, "item_id": item["id"]}
        said += self._event(f"response.{kind}.delta", **where, delta=filled)
        said += self._event(f"response.{kind}.done", **where, **{field: filled})
        return said + self._close_item(item)

    def _open_item(self, kind: str, item: Item) -> bytes:
        self._output_index += 1
        self._open, self._said = kind, ""
        self._item_id = item["id"]
        return self._event("response.output_item.added", output_index=self._output_index, item=item)

    def _close_item(self, item: Item) -> bytes:
        self._open = ""
        return self._event("response.output_item.done", output_index=self._output_index, item=item)

    def _part(self, kind: str, **data: Any) -> bytes:
        """An event of the only part of the open item."""
        which = "summary_index" if self._open == "reasoning" else "content_index"
        where = {"item_id": self._item_id, "output_index": self._output_index, which: 0}
        return self._event(kind, **where, **data)

    def _event(self, kind: str, **data: Any) -> bytes:
        self._sequence += 1
        return event(kind, {"sequence_number": self._sequence - 1, **data})


_FILLED = {
    "function_call": ("arguments", "function_call_arguments"),
    "custom_tool_call": ("input", "custom_tool_call_input"),
}
"""Where a call item holds what the policy wrote, and how the events about it are called."""


def _ended(reply: Reply, finished: Finished) -> dict[str, Any]:
    output = _output(reply, finished.answer)
    cached = {"cached_tokens": 0, "cache_write_tokens": 0}
    usage = {
        "input_tokens": reply.num_input_tokens,
        "input_tokens_details": cached,
        "output_tokens": finished.num_output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.num_input_tokens + finished.num_output_tokens,
    }
    if not finished.truncated:
        return _response(reply, "completed", output) | {"usage": usage}
    cut = {"usage": usage, "incomplete_details": {"reason": "max_output_tokens"}}
    return _response(reply, "incomplete", output) | cut


def _response(reply: Reply, status: str, output: list[Item]) -> dict[str, Any]:
    echoed = {name: value for name, value in reply.echo.items() if name not in ("custom", "namespaces")}
    return {
        "id": f"resp_{short_hash(reply.call_id)}",
        "object": "response",
        "created_at": reply.created,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "model": reply.model,
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
        **echoed,
    }


def _output(reply: Reply, answer: Answer) -> list[Item]:
    items: list[Item] = []
    if answer.reasoning:
        items.append(_reasoning_item(reply, answer.reasoning))
    # A client that sends an answer back must have an item to send.
    if answer.text or not answer.tool_calls:
        items.append(_message_item(reply, answer.text))
    return items + [_call_item(reply, call) for call in answer.tool_calls]


def _reasoning_item(reply: Reply, text: str) -> Item:
    summary = [_summary(text)] if text else []
    return {"id": f"rs_{short_hash(reply.call_id)}", "type": "reasoning", "summary": summary}


def _message_item(reply: Reply, text: str) -> Item:
    head = {"id": f"msg_{short_hash(reply.call_id)}", "type": "message", "role": "assistant"}
    return head | {"status": "completed", "content": [_text_part(text)]}


def _call_item(reply: Reply, call: ToolCall) -> Item:
    """Under the name that the request gave the tool, and in the form that it has there."""
    namespace, name = reply.echo.get("namespaces", {}).get(call.name, ("", call.name))
    number = call.id.partition("_")[2]
    item: Item = {"status": "completed", "call_id": call.id, "name": name}
    if namespace:
        item["namespace"] = namespace
    if call.name in reply.echo.get("custom", ()):
        return {"id": f"ctc_{number}", "type": "custom_tool_call", **item, "input": _custom_input(call)}
    return {"id": f"fc_{number}", "type": "function_call", **item, "arguments": call.arguments}


def _custom_input(call: ToolCall) -> str:
    """The free text; what the policy wrote instead of one goes to the tool as it is."""
    given: Mapping[str, Any] = json.loads(call.arguments)
    text = given.get("input")
    return text if isinstance(text, str) else call.arguments


def _summary(text: str) -> Item:
    return {"type": "summary_text", "text": text}


def _text_part(text: str) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
