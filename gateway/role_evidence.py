"""Decides what each call is for: collects the evidence in its request, applies the rules of the harness."""

from collections.abc import Mapping, Sequence
from itertools import takewhile

from gyre.contracts.roles import Role, RoleRule
from gyre.rules.call_roles import Evidence, role_of
from gyre.trajectory.canonical import CanonicalRequest


def call_role(rules: Sequence[RoleRule], headers: Mapping[str, str], request: CanonicalRequest) -> Role:
    """Return the role of a call. ``headers`` has lower-case names."""
    last = request.messages[-1]
    leading = takewhile(lambda message: message.role == "system", request.messages)
    evidence = Evidence(
        headers=headers,
        tools=[str(tool["function"]["name"]) for tool in request.tools],
        system_text="\n".join(message.text for message in leading),
        last_user_text=last.text if last.role == "user" else "",
    )
    return role_of(rules, evidence)
