"""The demo's tasks: splits that share no word, and a shell evaluator that agrees with its specification."""

import random
import subprocess
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.demo import tasks
from app.demo.tasks import Kind, Task
from gyre.settings.task_folders import load_tasks
from sandbox.adapters import load_adapter

WORD = "tamok"
TASK = Task(kind=Kind.PLAIN, word=WORD)
LINE = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=8)


def evaluate(folder: Path, word: str, files: dict[str, str]) -> float:
    """Run the task's own test.sh in a workspace with these files."""
    workspace, logs = folder / "workspace", folder / "logs"
    workspace.mkdir()
    for name, content in files.items():
        (workspace / name).write_text(content)
    script = tasks.test_script(word).replace("/logs/", f"{logs}/")
    subprocess.run(["bash", "-c", script], cwd=workspace, check=True, timeout=10)
    return float((logs / "verifier" / "reward.txt").read_text())


def test_splits_share_no_word_and_depend_on_the_seed_alone() -> None:
    split = tasks.draw_split(3, num_train=96, num_heldout=52)
    assert len(split.words) == 96 + 52
    assert split == tasks.draw_split(3, num_train=96, num_heldout=52)
    assert split != tasks.draw_split(4, num_train=96, num_heldout=52)


def test_warm_up_words_are_in_neither_split() -> None:
    rng = random.Random(0)
    first = list(islice(tasks.other_words(random.Random(1), set()), 200))
    kept = list(islice(tasks.other_words(random.Random(1), set(first[:100])), 100))
    assert kept
    assert not set(kept) & set(first[:100])
    assert len(tasks.random_word(rng)) == len(tasks.PATTERN)


def test_the_solution_reaches_each_goal() -> None:
    assert tasks.solution("tamoz") == "echo zomat > back; echo TAMOZ > caps; echo ubnpa > next"


def test_the_solution_scores_one(tmp_path: Path) -> None:
    tasks.write_task(tmp_path / "task", TASK)
    workspace = tmp_path / "run" / "workspace"
    workspace.mkdir(parents=True)
    subprocess.run(["sh", str(tmp_path / "task/solution/solve.sh")], cwd=workspace, check=True)
    files = {path.name: path.read_text() for path in workspace.iterdir()}
    assert evaluate(tmp_path, WORD, files) == 1.0
    assert tasks.score(WORD, {name: text.strip() for name, text in files.items()}) == 1.0


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, 0.0),
        ({"back": "komat\n"}, 1 / 3),
        ({"back": "komat"}, 1 / 3),
        ({"back": "komax\n"}, 0.4 / 3),
        ({"back": "xkomat\n"}, 0.0),
        ({"back": "komatx\n"}, 0.5 / 3),
        ({"caps": "\nTAMOK\n"}, 0.0),
        ({"next": "*****\n", "caps": "TA"}, 0.2 / 3),
    ],
)
def test_partly_right_files_get_a_partial_score(tmp_path: Path, files: dict[str, str], wanted: float) -> None:
    assert evaluate(tmp_path, WORD, files) == pytest.approx(wanted, abs=1e-4)


@settings(max_examples=40, deadline=None)
@given(back=LINE, caps=LINE, following=LINE)
def test_the_shell_evaluator_agrees_with_the_specification(
    tmp_path_factory: pytest.TempPathFactory, back: str, caps: str, following: str
) -> None:
    files = {"back": back, "caps": caps, "next": following}
    found = evaluate(tmp_path_factory.mktemp("task"), WORD, files)
    assert found == pytest.approx(tasks.score(WORD, files), abs=1e-4)


@settings(max_examples=20, deadline=None)
@given(content=st.binary(max_size=64))
def test_any_bytes_get_a_score(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("task")
    (folder / "bytes").write_bytes(content)
    workspace = folder / "workspace"
    workspace.mkdir()
    (workspace / "back").write_bytes(content)
    (workspace / "caps").mkdir()
    script = tasks.test_script(WORD).replace("/logs/", f"{folder}/logs/")
    subprocess.run(["bash", "-c", script], cwd=workspace, check=True, timeout=10, stderr=subprocess.DEVNULL)
    assert 0 <= float((folder / "logs/verifier/reward.txt").read_text()) <= 1


def test_a_written_split_loads_as_task_folders(tmp_path: Path) -> None:
    split = (TASK, Task(kind=Kind.DELEGATE, word="bidul"), Task(kind=Kind.LONG, word="sagep"))
    tasks.write_split(tmp_path, split)
    loaded = load_tasks(tmp_path)
    assert [task.name for task in loaded] == ["delegate-bidul", "long-sagep", "plain-tamok"]
    delegate, long, plain = loaded
    assert (plain.path / "instruction.md").read_text() == tasks.instruction(TASK)
    assert not (plain.path / "environment").exists()
    assert (long.path / "environment" / tasks.NOTES).read_text() == tasks.notes("sagep")
    assert "sagep" not in (long.path / "instruction.md").read_text()
    assert (delegate.path / "instruction.md").read_text().startswith(tasks.AGENT_ONLY)


def test_every_split_holds_all_kinds() -> None:
    split = tasks.draw_split(0, num_train=96, num_heldout=52)
    for part in (split.train, split.heldout):
        counts = [sum(task.kind is kind for task in part) for kind in Kind]
        assert counts == [len(part) // 2, len(part) // 4, len(part) // 4]


@given(word=st.from_regex("[a-z]{5}", fullmatch=True))
def test_notes_are_one_line_that_exceeds_the_limit_of_the_harness(word: str) -> None:
    options = load_adapter("tiny").options
    text = tasks.notes(word)
    assert f"{tasks.WORD_HEAD}{word}." in text
    assert "\n" not in text
    assert int(options["compact_chars"]) < len(text) < int(options["output_chars"])
