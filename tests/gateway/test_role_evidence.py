"""The evidence of a request's purpose. The rules of each harness are tested with the real programs."""

from pathlib import Path

import pytest

from gateway.dialects import OpenAIChat
from gateway.role_evidence import call_role
from gyre.contracts.errors import BadInput
from gyre.contracts.roles import RoleRule
from gyre.settings import harnesses
from sandbox import adapters

SHELL = {"type": "function", "function": {"name": "shell", "parameters": {}}}


def request_of(*messages: tuple[str, str], tools: bool = True):
    said = [{"role": role, "content": text} for role, text in messages]
    return OpenAIChat().parse({"model": "m", "messages": said, "tools": [SHELL] if tools else []})


@pytest.mark.parametrize(
    ("conditions", "held"),
    [
        ({"headers": {"x-agent": True}}, True),
        ({"tools": True, "offers": "shell"}, True),
        ({"lacks": "shell"}, False),
        ({"system_contains": "two"}, True),
        ({"system_contains": "late"}, False),
        ({"last_contains": "go on"}, True),
        ({"last_contains": "begin"}, False),
    ],
)
def test_evidence_of_a_request(conditions: dict, held: bool) -> None:
    request = request_of(
        ("system", "one"), ("developer", "two"), ("user", "begin"), ("system", "late"), ("user", "go on")
    )
    role = call_role([RoleRule(role="side", **conditions)], {"x-agent": "1"}, request)
    assert role == ("side" if held else "main")


def test_only_a_users_message_counts_as_the_last() -> None:
    rules = [RoleRule(role="main_summary", last_contains="sum up")]
    assert call_role(rules, {}, request_of(("user", "sum up"), ("assistant", "sum up"))) == "main"


@pytest.mark.parametrize("path", sorted(adapters.CATALOGUE.glob("*.toml")), ids=lambda path: path.stem)
def test_the_gateway_reads_the_catalogue_as_the_sandbox_does(path: Path) -> None:
    facts, adapter = harnesses.harness_facts(path.stem), adapters.load_adapter(path.stem)
    assert (facts.roles, facts.early_start) == (adapter.roles, adapter.early_start)


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "cannot be read"), ("x =", "not TOML"), ('[[roles]]\nrole = "boss"', "roles.0.role = 'boss'")],
)
def test_unreadable_rules_are_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, said: str
) -> None:
    if text is not None:
        (tmp_path / "odd.toml").write_text(text)
    monkeypatch.setattr(harnesses, "CATALOGUE", tmp_path)
    with pytest.raises(BadInput, match=said):
        harnesses.harness_facts("odd")
