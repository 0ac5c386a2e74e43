"""The demo's tasks: take one word, write three files, and score by the letter.

Three kinds differ in where the word is and in who can write:

* ``plain``: the instruction contains the word, and the agent writes the files itself.
* ``delegate``: the instruction's first line leaves the agent no tool but ``agent``, so only a sub-agent can
  write the files, and the agent has to pass the word on.
* ``long``: the word is in a file, on one long line among other sentences. Printing the file exceeds the
  harness's limit on a conversation, so the work is done after a compaction, from what the summary kept.

A task is a folder in Harbor's format. Its evaluator is plain POSIX shell, because hundreds of evaluators run
on two cores: starting Python for each would cost more than running the policy.
"""

import random
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

CONSONANTS = "bcdfghjklmnprstvwxyz"
VOWELS = "aeiou"
PATTERN = (CONSONANTS, VOWELS, CONSONANTS, VOWELS, CONSONANTS)
"""Words of five pronounceable letters; there are 200,000, far more than the splits and the warm-up take."""

WORD_HEAD = "The word is "
WORD_IN_NOTES = "The word is in the file notes"
GOALS_TAIL = (
    ". Write it backwards into the file back, in capitals into the file caps, "
    "and with every letter replaced by the next one of the alphabet into the file next."
)
AGENT_ONLY = "tools: agent\n"
"""First line of an instruction, from which the tiny harness reads the main agent's tools."""

NOTES = "notes"
"""File of a ``long`` task; it is a single line, so that no line-based tool can pick the word out of it."""
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
"""Sentences of a notes file besides the one with the word; together they exceed the harness's limit."""


class Kind(StrEnum):
    PLAIN = "plain"
    DELEGATE = "delegate"
    LONG = "long"


ROTA = (Kind.PLAIN, Kind.DELEGATE, Kind.PLAIN, Kind.LONG)
"""Kinds of a split's tasks in turn: half of them are plain, and a quarter of each other kind."""


@dataclass(frozen=True, kw_only=True)
class Task:
    kind: Kind
    word: str

    @property
    def name(self) -> str:
        """Name of the task and of its folder, such as ``long-tamok``."""
        return f"{self.kind}-{self.word}"


def backwards(word: str) -> str:
    return word[::-1]


def next_letters(word: str) -> str:
    """Replace each letter by the next one of the alphabet, and ``z`` by ``a``."""
    return "".join(chr((ord(letter) - ord("a") + 1) % 26 + ord("a")) for letter in word)


GOALS: dict[str, Callable[[str], str]] = {"back": backwards, "caps": str.upper, "next": next_letters}
"""File name -> function of the word that gives its content. Each file is worth a third of the score."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """Tasks of one seed, no two with the same word. Each part starts its own rota."""

    train: tuple[Task, ...]
    heldout: tuple[Task, ...]

    @property
    def words(self) -> frozenset[str]:
        """Words that the warm-up must not show."""
        return frozenset(task.word for task in (*self.train, *self.heldout))


def random_word(rng: random.Random) -> str:
    return "".join(rng.choice(letters) for letters in PATTERN)


def draw_split(seed: int, *, num_train: int, num_heldout: int) -> Split:
    """Draw the training and held-out tasks of a seed, with distinct words; always the same for one seed."""
    rng = random.Random(f"gyre-demo-words-{seed}")
    words: dict[str, None] = {}
    while len(words) < num_train + num_heldout:
        words.setdefault(random_word(rng))
    drawn = tuple(words)
    return Split(train=_tasks(drawn[:num_train]), heldout=_tasks(drawn[num_train:]))


def _tasks(words: tuple[str, ...]) -> tuple[Task, ...]:
    return tuple(Task(kind=ROTA[index % len(ROTA)], word=word) for index, word in enumerate(words))


def other_words(rng: random.Random, excluded: Set[str]) -> Iterator[str]:
    """Yield words outside ``excluded``, forever."""
    while True:
        word = random_word(rng)
        if word not in excluded:
            yield word


def request(kind: Kind, word: str) -> str:
    """Return the work to do; for ``delegate`` it is the same as for ``plain``, for the agent to pass on."""
    return WORD_IN_NOTES + GOALS_TAIL if kind is Kind.LONG else f"{WORD_HEAD}{word}{GOALS_TAIL}"


def instruction(task: Task) -> str:
    """Return the text of ``instruction.md``."""
    return (AGENT_ONLY if task.kind is Kind.DELEGATE else "") + request(task.kind, task.word)


def notes(word: str) -> str:
    """Return the file of a ``long`` task: the sentence with the word, shuffled among others by the word."""
    rng = random.Random(f"gyre-demo-notes-{word}")
    sentences = [*FILLER, f"{WORD_HEAD}{word}. "]
    rng.shuffle(sentences)
    return "".join(sentences)


def score(word: str, files: dict[str, str]) -> float:
    """Compute in Python the score in [0, 1] that ``tests/test.sh`` computes: the mean over the goals.

    Half of a goal is the share of letters in their places, half is for the whole file.
    """
    total = 0.0
    for name, goal in GOALS.items():
        wanted, found = goal(word), files.get(name, "")
        places = sum(a == b for a, b in zip(wanted, found, strict=False))
        total += places / len(wanted) / 2 + (wanted == found) / 2
    return total / len(GOALS)


def write_task(folder: Path, task: Task) -> None:
    """Write one task folder; the same task always gives the same bytes."""
    for name in ("tests", "solution"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    # Without a final newline: the harness sends the file's exact content as the user message.
    (folder / "instruction.md").write_text(instruction(task))
    (folder / "task.toml").write_text(TASK_TOML)
    (folder / "tests" / "test.sh").write_text(test_script(task.word))
    (folder / "solution" / "solve.sh").write_text(f"#!/bin/sh\n{solution(task.word)}\n")
    if task.kind is Kind.LONG:  # other kinds start in an empty workspace
        (folder / "environment").mkdir(exist_ok=True)
        (folder / "environment" / NOTES).write_text(notes(task.word))


def write_split(folder: Path, tasks: tuple[Task, ...]) -> None:
    for task in tasks:
        write_task(folder / task.name, task)


def solution(word: str) -> str:
    """Return a shell command that scores 1."""
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
    """Return the text of ``tests/test.sh``: ten points per file, and a reward with four decimals."""
    checks = "".join(f"check {name} {goal(word)}\n" for name, goal in GOALS.items())
    return TEST_HEAD.replace("POINTS", "30") + checks + TEST_TAIL
