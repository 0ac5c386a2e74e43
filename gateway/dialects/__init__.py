"""The wire dialects: the same call in the words of each vendor."""

from gateway.dialects.anthropic import AnthropicMessages
from gateway.dialects.base import Dialect, Reply, Stream
from gateway.dialects.google import GoogleGenerate
from gateway.dialects.openai import OpenAIChat
from gateway.dialects.responses import OpenAIResponses

__all__ = [
    "AnthropicMessages",
    "Dialect",
    "GoogleGenerate",
    "OpenAIChat",
    "OpenAIResponses",
    "Reply",
    "Stream",
]
