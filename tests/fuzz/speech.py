"""Answers of a careless policy: broken markup, nothing, NUL, incomplete characters, special tokens."""

import random

from gyre.contracts.engine import GenerateRequest
from tests.gateway.scripted_engine import Part

REFUSED = "input does not fit"
"""The engine's refusal of a prompt: the only failure of a call that has started."""
CALLS = (
    '<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n</tool_call>',
    '<tool_call>{"name": "bash"}</tool_call><tool_call>{"name": "edit", "arguments": {"a": 1}}</tool_call>',
    '<tool_call>{"name": "Bash", "arguments": {"command": "\\ud83d"}}</tool_call>',
    '<tool_call>{"name": "Bash", "arguments": {"n": 1e999}}</tool_call>',
    '<tool_call>{"name": "Bash", "arguments": {"n": -0.0, "m": 10000000000000000000000}}</tool_call>',
    '<tool_call>{"name": "b\\u0000", "arguments": {"\\u0000": "\\u0000"}}</tool_call>',
    '<tool_call>{"name": "Bash", "arguments": "ls"}</tool_call>',
    '<tool_call>{"name": "Bash", "arguments": {"x": NaN}}</tool_call>',
    "<tool_call>{</tool_call>",
    "<tool_call><tool_call></tool_call></tool_call>",
    "<tool_call>" + "[" * 60 + "</tool_call>",
    '<tool_call>{"name": "Bash", "arguments": {"command": "ls',
    "<tool_call>\n<function=Bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>",
    "<tool_call><function=Bash><parameter=timeout>ten</parameter></function></tool_call>",
    "<tool_call><function=Bash><parameter=command>ls</function></tool_call>",
    "<tool_call><function=Bash>" + "<parameter=a>1</parameter>" * 12 + "junk</function></tool_call>",
    "<tool_call><function=Bash>" + "<parameter=a>1</parameter>" * 12 + "<parameter=b></function></tool_call>",
    "</tool_call>",
)
TEXTS = (
    "", " \n", "done", "é\u0301 \U0001f34e", "a\0b", "\0", "<think>", "<think>why</think>", "</think>so",
    "<think>a<think>b</think>c</think>", "<think>\n<tool_call></think>", '"', "\\", "@gyre-bridge-3f1c@",
    "data: [DONE]\n\n", "event: message_stop", "\r\n\r\n", "x" * 70,
)  # fmt: skip


class CarelessPolicy:
    """A script for the engine. Its answer follows from the call's seed, so that a repeat gets the same."""

    def __init__(self) -> None:
        self._interrupted: set[str] = set()
        """Calls that were refused or aborted once; their next try is answered."""

    def __call__(self, request: GenerateRequest, prompt: str) -> Part:
        seed = request.sampling_params.sampling_seed
        draw, call = random.Random(seed), (request.rid or "").rpartition("/")[0]
        first = call not in self._interrupted
        match draw.randrange(12):
            case 0:
                return Part(ids=[draw.randrange(262) for _ in range(draw.randrange(1, 20))], finish="length")
            case 1 if first:
                self._interrupted.add(call)
                return Part(status=draw.choice((429, 500, 503)))
            case 2 if first:
                self._interrupted.add(call)
                return Part(draw.choice(TEXTS), finish="abort")
            case 3 | 4 | 5 | 6:
                return Part(draw.choice(TEXTS) + draw.choice(CALLS), version=1)
            case 7 if draw.random() < 0.2:
                return Part(status=400, message=REFUSED)
            case _:
                return Part(draw.choice(TEXTS), version=1)
