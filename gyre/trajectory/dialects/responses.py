"""OpenAI Responses requests.

Rules, each named after what it is about:

* ``turn``: reasoning, message and call items that follow each other are one assistant message, as they
  were one answer; a reasoning item begins the next one.
* ``namespace``: the tools of a namespace are listed as ``<namespace>__<name>``, whatever else there is.
* ``custom tool``: a tool that takes free text becomes a function with one text, ``input``.
* ``hosted tool``: tools that the vendor's own servers run are left out; nobody could answer them here.
* ``record``: an answer is not kept for later requests: what would refer to one is refused.
"""

from collections.abc import Mapping
from typing import Any

from gyre.contracts.errors import BadInput
from gyre.contracts.json_text import prompt_json
from gyre.trajectory.canonical import CanonicalRequest, Message, Role, ToolCall, assistant
from gyre.trajectory.dialects.reading import (
    flag_of,
    function,
    model_of,
    noted_texts,
    objects,
    request,
    text_of,
    texts,
)

WISHES = ("temperature", "top_p")
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
REFERRING = ("previous_response_id", "conversation", "prompt", "background")
"""Fields that speak of something which the vendor keeps."""
CUSTOM_INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
TEXT_KINDS = ("input_text", "output_text", "text", "refusal")
ECHOED = ("metadata", "parallel_tool_calls", "reasoning", "text", "tool_choice")
"""Repeated in the answer as they were sent; not so instructions and tools, which are most of a request."""


def from_responses(body: Mapping[str, Any]) -> CanonicalRequest:
    """An OpenAI Responses request."""
    for name in REFERRING:
        if body.get(name):
            raise BadInput(f"{name} is not served: send the whole conversation as input")
    tools, custom, namespaces = _tools(body)
    instructions = text_of(body.get("instructions"), "instructions")
    messages = [Message("system", (instructions,))] if instructions else []
    echo = {name: body[name] for name in ECHOED if body.get(name) is not None}
    return request(
        messages=messages + _conversation(body.get("input")),
        tools=tools,
        model=model_of(body),
        stream=flag_of(body.get("stream"), "stream"),
        max_tokens=body.get("max_output_tokens"),
        wishes={name: body.get(name) for name in WISHES},
        echo=echo | {"custom": custom, "namespaces": namespaces},
    )


def _tools(
    body: Mapping[str, Any],
) -> tuple[list[dict[str, Any]], frozenset[str], dict[str, tuple[str, str]]]:
    """The functions, the names of custom ones, and (namespace, name) of each listed in a namespace."""
    functions: list[dict[str, Any]] = []
    custom: set[str] = set()
    namespaces: dict[str, tuple[str, str]] = {}
    for namespace, tool in _listed(body):
        if text_of(tool.get("type"), "tools: a type") in HOSTED_TOOLS:
            continue
        listed = _tool(tool, namespace)
        functions.append(listed)
        flat = listed["function"]["name"]
        if tool["type"] == "custom":
            custom.add(flat)
        if namespace:
            namespaces[flat] = (namespace, tool["name"])
    return functions, frozenset(custom), namespaces


