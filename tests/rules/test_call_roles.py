"""The role of a call follows from rules that are data."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gyre.contracts.roles import ROLES, RoleRule
from gyre.rules.call_roles import Evidence, holds, role_of

SHOWN = Evidence({"x-kind": "b=2;a=1"}, ["shell", "agent"], "You are a robot.", "Sum up.")
words = st.text("abc", max_size=3)
evidences = st.builds(Evidence, st.dictionaries(words, words), st.lists(words), words, words)
rules = st.builds(
    RoleRule,
    role=st.sampled_from(ROLES),
    headers=st.dictionaries(words, st.booleans() | words, max_size=2),
    tools=st.none() | st.booleans(),
    offers=st.none() | words,
    lacks=st.none() | words,
    system_contains=st.none() | words,
    last_contains=st.none() | words,
)


@pytest.mark.parametrize(
    ("conditions", "held"),
    [
        ({}, True),
        ({"headers": {"x-kind": True}}, True),
        ({"headers": {"x-kind": False}}, False),
        ({"headers": {"x-other": True}}, False),
        ({"headers": {"x-other": False}}, True),
        ({"headers": {"x-kind": "a=1"}}, True),
        ({"headers": {"x-kind": "a=2"}}, False),
        ({"headers": {"x-other": ""}}, False),
        ({"headers": {"x-kind": True, "x-other": True}}, False),
        ({"tools": True}, True),
        ({"tools": False}, False),
        ({"offers": "agent"}, True),
        ({"offers": "edit"}, False),
        ({"lacks": "agent"}, False),
        ({"lacks": "edit"}, True),
        ({"system_contains": "a robot"}, True),
        ({"system_contains": "A robot"}, False),
        ({"last_contains": "Sum"}, True),
        ({"last_contains": "robot"}, False),
        ({"last_contains": "Sum", "tools": False}, False),
    ],
)
def test_a_rule_matches_only_if_its_conditions_hold(conditions: dict[str, Any], held: bool) -> None:
    assert holds(RoleRule(role="side", **conditions), SHOWN) is held


@given(st.lists(rules, max_size=6), evidences)
def test_the_first_matching_rule_decides(given_rules: list[RoleRule], shown: Evidence) -> None:
    held = [rule.role for rule in given_rules if holds(rule, shown)]
    otherwise = "main" if shown.tools or not given_rules else "side"
    assert role_of(given_rules, shown) == (held[0] if held else otherwise)


@given(st.lists(rules, max_size=4), evidences)
def test_a_rule_without_conditions_always_matches(given_rules: list[RoleRule], shown: Evidence) -> None:
    assert role_of([RoleRule(role="side"), *given_rules], shown) == "side"


@pytest.mark.parametrize(
    "bad", [{"role": "boss"}, {"role": "side", "tool": "x"}, {"role": "side", "tools": 1}]
)
def test_a_misspelt_rule_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RoleRule.model_validate(bad)


def test_an_unrecognized_call_without_tools_is_not_trained() -> None:
    rules = [RoleRule(role="subagent", headers={"x-agent": True})]
    at_work = Evidence(headers={}, tools=["shell"], system_text="", last_user_text="go on")
    unknown = Evidence(headers={}, tools=[], system_text="", last_user_text="say hello")
    assert role_of(rules, at_work) == "main"
    assert role_of(rules, unknown) == "side"
    assert role_of([], unknown) == "main", "nothing is known of a harness without rules"
