"""Roles of model calls, and the role-matching rules of a harness's catalogue file."""

from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

Role = Literal["main", "main_summary", "subagent", "subagent_summary", "side"]
"""Purpose of a call. ``side`` is a title, a probe or anything unrecognized."""
ROLES: tuple[Role, ...] = get_args(Role)
TRAINED_ROLES: tuple[Role, ...] = tuple(role for role in ROLES if role != "side")
"""Roles whose calls are trained, highest first. ``side`` calls are recorded and never trained."""


class RoleRule(BaseModel):
    """A ``[[roles]]`` entry. It matches if all its conditions hold, so without conditions it always matches.

    Texts are matched literally and case-sensitively.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    role: Role
    headers: dict[str, bool | str] = Field(default_factory=dict[str, bool | str])
    """Lower-case name -> ``true`` (is sent), ``false`` (is not sent) or a text that the value contains."""
    tools: bool | None = None
    """Whether the call must offer tools, or must not."""
    offers: str | None = None
    """Name of a tool that the call must offer."""
    lacks: str | None = None
    """Name of a tool that the call must not offer."""
    system_contains: str | None = None
    """Text in the system messages that come before the first other message."""
    last_contains: str | None = None
    """Text in the last message, which must be a user's."""
