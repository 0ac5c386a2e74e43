"""Demonstrations for the warm-up: first by a careful demonstrator, then by a careless one.

The careful one teaches the format and the skills quickly. The careless one copies the word unchanged more
often than not, and the policy learns that habit too: at temperature 1 it scores about as low as the careless
demonstrator. RL then has to find out, from rewards alone, which habits are worth keeping.
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
    """Chat messages of the conversation's last request, as the gateway gets them, and its last answer."""

    messages: list[Message]
    tools: list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Habit:
    """Shares of demonstrations that reach a goal or miss it in one of two ways; they sum to 1."""

    right: float
    unchanged: float
    """Write the word as it stands in the instruction."""
    slip: float = 0.0
    """Write the right text with one random letter in it."""


Habits = Mapping[str, Habit]
CAREFUL: Habits = dict.fromkeys(GOALS, Habit(right=0.8, unchanged=0.2))
"""Mostly right, so that a hundred steps teach the skills; some copying, because that must be learned too."""
CARELESS: Habits = {
    "back": Habit(right=0.55, unchanged=0.35, slip=0.10),
    "caps": Habit(right=0.50, unchanged=0.50),
    "next": Habit(right=0.35, unchanged=0.65),
}
"""Scores 0.49 by itself. Greedy sampling follows the commoner habit of each goal, so it can improve too."""
FAILED_SHARE = 0.05
"""Share of demonstrations in which the shell reports an error, so that the policy stops after one too."""


def command(rng: random.Random, word: str, habits: Habits) -> str:
    """Return the shell command of one demonstration."""
    return "; ".join(f"echo {_text(rng, word, name, habits[name])} > {name}" for name in GOALS)


def _text(rng: random.Random, word: str, goal: str, habit: Habit) -> str:
    right = GOALS[goal](word)
    place = rng.randrange(len(right))
    slip = right[:place] + rng.choice("abcdefghijklmnopqrstuvwxyz") + right[place + 1 :]
    return rng.choices((right, word, slip), (habit.right, habit.unchanged, habit.slip))[0]


def conversations(rng: random.Random, task: Task, habits: Habits) -> list[DemonstratedConversation]:
    """Demonstrate a task: one conversation, or two where a sub-agent or a compaction starts another."""
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
    """Return the messages of one command that writes the files, and of the closing word."""
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
