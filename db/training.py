"""Micro-steps, target paths and policy versions: everything the trainer reads from and writes to Postgres.

Every write is fenced by the cell's epoch. Functions stand in the order in which an update calls them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, aliased

from db.models import (
    BatchExecutionRow,
    BatchRow,
    CellRow,
    CheckpointRow,
    ContributionRow,
    MicroStepRow,
    PolicyVersionRow,
    QueryGroupRow,
    TrajectoryRow,
    TreeNodeRow,
)
from gyre.contracts.errors import Fenced, TrainerFailed
from gyre.contracts.ids import BatchId, CellId, RunId, checkpoint_id, run_of
from gyre.contracts.lifecycle import (
    GROUP,
    BatchStatus,
    ContributionStatus,
    GroupStatus,
    MicroStepKind,
    MicroStepStatus,
    advance,
)


@dataclass(frozen=True)
class Claimant:
    """One incarnation of a cell; ``micro_step.claimed_by`` holds its string form."""

    cell: CellId
    epoch: int

    def __str__(self) -> str:
        return f"{self.cell}/{self.epoch}"


@dataclass(frozen=True)
class StoredVersion:
    """S3 keys of a policy version's files, and the SHA-256 of its flat weights payload."""

    version: int
    sha256: str
    weights_key: str
    optimizer_key: str | None
    num_bytes: int


def reopen_claims(session: Session, batch: BatchId, claimant: Claimant) -> int:
    """Reopen the micro-steps that this cell claimed or finished in any incarnation; their results are gone.

    Returns the number of micro-steps reopened. Claims of other cells stay.
    """
    lock_epoch(session, claimant)
    reopened = session.execute(
        update(MicroStepRow)
        .where(
            MicroStepRow.batch_id == batch,
            MicroStepRow.status != MicroStepStatus.OPEN,
            # The slash ends the cell's name: cell-1 must not match cell-10.
            MicroStepRow.claimed_by.startswith(f"{claimant.cell}/", autoescape=True),
        )
        .values(status=MicroStepStatus.OPEN, claimed_by=None, claimed_at=None, done_at=None)
        .returning(MicroStepRow.index)
    )
    return len(reopened.all())


def executions_of(session: Session, batch: BatchId) -> dict[str, BatchExecutionRow]:
    """Return the batch's frozen executions by id."""
    rows = session.scalars(select(BatchExecutionRow).where(BatchExecutionRow.batch_id == batch))
    return {row.execution_id: row for row in rows}


