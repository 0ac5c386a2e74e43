"""A reward is a number in [0, 1] left by a finished evaluator; anything else is a failure, never 0."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.contracts.errors import EvaluatorFailed
from sandbox.evaluate import TAIL_BYTES, EvaluationFailure, EvaluationOutcome, evaluate, read_reward
from sandbox.harness_process import Limits
from sandbox.snapshot import capture
from tests.sandbox.conftest import needs_bwrap

REWARD = "/logs/verifier/reward.txt"
pytestmark = needs_bwrap


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "answer").write_text("42\n")
    capture(tmp_path / "work", tmp_path / "archive")
    return tmp_path / "archive"


def score(archive: Path, script: str, limit_s: float = 20, limits: Limits | None = None) -> EvaluationOutcome:
    tests = archive.parent / "tests"
    tests.mkdir(exist_ok=True)
    (tests / "test.sh").write_text(script)
    (tests / "test.sh").chmod(0o600)
    scratch = archive.parent / "scratch"
    try:
        return evaluate(tests, archive, scratch, limit_s=limit_s, limits=limits)
    finally:
        assert os.listdir(scratch) == []


def test_the_tests_see_the_restored_work_and_their_own_folder(archive: Path) -> None:
    outcome = score(
        archive, f'pwd; ls; [ "$(cat answer)" = 42 ] && [ -f /tests/test.sh ] && echo 0.75 > {REWARD}'
    )
    assert outcome.reward == 0.75
    assert outcome.output_tail == "/workspace\nanswer\n"


def test_the_same_snapshot_can_be_scored_again(archive: Path) -> None:
    """A verifier that timed out could only be repeated by running the agent again."""
    assert score(archive, f"rm answer; echo 1 > {REWARD}").reward == 1
    assert score(archive, f"[ -f answer ] && echo 0.5 > {REWARD}").reward == 0.5


def test_zero_is_a_valid_reward_and_the_exit_code_does_not_matter(archive: Path) -> None:
    assert score(archive, f"echo 0 > {REWARD}; exit 1").reward == 0


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("true", "no reward"),
        ("exit 3", "exited with 3"),
        (f"echo high > {REWARD}", "not a number"),
        (f"echo nan > {REWARD}", "not in"),
        (f"echo inf > {REWARD}", "not in"),
        (f"echo 1.5 > {REWARD}", "not in"),
        (f"echo -0.1 > {REWARD}", "not in"),
        (f": > {REWARD}", "not a number"),
        (f"ln -s /tests/test.sh {REWARD}", "no reward"),
        (f"mkfifo {REWARD}", "not a file"),
        (f"mkdir {REWARD}", "not a file"),
        (f"echo 1 > {REWARD}; kill -9 $$", "signal 9"),
    ],
)
def test_anything_but_a_reward_is_a_failure(archive: Path, script: str, reason: str) -> None:
    """A reward function that hung or crashed gave a silent 0."""
    with pytest.raises(EvaluatorFailed, match=reason):
        score(archive, script)


def test_a_reward_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("1")
    (tmp_path / "reward.txt").symlink_to("elsewhere")
    with pytest.raises(EvaluatorFailed, match="no reward"):
        read_reward(tmp_path / "reward.txt")


def test_an_endless_evaluator_is_ended_and_its_output_kept(archive: Path) -> None:
    """A reward function looped forever, and a time-out in its process could not stop it."""
    script = f"echo 1 > {REWARD}; echo working; trap '' TERM; while :; do :; done"
    with pytest.raises(EvaluationFailure, match="stopped after 1 s") as failure:
        score(archive, script, limit_s=1)
    assert failure.value.output_tail == "working\n"


def test_the_reward_is_read_after_the_last_process_has_ended(archive: Path) -> None:
    # The background job would change the reward later, but it is ended together with the script.
    script = f"echo 0.25 > {REWARD}; (setsid sh -c 'sleep 5; echo 1 > {REWARD}' &) ; exit 0"
    assert score(archive, script).reward == 0.25


def test_an_evaluator_that_exceeds_its_memory_is_a_failure(archive: Path) -> None:
    script = "python3 -c 'x = bytearray(1 << 30)' || exit 9"
    with pytest.raises(EvaluatorFailed, match="exited with 9"):
        score(archive, script, limits=Limits(memory_bytes=300 << 20))


def test_the_evaluator_has_no_network_and_cannot_change_the_tests(archive: Path) -> None:
    script = (
        "(echo x > /tests/test.sh) 2>/dev/null && exit 4\n"
        "(: < /dev/tcp/127.0.0.1/8377) 2>/dev/null && exit 5\n"
        f"echo 1 > {REWARD}"
    )
    assert score(archive, script).reward == 1


def test_only_the_end_of_the_output_is_kept(archive: Path) -> None:
    outcome = score(archive, f"head -c 100000 /dev/zero; echo end; echo 1 > {REWARD}")
    assert len(outcome.output_tail.encode()) <= 3 * TAIL_BYTES
    assert outcome.output_tail.endswith("end\n")
    assert "\0" not in outcome.output_tail


@given(text=st.text(max_size=40) | st.floats().map(str))
def test_every_accepted_reward_is_in_range(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "reward.txt"
    path.write_text(text)
    try:
        reward = read_reward(path)
    except EvaluatorFailed:
        return
    assert 0 <= reward <= 1
    assert reward == float(text)
