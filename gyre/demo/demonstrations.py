"""What the warm-up learns from: traces of a careful demonstrator, then of a careless one.

The careful one teaches format and skills quickly. The careless one does each goal right only some of the
time, and its bad habits are learnt too: the policy's score at temperature 1 becomes about the careless
demonstrator's, and what RL has to find out, by reward alone, is which habits are worth keeping.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from gyre.demo.tasks import GOALS, instruction

TOOL = {
    "type": "function",
    "function": {
        "name": "shell",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}


@dataclass(frozen=True, kw_only=True)
class Habit:
    """Shares of demonstrations, out of 1, that do a goal right or go wrong in one of three ways."""

    right: float
    unchanged: float
    """The word as it was given."""
    omitted: float
    """No such file."""
    slip: float
    """Right but for one letter."""


Habits = Mapping[str, Habit]
CAREFUL: Habits = dict.fromkeys(GOALS, Habit(right=0.75, unchanged=0.15, omitted=0.10, slip=0.0))
CARELESS: Habits = {
    "back": Habit(right=0.45, unchanged=0.30, omitted=0.10, slip=0.15),
    "caps": Habit(right=0.40, unchanged=0.50, omitted=0.10, slip=0.00),
    "next": Habit(right=0.35, unchanged=0.10, omitted=0.45, slip=0.10),
}


def command(rng: random.Random, word: str, habits: Habits) -> str:
    """One demonstration's shell command; ``true`` if it leaves out every file."""
    parts: list[str] = []
    for name, habit in habits.items():
        right = GOALS[name](word)
        weights = (habit.right, habit.unchanged, habit.omitted, habit.slip)
        text = rng.choices((right, word, "", _slip(rng, right)), weights)[0]
        if text:
            parts.append(f"echo {text} > {name}")
    return "; ".join(parts) or "true"


def _slip(rng: random.Random, text: str) -> str:
    place = rng.randrange(len(text))
    return text[:place] + rng.choice("abcdefghijklmnopqrstuvwxyz") + text[place + 1 :]


def messages(rng: random.Random, word: str, habits: Habits) -> list[dict[str, object]]:
    """A whole demonstration as chat messages: the task, one tool call, its result, the closing word."""
    function = {"name": "shell", "arguments": {"command": command(rng, word, habits)}}
    return [
        {"role": "user", "content": instruction(word)},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
        {"role": "tool", "content": ""},
        {"role": "assistant", "content": "done"},
    ]
