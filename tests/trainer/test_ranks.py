"""The failure of one rank is the end of all; a refusal that all ranks share is not."""

import signal
from pathlib import Path

import pytest

from tests.trainer import faulty
from tests.trainer.processes import END_S, run_ranks, start_ranks


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_fails_while_the_other_is_in_a_collective(tmp_path: Path, failing: int) -> None:
    codes, said = run_ranks(faulty.main, tmp_path, "reduce", [failing])
    assert codes == [1, 1], said
    assert f"rank {failing}: reduce: RuntimeError: no memory left" in said[failing]


@pytest.mark.parametrize("refusing", [0, 1])
def test_a_refusal_that_not_all_ranks_share(tmp_path: Path, refusing: int) -> None:
    codes, said = run_ranks(faulty.main, tmp_path, "refuse", [refusing])
    assert codes == [1, 1], said
    assert f"refuse: only ranks [{refusing}] refused: the gradient norm is nan" in said[0]
    assert "rank 0 is gone" in said[1]


def test_a_refusal_of_all_ranks_leaves_them_in_step(tmp_path: Path) -> None:
    """The script refuses once before it fails: to get to its end the ranks had to stay in step."""
    codes, said = run_ranks(faulty.main, tmp_path, "reduce", [])
    assert codes == [0, 1], said
    assert "rank 0 is gone" in said[1]


def test_a_command_may_be_larger_than_the_store_takes(tmp_path: Path) -> None:
    """The paths of a micro-step are, when executions have hundreds of thousands of tokens."""
    codes, said = run_ranks(faulty.say_much, tmp_path)
    assert codes == [0, 1], said
    assert "rank 0 is gone" in said[1]


def test_rank_0_that_waits_for_a_killed_rank_ends_when_told(tmp_path: Path) -> None:
    """The store does not say that a peer is gone; the supervisor, which sees it, sends SIGTERM."""
    first, second = start_ranks(faulty.main, tmp_path, "die", [1])
    second.join(END_S)
    assert second.exitcode == -signal.SIGKILL
    assert first.exitcode is None
    first.terminate()
    first.join(END_S)
    assert first.exitcode == -signal.SIGTERM
