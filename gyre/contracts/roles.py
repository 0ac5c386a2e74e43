"""What a model call is for, and the evidence for it that a harness's catalogue file names."""

from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

Role = Literal["main", "main_summary", "subagent", "subagent_summary", "side"]
"""``side`` is a title, a probe or anything unrecognised: recorded, untrained by default."""
ROLES: tuple[Role, ...] = get_args(Role)
TRAINED_ROLES: tuple[Role, ...] = tuple(role for role in ROLES if role != "side")
"""Highest first: `side` is recorded and never trained."""


class RoleRule(BaseModel):
    """One ``[[roles]]`` entry: every condition that is given must hold; without any it always does.

    Texts are looked for literally, upper and lower case told apart.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    role: Role
    headers: dict[str, bool | str] = Field(default_factory=dict[str, bool | str])
    """Lower-case name -> ``true`` (sent), ``false`` (not sent) or a text that its value contains."""
    tools: bool | None = None
    """Whether the call offers tools at all."""
    offers: str | None = None
    """A tool that the call offers."""
    lacks: str | None = None
    """A tool that the call does not offer."""
    system_contains: str | None = None
    """A text in the system messages before the first other one."""
    last_contains: str | None = None
    """A text in the last message, which is a user's."""
