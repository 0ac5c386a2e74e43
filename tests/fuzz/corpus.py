"""A few realistic requests of each dialect, for the fuzz test to mutate.

A dialect is data: its requests, how to read its refusals, and how a conversation continues.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Body = dict[str, Any]


@dataclass(frozen=True)
class DialectCorpus:
    """A dialect. ``requests`` are (path, body); bodies are never changed in place."""

    name: str
    requests: tuple[tuple[str, Body], ...]
    ends: tuple[bytes, ...]
    """Texts, one of which the last event of a stream contains."""
    fails: bytes
    """The text that the last event of a failed stream contains."""
    sentence: Callable[[Any], str]
    """Return the sentence of a refusal. Raises KeyError, TypeError or AssertionError for another shape."""
    follow: Callable[[Body, Any], Body]
    """Return the next request, from the last one and its answer. Raises the same errors."""


SYSTEM = "You are a careful engineer. Work in /workspace, run the tests, and say what you did. " * 6
TASK = 'Fix the bug in "parse.py": `int("١٢")` must fail.\n\tThen run\r\nthe tests — 🍎 ñ.'
LONG = "def f(x):\n    return [y for y in x if y]  # keep what is there\n" * 400
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SCHEMA = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "description": "what to run"},
        "timeout": {"type": "integer", "minimum": 1},
        "files": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["command"],
    "additionalProperties": False,
}
ARGUMENTS = {"command": 'grep -n "int(" parse.py', "timeout": 30, "files": ["a b", "ü"]}
RESULT = "12:    return int(text)\n[exit 0]"


def _anthropic() -> DialectCorpus:
    tools = [{"name": n, "description": f"{n} it", "input_schema": SCHEMA} for n in ("Bash", "Edit", "Read")]
    cached = {"cache_control": {"type": "ephemeral"}}
    base = {"model": "claude-x", "max_tokens": 60, "messages": [{"role": "user", "content": TASK}]}
    blocks = [
        {"type": "thinking", "thinking": "It is line 12.", "signature": "c2ln"},
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": ARGUMENTS},
        {"type": "tool_use", "id": "toolu_2", "name": "Read", "input": {}},
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": RESULT},
        {
            "type": "tool_result",
            "tool_use_id": "toolu_2",
            "content": [{"type": "text", "text": "no"}],
            "is_error": True,
        },
        {"type": "text", "text": "<system-reminder>be brief</system-reminder>", **cached},
    ]
    turns = [{"role": "user", "content": TASK}, {"role": "assistant", "content": blocks}]
    full = base | {
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=ab1;"},
            {"type": "text", "text": SYSTEM, **cached},
        ],
        "tools": tools,
        "messages": [*turns, {"role": "user", "content": results}],
        "metadata": {"user_id": '{"session_id": "s"}'},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "temperature": 1,
    }
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    seen = base | {"messages": [{"role": "user", "content": [{"type": "text", "text": "See:"}, image]}]}
    odd = base | {"messages": [*base["messages"], {"role": "system", "content": "a note"}]}
    messages, counting = "/v1/messages?beta=true", "/v1/messages/count_tokens?beta=true"
    uncounted = {name: value for name, value in full.items() if name not in ("max_tokens", "temperature")}
    return DialectCorpus(
        "anthropic",
        (
            (messages, base),
            (messages, full),
            (messages, full | {"stream": True}),
            (messages, base | {"stream": True, "system": SYSTEM, "stop_sequences": ["END"]}),
            (messages, seen),
            (messages, odd),
            (messages, base | {"messages": [{"role": "user", "content": LONG}]}),
            (counting, uncounted),
        ),
        ends=(b"event: message_stop",),
        fails=b"event: error",
        sentence=_anthropic_sentence,
        follow=_anthropic_follow,
    )


def _anthropic_sentence(document: Any) -> str:
    assert document["type"] == "error"
    assert isinstance(document["error"]["type"], str)
    return document["error"]["message"]


def _anthropic_follow(body: Body, answer: Any) -> Body:
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": RESULT}
        for block in answer["content"]
        if block["type"] == "tool_use"
    ]
    answered = {"role": "assistant", "content": answer["content"]}
    return body | {
        "messages": [*body["messages"], answered, {"role": "user", "content": results or "Go on."}]
    }


def _openai() -> DialectCorpus:
    tools = [
        {"type": "function", "function": {"name": n, "description": f"{n} it", "parameters": SCHEMA}}
        for n in ("bash", "edit")
    ]
    user = {"role": "user", "content": TASK}
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "bash", "arguments": json.dumps(ARGUMENTS)},
    }
    base = {"model": "gpt-x", "messages": [{"role": "system", "content": SYSTEM}, user], "max_tokens": 60}
    full = {
        "model": "gpt-x",
        "messages": [
            {"role": "developer", "content": [{"type": "text", "text": SYSTEM}]},
            user,
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "Line 12."},
            {"role": "tool", "tool_call_id": "call_1", "content": RESULT},
            {"role": "assistant", "content": "Found it."},
            {"role": "user", "content": [{"type": "text", "text": "Fix it."}, {"type": "text", "text": ""}]},
        ],
        "tools": tools,
        "tool_choice": "auto",
        "max_completion_tokens": 60,
        "temperature": 0.2,
        "n": 1,
    }
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    seen = base | {"messages": [{"role": "user", "content": [{"type": "text", "text": "See:"}, image]}]}
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    path = "/v1/chat/completions"
    return DialectCorpus(
        "openai",
        (
            (path, base),
            (path, full),
            (path, full | usage),
            (path, base | {"stream": True, "stop": ["END"], "seed": 7}),
            (path, seen),
            (path, base | {"messages": [user, {"role": "user", "content": LONG}]}),
        ),
        ends=(b"data: [DONE]",),
        fails=b'data: {"error"',
        sentence=_openai_sentence,
        follow=_openai_follow,
    )


def _openai_sentence(document: Any) -> str:
    assert isinstance(document["error"]["type"], str)
    return document["error"]["message"]


def _openai_follow(body: Body, answer: Any) -> Body:
    message = answer["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": RESULT}
        for call in message.get("tool_calls") or []
    ]
    return body | {
        "messages": [*body["messages"], message, *(results or [{"role": "user", "content": "Go on."}])]
    }


def _responses() -> DialectCorpus:
    tools = [
        {
            "type": "function",
            "name": "exec_command",
            "description": "run",
            "parameters": SCHEMA,
            "strict": False,
        },
        {"type": "custom", "name": "apply_patch", "description": "patch", "format": {"type": "text"}},
        {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}]},
        {"type": "web_search"},
    ]
    user = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": TASK}]}
    messages = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        user,
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Line 12."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {
            "type": "function_call",
            "call_id": "call_1",
            "name": "exec_command",
            "arguments": json.dumps(ARGUMENTS),
        },
        {"type": "custom_tool_call", "call_id": "call_2", "name": "apply_patch", "input": "*** Begin"},
        {"type": "function_call_output", "call_id": "call_1", "output": RESULT},
        {
            "type": "custom_tool_call_output",
            "call_id": "call_2",
            "output": [{"type": "input_text", "text": "ok"}],
        },
    ]
    base = {"model": "codex-x", "input": TASK, "max_output_tokens": 60}
    full = {
        "model": "codex-x",
        "instructions": SYSTEM,
        "input": messages,
        "tools": tools,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "s",
        "max_output_tokens": 60,
    }
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"}
    seen = base | {"input": [{"role": "user", "content": [{"type": "input_text", "text": "See:"}, image]}]}
    path = "/v1/responses"
    counted = {name: full[name] for name in ("model", "instructions", "input", "tools")}
    return DialectCorpus(
        "responses",
        (
            (path, base),
            (path, full),
            (path, full | {"stream": True}),
            (path, base | {"stream": True, "input": [user]}),
            (path, seen),
            (path, base | {"input": LONG}),
            (f"{path}/input_tokens", counted),
        ),
        ends=(b"event: response.completed", b"event: response.incomplete"),
        fails=b"event: response.failed",
        sentence=_openai_sentence,
        follow=_responses_follow,
    )


def _responses_follow(body: Body, answer: Any) -> Body:
    kinds = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
    output = [item for item in answer["output"] if item["type"] != "reasoning"]
    results = [
        {"type": kinds[item["type"]], "call_id": item["call_id"], "output": RESULT}
        for item in output
        if item["type"] in kinds
    ]
    before = body["input"]
    before = before if isinstance(before, list) else [{"role": "user", "content": before}]
    return body | {"input": [*before, *output, *(results or [{"role": "user", "content": "Go on."}])]}


def _google() -> DialectCorpus:
    declared = [
        {"name": "run_shell_command", "description": "run", "parametersJsonSchema": SCHEMA},
        {"name": "read_file", "parameters": {"type": "OBJECT", "properties": {"path": {"type": "STRING"}}}},
    ]
    user = {"role": "user", "parts": [{"text": TASK}]}
    messages = [
        user,
        {
            "role": "model",
            "parts": [
                {"text": "Line 12.", "thought": True},
                {"text": "I look."},
                {"functionCall": {"id": "c1", "name": "run_shell_command", "args": ARGUMENTS}},
                {"functionCall": {"name": "read_file", "args": {"path": "a"}}, "thoughtSignature": "c2ln"},
            ],
        },
        {
            "role": "user",
            "parts": [
                {
                    "functionResponse": {
                        "id": "c1",
                        "name": "run_shell_command",
                        "response": {"output": RESULT},
                    }
                },
                {"functionResponse": {"name": "read_file", "response": {"error": "no", "code": 2}}},
                {"text": "Go on."},
            ],
        },
    ]
    bounded = {"generationConfig": {"maxOutputTokens": 60, "temperature": 0.5, "topK": 40}}
    base = {"contents": [user], **bounded}
    full = base | {
        "contents": messages,
        "systemInstruction": {"parts": [{"text": SYSTEM}]},
        "tools": [{"functionDeclarations": declared}, {"googleSearch": {}}],
        "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
        "safetySettings": [],
    }
    image = {"inlineData": {"mimeType": "image/png", "data": PIXEL}}
    whole, stream = (f"/v1beta/models/gemini-x:{name}enerateContent" for name in ("g", "streamG"))
    return DialectCorpus(
        "google",
        (
            (whole, base),
            (whole, full),
            (f"{stream}?alt=sse", full),
            (stream, base),
            (f"{stream}?alt=sse", base),
            (whole, base | {"contents": [{"role": "user", "parts": [{"text": "See:"}, image]}]}),
            (whole, base | {"contents": [{"parts": [{"text": LONG}]}]}),
            ("/v1beta/models/gemini-x:countTokens", {"contents": messages}),
        ),
        ends=(b'"finishReason"',),
        fails=b'data: {"error"',
        sentence=_google_sentence,
        follow=_google_follow,
    )


def _google_sentence(document: Any) -> str:
    assert isinstance(document["error"]["code"], int)
    assert isinstance(document["error"]["status"], str)
    return document["error"]["message"]


def _google_follow(body: Body, answer: Any) -> Body:
    content = answer["candidates"][0]["content"]
    calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
    results = [
        {"functionResponse": {"name": call["name"], "id": call["id"], "response": {"output": RESULT}}}
        for call in calls
    ]
    return body | {
        "contents": [*body["contents"], content, {"role": "user", "parts": results or [{"text": "Go on."}]}]
    }


DIALECTS = {corpus.name: corpus for corpus in (_anthropic(), _openai(), _responses(), _google())}
