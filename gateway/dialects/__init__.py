"""The wire dialects: the same call in the words of each vendor."""

from gateway.dialects.anthropic import AnthropicMessages
from gateway.dialects.base import Dialect, Reply
from gateway.dialects.openai import OpenAIChat

__all__ = ["AnthropicMessages", "Dialect", "OpenAIChat", "Reply"]
