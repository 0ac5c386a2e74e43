"""The model's own chat template and tokenizer: conversations to token ids, sampled ids to text.

What follows a sampled answer is rendered as a bridge: a dummy conversation that ends in an assistant message
with the same tool call ids, then the new messages. So the text after the stop token comes from the template,
and the ids before it stay those that were sampled.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

from gateway.encoding import Encoder
from gyre.contracts.errors import BadInput
from gyre.trajectory.answers import OPEN_THINK
from gyre.trajectory.arrays import Ids
from gyre.trajectory.canonical import Message, Role, ToolCall, assistant
from gyre.trajectory.strict_json import replace_lone_surrogates

MARKER = "@gyre-bridge-3f1c@"
"""Placeholder for a sampled answer in a bridge, to find its place in the rendered text."""
PROBE_TOOL = {"type": "function", "function": {"name": "probe", "description": "", "parameters": {}}}


class Renderer:
    """Pure except for reading the model's folder once; thread-safe."""

    def __init__(self, model_path: Path) -> None:
        """Read the folder. Raises BadInput when it has no tokenizer with a chat template."""
        self._tokenizer = _load_tokenizer(model_path)
        if not self._tokenizer.chat_template:
            raise BadInput(f"model.path {model_path}: the tokenizer has no chat template")
        self.template_sha256 = hashlib.sha256(str(self._tokenizer.chat_template).encode()).hexdigest()
        self._late_system: Role = "system" if self._takes_late_system() else "user"
        # The end of a turn is found with an encoder that does not cut at it yet.
        self._encoder = Encoder(self._tokenizer, None)
        self._end_text = self._end_of_turn()
        self._encoder = Encoder(self._tokenizer, self._end_text)
        self.stop_ids = self._read_stop_ids(model_path)
        self._bridge_needs_tools = self._sees_tools_in_suffix()

    def full(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> str:
        """Render the whole prompt. Raises BadInput when the template refuses the conversation."""
        try:
            return self._render(messages, tools)
        except (TemplateError, TypeError, ValueError) as error:
            raise BadInput(f"the model's chat template refuses this conversation: {error}") from error

    def bridge(
        self, answer: Message, new: Sequence[Message], tools: Sequence[dict[str, Any]], *, stopped: bool
    ) -> str | None:
        """Render what follows a sampled answer: new messages and generation prompt.

        The end of the turn comes first unless the answer ``stopped`` by itself. Returns None if the template
        does not allow a bridge; then render the whole conversation.
        """
        if self._end_text is None:
            return None
        names = [ToolCall(call.id, call.name, "{}") for call in answer.tool_calls]
        dummy = [Message("user", ("-",)), Message("assistant", (MARKER,), tuple(names)), *new]
        try:
            text = self._render(dummy, tools if self._bridge_needs_tools else ())
        except (TemplateError, TypeError, ValueError):
            return None
        end = text.find(self._end_text, text.find(MARKER)) if MARKER in text else -1
        return None if end < 0 else text[end + (len(self._end_text) if stopped else 0) :]

    def encode(self, text: str) -> Ids:
        """Return the ids of a rendered text, shape (num_tokens,)."""
        return self._encoder.encode(text)

    def decode_answer(self, ids: Ids) -> str:
        """Return the text of sampled ids without their stop token."""
        kept = ids[:-1] if self.ends_turn(ids) else ids
        return self._tokenizer.decode(kept.tolist(), skip_special_tokens=False)

    def ends_turn(self, ids: Ids) -> bool:
        """Return whether the last id is a stop token."""
        return len(ids) > 0 and int(ids[-1]) in self.stop_ids

    def opens_thinking(self, prompt: str) -> bool:
        """Return whether the prompt ends inside a reasoning section that the template opened."""
        return prompt.rstrip().endswith(OPEN_THINK)

    def _render(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> str:
        late = [replace(m, role=self._late_system) if m.role == "system" else m for m in messages[1:]]
        shown = [_for_template(message) for message in [*messages[:1], *late]]
        return self._tokenizer.apply_chat_template(
            shown, tools=list(tools) or None, tokenize=False, add_generation_prompt=True
        )

    def _takes_late_system(self) -> bool:
        """Return whether a system message may follow other messages, as harnesses send them.

        Where a template refuses that (Qwen 3.5), all system messages but the first become the user's.
        """
        self._late_system = "system"
        try:
            self._render([Message("user", ("-",)), assistant("-"), Message("system", ("-",))], ())
        except (TemplateError, TypeError, ValueError):
            return False
        return True

    def _end_of_turn(self) -> str | None:
        """Return the special token that the template writes after an assistant's text, if it writes one."""
        turn = [Message("user", ("-",)), Message("assistant", (MARKER,)), Message("user", ("-",))]
        try:
            text = self.full(turn, ())
        except BadInput:
            return None
        if MARKER not in text:
            return None
        first = self.encode(text[text.index(MARKER) + len(MARKER) :])[:1]
        special = len(first) > 0 and int(first[0]) in self._tokenizer.all_special_ids
        return self._tokenizer.decode(first.tolist(), skip_special_tokens=False) if special else None

    def _read_stop_ids(self, model_path: Path) -> tuple[int, ...]:
        """Return the end tokens of generation_config, of the tokenizer and of the template."""
        found: set[int] = set()
        config = model_path / "generation_config.json"
        if config.exists():
            listed = json.loads(config.read_text()).get("eos_token_id") or []
            found |= set(listed if isinstance(listed, list) else [listed])
        if self._tokenizer.eos_token_id is not None:
            found.add(self._tokenizer.eos_token_id)
        if self._end_text is not None:
            found |= set(self.encode(self._end_text).tolist())
        return tuple(sorted(found))

    def _sees_tools_in_suffix(self) -> bool:
        """Return whether tools change a bridge: some templates list them before the last turn."""
        self._bridge_needs_tools = True
        answer, new = Message("assistant", (MARKER,)), [Message("user", ("-",))]
        listed = self.bridge(answer, new, [PROBE_TOOL], stopped=True)
        return listed != self.bridge(answer, new, (), stopped=True)


def _load_tokenizer(model_path: Path) -> Any:
    """Load the folder's tokenizer. Raises BadInput where there is none."""
    try:
        # Needs no model class, and so not the seconds that torch takes to load.
        if (model_path / "tokenizer.json").exists():
            return PreTrainedTokenizerFast.from_pretrained(str(model_path), local_files_only=True)
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(model_path), local_files_only=True)
    except (OSError, ValueError) as error:
        raise BadInput(f"model.path {model_path}: no tokenizer can be read: {error}") from error


def _for_template(message: Message) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.reasoning:
        shown["reasoning_content"] = message.reasoning
    if message.tool_calls:
        shown["tool_calls"] = [_call_for_template(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        shown["tool_call_id"] = message.tool_call_id
    return shown


def _call_for_template(call: ToolCall) -> dict[str, Any]:
    """Build a call with its arguments as an object if they are one: templates expect that."""
    try:
        arguments = replace_lone_surrogates(json.loads(call.arguments))
    except (ValueError, RecursionError):
        arguments = call.arguments
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}
