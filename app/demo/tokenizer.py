"""A byte-complete tokenizer built on the spot: 256 bytes, three control tokens, a few whole phrases.

It encodes any text, and decoding returns the same text. Each phrase (the heads of tool calls, the fixed
words of instructions, notes and harness) is one token, so a conversation has some 70 tokens and not 2,000.
"""

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from app.demo.harness import SUMMARY_HEAD, SUMMARY_REQUEST
from app.demo.tasks import FILLER, GOALS, GOALS_TAIL, NOTES, WORD_HEAD, WORD_IN_NOTES

IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"

SHELL_HEAD = '<tool_call>\n{"name": "shell", "arguments": {"command": "'
AGENT_HEAD = '<tool_call>\n{"name": "agent", "arguments": {"prompt": "'
CALL_TAIL = '"}}\n</tool_call>'

PHRASES = (
    "system\n",
    "user\n",
    "assistant\n",
    "Tools: ",
    "shell(command)",
    "agent(prompt)",
    SHELL_HEAD,
    AGENT_HEAD,
    CALL_TAIL,
    "<tool_response>\n",
    "\n</tool_response>",
    WORD_HEAD,
    WORD_IN_NOTES,
    GOALS_TAIL,
    SUMMARY_REQUEST,
    SUMMARY_HEAD,
    *FILLER,
    f"cat {NOTES}",
    "echo ",
    *(f" > {name}" for name in GOALS),
    "; ",
    "done",
)
"""Texts that are always sampled or rendered whole. Elsewhere they become one token too, which is harmless."""

CHAT_TEMPLATE = """\
{%- macro text_of(content) -%}
{%- if content is string -%}{{- content -}}
{%- elif content -%}{%- for part in content -%}{{- part.text -}}{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- if tools -%}
{{- '<|im_start|>system\nTools: ' -}}
{%- for tool in tools -%}
{%- set function = tool.function if tool.function is defined else tool -%}
{{- ', ' if not loop.first -}}
{{- function.name + '(' + ((function.parameters or {}).properties or {}) | join(', ') + ')' -}}
{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{{- '<|im_start|>user\n<tool_response>\n' + text_of(message.content)
    + '\n</tool_response><|im_end|>\n' -}}
{%- else -%}
{{- '<|im_start|>' + message.role + '\n' + text_of(message.content) -}}
{%- for call in message.tool_calls or [] -%}
{%- set function = call.function if call.function is defined else call -%}
{{- '\n' if message.content or not loop.first -}}
{{- '<tool_call>\n{"name": "' + function.name + '", "arguments": ' -}}
{{- function.arguments if function.arguments is string else function.arguments | tojson -}}
{{- '}\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""
"""ChatML with Hermes tool calls. Each message is a separate turn, so the rendering of a conversation is a
prefix of the rendering of any longer one. Tools are listed by name and parameters only: that is enough for a
model that knows two tools, and it keeps the prompt short."""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build the tokenizer with its chat template; its end-of-sequence token is ``<|im_end|>``."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate(alphabet)}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(t, normalized=False) for t in (END_OF_TEXT, IM_START, IM_END)])
    core.add_tokens([AddedToken(phrase, normalized=False) for phrase in PHRASES])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=IM_END,
        pad_token=END_OF_TEXT,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )


def token_id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    """Return the id of one token of the vocabulary."""
    found = tokenizer.convert_tokens_to_ids(token)
    assert isinstance(found, int), f"{token!r} is not one token"
    return found


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Return the token ids of the text, without special tokens around it."""
    return tokenizer.encode(text, add_special_tokens=False)


def render(
    tokenizer: PreTrainedTokenizerFast, messages: list[Any], tools: list[Any], *, prompt: bool = False
) -> str:
    """Apply the chat template to chat-completions messages; with ``prompt``, begin the policy's turn."""
    text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=prompt)
    assert isinstance(text, str)
    return text
