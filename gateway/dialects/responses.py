"""OpenAI Responses.

* ``turn``: consecutive reasoning, message and call items are one assistant message, as they were one answer;
  a reasoning item begins the next one.
* ``namespace``: the tools of a namespace are always listed as ``<namespace>__<name>``.
* ``custom tool``: a tool that takes free text becomes a function with one text parameter, ``input``.
* ``hosted tool``: tools that run on the vendor's own servers are left out: nothing here could run them.
* ``record``: answers are not kept for later requests, so whatever refers to one is refused.
"""

import json
from collections.abc import Mapping
from typing import Any

from gateway.dialects.base import Finished, Reply, Stream, event
from gateway.dialects.openai import error_detail
from gateway.dialects.reading import (
    canonical_request,
    flag_of,
    function_tool,
    model_of,
    objects,
    text_of,
    texts,
)
from gateway.errors import sentence_of
from gyre.contracts.errors import BadInput
from gyre.contracts.json_text import prompt_json
from gyre.trajectory.answers import short_hash
from gyre.trajectory.canonical import CanonicalRequest, Message, Role, ToolCall, assistant

Item = dict[str, Any]

SAMPLING = ("temperature", "top_p")
HOSTED_TOOLS = frozenset(
    {
        "code_interpreter",
        "file_search",
        "image_generation",
        "mcp",
        "tool_search",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    }
)
STORED = ("previous_response_id", "conversation", "prompt", "background")
"""Fields that refer to something the vendor would have stored."""
CUSTOM_INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
TEXT_KINDS = ("input_text", "output_text", "text", "refusal")
ECHOED = ("metadata", "parallel_tool_calls", "reasoning", "text", "tool_choice")
"""Repeated in the answer as they were sent; not instructions and tools, which are most of a request."""
ROLES: dict[Any, Role] = {"user": "user", "system": "system", "developer": "system"}
CALLS = ("function_call", "custom_tool_call")
OUTPUTS = ("function_call_output", "custom_tool_call_output")


class OpenAIResponses:
    name, tool_prefix = "responses", "call_"

    def parse(self, body: Mapping[str, Any]) -> CanonicalRequest:
        for name in STORED:
            if body.get(name):
                raise BadInput(f"{name} is not served: send the whole conversation as input")
        tools, custom, namespaces = _read_tools(body)
        instructions = text_of(body.get("instructions"), "instructions")
        messages = [Message("system", (instructions,))] if instructions else []
        echo = {name: body[name] for name in ECHOED if body.get(name) is not None}
        return canonical_request(
            messages=messages + _read_conversation(body.get("input")),
            tools=tools,
            model=model_of(body),
            stream=flag_of(body.get("stream"), "stream"),
            max_tokens=body.get("max_output_tokens"),
            sampling={name: body.get(name) for name in SAMPLING},
            echo=echo | {"custom": custom, "namespaces": namespaces},
        )

    def whole(self, reply: Reply, finished: Finished) -> dict[str, Any]:
        return _ended_response(reply, finished)

    def stream(self, reply: Reply) -> Stream:
        return ResponseStream(reply)

    def error(self, status: int, error: BaseException) -> tuple[int, dict[str, Any]]:
        return status, {"error": error_detail(status, error)}


# Reading requests ------------------------------------------------------------------------------


def _read_tools(
    body: Mapping[str, Any],
) -> tuple[list[dict[str, Any]], frozenset[str], dict[str, tuple[str, str]]]:
    """Return the functions, the names of custom ones, and flat name -> (namespace, name)."""
    listed: list[tuple[str, dict[str, Any]]] = []
    for tool in objects(body.get("tools"), "tools"):
        if tool.get("type") == "namespace":
            namespace = text_of(tool.get("name"), "tools: the name of a namespace")
            listed += [(namespace, inner) for inner in objects(tool.get("tools"), "tools of a namespace")]
        else:
            listed.append(("", tool))
    functions: list[dict[str, Any]] = []
    custom: set[str] = set()
    namespaces: dict[str, tuple[str, str]] = {}
    for namespace, tool in listed:
        if text_of(tool.get("type"), "tools: a type") in HOSTED_TOOLS:
            continue
        functions.append(_read_tool(tool, namespace))
        name = functions[-1]["function"]["name"]
        if tool["type"] == "custom":
            custom.add(name)
        if namespace:
            namespaces[name] = (namespace, tool["name"])
    return functions, frozenset(custom), namespaces


