"""The demo's family of tasks: one word, three files to write, a score that counts every letter.

Three kinds, told apart by where the word is and who can write:

* ``plain``: the instruction tells the word, and the agent writes the files itself.
* ``delegate``: the instruction's first line leaves the agent no tool but ``agent``, so that only a
  sub-agent can write them, and the agent has to pass the word on.
* ``long``: the word is in a file, one long line among other sentences. Whoever prints the file passes the
  harness's limit on a conversation, so the work is done after a compaction, from what the summary kept.

A task is a Harbor-format folder. Its evaluator is plain POSIX shell, because hundreds of them run on two
cores: starting Python for each would cost more than the policy does.
"""

import random
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

CONSONANTS = "bcdfghjklmnprstvwxyz"
VOWELS = "aeiou"
PATTERN = (CONSONANTS, VOWELS, CONSONANTS, VOWELS, CONSONANTS)
"""Five letters that can be read aloud: 200,000 words, so no split is ever short of them."""

WORD_HEAD = "The word is "
WORD_IN_NOTES = "The word is in the file notes"
GOALS_TAIL = (
    ". Write it backwards into the file back, in capitals into the file caps, "
    "and with every letter replaced by the next one of the alphabet into the file next."
)
AGENT_ONLY = "tools: agent\n"
"""First line of an instruction, read by the tiny harness: what the main agent gets."""

NOTES = "notes"
"""The file of a ``long`` task; it is one line, so that no tool for lines can pick the word out of it."""
FILLER = (
    "The ferry leaves at a quarter past seven and comes back on the same evening when the water is high. ",
    "A box of nails, two brushes and the blue paint are in the shed behind the house of the old miller. ",
    "Nobody saw the grey cat since the market moved from the long bridge to the square near the station. ",
    "The second shelf holds maps of the northern coast, and most of them were drawn before the great storm. ",
    "Bread is sold out by nine on most days, so it is best to ask for a loaf to be kept the day before. ",
    "The clock in the hall runs four minutes fast, which everybody knows and which nobody ever put right. ",
    "Rain is expected in the valley for the rest of the week, with some sun on the hills after noon. ",
    "The letters from the summer are tied together with a string and lie in the drawer below the window. ",
    "Two of the lamps on the stairs need new glass, and the door to the cellar has to be lifted to close. ",
    "The choir meets on the first floor this month because the floor of the large room is being repaired. ",
)
"""Sentences of a notes file besides the one with the word; together they pass the harness's limit."""


class Kind(StrEnum):
    PLAIN = "plain"
    DELEGATE = "delegate"
    LONG = "long"


ROTA = (Kind.PLAIN, Kind.DELEGATE, Kind.PLAIN, Kind.LONG)
"""Kinds of a split's tasks in turn: half of them plain, a quarter of each other kind."""


@dataclass(frozen=True, kw_only=True)
class Task:
    kind: Kind
    word: str

    @property
    def name(self) -> str:
        """Such as ``long-tamok``; also its folder's."""
        return f"{self.kind}-{self.word}"


def backwards(word: str) -> str:
    return word[::-1]


def next_letters(word: str) -> str:
    """Each letter replaced by the one after it; ``z`` by ``a``."""
    return "".join(chr((ord(letter) - ord("a") + 1) % 26 + ord("a")) for letter in word)


