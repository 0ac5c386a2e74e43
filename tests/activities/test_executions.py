"""A disposition is committed once; later callers read it."""

import pytest
from temporalio.exceptions import ApplicationError

from activities.executions import ExecutionActivities
from db import attempts
from db.session import Database, transaction
from gyre.contracts.ids import ExecutionId
from gyre.contracts.lifecycle import AttemptStatus, Disposition
from gyre.contracts.messages import FoldInput


def test_a_fold_without_a_disposition_reads_what_is_committed(
    database: Database, execution: ExecutionId
) -> None:
    activities = ExecutionActivities(database)
    read = FoldInput(execution_id=execution, disposition=None)
    commit = FoldInput(execution_id=execution, disposition=Disposition.PLACEHOLDER, detail="image pull")
    committed = activities.fold_execution(commit)
    assert (committed.disposition, committed.detail) == (Disposition.PLACEHOLDER, "image pull")
    assert activities.fold_execution(read) == committed
    late = FoldInput(execution_id=execution, disposition=Disposition.EXCLUDED, detail="late")
    assert activities.fold_execution(late) == committed


def test_a_running_execution_has_no_disposition_to_read(database: Database, execution: ExecutionId) -> None:
    with transaction(database) as session:
        attempts.open_attempt(session, execution, 1, "h")
    with pytest.raises(ApplicationError, match="no disposition yet") as refused:
        ExecutionActivities(database).fold_execution(FoldInput(execution_id=execution, disposition=None))
    assert (refused.value.type, refused.value.non_retryable) == ("IllegalTransition", True)
    with transaction(database) as session:
        newest = attempts.latest(session, execution)
        assert newest is not None
        assert newest.status == AttemptStatus.OPEN
