"""Fixtures: a run with one row of every kind in Postgres, and a state directory that knows that Postgres."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy.orm import Session

from app.cli.main import main
from app.stack.files import StateDir
from app.stack.run_record import RunRecord, write_run
from db import runs
from db.models import (
    AttemptRow,
    BatchExecutionRow,
    BatchRow,
    ExecutionRow,
    ModelCallRow,
    QueryGroupRow,
    RewardRow,
    TreeNodeRow,
)
from db.session import Database, transaction
from gyre.contracts.ids import RunId
from gyre.settings import Services

RUN = RunId("seen")
ROLLOUT = f"run/{RUN}/group/0/rollout/0"


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_dsn: str) -> Path:
    """A state directory in which run ``seen`` was started on this test's Postgres."""
    monkeypatch.setenv("GYRE_STATE_DIR", str(tmp_path / ".gyre"))
    state = StateDir(tmp_path / ".gyre")
    state.make()
    services = Services(
        temporal_address="127.0.0.1:1",
        postgres_dsn=postgres_dsn,
        s3_access_key="key",
        s3_secret_key="secret",
    )
    record = RunRecord(
        run=RUN, services=services, harness_slots=1, evaluate_slots=1, gateway_ports=[1], engine_port=2
    )
    write_run(state, record)
    return state.root


@pytest.fixture
def populated(state_dir: Path, database: Database) -> Database:
    """One trained group of two rollouts; one of them made two calls, the second continuing the first."""
    with transaction(database) as session:
        runs.create(session, RUN)
        runs.add_tasks(session, RUN, [runs.NewTask("t", "train", "/t", "0")])
        session.add(
            BatchRow(id=f"run/{RUN}/batch/1", run_id=RUN, version=1, status="trained", num_executions=1)
        )
        session.flush()
        session.add(
            QueryGroupRow(
                id=f"run/{RUN}/group/0",
                run_id=RUN,
                index=0,
                task_id=f"run/{RUN}/task/t",
                size=2,
                status="trained",
                policy_version=0,
                batch_id=f"run/{RUN}/batch/1",
            )
        )
        session.flush()
        session.add(
            ExecutionRow(id=ROLLOUT, group_id=f"run/{RUN}/group/0", run_id=RUN, index=0, status="running")
        )
        session.flush()
        session.add(RewardRow(id=f"{ROLLOUT}/evaluation/0/reward", execution_id=ROLLOUT, value=0.25))
        session.flush()
        execution = session.get_one(ExecutionRow, ROLLOUT)
        execution.status, execution.disposition = "terminal", "scored"
        execution.reward_id = f"{ROLLOUT}/evaluation/0/reward"
        session.add(
            ExecutionRow(
                id=f"run/{RUN}/group/0/rollout/1",
                group_id=f"run/{RUN}/group/0",
                run_id=RUN,
                index=1,
                status="terminal",
                disposition="placeholder",
                detail="provision: no image",
            )
        )
        session.add(
            BatchExecutionRow(
                batch_id=f"run/{RUN}/batch/1",
                execution_id=ROLLOUT,
                reward_id=f"{ROLLOUT}/evaluation/0/reward",
                advantage=0.0,
                num_targets=3,
            )
        )
        _add_calls(session)
    return database


def _add_calls(session: Session) -> None:
    attempt = f"{ROLLOUT}/attempt/0"
    session.add(
        AttemptRow(
            id=attempt,
            execution_id=ROLLOUT,
            run_id=RUN,
            number=0,
            host="here",
            status="sealed",
            end_reason="exited",
        )
    )
    session.flush()
    for index in range(2):
        session.add(
            ModelCallRow(
                id=f"{attempt}/call/{index}",
                attempt_id=attempt,
                execution_id=ROLLOUT,
                run_id=RUN,
                index=index,
                dialect="openai",
                request_key=f"k{index}",
                requested={},
                sampling={},
            )
        )
    session.flush()
    previous: tuple[str | None, int] = (None, 0)
    for index, (kind, tokens, call) in enumerate(
        [("context", 5, 0), ("sampled", 3, 0), ("context", 4, 1), ("sampled", 2, 1)]
    ):
        name = f"{attempt}/node/{index}"
        session.add(
            TreeNodeRow(
                id=name,
                attempt_id=attempt,
                index=index,
                call_id=f"{attempt}/call/{call}",
                parent_id=previous[0],
                parent_offset=previous[1],
                position=0,
                kind=kind,
                num_tokens=tokens,
                token_ids=np.arange(tokens, dtype="<i4").tobytes(),
                logprobs=np.zeros(tokens, dtype="<f4").tobytes() if kind == "sampled" else None,
                versions=[[0, 1], [1, tokens - 1]] if kind == "sampled" else None,
            )
        )
        session.flush()
        previous = (name, tokens)
        if kind == "context":
            session.get_one(ModelCallRow, f"{attempt}/call/{call}").context_node_id = name


@pytest.fixture
def gyre(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """A function that runs one command and returns its exit code, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run
