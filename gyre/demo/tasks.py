"""The demo's family of tasks: one word, three files to write, a score that counts every letter.

A task is a Harbor-format folder. Its evaluator is plain POSIX shell, because hundreds of them run on two
cores: starting Python for each would cost more than the policy does.
"""

import random
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path

CONSONANTS = "bcdfghjklmnprstvwxyz"
VOWELS = "aeiou"
PATTERN = (CONSONANTS, VOWELS, CONSONANTS, VOWELS, CONSONANTS)
"""Five letters that can be read aloud: 200,000 words, so no split is ever short of them."""

INSTRUCTION = (
    'The word is "{word}". Write it backwards into the file back, in capitals into the file caps, '
    "and with every letter replaced by the next one of the alphabet into the file next."
)


def backwards(word: str) -> str:
    return word[::-1]


def next_letters(word: str) -> str:
    """Each letter replaced by the one after it; ``z`` by ``a``."""
    return "".join(chr((ord(letter) - ord("a") + 1) % 26 + ord("a")) for letter in word)


GOALS: dict[str, Callable[[str], str]] = {"back": backwards, "caps": str.upper, "next": next_letters}
"""File name -> what belongs in it. Each is worth a third of the score."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """Words of one seed; the three sets share no word."""

    train: tuple[str, ...]
    heldout: tuple[str, ...]


def random_word(rng: random.Random) -> str:
    return "".join(rng.choice(letters) for letters in PATTERN)


def draw_split(seed: int, *, num_train: int, num_heldout: int) -> Split:
    """Train and held-out words of a seed: distinct, the same at every call."""
    rng = random.Random(f"gyre-demo-words-{seed}")
    words: dict[str, None] = {}
    while len(words) < num_train + num_heldout:
        words.setdefault(random_word(rng))
    drawn = tuple(words)
    return Split(train=drawn[:num_train], heldout=drawn[num_train:])


def other_words(rng: random.Random, excluded: Set[str]) -> Iterator[str]:
    """Endless words that are in neither split: what the warm-up is shown."""
    while True:
        word = random_word(rng)
        if word not in excluded:
            yield word


def instruction(word: str) -> str:
    return INSTRUCTION.format(word=word)


def score(word: str, files: dict[str, str]) -> float:
    """What ``tests/test.sh`` computes, in Python: the mean over goals of half the share of letters in
    their place plus half for the whole file, in [0, 1]."""
    return sum(_goal_score(goal(word), files.get(name, "")) for name, goal in GOALS.items()) / len(GOALS)


def _goal_score(wanted: str, found: str) -> float:
    places = sum(a == b for a, b in zip(wanted, found, strict=False))
    return places / len(wanted) / 2 + (wanted == found) / 2


def write_task(folder: Path, word: str) -> None:
    """Write one task folder; the same word gives the same bytes. The workspace starts empty."""
    for name in ("tests", "solution"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    # No newline at the end: the instruction is the user message, letter by letter.
    (folder / "instruction.md").write_text(instruction(word))
    (folder / "task.toml").write_text(TASK_TOML)
    (folder / "tests" / "test.sh").write_text(test_script(word))
    (folder / "solution" / "solve.sh").write_text(f"#!/bin/sh\n{solution(word)}\n")


def write_split(folder: Path, words: tuple[str, ...]) -> None:
    for word in words:
        write_task(folder / word, word)


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