GOALS: dict[str, Callable[[str], str]] = {"back": backwards, "caps": str.upper, "next": next_letters}
"""File name -> what belongs in it. Each is worth a third of the score."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """Tasks of one seed; no two share a word. Each set begins a rota of its own."""

    train: tuple[Task, ...]
    heldout: tuple[Task, ...]

    @property
    def words(self) -> frozenset[str]:
        """All that a warm-up must not show."""
        return frozenset(task.word for task in (*self.train, *self.heldout))


def random_word(rng: random.Random) -> str:
    return "".join(rng.choice(letters) for letters in PATTERN)


def draw_split(seed: int, *, num_train: int, num_heldout: int) -> Split:
    """Train and held-out tasks of a seed: distinct words, the same at every call."""
    rng = random.Random(f"gyre-demo-words-{seed}")
    words: dict[str, None] = {}
    while len(words) < num_train + num_heldout:
        words.setdefault(random_word(rng))
    drawn = tuple(words)
    return Split(train=_tasks(drawn[:num_train]), heldout=_tasks(drawn[num_train:]))


def _tasks(words: tuple[str, ...]) -> tuple[Task, ...]:
    return tuple(Task(kind=ROTA[index % len(ROTA)], word=word) for index, word in enumerate(words))


def other_words(rng: random.Random, excluded: Set[str]) -> Iterator[str]:
    """Endless words that are in neither split: what the warm-up is shown."""
    while True:
        word = random_word(rng)
        if word not in excluded:
            yield word


def request(kind: Kind, word: str) -> str:
    """What the agent is asked: for ``delegate`` as for ``plain``, and that is what it passes on."""
    return WORD_IN_NOTES + GOALS_TAIL if kind is Kind.LONG else f"{WORD_HEAD}{word}{GOALS_TAIL}"


def instruction(task: Task) -> str:
    """``instruction.md``."""
    return (AGENT_ONLY if task.kind is Kind.DELEGATE else "") + request(task.kind, task.word)


def notes(word: str) -> str:
    """A ``long`` task's file: the sentence with the word anywhere among the others; the same for a word."""
    rng = random.Random(f"gyre-demo-notes-{word}")
    sentences = [*FILLER, f"{WORD_HEAD}{word}. "]
    rng.shuffle(sentences)
    return "".join(sentences)


def score(word: str, files: dict[str, str]) -> float:
    """What ``tests/test.sh`` computes, in Python: the mean over goals of half the share of letters in
    their place plus half for the whole file, in [0, 1]."""
    return sum(_goal_score(goal(word), files.get(name, "")) for name, goal in GOALS.items()) / len(GOALS)


def _goal_score(wanted: str, found: str) -> float:
    places = sum(a == b for a, b in zip(wanted, found, strict=False))
    return places / len(wanted) / 2 + (wanted == found) / 2


def write_task(folder: Path, task: Task) -> None:
    """Write one task folder; the same task gives the same bytes."""
    for name in ("tests", "solution"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    # No newline at the end: the instruction is the user message, letter by letter.
    (folder / "instruction.md").write_text(instruction(task))
    (folder / "task.toml").write_text(TASK_TOML)
    (folder / "tests" / "test.sh").write_text(test_script(task.word))
    (folder / "solution" / "solve.sh").write_text(f"#!/bin/sh\n{solution(task.word)}\n")
    # The workspace of the other kinds starts empty.
    if task.kind is Kind.LONG:
        (folder / "environment").mkdir(exist_ok=True)
        (folder / "environment" / NOTES).write_text(notes(task.word))


def write_split(folder: Path, tasks: tuple[Task, ...]) -> None:
    for task in tasks:
        write_task(folder / task.name, task)


def solution(word: str) -> str:
    """The shell command that scores 1."""
    return "; ".join(f"echo {goal(word)} > {name}" for name, goal in GOALS.items())


TASK_TOML = """version = "1.0"

[metadata]
difficulty = "easy"
category = "demo"

[verifier]
timeout_sec = 20.0

[agent]
timeout_sec = 60.0
"""

TEST_HEAD = """#!/bin/sh
# Every file: half for the letters in their place, half for the whole. Points are out of POINTS.
points=0
check() { # file, wanted text of 5 letters
  found=""
  if [ -f "$1" ]; then IFS= read -r found < "$1" || :; fi
  if [ "$found" = "$2" ]; then points=$((points + 10)); return; fi
  wanted=$2
  while [ -n "$wanted" ] && [ -n "$found" ]; do
    if [ "${wanted%"${wanted#?}"}" = "${found%"${found#?}"}" ]; then points=$((points + 1)); fi
    wanted=${wanted#?} found=${found#?}
  done
}
"""

TEST_TAIL = """mkdir -p /logs/verifier
printf '%d.%04d\\n' $((points / 30)) $((points * 10000 / 30 % 10000)) > /logs/verifier/reward.txt
"""


def test_script(word: str) -> str:
    """``tests/test.sh``: ten points a file, the reward with four decimals."""
    checks = "".join(f"check {name} {goal(word)}\n" for name, goal in GOALS.items())
    return TEST_HEAD.replace("POINTS", "30") + checks + TEST_TAIL
