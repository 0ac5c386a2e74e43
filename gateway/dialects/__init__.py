"""The dialects: each vendor's API in one file that reads requests and writes answers.

anthropic.py   Anthropic Messages
base.py        the interface, and shared writing
google.py      Google generateContent
openai.py      OpenAI Chat Completions
reading.py     shared reading and checks
responses.py   OpenAI Responses
"""

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