def _listed(body: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    listed: list[tuple[str, dict[str, Any]]] = []
    for tool in objects(body.get("tools"), "tools"):
        if tool.get("type") == "namespace":
            name = text_of(tool.get("name"), "tools: the name of a namespace")
            listed += [(name, inner) for inner in objects(tool.get("tools"), "tools of a namespace")]
        else:
            listed.append(("", tool))
    return listed


def _tool(tool: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    name = flat_name(namespace, text_of(tool.get("name"), "tools: a name"))
    match tool.get("type"):
        case "function":
            return function(name, tool.get("description"), tool.get("parameters"))
        case "custom":
            return function(name, _custom_description(tool), CUSTOM_INPUT)
        case kind:
            raise BadInput(f"tools: type {kind!r:.40} is not served, only function, custom and namespace")


def flat_name(namespace: str, name: str) -> str:
    """The name under which the policy knows a tool."""
    return f"{namespace}__{name}" if namespace and name else name


def _custom_description(tool: Mapping[str, Any]) -> str:
    """With the grammar of its input, which nothing but the policy keeps here."""
    said = text_of(tool.get("description"), "tools: a description")
    form = tool.get("format")
    if not isinstance(form, dict) or form.get("type") != "grammar":
        return said
    syntax, definition = text_of(form.get("syntax"), "syntax"), text_of(form.get("definition"), "definition")
    return f"{said}\n\nThe input follows this {syntax} grammar:\n{definition}".strip()


def _conversation(given: Any) -> list[Message]:
    if isinstance(given, str):
        return [Message("user", (given,))] if given else []
    if not isinstance(given, list):
        raise BadInput("input must be a text or a list of items")
    messages: list[Message] = []
    turn = _Turn()
    for item in objects(given, "input"):
        if not turn.takes(item):
            messages += turn.message()
            turn = _Turn()
        if not turn.add(item):
            messages.append(_other(item))
    return messages + turn.message()


class _Turn:
    """The items of one answer."""

    def __init__(self) -> None:
        self._reasoning: list[str] = []
        self._said: list[str] = []
        self._calls: list[ToolCall] = []
        self._empty = True

    def takes(self, item: Mapping[str, Any]) -> bool:
        """Whether the item can belong to this answer."""
        kind = item.get("type", "message")
        if kind == "reasoning":
            return not self._said and not self._calls
        return kind in CALLS or (kind == "message" and item.get("role") == "assistant")

    def add(self, item: Mapping[str, Any]) -> bool:
        """Take an item of the policy's; False for anything else."""
        kind = item.get("type", "message")
        if kind == "reasoning":
            self._reasoning.append(_reasoning(item))
        elif kind in CALLS:
            self._calls.append(_call(item))
        elif kind == "message" and item.get("role") == "assistant":
            self._said += texts(item.get("content"), "content", kinds=TEXT_KINDS)
        else:
            return False
        self._empty = False
        return True

    def message(self) -> list[Message]:
        """One message, or none if nothing was added."""
        if self._empty:
            return []
        reasoning = "".join(self._reasoning)
        return [assistant("".join(self._said), self._calls, reasoning=reasoning or None)]


CALLS = ("function_call", "custom_tool_call")
OUTPUTS = ("function_call_output", "custom_tool_call_output")


def _other(item: Mapping[str, Any]) -> Message:
    """A message of the harness, or what a tool gave back."""
    kind = item.get("type", "message")
    if kind in OUTPUTS:
        content = noted_texts(item.get("output"), "output", kinds=TEXT_KINDS)
        return Message("tool", content, tool_call_id=text_of(item.get("call_id"), "call_id"))
    if kind != "message":
        raise BadInput(f"input: an item of type {kind!r:.40} is not served")
    roles: dict[Any, Role] = {"user": "user", "system": "system", "developer": "system"}
    role = item.get("role")
    if not isinstance(role, str) or role not in roles:
        raise BadInput(f"input: role {role!r:.40} is not one of system, developer, user, assistant")
    read = noted_texts if role == "user" else texts
    return Message(roles[role], read(item.get("content"), "content", kinds=TEXT_KINDS))


def _call(item: Mapping[str, Any]) -> ToolCall:
    name = text_of(item.get("name"), "the name of a call")
    flat = flat_name(text_of(item.get("namespace"), "namespace"), name)
    if item["type"] == "function_call":
        arguments = text_of(item.get("arguments"), "arguments") or "{}"
    else:
        arguments = prompt_json({"input": text_of(item.get("input"), "input")})
    return ToolCall(text_of(item.get("call_id"), "call_id"), flat, arguments)


def _reasoning(item: Mapping[str, Any]) -> str:
    """Its full text where it came along, else the summary: we send the same as both."""
    full = texts(item.get("content"), "content", kinds=("reasoning_text", "text"))
    return "".join(full or texts(item.get("summary"), "summary", kinds=("summary_text",)))
