"""Request bodies of each dialect to canonical form. Raises BadInput with one sentence."""

from gyre.trajectory.dialects.anthropic import from_anthropic
from gyre.trajectory.dialects.google import from_google
from gyre.trajectory.dialects.openai import from_openai
from gyre.trajectory.dialects.reading import parse_body
from gyre.trajectory.dialects.responses import from_responses

__all__ = ["from_anthropic", "from_google", "from_openai", "from_responses", "parse_body"]