def _read_tool(tool: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    name = _flat_name(namespace, text_of(tool.get("name"), "tools: a name"))
    match tool.get("type"):
        case "function":
            return function_tool(name, tool.get("description"), tool.get("parameters"))
        case "custom":
            return function_tool(name, _custom_description(tool), CUSTOM_INPUT)
        case kind:
            raise BadInput(f"tools: type {kind!r:.40} is not served, only function, custom and namespace")


def _flat_name(namespace: str, name: str) -> str:
    """Return the name that the policy sees."""
    return f"{namespace}__{name}" if namespace and name else name


def _custom_description(tool: Mapping[str, Any]) -> str:
    """Add the grammar of the input: nothing here enforces it, so the policy has to follow it."""
    text = text_of(tool.get("description"), "tools: a description")
    form = tool.get("format")
    if not isinstance(form, dict) or form.get("type") != "grammar":
        return text
    syntax, definition = text_of(form.get("syntax"), "syntax"), text_of(form.get("definition"), "definition")
    return f"{text}\n\nThe input follows this {syntax} grammar:\n{definition}".strip()


def _read_conversation(sent: Any) -> list[Message]:
    if isinstance(sent, str):
        return [Message("user", (sent,))] if sent else []
    if not isinstance(sent, list):
        raise BadInput("input must be a text or a list of items")
    messages: list[Message] = []
    turn = _Turn()
    for item in objects(sent, "input"):
        if not turn.takes(item):
            messages += turn.message()
            turn = _Turn()
        if not turn.add(item):
            messages.append(_read_other(item))
    return messages + turn.message()


class _Turn:
    """Collects the items of one answer."""

    def __init__(self) -> None:
        self._reasoning: list[str] = []
        self._written: list[str] = []
        self._calls: list[ToolCall] = []
        self._empty = True

    def takes(self, item: Mapping[str, Any]) -> bool:
        """Return whether the item can belong to this answer."""
        kind = item.get("type", "message")
        if kind == "reasoning":
            return not self._written and not self._calls
        return kind in CALLS or (kind == "message" and item.get("role") == "assistant")

    def add(self, item: Mapping[str, Any]) -> bool:
        """Add an item of an answer; return False for any other."""
        kind = item.get("type", "message")
        if kind == "reasoning":
            full = texts(item.get("content"), "content", "assistant", kinds=("reasoning_text", "text"))
            # The answers written below hold the full text as their summary.
            self._reasoning += full or texts(
                item.get("summary"), "summary", "assistant", kinds=("summary_text",)
            )
        elif kind in CALLS:
            self._calls.append(_read_call(item))
        elif kind == "message" and item.get("role") == "assistant":
            self._written += texts(item.get("content"), "content", "assistant", kinds=TEXT_KINDS)
        else:
            return False
        self._empty = False
        return True

    def message(self) -> list[Message]:
        """Return one message, or none if nothing was added."""
        if self._empty:
            return []
        reasoning = "".join(self._reasoning)
        return [assistant("".join(self._written), self._calls, reasoning=reasoning or None)]


def _read_other(item: Mapping[str, Any]) -> Message:
    """Read a message of the harness or the output of a tool."""
    kind = item.get("type", "message")
    if kind in OUTPUTS:
        content = texts(item.get("output"), "output", "tool", kinds=TEXT_KINDS)
        return Message("tool", content, tool_call_id=text_of(item.get("call_id"), "call_id"))
    if kind != "message":
        raise BadInput(f"input: an item of type {kind!r:.40} is not served")
    sender = item.get("role")
    if not isinstance(sender, str) or sender not in ROLES:
        raise BadInput(f"input: role {sender!r:.40} is not one of system, developer, user, assistant")
    role = ROLES[sender]
    return Message(role, texts(item.get("content"), "content", role, kinds=TEXT_KINDS))


def _read_call(item: Mapping[str, Any]) -> ToolCall:
    name = text_of(item.get("name"), "the name of a call")
    flat = _flat_name(text_of(item.get("namespace"), "namespace"), name)
    if item["type"] == "function_call":
        arguments = text_of(item.get("arguments"), "arguments") or "{}"
    else:
        arguments = prompt_json({"input": text_of(item.get("input"), "input")})
    return ToolCall(text_of(item.get("call_id"), "call_id"), flat, arguments)


# Writing answers -------------------------------------------------------------------------------


class ResponseStream(Stream):
    """Items in order (reasoning, message, calls), each opened, filled and closed; all events are numbered."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self._sequence, self._output_index = 0, -1
        self._open = ""
        self._written = ""

    def start(self) -> bytes:
        begun = {"response": _response(self.reply, "in_progress", [])}
        return self._event("response.created", **begun) + self._event("response.in_progress", **begun)

    def emit(self, reasoning: str, text: str) -> bytes:
        events = b""
        if reasoning:
            if self._open != "reasoning":
                events += self._open_item("reasoning", _reasoning_item(self.reply, ""))
                events += self._part("response.reasoning_summary_part.added", part=_summary(""))
            self._written += reasoning
            events += self._part("response.reasoning_summary_text.delta", delta=reasoning)
        return events + (self._message_text(text) if text else b"")

    def finish(self, finished: Finished) -> bytes:
        calls = finished.answer.tool_calls
        events = b"" if calls or self._open == "message" else self._message_text("")
        events += self._close()
        for call in calls:
            events += self._call(_call_item(self.reply, call))
        return events

    def end(self, finished: Finished) -> bytes:
        response = _ended_response(self.reply, finished)
        return self._event(f"response.{response['status']}", response=response)

    def error(self, status: int, error: BaseException) -> bytes:
        code = "server_error" if status >= 500 else "invalid_prompt"
        detail = {"error": {"code": code, "message": sentence_of(error)}}
        return self._event("response.failed", response=_response(self.reply, "failed", []) | detail)

    def _message_text(self, text: str) -> bytes:
        events = b""
        if self._open != "message":
            item = _message_item(self.reply, "") | {"status": "in_progress", "content": []}
            events += self._close() + self._open_item("message", item)
            events += self._part("response.content_part.added", part=_text_part(""))
        self._written += text
        return events + self._part("response.output_text.delta", delta=text, logprobs=[])

    def _close(self) -> bytes:
        """Close the open item, if there is one."""
        events, written = b"", self._written
        if self._open == "reasoning":
            events += self._part("response.reasoning_summary_text.done", text=written)
            events += self._part("response.reasoning_summary_part.done", part=_summary(written))
            events += self._close_item(_reasoning_item(self.reply, written))
        elif self._open == "message":
            events += self._part("response.output_text.done", text=written, logprobs=[])
            events += self._part("response.content_part.done", part=_text_part(written))
            events += self._close_item(_message_item(self.reply, written))
        return events

    def _call(self, item: Item) -> bytes:
        function = item["type"] == "function_call"
        field = "arguments" if function else "input"
        kind = "response.function_call_arguments" if function else "response.custom_tool_call_input"
        events = self._open_item(item["type"], item | {field: "", "status": "in_progress"})
        place = {"output_index": self._output_index, "item_id": item["id"]}
        events += self._event(f"{kind}.delta", **place, delta=item[field])
        events += self._event(f"{kind}.done", **place, **{field: item[field]})
        return events + self._close_item(item)

    def _open_item(self, kind: str, item: Item) -> bytes:
        self._output_index += 1
        self._open, self._written = kind, ""
        self._item_id = item["id"]
        return self._event("response.output_item.added", output_index=self._output_index, item=item)

    def _close_item(self, item: Item) -> bytes:
        self._open = ""
        return self._event("response.output_item.done", output_index=self._output_index, item=item)

    def _part(self, kind: str, **data: Any) -> bytes:
        """Write an event about the only part of the open item."""
        index = "summary_index" if self._open == "reasoning" else "content_index"
        place = {"item_id": self._item_id, "output_index": self._output_index, index: 0}
        return self._event(kind, **place, **data)

    def _event(self, kind: str, **data: Any) -> bytes:
        self._sequence += 1
        return event(kind, {"sequence_number": self._sequence - 1, **data})


def _ended_response(reply: Reply, finished: Finished) -> dict[str, Any]:
    answer = finished.answer
    output = [_reasoning_item(reply, answer.reasoning)] if answer.reasoning else []
    # A client that sends an answer back must have an item to send.
    if answer.text or not answer.tool_calls:
        output.append(_message_item(reply, answer.text))
    output += [_call_item(reply, call) for call in answer.tool_calls]
    usage = {
        "input_tokens": reply.num_input_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
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


def _reasoning_item(reply: Reply, text: str) -> Item:
    summary = [_summary(text)] if text else []
    return {"id": f"rs_{short_hash(reply.call_id)}", "type": "reasoning", "summary": summary}


def _message_item(reply: Reply, text: str) -> Item:
    head = {"id": f"msg_{short_hash(reply.call_id)}", "type": "message", "role": "assistant"}
    return head | {"status": "completed", "content": [_text_part(text)]}


def _call_item(reply: Reply, call: ToolCall) -> Item:
    """Write a call under the name and in the form that the request gave the tool."""
    namespace, name = reply.echo.get("namespaces", {}).get(call.name, ("", call.name))
    number = call.id.partition("_")[2]
    item: Item = {"status": "completed", "call_id": call.id, "name": name}
    if namespace:
        item["namespace"] = namespace
    if call.name not in reply.echo.get("custom", ()):
        return {"id": f"fc_{number}", "type": "function_call", **item, "arguments": call.arguments}
    arguments: Mapping[str, Any] = json.loads(call.arguments)
    text = arguments.get("input")
    # Where the policy wrote no free text, the tool gets its arguments as they are.
    text = text if isinstance(text, str) else call.arguments
    return {"id": f"ctc_{number}", "type": "custom_tool_call", **item, "input": text}


def _summary(text: str) -> Item:
    return {"type": "summary_text", "text": text}


def _text_part(text: str) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
