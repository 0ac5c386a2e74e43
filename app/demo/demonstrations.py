"""What the warm-up learns from: traces of a careful demonstrator, then of a careless one.

The careful one teaches format and skills quickly. The careless one writes down the word as it was given
more often than not, and that habit is learnt too: the policy's score at temperature 1 becomes about the
careless demonstrator's, and what RL has to find out, by reward alone, is which habits are worth keeping.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.demo.harness import AGENT, SHELL, SUMMARY_HEAD, SUMMARY_REQUEST
from app.demo.tasks import GOALS, NOTES, WORD_HEAD, Kind, Task, notes, request

Message = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class DemonstratedConversation:
    """Chat messages as the gateway gets them in the last request of a conversation, and the last answer."""

    messages: list[Message]
    tools: list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Habit:
    """Shares of demonstrations that do a goal right or go wrong in one of two ways; they sum to 1."""

    right: float
    unchanged: float
    """The word as it was given."""
    slip: float = 0.0
    """Right but for one letter."""


Habits = Mapping[str, Habit]
CAREFUL: Habits = dict.fromkeys(GOALS, Habit(right=0.8, unchanged=0.2))
"""Mostly right, so that skills are learnt in a hundred steps; copying has to be learnt as well."""
CARELESS: Habits = {
    "back": Habit(right=0.55, unchanged=0.35, slip=0.10),
    "caps": Habit(right=0.50, unchanged=0.50),
    "next": Habit(right=0.35, unchanged=0.65),
}
"""Scores 0.49 by itself. The greedy policy follows the commoner habit of each goal, so it has room too."""
FAILED_SHARE = 0.05
"""Of traces in which the shell reports an error, so that the policy ends its work then as well."""


def command(rng: random.Random, word: str, habits: Habits) -> str:
    """One demonstration's shell command."""
    return "; ".join(f"echo {_text(rng, word, name, habits[name])} > {name}" for name in GOALS)


def _text(rng: random.Random, word: str, goal: str, habit: Habit) -> str:
    right = GOALS[goal](word)
    choices = (right, word, _slip(rng, right))
    return rng.choices(choices, (habit.right, habit.unchanged, habit.slip))[0]


def _slip(rng: random.Random, text: str) -> str:
    place = rng.randrange(len(text))
    return text[:place] + rng.choice("abcdefghijklmnopqrstuvwxyz") + text[place + 1 :]


def conversations(rng: random.Random, task: Task, habits: Habits) -> list[DemonstratedConversation]:
    """A whole demonstration: one conversation, or two where a sub-agent or a compaction starts another."""
    asked, both = request(task.kind, task.word), [SHELL, AGENT]
    if task.kind is Kind.PLAIN:
        return [DemonstratedConversation(messages=_work(rng, asked, task.word, habits), tools=both)]
    if task.kind is Kind.DELEGATE:
        main = [_user(asked), _call("agent", prompt=asked), _result("done"), _says("done")]
        work = _work(rng, asked, task.word, habits)
        return [
            DemonstratedConversation(messages=main, tools=[AGENT]),
            DemonstratedConversation(messages=work, tools=[SHELL]),
        ]
    summary = f"{WORD_HEAD}{task.word}."
    read = [_user(asked), _call("shell", command=f"cat {NOTES}"), _result(notes(task.word))]
    work = _work(rng, asked + SUMMARY_HEAD + summary, task.word, habits)
    return [
        DemonstratedConversation(messages=[*read, _user(SUMMARY_REQUEST), _says(summary)], tools=both),
        DemonstratedConversation(messages=work, tools=both),
    ]


def _work(rng: random.Random, asked: str, word: str, habits: Habits) -> list[Message]:
    """One command that writes the files, and the closing word."""
    result = "exit 2" if rng.random() < FAILED_SHARE else ""
    return [_user(asked), _call("shell", command=command(rng, word, habits)), _result(result), _says("done")]


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _says(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _result(text: str) -> Message:
    return {"role": "tool", "content": text}


def _call(name: str, **arguments: str) -> Message:
    function = {"name": name, "arguments": arguments}
    return _says("") | {"tool_calls": [{"type": "function", "function": function}]}
