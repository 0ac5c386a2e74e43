"""A run with one dispatched group, on a real Postgres."""

import pytest
from sqlalchemy import Engine

from db import groups
from db.models import Run, RunConfig, Task
from db.session import transaction
from gyre.contracts.ids import ExecutionId, GroupId, RunId, execution_id, group_id, task_id

RUN = RunId("r")


@pytest.fixture
def group(database: Engine) -> GroupId:
    """A running train group of two executions."""
    with transaction(database) as session:
        session.add(Run(id=RUN, status="running", secret=b"k"))
        session.flush()
        session.add(RunConfig(run_id=RUN, revision=0, resolved={}, fingerprint="f"))
        session.add(Task(id=task_id(RUN, "a"), run_id=RUN, name="a", split="train", path="p", sha256="s"))
        session.flush()
        groups.dispatch(session, RUN, task_id(RUN, "a"), index=0, size=2, version=0)
    return group_id(RUN, 0)


@pytest.fixture
def execution(group: GroupId) -> ExecutionId:
    return execution_id(group, 0)
