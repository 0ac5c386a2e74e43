"""The benchmark's requests: those of Claude Code in size and shape, growing turn by turn.

A request has 24 tools (65 KB), a system prompt whose first block is a billing header, and all messages so
far. Only the newest message has the cache mark, so each message changes once, as in Claude Code.
"""

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NUM_TURNS = 20
NUM_TOOLS, TOOLS_BYTES = 24, 65_000
SYSTEM_BYTES, TASK_BYTES = 11_000, 1_500
RESULT_BYTES = (1_000, 3_000)
TOOL_ID = re.compile(rb'"id": ?"(toolu_[^"]+)"')
MARK = {"cache_control": {"type": "ephemeral"}}
COMMAND = "grep -rn 'def load_state' --include='*.py' src tests | sort | head -n 40 && git status --short"
ANSWER = (
    "Let me look at how the state is loaded before I change anything, and which tests touch it."
    '\n<tool_call>\n{"name": "Tool00", "arguments": {"command": "' + COMMAND + '", '
    '"description": "Find where the state is loaded, and what is changed in the work tree so far", '
    '"timeout": 120000}}'
    "\n</tool_call>"
)
"""The answer that the engine samples each time, about 100 tokens."""


def source_text() -> str:
    """Return this repository's own sources, to cut prompts from and to train a tokenizer on."""
    root = Path(__file__).parent.parent
    rooms = ("gyre", "gateway", "db", "activities", "workflows", "gpu_workers")
    files = sorted(path for room in rooms for path in (root / room).rglob("*.py"))
    return "\n".join(path.read_text() for path in files)


@dataclass
class HarnessConversation:
    """One execution's side of the benchmark: builds each request from the answers before it."""

    group: "Group"
    token: str
    rng: random.Random
    messages: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Each message in two forms, with the cache mark and without."""
    new_texts: list[str] = field(default_factory=list)
    """The new text of each turn's request, without the policy's own answer."""

    def __post_init__(self) -> None:
        task = [{"type": "text", "text": self.group.reminder}, {"type": "text", "text": self.group.task}]
        self._say("user", task)
        self.new_texts.append(self.group.tail.decode() + self.group.reminder + self.group.task)

    @property
    def turn(self) -> int:
        """Index of the next request."""
        return len(self.messages) // 2

    @property
    def over(self) -> bool:
        """Whether all turns are done."""
        return self.turn >= NUM_TURNS

    def body(self) -> bytes:
        """Build the request of this turn."""
        sent = [plain for _, plain in self.messages[:-1]] + [self.messages[-1][0]]
        return b'{"model":"policy","messages":[' + b",".join(sent) + b"]," + self.group.tail

    def answered(self, stream: bytes) -> None:
        """Append the answer's tool call and its result to the history."""
        found = TOOL_ID.search(stream)
        name = found.group(1).decode() if found else f"toolu_none{self.turn}"
        text, _, call = ANSWER.partition("\n<tool_call>\n")
        arguments = json.loads(call.removesuffix("\n</tool_call>"))["arguments"]
        use = {"type": "tool_use", "id": name, "name": "Tool00", "input": arguments}
        self._say("assistant", [{"type": "text", "text": text}, use])
        result = self.group.cut(self.rng, self.rng.randint(*RESULT_BYTES))
        self._say("user", [{"type": "tool_result", "tool_use_id": name, "content": result}])
        self.new_texts.append(result)

    def _say(self, role: str, blocks: list[dict[str, Any]]) -> None:
        marked = [*blocks[:-1], blocks[-1] | MARK]
        self.messages.append(
            (_json({"role": role, "content": marked}), _json({"role": role, "content": blocks}))
        )


class Group:
    """One task's text. Like a query group, its executions share tools, system prompt and task."""

    def __init__(self, text: str, number: int) -> None:
        self._text = text
        rng = random.Random(f"group {number}")
        self.reminder = f"<system-reminder>\n{self.cut(rng, 900)}\n</system-reminder>"
        self.task = f"Task {number}. {self.cut(rng, TASK_BYTES)}"
        system = [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.220; cch=00000;"},
            {"type": "text", "text": f"Working directory: /workspace/{number}\n{self.cut(rng, SYSTEM_BYTES)}"}
            | MARK,
        ]
        asked = {"system": system, "tools": _tools(text), "max_tokens": 32_000, "stream": True}
        self.tail = _json({**asked, "thinking": {"type": "adaptive"}})[1:]

    def cut(self, rng: random.Random, size: int) -> str:
        """Return a random passage of ``size`` characters."""
        start = rng.randrange(len(self._text) - size)
        return self._text[start : start + size]


def _tools(text: str) -> list[dict[str, Any]]:
    """Build the tools, which belong to the harness and are the same for all groups."""
    rng = random.Random("tools")

    def described(size: int) -> str:
        start = rng.randrange(len(text) - size)
        return text[start : start + size]

    each = TOOLS_BYTES // NUM_TOOLS
    fields = ("command", "description", "timeout", "path", "limit")
    return [
        {
            "name": f"Tool{number:02d}",
            "description": described(each * 6 // 10),
            "input_schema": {
                "type": "object",
                "properties": {
                    name: {"type": "string", "description": described(each // 20)} for name in fields
                },
                "required": list(fields[:2]),
                "additionalProperties": False,
            },
        }
        for number in range(NUM_TOOLS)
    ]


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def conversations(text: str, tokens: Iterator[str], group_size: int) -> Iterator[HarnessConversation]:
    """Yield conversations forever, each with the next token; ``group_size`` of them share a task."""
    group = Group(text, 0)
    for number, token in enumerate(tokens):
        if number and number % group_size == 0:
            group = Group(text, number // group_size)
        yield HarnessConversation(group, token, random.Random(number))