def claim_micro_step(
    session: Session, batch: BatchId, kind: MicroStepKind, claimant: Claimant
) -> MicroStepRow | None:
    """Claim the open micro-step with the lowest index, or return None if none is open.

    Two claimants never get the same micro-step. Raises Fenced for an old epoch.
    """
    lock_epoch(session, claimant)
    # SKIP LOCKED: a concurrent claimant takes the next micro-step instead of waiting for this transaction.
    free = (
        select(MicroStepRow.index)
        .where(
            MicroStepRow.batch_id == batch,
            MicroStepRow.kind == kind,
            MicroStepRow.status == MicroStepStatus.OPEN,
        )
        .order_by(MicroStepRow.index)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    claimed = (
        update(MicroStepRow)
        .where(MicroStepRow.batch_id == batch, MicroStepRow.index == free.scalar_subquery())
        .values(status=MicroStepStatus.CLAIMED, claimed_by=str(claimant), claimed_at=func.now())
        .returning(MicroStepRow)
    )
    return session.scalars(claimed).first()


def trajectories_of(session: Session, ids: Iterable[str]) -> list[TrajectoryRow]:
    """Return the named trajectories in the order of ``ids``. Raises TrainerFailed if one does not exist."""
    names = list(ids)
    rows = {row.id: row for row in session.scalars(select(TrajectoryRow).where(TrajectoryRow.id.in_(names)))}
    missing = [name for name in names if name not in rows]
    if missing:
        raise TrainerFailed(f"trajectory {missing[0]} does not exist")
    return [rows[name] for name in names]


def paths_to(session: Session, leaves: Iterable[str]) -> dict[str, TreeNodeRow]:
    """Return every node from the named leaves up to their roots by id, in one query."""
    seed = select(TreeNodeRow.id, TreeNodeRow.parent_id).where(TreeNodeRow.id.in_(list(leaves)))
    path = seed.cte("path", recursive=True)
    parent = aliased(TreeNodeRow)
    path = path.union(select(parent.id, parent.parent_id).join(path, parent.id == path.c.parent_id))
    rows = session.scalars(select(TreeNodeRow).where(TreeNodeRow.id.in_(select(path.c.id))))
    return {row.id: row for row in rows}


def finish_micro_step(session: Session, batch: BatchId, index: int, claimant: Claimant) -> None:
    """Mark a micro-step done: the claimant's process holds its result. Raises Fenced if the claim is lost."""
    lock_epoch(session, claimant)
    finished = session.execute(
        update(MicroStepRow)
        .where(
            MicroStepRow.batch_id == batch,
            MicroStepRow.index == index,
            MicroStepRow.claimed_by == str(claimant),
            MicroStepRow.status == MicroStepStatus.CLAIMED,
        )
        .values(status=MicroStepStatus.DONE, done_at=func.now())
        .returning(MicroStepRow.index)
    )
    if finished.first() is None:
        raise Fenced(f"micro-step {index} of {batch} is not claimed by {claimant}")


def commit_version(
    session: Session,
    batch: BatchId,
    stored: StoredVersion,
    *,
    claimant: Claimant,
    gradient_sha256: str,
    metrics: dict[str, Any],
) -> StoredVersion:
    """Complete an update: write checkpoint, version, batch, groups and contribution together or not at all.

    If the version exists already, nothing is written and the existing version is returned. Raises Fenced
    for an old epoch, TrainerFailed unless the claimant finished every micro-step of the batch.
    """
    lock_epoch(session, claimant)
    run = run_of(batch)
    row = session.get_one(BatchRow, batch, with_for_update=True)
    if existing := version_of(session, run, row.version):
        return existing
    steps = micro_steps_of(session, batch)
    uncovered = [s.index for s in steps if s.status != MicroStepStatus.DONE or s.claimed_by != str(claimant)]
    if stored.version != row.version or uncovered:
        raise TrainerFailed(
            f"{batch} makes version {row.version} and cannot become version {stored.version} while "
            f"micro-steps {uncovered} are open or belong to another claimant"
        )
    committed = _insert_version(session, run, stored, batch)
    _close_batch(session, row, metrics)
    session.add(
        ContributionRow(
            id=f"{batch}/contribution/{claimant}",
            batch_id=batch,
            cell_id=claimant.cell,
            core_epoch=claimant.epoch,
            cell_epoch=claimant.epoch,
            micro_steps=[step.index for step in steps],
            sha256=gradient_sha256,
            status=ContributionStatus.ACCEPTED,
        )
    )
    session.flush()
    return committed


def _close_batch(session: Session, batch: BatchRow, metrics: dict[str, Any]) -> None:
    """Mark a batch and its groups as trained."""
    batch.status, batch.metrics, batch.trained_at = BatchStatus.TRAINED, metrics, func.now()
    groups = select(QueryGroupRow).where(QueryGroupRow.batch_id == batch.id).with_for_update()
    for group in session.scalars(groups):
        group.status = advance(GROUP, GroupStatus(group.status), GroupStatus.TRAINED)


def commit_initial_version(session: Session, run: str, stored: StoredVersion) -> StoredVersion:
    """Commit version 0, the model that the run starts from, unless it exists; return the committed one."""
    return _insert_version(session, run, stored, None)


def _insert_version(
    session: Session, run: str, stored: StoredVersion, batch: BatchId | None
) -> StoredVersion:
    """Insert a checkpoint and its version; if another writer was first, return that writer's version."""
    checkpoint = checkpoint_id(RunId(run), stored.version)
    common = {"run_id": run, "version": stored.version, "sha256": stored.sha256}
    files = {"weights_key": stored.weights_key, "optimizer_key": stored.optimizer_key}
    session.execute(
        insert(CheckpointRow)
        .values(id=checkpoint, num_bytes=stored.num_bytes, **files, **common)
        .on_conflict_do_nothing()
    )
    session.execute(
        insert(PolicyVersionRow)
        .values(checkpoint_id=checkpoint, batch_id=batch, **common)
        .on_conflict_do_nothing()
    )
    committed = version_of(session, run, stored.version)
    assert committed is not None
    return committed


def micro_steps_of(session: Session, batch: BatchId) -> Sequence[MicroStepRow]:
    """Return all micro-steps of a batch in index order."""
    return session.scalars(
        select(MicroStepRow).where(MicroStepRow.batch_id == batch).order_by(MicroStepRow.index)
    ).all()


def version_of(session: Session, run: str, version: int) -> StoredVersion | None:
    """Return a completed policy version with its checkpoint, or None if it was never completed."""
    query = (
        select(PolicyVersionRow, CheckpointRow)
        .join(CheckpointRow, CheckpointRow.id == PolicyVersionRow.checkpoint_id)
        .where(PolicyVersionRow.run_id == run, PolicyVersionRow.version == version)
    )
    found = session.execute(query).first()
    if found is None:
        return None
    row, checkpoint = found
    return StoredVersion(
        version, row.sha256, checkpoint.weights_key, checkpoint.optimizer_key, checkpoint.num_bytes
    )


def lock_epoch(session: Session, claimant: Claimant) -> None:
    """Check the claimant's epoch and hold the cell's row FOR SHARE until the transaction ends.

    A new epoch has to wait for the lock, so nothing is committed under an old one. Raises Fenced.
    """
    query = select(CellRow.epoch).where(CellRow.id == claimant.cell).with_for_update(read=True)
    epoch = session.scalars(query).first()
    if epoch != claimant.epoch:
        raise Fenced(f"{claimant.cell} is at epoch {epoch}; epoch {claimant.epoch} is over")
