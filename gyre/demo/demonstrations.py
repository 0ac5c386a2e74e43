"""What the warm-up learns from: traces of a careful demonstrator, then of a careless one.

The careful one teaches format and skills quickly. The careless one writes down the word as it was given
more often than not, and that habit is learnt too: the policy's score at temperature 1 becomes about the
careless demonstrator's, and what RL has to find out, by reward alone, is which habits are worth keeping.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gyre.demo.tasks import GOALS, instruction

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "shell",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}


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


def messages(rng: random.Random, word: str, habits: Habits) -> list[dict[str, Any]]:
    """A whole demonstration as chat messages: the task, one tool call, its result, the closing word."""
    function = {"name": "shell", "arguments": {"command": command(rng, word, habits)}}
    result = "exit 2" if rng.random() < FAILED_SHARE else ""
    return [
        {"role": "user", "content": instruction(word)},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
        {"role": "tool", "content": result},
        {"role": "assistant", "content": "done"},
    ]
