"""Micro-step claims, target paths and policy versions on a real Postgres."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import func, select, update

from db import training
from db.models import (
    BatchRow,
    BlobRow,
    CellRow,
    CheckpointRow,
    ContributionRow,
    MicroStepRow,
    PolicyVersionRow,
    QueryGroupRow,
    TreeNodeRow,
)
from db.session import Database, transaction
from db.training import Claimant, StoredVersion
from gpu_workers.trainer.data import assemble
from gyre.contracts.errors import Fenced, TrainerFailed
from gyre.contracts.lifecycle import MicroStepKind
from tests.trainer.rows import BATCH, CLAIMANT, RUN, Turns, add_batch, add_run, run_config

STORED = StoredVersion(1, "abc", "sha256/w", "sha256/o", 10)


@pytest.fixture
def batch(database: Database, tmp_path: Path) -> Database:
    add_run(database, run_config(tmp_path))
    steps = [("score", [(0, 0)]), *(("grad", [(e, 0), (e, 1)]) for e in range(5))]
    add_batch(database, [Turns(1.0) for _ in range(5)], steps)
    with transaction(database) as session:
        for key in ("sha256/w", "sha256/o"):
            session.add(BlobRow(key=key, sha256=key, num_bytes=1, status="confirmed"))
    return database


def claim(database: Database, kind: MicroStepKind, claimant: Claimant = CLAIMANT) -> int | None:
    with transaction(database) as session:
        step = training.claim_micro_step(session, BATCH, kind, claimant)
        return step.index if step else None


def finish(database: Database, index: int, claimant: Claimant = CLAIMANT) -> None:
    with transaction(database) as session:
        training.finish_micro_step(session, BATCH, index, claimant)


def finish_all(database: Database) -> None:
    for kind in MicroStepKind:
        while (index := claim(database, kind)) is not None:
            finish(database, index)


def commit(
    database: Database, stored: StoredVersion = STORED, claimant: Claimant = CLAIMANT
) -> StoredVersion:
    with transaction(database) as session:
        return training.commit_version(
            session, BATCH, stored, claimant=claimant, gradient_sha256="g", metrics={"loss": 1.0}
        )


def test_concurrent_claims_share_nothing(batch: Database) -> None:
    with ThreadPoolExecutor(4) as pool:
        claims = list(pool.map(lambda _: claim(batch, MicroStepKind.GRAD), range(12)))
    assert sorted(c for c in claims if c is not None) == [1, 2, 3, 4, 5]
    assert claim(batch, MicroStepKind.SCORE) == 0


def test_an_old_epoch_claims_and_finishes_nothing(batch: Database) -> None:
    index = claim(batch, MicroStepKind.GRAD)
    with transaction(batch) as session:
        session.execute(update(CellRow).values(epoch=2))
    with pytest.raises(Fenced, match="epoch 1 is over"):
        claim(batch, MicroStepKind.GRAD)
    with pytest.raises(Fenced):
        finish(batch, index or 0)
    with pytest.raises(Fenced):
        commit(batch)


def test_only_the_claimant_finishes_and_only_once(batch: Database) -> None:
    index = claim(batch, MicroStepKind.GRAD) or 0
    finish(batch, index)
    with pytest.raises(Fenced, match="not claimed"):
        finish(batch, index)
    with pytest.raises(Fenced, match="not claimed"):
        finish(batch, index + 1)


def test_a_new_incarnation_reopens_the_claims_of_the_old_one(batch: Database) -> None:
    finish(batch, claim(batch, MicroStepKind.GRAD) or 0)
    claim(batch, MicroStepKind.GRAD)
    with transaction(batch) as session:
        session.execute(update(CellRow).values(epoch=2))
        session.execute(
            update(MicroStepRow)
            .where(MicroStepRow.index == 5)
            .values(status="claimed", claimed_by=f"{CLAIMANT.cell}0/1")
        )
    with transaction(batch) as session:
        assert training.reopen_claims(session, BATCH, Claimant(CLAIMANT.cell, 2)) == 2
        left = session.scalars(select(MicroStepRow.index).where(MicroStepRow.status != "open")).all()
    assert left == [5]  # claimed by another cell, whose name begins with this cell's


def test_a_version_is_committed_with_batch_groups_and_contribution(batch: Database) -> None:
    finish_all(batch)
    assert commit(batch) == STORED
    with transaction(batch) as session:
        assert session.get_one(BatchRow, BATCH).status == "trained"
        assert session.get_one(BatchRow, BATCH).metrics == {"loss": 1.0}
        assert set(session.scalars(select(QueryGroupRow.status))) == {"trained"}
        contribution = session.scalars(select(ContributionRow)).one()
        assert (contribution.status, contribution.micro_steps) == ("accepted", [0, 1, 2, 3, 4, 5])


def test_the_first_version_wins(batch: Database) -> None:
    finish_all(batch)
    commit(batch)
    other = StoredVersion(1, "other", "sha256/o", None, 10)
    assert commit(batch, other) == STORED
    with transaction(batch) as session:
        for table in (CheckpointRow, PolicyVersionRow, ContributionRow):
            assert session.scalar(select(func.count()).select_from(table)) == 1


def test_a_batch_with_open_micro_steps_makes_no_version(batch: Database) -> None:
    claim(batch, MicroStepKind.GRAD)
    with pytest.raises(TrainerFailed, match="are open"):
        commit(batch)
    with transaction(batch) as session:
        assert training.version_of(session, RUN, 1) is None
        assert set(session.scalars(select(QueryGroupRow.status))) == {"assigned"}


def test_a_path_is_cut_where_its_branch_leaves(batch: Database) -> None:
    with transaction(batch) as session:
        executions = training.executions_of(session, BATCH)
        name = sorted(executions)[0]
        first, second = training.trajectories_of(session, [f"{name}/trajectory/{i}" for i in (0, 1)])
        nodes = training.paths_to(session, [first.leaf_node_id, second.leaf_node_id])
    tokens = {n.index: np.frombuffer(n.token_ids, "<i4") for n in nodes.values()}
    path = assemble(second, nodes, executions[name])
    assert path.tokens.tolist() == [*tokens[0][:2], *tokens[2], *tokens[3]]
    assert path.targets.tolist() == [5, 6, 7, 8, 9]
    assert path.tokens[path.targets].tolist() == tokens[3].tolist()
    logprobs = next(n.logprobs for n in nodes.values() if n.index == 3)
    assert path.behaviour.tolist() == np.frombuffer(logprobs or b"", "<f4").tolist()
    assert path.num_execution_targets == 9


def test_rows_that_disagree_are_refused(batch: Database) -> None:
    with transaction(batch) as session:
        executions = training.executions_of(session, BATCH)
        name = sorted(executions)[0]
        (row,) = training.trajectories_of(session, [f"{name}/trajectory/0"])
        nodes = training.paths_to(session, [row.leaf_node_id])
        session.expunge_all()
    row.num_tokens += 1
    with pytest.raises(TrainerFailed, match="does not have the tokens"):
        assemble(row, nodes, executions[name])
    row.num_tokens -= 1
    broken = nodes[row.leaf_node_id]
    kept, broken.logprobs = broken.logprobs, np.full(4, -np.inf, "<f4").tobytes()
    with pytest.raises(TrainerFailed, match="not finite"):
        assemble(row, nodes, executions[name])
    broken.logprobs = kept
    row.target_node_ids = [node.id for node in nodes.values()]
    with pytest.raises(TrainerFailed, match="not sampled"):
        assemble(row, nodes, executions[name])


def test_trailing_context_is_not_computed(batch: Database) -> None:
    with transaction(batch) as session:
        executions = training.executions_of(session, BATCH)
        name = sorted(executions)[0]
        (row,) = training.trajectories_of(session, [f"{name}/trajectory/0"])
        nodes = training.paths_to(session, [row.leaf_node_id])
        session.expunge_all()
    tail = TreeNodeRow(
        id="tail",
        parent_id=row.leaf_node_id,
        parent_offset=3,
        kind="context",
        num_tokens=2,
        token_ids=np.array([7, 8], "<i4").tobytes(),
    )
    row.leaf_node_id, row.num_tokens, row.num_targets = "tail", row.num_tokens - 1 + 2, 3
    path = assemble(row, {**nodes, "tail": tail}, executions[name])
    assert len(path.tokens) == 9
    assert path.targets.tolist() == [6, 7, 8]
