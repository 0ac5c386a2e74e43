"""A failure on one rank ends all ranks; a refusal on all ranks ends none."""

import signal
from pathlib import Path

import pytest

from tests.trainer import faulty
from tests.trainer.processes import END_S, run_ranks, start_ranks


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_while_the_other_rank_is_in_a_collective_ends_both(tmp_path: Path, failing: int) -> None:
    codes, stderr = run_ranks(faulty.main, tmp_path, "reduce", [failing])
    assert codes == [1, 1], stderr
    assert f"rank {failing}: reduce: RuntimeError: no memory left" in stderr[failing]


@pytest.mark.parametrize("refusing", [0, 1])
def test_a_refusal_on_one_rank_only_ends_both(tmp_path: Path, refusing: int) -> None:
    codes, stderr = run_ranks(faulty.main, tmp_path, "refuse", [refusing])
    assert codes == [1, 1], stderr
    assert f"refuse: only ranks [{refusing}] refused: the gradient norm is nan" in stderr[0]
    assert "rank 0 is gone" in stderr[1]


def test_a_refusal_on_all_ranks_leaves_them_in_step(tmp_path: Path) -> None:
    """The script refuses once on both ranks and then reduces, which takes ranks in step."""
    codes, stderr = run_ranks(faulty.main, tmp_path, "reduce", [])
    assert codes == [0, 1], stderr
    assert "rank 0 is gone" in stderr[1]


def test_a_command_may_be_larger_than_a_store_message(tmp_path: Path) -> None:
    """So are the paths of a micro-step when executions have hundreds of thousands of tokens."""
    codes, stderr = run_ranks(faulty.echo_large, tmp_path)
    assert codes == [0, 1], stderr
    assert "rank 0 is gone" in stderr[1]


def test_rank_0_waiting_for_a_killed_rank_ends_on_sigterm(tmp_path: Path) -> None:
    """The store does not report that a peer is gone; the supervisor sees it and sends SIGTERM."""
    first, second = start_ranks(faulty.main, tmp_path, "die", [1])
    second.join(END_S)
    assert second.exitcode == -signal.SIGKILL
    assert first.exitcode is None
    first.terminate()
    first.join(END_S)
    assert first.exitcode == -signal.SIGTERM
