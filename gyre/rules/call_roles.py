"""Role-matching: the role of a model call by the rules of its harness (QwenGyre, arXiv 2609.33848)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gyre.contracts.roles import Role, RoleRule


@dataclass(frozen=True, slots=True)
class Evidence:
    """Properties of a request that show its purpose."""

    headers: Mapping[str, str]
    """Values by lower-case name."""
    tools: Sequence[str]
    """Names of the tools that it offers."""
    system_text: str
    last_user_text: str
    """Text of the last message if it is a user's, else empty."""


def role_of(rules: Iterable[RoleRule], evidence: Evidence) -> Role:
    """Return the role of the first rule that matches.

    If none does, a call with tools is ``main``, because an agent at work offers its tools. A call without
    tools is unrecognized and so ``side``, unless the harness has no rules at all.
    """
    known = tuple(rules)
    for rule in known:
        if holds(rule, evidence):
            return rule.role
    return "main" if evidence.tools or not known else "side"


def holds(rule: RoleRule, evidence: Evidence) -> bool:
    """Return whether the request meets every condition of the rule."""
    return (
        all(_header(evidence.headers.get(name), wanted) for name, wanted in rule.headers.items())
        and rule.tools in (None, bool(evidence.tools))
        and (rule.offers is None or rule.offers in evidence.tools)
        and (rule.lacks is None or rule.lacks not in evidence.tools)
        and (rule.system_contains or "") in evidence.system_text
        and (rule.last_contains or "") in evidence.last_user_text
    )


def _header(value: str | None, wanted: bool | str) -> bool:
    if isinstance(wanted, bool):
        return wanted == (value is not None)
    return value is not None and wanted in value
